"""Tables of text: the same columns as aligned lines, Markdown, LaTeX, csv or HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

Columns = Sequence[tuple[str, Sequence[str]]]  # headings and cells

FORMS = ("text", "markdown", "latex", "csv", "html")
_SPREAD, _NONE = " ± ", "–"  # in a cell: between a mean and its spread; nothing to say
_GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩµ"  # pdflatex prints none of them, but has a command for each:
_COMMANDS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega mu"
)
_LATEX = str.maketrans({
    **{letter: rf"$\{command}$" for letter, command in zip(_GREEK, _COMMANDS.split(), strict=True)},
    **{sign: rf"\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", "–": "--", "\n": " ",
})  # fmt: skip


def table(columns: Columns, form: str = "text", *, names: int = 1, notes: Sequence[str] = ()) -> str:
    """Columns as a table; the first, ``names`` of them, are flush left, numbers are flush right.

    Args:
      columns: headings and cells.
      form: ``"text"``, aligned lines; ``"markdown"``; ``"latex"``, a ``tabular`` with the rules of ``booktabs``;
        ``"csv"``, in which a cell ``"mean ± spread"`` is two; ``"html"``.
      names: how many columns are no numbers.
      notes: lines below it: of LaTeX comments, of csv nothing.
    """
    from fedjax_sim.core.values import check_choice  # which imports JAX, and the command line reads FORMS

    check_choice("table(form=...)", form, FORMS)
    if form == "latex":
        heads, *rows = (" & ".join(map(_in_latex, row)) + r" \\" for row in _rows(columns))
        alignment = "l" * names + "r" * (len(columns) - names)
        lines = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", heads, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*lines, r"\end{tabular}", *(f"% {line}" for note in notes for line in note.split("\n"))])
    if form == "csv":
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(_rows(_apart(columns, names)))
        return written.getvalue().rstrip("\n")
    if form == "html":
        return _html(columns, names, notes)
    lines = _markdown(columns, names) if form == "markdown" else text_rows(columns, names=names)
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def in_notebook(shown: Any, inner: str) -> str:
    """What a notebook shows of an object: its ``repr`` above a table, both HTML."""
    return f"<p><code>{escape(repr(shown))}</code></p>{inner}"


def text_rows(columns: Columns, *, names: int = 1) -> list[str]:
    """The lines of a table in aligned text."""
    widths = [max(len(text) for text in [title, *cells]) for title, cells in columns]
    padded = [
        [text.ljust(width) if place < names else text.rjust(width) for text in (title, "─" * width, *cells)]
        for place, ((title, cells), width) in enumerate(zip(columns, widths, strict=True))
    ]
    return ["  ".join(row) for row in zip(*padded, strict=True)]


def _rows(columns: Columns) -> list[tuple[str, ...]]:
    return list(zip(*((title, *cells) for title, cells in columns), strict=True))


def _in_latex(text: str) -> str:
    """A cell; the sign of a negative number is a minus, as a hyphen would be printed shorter."""
    return re.sub(r"^-(?=\d)", "−", text).translate(_LATEX)


def _markdown(columns: Columns, names: int) -> list[str]:
    heads, *rows = ([text.replace("|", r"\|") for text in row] for row in _rows(columns))
    rules = ["---" if place < names else "---:" for place in range(len(columns))]
    return [f"| {' | '.join(row)} |" for row in (heads, rules, *rows)]


def _apart(columns: Columns, names: int) -> Columns:
    """Means and spreads in columns of their own, and nothing where there is nothing."""
    found = list(columns[:names])
    for title, cells in columns[names:]:
        parts = [("" if cell == _NONE else cell).partition(_SPREAD) for cell in cells]
        found.append((title, [mean for mean, _, _ in parts]))
        if any(sign for _, sign, _ in parts):
            found.append((f"{title}{_SPREAD}".rstrip(), [spread for _, _, spread in parts]))
    return found


def _html(columns: Columns, names: int, notes: Sequence[str]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        sides = ["left" if place < names else "right" for place in range(len(cells))]
        inner = (
            f'<{tag} style="text-align: {side}">{escape(text)}</{tag}>' for side, text in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(inner)}</tr>"

    heads, *rows = _rows(columns)
    below = "".join(f"<br><small>{escape(note)}</small>" for note in notes)
    body = "".join(row("td", cells) for cells in rows)
    return f"<table><thead>{row('th', heads)}</thead><tbody>{body}</tbody></table>{below.removeprefix('<br>')}"
