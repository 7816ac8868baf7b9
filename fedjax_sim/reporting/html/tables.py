"""The tables of a page. Every name and value that comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from fedjax_sim.reporting.html.clients import LEVELS, Spread, entries_of
from fedjax_sim.reporting.html.curves import axes_of, records
from fedjax_sim.reporting.html.static import swatch
from fedjax_sim.reporting.recorded import Recorded, clock, in_words, loss_of_data, measured, recorded_as
from fedjax_sim.reporting.table import USEFUL_STEPS, WITHOUT_PENALTY, final_values

NONE = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


class Column(NamedTuple):
    """A column of numbers.

    Attributes:
      title: its heading.
      cells: what is printed, one a run.
      values: what is sorted by; None stays below.
    """

    title: str
    cells: Sequence[str]
    values: Sequence[float | None]


def final_table(histories: Mapping[str, Recorded]) -> str:
    """One row a run: final metrics, rounds, time, bytes, divergences; its headings can become buttons that sort."""
    runs = list(histories.values())
    names = [record.name for record in records(histories)[0] if record.metric]
    columns = [_metric(runs, name) for name in names]
    seeds = [float(len(_first_metric(run))) for run in runs]
    rounds = [float(run.evaluated[-1]) if len(run.evaluated) else None for run in runs]
    alike = [f"{values[0]:,.0f} {what if values[0] != 1 else what.removesuffix('s')}"
             for values, what in ((seeds, "seeds"), (rounds, "rounds")) if _told_once(values)]  # fmt: skip
    columns += [] if _told_once(seeds) else [_numbers("seeds", seeds, "{:.0f}")]
    columns += [] if _told_once(rounds) else [_numbers("rounds", rounds, "{:,.0f}")]
    diverged = [float(len(getattr(run, "divergences", ()))) for run in runs]
    columns += [_numbers("diverged seeds", diverged, "{:.0f}")] if any(diverged) else []
    columns.append(_numbers("seconds", [_finite(run.seconds) for run in runs], "{:,.2f}"))
    volume = [_end(run, "bytes") for run in runs]
    if any(value is not None for value in volume):
        columns.append(Column("bytes", [NONE if value is None else in_bytes(value) for value in volume], volume))
    times = [_end(run, "virtual_time") for run in runs]
    if any(value is not None for value in times):
        columns.append(_numbers("virtual time (s)", times, "{:,.4g}"))
    columns.append(_numbers("useful steps", [_finite(_useful(run)) for run in runs], "{:.1%}"))
    said = "Values at the last evaluation: mean ± standard deviation over seeds. Seconds: of all seeds, not compiling."
    if any("bytes" in column.title or "virtual" in column.title for column in columns):
        said += " Bytes and virtual time: mean over seeds."
    said += f" {WITHOUT_PENALTY.capitalize()}." if loss_of_data(runs) != "loss" else ""
    said += f" {USEFUL_STEPS.capitalize()}." + (f" {', '.join(alike)} each." if alike else "")
    return _table(said, histories, columns, "sortable")


def spread_table(name: str, words: str, spreads: Mapping[str, Spread], order: Sequence[str]) -> str:
    """Quantiles over the clients, one row a run; ``words`` is the metric's name for a reader."""
    present = {run: spreads[run] for run in order if run in spreads}
    entries = entries_of(name)
    found = np.array([spread.quantiles() for spread in present.values()])
    titles = ["least", *(f"{level:.0%}" for level in LEVELS[1:-1]), "most"]
    columns = [_numbers(title, [_finite(v) for v in found[:, i]], "{:.4g}") for i, title in enumerate(titles)]
    columns.append(_numbers(entries, [float(spread.clients) for spread in present.values()], "{:,.0f}"))
    columns.append(_numbers("without a value", [float(spread.missing) for spread in present.values()], "{:,.0f}"))
    caption = f"{words.capitalize()} at the last evaluation: quantiles over the {entries}, all seeds together."
    return _table(caption, list(present), columns, "", numbers=[order.index(run) for run in present])


def differences(names: Sequence[str], rows: Mapping[str, Sequence[str | None]]) -> str:
    """A row for each setting in which runs differ, a column for each run."""
    heads = "".join(f'<th scope="col" data-kind="text">{label(number, name)}</th>' for number, name in enumerate(names))
    body = "".join(
        f'<tr><th scope="row">{_key(key)}</th>'
        + "".join(f'<td class="text">{NONE if value is None else text(value)}</td>' for value in values)
        + "</tr>"
        for key, values in rows.items()
    )
    caption = (
        f'Settings that are not the same in all runs; "{NONE}": a run has no such setting. Arguments of a part that '
        "only some runs have are here where they differ among these."
    )
    head = f'<thead><tr><th scope="col" data-kind="text">setting</th>{heads}</tr></thead>'
    return scrolled(f"<table>{captioned(caption)}{head}<tbody>{body}</tbody></table>", "What differs")


def pairs(rows: Mapping[str, str], caption: str) -> str:
    """Names and values, a row each."""
    body = "".join(
        f'<tr><th scope="row">{_key(key)}</th><td class="text">{text(value)}</td></tr>' for key, value in rows.items()
    )
    return f"<table><caption><span>{escape(caption)}</span></caption><tbody>{body}</tbody></table>"


def label(number: int, name: str) -> str:
    """The line of the number-th run, and its name."""
    return f'<span class="named">{swatch(number)}<span>{text(name)}</span></span>'


def captioned(said: str) -> str:
    """A table's caption; where the table is wider than its place, the page's script shows its end."""
    more = '<span class="more" aria-hidden="true">More columns: scroll →</span>'
    return f"<caption><span>{escape(said)} {more}</span></caption>"


def scrolled(table: str, label: str) -> str:
    """A table that scrolls sideways by itself, by keyboard too, where it is wider than the page."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'


def text(value: str) -> str:
    """Text of a run for HTML, escaped."""
    return escape(clean(value))


def clean(value: str) -> str:
    """Text without the characters that no page may have: control characters, halves of characters."""
    return "".join("\ufffd" if ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF or 127 <= ord(c) < 160 else c for c in value)


def _key(value: str) -> str:
    """The name of a setting; it may be broken after its dots."""
    return text(value).replace(".", ".<wbr>")


def in_bytes(value: float) -> str:
    """``12.3 MB``."""
    number = 0
    while abs(value) >= 1000 and number < len(_UNITS) - 1:
        value, number = value / 1000, number + 1
    return f"{value:.4g} {_UNITS[number]}"


def _table(
    caption: str, names: Sequence[str] | Mapping[str, Recorded], columns: Sequence[Column], kind: str,
    numbers: Sequence[int] | None = None,
) -> str:  # fmt: skip
    order = range(len(names)) if numbers is None else numbers
    heads = "".join(f'<th scope="col" data-kind="number">{text(column.title)}</th>' for column in columns)
    rows = []
    for place, (number, name) in enumerate(zip(order, names, strict=True)):
        cells = "".join(_cell(column.cells[place], column.values[place]) for column in columns)
        said = text(name)
        rows.append(f'<tr><th scope="row" data-value="{said}">{label(number, name)}</th>{cells}</tr>')
    head = f'<thead><tr><th scope="col" data-kind="text">run</th>{heads}</tr></thead>'
    about = f' class="{kind}"' if kind else ""
    table = f"<table{about}>{captioned(caption)}{head}<tbody>{''.join(rows)}</tbody></table>"
    return scrolled(table, caption.partition(":")[0])


def _cell(said: str, value: float | None) -> str:
    alarm = ' alarm"' if said.startswith("diverged") else '"'
    return f'<td class="number{alarm} data-value="{"" if value is None else repr(value)}">{escape(said)}</td>'


def _metric(runs: list[Recorded], name: str) -> Column:
    places = [run.metrics.get(recorded_as(run, name)) for run in runs]
    has = [place is not None and np.asarray(place).ndim == 2 for place in places]
    scalar = [run for run, one in zip(runs, has, strict=True) if one]
    cells = iter(final_values(scalar, name, decimals=4 if name.endswith("accuracy") else None))
    with np.errstate(invalid="ignore", over="ignore"):
        values = [_finite(measured(run, name)[:, -1].astype(float).mean()) if one else None
                  for run, one in zip(runs, has, strict=True)]  # fmt: skip
    return Column(in_words(name, runs), [next(cells) if one else NONE for one in has], values)


def _numbers(title: str, values: Sequence[float | None], form: str) -> Column:
    return Column(title, [NONE if value is None else form.format(value) for value in values], values)


def _told_once(values: Sequence[float | None]) -> bool:
    """Whether several runs have the same: a column of it would say nothing."""
    return len(values) > 1 and values[0] is not None and len(set(values)) == 1


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _end(run: Recorded, axis: str) -> float | None:
    """The mean over seeds of where a run is at its end; None where it did not record that."""
    return _finite(clock(run, axis)[:, -1].mean()) if axis in axes_of(run) else None


def _useful(run: Recorded) -> float:
    try:
        return run.useful_ratio
    except KeyError:
        return float("nan")


def _first_metric(run: Recorded) -> np.ndarray:
    return np.asarray(next(iter(run.metrics.values())))
