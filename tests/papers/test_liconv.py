"""Li et al.: the exact construction against its definition, and what the figures are read with."""

import math

import numpy as np
import pytest

from fedjax_sim.papers.bench import Bench
from fedjax_sim.papers.liconv import cohort_sizes, figure1, problems, schemes, theorem4
from fedjax_sim.papers.measuring import below
from fedjax_sim.run.history import History


def history(losses, every=1):
    losses = np.atleast_2d(np.asarray(losses, float))
    evaluated = every * np.arange(losses.shape[1])
    return History(evaluated, {"loss": losses}, {}, {}, list(range(len(losses))), 0.0, 0.0, {})


def by_steps(made, eta, steps, rounds):
    """Rounds of FedAvg, step after step."""
    w = np.zeros(made.b.shape[1])
    path = [w]
    for _ in range(rounds):
        ends = []
        for H, b in zip(made.H, made.b, strict=True):
            y = w
            for _ in range(steps):
                y = y - eta * (H @ y - b)
            ends.append(y)
        w = np.mean(ends, axis=0)
        path.append(w)
    return np.array(path)


class TestTheorem4:
    made = theorem4.problem()

    def test_the_construction(self):
        # the sum of the A_k is the second difference, whose minimum without mu is 1 - i / (N p + 2)
        size = theorem4.CLIENTS * theorem4.BLOCK + 1
        A = (self.made.H - theorem4.MU * np.eye(size)).sum(axis=0)
        np.testing.assert_allclose(A, 2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1), atol=1e-12)
        found = np.linalg.solve(A, self.made.b.sum(axis=0))
        np.testing.assert_allclose(found, 1 - np.arange(1, size + 1) / (size + 1), rtol=1e-9)

    def test_the_recursion_is_fedavg(self):
        rates = np.full((2, 6), 0.1)
        rates[1] = 0.04
        found = self.made.trajectories(rates, 7)
        for row, eta in zip(found, rates[:, 0], strict=True):
            np.testing.assert_allclose(row, by_steps(self.made, eta, 7, 6), rtol=1e-9, atol=1e-12)

    def test_the_fixed_point_is_fixed(self):
        for eta, steps in ((0.1, 10), (0.01, 2)):
            point = self.made.fixed_point(eta, steps)
            moved = self.made.moved(np.asarray(eta), steps)
            step = np.einsum("ijk,ik->j", moved, self.made.b - self.made.H @ point)
            assert np.abs(step).max() < 1e-12
        np.testing.assert_allclose(self.made.fixed_point(0.1, 1), self.made.optimum(), rtol=1e-9)

    def test_the_distance_tends_to_its_limit(self):
        assert self.made.limit() == pytest.approx(0.0772, abs=5e-5)
        for steps in (2, 10):
            distance = np.linalg.norm(self.made.fixed_point(1e-4, steps) - self.made.optimum())
            assert distance / ((steps - 1) * 1e-4) == pytest.approx(self.made.limit(), rel=1e-3)
        assert 10 < self.made.limit() / self.made.printed_bound() < 40

    @pytest.mark.slow
    def test_a_run_follows_the_recursion(self, tmp_path):
        outcome = theorem4.perform(Bench("smoke", 1, tmp_path, show=lambda line: None))
        assert outcome.claims[0].held


def needed(*by_steps):
    return {steps: np.asarray(rounds, float) for steps, rounds in enumerate(by_steps)}


def test_a_valley_lies_inside_and_seeds_agree():
    assert figure1.valley(needed([30, 32], [10, 11], [20, 21])).held
    assert figure1.valley(needed([math.inf, 30], [10, 11], [20, 21])).held
    assert not figure1.valley(needed([30, 32], [20, 21], [10, 11])).held
    flat = figure1.valley(needed([30, 32], [10, 11], [12, 9.5]))
    assert (flat.held, flat.why) == (False, "few seeds")


def test_one_is_below_another():
    lower, upper = np.array([1.0, 1.1, 0.9]), np.array([2.0, 2.2, 1.8])
    assert below(lower, upper).held
    assert below(upper, lower, "other data")[:2] == (False, "other data")
    unclear = below(lower, np.array([0.9, 1.2, 1.0]))
    assert unclear[:2] == (False, "few seeds")
    mean, half = unclear.numbers["difference, mean and half of its 95 % interval"]
    assert (mean, half) == (
        pytest.approx(-1 / 30),
        pytest.approx(4.3026527 * np.std([0.1, -0.1, -0.1], ddof=1) / 3**0.5),
    )
    assert below(lower, np.array([np.inf, 2.0, 2.0])).held
    assert not below(np.array([np.inf, 1.0, 1.0]), upper).held
    assert below(lower[:1], upper[:1]).held


def test_the_moved_target_is_the_paper_s_where_the_losses_are():
    least = figure1.LEAST[problems.ALIKE]
    runs = [history([math.log(10), 1.2, 0.9]), history([math.log(10), 1.0, least])]
    assert figure1.moved_target(problems.ALIKE, runs) == pytest.approx(0.95)


def test_schemes_that_are_not_finite_any_more(tmp_path):
    bench = Bench("cpu", 1, tmp_path)
    steady, lost = history(np.linspace(2, 1, 21)), history([2.0, 3.0] * 5 + [np.nan] * 11)
    above, between = history(np.linspace(2, 1.5, 21)), history(np.linspace(2, 1.2, 21))
    runs = {schemes.ORIGINAL: above, schemes.I: steady, schemes.II: lost, schemes.TRANSFORMED: between}

    def held(runs):
        return [claim.held for claim in schemes.unbalanced_claims(bench, "a", schemes.Schemes(runs, 0.9))]

    # lowest, II unstable, transformed stable, transformed slower, original slower
    assert held(runs) == [True, True, True, True, True]
    assert held(runs | {schemes.TRANSFORMED: lost}) == [True, True, False, True, True]
    assert held(runs | {schemes.I: lost}) == [False, None, True, False, False]
    assert held(runs | {schemes.ORIGINAL: history(np.linspace(2, 0.9, 21))})[0] is False
    synthetic = schemes.unbalanced_claims(bench, problems.ALIKE, schemes.Schemes(runs, 0.9))
    assert [claim.held for claim in synthetic] == [True, True, True, True, True, False]
    assert all(claim.quote and claim.place for claim in synthetic)


def test_claims_about_cohort_sizes(tmp_path):
    bench = Bench("cpu", 1, tmp_path)
    near, far = history(np.linspace(2, 1.00, 21)), history(np.linspace(2, 1.01, 21))
    assert [claim.held for claim in cohort_sizes.claims_of(bench, "a", {10: far, 100: near})] == [True, True]
    apart = history(np.linspace(2, 1.5, 21))
    assert [claim.held for claim in cohort_sizes.claims_of(bench, "a", {10: near, 100: apart})] == [False, False]


def test_small_digits_in_the_place_of_balanced_mnist():
    data = problems._even_digits()
    assert data.num_clients == problems.CLIENTS
    assert len(set(data.sizes.tolist())) == 1
