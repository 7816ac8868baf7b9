"""The figures that the package makes."""

from __future__ import annotations

import functools
import io
from typing import Any

# TrueType fonts in PDF and PostScript; many venues refuse matplotlib's default, Type 3.
FONTS: Any = {"pdf.fonttype": 42, "ps.fonttype": 42}


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches.

    pyplot does not know of it, so that none is left open; a notebook shows it all the same.
    """
    return _class()(figsize=(width, height), layout="constrained")


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
