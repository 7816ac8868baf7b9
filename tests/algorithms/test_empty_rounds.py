"""A round in which nobody takes part leaves the server as it was, whichever part of a run is to blame."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.engine.plan import Guard, Plan
from fedjax_sim.engine.rounds import init_state, run_round

KEY = jax.random.key(0)
SGD = fjs.optim.sgd(0.1)
PLAN = Plan(
    task=fjs.quadratic(start=0.5), cohort=fjs.cohort.full(), work=fjs.local.steps(1), batches=fjs.local.full_batch(),
    layout=fjs.layout.turns(),
)  # fmt: skip


def given(cohort):
    return PLAN._replace(cohort=fjs.cohort.given(np.array([cohort])))


def steps(tau):
    return PLAN._replace(work=fjs.local.given_steps(jnp.array([tau]), most=1))


def failing(dropout):
    return PLAN._replace(system=fjs.systems.devices(seconds_per_step=1.0, dropout=dropout))


def late(seconds):
    deadline = fjs.systems.deadline(seconds)
    return PLAN._replace(system=fjs.systems.devices(seconds_per_step=1.0, policy=deadline))


SKIPPING = PLAN._replace(guard=Guard(skip=True))

# Which part may leave a round empty; two runs of one program, of which the first has clients and the second has none.
CLAUSES = {
    "cohort": (given([0, 1]), given([-1, -1])),
    "work": (steps([0, 1]), steps([0, 0])),
    "guard": (SKIPPING, SKIPPING),
    "system: failures": (failing(0.0), failing(1.0)),
    "system: a deadline": (late(2.0), late(0.5)),
}


@pytest.fixture(scope="module")
def data():
    return fjs.datasets.quadratics(num_clients=2, dim=3, seed=0)


@jax.jit
def one_round(plan):
    """A round of a server that is in motion: its state before and after, and how many took part."""
    state = init_state(plan)
    state = state._replace(server=jax.tree.map(lambda leaf: leaf + 1, state.server))
    after, record = run_round(plan, state, jnp.int32(0))
    return state.server, after.server, record["cohort_size"]


@pytest.mark.parametrize("clause", CLAUSES)
def test_the_momentum_moves_with_clients_only(clause, data):
    somebody, nobody = CLAUSES[clause]
    for plan in (somebody, nobody):  # the other parts give no reason to ask
        asked = (plan.cohort.may_be_empty, plan.work.may_drop, plan.guard.skip)
        system = plan.system is not None and plan.system.may_be_empty
        expected = [part == clause.split(":")[0] for part in ("cohort", "work", "guard", "system")]
        assert [*asked, system] == expected
    method = fjs.fedavgm(momentum=0.9, client_optimizer=SGD, client_learning_rate=1.0)
    before, after, size = one_round(somebody._replace(algorithm=method, dataset=data, key=KEY))
    assert size > 0
    assert not np.array_equal(after.params, before.params)
    broken = method.replace(client_learning_rate=np.nan) if clause == "guard" else method
    before, after, size = one_round(nobody._replace(algorithm=broken, dataset=data, key=KEY))
    assert size == 0
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.slow
def test_a_gradient_of_another_run_is_not_used_again():
    """A run in the state of another counts its rounds from 0 again, and its first exchange may find nobody."""
    problem = fjs.datasets.quadratics(num_clients=4, dim=2, seed=0)

    def train(first):
        cohort = fjs.cohort.given([[0, 1]], earlier=fjs.cohort.given([first]))
        return fjs.make_train(
            task=fjs.quadratic(start=1.0), rounds=1, cohort=cohort, work=fjs.local.steps(2),
            batches=fjs.local.full_batch(),
        )  # fmt: skip

    method = fjs.feddane(client_optimizer=SGD)
    before = train([2, 3])(method, problem, KEY)
    after = train([-1, -1])(method, problem, KEY, initial_state=before.state)
    np.testing.assert_array_equal(after.params, before.params)
