"""What models of their own are worth to clients: their values, as tables and figures read them, and the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core.tabular import table
from fedjax_sim.reporting import recorded
from fedjax_sim.reporting.recorded import MODELS, Recorded, drawable, in_words, less_is_better, measured
from fedjax_sim.reporting.table import cell, half_width, listed

APART = 0.22  # of two models' points of one client, whose neighbour is 1 away
TITLES = ("mean", "by examples", "worst", "spread", "worse than shared", "worse than tuned")
_FORMS = (*["{:.4f} ± {:.4f}"] * 4, *["{:.1%} ± {:.1%}"] * 2)
_LOSING = {"tuned": ("_losing", None), "personal": ("_losing", "_losing_to_tuned")}
_TO_COMPARE_WITH = (
    "fine-tuned FedAvg is what personal models are measured against, and no run here has it: add one of "
    "fedjax_sim.fedavg(...) with evaluate=fedjax_sim.per_client(task, tuned=fedjax_sim.personalise(task, "
    "client_optimizer, work))"
)


def personal_table(histories: Mapping[str, Recorded], metric: str = "accuracy", *, form: str = "text") -> str:
    """A row for every method and model: the clients' test values at the last evaluation.

    The models are those of ``evaluate=fjs.per_client(task, tuned=...)``: the shared one, the shared one after the
    clients fine-tuned it, and each client's own. The columns, of the clients' values v_i on their own test examples:

    * mean: (1/M) sum_i v_i over the M clients with test examples that have been visited, each counting the same;
    * by examples: the same weighted by their numbers of test examples;
    * worst: over the share of the clients that are served worst, as ``per_client(worst=0.1)`` says;
    * spread: the standard deviation of the v_i over the clients, divided by M;
    * worse than shared, worse than tuned: the share of the clients whose value is worse with this model.

    Of several seeds each is mean ± t s / sqrt(n), the half-width of Student's 95 % interval of the mean over n seeds,
    t its 0.975 quantile with n - 1 degrees of freedom and s the seeds' standard deviation (divided by n - 1). A seed
    whose model diverged leaves no interval: the cell says how many did. Fine-tuned FedAvg belongs into every such
    table; a note says so where it is missing, and where the numbers of local steps of the two sides differ.

    Args:
      histories: the methods' records by the name to print, of runs with ``evaluate=fjs.per_client(task)``.
      metric: ``"accuracy"``, ``"loss"``, or another metric or score of the task.
      form: ``"text"``, ``"markdown"``, ``"latex"``, ``"csv"`` or ``"html"``, as in :func:`results_table`.

    Returns:
      The table, and below it what its columns mean.

    Raises:
      ValueError: no histories, or none that compares models of clients by this metric; the message says what to add.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=8, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> sgd = fjs.optim.sgd(0.05)
      >>> tuned = fjs.personalise(task, sgd, fjs.local.epochs(1), fjs.local.shuffled(20))
      >>> runs = {
      ...     name: fjs.simulate(method, data, task=task, rounds=3, eval_every=3, batch_size=20,
      ...                        cohort=fjs.cohort.full(), work=fjs.local.epochs(1),
      ...                        evaluate=fjs.per_client(task, tuned=tuned))
      ...     for name, method in (("FedAvg", fjs.fedavg(client_optimizer=sgd)),
      ...                          ("Ditto", fjs.ditto(client_optimizer=sgd)))
      ... }
      >>> print(fjs.reporting.personal_table(runs).splitlines()[0])
      method  model         mean  by examples   worst  spread  worse than shared  worse than tuned
    """
    recorded.check_runs("personal_table: histories", histories)
    found = rows_of(histories, metric)
    if not found:
        others = dict.fromkeys(one for run in histories.values() for one in compared_by(run))
        fix = f"choose from {', '.join(map(repr, sorted(others)))}" if others else (
            "record them with evaluate=fedjax_sim.per_client(task, tuned=fedjax_sim.personalise(...)), on data with a "
            "test part"
        )  # fmt: skip
        raise ValueError(f"personal_table(metric={metric!r}): no run compares models of its clients by it: {fix}")
    names = [row.method for row in found]
    if form in ("text", "latex"):
        names = ["" if number and name == names[number - 1] else name for number, name in enumerate(names)]
    columns = [("method", names), ("model", [MODELS[row.model] for row in found])]
    cells = [cells_of(row) for row in found]
    columns += [(title, [row[number] for row in cells]) for number, title in enumerate(TITLES)]
    notes = [f"note: {note}" for note in notes_of(histories, metric)]
    return table(columns, form, names=2, notes=[*notes, *meaning(histories, metric)])


class Row(NamedTuple):
    """One model of one method."""

    method: str  # the run's name
    model: str  # of MODELS
    values: tuple[np.ndarray | None, ...]  # [seeds] for each of TITLES, NaN where the model diverged; None: no such


def rows_of(histories: Mapping[str, Recorded], metric: str) -> list[Row]:
    """What the table says of every method and model; nothing of runs that compare no models by this metric."""
    found = []
    for name, run in histories.items():
        for model in averaged(run, metric):
            start = f"{model}_{metric}"
            values = [last(run, f"{start}{end}") for end in ("", "_by_examples", "_worst")]
            values.append(_spread(str(name), run, model, metric))
            values += [None if end is None else last(run, start + end) for end in _LOSING.get(model, (None, None))]
            found.append(Row(str(name), model, tuple(values)))
    return found


def cells_of(row: Row) -> list[str]:
    """What is printed of a row: means and intervals over seeds."""
    return [cell(values, form, half_width) for values, form in zip(row.values, _FORMS, strict=True)]


def _spread(name: str, run: Recorded, model: str, metric: str) -> np.ndarray:
    """Standard deviation over the clients whom the means count, [seeds]; NaN where one's model diverged."""
    values = of_models(name, run, metric)[model]
    held = ~np.isnan(values)
    whole = held.any(axis=1) & (drawable(values) | ~held).all(axis=1)
    return np.array([row[of].std() if sound else np.nan for row, of, sound in zip(values, held, whole, strict=True)])


def notes_of(histories: Mapping[str, Recorded], metric: str) -> list[str]:
    """What to mind."""
    runs = {str(name): run for name, run in histories.items()}
    notes = []
    if not any(
        recorded.described(run, "algorithm", "name") == "algorithm.fedavg" and "tuned" in averaged(run, metric)
        for run in runs.values()
    ):
        notes.append(_TO_COMPARE_WITH)
    compared = {name: run for name, run in runs.items() if averaged(run, metric)}
    apart = [name for name in runs if name not in compared]
    if apart:
        notes.append(f"no models of clients are compared by {metric!r} in {listed(apart)}")
    steps = {name: both for name, run in runs.items() if (both := _steps(run)) and both[0] != both[1]}
    if steps:
        local, fine = next(iter(steps.values()))
        notes.append(f"fine-tuning takes other steps than a round of {listed(list(steps))}: {fine}; {local}")
    ends = {name: int(run.evaluated[-1]) for name, run in compared.items()}
    if len(set(ends.values())) > 1:
        notes.append(f"not after equally many rounds: {listed([f'{name} {end}' for name, end in ends.items()])}")
    worst = _worst(histories, metric)
    if len(set(worst.values())) > 1:
        said = listed([f"{name} {'unknown' if share is None else f'{share:.3g}'}" for name, share in worst.items()])
        notes.append(f"not the same share of the clients are the worst: {said}")
    missing = {name: count for name, run in compared.items() if (count := left_out(run, metric).mean()) > 0}
    for name, count in missing.items():
        notes.append(f"{count:.3g} clients of {name} were never visited, and are not in its numbers")
    everyone = [name for name, run in compared.items() if "client_visited" not in run.metrics]
    if missing and everyone:
        notes.append(f"the numbers of {listed(everyone)}, without models of the clients' own, are of all clients")
    return notes


def meaning(histories: Mapping[str, Recorded], metric: str) -> list[str]:
    """What the columns mean."""
    rows = rows_of(histories, metric)
    found = [values for row in rows for values in row.values if values is not None]
    counts = sorted({len(values) for values in found})
    seeds = " to ".join(map(str, sorted({counts[0], counts[-1]})))
    spans = "one seed, so no interval" if counts == [1] else f"mean ± half of the 95 % t-interval over {seeds} seeds"
    share, *others = dict.fromkeys(_worst(histories, metric).values())
    served = "those" if others or share is None else f"the {100 * share:.3g} % of them"
    return [
        f"{in_words(f'test_{metric}')} of each client on its own examples, at the last evaluation; {spans}",
        f"mean, spread (standard deviation): over the clients; worst: over {served} served worst; worse than: for this "
        "share of them",
    ]


def _worst(histories: Mapping[str, Recorded], metric: str) -> dict[str, float | None]:
    """The share of the clients that are the worst, by the run that compares models; None where it is not described."""
    compared = {str(name): run for name, run in histories.items() if averaged(run, metric)}
    found = {name: recorded.described(run, "run", "evaluate", "arguments", "worst") for name, run in compared.items()}
    return {name: float(share) if isinstance(share, (int, float)) else None for name, share in found.items()}


def _steps(run: Recorded) -> tuple[str, str] | None:
    """A round's local steps and those of fine-tuning, in words; None where there is no fine-tuning."""
    tuning = recorded.described(run, "run", "evaluate", "arguments", "tuned", "arguments")
    if tuning is None:
        return None
    local, tuned = (
        ", ".join(_words(of.get(one)) for one in ("work", "batches")) for of in (recorded.described(run, "run"), tuning)
    )
    return local, tuned


def _words(part: Any) -> str:
    """A described part as it would be called."""
    if not isinstance(part, Mapping) or "name" not in part:
        return "one of the user's"
    given = ", ".join(f"{name}={value}" for name, value in part["arguments"].items() if value is not None)
    return f"{part['name'].rpartition('.')[2]}({given})"


def compared_by(run: Recorded) -> list[str]:
    """The metrics by which a run compares models of its clients, accuracies and scores before losses."""
    ends = [name.removeprefix("shared_") for name in run.metrics if name.startswith("shared_")]
    found = [name for name in ends if f"shared_{name}_by_examples" in run.metrics and averaged(run, name)]
    return sorted(found, key=lambda name: (less_is_better(name), name != "accuracy", name))


def averaged(run: Recorded, metric: str) -> list[str]:
    """Which of :data:`MODELS` a run has means over the clients of; none unless it compares them."""
    found = [model for model in models_of(run, metric) if recorded.recorded_as(run, f"{model}_{metric}") in run.metrics]
    return found if "shared" in found and len(found) > 1 else []


def models_of(run: Recorded, metric: str) -> dict[str, str]:
    """The metric of every client for each of the models that a run compares; none where it compares none."""
    found = {model: f"test_client_{metric}" if model == "shared" else f"{model}_client_{metric}" for model in MODELS}
    found = {model: of for model, of in found.items() if recorded.recorded_as(run, of) in run.metrics}
    return found if "shared" in found and len(found) > 1 else {}


def last(run: Recorded, name: str) -> np.ndarray | None:
    """The values at the last evaluation, [seeds, ...], as floats; None where they were not recorded."""
    return measured(run, name)[:, -1].astype(float) if recorded.recorded_as(run, name) in run.metrics else None


def at_evaluation(name: str, run: Recorded, metric: str, round: int | None) -> np.ndarray:
    """The values [seeds, N] at one evaluation, of the run that is called ``name``; ``round`` None is the last."""
    values = measured(run, metric).astype(float)
    if values.ndim != 3 or recorded.recorded_as(run, metric) not in run.metrics:
        raise ValueError(
            f"{metric!r} of {name!r} has shape {values.shape}: a distribution needs a value for each client at every "
            "evaluation, for instance 'test_client_accuracy' of simulate(evaluate=fjs.per_client(task))"
        )
    return values[:, place_of(name, run, round)]


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
    """The values of one run's models, [seeds, N] by the model, as :func:`_of_visited`."""
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
    raw = np.asarray(run[recorded.recorded_as(run, f"test_client_{metric}")], dtype=float)
    if "client_visited" not in run.metrics:
        return np.zeros(len(raw), int)
    held = ~np.isnan(raw).all(axis=(0, 1))  # a diverged seed's are NaN too
    seen = held & np.asarray(run.metrics["client_visited"])[:, -1].astype(bool)
    return np.where(seen.any(axis=1), held.sum() - seen.sum(axis=1), 0)


def ends(values: np.ndarray) -> tuple[float, float]:
    """The least and the largest finite value, a little apart where they are the same."""
    finite = values[drawable(values)]
    if not finite.size:
        raise ValueError("distributions: there is not one finite value to draw")
    low, high = float(finite.min()), float(finite.max())
    room = 0.02 * (high - low) or 0.5
    return low - room, high + room


def shares(values: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Places x and, of each seed, the share of its clients with at most x, [seeds, places]."""
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
    return recorded.among_visited(run, values, place_of(name, run, round))
