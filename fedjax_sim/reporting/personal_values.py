"""The clients' values with the shared, the fine-tuned and their own models, as tables and figures read them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedjax_sim.reporting.recorded import (
    MODELS,
    Recorded,
    among_visited,
    drawable,
    less_is_better,
    measured,
    recorded_as,
)

APART = 0.22  # of two models' points of one client, whose neighbour is 1 away


def compared_by(run: Recorded) -> list[str]:
    """The metrics by which a run compares models of its clients, accuracies and scores before losses."""
    ends = [name.removeprefix("shared_") for name in run.metrics if name.startswith("shared_")]
    found = [name for name in ends if f"shared_{name}_by_examples" in run.metrics and averaged(run, name)]
    return sorted(found, key=lambda name: (less_is_better(name), name != "accuracy", name))


def averaged(run: Recorded, metric: str) -> list[str]:
    """Which of :data:`MODELS` a run has means over the clients of; none unless it compares them."""
    found = [model for model in models_of(run, metric) if recorded_as(run, f"{model}_{metric}") in run.metrics]
    return found if "shared" in found and len(found) > 1 else []


def models_of(run: Recorded, metric: str) -> dict[str, str]:
    """The metric of every client for each of the models that a run compares; none where it compares none."""
    found = {model: f"test_client_{metric}" if model == "shared" else f"{model}_client_{metric}" for model in MODELS}
    found = {model: of for model, of in found.items() if recorded_as(run, of) in run.metrics}
    return found if "shared" in found and len(found) > 1 else {}


def last(run: Recorded, name: str) -> np.ndarray | None:
    """The values at the last evaluation, [seeds, ...], as floats; None where they were not recorded."""
    return measured(run, name)[:, -1].astype(float) if recorded_as(run, name) in run.metrics else None


def at_evaluation(name: str, run: Recorded, metric: str, round: int | None) -> np.ndarray:
    """The values [seeds, N] at one evaluation, of the run that is called ``name``; ``round`` None is the last."""
    values = measured(run, metric).astype(float)
    if values.ndim != 3 or recorded_as(run, metric) not in run.metrics:
        raise ValueError(
            f"{metric!r} of {name!r} has shape {values.shape}: a distribution needs a value for each client at every "
            "evaluation, for instance 'test_client_accuracy' of simulate(evaluate=fjs.per_client(task))"
        )
    at: np.ndarray = values[:, place_of(name, run, round)]
    return at


def place_of(name: str, run: Recorded, round: int | None) -> int:
    """Which of its evaluations was after that round."""
    evaluated = np.asarray(run.evaluated).tolist()
    if round is not None and round not in evaluated:
        raise ValueError(f"round is {round}: {name!r} was evaluated after the rounds {evaluated}")
    return -1 if round is None else evaluated.index(round)


def of_methods(histories: Mapping[str, Recorded], metric: str, round: int | None = None) -> dict[str, np.ndarray]:
    """The values to compare methods by, [seeds, N] by the words for method and model.

    Of a method they are those of its personal models, of a method without them those of the fine-tuned one.
    """
    found = {}
    for name, run in histories.items():
        names = _names(name, run, metric)
        model = "personal" if "personal" in names else "tuned"
        found[f"{name}, {MODELS[model]}"] = _of_visited(name, run, names, model, round)
    return found


def of_models(name: str, run: Recorded, metric: str, round: int | None = None) -> dict[str, np.ndarray]:
    """The values of one run's models, [seeds, N] by the model.

    NaN for clients that do not count, infinitely bad where a client's model diverged.
    """
    names = _names(name, run, metric)
    return {model: _of_visited(name, run, names, model, round) for model in names}


def in_order(name: str, run: Recorded, metric: str, round: int | None = None) -> tuple[dict[str, np.ndarray], int, int]:
    """One run's models client by client: values [seeds, M], in the order of those with the shared model.

    That order is of means over seeds. NaN where a seed does not count a client, or has no finite value for one of its
    models. Beside the values: how many seeds diverged, and how many clients are missing in a seed since a model of
    theirs diverged.
    """
    chosen = of_models(name, run, metric, round)
    sound = np.logical_and.reduce([drawable(values) for values in chosen.values()])  # the same seeds of all models
    known, some = ~np.isnan(chosen["shared"]), sound.any(axis=0)
    if not some.any():
        raise ValueError("personal_models: there is no client with a finite value of every model to draw")
    seeds, clients = int((~known.any(axis=1)).sum()), int((known & ~sound).any(axis=0).sum())
    chosen = {model: np.where(sound, values, np.nan)[:, some] for model, values in chosen.items()}
    order = np.argsort(np.nanmean(chosen["shared"], axis=0), kind="stable")
    return {model: values[:, order] for model, values in chosen.items()}, seeds, clients


def left_out(run: Recorded, metric: str) -> np.ndarray:
    """How many clients no number for all clients counts at the last evaluation since they were never visited, [seeds].

    That is none of a seed in which nobody was: there all count.
    """
    raw = np.asarray(run[recorded_as(run, f"test_client_{metric}")], dtype=float)
    if "client_visited" not in run.metrics:
        return np.zeros(len(raw), int)
    held = ~np.isnan(raw).all(axis=(0, 1))  # a diverged seed's are NaN too
    seen = held & np.asarray(run.metrics["client_visited"])[:, -1].astype(bool)
    found: np.ndarray = np.where(seen.any(axis=1), held.sum() - seen.sum(axis=1), 0)
    return found


def ends(values: np.ndarray) -> tuple[float, float]:
    """The least and the largest finite value, a little apart where they are the same."""
    finite = values[drawable(values)]
    if not finite.size:
        raise ValueError("distributions: there is not one finite value to draw")
    low, high = float(finite.min()), float(finite.max())
    room = 0.02 * (high - low) or 0.5
    return low - room, high + room


def shares(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Places x and, of each seed, the share of its clients with at most x, [seeds, places].

    Infinite values count as clients beyond the right end.
    """
    x = np.concatenate([[low], np.unique(values[drawable(values)]), [high]])
    held = [np.sort(row[~np.isnan(row)]) for row in values]
    return x, np.stack([np.searchsorted(row, x, side="right") / max(row.size, 1) for row in held])


def _names(name: str, run: Recorded, metric: str) -> dict[str, str]:
    found = models_of(run, metric)
    if not found:
        raise ValueError(
            f"personal_models(metric={metric!r}): {name!r} has no values of its clients' fine-tuned or personal models "
            "by it: record them with evaluate=fedjax_sim.per_client(task, tuned=fedjax_sim.personalise(...)), on data "
            "with a test part"
        )
    return found


def _of_visited(name: str, run: Recorded, names: Mapping[str, str], model: str, round: int | None) -> np.ndarray:
    """Values [seeds, N] with a model, NaN for clients that do not count, infinitely bad where a client's diverged."""
    values, shared = (at_evaluation(name, run, names[one], round) for one in (model, "shared"))
    worst = np.inf if less_is_better(names[model]) else -np.inf
    values = np.where(np.isnan(shared), np.nan, np.where(np.isnan(values), worst, values))
    return among_visited(run, values, place_of(name, run, round))
