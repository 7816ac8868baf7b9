"""Micro-steps a round that layouts compute, and how many follow one another: counted, nothing is run or timed.

    python -m benchmarks.speed.buckets [--rounds 200]

W1 to W3 of workloads.py, W1 and W3 with everybody, and the sizes of gpu_choices.py. A line has the steps that are
needed, then for each layout those that it computes and, in brackets, how many follow one another: of `stacked` static,
of the others the mean over drawn cohorts.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

import fedjax_sim as fjs
from benchmarks.speed.gpu_choices import femnist_sizes, pfllib_sizes
from benchmarks.speed.workloads import BATCH, make
from fedjax_sim.engine.layout.stacked import turn_of, widths_of
from fedjax_sim.engine.plan import Plan

BUCKETS, LANES = (2, 3, 5), (8, 32)


def narrowing(taus: np.ndarray, number: int, turn: int) -> tuple[int, int]:
    """What ``number`` loops compute of a cohort, ``turn`` steps at a time, and how many steps follow one another."""
    longest, widths = np.sort(taus)[::-1], widths_of(len(taus), number)
    k, computed = 1, widths[0]
    for width, narrower in itertools.pairwise((*widths, 0)):
        turns = max(-(-(int(longest[narrower]) - k) // turn), 0)
        k, computed = k + turns * turn, computed + turns * turn * width
    return computed, k


def counts(sizes: np.ndarray, cohort: int, batch: int, rounds: int) -> list[str]:
    """The entries of a line."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    data = fjs.datasets.from_ids((np.zeros((len(owners), 1), np.float32), np.zeros(len(owners), np.int32)), owners)
    plan = Plan(
        fjs.quadratic(), fjs.cohort.uniform(cohort), fjs.local.epochs(1), fjs.local.shuffled(batch), dataset=data
    )
    bounds = plan.bounds(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)))
    steps, rng = -(-sizes // batch), np.random.default_rng(0)
    drawn = [steps[rng.choice(len(sizes), cohort, replace=False)] for _ in range(rounds)]
    line = [f"{np.mean([taus.sum() for taus in drawn]):,.0f}", f"{cohort * bounds.per_client:,} ({bounds.per_client})"]
    for number in BUCKETS:
        found = [narrowing(taus, number, turn_of(bounds)) for taus in drawn]
        line.append("{:,.0f} ({:.1f})".format(*np.mean(found, axis=0)))
    for lanes in LANES:
        turns = np.mean([fjs.layout.makespan(taus, lanes).iterations for taus in drawn])
        line.append(f"{min(lanes, cohort) * turns:,.0f} ({turns:.1f})")
    return line


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    cases = {}
    for name in ("W1", "W2", "W3"):
        work = make(name, 1)
        cases[f"{name}: {work.cohorts.shape[1]} of {len(work.sizes)}"] = (work.sizes, work.cohorts.shape[1], BATCH)
        if name != "W2":
            cases[f"{name}, everybody"] = (work.sizes, len(work.sizes), BATCH)
    cases["FLUTE's FEMNIST: 10 of 3,400"] = (femnist_sizes(), 10, 20)
    cases["PFLlib's MNIST: all 20"] = (pfllib_sizes(20, 52_500), 20, 10)
    names = ["stacked", *(f"buckets({k})" for k in BUCKETS), *(f"lanes({lanes})" for lanes in LANES)]
    print("| clients | needed |", " | ".join(names), "|")
    print("|---|" + "---:|" * (len(names) + 1))
    for name, case in cases.items():
        print(f"| {name} |", " | ".join(counts(*case, options.rounds)), "|")


if __name__ == "__main__":
    main()
