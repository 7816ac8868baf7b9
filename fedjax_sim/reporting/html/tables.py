"""The tables of a page. Every name and value that comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from fedjax_sim.reporting.html.curves import LEVELS, Spread, axes_of, entries_of, records
from fedjax_sim.reporting.html.drawing import swatch
from fedjax_sim.reporting.personal import TITLES, Row, cells_of
from fedjax_sim.reporting.recorded import Recorded, clock, in_words, loss_of_data, measured
from fedjax_sim.reporting.table import USEFUL_STEPS, WITHOUT_PENALTY, final_values, one_number

NONE = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


class Column(NamedTuple):
    """A column of numbers."""

    title: str  # its heading
    cells: Sequence[str]  # what is printed, one a run
    values: Sequence[float | None]  # what is sorted by; None stays below


def final_table(histories: Mapping[str, Recorded], elsewhere: Container[str] = ()) -> str:
    """One row a run: final metrics, rounds, time, bytes, divergences; its headings can become buttons that sort.

    Metrics that stand ``elsewhere`` on the page are left out.
    """
    runs = list(histories.values())
    shown = [record.name for record in records(histories)[0] if record.metric and record.name not in elsewhere]
    columns = [_metric(runs, name) for name in shown]
    alike = []
    seeds = [float(len(next(iter(run.metrics.values())))) for run in runs]
    rounds = [float(run.evaluated[-1]) if len(run.evaluated) else None for run in runs]
    for what, values in (("seeds", seeds), ("rounds", rounds)):
        if len(runs) > 1 and values[0] is not None and len(set(values)) == 1:  # a column of it would say nothing
            alike.append(f"{values[0]:,.0f} {what if values[0] != 1 else what.removesuffix('s')}")
        else:
            columns.append(_numbers(what, values, "{:,.0f}"))
    diverged = [float(len(getattr(run, "divergences", ()))) for run in runs]
    columns += [_numbers("diverged seeds", diverged, "{:.0f}")] if any(diverged) else []
    columns.append(_numbers("seconds", [_finite(run.seconds) for run in runs], "{:,.2f}"))
    said = "Values at the last evaluation: mean ± standard deviation over seeds. Seconds: of all seeds, not compiling."
    volume, times = ([_end(run, axis) for run in runs] for axis in ("bytes", "virtual_time"))
    if any(value is not None for value in volume):
        columns.append(Column("bytes", [NONE if value is None else in_bytes(value) for value in volume], volume))
    if any(value is not None for value in times):
        columns.append(_numbers("virtual time (s)", times, "{:,.4g}"))
    if any(value is not None for value in volume + times):
        said += " Bytes and virtual time: mean over seeds."
    columns.append(_numbers("useful steps", [_useful(run) for run in runs], "{:.1%}"))
    said += f" {WITHOUT_PENALTY.capitalize()}." if "data_loss" in loss_of_data(runs) else ""
    said += f" {USEFUL_STEPS.capitalize()}." + (f" {', '.join(alike)} each." if alike else "")
    return _of_runs(said, enumerate(histories), columns, ' class="sortable"')


def spread_table(name: str, words: str, spreads: Mapping[str, Spread], order: Sequence[str]) -> str:
    """Quantiles over the clients, one row a run; ``words`` is the metric's name for a reader."""
    present = {(number, run): spreads[run] for number, run in enumerate(order) if run in spreads}
    entries = entries_of(name)
    found = np.array([spread.quantiles() for spread in present.values()])
    titles = ["least", *(f"{level:.0%}" for level in LEVELS[1:-1]), "most"]
    columns = [_numbers(title, [_finite(v) for v in found[:, i]], "{:.4g}") for i, title in enumerate(titles)]
    columns.append(_numbers(entries, [float(spread.clients) for spread in present.values()], "{:,.0f}"))
    columns.append(_numbers("without a value", [float(spread.missing) for spread in present.values()], "{:,.0f}"))
    caption = f"{words.capitalize()} at the last evaluation: quantiles over the {entries}, all seeds together."
    return _of_runs(caption, present, columns)


def personal_table(caption: str, labels: Sequence[tuple[int, str]], rows: Sequence[Row]) -> str:
    """The rows of :func:`fedjax_sim.reporting.personal_table`, given the number of each one's line and its heading."""
    cells = [cells_of(row) for row in rows]
    columns = []
    for place, title in enumerate(TITLES):
        means = [None if values is None else _finite(values.mean()) for values in (row.values[place] for row in rows)]
        columns.append(Column(title, [of[place] for of in cells], means))
    return _of_runs(caption, labels, columns, ' class="sortable"', "model")


def differences(names: Sequence[str], rows: Mapping[str, Sequence[str | None]]) -> str:
    """A row for each setting in which runs differ, a column for each run."""
    caption = (
        f'Settings that are not the same in all runs; "{NONE}": a run has no such setting. Arguments of a part that '
        "only some runs have are here where they differ among these."
    )
    heads = [_head("text", "setting"), *(_head("text", _label(number, name)) for number, name in enumerate(names))]
    body = [
        _key(key) + "".join(f'<td class="text">{NONE if value is None else text(value)}</td>' for value in values)
        for key, values in rows.items()
    ]
    return _table(caption, heads, body, "Settings that differ")


def pairs(rows: Mapping[str, str], caption: str) -> str:
    """Names and values, a row each."""
    body = "".join(f'<tr>{_key(key)}<td class="text">{text(value)}</td></tr>' for key, value in rows.items())
    return f"<table><caption><span>{escape(caption)}</span></caption><tbody>{body}</tbody></table>"


def text(value: str) -> str:
    """Text of a run for HTML, escaped."""
    return escape(clean(value))


def clean(value: str) -> str:
    """Text without the characters that no page may have: control characters, halves of characters."""
    return "".join("\ufffd" if ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF or 127 <= ord(c) < 160 else c for c in value)


def in_bytes(value: float) -> str:
    """``12.3 MB``."""
    number = 0
    while abs(value) >= 1000 and number < len(_UNITS) - 1:
        value, number = value / 1000, number + 1
    return f"{value:.4g} {_UNITS[number]}"


def _of_runs(
    caption: str, runs: Iterable[tuple[int, str]], columns: Sequence[Column], about: str = "", what: str = "run"
) -> str:
    """A row for each of the runs, given by number and name."""
    heads = [_head("text", what), *(_head("number", text(column.title)) for column in columns)]
    rows = []
    for place, (number, name) in enumerate(runs):
        cells = ""
        for column in columns:
            said, value = column.cells[place], column.values[place]
            alarm = ' alarm"' if said.startswith("diverged") else '"'
            cells += f'<td class="number{alarm} data-value="{"" if value is None else repr(value)}">{escape(said)}</td>'
        rows.append(f'<th scope="row" data-value="{text(name)}">{_label(number, name)}</th>{cells}')
    return _table(caption, heads, rows, caption.partition(":")[0], about)


def _table(caption: str, heads: Sequence[str], rows: Sequence[str], label: str, about: str = "") -> str:
    """Where it is wider than the page a table scrolls sideways, by keyboard too; the script shows a caption's end."""
    more = '<span class="more" aria-hidden="true">More columns: scroll →</span>'
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table{about}>'
        f"<caption><span>{escape(caption)} {more}</span></caption><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(kind: str, inner: str) -> str:
    return f'<th scope="col" data-kind="{kind}">{inner}</th>'


def _key(value: str) -> str:
    """The name of a setting; it may be broken after its dots."""
    return f'<th scope="row">{text(value).replace(".", ".<wbr>")}</th>'


def _label(number: int, name: str) -> str:
    """The line of the number-th run, and its name."""
    return f'<span class="named">{swatch(number)}<span>{text(name)}</span></span>'


def _metric(runs: list[Recorded], name: str) -> Column:
    cells = final_values(runs, name, decimals=4 if name.endswith("accuracy") else None)
    with np.errstate(invalid="ignore", over="ignore"):
        finals = [measured(run, name)[:, -1].astype(float).mean() if one_number(run, name) else np.nan for run in runs]
    return Column(in_words(name, runs), cells, [_finite(final) for final in finals])


def _numbers(title: str, values: Sequence[float | None], form: str) -> Column:
    return Column(title, [NONE if value is None else form.format(value) for value in values], values)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _end(run: Recorded, axis: str) -> float | None:
    """The mean over seeds of where a run is at its end; None where it did not record that."""
    return _finite(clock(run, axis)[:, -1].mean()) if axis in axes_of(run) else None


def _useful(run: Recorded) -> float | None:
    try:
        return _finite(run.useful_ratio)
    except KeyError:
        return None
