"""Tables of benchmarks, of PFLlib and NIID-Bench: the same two data sets and the same network in two sizes."""
