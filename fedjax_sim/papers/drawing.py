"""What the figures of experiments have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_sim.reporting import Panel, panels
from fedjax_sim.reporting.figures import new_figure
from fedjax_sim.reporting.plots import check_matplotlib
from fedjax_sim.run.history import History


def by_metric(
    columns: Mapping[str, Mapping[str, History]], metrics: Sequence[str], labels: Mapping[str, str] = {}
) -> Any:
    """A row of panels for each metric, with a column for each group of runs, which the first row names."""
    return panels([
        [Panel(of, metric, name if metric == metrics[0] else "", label=labels.get(metric))
         for name, of in columns.items()]
        for metric in metrics
    ])  # fmt: skip


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Any, Any]:
    """A figure of so many inches and the array of its axes, [rows, columns]."""
    check_matplotlib()
    figure = new_figure(width, height)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)
