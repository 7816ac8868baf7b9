"""The figures that the package makes."""

from __future__ import annotations

import functools
import io
from typing import Any


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches.

    pyplot does not know of it, so that none is left open; a notebook shows it all the same.
    """
    return _class()(figsize=(width, height), layout="constrained")


@functools.cache
def _class() -> Any:
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Shown
