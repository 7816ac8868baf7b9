"""The fair comparison, ``fjs.benchmark``: its methods on its problems, in pieces; the figures and tables of its page.

    python -m benchmarks.studies.benchmark [--problem NAME ...] [--method NAME ...] [--personal] [--runs DIR]

What is asked for is run, draw by draw, unless it is in the folder of runs already; a stopped one goes on where it was.
Of the size cpu the results join those that are committed, problem by problem, and figures and tables are made of all.
``--personal`` is the part of methods with personal models, which has a figure and tables of its own.
``--draw`` makes these alone. ``--tuning`` says instead, of runs that are there, what tuning is worth: the validation
metric of the best and of the median of the first points that did not diverge, mean over the draws, how many did, and
the gain of the one that validation finds best over that median on the test part, with its interval over draws.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from matplotlib.ticker import MaxNLocator
from scipy.stats import rankdata, studentized_range  # type: ignore[import-untyped]

import fedjax_sim as fjs
from benchmarks.studies.command import RESULTS
from fedjax_sim.core.files import write_atomically
from fedjax_sim.core.tabular import table
from fedjax_sim.reporting.figures import new_figure
from fedjax_sim.reporting.paired import tested
from fedjax_sim.reporting.plots import COLOURS, LEGEND, plain, save_figure
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.studies.benchmark import DEEP, METHODS, PERSONAL, PROBLEMS, PROTOCOL, Choice, Difference, Result, Row
from fedjax_sim.studies.benchmark.evidence import BUDGETS, SLACK, whole_runs, within
from fedjax_sim.studies.benchmark.methods import BASE
from fedjax_sim.studies.benchmark.personal import TUNED, unfit
from fedjax_sim.studies.benchmark.result import KNOWN, performed, protocol_of
from fedjax_sim.studies.benchmark.running import Runs, data_of, place_of, widened
from fedjax_sim.studies.sweeps.space import LogUniform

FOLDER = RESULTS / "benchmark"
COLUMNS = 4
SHARES = (0.25, 0.5, 1.0)  # of FedAvg's whole run, at which ranks are drawn
GRID = np.linspace(0, 1, 97)  # likewise, of curves
IN_WORDS = {"seconds": "seconds of the clock", "bytes": "bytes, both ways"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is asked for, and writes what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", nargs="*", choices=list(PROBLEMS), help="default: all")
    parser.add_argument("--method", nargs="*", choices=list(KNOWN), help="default: all, eight on deep problems")
    parser.add_argument("--personal", action="store_true", help="by default the methods with personal models")
    parser.add_argument("--size", choices=["smoke", "cpu"], default="cpu")
    parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("benchmark-runs"), help="finished runs")
    parser.add_argument("--out", type=pathlib.Path, help="of results (default: the committed ones; of smoke none)")
    parser.add_argument("--devices", type=int, default=2, help="CPU devices that share the runs")
    parser.add_argument("--draw", action="store_true", help="run nothing: figures and tables of the results")
    parser.add_argument("--tuning", action="store_true", help="what tuning is worth in the runs that are there")
    options = parser.parse_args(arguments)
    if options.tuning:
        print(tuning(options.problem or PROBLEMS, options.method or ["FedAvg"], options.runs, options.size))
        return
    out = options.out or (FOLDER if options.size == "cpu" else None)
    if not options.draw:
        fjs.use_cpu_devices(options.devices)
        for name in options.problem or PROBLEMS:
            methods = options.method or _methods(name, options.personal)
            if options.problem is None or options.method is None:  # what was asked for by name is refused instead
                methods = [method for method in methods if not unfit(KNOWN[method], name)]
            if not methods:
                continue
            found = _run(name, methods, options.size, options.runs)
            if out is not None:
                there = Result.load(out) if (out / "rows.csv.xz").exists() else Result([], [])
                there.joined(found).save(out)
    if out is not None:
        draw(Result.load(out), out)


def tuning(problems: Iterable[str], methods: Iterable[str], runs: pathlib.Path, size: str = "cpu") -> str:
    """What the best of the first points is worth, on the part that chose it and on the one that did not."""
    protocol, rows = protocol_of(size), []
    columns = ("problem", "method", "best", "median", "diverged, of each draw's points", "gain where it was not chosen")
    for problem, method in itertools.product(problems, methods):
        of, values = PROBLEMS[problem], []
        for draw in range(protocol.of(of)[1]):
            place = place_of(runs, problem, method, draw, protocol)
            if not (place / "search-0").exists():
                raise SystemExit(f"{runs} has no runs of {method} on {problem}, draw {draw}: run them first")
            values.append(Runs(of, data_of(problem, draw), KNOWN[method], place, protocol, "", print).first(draw))
        chosen_by, reported = np.swapaxes(np.array(values), 0, 1)
        sign = -1 if less_is_better(of.metric) else 1
        best = np.nanargmax(sign * chosen_by, axis=1)[:, None]
        at_best, middle = np.take_along_axis(reported, best, axis=1)[:, 0], np.nanmedian(reported, axis=1)
        gain, half, _ = tested(sign * at_best, sign * middle, "float32")
        rows.append((problem, method, f"{np.take_along_axis(chosen_by, best, axis=1).mean():.3f}",
                     f"{np.nanmedian(chosen_by, axis=1).mean():.3f}",
                     f"{np.isnan(chosen_by).sum(axis=1).mean():.1f} of {chosen_by.shape[1]}",
                     f"{gain.mean():.4f} ± {half:.4f}"))  # fmt: skip
    return table([(name, list(column)) for name, column in zip(columns, zip(*rows, strict=True), strict=True)])


def _methods(problem: str, personal: bool) -> Sequence[str]:
    """Those that are run on a problem; on deep ones some, and none with personal models."""
    deep = PROBLEMS[problem].deep
    if personal:
        return () if deep else tuple(PERSONAL)
    return DEEP if deep else tuple(METHODS)


def _run(problem: str, methods: Sequence[str], size: str, runs: pathlib.Path) -> Result:
    entries = {name: KNOWN[name] for name in (BASE, *methods)}
    return performed(problem, entries, protocol_of(size), runs)


def draw(result: Result, out: pathlib.Path) -> None:
    """Figures of the shared models, of methods with personal models ``personal.png``, and ``tables.md``."""
    shared, own = (part(result, personal) for personal in (False, True))
    if shared.rows:
        save_figure(forest(shared), out / "differences.png")
        save_figure(by_budget(shared), out / "budgets.png")
        for budget in BUDGETS:
            save_figure(curves(shared, budget), out / f"curves_{budget}.png")
    if own.rows:
        save_figure(forest(own), out / "personal.png")
    said = [of(found) for of, found in ((tables, shared), (personal_tables, own)) if found.rows]
    write_atomically(out / "tables.md", "\n".join(said).encode())


def part(result: Result, personal: bool) -> Result:
    """The methods with personal models, or the others, and FedAvg on the problems where there are any."""
    methods = PERSONAL if personal else {row.method for row in result.rows} - PERSONAL.keys() - {BASE}
    problems = {row.problem for row in result.rows if row.method in methods}
    methods = {BASE, *methods}
    return Result(
        [of for of in result.choices if of.problem in problems and of.method in methods],
        [of for of in result.rows if of.problem in problems and of.method in methods],
    )


def _by_problem(found: Sequence[Difference]) -> dict[str, dict[str, Difference]]:
    return {
        problem: {of.method: of for of in found if of.problem == problem}
        for problem in PROBLEMS
        if any(of.problem == problem for of in found)
    }


def forest(result: Result) -> Any:
    """Is a method better than tuned FedAvg after as many rounds? Its differences with intervals, by both means."""
    by = {of: _by_problem(result.differences(by=of)) for of in ("examples", "clients")}
    problems = list(by["examples"])
    rows = -(-len(problems) // COLUMNS)
    columns = -(-len(problems) // max(rows, 1))  # as full as can be: five are three and two
    in_rows = [problems[at : at + columns] for at in range(0, len(problems), columns)]
    listed = [[name for name in KNOWN if any(name in by["examples"][of] for of in row)] for row in in_rows]
    tall = [0.27 * len(methods) + 1.0 for methods in listed]
    figure = new_figure(2.9 * columns + 0.9, sum(tall) + 0.5)
    grid = figure.subplots(len(tall), columns, squeeze=False, sharey="row", height_ratios=tall)
    for place, (ax, problem) in enumerate(zip(grid.flat, problems, strict=False)):
        methods = listed[place // columns]
        for number, (of, found) in enumerate(by.items()):
            shown = [found[problem][name] for name in methods if name in found[problem]]
            heights = [methods.index(one.method) + 0.28 * number - 0.14 for one in shown]
            ax.errorbar([one.mean for one in shown], heights, xerr=[one.half for one in shown], fmt="os"[number],
                        color=COLOURS[number], markersize=4, mfc=None if number == 0 else "white", elinewidth=1.1,
                        label=f"mean over {of}")  # fmt: skip
        told = [one for found in by.values() for one in found[problem].values() if np.isfinite(one.mean)]
        reach = 12 * float(np.median([abs(one.mean) for one in told])) + 1e-4  # a number stands for what is beyond it
        ends = [one.mean + end for one in told if abs(one.mean) <= reach for end in (0.0, -one.half, one.half)]
        low, high = max(-3 * reach, np.nanmin(ends)), min(3 * reach, np.nanmax(ends))
        low, high = low - 0.05 * (high - low) - 1e-4, high + 0.05 * (high - low) + 1e-4
        ax.set_xlim(low, high)
        ax.xaxis.set_major_locator(MaxNLocator(3))
        for name, one in by["examples"][problem].items():
            if not low <= one.mean <= high:
                who = f"{BASE} " * bool(np.isfinite(one.value))
                words = f"{one.mean:+.3g}" if np.isfinite(one.mean) else f"{who}diverged"
                ax.text(0.02, methods.index(name) - 0.14, words, transform=ax.get_yaxis_transform(), va="center",
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
        ax.axvline(0, color="0.6", linewidth=0.9, linestyle="--", zorder=0)
        metric = "accuracy" if PROBLEMS[problem].metric == "accuracy" else "squared error less"
        ax.set_title(f"{problem} ({next(iter(by['examples'][problem].values())).draws} draws)", fontsize="medium")
        ax.set_xlabel(f"better by, {metric}")
        ax.set_yticks(range(len(methods)), methods)
        ax.set_ylim(len(methods) - 0.5, -0.5)
        plain(ax)
    for ax in grid.flat[len(problems) :]:
        ax.set_axis_off()
    title = f"minus tuned {BASE}, equal rounds; 95 % intervals over draws of the data"
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, title=title, **LEGEND)
    return figure


def mean_ranks(result: Result, budget: str, share: float) -> dict[str, float]:
    """By method, over the problems that all of them have; 1 is the best, diverged ones share the last."""
    found = _by_problem(result.differences(budget, share))
    methods = [name for name in METHODS if all(name in of or name == BASE for of in found.values())]
    lost = {
        row.problem
        for row in within(result.rows, budget, share)
        if row.method == BASE and not np.isfinite(row.by_examples)
    }

    def gain(problem: str, name: str) -> float:
        if problem not in lost:
            return 0.0 if name == BASE else found[problem][name].mean
        # where the base diverged nothing differs from it by a number
        sign = -1 if less_is_better(PROBLEMS[problem].metric) else 1
        return np.nan if name == BASE else sign * found[problem][name].value

    better = [[gain(problem, name) for name in methods] for problem in found]
    ranks = rankdata(-np.nan_to_num(np.array(better), nan=-np.inf), axis=1)
    return dict(zip(methods, ranks.mean(axis=0).tolist(), strict=True))


def by_budget(result: Result) -> Any:
    """Does the order depend on what is scarce? Mean ranks after shares of what FedAvg's whole run costs."""
    figure = new_figure(7.2, 6.2)
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for ax, budget in zip(axes.flat, BUDGETS, strict=True):
        ranks = [mean_ranks(result, budget, share) for share in SHARES]
        ax.plot(SHARES, [of[BASE] for of in ranks], label=BASE, color="0.55", linewidth=4)
        for number, name in enumerate(name for name in ranks[0] if name != BASE):
            style = {"color": COLOURS[number % len(COLOURS)], "marker": "osD^vPX"[number % 7]}
            style |= {"mfc": "white", "linestyle": "--"} if number >= len(COLOURS) else {}
            ax.plot(SHARES, [of[name] for of in ranks], label=name, linewidth=1.2, **style)
        ax.set_title(IN_WORDS.get(budget, budget))
        ax.set_xticks(SHARES, [f"{share:.0%}" for share in SHARES])
        plain(ax)
    axes[0, 0].invert_yaxis()
    for row, below in zip(axes, axes[-1], strict=True):
        row[0].set_ylabel("mean rank over problems")
        below.set_xlabel(f"of {BASE}'s whole run")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, **LEGEND)
    return figure


def curves(result: Result, budget: str) -> Any:
    """What does a method reach with a share of FedAvg's cost? Medians over draws of the means of their seeds."""
    problems = [name for name in PROBLEMS if any(row.problem == name for row in result.rows)]
    columns = min(COLUMNS, len(problems))
    rows = -(-len(problems) // columns)
    figure = new_figure(2.9 * columns + 0.3, 2.4 * rows + 0.8)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for ax, problem in zip(grid.flat, problems, strict=False):
        found = reached([row for row in result.rows if row.problem == problem], budget)
        for number, name in enumerate(name for name in DEEP if name in found):
            style = (
                {"color": "0.55", "linewidth": 4} if name == BASE else {"color": COLOURS[number - 1], "linewidth": 1.2}
            )
            values = np.where(np.isfinite(found[name]), found[name], np.nan)
            ax.step([*100 * GRID, 106], [*values, values[-1]], where="post", label=name, **style)  # room for the last
        shown = np.array([of[len(GRID) // 8 :] for name, of in found.items() if name in DEEP])
        shown = np.where(np.isfinite(shown), shown, np.nan)
        low, high = np.nanpercentile(shown, [5, 100])
        if less_is_better(PROBLEMS[problem].metric):
            low, high = np.nanpercentile(shown, [0, 95])
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        ax.set_title(problem, fontsize="medium")
        ax.set_ylabel({"mse": "squared error"}.get(PROBLEMS[problem].metric, PROBLEMS[problem].metric))
        plain(ax)
    for ax in grid.flat[len(problems) :]:
        ax.set_axis_off()
    for ax in grid[-1]:
        ax.set_xlabel(f"% of {BASE}'s {budget}")
    title = "medians over draws of the data"
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, title=title, **LEGEND)
    return figure


def reached(rows: Sequence[Row], budget: str) -> dict[str, np.ndarray]:
    """By method, the metric at each share of :data:`GRID`; a draw one of whose seeds diverged counts as the worst."""
    worst, limits = np.inf if less_is_better(PROBLEMS[rows[0].problem].metric) else -np.inf, whole_runs(rows, budget)
    runs: dict[str, dict[tuple[int, int], list[Row]]] = {}
    for row in rows:
        runs.setdefault(row.method, {}).setdefault((row.draw, row.seed), []).append(row)
    found = {}
    for method, of in runs.items():
        draws: dict[int, list[np.ndarray]] = {}
        for (draw, seed), run in of.items():
            run.sort(key=lambda row: row.rounds)
            limit = SLACK * limits[run[0].problem, draw, seed]
            at = np.searchsorted([getattr(row, budget) for row in run], GRID * limit, side="right") - 1
            values = np.array([row.by_examples for row in run])[at]
            draws.setdefault(draw, []).append(np.where(np.isfinite(values), values, worst))
        found[method] = np.median([np.mean(seeds, axis=0) for seeds in draws.values()], axis=0)
    return found


def tables(result: Result) -> str:
    """Differences at equal rounds, what could be told, mean ranks in every budget, and how points were chosen."""
    parts = ["# Tables of the comparison", "## Minus tuned FedAvg, equal rounds, mean over examples",
             result.table("markdown"), "## Equal rounds, mean over clients",
             result.table("markdown", by="clients")]  # fmt: skip
    ranks = {budget: mean_ranks(result, budget, 1.0) for budget in BUDGETS}
    count, problems = len(ranks["rounds"]), len(_by_problem(result.differences()))
    lines = [f"| method | {' | '.join(BUDGETS)} |", f"| --- |{' ---: |' * len(BUDGETS)}"]
    lines += [f"| {name} | {' | '.join(f'{ranks[of][name]:.2f}' for of in BUDGETS)} |" for name in ranks["rounds"]]
    critical = studentized_range.ppf(0.95, count, np.inf) * np.sqrt(count * (count + 1) / (12 * problems))
    parts += [
        f"## Mean ranks of {count} methods over {problems} problems, within all of {BASE}'s budget",
        "\n".join(lines),
        f"Nemenyi's critical difference (5 %) is {critical:.1f} of {count - 1} possible ranks"
        + (": it separates nothing here." if critical >= np.ptp(list(ranks["rounds"].values())) else "."),
        "## Wider ranges",
        _wider(result),
        "## What seeds see, equal rounds, mean over examples",
        _seeds(result),
    ]
    return "\n\n".join(parts) + "\n"


def personal_tables(result: Result) -> str:
    """Clients' own models beside tuned FedAvg's, shared and fine-tuned, and how points were chosen."""
    parts = []
    tuned = Result([], [row._replace(method=BASE) for row in result.rows if row.method == TUNED]
                   + [row for row in result.rows if row.method not in (BASE, TUNED)])  # fmt: skip
    fit = {row.problem for row in tuned.rows if row.method == BASE}
    tuned = tuned._replace(rows=[row for row in tuned.rows if row.problem in fit])
    for beside, of in ((f"tuned {BASE}'s shared model", result), (TUNED, tuned)):
        for by in ("clients", "examples"):
            if of.rows:
                said = of.table("markdown", by=by).replace(f"better than {BASE} by", f"better than {beside} by")
                parts += [f"## Personal models minus {beside}, equal rounds, mean over {by}", said]
    parts += ["## Wider ranges of methods with personal models", _wider(result)]
    return "\n\n".join(parts) + "\n"


def _seeds(result: Result) -> str:
    """How much seeds of one draw differ, how much draws do, and how often one pair of runs has the other sign."""
    lines = ["| problem | method | std over seeds of a draw | over draws | single pairs against the sign of the mean |",
             "| --- | --- | ---: | ---: | ---: |"]  # fmt: skip
    values: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for row in within(result.rows):
        values.setdefault((row.problem, row.method), {})[row.draw, row.seed] = row.by_examples
    for (problem, method), of in values.items():
        draws, seeds = (sorted(set(of_all)) for of_all in zip(*of, strict=True))
        own, base = (np.array([[found[draw, seed] for seed in seeds] for draw in draws])
                     for found in (of, values[problem, BASE]))  # fmt: skip
        d = own if method == BASE else own - base
        against = "" if method == BASE or not np.isfinite(d).all() else f"{(d * d.mean() < 0).mean():.0%}"
        label = method if method == BASE else f"{method} less {BASE}"
        inside, between = d.std(axis=1, ddof=1).mean(), d.mean(axis=1).std(ddof=1)
        lines.append(f"| {problem} | {label} | {inside:.4f} | {between:.4f} | {against} |")
    return "\n".join(lines)


def _wider(result: Result) -> str:
    lines = ["| method | points tried for a draw, on average | draws with a wider range | chosen at an edge still "
             "| in an outer tenth of a range that stays |", "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name in KNOWN:
        of = [choice for choice in result.choices if choice.method == name]
        if of:
            wide = sum(bool(choice.wider) and choice.point != "{}" for choice in of)  # not where all diverged
            edges = np.array([_at_edges(choice) for choice in of]).sum(axis=0)
            counted = " | ".join(f"{count} of {len(of)}" for count in (wide, *edges))
            lines.append(f"| {name} | {np.mean([choice.tried for choice in of]):.0f} | {counted} |")
    return "\n".join(lines)


def _at_edges(choice: Choice) -> tuple[bool, bool]:
    """Whether a chosen value is in an outer tenth of its logarithmic range, as it was in the end; of another range."""
    entry = KNOWN[choice.method]
    ranges: dict[str, Any] = dict.fromkeys(entry.rates, fjs.sweeps.log_uniform(*PROBLEMS[choice.problem].rates))
    ranges |= entry.space
    point = json.loads(choice.point)
    if point:
        for name, low, _, high in (of.split(" ") for of in choice.wider.split("; ") if of):
            ranges[name] = fjs.sweeps.log_uniform(float(low), float(high))
    staying = {name: of for name, of in ranges.items() if name in point and not isinstance(of, LogUniform)}
    ends = {name: of.quantile(np.array([PROTOCOL.edge, 1 - PROTOCOL.edge])) for name, of in staying.items()}
    outer = any(not low <= point[name] <= high for name, (low, high) in ends.items())
    return bool(point and widened(ranges, point, PROTOCOL.edge)), outer


if __name__ == "__main__":
    main()
