"""The colours of a page, for both themes: they become custom properties of the style sheet.

Text reaches a contrast of 4.5:1 and lines 3:1 against what is behind them. Lines differ from one another by at least 24
(CIE 1976) in normal vision and in protanopia, deuteranopia and tritanopia as Machado et al. (2009) simulate them; found
by a search that began with Okabe and Ito's hues, whose lighter half is too light for white paper.
"""

from __future__ import annotations

from collections.abc import Mapping

LIGHT = {
    "page": "#f6f7f9",
    "card": "#ffffff",
    "text": "#1a1d21",
    "soft": "#555c66",
    "edge": "#c9ced6",
    "grid": "#e6e9ed",
    "shade": "#b7bec9",
    "link": "#0b57d0",
    "alarm": "#a8201a",
}
DARK = {
    "page": "#14171c",
    "card": "#1b1f26",
    "text": "#e8eaed",
    "soft": "#a9b0bb",
    "edge": "#434b57",
    "grid": "#2c323b",
    "shade": "#5a6472",
    "link": "#8ab4f8",
    "alarm": "#ff9b92",
}
LIGHT_LINES = ("#003587", "#d95700", "#16784d", "#c0579b", "#502900", "#1f90fb", "#1a1a1a")
DARK_LINES = ("#2ad5ff", "#e98d39", "#2c8a5b", "#ab599c", "#ffd212", "#8e82fa", "#f2f2f2")
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
    light, dark = _properties(LIGHT, LIGHT_LINES, "light"), _properties(DARK, DARK_LINES, "dark")
    runs = "".join(f".line-{number}{{--line:var(--line-{number})}}" for number in range(len(LIGHT_LINES)))
    dashes = "".join(f".dash-{number}{{stroke-dasharray:{dash or 'none'}}}" for number, dash in enumerate(DASHES))
    return (
        f":root{{{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}\n"
        f"{runs}\n{dashes}\n"
    )


def classes(number: int) -> str:
    """The classes of the number-th run's drawings."""
    return f"line-{number % len(LIGHT_LINES)} dash-{number % len(DASHES)}"


def _properties(colours: Mapping[str, str], lines: tuple[str, ...], scheme: str) -> str:
    named = {**colours, **{f"line-{number}": colour for number, colour in enumerate(lines)}}
    return f"color-scheme:{scheme};" + "".join(f"--{name}:{colour};" for name, colour in named.items())
