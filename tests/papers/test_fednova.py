"""The experiments of FedNova: closed forms, helpers, the paper's numbers."""

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.papers.fednova import cifar, quadratics, weights
from fedjax_sim.papers.fednova.synthetic import rounds_to_each
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
    assert rounds_to_each(run, "test_accuracy", run.final("test_accuracy")) == (5 + 10) / 2
    assert rounds_to_each(run, "loss", np.array([2.0, 1 - 1e-12])) == 5
    assert rounds_to_each(run, "loss", np.array([2.0, 0.5])) == np.inf


def test_the_paper_s_cells_lie_in_the_ranges_of_its_text():
    assert {(regime.name, solver) for regime in cifar.REGIMES for solver in regime.solvers} == set(cifar.PAPER)
    for regime in cifar.REGIMES:
        cells = {solver: cifar.PAPER[regime.name, solver] for solver in regime.solvers}
        gaps = {solver: nova - average for solver, (average, nova) in cells.items() if average is not None}
        assert all(5.5 <= gaps[solver] <= 9.5 for solver in (cifar.SGD, cifar.HEAVY))  # "6 to 9"
        assert 9 < gaps[cifar.PROX] < 11  # "about 10"
        assert gaps.get(cifar.VR, 0.0) == 0.0  # "the same"
        heavier = [a - b for a, b in zip(cells[cifar.HEAVY], cells[cifar.SGD], strict=True)]
        assert all(2.5 <= points <= 7.5 for points in heavier)  # "3 to 7"
