"""Distributions over clients: of a metric, of what is recorded of every round; they need matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.reporting import recorded
from fedjax_sim.reporting.figures import whole_numbers
from fedjax_sim.reporting.personal import APART, at_evaluation, ends, in_order, of_methods, place_of, shares
from fedjax_sim.reporting.plots import COLOURS, LEGEND, axes_or_new, band_words, line_style, mean_and_band, plain
from fedjax_sim.reporting.recorded import MODELS, Recorded, check_runs, counted, in_words, rounds_of


def distributions(
    histories: Mapping[str, Recorded], metric: str = "test_client_accuracy", ax: Any = None, *, round: int | None = None
) -> Any:
    """Draws the share of the clients whose value is at most x, one line per name.

    Lines are means over seeds, bands run from the lowest to the highest share of a seed. The further right (of losses:
    left) a line, the better; the steeper, the more alike the clients are served. Seeds whose model had diverged are
    left out, and the legend says how many.

    Args:
      histories: records by name.
      metric: with a value for each client, [seeds, E, N], as ``evaluate=fjs.per_client(task)`` records them. NaN
        (clients without examples) are left out, of fine-tuned and personal models also clients that were never visited.
      ax: matplotlib axes to draw on; None makes a figure.
      round: the evaluation after that many rounds; None for the last.

    Returns:
      The axes.

    Raises:
      ValueError: no histories, a metric of another shape, or no evaluation after that round.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=8, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> history = fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), data, task=task, rounds=2,
      ...                        batch_size=10, cohort=fjs.cohort.full(), work=fjs.local.epochs(1),
      ...                        evaluate=fjs.per_client(task))
      >>> ax = fjs.reporting.distributions({"FedAvg": history}, "test_client_accuracy")
      >>> ax.get_ylabel()
      'share of clients at or below'
    """
    check_runs("distributions: histories", histories)
    chosen = {
        name: counted(run, metric, at_evaluation(name, run, metric, round), place_of(name, run, round))
        for name, run in histories.items()
    }
    return _draw_shares(ax, chosen, in_words(metric, histories.values()), histories)


def personal_models(
    histories: Mapping[str, Recorded], metric: str = "accuracy", ax: Any = None, *, round: int | None = None
) -> Any:
    """Draws what the shared, the fine-tuned and the personal models are worth to every client on its own test examples.

    Of one method: points for each model, the clients in the order of their value with the shared one (the mean over
    seeds), so that what is beside each other is of the same client. Of several methods: the share of the clients
    whose value is at most x, as :func:`distributions` draws it, of the personal models of each method and of the
    fine-tuned model of methods without personal ones, FedAvg say. Points and lines are means over seeds, bars and bands
    go from the lowest to the highest.

    As in :func:`personal_table` clients that were never visited are left out in the seeds in which they were not, and
    so are clients without test examples. Seeds whose shared model had diverged are left out, and the legend says how
    many. A client whose own model diverged is left out of the figure of one method, which the legend says; among
    several methods it counts as worse than every value.

    Args:
      histories: the methods' records by the name to print, of runs with ``evaluate=fjs.per_client(task, tuned=...)``.
      metric: ``"accuracy"``, ``"loss"``, or another metric or score of the task.
      ax: matplotlib axes to draw on; None makes a figure.
      round: the evaluation after that many rounds; None for the last.

    Returns:
      The axes.

    Raises:
      ValueError: no histories, one without fine-tuned or personal models' values by this metric, no evaluation after
        that round, or nothing to draw.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=8, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> history = fjs.simulate(fjs.ditto(client_optimizer=fjs.optim.sgd(0.02)), data, task=task, rounds=2,
      ...                        batch_size=10, cohort=fjs.cohort.full(), work=fjs.local.epochs(1),
      ...                        evaluate=fjs.per_client(task))
      >>> fjs.reporting.personal_models({"Ditto": history}).get_xlabel()
      'clients of Ditto, by their test accuracy with the shared model'
    """
    check_runs("personal_models: histories", histories)
    words = in_words(f"test_{metric}", histories.values())
    if len(histories) > 1:
        return _draw_shares(ax, of_methods(histories, metric, round), words, histories)
    ((name, run),) = histories.items()
    chosen, diverged, clients = in_order(name, run, metric, round)
    ax = axes_or_new(ax, 6, 4)
    for number, (model, held) in enumerate(chosen.items()):
        places = np.arange(1, held.shape[1] + 1) + APART * (number - (len(chosen) - 1) / 2)
        if len(held) > 1:
            ax.vlines(places, np.nanmin(held, axis=0), np.nanmax(held, axis=0), colors=COLOURS[number], linewidth=1)
        mark = {"linestyle": "", "marker": "o^s"[number], "markersize": 5}
        ax.plot(places, np.nanmean(held, axis=0), color=COLOURS[number], label=MODELS[model], **mark)
    title = [band_words([run]), diverged and f"{diverged} of {len(held)} seeds diverged"]
    title.append(clients and f"clients left out, whose models diverged: {clients}")
    ax.legend(loc="best", title="\n".join(str(line) for line in title if line) or None, **LEGEND)
    whole_numbers(ax.xaxis)
    plain(ax, xlabel=f"clients of {name}, by their {words} with the shared model", ylabel=words)
    return ax


def bands(run: Recorded, name: str, *, seed: int = 0, ax: Any = None) -> Any:
    """Draws quantiles of every round [seeds, R, Q]: the middle one as a line, each pair around it as a band.

    A seed that was stopped early holds its last ones.
    """
    levels = _of_seed(run, name, seed).T
    ax = axes_or_new(ax, 7, 4)
    rounds, pairs = rounds_of(run, name), len(levels) // 2
    five = ["range", "middle half"]
    for i in range(pairs):
        shade = 0.12 + 0.2 * i / max(pairs - 1, 1)
        label = five[i] if len(levels) == 5 else f"levels {i + 1} to {len(levels) - i}"
        ax.fill_between(rounds, levels[i], levels[-1 - i], color=COLOURS[0], alpha=shade, linewidth=0, label=label)
    if len(levels) % 2:
        ax.plot(rounds, levels[pairs], color=COLOURS[0], linewidth=1.8, label="median")
    whole_numbers(ax.xaxis)
    ax.legend(loc="best", **LEGEND)
    plain(ax, xlabel="rounds", ylabel=in_words(name))
    return ax


def heat_map(run: Recorded, name: str, *, round: int | None = None, seed: int = 0, ax: Any = None) -> Any:
    """Draws the matrix of one round, of [seeds, R, S, S]; cosines (all in [-1, 1]) on a fixed scale with white at 0.

    Without a ``round`` it is the last one; of a seed that was stopped early, the last before that.
    """
    matrices = _of_seed(run, name, seed)
    stop = getattr(run, "stops", {}).get(getattr(run, "seeds", range(seed + 1))[seed])
    last = len(matrices) if stop is None else min(len(matrices), stop.round)
    at = last if round is None else round
    if not 1 <= at <= last:
        raise IndexError(f"heat_map(round={round}): rounds are 1 to {last}")
    ax = axes_or_new(ax, 5.2, 4.4)
    largest = float(np.nanmax(np.abs(matrices[at - 1]), initial=0.0))
    limit = 1.0 if largest <= 1.001 else largest
    image = ax.imshow(matrices[at - 1], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    for axis in (ax.xaxis, ax.yaxis):
        whole_numbers(axis)
    ax.set(xlabel="client of the cohort", ylabel="client of the cohort")
    ax.set_title(f"round {at}", fontsize="medium")
    ax.figure.colorbar(image, ax=ax, label=in_words(name.removesuffix("_matrix")))
    return ax


def _of_seed(run: Recorded, name: str, seed: int) -> np.ndarray:
    values = recorded.held(run, name)[0].astype(float)
    if not 0 <= seed < len(values):
        raise IndexError(f"{name!r} has the seeds at positions 0 to {len(values) - 1}, not {seed}")
    return np.asarray(values[seed])


def _draw_shares(ax: Any, chosen: Mapping[str, np.ndarray], words: str, histories: Mapping[str, Recorded]) -> Any:
    """The share of the clients at or below x, of values [seeds, N] by the name to print."""
    both = ends(np.concatenate([values.ravel() for values in chosen.values()]))
    ax = axes_or_new(ax, 6, 4)
    for number, (name, values) in enumerate(chosen.items()):
        sound = values[~np.isnan(values).all(axis=1)]
        lost, style = len(values) - len(sound), line_style(number)
        if lost == len(values):
            ax.plot([], [], label=f"{name} (diverged)", **style)
            continue
        label = f"{name} ({lost} of {len(values)} seeds diverged)" if lost else name
        mean_and_band(ax, *shares(sound, *both), style, "range", stepped=True, label=label)
    ax.legend(loc="best", title=band_words(histories.values()), **LEGEND)
    plain(ax, xlim=both, ylim=(0.0, 1.0), xlabel=words, ylabel="share of clients at or below")
    return ax
