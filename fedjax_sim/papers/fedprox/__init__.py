"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", MLSys."""
