"""The same federated averaging in this project and in others, each in an environment of its own.

    python -m benchmarks.speed.peers [--peers ours,fedjax,...] [--workloads W1,W2,W3,W4] [--out results.json]

``contract`` says what a peer is; every other project is one file that imports it inside its functions, so that the
files themselves can be read in any environment. ``child`` runs one peer on one workload in its environment,
``environments`` makes those, ``compare`` checks that all trained the same model and computes the ratios, ``tables``
writes them.
"""
