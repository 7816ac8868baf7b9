"""The figures that the package makes, their ticks, and how much of its curves an axes shows."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# TrueType fonts in PDF and PostScript; many venues refuse matplotlib's default, Type 3.
FONTS: Any = {"pdf.fonttype": 42, "ps.fonttype": 42}

_EVALUATIONS = 10  # curves of fewer points are shown whole
_EARLY = 0.2  # the part of the horizontal axis that may leave the axes at the top
_SHARE = 3.0  # the rest of the curves has at least a third of the height ...
_ZOOM = 4.0  # ... unless more than three quarters of the fall would be out of sight
_WORTH = 0.75  # of the height: a cut that leaves more than that is none
_RAN_AWAY = 100.0  # times the start


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches.

    pyplot does not know of it, so that none is left open; a notebook shows it all the same.
    """
    return _class()(figsize=(width, height), layout="constrained")


def grid_of_axes(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure and its ``count`` axes of so many inches, at most three beside each other."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = new_figure(width * columns, height * rows)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes[count:]:
        ax.axis("off")
    return figure, axes[:count]


@functools.cache
def _class() -> Any:
    import matplotlib
    from matplotlib.figure import Figure

    class Shown(Figure):
        def savefig(self, *args: Any, **kwargs: Any) -> None:
            with matplotlib.rc_context(FONTS):
                super().savefig(*args, **kwargs)

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Shown


def plain_numbers(axis: Any, leading: Sequence[float]) -> None:
    """Ticks of a logarithmic axis at the decades times the ``leading`` digits, as plain numbers: 0.2, 50, 2,000."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=leading))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def leading_digits(span: float) -> tuple[float, ...]:
    """The leading digits that suit an axis whose largest value is ``span`` times its smallest."""
    return (1.0, 2.0, 5.0) if span < 1000 else (1.0,)


def whole_numbers(axis: Any) -> None:
    """Ticks at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def write_cells(ax: Any, table: np.ndarray, image: Any, form: Callable[[Any], str]) -> None:
    """The numbers of a heat map [rows, columns] in its cells, black on light colours and white on dark ones."""
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            colour = "black" if 0.299 * red + 0.587 * green + 0.114 * blue >= 0.5 else "white"
            ax.text(column, row, form(value), ha="center", va="center", color=colour, fontsize="x-small")


def spans_a_decade(values: np.ndarray) -> bool:
    """Whether values are positive, the largest more than ten times the smallest."""
    return values.size > 0 and bool(values.min() > 0 and values.max() > 10 * values.min())


def keep_in_view(ax: Any) -> None:
    """Limits the vertical axis of losses, unless its limits were set before.

    Where a loss runs away, beyond a hundred times the largest start, the axis stops a little above the start (ten times
    it if logarithmic, else twice). Where the first evaluations would take most of a linear axis, it begins below them:
    all that comes after the first fifth of the rounds has a third of the height, or the last quarter of the fall is
    shown, whichever is less of a cut; one of less than a quarter of the height is not made. What is above leaves the
    axes at the top. All lines and bands in the axes count, those of earlier calls too.
    """
    from matplotlib.collections import PolyCollection

    if not ax.get_autoscaley_on():
        return
    lines = [line for line in ax.get_lines() if line.get_label()[:1] != "_" and line.get_transform() is ax.transData]
    curves = [curve for curve in (_finite(line.get_xydata()) for line in lines) if len(curve)]
    if not curves:
        return
    areas = [one for one in ax.collections if isinstance(one, PolyCollection)]
    bands = [_finite(path.vertices) for area in areas for path in area.get_paths()]
    means, points = np.concatenate(curves), np.concatenate([*curves, *bands])
    starts = np.array([curve[0, 1] for curve in curves])
    if ax.get_yscale() == "log":
        bottom, top = _log_limits(means[:, 1], points[:, 1], np.abs(starts).max())
    else:
        bottom, top = _linear_limits(means, points, starts, max(map(len, curves)))
    if bottom is not None or top is not None:
        ax.set_ylim(bottom, top, auto=None)  # None: what is drawn later on is still taken into view


def cut_bands(ax: Any, low: float | None, high: float | None) -> None:
    """Ends a linear vertical axis where values end, if bands alone go beyond, unless its limits were set before.

    An accuracy is not below 0; its interval over three seeds may be. None is for values without an end.
    """
    if not ax.get_autoscaley_on() or ax.get_yscale() == "log":
        return
    lines = [line for line in ax.get_lines() if line.get_transform() is ax.transData]
    means = np.concatenate([_finite(line.get_xydata())[:, 1] for line in lines])
    least, most = ax.dataLim.intervaly
    bottom = low if low is not None and least < low <= means.min(initial=np.inf) else None
    top = high if high is not None and most > high >= means.max(initial=-np.inf) else None
    if bottom is not None or top is not None:
        ax.set_ylim(bottom, top, auto=None)


def _log_limits(means: np.ndarray, values: np.ndarray, start: float) -> tuple[float | None, float | None]:
    """A band that goes below 0 has no say in where the axis begins."""
    positive = values[values > 0]
    if start > 0 and positive.max(initial=0.0) > _RAN_AWAY * start:
        return positive.min() / 1.5, 10 * start
    lowest = means[means > 0].min(initial=np.inf)
    return (float(lowest) / 2 if values.min() <= 0 and np.isfinite(lowest) else None), None


def _linear_limits(
    means: np.ndarray, points: np.ndarray, starts: np.ndarray, evaluations: int
) -> tuple[float | None, float | None]:
    start, low, high = np.abs(starts).max(), points[:, 1].min(), points[:, 1].max()
    if start > 0 and high > _RAN_AWAY * start:
        return low - 0.1 * start, 2 * start
    left, right = means[:, 0].min(), means[:, 0].max()
    late = points[points[:, 0] > left + _EARLY * (right - left), 1]
    if evaluations < _EVALUATIONS or not late.size:
        return None, None
    top = max(low + _SHARE * (late.max() - low), low + (starts.max() - low) / _ZOOM)
    return (None, None) if top - low > _WORTH * (high - low) else (low - 0.05 * (top - low), top)


def _finite(points: Any) -> np.ndarray:
    pairs = np.asarray(points, float)
    return np.asarray(pairs[np.isfinite(pairs).all(axis=1)])
