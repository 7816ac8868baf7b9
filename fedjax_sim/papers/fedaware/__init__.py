"""FedAWARE: Zeng et al. 2025."""
