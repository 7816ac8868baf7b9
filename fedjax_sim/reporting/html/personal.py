"""What models of their own are worth to clients, on a page: the rows of the personal table, and figures beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_sim.reporting import personal as own
from fedjax_sim.reporting.html import tables
from fedjax_sim.reporting.html.curves import Curve, few
from fedjax_sim.reporting.html.drawing import Drawing
from fedjax_sim.reporting.recorded import MODELS, Recorded, drawable, in_words

_MOST_CLIENTS = 150  # that are drawn one by one; of more the shares are drawn
_IN_TABLES = ("", "_by_examples", "_worst", "_losing", "_losing_to_tuned")
_ABOUT = (
    "What a model is worth to each client, on the client's own test examples: the shared model, the shared one after "
    "the client fine-tuned it, and the client's own. A row of the tables is one of these models{of}. Clients that a "
    "method with models of their own never visited are not counted."
)


class Personal(NamedTuple):
    """The part of a page on personal models."""

    about: str  # what is compared, and what a row is
    lines: Mapping[int, str]  # what is drawn, by the number of its line
    of_runs: bool  # whether that is the number of a run, else of a model of the one run that compares any
    drawings: Sequence[Drawing]
    tables: Sequence[str]
    notes: Sequence[str]


def personal(histories: Mapping[str, Recorded]) -> Personal | None:
    """Tables and figures of the runs that compare models of their clients; None where no run does."""
    runs = {name: run for name, run in histories.items() if own.compared_by(run)}
    if not runs:
        return None
    one, names = next(iter(runs)), list(histories)
    lines: dict[int, str] = {}
    drawings, found, notes = [], [], dict[str, None]()
    for metric in dict.fromkeys(metric for run in runs.values() for metric in own.compared_by(run)):
        here = {name: run for name, run in runs.items() if metric in own.compared_by(run)}
        rows = own.rows_of(here, metric)
        if len(runs) > 1:
            labels = [(names.index(row.method), f"{row.method}, {MODELS[row.model]}") for row in rows]
            chosen = dict(zip(map(names.index, here), own.of_methods(here, metric).items(), strict=True))
        else:
            labels = [(list(MODELS).index(row.model), MODELS[row.model]) for row in rows]
            models = own.of_models(one, here[one], metric)
            chosen = {list(MODELS).index(model): (MODELS[model], values) for model, values in models.items()}
        words = in_words(f"test_{metric}", here.values())
        caption = f"Models by {words}: {'; '.join(own.meaning(here, metric))}."
        found.append(tables.personal_table(caption, labels, rows))
        notes |= dict.fromkeys(own.notes_of(histories, metric))
        lines |= {number: label for number, (label, _) in chosen.items()}
        values = {number: values for number, (_, values) in chosen.items()}
        if len(runs) == 1 and values[0].shape[1] <= _MOST_CLIENTS:
            drawings += _client_by_client(one, here[one], metric, words)
        else:
            drawings += _shares(values, lines, words)
    which = " of one run" if len(runs) > 1 else f" of {one}" if len(histories) > 1 else ""
    return Personal(_ABOUT.format(of=which), lines, len(runs) > 1, drawings, found, list(notes))


def _shares(chosen: Mapping[int, np.ndarray], names: Mapping[int, str], words: str) -> list[Drawing]:
    """The share of the clients at or below a value, of values [seeds, N] by the number of a line; at most one."""
    if not any(drawable(values).any() for values in chosen.values()):
        return []
    both = own.ends(np.concatenate([values.ravel() for values in chosen.values()]))
    curves: list[Curve | None] = [None] * (max(chosen) + 1)
    note = "share of the clients at or below a value" + _of_seeds(chosen.values(), "bands")
    for number, values in chosen.items():
        sound = values[~np.isnan(values).all(axis=1)]
        if len(sound) < len(values):
            note += f"; {names[number]}: {len(values) - len(sound)} of {len(values)} seeds diverged"
        if len(sound):
            x, share = own.shares(sound, *both)
            kept = few(x)
            low, high = _band(share[:, kept])
            curves[number] = Curve(x[kept], share[:, kept].mean(axis=0), low, high, None, True)
    return [Drawing(words, "share of the clients", note, curves, words)]


def _client_by_client(name: str, run: Recorded, metric: str, words: str) -> list[Drawing]:
    """Points for every model, those of a client beside each other; at most one drawing."""
    if not np.logical_and.reduce([drawable(values) for values in own.of_models(name, run, metric).values()]).any():
        return []
    chosen, diverged, clients = own.in_order(name, run, metric)
    curves: list[Curve | None] = [None] * len(MODELS)
    for place, (model, values) in enumerate(chosen.items()):
        low, high = _band(values)
        x = np.arange(1.0, values.shape[1] + 1)
        shift = own.APART * (place - (len(chosen) - 1) / 2)
        number = list(MODELS).index(model)
        curves[number] = Curve(x, np.nanmean(values, axis=0), low, high, None, False, shift)
    note = f"every client on its own, in the order of their {words} with the shared model" + _of_seeds(
        chosen.values(), "bars"
    )
    note += f"; {diverged} of {len(values)} seeds diverged" if diverged else ""
    note += f"; clients left out, whose models diverged: {clients}" if clients else ""
    return [Drawing(words, words, note, curves, "clients")]


def _of_seeds(values: Iterable[np.ndarray], band: str) -> str:
    return f"; means over seeds, {band} from the lowest to the highest" if any(len(one) > 1 for one in values) else ""


def _band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """From the lowest to the highest seed of [seeds, n]; nothing of one seed."""
    return (np.nanmin(values, axis=0), np.nanmax(values, axis=0)) if len(values) > 1 else (None, None)


def told_by_tables(histories: Mapping[str, Recorded]) -> set[str]:
    """The metrics that stand in these tables for all runs that have them."""
    names = {
        f"{model}_{metric}{end}": metric
        for run in histories.values()
        for metric in own.compared_by(run)
        for model in MODELS
        for end in _IN_TABLES
    }
    return {
        name
        for name, metric in names.items()
        if all(metric in own.compared_by(run) for run in histories.values() if name in run.metrics)
    }
