"""The colours and lines of a page, and what its script is told of a panel.

The colours of both themes become custom properties of the style sheet. Text reaches a contrast of 4.5:1 and lines 3:1
against what is behind them. Lines differ from one another by at least 24 (CIE 1976) in normal vision and in protanopia,
deuteranopia and tritanopia as Machado et al. (2009) simulate them; found by a search that began with Okabe and Ito's
hues, whose lighter half is too light for white paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedjax_sim.reporting.html.curves import Curve

_COLOURS = {  # in light and in dark
    "page": ("#f6f7f9", "#14171c"),
    "card": ("#ffffff", "#1b1f26"),
    "text": ("#1a1d21", "#e8eaed"),
    "soft": ("#555c66", "#a9b0bb"),
    "edge": ("#c9ced6", "#434b57"),
    "grid": ("#e6e9ed", "#2c323b"),
    "shade": ("#b7bec9", "#5a6472"),
    "link": ("#0b57d0", "#8ab4f8"),
    "alarm": ("#a8201a", "#ff9b92"),
    "line-0": ("#003587", "#2ad5ff"),
    "line-1": ("#d95700", "#e98d39"),
    "line-2": ("#16784d", "#2c8a5b"),
    "line-3": ("#c0579b", "#ab599c"),
    "line-4": ("#502900", "#ffd212"),
    "line-5": ("#1f90fb", "#8e82fa"),
    "line-6": ("#1a1a1a", "#f2f2f2"),
}
LINES = 7  # colours
# Seven colours, five dashes and six markers: 210 runs before all three come again, 35 before colour and dash do. The
# second run of a colour has the dash after the next one: neighbours here may be alike, those next but one are not.
DASHES = ("", "8 3.5", "9 2.5 2 2.5", "5 2.5 1.5 2.5 1.5 2.5", "1.8 2.6")
MARKERS = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0z",
    "M-3-3h6v6h-6z",
    "M0-4L3.9 3H-3.9z",
    "M0-4.3L4.3 0L0 4.3L-4.3 0z",
    "M0 4L3.9-3H-3.9z",
    "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
)


def style_sheet() -> str:
    """The rules that set the colours: dark where the reader's system or the page's button says so, never in print."""
    light, dark = (
        f"color-scheme:{scheme};" + "".join(f"--{name}:{both[place]};" for name, both in _COLOURS.items())
        for place, scheme in enumerate(("light", "dark"))
    )
    runs = "".join(f".line-{number}{{--line:var(--line-{number})}}" for number in range(LINES))
    dashes = "".join(f".dash-{number}{{stroke-dasharray:{dash or 'none'}}}" for number, dash in enumerate(DASHES))
    return (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
        f"{runs}\n{dashes}\n"
    )


def classes(number: int) -> str:
    """The classes of the number-th run's drawings: its colour and its dash."""
    return f"line-{number % LINES} dash-{number % len(DASHES)}"


class Drawing(NamedTuple):
    """One panel."""

    title: str  # above it
    what: str  # is drawn, in the words of a reader who does not see it
    note: str  # below the title, or ""
    curves: Sequence[Curve | None] = ()  # one a run; None where it has none
    x_label: str = ""  # below the horizontal axis, where the script does not know it
    loss: bool = False  # whether the axis may be logarithmic, and stops a little above the start


def swatch(number: int) -> str:
    """The line of the number-th run, as legends show it."""
    line = f'<path class="curve {classes(number)}" d="M1 6H33"/>'
    path, colour = MARKERS[number % len(MARKERS)], classes(number).split()[0]
    mark = f'<path class="mark {colour}" d="{path}" transform="translate(17 6)"/>'
    return f'<svg class="swatch" viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">{line}{mark}</svg>'
