"""Partition reports as text: FedLab's csv format, written and read."""

from __future__ import annotations

import numpy as np

_TITLE = "Class frequencies:"


def report_text(table: np.ndarray) -> str:
    """The report of a label table, int[N, C]."""
    header = ["client", *(f"class{label}" for label in range(table.shape[1])), "Amount"]
    lines = [_TITLE, ",".join(header)]
    for client, counts in enumerate(table.tolist()):
        amount = sum(counts)
        shares = (f"{count / amount:.3f}" if count else "0.00" for count in counts)
        lines.append(f"Client {client:3d},{','.join(shares)},{amount}")
    return "\n".join(lines)


def table_of_report(text: str, place: str) -> np.ndarray:
    """The label table of a report, int64[N, C], as near as its rounded shares allow.

    Args:
      text: the report.
      place: its name in messages.

    Raises:
      ValueError: another format; the message names the line.
    """
    lines = text.splitlines()
    header = lines[1].split(",") if len(lines) > 1 else []
    if not lines or lines[0].strip() != _TITLE or len(header) < 3 or header[-1].strip() != "Amount":
        raise ValueError(
            f"{place} is not a partition report: it must start with a line {_TITLE!r} and a header "
            "client,class0,...,Amount"
        )
    rows = []
    for number, line in enumerate(lines[2:], start=3):
        cells = line.split(",")
        try:
            values, amount = [float(cell) for cell in cells[1:-1]], int(cells[-1])
        except ValueError as error:
            raise ValueError(f"{place}, line {number}: {error}") from None
        if len(cells) != len(header):
            raise ValueError(f"{place}, line {number} has {len(cells)} cells but the header has {len(header)}")
        shares = np.array(values)
        # 0.00 is none and 0.000 a few; a sum is off by half a thousandth a class at most
        if not (np.all(np.isfinite(shares) & (shares >= 0)) and abs(shares.sum() - 1) <= 0.0005 * shares.size + 1e-9):
            raise ValueError(f"{place}, line {number}: the shares add up to {shares.sum():.4f}, not to 1")
        if amount < 1:
            raise ValueError(f"{place}, line {number}: a client has {amount} examples; it needs at least one")
        held = np.array([cell.strip() != "0.00" for cell in cells[1:-1]])
        counts = np.where(held, np.maximum(np.rint(shares * amount), 1), 0).astype(np.int64)
        counts[np.argmax(counts)] += amount - counts.sum()
        rows.append(counts)
    if not rows:
        raise ValueError(f"{place} has no clients: a report has one line for each after its header")
    return np.array(rows)
