"""Ticks of logarithmic axes that are read as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plain_numbers(axis: Any, leading: Sequence[float]) -> None:
    """Ticks at the decades times the leading digits, written as plain numbers: 0.2, 50, 2,000.

    Args:
      axis: matplotlib's, logarithmic.
      leading: digits, (1, 2, 5).
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=leading))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def leading_digits(span: float) -> tuple[float, ...]:
    """The leading digits that suit an axis whose largest value is ``span`` times its smallest."""
    return (1.0, 2.0, 5.0) if span < 1000 else (1.0,)
