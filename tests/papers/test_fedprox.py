"""FedProx's experiments: the paper's end of a run, what claims rest on, data sets, who straggles."""

import math

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.fedprox import measures, problems, stragglers, synthetics
from fedjax_sim.run.history import History


def history(losses, accuracies=None, every=1):
    losses = np.asarray(losses, float)
    metrics = {"loss": losses, "test_accuracy": np.zeros_like(losses) if accuracies is None else accuracies}
    return History(
        evaluated=every * np.arange(losses.shape[1]), metrics=metrics, rounds={}, params={},
        seeds=list(range(len(losses))), seconds=0.0, compile_seconds=0.0, description={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "every", "place", "how"),
    [
        ([2.0, 1.0, 0.99995, 0.5], 1, 2, "converged"),
        ([2.0, 1.0, 0.5], 1, 2, "ran to the end"),
        ([1.0, *np.linspace(0.5, 1.9, 12)], 1, 10, "converged"),
        ([1.0, *(0.5 + 0.15 * np.arange(12))], 1, 11, "diverged"),  # 2.0 - 0.5 > 1, and 1.85 - 1 is not
        ([1.0, *(0.5 + 0.3 * np.arange(6))], 2, 6, "diverged"),  # ten rounds are five evaluations
        ([1.0, 0.5, math.nan, 0.5], 1, 2, "diverged"),
    ],
)
def test_where_the_paper_stops_looking(losses, every, place, how):
    losses = np.asarray(losses)
    if how == "converged" and place == 10:
        losses[10] = losses[9] + 5e-5
    assert measures.end(every * np.arange(len(losses)), losses) == (place, how)


def test_accuracy_is_read_off_there():
    losses = [[2.0, 1.0, 1.0, 0.2], [2.0, 1.0, 0.5, 0.2]]
    run = history(losses, np.array([[0.1, 0.2, 0.3, 0.9], [0.1, 0.2, 0.3, 0.9]]))
    assert measures.accuracy_by_rule(run) == pytest.approx((0.3 + 0.9) / 2)


def test_level_and_unsteadiness():
    run = history([np.arange(20.0, 0.0, -1.0), np.arange(20.0, 0.0, -1.0) + 2])
    assert measures.level(run, "loss") == (1 + 2 + 3 + 4) / 4
    assert measures.unsteadiness(run) == 0
    up_and_down = history([[5.0, 1.0, 2.0, 1.0, 2.0, 1.0]])
    assert measures.unsteadiness(up_and_down) == pytest.approx(1 / 3)  # falls, rises, falls
    assert measures.level(measures.first_rounds(up_and_down, 3), "loss") == 1
    lost = history([[1.0, math.nan]])
    assert measures.level(lost, "loss") == measures.unsteadiness(lost) == math.inf


def test_a_run_that_diverges_anywhere_is_counted():
    rising = 0.5 + 0.3 * np.arange(12)
    falling = rising[::-1]
    assert measures.diverged(history([falling, rising, [*falling[:-1], math.nan]])) == 2


def test_settings_are_the_papers(tmp_path):
    found = problems.problems(Bench("smoke", 1, tmp_path, show=lambda line: None))
    assert list(found) == ["Synthetic", "MNIST", "FEMNIST", "Shakespeare", "Sent140"]
    assert [of.mu for of in found.values()] == [1, 1, 1, 0.001, 0.01]
    assert [of.learning_rate for of in found.values()] == [0.01, 0.03, 0.003, 0.8, 0.3]
    assert len({of.data.num_examples for of in found.values()}) == 1  # which compile together


def test_text_without_files_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path))
    bench = Bench("cpu", 1, tmp_path, show=lambda line: None)
    found = problems.problems(bench)
    assert list(found) == ["Synthetic", "MNIST", "FEMNIST"]
    assert "Sent140 left out: its files are not here" in bench.data
    with pytest.raises(FileNotFoundError):
        problems.problems(Bench("paper", 1, tmp_path, show=lambda line: None))


def test_who_straggles_within_an_epoch(tmp_path):
    bench = Bench("smoke", 1, tmp_path, show=lambda line: None)
    data = synthetics.synthetics(bench, ("synthetic(1, 1)",))["synthetic(1, 1)"]
    problem = problems.Problem(data, fjs.models.LogisticRegression(10), 0.01, 1.0, 2)
    runs = stragglers.runs_of(bench, "Synthetic", problem, (0.0, 1.0), epochs=1)
    assert runs[0.0][stragglers.FEDAVG] is runs[0.0][stragglers.PLAIN]
    steps = {f: {method: run["useful_steps"] for method, run in of.items()} for f, of in runs.items()}
    for fraction, late in ((0.5, 2), (0.9, 3)):  # of three devices, rounded
        of = steps[fraction]
        np.testing.assert_array_equal(of[stragglers.PLAIN], of[stragglers.PROX])
        assert (of[stragglers.FEDAVG] < of[stragglers.PLAIN]).all()
        assert (of[stragglers.PLAIN] <= steps[0.0][stragglers.PLAIN]).all()
        np.testing.assert_array_equal(runs[fraction][stragglers.FEDAVG]["cohort_size"], 3 - late)
    assert (steps[0.9][stragglers.PLAIN] < steps[0.0][stragglers.PLAIN]).any()
