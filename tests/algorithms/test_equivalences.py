"""Methods that must coincide, the minima they must find, and the distance at which local steps must stop."""

import functools

import numpy as np
import pytest

import fedjax_sim as fjs
from tests.algorithms.test_closed_forms import (
    SHARES,
    TAU,
    N,
    assert_equal,
    dataset_of,
    hessians_and_terms,
    moved_matrices,
    recursion,
    sgd,
    trajectory,
)

pytestmark = pytest.mark.slow

X0 = np.array([1.0, -2.0, 0.5])
EQUAL, ETA, ROUNDS = np.full(N, 5), 0.1, 60

follow = functools.partial(trajectory, rounds=ROUNDS)


@functools.cache
def data():
    return dataset_of(*hessians_and_terms())


def local():
    return {"client_optimizer": sgd(ETA)}


def apart(a, b):
    """That two trajectories differ: an equivalence is worth nothing where its condition is not needed."""
    return np.abs(a - b).max() > 1e-3


def test_fedcm_without_its_momentum(x64):
    # alpha = 1: plain-mean FedAvg; with the scaling of the direction plain-mean FedNova
    cm, directed = fjs.fedcm(alpha=1.0, **local()), fjs.fedcm(alpha=1.0, scaling="direction", **local())
    plain = follow(fjs.fedavg(**local()), data(), TAU, X0, average="plain")
    assert_equal(follow(cm, data(), TAU, X0), plain)
    nova = follow(fjs.fednova(**local()), data(), TAU, X0, average="plain")
    assert_equal(follow(directed, data(), TAU, X0), nova)
    assert apart(plain, nova)
    assert apart(follow(cm.replace(alpha=0.5), data(), TAU, X0), plain)


def test_methods_with_control_variates(x64):
    # equal tau, everybody: VRL-SGD is SCAFFOLD II (v_i = c_i - c), FedNova with variance reduction its weighted form
    scaffold, nova = fjs.scaffold(**local()), fjs.fednova(variance_reduction=True, **local())
    plain = follow(scaffold, data(), EQUAL, X0)
    assert_equal(follow(fjs.vrl_sgd(**local()), data(), EQUAL, X0), plain)
    weighted = follow(scaffold, data(), EQUAL, X0, average="sample")
    assert_equal(follow(nova, data(), EQUAL, X0), weighted)
    assert apart(plain, weighted)
    # unequal tau: they part
    assert apart(follow(fjs.vrl_sgd(**local()), data(), TAU, X0), follow(scaffold, data(), TAU, X0))
    assert apart(follow(nova, data(), TAU, X0), follow(scaffold, data(), TAU, X0, average="sample"))


def test_fedavgm_is_a_recursion(x64):
    # x_{t+1} - x_t = eta_g Delta(x_t) + beta (x_t - x_{t-1}), Delta(x) = sum p_i K_i (e_i - H_i x)
    H, e = hessians_and_terms()
    K = moved_matrices(H, TAU, ETA)
    for beta in (0.0, 0.9):
        x = follow(fjs.fedavgm(momentum=beta, server_learning_rate=0.7, **local()), data(), TAU, X0)
        delta = np.einsum("i,ijk,tik->tj", SHARES, K, e - np.einsum("ijk,tk->tij", H, x[:-1]))
        before = np.concatenate([x[:1], x[:-2]])
        assert_equal(x[1:] - x[:-1], 0.7 * delta + beta * (x[:-1] - before))


def test_methods_that_reduce_to_fedavg(x64):
    weighted = follow(fjs.fedavg(**local()), data(), TAU, X0)
    # FedAWARE's weights by size, without memory, everybody there
    assert_equal(follow(fjs.fedaware(weights="sample", alpha=1.0, **local()), data(), TAU, X0), weighted)
    # local SGD is FedAvg of everybody
    assert_equal(follow(fjs.local_sgd(**local()), data(), TAU, X0), weighted)
    # one step each, however much work is given, is gradient descent
    one = follow(fjs.fedavg(**local()), data(), np.ones(N), X0)
    assert_equal(follow(fjs.large_batch_sgd(**local()), data(), TAU, X0), one)
    # agnostic weights that do not learn stay the clients' shares of the objective
    assert_equal(follow(fjs.afl(weight_learning_rate=0.0, **local()), data(), TAU, X0, average="sample"), weighted)


def test_qfedavg_of_q_zero(x64):
    # q = 0: every client counts alike
    plain = follow(fjs.fedavg(**local()), data(), TAU, X0, average="plain")
    q = fjs.qfedavg(q=0.0, client_optimizer=sgd(1.0), client_learning_rate=ETA)
    assert_equal(follow(q, data(), TAU, X0, average="plain"), plain)


def test_fednova_s_effective_steps(x64):
    # SGD: s_i = tau_i, so "slope" and "steps" are one, and so is the number sum p_i tau_i
    nova = fjs.fednova(**local())
    by_slope = follow(nova, data(), TAU, X0)
    assert_equal(follow(fjs.fednova(tau_eff="steps", **local()), data(), TAU, X0), by_slope)
    assert_equal(follow(fjs.fednova(tau_eff=SHARES @ TAU, **local()), data(), TAU, X0), by_slope)
    # equal tau_i with a proximal term: FedProx if tau_eff = sum w_i s_i, a longer step if it is sum w_i tau_i
    prox = follow(fjs.fedprox(mu=0.8, **local()), data(), EQUAL, X0)
    assert_equal(follow(fjs.fednova(mu=0.8, tau_eff="slope", **local()), data(), EQUAL, X0), prox)
    scale = 5 * 0.08 / (1 - (1 - 0.08) ** 5)  # tau / s
    longer = follow(fjs.fedprox(mu=0.8, server_learning_rate=scale, **local()), data(), EQUAL, X0)
    assert_equal(follow(fjs.fednova(mu=0.8, **local()), data(), EQUAL, X0), longer)


def test_identical_clients_are_one_centralised_client(x64):
    H, e = hessians_and_terms()
    same = dataset_of(np.broadcast_to(H[0], H.shape), np.broadcast_to(e[0], e.shape))
    x, central = X0, [X0]
    for _ in range(ROUNDS):
        for _ in range(5):
            x = x - ETA * (H[0] @ x - e[0])
        central.append(x)
    for algorithm in (
        fjs.vrl_sgd(**local()),
        fjs.fednova(variance_reduction=True, **local()),
        fjs.fedcm(alpha=1.0, **local()),
        fjs.fedcm(alpha=1.0, scaling="direction", **local()),
        fjs.fedaware(alpha=1.0, **local()),  # the hull is a point: lambda is anything, d is not
    ):
        assert_equal(follow(algorithm, same, EQUAL, X0), central)


def test_feddyn_finds_the_minimum(x64):
    # Fixed point: y_i = x, h_i = grad F_i(x), and sum h_i = 0 (paper) or, of h_i = -alpha_i b_i with alpha_i ~ 1 / n_i,
    # sum b_i = 0 (published code): the minimum of the plain or of the sample-weighted objective, whatever the tau_i.
    H, e = hessians_and_terms()
    for form, weights in [("paper", np.full(N, 1 / N)), ("code", SHARES)]:
        x = trajectory(fjs.feddyn(alpha=1.0, form=form, **local()), data(), TAU, X0)
        assert_equal(x[-1], np.linalg.solve(np.einsum("i,ijk", weights, H), weights @ e))


class TestLiTheorem4:
    """Li et al. 2020, Theorem 4 and appendix C: with E > 1 FedAvg stops at a distance ~ (E - 1) eta of the minimum.

    N = 5, p = 4, mu = 2e-4; F_k = 1/2 (w^T A_k w - 2 b_k^T w + mu |w|^2), b_1 = e_1, the other b_k = 0.
    """

    num, p, mu = 5, 4, 2e-4

    @functools.cached_property
    def problem(self):
        size = self.num * self.p + 1
        A = np.zeros((self.num, size, size))
        for k in range(self.num):  # B_k of eq. 25: a path over one block of p + 1 coordinates
            for j in range(k * self.p, (k + 1) * self.p):
                A[k, j : j + 2, j : j + 2] += [[1, -1], [-1, 1]]
        A[0, 0, 0] += 1
        A[-1, -1, -1] += 1
        b = np.zeros((self.num, size))
        b[0, 0] = 1
        return A + self.mu * np.eye(size), b

    def minimum(self):
        H, b = self.problem
        return np.linalg.solve(H.mean(axis=0), b.mean(axis=0))

    def constant(self):
        """lim distance / ((E - 1) eta) = 1/2 |Hbar^-1 mean_i H_i (H_i w* - b_i)|."""
        H, b = self.problem
        residual = np.einsum("ijk,k->ij", H, self.minimum()) - b
        return np.linalg.norm(np.linalg.solve(H.mean(axis=0), np.einsum("ijk,ik->j", H, residual) / self.num)) / 2

    def test_the_construction(self):
        # w*_i = 1 - i / (Np + 2) but for mu; the printed lower bound is true and about 20 times below
        H, b = self.problem
        size = len(b[0])
        unpenalised = np.linalg.solve((H - self.mu * np.eye(size)).sum(axis=0), b.sum(axis=0))
        assert_equal(unpenalised, 1 - np.arange(1, size + 1) / (size + 1))
        assert self.constant() == pytest.approx(0.0772, abs=5e-5)
        printed = np.linalg.norm(H[0] @ H[1] @ self.minimum()) / 16
        assert 10 < self.constant() / printed < 40

    def test_a_constant_step_stops_at_a_distance(self, x64):
        H, b = self.problem
        dataset = fjs.datasets.quadratics_from(H, b)
        measured = {}
        for eta in (0.01, 0.1):
            for E in (1, 2, 5, 10):
                steps = np.full(self.num, E)
                _, fixed = recursion(
                    H, b, moved_matrices(H, steps, eta), np.full(self.num, 0.2), np.zeros(len(b[0])), 0
                )
                # the fixed point does not depend on eta_g, which only hastens the way to it
                algorithm = fjs.fedavg(client_optimizer=sgd(eta), server_learning_rate=1.0 / (E * eta))
                x = trajectory(algorithm, dataset, steps, np.zeros(len(b[0])), rounds=6000, most=10)[-1]
                np.testing.assert_allclose(x, fixed, rtol=0, atol=1e-8)
                measured[eta, E] = np.linalg.norm(x - self.minimum()) / (max(E - 1, 1) * eta)
        assert measured[0.01, 1] < 1e-6  # E = 1 is gradient descent
        assert measured[0.1, 1] < 1e-6
        assert [round(measured[0.01, E], 4) for E in (2, 5, 10)] == [0.0776, 0.0778, 0.0780]
        assert [round(measured[0.1, E], 4) for E in (2, 5, 10)] == [0.0819, 0.0829, 0.0823]

    def test_a_decaying_step_does_not(self, x64):
        # eta_t = (1/5) / (5 + a t), a = 1e-4, t counting local steps
        H, b = self.problem
        dataset, E, rounds = fjs.datasets.quadratics_from(H, b), 10, 16_000
        steps, distance = np.full(self.num, E), {}
        for a in (0.0, 1e-4):
            rate = fjs.rates.over_rounds(0.2 / (5 + a * E * np.arange(rounds)))
            algorithm = fjs.fedavg(client_optimizer=sgd(1.0), client_learning_rate=rate)
            x = trajectory(algorithm, dataset, steps, np.zeros(len(b[0])), rounds=rounds, most=10)
            distance[a] = np.linalg.norm(x[rounds // 2 :: rounds // 4] - self.minimum(), axis=1)
        assert distance[0.0] == pytest.approx(9 * 0.04 * self.constant(), rel=0.05)  # it stalls
        assert (distance[1e-4][:-1] - distance[1e-4][1:] > 1e-3).all()
        assert distance[1e-4][-1] < distance[0.0][-1] / 3
