"""Tables of a report, and where they go in a Markdown file."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.speed.peers.compare import Row, best_framework, rows

Report = Mapping[str, Any]


def summary(report: Report) -> str:
    """One line a peer, one column a workload: milliseconds a round and, in brackets, times ours."""
    names = list(report["workloads"])
    columns = {name: {row.name: row for row in rows(report, name)} for name in names}
    lines = [
        "| ms a round (times ours) | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for peer, about in report["peers"].items():
        cells = [_short(columns[name].get(peer)) for name in names]
        lines.append(f"| {_titled(report, peer, about)} | " + " | ".join(cells) + " |")
    best = [best_framework(list(columns[name].values())) for name in names]
    if any(row is not None and row.ratio is not None for row in best):
        cells = ["–" if row is None or row.ratio is None else f"**{_significant(row.ratio)}×**" for row in best]
        lines.append("| best framework over ours | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def details(report: Report) -> str:
    """All figures of all workloads, and what failed."""
    blocks = []
    for name, workload in report["workloads"].items():
        lines = [
            f"**{name}**, {workload['steps']:.0f} steps a round, loss at the start {workload['start_loss']:.4f}:",
            "",
            "| | ms a round | times ours | set-up s | peak MB | final loss | distance |",
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        found = rows(report, name)
        for row in found:
            if row.error is None:
                ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
                lines.append(
                    f"| {row.title} | {row.round_ms:.2f} | {ratio} | {row.set_up_s:.1f} | {row.peak_mb:,.0f} | "
                    f"{row.loss:.5f} | {row.distance:.0e} |"
                )
        failed = [f"{row.title}: {_cell_safe(row.error)}" for row in found if row.error is not None]
        if failed:
            lines += ["", "No figure: " + "; ".join(failed) + "."]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


TABLES: dict[str, Callable[[Report], str]] = {"peers": summary, "peers: details": details}


def write(path: pathlib.Path, report: Report) -> list[str]:
    """Replaces what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` for every table with such marks.

    Returns:
      The names of the tables that were written.

    Raises:
      ValueError: a mark without its partner, or no marks at all.
    """
    text, written = path.read_text(encoding="utf-8"), []
    for name, table in TABLES.items():
        opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
        if (text.count(opening), text.count(closing)) == (0, 0):
            continue
        before, found, rest = text.partition(opening)
        _, closed, after = rest.partition(closing)
        if not found or not closed or text.count(opening) != 1:
            raise ValueError(f"{path}: one {opening} and after it one {closing}, or neither")
        text = f"{before}{opening}\n{table(report)}\n{closing}{after}"
        written.append(name)
    if not written:
        marks = " or ".join(f"<!-- {name} --> and <!-- /{name} -->" for name in TABLES)
        raise ValueError(f"{path}: no place for a table; write {marks} where it belongs")
    path.write_text(text, encoding="utf-8")
    return written


def _titled(report: Report, peer: str, about: Mapping[str, Any]) -> str:
    """With the version that ran, if any did."""
    for workload in report["workloads"].values():
        versions = list(workload["peers"].get(peer, {}).get("versions", {}).values())
        if versions and about["framework"]:
            return f"{about['title']} {versions[0]}"
    return str(about["title"])


def _short(row: Row | None) -> str:
    if row is None or row.round_ms is None:
        return "–"
    times = "" if row.ratio is None or row.name == "ours" else f" ({_significant(row.ratio)}×)"
    return f"{_significant(row.round_ms)}{times}"


def _significant(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def _cell_safe(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
