"""FedNova: Wang et al. 2020, "Tackling the Objective Inconsistency Problem in ... Federated Optimization", NeurIPS."""
