"""FedAvg, a method of one's own and an evaluation, as users of other simulators write them: docs/coming-from.md.

    python -m benchmarks.migration [--only fedjax,flower] [--environments DIR] [--markdown docs/coming-from.md]

``from_NAME.py`` is a script for the simulator of that name: it reads the problem from an npz file and writes the two
models and what it evaluated into another. What is compared with them is the page's own Python code.
"""
