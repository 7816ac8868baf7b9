"""Eight rounds for golden tests of methods, and how one is compared with its reference."""

import numpy as np

import fedjax_sim as fjs
from tests import reference_methods as methods
from tests.algorithms import test_golden
from tests.algorithms.test_golden import assert_equal

COHORTS = np.vstack([test_golden.COHORTS, [[0, 1, 3, 4], [2, -1, 5, 0], [3, 1, 4, 2]]])
TAU = np.vstack([test_golden.TAU, [[2, 1, 3, 0, 2, 1], [1, 2, 3, 4, 5, 6], [3, 1, 0, 5, 2, 2]]])
FULL, FULL_TAU = np.tile(np.arange(6), (8, 1)), TAU.copy()
FULL_TAU[3] = 0  # everybody is dropped
ROUND_RATES = np.array([0.06, 0.05, 0.04, 0.03, 0.02, 0.05, 0.03, 0.04])
SERVER_RATES = np.array([1.0, 0.7, 1.0, 1.0, 1.4, 0.8, 1.2, 1.0])


def by_round(t, i):
    return ROUND_RATES[t]


def setting(problem, *, scale=1.0, eta=by_round, **more):
    """The reference's side of :func:`both`; ``scale`` multiplies the rates."""
    more = {"cohorts": COHORTS, "tau": TAU, "eta_g": lambda t: SERVER_RATES[t], **more}
    return methods.Run(problem.clients, problem.x0, eta=lambda t, i: scale * eta(t, i), **more)


def client(*, scale=1.0, rate=None, rho=None, nesterov=False, gamma=None):
    """The local solver; with a momentum of 0.0 it has the program of any other one."""
    decay = {} if gamma is None else {"decay": gamma}
    rate = fjs.rates.over_rounds(ROUND_RATES) if rate is None else rate
    solver = fjs.optim.sgd(scale, momentum=rho, nesterov=nesterov, **decay)
    return {"client_optimizer": solver, "client_learning_rate": rate}


def both(**options):
    """The local solver and the server's step sizes."""
    return {**client(**options), "server_learning_rate": fjs.rates.over_rounds(SERVER_RATES)}


def check(problem, algorithm, expected, models=None, layout=None):
    """The package's x_0 .. x_T are the reference's; in a round in which nobody took part nothing moves."""
    run = expected.run
    average = None if run.average == algorithm.requires.average else run.average
    given = {"cohorts": np.asarray(run.cohorts), "tau": run.tau, "average": average, "layout": layout}
    result = test_golden.run(problem, algorithm, **given)
    models = methods.trajectory(expected) if models is None else models
    assert np.isfinite(models).all()
    assert np.linalg.norm(models[-1] - models[0]) > 1e-3
    assert_equal(result.x, models)
    for t in range(len(run.cohorts)):
        if not expected.taking_part(t):
            np.testing.assert_array_equal(result.x[t + 1], result.x[t])
    return result
