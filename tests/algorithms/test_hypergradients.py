"""Derivatives of what is recorded, with respect to everything real, in every layout and in both modes.

``test_sweep.py`` checks the training loss and the final state of every variant of every algorithm, coordinate by
coordinate, in the layouts ``turns`` and ``stacked``. Here are the quantities that a user tunes on (the validation loss,
one client's loss, a diagnostic), the other layouts, forward mode, a model of several layers, and what cannot be
differentiated. In double precision, against central differences along random directions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim import paths
from fedjax_sim.algorithms import Client, Sent
from fedjax_sim.engine.solver import Slot, Solver
from tests.algorithms.test_sweep import CASES, IDS, SIZES, TAU, arrays, batches_of, cohorts_of, examples_of, make

pytestmark = pytest.mark.usefixtures("x64")

sgd, adam = fjs.optim.sgd, fjs.optim.adam
ROUNDS, MOST = 3, 6
TEST_SIZES = (2, 1, 0, 3, 2, 1)
TURNS, STACKED = fjs.layout.turns(), fjs.layout.stacked()
LANES, STATIC = fjs.layout.lanes(3), fjs.layout.static_schedule(1)
MIX = np.array([0.7, -0.4, 0.9])  # of the three recorded quantities: one reverse pass checks all of them
FAST = "fedavg"

every_algorithm = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name, marks=[pytest.mark.xdist_group(name), pytest.mark.nightly])
        for name in CASES
    ],
)  # fmt: skip


def recorded(result, client):
    """The validation loss at the end, one client's, and the mean drift of all rounds, [3]."""
    validation, of_client = result.metrics["test_loss"][-1], result.metrics["client_loss"][-1, client]
    return jnp.stack([validation, of_client, jnp.sum(result.rounds["drift_mean"])])


def directions_of(theta, count, seed=4):
    """Random directions, [count, P] of the flattened ``theta``, in proportion to its entries."""
    flat = np.asarray(ravel_pytree(theta)[0])
    scales = np.where(flat == 0, 1.0, np.minimum(np.abs(flat), 1.0))
    return np.random.default_rng(seed).standard_normal((count, flat.size)) * scales


def differences(values, theta, directions):
    """Fourth-order central differences of ``values(theta)`` [3] along the directions, [count, 3]."""
    flat, unravel = ravel_pytree(theta)
    step, offsets = 1e-3, np.array([-2.0, -1.0, 1.0, 2.0])
    points = np.asarray(flat) + step * offsets[None, :, None] * directions[:, None, :]
    run = jax.jit(lambda points: jax.lax.map(lambda point: values(unravel(point)), points))
    found = np.asarray(run(points.reshape(-1, flat.size))).reshape(len(directions), 4, -1)
    return np.einsum("dop,o->dp", found, [1.0, -8.0, 8.0, -1.0]) / (12 * step)


def check(values_in, theta, layouts, count=3, *, steps=True):
    """Reverse mode in each of the layouts and forward mode in the first against differences of the forward run.

    ``steps`` is false for a method that takes no local steps, and so does not drift.
    """
    directions = directions_of(theta, count)
    expected = differences(values_in(TURNS), theta, directions)
    useful = np.abs(expected).max(axis=0) > 1e-6
    assert useful.all() if steps else useful[:2].all()
    size = np.abs(expected).max()
    for layout in layouts:
        gradient = jax.jit(jax.grad(lambda theta, layout=layout: values_in(layout)(theta) @ jnp.asarray(MIX)))(theta)
        found = directions @ np.asarray(ravel_pytree(gradient)[0])
        np.testing.assert_allclose(found, expected @ MIX, rtol=2e-6, atol=1e-8 * size, err_msg=type(layout).__name__)
    flat, unravel = ravel_pytree(theta)

    def forward(direction):
        return jax.jvp(lambda flat: values_in(layouts[0])(unravel(flat)), (flat,), (direction,))[1]

    found = jax.jit(jax.vmap(forward))(directions)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-8 * size, err_msg="forward mode")


# Every algorithm, on quadratics.


def quadratics():
    train, test = examples_of(3, SIZES), examples_of(4, TEST_SIZES)
    data = fjs.datasets.from_clients(train, test=test, client_ids=IDS)
    return data.with_example_weights(np.random.default_rng(5).uniform(0.5, 1.5, data.num_examples))


def theta_of(name, data):
    """All real leaves of an algorithm, the example weights and the initial parameters."""
    algorithm, _ = make(name)
    return {
        "algorithm": paths.real_leaves(algorithm),
        "weights": data.example_weights,
        "start": jnp.array([0.7, -1.1, 0.4, 1.3, -0.6, 0.9, -0.2]),
    }


def quadratic_values(name, data):
    algorithm, average = make(name)
    task = fjs.quadratic()

    def values_in(layout):
        def values(theta):
            train = fjs.make_train(
                task=task, rounds=ROUNDS, layout=layout, eval_every=ROUNDS, diagnostics=["drift"],
                cohort=fjs.cohort.given(cohorts_of(algorithm), average=average),
                work=fjs.local.given_steps(TAU, most=MOST), evaluate=fjs.per_client(task),
                batches=batches_of(algorithm, fjs.local.in_order(4)),
            )  # fmt: skip
            result = train(
                paths.replace(algorithm, theta["algorithm"]), data.replace(example_weights=theta["weights"]),
                jax.random.key(1), initial_params=theta["start"],
            )  # fmt: skip
            return recorded(result, 2)

        return values

    return values_in


@every_algorithm
def test_what_is_recorded_of_every_algorithm(name):
    """Lanes in reverse and forward mode; the static schedule of one lane is the derivative of turns (test_sweep.py)."""
    data = quadratics()
    check(quadratic_values(name, data), theta_of(name, data), (LANES,), steps=make(name)[0].requires.steps)


@pytest.mark.nightly
def test_what_is_recorded_in_every_layout():
    data = quadratics()
    check(quadratic_values(FAST, data), theta_of(FAST, data), (STATIC, STACKED))


# One model of two layers' worth of leaves, and all the kinds of hyper-parameters at once.


def labelled():
    rng = np.random.default_rng(9)

    def clients(sizes):
        return [(rng.standard_normal((n, 2)), rng.integers(0, 3, n)) for n in sizes]

    return fjs.datasets.from_clients(clients((3, 6, 4, 5)), test=clients((2, 3, 1, 2)), num_classes=3)


MODEL = fjs.models.LogisticRegression(3, param_dtype=jnp.float64)


def run_labelled(algorithm, data, weight_decay, start, layout, cohort):
    task = fjs.classification(MODEL, weight_decay=weight_decay)
    train = fjs.make_train(
        task=task, rounds=ROUNDS, eval_every=ROUNDS, batches=fjs.local.in_order(3), layout=layout, cohort=cohort,
        work=fjs.local.given_steps(TAU[:, :4], most=MOST), diagnostics=["drift"], evaluate=fjs.per_client(task),
    )  # fmt: skip
    return recorded(train(algorithm, data, jax.random.key(2), initial_params=start), 1)


def like_parameters(data, value):
    start = fjs.classification(MODEL).init(jax.random.key(3), data)
    return jax.tree.map(lambda leaf: jnp.asarray(value, jnp.float64), start), jax.tree.map(
        lambda leaf: leaf + 0.2 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), start
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["layers", "clients"])
def test_every_kind_of_hyper_parameter(kind):
    """Rates by layer, client and round, momentum, mu, Adam's decays, weight decay, data weights, initial parameters."""
    data = labelled()
    by_layer, start = like_parameters(data, 0.9)
    if kind == "layers":
        factors = {"params": {"Dense_0": {"bias": jnp.array(0.8), "kernel": jnp.array(1.1)}}}
        by_layer = jax.tree.map(jnp.multiply, by_layer, factors)
        algorithm = fjs.fedprox(
            client_optimizer=sgd(0.3, momentum=0.4), client_learning_rate=by_layer, mu=0.2,
            server_learning_rate=fjs.rates.over_rounds(np.array([1.0, 0.8, 1.2])),
        )  # fmt: skip
    else:
        algorithm = fjs.reweighted(
            fjs.fedavg(
                client_optimizer=adam(0.2, eps=0.02, eps_root=1e-3), server_optimizer=fjs.optim.fedadam(tau=0.1),
                client_learning_rate=fjs.rates.over_clients(np.array([0.5, 1.0, 0.7, 0.9])),
            ),
            np.array([0.2, -0.5, 0.9, 0.1]),
        )  # fmt: skip
    algorithm = arrays(algorithm)
    weights = np.random.default_rng(7).uniform(0.5, 1.5, data.num_examples)
    theta = {
        "algorithm": paths.real_leaves(algorithm),
        "decay": jnp.array(0.1),
        "weights": jnp.asarray(weights),
        "start": start,
    }

    def values_in(layout):
        def values(theta):
            return run_labelled(
                paths.replace(algorithm, theta["algorithm"]), data.replace(example_weights=theta["weights"]),
                theta["decay"], theta["start"], layout, fjs.cohort.full(),
            )  # fmt: skip

        return values

    check(values_in, theta, (TURNS,))


# What cannot be differentiated.


def test_structure_is_refused_with_the_alternative():
    algorithm = fjs.scaffold(client_optimizer=sgd(0.1), option="I")

    def value(option):
        return paths.replace(algorithm, {"option": option}).client_optimizer.learning_rate

    with pytest.raises(ValueError, match=r"'option' = 'I', which is structure.*make one Scaffold for each value"):
        jax.grad(value)(1.0)


@pytest.mark.slow
def test_q_fedavg_where_the_loss_is_zero():
    """As in a lane whose client has not begun: a power of 0 has no derivative, and NaN times 0 is NaN."""
    algorithm = fjs.qfedavg(client_optimizer=sgd(0.1), lipschitz=2.0)
    blank = Client(**dict.fromkeys(Client._fields, ()))
    client = blank._replace(steps=jnp.int32(2), survey=jnp.zeros(()))

    def total(given):
        sent, y = Sent(jnp.zeros(2)), given["y"]
        messages, _ = algorithm.replace(q=given["q"]).finish(y - sent.params, y, sent, (), client)
        return jnp.sum(messages["step"].value) + messages["scale"].value

    value, gradient = jax.value_and_grad(total)({"q": jnp.array(0.7), "y": jnp.array([0.3, -0.2])})
    assert value == 0
    assert np.isfinite(ravel_pytree(gradient)[0]).all()
    assert total({"q": jnp.array(0.0), "y": jnp.zeros(2)}) == 2.0  # q = 0 weighs every client alike


def test_idle_steps_of_a_survey_have_examples():
    """The mean of no examples is NaN, and so is its derivative, which nothing masks."""
    client = Client(**dict.fromkeys(Client._fields, ()))._replace(size=jnp.int32(3))
    slot = Slot(client, jnp.int32(0), (), jax.random.key(0))
    data = fjs.datasets.quadratics(num_clients=2, dim=2, sizes=[3, 9], seed=0)
    solver = Solver(fjs.qfedavg(client_optimizer=sgd(0.1)), fjs.quadratic(), fjs.local.in_order(2), data)
    drawn = [solver.surveyor.draw(slot, jnp.int32(k)).batch for k in range(4)]
    assert [np.asarray(batch.rows)[batch.mask].tolist() for batch in drawn] == [[0, 1], [2], [2], [2]]


@pytest.mark.slow
def test_a_survey_in_several_batches_has_a_derivative():
    task = fjs.functions(lambda key: jnp.ones(()), lambda x, examples: 0.5 * (jnp.sin(x) - examples["y"]) ** 2)
    y = jnp.arange(6.0)
    data = fjs.datasets.from_clients([{"y": y[:1]}, {"y": y[1:]}])
    train = fjs.make_train(
        task=task,
        rounds=2,
        eval_every=2,
        batch_size=2,
        cohort=fjs.cohort.full(),
        work=fjs.local.steps(1),
        layout=STACKED,
    )

    def loss(rate):
        return train(fjs.qfedavg(client_optimizer=sgd(rate), lipschitz=2.0), data, jax.random.key(0)).metrics["loss"][
            -1
        ]

    value, tangent = jax.jit(lambda rate: jax.jvp(loss, (rate,), (1.0,)))(0.1)
    assert jax.jit(jax.grad(loss))(0.1) == pytest.approx(tangent, rel=1e-9)
    assert value > 0
