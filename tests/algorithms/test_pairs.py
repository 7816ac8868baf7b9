"""Two features at a time, whose formulas meet: runs against plain numpy, in double precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim.engine.plan import Guard, Plan
from fedjax_sim.engine.rounds import init_state, run_round
from tests import reference
from tests import reference_methods as methods
from tests.algorithms.test_golden import KEY, TAU, LogisticProblem, QuadraticProblem, assert_equal, drawn, follow

COHORT = fjs.cohort.with_replacement(7)
RATES = np.array([0.06, 0.05, 0.04])
DROPPED = TAU[[0, 1, 4]] * (np.arange(6) != 2)  # client 2 in every round


@functools.cache
def problem_and_draws():
    """The clients of each round, in each as often as it was drawn."""
    problem = QuadraticProblem(fjs.local.full_batch())
    counts = [
        (np.asarray(draw.ids), np.rint(7 * np.asarray(draw.weights)).astype(int))
        for draw in drawn(COHORT, problem.dataset, len(RATES))
    ]
    return problem, [np.repeat(ids, count) for ids, count in counts]


def trajectory(asked, method, problem, *, rounds):
    """x_0 .. x_R, round by round: one round is a smaller program than a run."""
    plan = asked._replace(algorithm=method, dataset=problem.dataset, key=KEY)
    state = init_state(plan, problem.initial_params())
    following = jax.jit(lambda state, t: run_round(plan, state, t)[0])
    models = [state.server.params]
    for t in range(rounds):
        state = following(state, jnp.int32(t))
        models.append(state.server.params)
    return models


def scheme_one(problem, draws, *, etas, tau_eff, rho):
    """FedNova where a draw that does no step counts as y_i = x: x <- x - tau_eff eta (1/K) sum over draws of d_i.

    tau_eff is of those who took part: the mean over their draws of s_i, or a number.
    """
    x, models = problem.x0, [problem.x0]
    for t, (draw, eta) in enumerate(zip(draws, etas, strict=True)):
        taking = [i for i in draw if DROPPED[t, i] > 0]
        assert 0 < len(taking) < len(draw)
        s = {i: methods.slope(DROPPED[t, i], 1.0, rho=rho) for i in taking}
        ends = {i: reference.solve(problem.clients[i], x, DROPPED[t, i], eta, rho=rho)[0] for i in taking}
        steps = np.mean([s[i] for i in taking]) if tau_eff is None else tau_eff
        x = x + steps * sum((ends[i] - x) / s[i] for i in taking) / len(draw)
        models.append(x)
    return models


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tau_eff", "rho", "skip"),
    [(None, 0.5, False), *(pytest.param(3.0, 0.0, skip, marks=pytest.mark.slow) for skip in (False, True))],
    ids=["sum w s", "a number", "skipped, not dropped"],
)  # fmt: skip
def test_scheme_one_and_dropped_clients_and_normalised_changes(x64, tau_eff, rho, skip):
    problem, draws = problem_and_draws()
    tau = np.where(np.arange(6) == 2, 2, DROPPED) if skip else DROPPED
    asked = Plan(
        task=problem.task, cohort=COHORT, work=fjs.local.given_steps(tau, most=6), batches=problem.batches,
        layout=fjs.layout.turns(), guard=Guard(skip=skip),
    )  # fmt: skip
    rate, etas = fjs.rates.over_rounds(RATES), RATES
    if skip:  # of those who are there client 2 diverges
        rate, etas = fjs.rates.over_clients(np.where(np.arange(6) == 2, 1e308, 0.05)), np.full_like(RATES, 0.05)
    method = fjs.fednova(
        tau_eff=tau_eff, client_optimizer=fjs.optim.sgd(1.0, momentum=rho or None), client_learning_rate=rate
    )
    models = trajectory(asked, method, problem, rounds=len(RATES))
    assert_equal(models, scheme_one(problem, draws, etas=etas, tau_eff=tau_eff, rho=rho))


@pytest.mark.slow
def test_scheme_one_and_dropped_clients_and_the_direction_of_fedcm(x64):
    """At alpha = 1 it is FedNova here, too: H is not made smaller for those who are missing in D."""
    problem, draws = problem_and_draws()
    asked = Plan(
        task=problem.task, cohort=COHORT, work=fjs.local.given_steps(DROPPED, most=6), batches=problem.batches,
        layout=fjs.layout.turns(),
    )  # fmt: skip
    method = fjs.fedcm(
        alpha=1.0, scaling="direction", client_optimizer=fjs.optim.sgd(1.0),
        client_learning_rate=fjs.rates.over_rounds(RATES),
    )  # fmt: skip
    models = trajectory(asked, method, problem, rounds=len(RATES))
    assert_equal(models, scheme_one(problem, draws, etas=RATES, tau_eff=None, rho=0.0))


@pytest.mark.slow
def test_anchors_and_shuffled_batches(x64):
    """Full gradients are of every example once, and the steps after them take the batches that they take anyway."""
    problem = LogisticProblem(fjs.local.shuffled(4), 4)
    asked = Plan(
        task=problem.task, cohort=fjs.cohort.full(average="plain"), work=fjs.local.steps(2), batches=problem.batches,
        layout=fjs.layout.turns(),
    )  # fmt: skip
    local, start = {"client_optimizer": fjs.optim.sgd(0.1)}, problem.initial_params()
    scaffold = follow(asked, fjs.scaffold(option="I", **local), problem.dataset, start, 1)
    expected = [client.full_gradient(problem.x0) for client in problem.clients]
    kept = [jax.tree.map(lambda leaf, i=i: leaf[i], scaffold.state.clients) for i in range(6)]
    assert_equal([ravel_pytree(one)[0] for one in kept], expected)
    # with control variates of zero a round of SCAFFOLD is one of FedAvg
    assert_equal(scaffold.x, follow(asked, fjs.fedavg(**local), problem.dataset, start, 1).x)
