"""Differences of methods, seed by seed: intervals, paired tests, and the table of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_sim.core.tabular import table
from fedjax_sim.reporting import recorded
from fedjax_sim.reporting.recorded import Recorded, in_words, less_is_better, loss_of_data, measured
from fedjax_sim.reporting.table import (
    ACCURACIES,
    LEVEL,
    cell,
    form_of,
    half_width,
    listed,
    number_of,
    one_number,
    undefined,
)

_NONE = "–"
_ROUND_OFF = {"float32": 1e-5, "float64": 1e-11}  # differences of so much of the values are none


class Paired(NamedTuple):
    """A method minus the one it is compared with, over the seeds that both have.

    Numbers but ``finals`` are NaN, and ``better`` is 0, where a seed of either diverged.
    """

    metric: str  # whose last values are compared
    against: str  # the name of the other
    method: str  # its own
    finals: np.ndarray  # its last values, float[S]
    mean: float  # of the differences d of the seeds
    half: float  # d's mean ± half is Student's 95 % interval
    better: int  # the number of seeds in which it is the better one
    p: float  # two-sided, of the paired t test that the mean is 0; NaN where all differences are equal and not 0
    adjusted: float  # p, corrected for the number of methods (Holm 1979)


def differences(a: np.ndarray, b: np.ndarray, precision: str) -> np.ndarray:
    """a - b, 0 where round-off of ``"float32"`` or ``"float64"`` is all that differs."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        d = a - b
        # An infinite value has an infinite round-off, which would take in what it differs by.
        found: np.ndarray = np.where(np.isfinite(d) & (abs(d) <= _round_off(a, b, precision)), 0.0, d)
    return found


def _round_off(a: np.ndarray, b: np.ndarray, precision: str) -> np.ndarray:
    return np.asarray(np.maximum(abs(a), abs(b)) * _ROUND_OFF.get(precision, 1e-5))


def tested(a: np.ndarray, b: np.ndarray, precision: str) -> tuple[np.ndarray, float, float]:
    """:func:`differences` of finite values [S], half of the interval of their mean, and p of the test that it is 0.

    Differences that are all equal and not 0, as of accuracies of few examples, have no test: t would be as large as
    round-off is small. Their half is 0 and their p NaN.
    """
    d = differences(a, b, precision)
    alike = d.any() and np.ptp(d) <= _round_off(a, b, precision).max()
    return (d, 0.0, float("nan")) if alike else (d, float(half_width(d)), t_test(d))


def t_test(d: np.ndarray) -> float:
    """Two-sided p of Student's test that the mean of paired differences [S] is 0; 0 where all are equal and not 0."""
    from scipy.special import stdtr  # type: ignore[import-untyped]  # of scipy, which jax brings

    mean, error = d.mean(), d.std(ddof=1) / np.sqrt(d.size)
    if error == 0:
        return float(mean == 0)
    return 2 * float(stdtr(d.size - 1, -abs(mean / error)))


def adjusted(p: np.ndarray, correction: str | None) -> np.ndarray:
    """p-values corrected for their number: ``"holm"``, ``"bh"`` (Benjamini and Hochberg), or None for as they are.

    NaN is where there was no test: it stays, and is not counted.
    """
    known = np.isfinite(p)
    found, tests = p.copy(), p[known]
    order, m = np.argsort(tests, kind="stable"), tests.size
    if correction is None or not m:
        return found
    if correction == "holm":
        raised = np.maximum.accumulate((m - np.arange(m)) * tests[order])
    else:
        raised = np.minimum.accumulate((m / np.arange(1, m + 1) * tests[order])[::-1])[::-1]
    tests[order] = np.minimum(raised, 1.0)
    found[known] = tests
    return found


def paired(histories: Mapping[str, Recorded], metric: str | None = None, against: str | None = None) -> list[Paired]:
    """Every other method minus ``against``; as :func:`paired_table`."""
    metric, base, values = _finals(histories, metric, against)
    sign = 1 if less_is_better(metric) else -1
    rows = []
    for name, finals in values.items():
        if name == base:
            continue
        precisions = {recorded.described(histories[one], "environment", "float") for one in (name, base)}
        given = finals, values[base], "float64" if precisions == {"float64"} else "float32"
        if np.isfinite(differences(*given)).all():
            d, half, p = tested(*given)
            said = float(d.mean()), half, int((sign * d < 0).sum()), p, p
        else:
            said = np.nan, np.nan, 0, np.nan, np.nan
        rows.append(Paired(metric, base, name, finals, *said))
    corrected = adjusted(np.array([row.p for row in rows]), "holm").tolist()
    return [row._replace(adjusted=p) for row, p in zip(rows, corrected, strict=True)]


def paired_table(
    histories: Mapping[str, Recorded], metric: str | None = None, *, against: str | None = None, form: str = "text"
) -> str:
    """Whether methods differ: the differences from one of them seed by seed, with intervals and tests.

    With the same seeds methods have the same cohorts, local work and batches. What these do to all methods alike is not
    in the differences d_s of the seeds s, which often tell methods apart whose deviations overlap. A row has:

    * the metric, mean ± standard deviation over seeds;
    * the mean of the d_s ± t s / sqrt(S), Student's 95 % interval over S seeds;
    * the number of seeds in which the method is better;
    * p, two-sided, of the paired t test that the differences have the mean 0, and the same corrected by Holm's method
      for as many tests as there are rows (the chance that one of them is wrong stays below the level).

    Differences of round-off are none. A method of which a seed diverged has no difference.

    Args:
      histories: the methods' records by the name to print, with the same seeds.
      metric: one number a seed and evaluation, of which the last value counts. None takes the test accuracy, else the
        accuracy, else the loss without a penalty, whichever all have.
      against: the name of the method that the others are compared with; None for the first.
      form: as in :func:`results_table`.

    Returns:
      The table, and below it what its columns mean, and what to mind: too few seeds, other data, other rounds.

    Raises:
      ValueError: fewer than two methods or seeds, other seeds, no method of that name, or no such metric.
      KeyError: a run did not record the metric.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=8, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> sgd = fjs.optim.sgd(0.02)
      >>> runs = {
      ...     name: fjs.simulate(method, data, task=task, rounds=3, batch_size=20, cohort=fjs.cohort.uniform(4),
      ...                        work=fjs.local.epochs(1), seeds=range(3))
      ...     for name, method in (("FedAvg", fjs.fedavg(client_optimizer=sgd)),
      ...                          ("SCAFFOLD", fjs.scaffold(client_optimizer=sgd)))
      ... }
      >>> print(fjs.reporting.paired_table(runs, "loss").splitlines()[0])
      method        training loss    minus FedAvg  better in  p  p (Holm)
    """
    metric, base, values = _finals(histories, metric, against)
    rows = paired(histories, metric, base)
    plain = form_of([*values.values()], 4 if metric.endswith("accuracy") else None)
    seeds = len(values[base])
    names = [base, *(row.method for row in rows)]
    finals = [None if undefined(histories[name], metric) else values[name] for name in names]
    columns = [
        ("method", names),
        (in_words(metric, histories.values()), [cell(final, plain) for final in finals]),
        (f"minus {base}", [_NONE, *(_interval(row.mean, row.half) for row in rows)]),
        ("better in", [_NONE, *(_told(row.mean, f"{row.better} of {seeds}") for row in rows)]),
        ("p", [_NONE, *(_told(row.p, _p_words(row.p)) for row in rows)]),
        ("p (Holm)", [_NONE, *(_told(row.adjusted, _p_words(row.adjusted)) for row in rows)]),
    ]
    notes = [f"note: {note}" for note in _notes(histories, rows, seeds)]
    tests = number_of(len([row for row in rows if np.isfinite(row.p)]), "test")
    said = (
        f"minus {base}: mean difference over {seeds} seeds ± half of its 95 % t-interval; p: paired t test; p (Holm): "
        f"corrected for {tests}"
    )
    return table(columns, form, notes=[*notes, said])


def _finals(
    histories: Mapping[str, Recorded], metric: str | None, against: str | None
) -> tuple[str, str, dict[str, np.ndarray]]:
    """The metric, the method to compare with, and the last values of all, float[S], in the order of its seeds."""
    recorded.check_runs("paired_table: histories", histories)
    runs, base = list(histories.values()), next(iter(histories)) if against is None else against
    if base not in histories:
        from fedjax_sim.core.values import suggest  # which imports JAX

        raise ValueError(f"paired_table(against={base!r}): no run has this name: {suggest(base, list(histories))}")
    if metric is None:
        known = (*ACCURACIES, loss_of_data(runs), "loss", "test_loss")
        metric = next((name for name in known if all(one_number(run, name) for run in runs)), None)
    if metric is None:
        raise ValueError("paired_table: there is no accuracy or loss that all runs recorded: give a metric")
    seeds = {name: list(getattr(run, "seeds", range(len(measured(run, metric))))) for name, run in histories.items()}
    other = next((name for name, own in seeds.items() if sorted(own) != sorted(seeds[base])), None)
    if other is not None:
        raise ValueError(
            f"paired_table: {base} has the seeds {listed([*map(str, seeds[base])])}, and {other} has "
            f"{listed([*map(str, seeds[other])])}: differences seed by seed need runs with the same seeds"
        )
    if len(histories) < 2 or len(seeds[base]) < 2:
        what = f"{len(histories)} method(s)" if len(histories) < 2 else "one seed"
        raise ValueError(f"paired_table: there is {what}: differences seed by seed need two methods and two seeds")
    values = {}
    for name, run in histories.items():
        found = recorded.held(run, metric)[0].astype(float)
        if found.ndim != 2:
            raise ValueError(f"paired_table(metric={metric!r}): it is not one number a seed and evaluation of {name}")
        values[name] = found[[seeds[name].index(seed) for seed in seeds[base]], -1]
    return metric, base, values


def _notes(histories: Mapping[str, Recorded], rows: Sequence[Paired], seeds: int) -> list[str]:
    """What to mind."""
    notes, tests = [], sum(np.isfinite(row.p) for row in rows)
    least = 2.0 ** (1 - seeds)
    if least * tests > LEVEL:
        enough = int(np.ceil(1 - np.log2(LEVEL / tests)))
        notes.append(
            f"{seeds} seeds are few: p rests on normal differences. Without that, by flipping signs, no method could "
            f"reach {LEVEL} among {tests} with fewer than {enough} seeds"
        )
    if any(np.isfinite(row.mean) and not np.isfinite(row.p) for row in rows):
        notes.append("where all differences are equal there is no t test")
    data = {str(recorded.described(run, "dataset")) for run in histories.values()}
    if len(data) > 1:
        notes.append("the data sets differ, so that seeds do not pair what is drawn from them")
    if len({int(run.evaluated[-1]) for run in histories.values()}) > 1:
        ends = [f"{name} {int(run.evaluated[-1])}" for name, run in histories.items()]
        notes.append(f"not after equally many rounds: {listed(ends)}")
    return notes


def _told(value: float, text: str) -> str:
    return text if np.isfinite(value) else _NONE


def _interval(mean: float, half: float) -> str:
    """Both with as many decimals as two digits of the half-width have; without a width as suit the mean, at least 4."""
    if not np.isfinite(mean):
        return _NONE
    size = half or min(abs(mean), 1e-3) or 1e-3
    decimals = 1 - int(np.floor(np.log10(size)))
    if abs(decimals) > 6:
        return f"{mean:+.2e} ± {half:.1e}"
    return f"{mean:+.{max(decimals, 0)}f} ± {half:.{max(decimals, 0)}f}"


def _p_words(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
