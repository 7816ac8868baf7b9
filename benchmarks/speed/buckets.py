"""Micro-steps a round that layouts compute, and how many follow one another: counted, nothing is run or timed.

    python -m benchmarks.speed.buckets [--rounds 200]

W1 to W3 of workloads.py, W1 and W3 with everybody, and the sizes of gpu_choices.py. A line has the steps that are
needed, then for each layout those that it computes and, in brackets, the turns of its loop: of `stacked` and `buckets`
static, of `lanes` the mean over drawn cohorts.
"""

from __future__ import annotations

import argparse

import numpy as np

import fedjax_sim as fjs
from benchmarks.speed.gpu_choices import femnist_sizes, pfllib_sizes
from benchmarks.speed.workloads import BATCH, make
from fedjax_sim.engine.layout.stacked import buckets_of, computed_in
from fedjax_sim.engine.plan import Plan

BUCKETS, LANES = (2, 3, 8), (8, 32)


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
    line += [f"{computed_in(buckets_of(cohort, bounds, most)):,} ({bounds.per_client})" for most in BUCKETS]
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
