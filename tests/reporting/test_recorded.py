"""How records are read: clocks, targets, seeds that stopped, what is better, what diverged, what is compared."""

import types

import numpy as np
import pytest

from fedjax_sim.reporting import recorded
from fedjax_sim.reporting.divergence import divergences
from fedjax_sim.reporting.table import objectives, remarks


class Run(types.SimpleNamespace):
    def __getitem__(self, name):
        return self.metrics[name] if name in self.metrics else self.rounds[name]


def run(**more):
    metrics = {"loss": np.array([[4.0, 2.0, 1.0], [4.0, 3.0, 0.5]])}
    rounds = {"duration": np.array([[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]])}
    return Run(evaluated=np.array([0, 2, 4]), metrics=metrics, rounds=rounds, seeds=[5, 6], **more)


def test_a_clock_starts_before_the_first_round():
    np.testing.assert_array_equal(recorded.clock(run(), "virtual_time"), [[0, 1, 3, 6, 10], [0, 2, 4, 6, 8]])
    np.testing.assert_array_equal(recorded.clock(run(), "round"), [[0, 1, 2, 3, 4]] * 2)
    np.testing.assert_array_equal(recorded.positions(run(), "loss", "virtual_time"), [[0, 3, 10], [0, 4, 8]])


def test_a_seed_that_stopped_holds_its_last_round():
    values, stopped = recorded.held(run(stops={6: types.SimpleNamespace(round=2)}), "duration")
    np.testing.assert_array_equal(stopped, [False, True])
    np.testing.assert_array_equal(values, [[1, 2, 3, 4], [2, 2, 2, 2]])
    early = run(stops={5: types.SimpleNamespace(round=2)})
    np.testing.assert_array_equal(recorded.held(early, "duration")[0][0], [1, 2, 2, 2])


def test_a_model_that_is_not_finite_has_no_accuracy():
    """The argmax of NaN is a class too; losses and records of rounds stay as they are."""
    one = run()
    one.metrics |= {"test_loss": np.array([[2.0, np.inf, 1.0], [2.0, 1.0, np.nan]]), "accuracy": np.full((2, 3), 0.1)}
    found = recorded.measured(one, "accuracy")
    np.testing.assert_array_equal(found, [[0.1, np.nan, 0.1], [0.1, 0.1, np.nan]])
    for name in ("loss", "test_loss", "duration"):
        np.testing.assert_array_equal(recorded.measured(one, name), one[name])


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("loss", True), ("test_loss_worst", True), ("perplexity", True), ("test_perplexity_before", True),
        ("test_nll", True), ("error_rate", True), ("brier", True), ("mape", True), ("cross_entropy_worst", True),
        ("gap", True), ("calibration_error", True), ("personal_loss_by_examples", True),
        ("tuned_accuracy_losing", True), ("client_loss_std", True), ("client_accuracy_gini", True),
        ("gradient_variance_uniform", True), ("dissimilarity", True), ("client_accuracy_jain", False),
        ("accuracy", False), ("test_accuracy_worst", False), ("personal_loss_gain", False), ("f1", False),
    ],
)  # fmt: skip
def test_what_is_better(name, less):
    assert recorded.less_is_better(name) is less


def test_places_that_reach_a_target():
    losses, accuracies = np.array([[4.0, 2.0, 1.0], [4.0, 3.0, 2.5]]), np.array([[0.1, 0.5, 0.4], [0.6, 0.1, 0.2]])
    at = np.array([0, 2, 4])
    np.testing.assert_array_equal(recorded.first_reached(losses, at, 2.0, falling=True), [2, np.inf])
    np.testing.assert_array_equal(recorded.first_reached(accuracies, at, 0.5, falling=False), [2, 0])
    each = np.array([[0, 3, 10], [0, 4, 8]])
    np.testing.assert_array_equal(recorded.first_reached(losses, each, 3.0, falling=True), [3, 4])


def test_the_best_evaluation():
    nan, inf = np.nan, np.inf
    metrics = {
        "loss": np.array([[4.0, 1.0, 1.0, 2.0], [4.0, nan, 3.0, inf], [nan] * 4]),
        "test_accuracy": np.array([[0.1, 0.7, 0.9, 0.9], [0.2, 0.9, 0.3, 0.9], [0.1, 0.2, 0.3, 0.4]]),
    }
    assert recorded.best_evaluations(metrics, "loss").tolist() == [1, 2, 0]
    assert recorded.best_evaluations(metrics, "test_accuracy").tolist() == [2, 2, 0]


def signs(losses, rounds=None, factor=10.0, evaluated=(0, 2, 4)):
    found = divergences(
        "fedavg", [7], np.array(evaluated), {"loss": np.array([losses])}, rounds or {}, skipped=False, factor=factor
    )
    return [(one.round, one.what, one.factor) for one in found]


def test_when_a_run_diverged():
    assert signs([1.0, 9.0, 10.0]) == []
    assert signs([1.0, 11.0, 2.0]) == [(2, "loss", 10.0)]
    assert signs([1.0, 11.0, 2.0], factor=None) == []
    assert signs([-1.0, 5.0, 11.0]) == [(4, "loss", 10.0)]
    assert signs([0.0, 9.0, 11.0]) == [(4, "loss", 10.0)]  # of a start of 0 the factor itself
    assert signs([1.0, np.nan, 2.0]) == [(2, "loss", None)]
    of_rounds = {"diverged": np.array([[False, False, True, True]])}
    assert signs([1.0, 1.0, np.inf], of_rounds) == [(3, "model", None)]


def test_runs_of_other_objectives_are_named():
    def described(objective, average):
        return run(description={"objective": objective, "average": average})

    same = {"a": described("sum p_i F_i", "sample"), "b": described("sum p_i F_i", "sample")}
    assert objectives(same) == []
    (said,) = objectives({**same, "c": described("(1/N) sum F_i", "plain")})
    assert said.startswith("not the same objectives: a, b: sum p_i F_i (average 'sample'); c: (1/N) sum F_i")


def test_what_clients_with_models_of_their_own_are_served_is_said_to_be_elsewhere():
    plain, ditto = run(description={}), run(description={"personal": True})
    assert remarks({"a": plain, "b": run()}) == []
    (said,) = remarks({"a": plain, "ditto": ditto})
    assert said.startswith("the numbers of ditto are those of the shared model; evaluate=fedjax_sim.per_client(task)")
    ditto.metrics["personal_loss"] = ditto.metrics["loss"]
    (said,) = remarks({"ditto": ditto})
    assert said.startswith("the numbers of ditto are those of the shared model; personal_table shows")


def test_rounds_in_which_nobody_took_part_are_counted_up_to_where_a_seed_stopped():
    some, late = run(stops={6: types.SimpleNamespace(round=1)}), run(stops={})
    some.rounds["cohort_size"] = np.array([[5, 0, 5, 5], [5, 0, 0, 0]])
    late.rounds["cohort_size"] = np.zeros((2, 4), int)
    assert remarks({"a": some, "b": late, "c": run()}) == [
        "rounds of all seeds in which nobody took part: a 1 of 5, b 8 of 8"
    ]
    some.rounds["nonfinite_clients"] = np.array([[0, 3, 0, 0], [0, 0, 0, 0]])  # who took part and was left out
    assert remarks({"a": some}) == []
    del late.stops, late.seeds  # a record of somebody else's
    assert remarks({"b": late}) == ["rounds of all seeds in which nobody took part: b 8 of 8"]
