"""FedProx's experiments: the paper's end of a run, what claims rest on, data sets, who straggles."""

import dataclasses
import math

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.papers import measuring
from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.fedprox import measures, problems, stragglers, synthetics, variants
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
    np.testing.assert_array_equal(measures.accuracy_by_rule(run), [0.3, 0.9])
    # the argmax of NaN is a class too
    lost = history([[2.0, math.nan, math.nan]], np.array([[0.1, 0.4, 0.4]]))
    np.testing.assert_array_equal(measures.accuracy_by_rule(lost), [0.0])


def test_level_and_unsteadiness():
    run = history([np.arange(20.0, 0.0, -1.0), np.arange(20.0, 0.0, -1.0) + 2])
    assert measuring.mean(measuring.levels(run, "loss")) == (1 + 2 + 3 + 4) / 4
    assert not measuring.rises(run).any()
    up_and_down = history([[5.0, 1.0, 2.0, 1.0, 2.0, 1.0]])
    assert measuring.rises(up_and_down) == pytest.approx(1 / 3)  # falls, rises, falls
    lost = history([[1.0, math.nan]])
    assert measuring.mean(measuring.levels(lost, "loss")) == measuring.mean(measuring.rises(lost)) == math.inf
    one_lost = history([[2.0, 1.0], [1.0, math.nan]], np.array([[0.1, 0.5], [0.1, 0.3]]))  # NaN is of class 0
    np.testing.assert_array_equal(measuring.levels(one_lost, "loss"), [1.0, math.inf])
    np.testing.assert_array_equal(measuring.levels(one_lost, "test_accuracy"), [0.5, 0.0])
    np.testing.assert_array_equal(measuring.rises(one_lost), [0.0, math.inf])
    np.testing.assert_array_equal(measures.whole(one_lost, "loss"), [1.5, math.inf])
    assert math.isnan(measuring.largest([0.1, math.nan]))
    assert measuring.with_spread(np.array([1.0, 3.0]), 2) == "2.00 ± 1.41"  # of a sample
    assert measuring.with_spread(np.array([1.0]), 1) == "1.0 ± 0.0"


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


@pytest.mark.slow
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


SEEDS = np.array([-0.01, 0.0, 0.01])  # around a mean: 95 % intervals of differences from a constant are ± 0.025


def about(*means):
    return [mean + SEEDS for mean in means]


@pytest.mark.parametrize(
    ("pairs", "most", "held", "standing"),
    [
        ([(1.0, 1.1), (2.0, 2.1)], False, True, "held"),
        ([(1.0, 1.01), (2.0, 2.01)], False, False, "few seeds"),  # on the right side, and seeds tell it of neither
        ([(1.0, 1.1), (2.0, 2.1), (1.0, 1.01)], False, True, "held"),
        ([(1.0, 1.1), (2.0, 1.99)], False, False, "few seeds"),  # the other way round, but not by what seeds tell
        ([(1.0, 1.1), (2.0, 1.9)], False, False, "fragile"),
        ([(1.0, 1.1), (2.0, 1.9)], True, False, "fragile"),  # one of two is not most
        ([(1.0, 1.1), (2.0, 2.1), (2.0, 1.9)], True, True, "held"),
        ([(1.0, math.inf)], False, True, "held"),  # the other diverged in all seeds
        ([(math.inf, math.inf)], False, False, "fragile"),
        ([], False, None, "not testable"),
    ],
)
def test_claims_rest_on_intervals_over_seeds(pairs, most, held, standing):
    made = {str(case): (about(low)[0], np.full(3, high)) for case, (low, high) in enumerate(pairs)}
    claim = measures.lower("said", made, "low and high", most=most, why="fragile", seeds=5)
    assert (claim.held, claim.standing) == (held, standing)


def test_what_can_happen_holds_if_an_interval_says_so_of_one_case():
    made = {
        "a": (about(1.0)[0], np.full(3, 1.1)),
        "b": (about(2.0)[0], np.full(3, 1.9)),
        "c": (about(2.0)[0], np.full(3, 1.9)),
    }
    claim = measures.lower("said", made, "", can=True)
    assert claim.held
    assert list(claim.numbers.values())[:3] == ["1 of 3", 1, 2]
    assert not measures.lower("said", {"a": (about(1.0)[0], np.full(3, 1.01))}, "", can=True).held


def test_a_mean_of_one_seed_is_told_by_its_sign():
    for high, held in ((1.1, True), (0.9, False)):
        assert measures.lower("", {"a": (np.ones(1), np.full(1, high))}, "").held is held


def held(claims):
    return [claim.held for claim in claims]


def test_claims_of_stragglers():
    cases = [(name, f) for name in ("A", "B") for f in stragglers.FRACTIONS]
    loss = {case: dict(zip(stragglers.METHODS, about(1.0 + case[1], 0.9, 0.8), strict=True)) for case in cases}
    for name in "AB":
        loss[name, 0.0][stragglers.PLAIN] = loss[name, 0.0][stragglers.FEDAVG]
    never = {case: dict.fromkeys(stragglers.METHODS, 0) for case in cases}
    claims = stragglers.claims_of_fig1(["A", "B"], loss, loss, never)
    assert held(claims) == [True] * 6 + [None]
    assert [claim.own for claim in claims] == [False] * 3 + [True] + [False] * 3
    reverse = {case: dict(zip(of, reversed(of.values()), strict=True)) for case, of in loss.items()}
    once = never | {cases[1]: dict(zip(stragglers.METHODS, (1, 0, 1), strict=True))}
    assert held(stragglers.claims_of_fig1(["A", "B"], reverse, reverse, once)) == [False] * 7
    # Shakespeare is the one that is smaller than in the paper
    for names, why in ((("A", "Shakespeare"), "too small"), (("Shakespeare", "B"), "unexplained")):
        told = {(new, f): (reverse if new == names[1] else loss)[old, f]
                for new, old in zip(names, "AB", strict=True) for f in stragglers.FRACTIONS}  # fmt: skip
        assert stragglers.claims_of_fig1([*names], told, told, dict.fromkeys(told, never[cases[0]]))[1].standing == why
    # the 22 points are held against 21.5, whatever accuracies are
    gains = np.array([15.0, 22.0, 29.0])
    assert held(stragglers.claims_of_fig7(["A", "B"], reverse, gains, gains)) == [True] * 3
    assert held(stragglers.claims_of_fig7(["A", "B"], loss, gains - 1, gains)) == [False] * 3
    for of, why in ((gains - 1, "few seeds"), (gains / 3, "other data")):
        assert stragglers.claims_of_fig7(["A", "B"], loss, of, of)[1].standing == why


def test_claims_of_unlike_devices_rest_on_equal_weights():
    def by_mu(zeros, ones):
        return {name: {0.0: about(zero)[0], 1.0: about(one)[0]}
                for name, zero, one in zip(synthetics.NAMES, zeros, ones, strict=True)}  # fmt: skip

    loss, accuracy = by_mu((0.3, 1, 2, 3), (0.7, 0.5, 0.6, 0.7)), by_mu((0.9, 0.6, 0.6, 0.6), (0.8, 0.7, 0.7, 0.5))
    rising, not_rising = by_mu((0.1, 5, 6, 7), (0.2, 1, 2, 3)), by_mu((0.1, 5, 4, 7), (0.2, 1, 2, 3))
    assert held(synthetics.claims_of_fig6(loss, accuracy, rising, not_rising)) == [True] * 7
    assert held(synthetics.claims_of_fig6(loss, accuracy, not_rising, rising)) == [True] * 5 + [False, True]
    assert held(synthetics.claims_of_fig6(accuracy, loss, rising, rising))[:5] == [False] * 3 + [True, False]


def test_claims_of_an_adaptive_mu():
    def of(*values):
        return dict(zip((synthetics.FEDAVG, synthetics.DYNAMIC, synthetics.FIXED), about(*values), strict=True))

    good = {synthetics.IID: of(1, 1.05, 2), "synthetic(1, 1)": of(2, 1.05, 1)}
    assert held(synthetics.claims_of_fig11(good, good)) == [True] * 4
    bad = {synthetics.IID: of(1, 3, 2), "synthetic(1, 1)": of(2, 3, 1)}
    assert held(synthetics.claims_of_fig11(bad, bad)) == [False] * 4


def test_claims_of_feddane_and_of_stragglers_on_iid_data():
    names = synthetics.NAMES[:2]
    prox = {name: dict(zip(synthetics.MUS, about(1, 1), strict=True)) for name in names}
    dane = {(names[0], 10): dict(zip(synthetics.MUS, about(1, 1.05), strict=True)),
            (names[1], 10): dict(zip(synthetics.MUS, about(9, 8), strict=True)),
            (names[0], 30): {0.0: about(1)[0]}, (names[1], 30): {0.0: about(3)[0]}}  # fmt: skip
    many, few = ({(name, count): 3 if count == 10 else late for name in names for count in (10, 30)} for late in (2, 1))
    assert held(variants.claims_of_fig4((10, 30), prox, dane, prox, dane, many, 3)) == [True] * 5
    swapped = {(name, count): prox[name] for name in names for count in (10, 30)}
    assert held(variants.claims_of_fig4((10, 30), {name: dane[name, 10] for name in names}, swapped, prox, swapped, few,
                                        3)) == [True] + [False] * 4  # fmt: skip

    def iid(late, kept):
        return {f: dict(zip((stragglers.FEDAVG, stragglers.PLAIN), about(late if f else 1, kept if f else 1),
                            strict=True)) for f in stragglers.FRACTIONS}  # fmt: skip

    assert held(variants.claims_of_fig5(iid(1.05, 1.0), iid(0.8, 0.81))) == [True] * 3
    assert held(variants.claims_of_fig5(iid(1.3, 1.0), iid(0.7, 0.8))) == [False] * 3


def test_claims_of_drawing_by_size_are_the_papers_without_replacement():
    assert variants.BY_SIZE[variants.AS_PAPER] is fjs.cohort.weighted

    def by(uniform, paper, again, iid=0.0):
        return {name: {variants.label(scheme, mu): about(value * (1 if mu == 0 else 0.5))[0] if moves else np.zeros(3)
                       for scheme, value in zip((variants.UNIFORM, *variants.BY_SIZE), (uniform, paper, again),
                                                strict=True) for mu in synthetics.MUS}
                for name, moves in (("IID", iid), ("unlike", True))}  # fmt: skip

    claims = variants.claims_of_fig12(by(2.0, 1.0, 3.0, iid=True), by(2.0, 1.0, 3.0))
    assert [(claim.held, claim.own) for claim in claims] == [
        (True, False), (True, False), (True, False), (False, True), (False, True), (True, True)
    ]  # fmt: skip
    assert "unlike" in str(claims[1].numbers)
    assert "IID" not in str(claims[1].numbers)  # whose losses never rise
    nothing = variants.claims_of_fig12(by(2.0, 3.0, 3.0, iid=True), {"IID": by(1, 1, 1)["IID"]})
    assert held(nothing) == [False, None, None, False, None, None]


@pytest.fixture(params=["made up", pytest.param("runs", marks=pytest.mark.slow)])
def records(request, tmp_path, monkeypatch):
    """A bench, and what gives the records of FedAvg on the last data set."""
    bench = Bench("smoke", 1, tmp_path, show=lambda line: None)
    if request.param == "runs":
        return bench, lambda: bench.recorded[f"FedProx, {synthetics.NAMES[-1]}"].at(0)
    rng = np.random.default_rng(0)
    told = ("loss", "test_accuracy", "gradient_variance_uniform", "gradient_variance")

    def made():
        return dataclasses.replace(history([[1.0, 1.0, 1.0]]), metrics={of: rng.uniform(0.1, 1, (1, 3)) for of in told})

    runs = {name: {mu: made() for mu in synthetics.MUS} for name in synthetics.NAMES}
    monkeypatch.setattr(synthetics, "fixed_mus", lambda bench: runs)
    return bench, lambda: runs[synthetics.NAMES[-1]][0.0]


def test_the_dissimilarity_is_that_of_the_authors_code(records, tmp_path):
    bench, of_fedavg = records
    outcome = synthetics.perform_fig6(bench)
    records = of_fedavg()
    equal, text = (measuring.mean(measuring.levels(records, f"gradient_variance{which}")) for which in ("_uniform", ""))
    assert equal != pytest.approx(text, rel=1e-3)
    claim = next(claim for claim in outcome.claims if "the larger FedAvg's dissimilarity" in claim.statement)
    cases = claim.numbers["variance of the two; difference, half of its 95 % interval"]
    assert list(cases.values())[-1][1] == pytest.approx(equal)
    assert f"{text:.3g}" in claim.note
    redrawn = synthetics.perform_fig2(Bench("smoke", 1, tmp_path, show=lambda line: None))
    assert (redrawn.see, redrawn.claims) == ("fedprox-fig6", ())
