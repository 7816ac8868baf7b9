"""The experiments of FedNova: closed forms, helpers, the paper's numbers."""

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.papers.fednova import cifar, quadratics, synthetic, weights
from fedjax_sim.papers.fednova.synthetic import rounds_to_each
from fedjax_sim.papers.measuring import difference
from fedjax_sim.run.history import History

RNG = np.random.default_rng(0)
E, TAU, ETA = RNG.standard_normal((3, 2)), np.array([[1, 4, 2], [3, 1, 5], [2, 2, 6]]), np.array([0.1, 0.1, 0.02])


@pytest.mark.parametrize("method", quadratics.METHODS)
def test_a_trajectory_is_that_of_single_local_steps(method):
    mu = 0.7 if method == quadratics.FEDPROX else 0.0
    x, v, xs = np.ones(2), np.zeros((3, 2)), [np.ones(2)]
    for tau, eta in zip(TAU, ETA, strict=True):
        y = np.tile(x, (3, 1))
        for i in range(3):
            for _ in range(tau[i]):
                y[i] -= eta * (y[i] - E[i] + mu * (y[i] - x) - v[i])
        mean = y.mean(axis=0)
        if method == quadratics.VRL:
            v = v + (mean - y) / (tau * eta)[:, None]
        x = x + tau.mean() * ((y - x) / tau[:, None]).mean(axis=0) if method == quadratics.FEDNOVA else mean
        xs.append(x)
    ours = quadratics.trajectory(method, E, TAU, ETA, np.ones(2), mu)
    np.testing.assert_allclose(ours, xs, rtol=0, atol=1e-14)


@pytest.mark.slow
def test_the_closed_form_has_the_run_s_own_draws(x64):
    data = fjs.datasets.quadratics_from(np.tile(np.eye(2), (3, 1, 1)), E)
    work = fjs.local.gaussian_steps(4, std=3.0, most=9)
    rounds = 3
    history = fjs.simulate(
        fjs.fednova(
            client_optimizer=fjs.optim.sgd(quadratics.ETA),
            client_learning_rate=fjs.rates.piecewise(1.0, quadratics.DECAYS, quadratics.FACTOR),
        ),
        data, task=fjs.quadratic(start=quadratics.START), rounds=rounds, eval_every=1, cohort=fjs.cohort.full(),
        work=work, batches=fjs.local.full_batch(), evaluate=quadratics.place, seeds=[5],
    )  # fmt: skip
    [tau] = quadratics.local_steps(work, [5], rounds, data)
    assert len(np.unique(tau)) > 1
    start = np.full(2, quadratics.START)
    expected = quadratics.trajectory(quadratics.FEDNOVA, E, tau, quadratics.step_sizes(rounds), start)
    np.testing.assert_allclose(history["x"][0], expected, rtol=0, atol=1e-14)
    distances = np.linalg.norm(expected - E.mean(axis=0), axis=1)
    np.testing.assert_allclose(history["distance"][0], distances, rtol=1e-12)


def test_step_sizes_fall_to_a_fifth_twice():
    eta = quadratics.step_sizes(1200)
    np.testing.assert_allclose(eta[[0, 599, 600, 899, 900, 1199]], [0.05, 0.05, 0.01, 0.01, 0.002, 0.002])


def test_weights_of_the_proximal_solver_are_their_closed_form(x64):
    tau = np.array([1, 3, 20, 41])
    for alpha in (0.0, 0.05, 0.4, 1.0):
        measured, formula = weights.of_solver(tau, alpha), weights.closed_form(tau, alpha)
        np.testing.assert_allclose(np.array(measured), formula, rtol=1e-12, atol=1e-14)
    # FedAvg weighs by tau, and alpha = 1 is one step of everybody
    none, all_ = weights.closed_form(tau, 0.0), weights.closed_form(tau, 1.0)
    w = tau / tau.sum()
    assert none == pytest.approx((((0.25 - w) ** 2 / w).sum(), 1.0, 1.0))
    assert all_ == pytest.approx((0.0, tau.mean(), 1.0), abs=1e-12)


def test_both_readings_of_the_normal():
    for std in weights.READINGS.values():
        tau = weights.draw_steps(std, 20_000, 0)
        assert tau.min() >= 1
        assert abs(np.median(tau) - 20) < 0.5
        assert np.subtract(*np.quantile(tau, [0.75, 0.5])) == pytest.approx(0.674 * std, abs=1)


def test_pooled_images_are_means_of_blocks():
    images = RNG.random((4, 4, 6, 3)).astype(np.float32)
    made = fjs.datasets.from_clients([(images[:3], [0, 1, 0]), (images[3:], [1])], test=[(images[:1], [0]), None])
    small = cifar.pooled(made, 2)
    assert small.examples["x"].shape == (4, 2, 3, 3)
    np.testing.assert_allclose(small.examples["x"][1, 1, 2], images[1, 2:4, 4:6].mean(axis=(0, 1)), rtol=1e-6)
    assert small.test.examples["x"].shape == (1, 2, 3, 3)
    np.testing.assert_array_equal(small.examples["y"], made.examples["y"])


def test_every_seed_has_its_own_target():
    metrics = {
        "test_accuracy": np.array([[0.1, 0.3, 0.2], [0.1, 0.4, 0.5]]),
        "loss": np.array([[3, 2, 1.0], [3, 1, 2]]),
    }
    run = History(np.array([0, 5, 10]), metrics, {}, {}, [0, 1], 0.0, 0.0, {})
    np.testing.assert_array_equal(rounds_to_each(run, "test_accuracy", run.final("test_accuracy")), [5, 10])
    np.testing.assert_array_equal(rounds_to_each(run, "loss", np.array([2.0, 1 - 1e-12])), [5, 5])
    np.testing.assert_array_equal(rounds_to_each(run, "loss", np.array([2.0, 0.5])), [5, np.inf])


def test_differences_that_the_seeds_support():
    a = np.array([1.0, 2.0, 4.0])
    found = difference(a, a - np.array([1.0, 2.0, 3.0]))
    assert found.mean == 2
    assert found.half == pytest.approx(4.302653 / np.sqrt(3))  # Student's, two degrees of freedom
    assert not found.above
    assert difference(a, a - np.array([1.0, 1.1, 1.2])).above
    assert difference(a[:1], np.zeros(1)).above  # the board says that seeds are few
    assert not difference(-a[:1], np.zeros(1)).above
    assert not difference(a, np.array([0.0, np.inf, 0.0])).above
    assert not difference(np.array([np.inf, 3.0]), np.array([np.inf, 0.0])).above


def test_the_rate_is_looked_for_beyond_the_grid_while_the_best_is_at_its_end():
    assert cifar.beyond({0.005: 1.0, 0.01: 3.0, 0.02: 2.0}) is None
    assert cifar.beyond({0.005: 4.0, 0.01: 3.0, 0.02: 2.0}) == 0.0025
    assert cifar.beyond({0.005: 1.0, 0.01: 3.0, 0.02: 5.0}) == 0.04


def ended(*percent):
    """A run of a seed each, which ends at these accuracies and had half of them in the middle."""
    finals = np.array(percent) / 100
    metrics = {"test_accuracy": np.stack([0 * finals, finals / 2, finals], axis=1)}
    return History(np.array([0, 50, 100]), metrics, {}, {}, [*range(len(percent))], 0.0, 0.0, {})


def as_in_the_paper():
    """Accuracies of the table whose gaps are those of the paper's text."""
    levels = {cifar.SGD: (60.0, 67.0), cifar.HEAVY: (65.0, 72.5), cifar.PROX: (61.0, 71.0), cifar.VR: (74.0, 74.1),
              cifar.HEAVY_VR: (None, 79.0), cifar.SERVER: (None, 77.5), cifar.HYBRID: (None, 81.0)}  # fmt: skip
    noise = np.array([-0.2, 0.0, 0.1, 0.1])
    names = (cifar.FEDAVG, cifar.FEDNOVA)
    made = {solver: {name: ended(*(level + noise)) for name, level in zip(names, of, strict=True) if level is not None}
            for solver, of in levels.items()}  # fmt: skip
    # FedNova is there in the middle
    for solver in (cifar.SGD, cifar.HEAVY, cifar.PROX):
        of = made[solver][cifar.FEDNOVA].metrics["test_accuracy"]
        of[:, 1] = of[:, 2] - 0.001
    return {regime.name: {solver: dict(made[solver]) for solver in regime.solvers} for regime in cifar.REGIMES}


def test_a_model_that_is_not_finite_has_no_share_of_its_first_class():
    run = ended(10.0, 60.0)
    run.metrics["loss"] = np.array([[2.3, 2.0, np.nan], [2.3, 2.0, 1.0]])
    np.testing.assert_allclose(cifar._accuracy(run), [0, 60])


def answers(runs):
    return [claim.held for claim in cifar.claims(runs, "too small")]


# The place of a claim, and a cell of the table with which it does not hold: regime, solver, method, accuracies
@pytest.mark.parametrize(
    ("lost", "regime", "solver", "method", "percent"),
    [
        ((0, 1, 4), 0, cifar.SGD, cifar.FEDNOVA, (59, 60, 59, 60)),
        ((1,), 1, cifar.HEAVY, cifar.FEDNOVA, (67, 67.1, 67, 67.1)),
        ((2, 3, 4), 0, cifar.PROX, cifar.FEDNOVA, (60, 60.1, 60, 60.1)),
        ((3,), 1, cifar.PROX, cifar.FEDNOVA, (68, 68, 68, 68.1)),
        ((7,), 1, cifar.VR, cifar.FEDNOVA, (75, 75.2, 75, 75.2)),
        ((7,), 1, cifar.VR, cifar.FEDNOVA, (71, 77, 72, 76)),  # alike on average alone
        ((8,), 1, cifar.HEAVY_VR, cifar.FEDNOVA, (74, 74.2, 74, 74.2)),
        ((9,), 1, cifar.HYBRID, cifar.FEDNOVA, (77, 78, 77.2, 77.8)),
    ],
)
def test_claims_of_the_table_hold_on_the_paper_s_gaps_and_not_on_others(lost, regime, solver, method, percent):
    runs = as_in_the_paper()
    assert answers(runs) == [True] * 10
    changed = ended(*percent)
    changed.metrics["test_accuracy"][:, 1] = changed.metrics["test_accuracy"][:, 2] - 0.001
    runs[cifar.REGIMES[regime].name][solver][method] = changed
    assert [place for place, held in enumerate(answers(runs)) if not held] == list(lost)


def test_reasons_of_the_table_s_claims():
    """Seeds that do not tell an order are too few; a number that is far off has another reason."""
    runs = as_in_the_paper()
    for of in runs.values():
        of[cifar.SGD][cifar.FEDNOVA] = ended(*(60 + np.array([-3, 0, 3, 4])))  # FedAvg ends at 60 or so
    claims = cifar.claims(runs, "too small")
    assert [claim.own for claim in claims] == [True, False, True, False, False, True, False, False, False, False]
    assert [claim.standing for claim in claims[:2]] == ["few seeds", "too small"]
    assert not claims[0].quote


def test_momentum_helps_in_general_with_three_of_four():
    runs = as_in_the_paper()
    cell = runs[cifar.REGIMES[0].name][cifar.HEAVY]
    cell[cifar.FEDNOVA] = runs[cifar.REGIMES[0].name][cifar.SGD][cifar.FEDNOVA]
    assert answers(runs)[5:7] == [True, True]
    runs[cifar.REGIMES[1].name][cifar.HEAVY] = runs[cifar.REGIMES[1].name][cifar.SGD]
    assert answers(runs)[5:7] == [False, False]


def test_effects_have_the_text_s_numbers():
    found = {effect.what: effect for effect in cifar._effects(as_in_the_paper())}
    assert len(found) == 12
    gap = found["FedNova less FedAvg, SGD, E = 2 (the paper: 6 to 9)"]
    assert gap.paper == 7.5
    np.testing.assert_allclose(gap.values, 7.0)
    assert found["both momenta less server momentum"].paper == pytest.approx(3.66)
    assert set(cifar.FLOWER) < {(regime.name, solver) for regime in cifar.REGIMES for solver in regime.solvers}


def lost_of_figure_5(draw, change):
    """Claims that do not hold where runs of the first regime are changed on a draw of the data."""
    falling = np.linspace(3, 1, 20)
    methods = dict(zip(synthetic.METHODS, (0.5, 0.4, 0.2), strict=True))

    def run(level):
        losses = np.stack([falling * level + 0.001 * seed for seed in range(4)])
        return History(np.arange(20), {"loss": losses}, {}, {}, [*range(4)], 0.0, 0.0, {})

    runs = {draw: {regime.title: {name: run(level) for name, level in methods.items()} for regime in synthetic.REGIMES}
            for draw in (0, 1, 2)}  # fmt: skip
    runs[draw][synthetic.REGIMES[0].title] |= {name: run(level) for name, level in change.items()}
    claims = synthetic._claims(runs)
    assert [(claim.own, claim.central) for claim in claims] == [(False, True)] * 2 + [(True, False)] * 2
    return [place for place, claim in enumerate(claims) if not claim.held]


def test_figure_5_is_the_first_draw_and_the_others_are_questions_of_ours():
    assert lost_of_figure_5(0, {}) == []
    assert lost_of_figure_5(0, {synthetic.FEDPROX: 0.1}) == [0]
    assert lost_of_figure_5(0, {synthetic.FEDAVG: 0.1}) == [0, 1]
    assert lost_of_figure_5(2, {synthetic.FEDAVG: 0.1}) == [2, 3]


def distances(*levels):
    """A run of 1,200 rounds a seed, at one distance from the minimum but for the start."""
    records = np.arange(0, 1201, 5)
    values = np.array(levels, float)[:, None] * np.ones(len(records))
    values[:, 0] = 3.0
    metrics = {"distance": values, "x": np.zeros((len(levels), len(records), 2))}
    return History(records, metrics, {}, {}, [*range(len(levels))], 0.0, 0.0, {})


@pytest.mark.parametrize(
    ("lost", "method", "levels", "grows"),
    [
        ((), quadratics.FEDAVG, (0.005, 0.0052, 0.0051), 1e9),
        ((0,), quadratics.FEDNOVA, (1e-4, 1e-3, 1e-4), 1e9),  # not far closer with one of the seeds
        ((1,), quadratics.FEDPROX, (0.0051, 0.0052, 0.005), 1e9),
        ((1,), quadratics.FEDPROX, (0.002, 0.0022, 0.0021), 1e9),  # that is not slightly
        ((3,), quadratics.VRL, (0.3, 0.004, 0.3), 1e9),
        ((4,), quadratics.FEDAVG, (0.005, 0.0052, 0.0051), 100.0),
    ],
)
def test_claims_of_changing_steps(lost, method, levels, grows):
    ends = {quadratics.FEDAVG: (0.005, 0.0052, 0.0051), quadratics.FEDPROX: (0.0047, 0.0049, 0.0048),
            quadratics.VRL: (60, 70, 80), quadratics.FEDNOVA: (1e-4, 1.1e-4, 1e-4)}  # fmt: skip
    runs = {name: {0.0: distances(1e-17, 1e-17, 1e-17), quadratics.STD: distances(*of)}
            for name, of in (ends | {method: levels}).items()}  # fmt: skip
    variants = {quadratics.OF_ROUND: np.full(3, 69.0), quadratics.OF_MEAN: np.full(3, 1e9),
                quadratics.OF_NEXT: np.full(3, grows)}  # fmt: skip
    claims = quadratics._claims_with_changing_steps(runs, quadratics.STD, variants)
    assert [place for place, claim in enumerate(claims) if not claim.held] == list(lost)


def test_a_gap_that_still_falls_vanishes():
    runs = {
        name: {0.0: distances(1e-17, 1e-17), quadratics.STD: distances(0.005, 0.005)} for name in quadratics.METHODS
    }
    falling = runs[quadratics.FEDAVG][quadratics.STD].metrics["distance"]
    falling[:] = 0.99 ** np.arange(falling.shape[1])
    variants = dict.fromkeys((quadratics.OF_ROUND, quadratics.OF_NEXT), np.ones(2))
    claims = quadratics._claims_with_changing_steps(runs, quadratics.STD, variants)
    assert claims[2].held
    falling[:] = 0.95 ** np.arange(falling.shape[1])
    assert not quadratics._claims_with_changing_steps(runs, quadratics.STD, variants)[2].held
