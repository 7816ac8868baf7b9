"""The table of shared, fine-tuned and personal models: numbers as recorded, notes on what is missing."""

import dataclasses

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.reporting import personal_table
from fedjax_sim.reporting.recorded import measured
from fedjax_sim.reporting.table import half_width
from tests.reporting.test_reporting import Run

WORK, BATCHES = {"name": "work.steps", "arguments": {"num_steps": 5}}, {"name": "batches.full_batch", "arguments": {}}


@dataclasses.dataclass
class Described(Run):
    description: dict = dataclasses.field(default_factory=dict)


def run(seeds=3, models=("shared", "tuned", "personal"), method="ditto", *, batches=BATCHES, **more):
    """Two evaluations of four clients, the last of whom has no test examples; the first is not to be read."""
    rng = np.random.default_rng(7)
    metrics = {"loss": np.ones((seeds, 2))}
    for model in models:
        of_clients = rng.random((seeds, 2, 4))
        of_clients[..., 3] = np.nan
        metrics["test_client_accuracy" if model == "shared" else f"{model}_client_accuracy"] = of_clients
        for end in ("", "_by_examples", "_worst", "_losing", "_losing_to_tuned"):
            if (model, end) != ("tuned", "_losing_to_tuned") and not (model == "shared" and "losing" in end):
                metrics[f"{model}_accuracy{end}"] = rng.random((seeds, 2))
    tuned = {"arguments": {"tuned": {"arguments": {"work": WORK, "batches": BATCHES}}}}
    about = {"algorithm": {"name": f"algorithm.{method}"}, "run": {"work": WORK, "batches": batches, "evaluate": tuned}}
    return Described(np.array([0, 10]), metrics | more, description=about)


def cells(table, row):
    return table.splitlines()[2 + row].split("  ")


def test_its_numbers_are_those_of_the_last_evaluation():
    ditto = run()
    table = personal_table({"FedAvg": run(models=("shared", "tuned"), method="fedavg"), "Ditto": ditto})
    titles, found = table.splitlines()[0], [cell.strip() for cell in cells(table, 4) if cell.strip()]
    assert " ".join(titles.split()) == "method model mean by examples worst spread worse than shared worse than tuned"
    rows = [line.split()[0] for line in table.splitlines()[2:7]]
    assert rows == ["FedAvg", "fine-tuned", "Ditto", "fine-tuned", "personal"]
    spread = np.nanstd(ditto["personal_client_accuracy"][:, 1], axis=1)
    shares = ("_losing", "_losing_to_tuned")
    values = [ditto[f"personal_accuracy{end}"][:, 1] for end in ("", "_by_examples", "_worst")] + [spread]
    expected = [f"{one.mean():.4f} ± {half_width(one):.4f}" for one in values]
    expected += [
        f"{(one := ditto[f'personal_accuracy{end}'][:, 1]).mean():.1%} ± {half_width(one):.1%}" for end in shares
    ]
    assert found == ["personal", *expected]
    assert "note" not in table
    assert "95 % t-interval over 3 seeds" in table


def test_the_interval_is_students():
    """t_{0.975} of 4 degrees of freedom is 2.776445, of 1 12.7062 (any table of the distribution)."""
    values = np.array([1.0, 2.0, 4.0, 4.0, 9.0])
    assert half_width(values) == pytest.approx(2.776445105 * values.std(ddof=1) / 5**0.5, rel=1e-8)
    assert half_width(np.array([0.0, 2.0])) == pytest.approx(12.70620474, rel=1e-8)


def test_clients_never_visited_are_in_no_number():
    visited = np.array([[[0, 0, 0, 0], [1, 1, 0, 1]]], bool)
    one = run(1, client_visited=visited, unvisited=np.array([[3, 1]]))
    spread = cells(personal_table({"Ditto": one}), 2)
    assert f"{one['personal_client_accuracy'][0, 1, :2].std():.4f}" in [cell.strip() for cell in spread]
    table = personal_table({"Ditto": one})
    assert "note: 1 clients of Ditto were never visited, and are not in its numbers" in table
    assert "one seed, so no interval" in table
    assert " ± " not in table


def test_zero_has_no_sign():
    one = run(1, shared_accuracy_worst=np.array([[0.5, -0.0]]))
    assert [cell.strip() for cell in cells(personal_table({"Ditto": one}), 0) if cell.strip()][4] == "0.0000"


def test_what_is_missing_is_said():
    table = personal_table({"Ditto": run(), "plain": run(models=())})
    assert "note: fine-tuned FedAvg is what personal models are measured against, and no run here has it" in table
    assert "note: no models of clients are compared by 'accuracy' in plain" in table
    other = {"name": "batches.shuffled", "arguments": {"batch_size": 20, "seed": None}}
    unlike = personal_table({"Ditto": run(batches=other)})
    both = "steps(num_steps=5), full_batch(); steps(num_steps=5), shuffled(batch_size=20)"
    assert f"note: fine-tuning takes other steps than a round of Ditto: {both}\n" in unlike
    diverged = run(2)
    diverged.metrics["loss"][1, 1] = np.nan
    assert cells(personal_table({"Ditto": diverged}), 0).count("diverged (1 of 2)") == 4
    with pytest.raises(ValueError, match="no run compares models of its clients by it: choose from 'accuracy'"):
        personal_table({"Ditto": run()}, "f1")
    with pytest.raises(ValueError, match=r"record them with evaluate=fedjax_sim.per_client\(task, tuned="):
        personal_table({"plain": run(models=())})


def test_markdown_names_every_row():
    lines = personal_table({"a|b": run()}, form="markdown").splitlines()
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert all(line.startswith(r"| a\|b | ") for line in lines[2:5])


@pytest.mark.slow
def test_of_a_run():
    """The spread of a run is that of the clients whose mean is printed beside it."""
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=40, seed=0)
    task, sgd = fjs.classification(fjs.models.LogisticRegression(10)), fjs.optim.sgd(0.1)
    tuned = fjs.personalise(task, sgd, fjs.local.epochs(1), fjs.local.shuffled(20))
    history = fjs.simulate(
        fjs.ditto(client_optimizer=sgd), data, task=task, rounds=1, eval_every=1, batch_size=20, progress=False,
        cohort=fjs.cohort.uniform(2), work=fjs.local.epochs(1), evaluate=fjs.per_client(task, tuned=tuned),
    )  # fmt: skip
    table = personal_table({"Ditto": history}, "loss")
    assert "other steps" not in table
    seen = history["client_visited"][0, -1]
    recorded = (history[f"{one}_client_loss"] for one in ("test", "tuned", "personal"))
    for row, values in enumerate(recorded):
        found = [cell.strip() for cell in cells(table, row) if cell.strip()]
        of_seen = values[0, -1][seen]
        assert f"{of_seen.mean():.4f}" in found
        assert f"{of_seen.std():.4f}" in found


def test_an_accuracy_of_personal_models_that_diverged_is_none():
    """The argmax of NaN is class 0, so that such a model has an accuracy and loses to nobody; its loss tells."""
    of_clients = np.ones((3, 2, 4))
    of_clients[1, 1, 2], of_clients[..., 3] = np.nan, np.nan
    losses = np.ones((3, 2))
    losses[1, 1] = np.nan
    one = run(personal_loss=losses, personal_client_loss=of_clients)
    table = personal_table({"Ditto": one})
    assert [cells(table, row).count("diverged (1 of 3)") for row in range(3)] == [0, 0, 6]
    np.testing.assert_array_equal(np.isnan(measured(one, "personal_accuracy"))[:, 1], [False, True, False])
    np.testing.assert_array_equal(np.isnan(measured(one, "personal_client_accuracy"))[1, 1], [False, False, True, True])
    assert np.isfinite(measured(one, "tuned_accuracy")).all()
    held_out = run(validation_personal_loss=losses, validation_personal_accuracy=np.ones((3, 2)))
    assert np.isnan(measured(held_out, "validation_personal_accuracy")[1, 1])
    assert np.isfinite(measured(held_out, "personal_accuracy")).all()
    tuned = run(tuned_loss=losses, personal_accuracy_before=losses * 0)
    assert np.isnan(measured(tuned, "personal_accuracy_losing_to_tuned")[1, 1])
    assert np.isfinite(measured(tuned, "personal_accuracy_losing")).all()


def test_who_was_never_visited_is_counted_in_seeds_that_hold():
    visited = np.zeros((2, 2, 4), bool)
    visited[0, 1, :2] = True  # the other seed has visited nobody: there all count
    diverged = run(2, client_visited=visited, unvisited=np.array([[3, 1], [3, 3]]))
    diverged.metrics["loss"][1, 1] = np.nan
    assert "note: 0.5 clients of Ditto were never visited" in personal_table({"Ditto": diverged})
    nobody = run(2, client_visited=np.zeros((2, 2, 4), bool), unvisited=np.full((2, 2), 3))
    table = personal_table({"Ditto": nobody})
    assert "never visited" not in table
    spread = np.nanstd(nobody["personal_client_accuracy"][:, 1], axis=1)
    assert f"{spread.mean():.4f} ± {half_width(spread):.4f}" in table


def test_what_is_not_alike_is_said():
    few, many = run(), run(method="fedavg")
    for one, share in ((few, 0.1), (many, 0.3)):
        one.description["run"]["evaluate"]["arguments"]["worst"] = share
    assert "worst: over the 10 % of them served worst" in personal_table({"Ditto": few, "as many": few})
    assert "equally" not in personal_table({"Ditto": few, "as many": few})
    many.evaluated[-1] = 20
    table = personal_table({"Ditto": few, "FedAvg": many})
    assert "worst: over those served worst" in table
    assert "note: not the same share of the clients are the worst: Ditto 0.1, FedAvg 0.3\n" in table
    assert "note: not after equally many rounds: Ditto 10, FedAvg 20\n" in table


def test_a_fine_tuned_model_alone_is_no_personal_one():
    """What ``evaluate=fjs.personalise(...)`` records begins with ``personal``, and is of no model that clients keep."""
    alone = run(models=("personal",))
    with pytest.raises(ValueError, match="no run compares models of its clients by it: record them"):
        personal_table({"FedAvg": alone})
    table = personal_table({"FedAvg": alone, "Ditto": run()})
    assert len([line for line in table.splitlines() if "personal " in line and " ± " in line]) == 1
    assert "note: no models of clients are compared by 'accuracy' in FedAvg" in table
