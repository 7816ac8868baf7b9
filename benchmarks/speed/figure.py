"""README's two plots of speed: rounds a second beside other simulators, and what more seeds cost.

    python -m benchmarks.speed.figure [--measure] [--out docs/images/speed.png]

The first is drawn from results/peers.json (``make peers``). The second from results/seeds.json, which ``--measure``
writes: README's FedNova run with 200 rounds, each number of seeds in a process of its own, several times in turns:
seconds from the call of ``simulate`` to its result, compilation included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.speed.peers.__main__ import machine
from benchmarks.speed.peers.compare import rows

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
SEEDS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 200
WORKLOADS = {
    "W1": "logistic regression, 100 of 1,000 clients",
    "W2": "MLP, 50 clients",
    "W4": "1,000 of 100,000 clients",
}
_OURS = "#b5422c"
_OTHERS = "#7d8793"


def main() -> None:
    """Measures if asked to, and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the cost of seeds first (three minutes)")
    parser.add_argument("--repeats", type=int, default=3, help="of the measurement (default: 3)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "speed.png")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(_seconds(options.child))
        return
    if options.measure:
        measure(options.repeats)
    draw(options.out)
    print(f"wrote {options.out}")


def measure(repeats: int) -> None:
    """Writes results/seeds.json."""
    found: dict[int, list[float]] = {seeds: [] for seeds in SEEDS}
    for _ in range(repeats):
        for seeds in SEEDS:
            command = [sys.executable, "-m", "benchmarks.speed.figure", "--child", str(seeds)]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            found[seeds].append(float(done.stdout))
            print(f"{seeds} seeds: {found[seeds][-1]:.2f} s", flush=True)
    import jax

    report = {
        "date": datetime.date.today().isoformat(), "machine": machine(), "jax": jax.__version__, "rounds": ROUNDS,
        "seconds": {str(seeds): values for seeds, values in found.items()},
    }  # fmt: skip
    (RESULTS / "seeds.json").write_text(json.dumps(report, indent=1) + "\n")


def _seconds(seeds: int) -> float:
    import fedjax_sim as fjs

    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=30, seed=0)
    started = time.perf_counter()
    fjs.simulate(
        fjs.fednova(client_optimizer=fjs.optim.sgd(0.02, momentum=0.9)), data, rounds=ROUNDS, eval_every=20,
        task=fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-4), batch_size=20, progress=False,
        cohort=fjs.cohort.uniform(10), work=fjs.local.random_epochs(1, 5), seeds=range(seeds),
    )  # fmt: skip
    return time.perf_counter() - started


def draw(path: Path) -> None:
    """Both plots side by side."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    peers = json.loads((RESULTS / "peers.json").read_text())
    seeds = json.loads((RESULTS / "seeds.json").read_text())
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(8.4, 3.1), layout="constrained", gridspec_kw={"width_ratios": [1.45, 1]}
        )
        _rates(left, peers)
        _costs(right, seeds)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def _rates(ax: Any, report: Any) -> None:
    """Rounds a second of every simulator, a marker a problem."""
    found = {name: {row.name: row for row in rows(report, name) if row.error is None} for name in WORKLOADS}
    names = [name for name in report["peers"] if name != "blazefl-threads"]
    names.sort(key=lambda name: found["W1"][name].round_ms, reverse=True)
    for number, name in enumerate(names):
        ours = name.startswith("ours")
        ax.axhline(number, color="#e6e8eb", linewidth=0.8, zorder=0)
        for (workload, of_peers), marker in zip(found.items(), "os^", strict=True):
            if name in of_peers:
                ax.plot(
                    1e3 / of_peers[name].round_ms, number, marker, color=_OURS if ours else _OTHERS, markersize=5,
                    label=f"{workload}: {WORKLOADS[workload]}" if name == "ours" else None,
                )  # fmt: skip
    ax.set_yticks(range(len(names)), [report["peers"][name]["title"] for name in names])
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("rounds a second")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    figure = ax.figure
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    ax.set_title(f"FedAvg on {_short(report['machine'])}", loc="left")


def _costs(ax: Any, report: Any) -> None:
    """Seconds to the result against the number of seeds, and what as many separate runs would take."""
    numbers = [int(number) for number in report["seconds"]]
    seconds = [statistics.median(values) for values in report["seconds"].values()]
    ax.plot(numbers, [seconds[0] * number for number in numbers], "--", color=_OTHERS, label="n runs of one seed")
    ax.plot(numbers, seconds, "o-", color=_OURS, markersize=4, label="seeds=range(n)")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(numbers, [str(number) for number in numbers])
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("seeds n")
    ax.set_title(f"seconds to the result of {report['rounds']} rounds", loc="left")
    ax.legend(frameon=False)


def _short(machine: str) -> str:
    return machine.replace("x Intel(R) Xeon(R) Processor", "Xeon cores").partition(",")[0]


if __name__ == "__main__":
    main()
