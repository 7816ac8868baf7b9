"""Distributions over clients: of a metric, of what is recorded of every round; they need matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.reporting.containers import check_runs
from fedjax_sim.reporting.figures import whole_numbers
from fedjax_sim.reporting.plots import COLOURS, LEGEND, axes_or_new, band_words, line_style, mean_and_band, plain
from fedjax_sim.reporting.recorded import Recorded, drawable, in_words, measured, recorded_as, rounds_of


def distributions(
    histories: Mapping[str, Recorded],
    metric: str | Mapping[str, str] = "test_client_accuracy",
    ax: Any = None,
    *,
    round: int | None = None,
) -> Any:
    """Draws the share of the clients whose value is at most x, one line per name.

    Lines are means over seeds, bands run from the lowest to the highest share of a seed. The further right (of losses:
    left) a line, the better; the steeper, the more alike the clients are served. Seeds whose model had diverged are
    left out, and the legend says how many.

    Args:
      histories: records by name.
      metric: with a value for each client, [seeds, E, N], as ``evaluate=fjs.per_client(task)`` records them; or one by
        name, ``{"FedAvg, fine-tuned": "tuned_client_accuracy", "Ditto": "personal_client_accuracy"}``, to compare
        models of different kinds. NaN (clients without examples) are left out.
      ax: matplotlib axes to draw on; None makes a figure.
      round: the evaluation after that many rounds; None for the last.

    Returns:
      The axes.

    Raises:
      ValueError: no histories, a metric of another shape or for other names, or no evaluation after that round.

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
    ax = axes_or_new(ax, 6, 4)
    if isinstance(metric, str):
        metric = dict.fromkeys(histories, metric)
    if metric.keys() != histories.keys():
        raise ValueError(
            f"distributions: metric has one for {', '.join(map(repr, metric))}, and the histories are "
            f"{', '.join(map(repr, histories))}: give one metric for all, or one for each"
        )
    chosen = {name: _at(name, run, metric[name], round) for name, run in histories.items()}
    ends = _ends(np.concatenate([values.ravel() for values in chosen.values()]))
    for number, (name, values) in enumerate(chosen.items()):
        sound = values[~np.isnan(values).all(axis=1)]
        lost, style = len(values) - len(sound), line_style(number)
        if lost == len(values):
            ax.plot([], [], label=f"{name} (diverged)", **style)
            continue
        label = f"{name} ({lost} of {len(values)} seeds diverged)" if lost else name
        mean_and_band(ax, *_shares(sound, *ends), style, "range", stepped=True, label=label)
    ax.legend(loc="best", title=band_words(histories.values()), **LEGEND)
    kinds = list(dict.fromkeys(metric.values()))
    # Several kinds differ in their first word alone: the lines say which they are.
    what = kinds[0] if len(kinds) == 1 else f"test_{kinds[0].partition('_')[2]}"
    words = {"xlabel": in_words(what, histories.values()), "ylabel": "share of clients at or below"}
    plain(ax, xlim=ends, ylim=(0.0, 1.0), **words)
    return ax


# By kind of model: its client's values, words, mark.
_MODELS = {
    "shared": ("test_client_", "shared", "o"),
    "tuned": ("tuned_client_", "shared, fine-tuned", "^"),
    "personal": ("personal_client_", "its own", "s"),
}


def client_models(history: Recorded, metric: str = "accuracy", ax: Any = None, *, round: int | None = None) -> Any:
    """Draws what the shared model, the shared one after fine-tuning and its own are worth to every client.

    The clients in the order of what the shared model is worth to them. Points are means over seeds, lines go from the
    lowest to the highest seed.

    Args:
      history: a record with ``evaluate=fjs.per_client(task, tuned=...)``, of a method with personal models or not.
      metric: of the task: ``"accuracy"``, ``"loss"``. Clients without test examples are left out; a client's own model
        is pale where no seed had visited it.
      ax: matplotlib axes to draw on; None makes a figure.
      round: the evaluation after that many rounds; None for the last.

    Returns:
      The axes.

    Raises:
      ValueError: no values of clients for this metric, no evaluation after that round, or nothing to draw.
    """
    kinds = {kind: about for kind, about in _MODELS.items() if f"{about[0]}{metric}" in history.metrics}
    if "shared" not in kinds:
        raise ValueError(
            f"client_models(metric={metric!r}): nothing called 'test_client_{metric}' was recorded: run with "
            "evaluate=fjs.per_client(task, tuned=fjs.personalise(...))"
        )
    ax = axes_or_new(ax, 7, 4)
    values = {kind: _at("history", history, f"{about[0]}{metric}", round) for kind, about in kinds.items()}
    values = {kind: value[~np.isnan(value).all(axis=1)] for kind, value in values.items()}  # seeds that diverged
    if not all(drawable(value).any() for value in values.values()):
        raise ValueError("client_models: there is not one finite value to draw")
    shared = values["shared"].mean(axis=0)
    shown = np.flatnonzero(drawable(shared))
    shown = shown[np.argsort(shared[shown], kind="stable")]
    visited: np.ndarray = np.ones(shared.shape, bool)
    if "client_visited" in history.metrics:
        visited = np.any(_at("history", history, "client_visited", round) > 0, axis=0)
    room = 0.22 * (np.arange(len(kinds)) - (len(kinds) - 1) / 2)  # beside each other
    for number, (kind, (_, words, mark)) in enumerate(kinds.items()):
        of, colour = values[kind][:, shown], COLOURS[number]
        x = np.arange(1, len(shown) + 1) + room[number]
        pale = np.where(visited[shown] | (kind != "personal"), 1.0, 0.3)
        ax.vlines(x, of.min(axis=0), of.max(axis=0), colors=colour, alpha=pale, linewidth=1)
        ax.scatter(x, of.mean(axis=0), s=22, marker=mark, color=colour, alpha=pale, linewidth=0)
        ax.plot([], [], linestyle="", marker=mark, markersize=5, color=colour, label=words)
    ax.xaxis.get_major_locator().set_params(integer=True)
    plain(ax, xlabel="clients, by the shared model", ylabel=in_words(f"test_{metric}", [history]))
    ax.legend(loc="best", title=band_words([history]), **LEGEND)
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
      ValueError: a metric of another shape, no evaluation after that round, no such seed, or nothing to draw.
    """
    ax = axes_or_new(ax, 6, 4)
    values = _at("history", history, metric, round)
    if not 0 <= seed < len(values):
        raise ValueError(f"gains(seed={seed}): positions of seeds are 0 to {len(values) - 1}")
    own = values[seed]
    visited = np.ones(own.shape, bool)
    if metric.startswith("personal") and "client_visited" in history.metrics:
        visited = _at("history", history, "client_visited", round)[seed] > 0
    order = np.argsort(own, kind="stable")
    shown = order[drawable(own[order])]
    if not shown.size:
        raise ValueError("gains: there is not one finite value to draw")
    colours = [COLOURS[0 if own[one] >= 0 else 1] for one in shown]
    for bar, one in zip(ax.bar(np.arange(1, len(shown) + 1), own[shown], color=colours), shown, strict=True):
        bar.set_alpha(1.0 if visited[one] else 0.3)
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.xaxis.get_major_locator().set_params(integer=True)
    plain(ax, xlabel="clients, by their gain", ylabel=in_words(metric, [history]))
    return ax


def bands(run: Recorded, name: str, *, seed: int = 0, ax: Any = None) -> Any:
    """Draws quantiles of every round [seeds, R, Q]: the middle one as a line, each pair around it as a band."""
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
    """Draws the matrix of one round, of [seeds, R, S, S]; cosines (all in [-1, 1]) on a fixed scale with white at 0."""
    matrices = _of_seed(run, name, seed)
    at = len(matrices) if round is None else round
    if not 1 <= at <= len(matrices):
        raise IndexError(f"heat_map(round={round}): rounds are 1 to {len(matrices)}")
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
    values: np.ndarray = np.asarray(run[name], dtype=float)
    if not 0 <= seed < len(values):
        raise IndexError(f"{name!r} has the seeds at positions 0 to {len(values) - 1}, not {seed}")
    one: np.ndarray = values[seed]
    return one


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
