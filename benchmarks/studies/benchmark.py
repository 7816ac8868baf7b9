"""The fair comparison, ``fjs.benchmark``: all its methods on all its problems, in pieces, and its page's tables.

    python -m benchmarks.studies.benchmark [--problem NAME ...] [--method NAME ...] [--runs DIR] [--size cpu]

What was asked for is run, draw by draw, unless it is in the folder of runs already; a stopped one goes on where it
was. Then the results of everything that is finished there are written.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Sequence

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import fedjax_sim as fjs
from fedjax_sim.studies.benchmark import DEEP, METHODS, PROBLEMS, PROTOCOL, SMOKE
from fedjax_sim.studies.benchmark.running import compared

RUNS = pathlib.Path("benchmark-runs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", nargs="*", choices=list(PROBLEMS), help="default: all")
    parser.add_argument("--method", nargs="*", choices=list(METHODS), help="default: all, eight on deep problems")
    parser.add_argument("--size", choices=["smoke", "cpu"], default="cpu")
    parser.add_argument("--runs", type=pathlib.Path, default=RUNS, help="folder of finished runs")
    parser.add_argument("--devices", type=int, default=2, help="CPU devices that share the runs")
    options = parser.parse_args(arguments)
    fjs.use_cpu_devices(options.devices)
    protocol = SMOKE if options.size == "smoke" else PROTOCOL
    for name in options.problem or PROBLEMS:
        _, draws = protocol.of(PROBLEMS[name])
        for draw in range(draws):
            for method in options.method or (DEEP if PROBLEMS[name].deep else METHODS):
                compared(method, METHODS[method], name, draw, options.runs, protocol)


if __name__ == "__main__":
    main()
