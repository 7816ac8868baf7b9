"""Recorded numbers as the few points that a page draws: curves, and how values are spread over the clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.reporting import recorded
from fedjax_sim.reporting.divergence import IDS, OF_IDS
from fedjax_sim.reporting.plots import on_one_axis
from fedjax_sim.reporting.recorded import AXES, Recorded, clock, drawable

# In this order.
KNOWN = (
    "data_loss", "loss", "test_accuracy", "validation_accuracy", "accuracy", "test_data_loss", "test_loss",
    "validation_data_loss", "validation_loss",
)  # fmt: skip
MOST_POINTS = 500
LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of the table of quantiles
_MANY = 60_000  # points of all curves of a page: with more curves each one gets fewer
_FEWEST = 60
_MOST_STEPS = 300  # of a distribution


class Curve(NamedTuple):
    """One record of one run on one axis."""

    x: np.ndarray  # where the values belong, not decreasing
    y: np.ndarray  # the mean over seeds (of quantiles the median's); NaN where it is not finite for all of them
    low: np.ndarray | None  # the smallest of the seeds (of quantiles the lower quartile); None: the line itself
    high: np.ndarray | None  # the largest of them (the upper quartile)
    lost: float | None  # from where on no value is finite; None if the last one is
    stepped: bool  # whether a value holds until the next one
    shift: float | None = None  # how far points stand beside their x; None: a line

    def as_json(self) -> dict[str, Any]:
        """Plain data of six digits a number; null for what is not finite."""
        named = {"x": self.x, "y": self.y, "low": self.low, "high": self.high}
        found: dict[str, Any] = {
            name: [_number(value) for value in values.tolist()] for name, values in named.items() if values is not None
        }
        if self.lost is not None:
            found["lost"] = _number(self.lost)
        if self.stepped:
            found["stepped"] = True
        if self.shift is not None:
            found["shift"] = _number(self.shift)
        return found


class Record(NamedTuple):
    """What some runs recorded under one name."""

    name: str  # of the metric or record
    metric: bool  # whether it belongs to evaluations, not to rounds
    quantiles: bool  # whether each value is minimum, quartiles and maximum


class Spread(NamedTuple):
    """The values of one metric at the last evaluation, one for each client (and seed)."""

    values: np.ndarray  # float[M], those that are finite in rising order, of all seeds together
    clients: int  # entries of a seed
    missing: int  # how many values of all seeds are not finite: clients without examples, models that diverged

    def quantiles(self) -> np.ndarray:
        """Float[6], at :data:`LEVELS`; NaN if no value is finite."""
        return np.quantile(self.values, LEVELS) if self.values.size else np.full(len(LEVELS), np.nan)

    def curve(self) -> Curve | None:
        """The share of the values that is at most x, as steps that begin at 0; None if no value is finite."""
        if not self.values.size:
            return None
        x, counts = np.unique(self.values, return_counts=True)
        share, kept = np.cumsum(counts) / self.values.size, few(x)
        return Curve(np.r_[x[:1], x[kept]], np.r_[0.0, share[kept]], None, None, None, True)


def few(x: np.ndarray) -> np.ndarray:
    """Which of the places of a distribution are drawn, the first and the last among them."""
    return np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_STEPS)).round().astype(int))


def spreads(histories: Mapping[str, Recorded]) -> dict[str, dict[str, Spread]]:
    """By metric and run; metrics of which some run has several values at once, [seeds, E, N].

    What fine-tuned and personal models are worth counts clients that have been visited, as means over the clients do.
    """
    found: dict[str, dict[str, Spread]] = {}
    names = list(dict.fromkeys(name for run in histories.values() for name in run.metrics))
    for run_name, run in histories.items():
        for name in names:
            array = np.asarray(run.metrics.get(recorded.recorded_as(run, name)))
            if array.ndim == 3 and array.size and array.dtype.kind != "b":  # not who was visited
                last = recorded.measured(run, name)[:, -1].astype(float)
                last = recorded.counted(run, name, last)
                finite = drawable(last)
                spread = Spread(np.sort(last[finite]), last.shape[1], int((~finite).sum()))
                found.setdefault(name, {})[run_name] = spread
    return dict(sorted(found.items(), key=lambda item: (not item[0].startswith("test_"), item[0])))


def entries_of(name: str) -> str:
    """What the values of a metric belong to, in words."""
    return "clients" if "client" in name else "entries"


def records(histories: Mapping[str, Recorded]) -> tuple[list[Record], list[str]]:
    """What can be drawn as curves, metrics first, and the names of what cannot (matrices, clients' values)."""
    drawn: dict[str, Record] = {}
    left: dict[str, None] = {}
    for run in histories.values():
        for metric, table in ((True, run.metrics), (False, getattr(run, "rounds", {}))):
            for name, values in table.items():
                array = np.asarray(values)
                if name == IDS:
                    continue  # the divergences of a run say it
                quantiles = not metric and name not in OF_IDS and _are_quantiles(array)
                if array.size and (array.ndim == 2 or quantiles):
                    drawn.setdefault(name, Record(name, metric, quantiles))
                else:
                    left[name] = None

    def order(record: Record) -> tuple[bool, int, str]:  # metrics, the losses and accuracies among them first
        return not record.metric, KNOWN.index(record.name) if record.name in KNOWN else len(KNOWN), record.name

    return sorted(drawn.values(), key=order), sorted(left.keys() - drawn.keys())


def axes_of(run: Recorded) -> Iterator[str]:
    """The axes that a run can be drawn against: rounds, and what it has recorded of the others."""
    for axis in AXES:
        try:
            if axis == "round" or drawable(clock(run, axis)).all():
                yield axis
        except (ValueError, KeyError):
            continue


def most_points(histories: Mapping[str, Recorded], known: Sequence[Record], kinds: int) -> int:
    """How many points a curve of a page may have: 500, and fewer where there are many long ones."""
    tables = [table for run in histories.values() for table in (run.metrics, getattr(run, "rounds", {}))]
    lengths = [np.asarray(table[one.name]).shape[1] for one in known for table in tables if one.name in table]
    most = MOST_POINTS
    while most > _FEWEST and kinds * sum(min(length, most) for length in lengths) > _MANY:
        most -= 20
    return most


def curve(run: Recorded, record: Record, axis: str, most: int) -> Curve | None:
    """A record of a run on an axis of ``AXES``, of about ``most`` points; None where the run has nothing of it."""
    try:
        values, stopped = recorded.held(run, record.name)
        values = values.astype(float)
    except KeyError:
        return None
    if values.ndim != (3 if record.quantiles else 2) or not values.size or axis not in axes_of(run):
        return None
    stepped = axis != "round"
    if stepped:
        places, values = on_one_axis(recorded.positions(run, record.name, axis), values, stopped)
    else:
        places = np.asarray(recorded.rounds_of(run, record.name), dtype=float)
    if not places.size:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        y, low, high = _summary(values, record.quantiles)
    finite = np.isfinite(y)
    after = len(y) if finite[-1] else int(finite.nonzero()[0].max(initial=-1)) + 1
    lost = float(places[after]) if after < len(y) else None
    kept = thinned(y if low is None else low, y if high is None else high, most)
    low, high = (None if edge is None else edge[kept] for edge in (low, high))
    return Curve(places[kept], y[kept], low, high, lost, stepped)


def thinned(low: np.ndarray, high: np.ndarray, most: int) -> np.ndarray:
    """Which points of a long curve are kept: each stretch's first, lowest and highest, and the last of all.

    A point whose neighbour is finite where it is not, or the other way round, is kept too while there are few of them.
    ``low`` and ``high`` are the curve's edges, [n], NaN where there is none; about ``most`` points are kept.
    """
    count = len(low)
    if count <= most:
        return np.arange(count)
    finite = np.isfinite(low) & np.isfinite(high)
    edges = np.flatnonzero(finite[1:] != finite[:-1])
    kept = {0, count - 1, *(np.concatenate([edges, edges + 1]).tolist() if len(edges) < most // 4 else ())}
    for stretch in np.array_split(np.arange(count), max((most - len(kept)) // 3, 1)):
        kept.add(int(stretch[0]))
        inside = stretch[finite[stretch]]
        if inside.size:
            kept |= {int(inside[low[inside].argmin()]), int(inside[high[inside].argmax()])}
    return np.array(sorted(kept))


def _summary(values: np.ndarray, quantiles: bool) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Line and band of [seeds, n] or [seeds, n, 5]; NaN where they are not finite."""
    if quantiles:
        levels = values.mean(axis=0)
        lines = (levels[:, 2], levels[:, 1], levels[:, 3])
    else:
        lines = (values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    finite = drawable(np.asarray(lines)).all(axis=0)
    y, low, high = (np.where(finite, line, np.nan) for line in lines)
    return (y, low, high) if quantiles or len(values) > 1 else (y, None, None)


def _are_quantiles(array: np.ndarray) -> bool:
    """Whether each value is minimum, quartiles and maximum."""
    if array.ndim != 3 or array.shape[-1] != 5 or array.dtype.kind not in "fiu" or not array.size:
        return False
    with np.errstate(invalid="ignore"):
        return not (np.diff(array.astype(float), axis=-1) < 0).any()


def _number(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    rounded = float(f"{value:.6g}") if abs(value) < 1e6 or value != int(value) else value
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 2**53 else rounded
