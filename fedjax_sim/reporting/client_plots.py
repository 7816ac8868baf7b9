"""How a metric is distributed over the clients, and what each gains; needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.reporting.containers import check_runs
from fedjax_sim.reporting.plots import LEGEND, check_matplotlib, line_style, plain
from fedjax_sim.reporting.recorded import Recorded, drawable, in_words, measured, recorded_as
from fedjax_sim.reporting.seed_bands import band_words


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
        (clients without examples) are left out.
      ax: matplotlib axes to draw on; None makes a figure.
      round: the evaluation after that many rounds; None for the last.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
      TypeError: another container than ``{name: history}``.
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
    check_matplotlib()
    check_runs("distributions: histories", histories)
    chosen = {name: _at(name, run, metric, round) for name, run in histories.items()}
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(6, 4), layout="constrained")
    ends = _ends(np.concatenate([values.ravel() for values in chosen.values()]))
    for number, (name, values) in enumerate(chosen.items()):
        sound = values[~np.isnan(values).all(axis=1)]
        lost = len(values) - len(sound)
        label = f"{name} ({lost} of {len(values)} seeds diverged)" if lost else name
        style = line_style(number)
        if lost == len(values):
            ax.plot([], [], label=f"{name} (diverged)", **style)
            continue
        x, shares = _shares(sound, *ends)
        ax.plot(x, shares.mean(axis=0), drawstyle="steps-post", label=label, **style)
        if len(sound) > 1:
            band = {"color": style["color"], "alpha": 0.15, "linewidth": 0, "step": "post"}
            ax.fill_between(x, shares.min(axis=0), shares.max(axis=0), **band)
    ax.set_xlim(*ends)
    ax.set_ylim(0.0, 1.0)
    ax.set_xlabel(in_words(metric, histories.values()))
    ax.set_ylabel("share of clients at or below")
    ax.legend(loc="best", title=band_words(histories.values()), **LEGEND)
    plain(ax)
    return ax


def gains(
    history: Recorded,
    metric: str = "personal_client_accuracy_gain",
    ax: Any = None,
    *,
    round: int | None = None,
    seed: int = 0,
) -> Any:
    """Draws how much better every client is served by its own model, the clients in the order of their gain.

    Args:
      history: a record with ``evaluate=fjs.per_client(task)`` of a method with personal models, or with
        ``fjs.per_client(task, tuned=...)``.
      metric: with a gain for each client: ``"tuned_client_accuracy_gain"``, ``"personal_client_loss_gain_over_tuned"``.
        Clients without test examples are left out, and clients that were never visited are pale.
      ax: matplotlib axes to draw on; None makes a figure.
      round: the evaluation after that many rounds; None for the last.
      seed: the position of the seed to draw.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is not installed.
      ValueError: a metric of another shape, no evaluation after that round, no such seed, or nothing to draw.
    """
    check_matplotlib()
    values = _at("history", history, metric, round)
    if not 0 <= seed < len(values):
        raise ValueError(f"gains(seed={seed}): positions of seeds are 0 to {len(values) - 1}")
    own = values[seed]
    visited = np.ones(own.shape, bool)
    if metric.startswith("personal") and "client_visited" in history.metrics:
        visited = _at("history", history, "client_visited", round)[seed] > 0
    shown = np.flatnonzero(drawable(own))
    if not shown.size:
        raise ValueError("gains: there is not one finite value to draw")
    shown = shown[np.argsort(own[shown], kind="stable")]
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(6, 4), layout="constrained")
    colours = [line_style(0 if own[one] >= 0 else 1)["color"] for one in shown]
    bars = ax.bar(np.arange(1, len(shown) + 1), own[shown], color=colours)
    for bar, one in zip(bars, shown, strict=True):
        bar.set_alpha(1.0 if visited[one] else 0.3)
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("clients, by their gain")
    ax.set_ylabel(in_words(metric, [history]))
    plain(ax)
    return ax


def _at(name: str, run: Recorded, metric: str, round: int | None) -> np.ndarray:
    """The values [seeds, N] at one evaluation."""
    values = measured(run, metric).astype(float)
    if values.ndim != 3 or recorded_as(run, metric) not in run.metrics:
        raise ValueError(
            f"{metric!r} of {name!r} has shape {values.shape}: a distribution needs a value for each client at every "
            "evaluation, for instance 'test_client_accuracy' of simulate(evaluate=fjs.per_client(task))"
        )
    evaluated = np.asarray(run.evaluated).tolist()
    if round is not None and round not in evaluated:
        raise ValueError(f"round is {round}: {name!r} was evaluated after the rounds {evaluated}")
    at: np.ndarray = values[:, -1 if round is None else evaluated.index(round)]
    return at


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The least and the largest finite value, a little apart where they are the same."""
    finite = values[drawable(values)]
    if not finite.size:
        raise ValueError("distributions: there is not one finite value to draw")
    low, high = float(finite.min()), float(finite.max())
    room = 0.02 * (high - low) or 0.5
    return low - room, high + room


def _shares(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Places x and, of each seed, the share of its clients with at most x, [seeds, places].

    Infinite values count as clients beyond the right end.
    """
    x = np.concatenate([[low], np.unique(values[drawable(values)]), [high]])
    held = [np.sort(row[~np.isnan(row)]) for row in values]
    return x, np.stack([np.searchsorted(row, x, side="right") / max(row.size, 1) for row in held])
