"""The figure of a phase diagram; needs matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedjax_sim.reporting.figures import leading_digits, plain_numbers, spans_a_decade
from fedjax_sim.reporting.plots import COLOURS, DIVERGED, LEGEND, axes_or_new
from fedjax_sim.reporting.recorded import in_words

_GREY = "0.82"
_HATCH = "/////"
_SIZES = {1: (3.5, 3.3), 2: (7.0, 4.6)}  # inches, of one column and two


def phase_map(diagram: Any, what: str, winner: np.ndarray | None, ax: Any, columns: int) -> Any:
    """Draws winners, a difference or a method's mean; the horizontal axis is the first of the arrays' axes."""
    if columns not in _SIZES:
        raise ValueError(f"plot(columns={columns!r}): a figure takes 1 or 2")
    ax = axes_or_new(ax, *_SIZES[columns])
    from matplotlib.colors import CenteredNorm, ListedColormap, LogNorm
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    edges = [_edges(ax, which, values) for which, values in (("x", diagram.x), ("y", diagram.y))]
    blank, names = ~diagram.computed, list(diagram.methods)
    handles: list[Any] = []
    look: dict[str, Any] = {"rasterized": True, "linewidth": 0}
    means = np.where(blank[..., None], np.nan, diagram.values.mean(axis=3))
    if what == "winner":
        assert winner is not None
        table, colours = np.ma.array(winner + 1, mask=blank), [_GREY, *COLOURS[: len(names)]]
        ax.pcolormesh(
            *edges, table.T, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, alpha=0.85, **look
        )
        handles = [Patch(facecolor=COLOURS[m], alpha=0.85, label=f"{name} better") for m, name in enumerate(names)]
    else:
        drawn = means[..., 0] - means[..., 1] if what == "difference" else means[..., names.index(what)]
        known = drawn[np.isfinite(drawn)]
        norm: Any = CenteredNorm() if what == "difference" else LogNorm() if spans_a_decade(known) else None
        colour = "PuOr" if what == "difference" else "viridis"
        image = ax.pcolormesh(*edges, np.ma.masked_invalid(drawn).T, cmap=colour, norm=norm, **look)
        label = in_words(diagram.metric) + (f", {names[0]} − {names[1]}" if what == "difference" else f" of {what}")
        ax.figure.colorbar(image, ax=ax, label=label, pad=0.02)
    if winner is not None:
        even = np.ma.array(np.ones(winner.shape), mask=(winner != -1) | diagram.diverged.any(axis=2))
        if even.count():
            hatched = ax.pcolor(*edges, even.T, hatch=_HATCH, facecolor="none", edgecolor="0.55", linewidth=0, alpha=0)
            hatched.set(alpha=None, facecolor="none")
            face = _GREY if what == "winner" else "none"
            handles.append(Patch(facecolor=face, edgecolor="0.55", hatch=_HATCH, label="not significant"))
    if len(names) == 2 and what != names[0] and min(diagram.computed.shape) > 1:
        gap = np.ma.masked_invalid(means[..., 0] - means[..., 1])
        if gap.count() and gap.min() < 0 < gap.max():
            ax.contour(diagram.x, diagram.y, gap.T, levels=[0.0], colors="black", linewidths=1.0)
            handles.append(Line2D([], [], color="black", linewidth=1.0, label="equal means"))
    bad = np.argwhere(diagram.diverged.any(axis=2))
    if len(bad):
        mark: dict[str, Any] = {"linestyle": "", "marker": "x", "color": "0.2", "markersize": 3, "clip_on": False}
        ax.plot(diagram.x[bad[:, 0]], diagram.y[bad[:, 1]], **mark)
        handles.append(Line2D([], [], label=DIVERGED, **mark))
    if blank.any():
        handles.append(Patch(facecolor="white", edgecolor="0.7", label="not computed"))
    ax.set(xlabel=diagram.x_name, ylabel=diagram.y_name)
    if handles:
        ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, **LEGEND)
    return ax


def _edges(ax: Any, which: str, values: np.ndarray) -> np.ndarray:
    """Borders half-way between the values, of a logarithmic axis in the logarithm; the outer cells end at theirs."""
    log = spans_a_decade(values)
    inner = np.log(values) if log else values.astype(float)
    ends = inner[[0, -1]] if len(inner) > 1 else inner[0] + np.array([-0.5, 0.5])
    found: np.ndarray = np.concatenate([ends[:1], (inner[1:] + inner[:-1]) / 2, ends[1:]])
    if not log:
        return found
    getattr(ax, f"set_{which}scale")("log")
    plain_numbers(getattr(ax, f"{which}axis"), leading_digits(float(values.max() / values.min())))
    found = np.exp(found)
    return found
