"""Results as a table to print or to paste into a README."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_sim.core.tabular import table
from fedjax_sim.reporting import recorded
from fedjax_sim.reporting.recorded import Recorded, in_words, less_is_better, loss_of_data, measured

ACCURACIES = ("test_accuracy", "accuracy")
LEVEL = 0.05
_NONE = "–"
_MOST_NAMES = 6
WITHOUT_PENALTY = (
    "without penalty: the mean loss of the data, as publications report it; what is minimised has the penalty"
)
USEFUL_STEPS = "useful steps: the gradients that clients needed, of those that were computed"


Spread = Literal["std", "sem", "ci95"]
_SPREADS: dict[str, tuple[str, Callable[[np.ndarray], float]]] = {
    "std": ("standard deviation", lambda values: standard_deviation(values)),
    "sem": ("standard error", lambda values: standard_deviation(values) / len(values) ** 0.5),
    "ci95": ("half of the 95 % t-interval", lambda values: float(half_width(values))),
}


def results_table(
    histories: Mapping[str, Recorded],
    *,
    target: float | None = None,
    form: str = "text",
    metrics: Sequence[str] | None = None,
    band: Spread = "std",
) -> str:
    """One row per method: final values, rounds to a target, time, and the share of the computed steps that was needed.

    The loss is that of the training data (of held-out ones where no run has evaluated them), without the penalty if one
    of the tasks has one; its heading then says so.
    Values are the mean ± standard deviation over seeds (of a sample: divided by seeds - 1), or the plain value of a
    single seed. A method whose last value is NaN or infinite for some seeds has no mean: the cell says for how many
    of them. That holds for all metrics of a seed whose training or test loss is not finite: an accuracy of such a model
    says nothing.

    Args:
      histories: the methods' records by the name to print.
      target: adds the median over seeds of the evaluated rounds until the test (else the training) accuracy reached
        this value, or, where no accuracy was recorded, the loss; "–" where half of the seeds or more never did.
      form: ``"text"``, aligned lines; ``"markdown"``; ``"latex"``, a ``tabular`` for the package booktabs, with what is
        below the table as comments; ``"csv"``, means and deviations in columns of their own, with nothing below;
        ``"html"``.
      metrics: which final values, in the place of loss and accuracy: names of metrics that are one number a seed and
        evaluation, ``["validation_loss", "test_accuracy"]``, those that ``evaluate=`` records too; and
        ``"virtual_time"`` and ``"bytes"``, where runs with a ``system=`` ended.
      band: what stands behind the ±, as in :func:`curves`: ``"std"``; ``"sem"``, the standard error of the mean;
        ``"ci95"``, half of Student's 95 % interval of the mean.

    Returns:
      The table, and below it what its columns mean, and what they do not say (:func:`remarks`).
    """
    recorded.check_runs("results_table: histories", histories)
    from fedjax_sim.core.values import check_choice  # here, since it imports jax

    check_choice("results_table(band=...)", band, tuple(_SPREADS))
    histories = {str(name): run for name, run in histories.items()}
    runs = list(histories.values())
    accuracy = next((name for name in ACCURACIES if any(one_number(run, name) for run in runs)), None)
    columns = [("method", list(histories))]
    loss = loss_of_data(runs)
    shown = [loss, *filter(None, [accuracy])] if metrics is None else _named(metrics, runs)
    for name in shown:
        decimals = 4 if name.endswith("accuracy") else 0 if name in ("bytes", "round") else None
        words = recorded.AXES[name][1] if name in recorded.AXES else in_words(name, runs)
        columns.append((words, final_values(runs, name, decimals, _SPREADS[band][1])))
    if target is not None:
        reached = accuracy or loss
        columns.append((f"rounds to {target:g} {in_words(reached, runs)}", _rounds_to(runs, reached, target)))
    decimals = 2 if max(run.seconds for run in runs) < 100 else 0
    columns.append(("seconds", [f"{run.seconds:.{decimals}f}" for run in runs]))
    columns.append(("useful steps", [f"{run.useful_ratio:.1%}" for run in runs]))
    notes = [f"note: {note}" for note in remarks(histories)]
    notes += [WITHOUT_PENALTY] if any("data_loss" in name for name in shown) else []
    return table(columns, form, notes=[*notes, USEFUL_STEPS, _note(runs, target, band)])


def _named(metrics: Sequence[str], runs: list[Recorded]) -> list[str]:
    """The names, of which some run must have each as one number a seed and evaluation, or as where it ended."""
    if isinstance(metrics, str):
        raise TypeError(f"results_table: metrics is {metrics!r}: give a list, [{metrics!r}]")
    names = list(metrics)
    for name in names:
        if all(_final(run, name) is None for run in runs):
            if name in recorded.AXES:
                recorded.clock(runs[0], name)  # says what it is recorded by
            of = next((run for run in runs if name in run.metrics), runs[0])
            found = measured(of, name)  # or KeyError, with what is meant
            what = f"has shape {found.shape}" if name in of.metrics else "is a record of every round"
            raise ValueError(f"results_table: {name!r} {what}: it must be one number a seed and evaluation")
    return names


def in_short(run: Recorded) -> str:
    """Its rounds, and the last loss and accuracy, mean ± standard deviation over seeds, in a line."""
    seeds, rounds, evaluations = len(next(iter(run.metrics.values()), ())), int(run.evaluated[-1]), len(run.evaluated)
    sizes = f"{number_of(seeds, 'seed')}, {number_of(rounds, 'round')}, {number_of(evaluations, 'evaluation')}"
    names = [loss_of_data([run]), *[name for name in ACCURACIES if one_number(run, name)][:1]]
    finals = [f"{name} {final_values([run], name, None)[0]}" for name in names if one_number(run, name)]
    return f"{sizes}; {', '.join(finals)}" if finals else sizes


def number_of(count: int, what: str) -> str:
    """``1 round``, ``1,200 rounds``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def remarks(histories: Mapping[str, Recorded]) -> list[str]:
    """What final values do not say, a line each.

    They are :func:`objectives`, rounds in which nobody took part, and whose clients have models of their own.
    """
    found = [*objectives(histories), *_empty_rounds(histories)]
    personal = [name for name, run in histories.items() if recorded.described(run, "personal") is True]
    if personal:
        kept = all("personal_loss" in histories[name].metrics for name in personal)
        where = "personal_table shows" if kept else "evaluate=fedjax_sim.per_client(task) records"
        shared = f"the numbers of {listed(personal)} are those of the shared model"
        found.append(f"{shared}; {where} what the clients' own are worth")
    return found


def _empty_rounds(histories: Mapping[str, Recorded]) -> list[str]:
    """A line where there were rounds in which nobody took part: nobody was there, or in time.

    Rounds from which clients were left out because they sent what is not finite are others.
    """
    found = []
    for name, run in histories.items():
        if "cohort_size" in (rounds := getattr(run, "rounds", {})):
            size, refused = rounds["cohort_size"], rounds.get("nonfinite_clients", 0)
            ran = recorded.ran(run, *size.shape)
            if empty := np.sum(ran & (size == 0) & (refused == 0)):
                found.append(f"{name} {empty:,} of {ran.sum():,}")
    return [f"rounds of all seeds in which nobody took part: {listed(found)}"] if found else []


def objectives(histories: Mapping[str, Recorded]) -> list[str]:
    """A line where runs minimise different objectives or average their clients differently, as they describe it.

    Methods have averages of their own (SCAFFOLD's is the plain one, FedAvg's weighs clients by their examples), so
    that runs of one configuration may differ in more than the method.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, run in histories.items():
        told = recorded.described(run, "objective"), recorded.described(run, "average")
        if all(isinstance(one, str) for one in told):
            groups.setdefault(told, []).append(name)
    if len(groups) < 2:
        return []
    said = "; ".join(
        f"{listed(names)}: {objective} (average {average!r})" for (objective, average), names in groups.items()
    )
    several = len({average for _, average in groups}) > 1
    same = "; the cohort scheme's average= sets one average for all" if several else ""
    return [f"not the same objectives: {said}. The loss is sum p_i F_i of all, p_i = n_i / n{same}"]


def listed(names: list[str]) -> str:
    """The first six of some names, and how many more there are."""
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _note(runs: list[Recorded], target: float | None, band: Spread) -> str:
    counts = sorted({len(next(iter(run.metrics.values()))) for run in runs})
    if counts == [1]:
        parts = ["one seed"]
    else:
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        parts = [f"mean ± {_SPREADS[band][0]} over {seeds} seeds"]
        if target is not None:
            parts.append("rounds: median")
    parts.append("seconds: all seeds, without compilation")
    return "; ".join(parts)


def one_number(run: Recorded, name: str) -> bool:
    """Whether a run has a metric of that name that is one number a seed and evaluation."""
    name = recorded.recorded_as(run, name)
    return name in run.metrics and np.ndim(run.metrics[name]) == 2


def final_values(
    runs: list[Recorded],
    name: str,
    decimals: int | None,
    spread: Callable[[np.ndarray], float] | None = None,
) -> list[str]:
    """The cells of one metric; ``decimals`` as in :func:`form_of`, ``spread`` as in :func:`cell`."""
    finals = [None if undefined(run, name) else _final(run, name) for run in runs]
    form = form_of(finals, decimals)
    return [cell(final, form, spread or standard_deviation) for final in finals]


def undefined(run: Recorded, name: str) -> bool:
    """Whether a metric is NaN at the end for all seeds though no model diverged: a score of examples of one class."""
    if not one_number(run, name):
        return False
    single = {other: values[:, -1] for other, values in run.metrics.items() if np.ndim(values) == 2}
    telling = recorded.telling_of_divergence(single)
    last = single[recorded.recorded_as(run, name)].astype(float)
    return bool(np.isnan(last).all() and all(np.isfinite(single[other].astype(float)).all() for other in telling))


def _final(run: Recorded, name: str) -> np.ndarray | None:
    """A metric at the end, or where the run ended in virtual time or bytes, [seeds]; None where it has neither."""
    if name in recorded.AXES:
        with contextlib.suppress(ValueError):
            return recorded.clock(run, name)[:, -1]
        return None
    return measured(run, name)[:, -1].astype(float) if one_number(run, name) else None


def form_of(finals: Iterable[np.ndarray | None], decimals: int | None) -> str:
    """How a column of means ± spreads is written; without ``decimals`` by as many, or an exponent, as suit it."""
    means = np.array([final.mean() for final in finals if final is not None and np.isfinite(final).all()])
    sizes = np.abs(means[means != 0])
    low, high = (sizes.min(), sizes.max()) if sizes.size else (1.0, 1.0)
    exponent = decimals is None and bool(low < 1e-3 or high >= 1e6 or (low < 1 and high >= 1e3))
    if decimals is None:
        decimals = 4 if high < 1e3 else 1
    return "{:.3e} ± {:.1e}" if exponent else f"{{:.{decimals}f}} ± {{:.{decimals}f}}"


def standard_deviation(values: np.ndarray) -> float:
    """Over seeds, of a sample."""
    return float(values.std(ddof=1))


def half_width(values: np.ndarray, level: float = LEVEL) -> Any:
    """Half of Student's interval of the mean over the last axis, of n seeds: t s / sqrt(n), with 1 - level."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # of scipy, which jax brings

    count = values.shape[-1]
    return stdtrit(count - 1, 1 - level / 2) * values.std(axis=-1, ddof=1) / np.sqrt(count)


def cell(final: np.ndarray | None, form: str, spread: Callable[[np.ndarray], float] = standard_deviation) -> str:
    """The mean over [seeds] and, of several, their ``spread``, in a ``form`` like ``"{:.1f} ± {:.1f}"``."""
    if final is None:
        return _NONE
    bad = int((~np.isfinite(final)).sum())
    if bad:
        return "diverged" if bad == final.size else f"diverged ({bad} of {final.size})"
    if final.size == 1:
        return form.partition(" ± ")[0].format(final[0] + 0.0)  # -0 is 0: the worst of accuracies is minus a mean
    return form.format(final.mean(), spread(final))


def _rounds_to(runs: list[Recorded], name: str, target: float) -> list[str]:
    """Medians over the seeds."""
    cells = []
    for run in runs:
        median = np.inf
        if one_number(run, name):
            falling = less_is_better(name)
            median = np.median(recorded.first_reached(measured(run, name), run.evaluated, target, falling=falling))
        cells.append(f"{median:.1f}".removesuffix(".0") if np.isfinite(median) else _NONE)
    return cells
