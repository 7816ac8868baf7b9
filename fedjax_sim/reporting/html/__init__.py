"""Reports: one HTML page that compares runs, to open, to keep and to send."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fedjax_sim.core.files import write_atomically
from fedjax_sim.reporting.html.page import page
from fedjax_sim.reporting.recorded import Recorded

__all__ = ["page", "report"]


def report(histories: Mapping[str, Recorded], path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Writes one HTML page that compares runs: final values, curves, clients, settings.

    The page needs nothing but itself, no network and no server. With a script that is in it, curves can be chosen, read
    and drawn against rounds, bytes or virtual time; without it there are all tables.

    Args:
      histories: the runs' records by the name to print.
      path: where the page goes (atomically).
      title: its heading; None says how many runs are compared.
    """
    write_atomically(path, page(histories, title=title).encode("utf-8"))
