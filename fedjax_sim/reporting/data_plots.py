"""Figures of data sets: who holds how much of what; they need matplotlib, the extra ``fedjax_sim[plot]``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedjax_sim.reporting.figures import new_figure, plain_numbers, whole_numbers, write_cells
from fedjax_sim.reporting.plots import COLOURS, LEGEND, axes_or_new, check_matplotlib, plain, save_figure
from fedjax_sim.reporting.table import number_of

if TYPE_CHECKING:
    from fedjax_sim.datasets.federated import FederatedDataset

Sort = Literal["stored", "size", "class"]

_NUMBERED_CELLS = 200  # cells up to which the heat map prints its numbers
_NUMBERED_CLIENTS = 20
_COLUMNS = 500  # more would be narrower than two dots of the widest figure


def label_heatmap(dataset: FederatedDataset, ax: Any = None, *, sort: Sort = "stored") -> Any:
    """Draws how many examples of each class every client holds; white is none.

    Colours are logarithmic where the counts differ much. Numbers are written into the cells where there are few. Of
    more than 500 clients neighbours share a column, which shows their mean.

    Args:
      dataset: a data set with labels.
      ax: matplotlib axes to draw on; None makes a figure.
      sort: the order of the clients from left to right: "stored" as in the data set, "size" with the largest first,
        "class" by the class a client has most of, those with the largest share of it first.

    Returns:
      The axes.

    Raises:
      ValueError: the data set has no labels, or an unknown ``sort``.
    """
    check_matplotlib()
    from matplotlib.colors import LogNorm, Normalize

    from fedjax_sim.core.values import check_choice  # here: it imports jax, which reports do without

    table = dataset.statistics().label_table
    if table is None:
        raise ValueError(f"label_heatmap: {dataset} has no labels (examples['y'] as integers)")
    check_choice("label_heatmap(sort=...)", sort, _ORDERS)
    words, order_of = _ORDERS[sort]
    order = order_of(table)
    clients, classes = table.shape
    together = -(-clients // _COLUMNS)
    shown = _means(table[order], together)
    ax = axes_or_new(ax, float(np.clip(0.12 * clients + 2, 5, 12)), float(np.clip(0.25 * classes + 1.5, 2.5, 8)))
    held = shown[shown > 0]
    uneven = bool(held.max() > 20 * np.median(held))
    least = min(1, held.min())  # not 0, which is white
    norm = (LogNorm if uneven else Normalize)(vmin=0 if held.max() == least else least, vmax=held.max())
    look: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "nearest", "cmap": "viridis_r"}
    extent = (-0.5, shown.shape[0] * together - 0.5, -0.5, classes - 0.5)
    image = ax.imshow(np.ma.masked_equal(shown.T, 0), norm=norm, extent=extent, **look)
    ax.set(xlabel=words, ylabel="class")
    if clients <= _NUMBERED_CLIENTS:
        ax.set_xticks(range(clients), [str(client) for client in order])
    elif sort == "stored":
        whole_numbers(ax.xaxis)
    else:
        ax.set_xticks([])  # a place in the order is no client's number
    _tick_classes(ax.yaxis, range(classes))
    if table.size <= _NUMBERED_CELLS and clients <= _NUMBERED_CLIENTS:
        write_cells(ax, np.where(shown > 0, shown, np.nan).T, image, "{:.0f}".format)
    label = "examples (white: none)" if together == 1 else f"examples (white: none),\nmean of {together} clients"
    bar = ax.figure.colorbar(image, ax=ax, label=label, pad=0.02)
    if uneven:
        plain_numbers(bar.ax.yaxis, (1.0, 2.0, 5.0))
    return ax


def size_histogram(dataset: FederatedDataset, ax: Any = None) -> Any:
    """Draws how many clients hold how many examples, their mean and median; logarithmic where the sizes differ much.

    Args:
      dataset: any data set.
      ax: matplotlib axes to draw on, which are returned; None makes a figure.
    """
    ax = axes_or_new(ax, 6, 3.5)
    sizes = np.asarray(dataset.sizes)
    low, high = int(sizes.min()), int(sizes.max())
    # Edges lie between whole numbers, so that no bin is empty or doubled by rounding alone.
    bins = int(np.clip(1.5 * np.sqrt(sizes.size), 5, 40))
    edges: np.ndarray
    if low > 0 and high > 30 * low:  # a logarithmic axis has no place for clients without examples
        edges = _widening(np.unique(np.geomspace(low, high + 1, bins + 1).round())) - 0.5
        ax.set_xscale("log")
        plain_numbers(ax.xaxis, (1.0, 2.0, 5.0) if high < 150 * low else (1.0, 3.0) if high < 10**4 * low else (1.0,))
    else:
        step = max(1, -(-(high + 1 - low) // bins))
        edges = np.arange(low, high + 1 + step, step) - 0.5
        whole_numbers(ax.xaxis)
    ax.hist(sizes, bins=edges, color=COLOURS[0], edgecolor="white", linewidth=0.5)
    if ax.get_xscale() == "log":
        ax.set_xlim(left=max(0.55, 0.85 * edges[0]))  # no tick at half an example
    if low == high:  # one bar: without room beside it, it fills the axes
        ax.set_xlim(low - 3, high + 3)
        ax.set_xticks([low])
    mean, median = float(sizes.mean()), float(np.median(sizes))
    ax.axvline(mean, color=COLOURS[1], linestyle="--", label=f"mean {mean:,.1f}")
    ax.axvline(median, color=COLOURS[6], linestyle=":", label=f"median {median:,.1f}")
    whole_numbers(ax.yaxis)
    ax.set_title(_in_words(dataset), fontsize="medium")
    ax.legend(**LEGEND)
    plain(ax, xlabel="examples of a client", ylabel="clients")
    return ax


def overview(dataset: FederatedDataset, path: str | os.PathLike[str] | None = None, *, sort: Sort = "stored") -> Any:
    """One figure of a data set: the label heat map, below it client sizes and classes per client.

    A client's effective number of classes is the exponential of the entropy of its labels: C if it has equally many
    examples of C classes, near 1 if almost all are of one class, whatever else it holds.

    Without labels the figure has the size histogram alone.

    Args:
      dataset: any data set.
      path: where the figure goes (atomically), as PNG unless the name ends otherwise; None writes nothing.
      sort: the order of the clients in the heat map, as in :func:`label_heatmap`.

    Returns:
      The matplotlib figure.
    """
    check_matplotlib()
    statistics = dataset.statistics()
    if statistics.label_table is None:
        figure = new_figure(6, 3.5)
        size_histogram(dataset, figure.subplots())
    else:
        classes = statistics.label_table.shape[1]
        height = float(np.clip(0.25 * classes + 0.9, 2.2, 7))
        figure = new_figure(10, height + 3.0)
        axes = figure.subplot_mosaic([["map", "map"], ["sizes", "classes"]], height_ratios=[height, 3.0])
        label_heatmap(dataset, axes["map"], sort=sort)
        size_histogram(dataset, axes["sizes"])
        axes["sizes"].set_title("")
        _classes_histogram(statistics, axes["classes"])
        parts = {"validation": statistics.validation_sizes, "test": statistics.test_sizes}
        held_out = [f", {sizes.sum():,} {name} examples" for name, sizes in parts.items() if sizes is not None]
        figure.suptitle(f"{_in_words(dataset)}{''.join(held_out)}", fontsize="medium")
    if path is not None:
        save_figure(figure, path)
    return figure


def _classes_histogram(statistics: Any, ax: Any) -> None:
    """How many clients hold how many classes, and effectively how many."""
    classes = statistics.label_table.shape[1]
    step = max(1, classes // 40)
    edges = np.arange(1, classes + 1 + step, step) - 0.5
    values = {"held": statistics.classes_per_client, "effective (exp of label entropy)": statistics.effective_classes}
    filled = {"color": COLOURS[5], "edgecolor": "white", "linewidth": 0.5}
    outline = {"histtype": "step", "color": COLOURS[1], "linewidth": 1.6}
    for (name, of_client), style in zip(values.items(), (filled, outline), strict=True):
        ax.hist(of_client, bins=edges, label=f"{name}, mean {of_client.mean():.1f}", **style)
    _tick_classes(ax.xaxis, range(1, classes + 1))
    whole_numbers(ax.yaxis)
    ax.margins(y=0.15)
    ax.legend(**LEGEND)
    plain(ax, xlabel="classes of a client", ylabel="clients", xlim=(0.4, classes + 0.6))


def _tick_classes(axis: Any, classes: range) -> None:
    if len(classes) <= 12:
        axis.set_ticks(classes)
    else:
        whole_numbers(axis)


def _widening(edges: np.ndarray) -> np.ndarray:
    """Whole-numbered edges no bin of which is narrower than the one before: one that is would look like a dip."""
    widths = np.maximum.accumulate(np.diff(edges))
    wider = np.concatenate([edges[:1], edges[0] + np.cumsum(widths)])
    return wider[: int(np.searchsorted(wider, edges[-1])) + 1]


def _in_words(dataset: FederatedDataset) -> str:
    return f"{number_of(dataset.num_clients, 'client')}, {number_of(dataset.num_examples, 'example')}"


def _means(table: np.ndarray, together: int) -> np.ndarray:
    """Means of ``together`` neighbouring rows; the last may be of fewer."""
    starts = np.arange(0, table.shape[0], together)
    return np.add.reduceat(table, starts) / np.diff(starts, append=table.shape[0])[:, None]


_ORDERS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {  # the label of the axis, the clients' order
    "stored": ("client", lambda table: np.arange(table.shape[0])),
    "size": ("clients, by size", lambda table: np.argsort(-table.sum(axis=1), kind="stable")),
    "class": (
        "clients, by their commonest class",
        lambda table: np.lexsort((-table.max(axis=1) / np.maximum(table.sum(axis=1), 1), table.argmax(axis=1))),
    ),
}
