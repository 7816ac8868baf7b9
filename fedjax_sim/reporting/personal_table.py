"""What models of their own are worth to clients, as a table: shared, fine-tuned and personal, method by method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.core.tabular import table
from fedjax_sim.reporting.containers import check_runs
from fedjax_sim.reporting.paired import half_width
from fedjax_sim.reporting.personal_values import averaged, compared_by, last, left_out, of_models
from fedjax_sim.reporting.recorded import MODELS, Recorded, described, drawable, in_words
from fedjax_sim.reporting.table import cell, listed

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
    check_runs("personal_table: histories", histories)
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
        described(run, "algorithm", "name") == "algorithm.fedavg" and "tuned" in averaged(run, metric)
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
    found = {name: described(run, "run", "evaluate", "arguments", "worst") for name, run in compared.items()}
    return {name: float(share) if isinstance(share, (int, float)) else None for name, share in found.items()}


def _steps(run: Recorded) -> tuple[str, str] | None:
    """A round's local steps and those of fine-tuning, in words; None where there is no fine-tuning."""
    tuning = described(run, "run", "evaluate", "arguments", "tuned", "arguments")
    if tuning is None:
        return None
    local, tuned = (
        ", ".join(_words(of.get(one)) for one in ("work", "batches")) for of in (described(run, "run"), tuning)
    )
    return local, tuned


def _words(part: Any) -> str:
    """A described part as it would be called."""
    if not isinstance(part, Mapping) or "name" not in part:
        return "one of the user's"
    given = ", ".join(f"{name}={value}" for name, value in part["arguments"].items() if value is not None)
    return f"{part['name'].rpartition('.')[2]}({given})"
