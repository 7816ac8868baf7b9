"""Li et al. 2020, "On the Convergence of FedAvg on Non-IID Data", ICLR."""
