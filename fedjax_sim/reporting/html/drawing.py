"""The colours of a page, and its curves as plain SVG, which it shows where no script runs.

The colours of both themes become custom properties of the style sheet. Text reaches a contrast of 4.5:1 and lines 3:1
against what is behind them. Lines differ from one another by at least 24 (CIE 1976) in normal vision and in protanopia,
deuteranopia and tritanopia as Machado et al. (2009) simulate them; found by a search that began with Okabe and Ito's
hues, whose lighter half is too light for white paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from fedjax_sim.reporting.figures import spans_a_decade
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

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 548, 12, 256
_MARKS = 6
_NARROWEST = 1e-290  # of an axis: less cannot be divided into ticks


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
    x_label: str  # below the horizontal axis
    curves: Sequence[Curve | None]  # one a run; None where it has none
    loss: bool = False  # whether the axis may be logarithmic, and stops a little above the start


def figure(drawing: Drawing) -> str:
    """The panel as a figure element."""
    present = [(number, curve) for number, curve in enumerate(drawing.curves) if curve is not None]
    curves = [curve for _, curve in present]
    y = np.concatenate([curve.y for curve in curves] or [np.empty(0)])
    log = drawing.loss and spans_a_decade(y[np.isfinite(y)])
    low, high = _range(curves, drawing.loss, log)
    ends = [
        float(x) + side * (0.5 if curve.shift is not None else 0.0)
        for curve in curves
        for x, side in ((curve.x[0], -1), (curve.lost or curve.x[-1], 0), (curve.x[-1], 1))
    ] or [0.0, 1.0]
    points = any(curve.shift is not None for curve in curves)
    left, right = min(ends), max(ends)
    if right - left < _NARROWEST:
        left, right = left - 0.5, right + 0.5
    across, up = _scale(left, right, _LEFT, _RIGHT), _scale(low, high, _BOTTOM, _TOP, log=log)
    parts = []
    for tick in _log_ticks(low, high) if log else _ticks(low, high, 5):
        place = float(up(np.array(tick)))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 7}" y="{place + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for tick in (tick for tick in _ticks(left, right, 6) if not points or tick == int(tick)):
        place = float(across(np.array(tick)))
        parts.append(f'<text class="tick" x="{place:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{tick:.4g}</text>')
    parts.append(f'<path class="edge" d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}"/>')
    parts.append(
        f'<text class="label" x="{(_LEFT + _RIGHT) // 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(drawing.x_label)}</text>"
    )
    for number, curve in present:
        if curve.low is None or curve.high is None:
            continue
        low_edge, high_edge = up(curve.low), up(curve.high)
        if curve.shift is not None:
            bars = zip(across(curve.x + curve.shift), low_edge, high_edge, strict=True)
            path = "".join(f"M{x:.1f} {a:.1f}V{b:.1f}" for x, a, b in bars)
            parts.append(f'<path class="bar {classes(number).split()[0]}" d="{path}"/>')
        else:
            area = _area(across(curve.x), low_edge, high_edge, curve.stepped)
            parts.append(f'<path class="band {classes(number).split()[0]}" d="{area}"/>')
    for number, curve in present:
        x, heights = across(curve.x + (curve.shift or 0.0)), up(curve.y)
        places = np.flatnonzero(np.isfinite(heights))
        if curve.shift is None:
            parts.append(f'<path class="curve {classes(number)}" d="{_path(x, heights, curve.stepped)}"/>')
            every = max(1, len(places) // _MARKS)
            places = places[(number * 3) % every :: every]
        for i in places:
            parts.append(_mark(number, "mark", MARKERS[number % len(MARKERS)], float(x[i]), float(heights[i])))
        if curve.lost is not None:
            parts.append(_mark(number, "lost", "M-4-4L4 4M-4 4L4-4", float(across(np.array(curve.lost))), _TOP))
    note = f'<p class="note">{escape(drawing.note)}</p>' if drawing.note else ""
    words = escape(f"{drawing.what} against {drawing.x_label}")
    return (
        f'<figure class="panel"><figcaption><h3>{escape(drawing.title)}</h3>{note}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{words}">{"".join(parts)}</svg></figure>'
    )


def _scale(
    low: float, high: float, start: float, end: float, *, log: bool = False
) -> Callable[[np.ndarray], np.ndarray]:
    """From values in [low, high] to pixels from start to end; what lies beyond is just outside of the panel."""
    bottom, top = (math.log10(low), math.log10(high)) if log else (low, high)
    nearest, farthest = sorted((start, end))

    def place(values: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            mapped = np.log10(np.where(values > 0, values, np.nan)) if log else values
        places = start + (mapped - bottom) / (top - bottom) * (end - start)
        return np.clip(places, nearest - 2, farthest + 2)

    return place


def swatch(number: int) -> str:
    """The line of the number-th run, as legends show it."""
    line = f'<path class="curve {classes(number)}" d="M1 6H33"/>'
    mark = _mark(number, "mark", MARKERS[number % len(MARKERS)], 17, 6)
    return f'<svg class="swatch" viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">{line}{mark}</svg>'


def _mark(number: int, kind: str, path: str, x: float, y: float) -> str:
    return f'<path class="{kind} {classes(number).split()[0]}" d="{path}" transform="translate({x:.1f} {y:.1f})"/>'


def _path(x: np.ndarray, y: np.ndarray, stepped: bool) -> str:
    """A line with gaps where a value is not finite; a point between gaps is a dot."""
    parts, pen = [], False
    finite = [*np.isfinite(y).tolist(), False]
    for number, (across, up) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        if finite[number]:
            if pen:
                parts.append(f"H{across:.1f}V{up:.1f}" if stepped else f"L{across:.1f} {up:.1f}")
            else:
                parts.append(f"M{across:.1f} {up:.1f}{'' if finite[number + 1] else 'h.01'}")
        pen = finite[number]
    return "".join(parts)


def _area(x: np.ndarray, low: np.ndarray, high: np.ndarray, stepped: bool) -> str:
    """A band, in as many pieces as gaps make of it."""
    if stepped:  # each value once more at the next place
        x, low, high = np.repeat(x, 2)[1:], np.repeat(low, 2)[:-1], np.repeat(high, 2)[:-1]
    finite = np.isfinite(low) & np.isfinite(high)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], finite, [False]]).astype(int)))
    parts = []
    for start, end in ends.reshape(-1, 2).tolist():
        there = [f"{a:.1f} {b:.1f}" for a, b in zip(x[start:end], high[start:end], strict=True)]
        back = [f"{a:.1f} {b:.1f}" for a, b in zip(x[start:end][::-1], low[start:end][::-1], strict=True)]
        parts.append(f"M{'L'.join(there + back)}Z")
    return "".join(parts)


def _range(curves: Sequence[Curve], loss: bool, log: bool) -> tuple[float, float]:
    """The ends of the vertical axis; of a loss that runs away, a little above the start."""
    lines = [line for curve in curves for line in (curve.y, curve.low, curve.high) if line is not None]
    values = np.concatenate(lines or [np.empty(0)])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not values.size:
        return (0.1, 1.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    start = max((abs(float(curve.y[0])) for curve in curves if np.isfinite(curve.y[0])), default=0.0)
    if loss and start > 0 and high > 100 * start:
        return (min(low, start) / 1.5, 10 * start) if log else (low - 0.1 * start, 2 * start)
    if log:
        return (low / 1.2, high * 1.2)
    space = 0.05 * (high - low) if high - low > _NARROWEST else max(0.1 * abs(low), 1e-6)
    return low - space, high + space


def _ticks(low: float, high: float, count: int) -> list[float]:
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [
        float(f"{number * step:.12g}")
        for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) < 4 else (1,)
    every = max(1, len(powers) // 6)
    ticks = [factor * 10.0**power for power in powers[::every] for factor in factors]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else _ticks(low, high, 4)
