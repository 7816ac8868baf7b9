"""How much of its curves an axes shows: from where to where, linear or logarithmic."""

from __future__ import annotations

from typing import Any

import numpy as np

_EVALUATIONS = 10  # curves of fewer points are shown whole
_EARLY = 0.2  # the part of the horizontal axis that may leave the axes at the top
_SHARE = 3.0  # the rest of the curves has at least a third of the height ...
_ZOOM = 4.0  # ... unless more than three quarters of the fall would be out of sight
_WORTH = 0.75  # of the height: a cut that leaves more than that is none
_RAN_AWAY = 100.0  # times the start


def spans_a_decade(values: np.ndarray) -> bool:
    """Whether values are positive, the largest more than ten times the smallest."""
    return values.size > 0 and bool(values.min() > 0 and values.max() > 10 * values.min())


def keep_in_view(ax: Any) -> None:
    """Limits the vertical axis of losses, unless its limits were set before.

    Where a loss runs away, beyond a hundred times the largest start, the axis stops a little above the start (ten times
    it if logarithmic, else twice). Where the first evaluations would take most of a linear axis, it begins below them:
    all that comes after the first fifth of the rounds has a third of the height, or the last quarter of the fall is
    shown, whichever is less of a cut; one of less than a quarter of the height is not made. What is above leaves the
    axes at the top.

    All lines and bands in the axes count, those of earlier calls too.
    """
    from matplotlib.collections import PolyCollection

    if not ax.get_autoscaley_on():
        return
    lines = [line for line in ax.get_lines() if line.get_label()[:1] != "_" and line.get_transform() is ax.transData]
    curves = [_finite(line.get_xydata()) for line in lines]
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        return
    areas = [one for one in ax.collections if isinstance(one, PolyCollection)]
    bands = [_finite(path.vertices) for area in areas for path in area.get_paths()]
    means, points = np.concatenate(curves), np.concatenate([*curves, *bands])
    starts = np.array([curve[0, 1] for curve in curves])
    limit = _log_limits if ax.get_yscale() == "log" else _linear_limits
    bottom, top = limit(means, points, starts, max(map(len, curves)))
    if bottom is not None or top is not None:
        ax.set_ylim(bottom, top, auto=None)  # None: what is drawn later on is still taken into view


def _log_limits(
    means: np.ndarray, points: np.ndarray, starts: np.ndarray, evaluations: int
) -> tuple[float | None, float | None]:
    """A band that goes below 0 has no say in where the axis begins."""
    start, positive = np.abs(starts).max(), points[:, 1][points[:, 1] > 0]
    if start > 0 and positive.max(initial=0.0) > _RAN_AWAY * start:
        return positive.min() / 1.5, 10 * start
    lowest = means[:, 1][means[:, 1] > 0].min(initial=np.inf)
    return (float(lowest) / 2 if points[:, 1].min() <= 0 and np.isfinite(lowest) else None), None


def _linear_limits(
    means: np.ndarray, points: np.ndarray, starts: np.ndarray, evaluations: int
) -> tuple[float | None, float | None]:
    start, low = np.abs(starts).max(), points[:, 1].min()
    if start > 0 and points[:, 1].max() > _RAN_AWAY * start:
        return low - 0.1 * start, 2 * start
    left, right = means[:, 0].min(), means[:, 0].max()
    late = points[points[:, 0] > left + _EARLY * (right - left), 1]
    if evaluations < _EVALUATIONS or not late.size:
        return None, None
    top = max(low + _SHARE * (late.max() - low), low + (starts.max() - low) / _ZOOM)
    if top - low > _WORTH * (points[:, 1].max() - low):
        return None, None
    return low - 0.05 * (top - low), top


def _finite(points: Any) -> np.ndarray:
    pairs = np.asarray(points, float)
    kept: np.ndarray = pairs[np.isfinite(pairs).all(axis=1)]
    return kept
