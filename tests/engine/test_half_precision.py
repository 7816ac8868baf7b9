"""Models in bfloat16: what many clients or pieces add up to is not lost. 256 and 1 are 256 there."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.loops import Read
from fedjax_sim.engine.layout.base import Bounds
from fedjax_sim.engine.layout.queue import run_bounded, run_queue
from fedjax_sim.engine.layout.stacked import run_stacked
from fedjax_sim.engine.layout.turns import Turns, run_turns
from fedjax_sim.engine.solver import Left, Progress
from fedjax_sim.models import passes
from tests.engine.test_layouts import Counted


class Halves(NamedTuple):
    """A solver whose clients each leave 1 in half precision, with the weight 1/1024."""

    surveyor = None

    def micro_steps(self, slot):
        return slot.steps

    all_micro_steps = micro_steps

    def begin(self, sent, c_i, slot):
        return Progress(jnp.bfloat16(0), None, c_i)

    def step(self, sent, slot, progress, k, *, serial=False, drawn=None):
        return progress._replace(y=progress.y + 1)

    def finish(self, sent, c_i, slot, progress):
        return Left({"sum": progress.y}, {"sum": jnp.float32(1 / 1024)}, {}, c_i)


@pytest.mark.parametrize("run", [run_turns, functools.partial(run_queue, lanes=3)], ids=["turns", "lanes"])
def test_an_average_in_half_precision_is_that_of_all_clients(run):
    """In the layout turns it stopped at a quarter."""
    ones = jnp.ones(1024, jnp.int32)
    found = jax.jit(lambda slots: run(Halves(), None, ones, slots).sums["sum"])(Counted(ones, ones))
    assert found == 1
    assert found.dtype == jnp.bfloat16


class Held(Halves):
    """A solver whose clients leave what they were sent."""

    def begin(self, sent, c_i, slot):
        return Progress(sent, None, Read.of(c_i))

    def step(self, sent, slot, progress, k, *, serial=False, drawn=None):
        return progress


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(functools.partial(Turns().run, bounds=Bounds(1, 1024)), id="turns"),
        pytest.param(functools.partial(run_queue, lanes=1, bound=1024), id="lanes", marks=pytest.mark.slow),
    ],
)
def test_the_derivative_in_what_is_sent_is_that_of_all_clients(run):
    """It is a sum over the clients too, and stopped at a quarter."""
    ones = jnp.ones(1024, jnp.int32)
    average = lambda sent: run(Held(), sent, ones, Counted(ones, ones)).sums["sum"].astype(jnp.float32)
    assert jax.jit(jax.grad(average))(jnp.bfloat16(0)) == 1


class Reading(Halves):
    """A solver whose steps read what the client keeps, and its survey."""

    def begin(self, sent, c_i, slot):
        return Progress(jnp.bfloat16(0), None, Read.of(c_i))

    def draw(self, slot, k):
        return k

    def step(self, sent, slot, progress, k, *, serial=False, drawn=None):
        return progress._replace(y=progress.y + progress.kept.value + slot.survey)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Turns().run, id="turns"),
        pytest.param(functools.partial(run_bounded, lanes=1), id="lanes"),
        pytest.param(run_stacked, id="stacked"),
    ],
)
def test_the_derivative_in_what_a_client_holds_is_that_of_all_steps(run):
    """It is a sum over them, and stopped at a quarter."""

    def average(held):
        slots = Counted(jnp.array([512], jnp.int32), jnp.zeros(1, jnp.int32), held)
        return run(Reading(), None, held, slots, bounds=Bounds(512, 512)).sums["sum"].astype(jnp.float32)

    assert jax.jit(jax.grad(average))(jnp.zeros(1, jnp.bfloat16)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", [fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2)], ids=repr)
def test_the_derivative_in_a_control_variate_is_that_of_all_steps(layout):
    """Of two clients with linear losses in two rounds of 512 steps of 1/512: their c_i and c cancel each other."""
    data = fjs.datasets.from_clients([{"y": np.full((1, 1), 0.5, np.float32)} for _ in range(2)])
    task = fjs.functions(
        lambda key: jnp.zeros(1, jnp.bfloat16), lambda x, examples: -x[0].astype(jnp.float32) * examples["y"][:, 0]
    )
    train = fjs.make_train(
        task=task, rounds=2, eval_every=2, cohort=fjs.cohort.full(), work=fjs.local.steps(512),
        batches=fjs.local.full_batch(), layout=layout,
    )  # fmt: skip
    method = fjs.scaffold(client_optimizer=fjs.optim.sgd(1 / 512))
    final = lambda y: train(method, data.replace(examples={"y": y}), jax.random.key(0)).params[0].astype(jnp.float32)
    np.testing.assert_allclose(jax.jit(jax.grad(final))(data.examples["y"]), 1, rtol=0.02)


def test_the_derivative_in_a_number_is_that_of_all_parameters():
    """A rate, a weight, a normaliser, an optimiser's own number: XLA's sum over a matrix in bfloat16 stopped at 832."""
    trees, sgd = fjs.trees, fjs.optim.sgd
    ways = [
        (2000, trees.scale),
        (2000, lambda r, tree: trees.add_scaled(tree, r, tree)),
        (2000, lambda r, tree: trees.multiply(tree, r)),
        (-2000, lambda r, tree: trees.divide(tree, r)),
        (-2000, lambda r, tree: sgd(r).update(tree, sgd(r).init(tree), tree)[0]),
    ]

    @jax.jit
    def derivatives(r, tree, c):
        return [jax.grad(lambda r, way=way: jnp.sum(c * way(r, tree).astype(jnp.float32)))(r) for _, way in ways]

    found = derivatives(1.0, jnp.ones((400, 500), jnp.bfloat16), jnp.full((400, 500), 0.01))
    np.testing.assert_allclose(found, [expected for expected, _ in ways], rtol=0.01)


def test_the_derivative_of_an_evaluation_is_that_of_all_blocks(monkeypatch):
    monkeypatch.setattr(passes, "ROWS", 1)
    data = fjs.datasets.from_clients([{"y": jnp.zeros((1024, 1))}])
    loss = lambda x, examples: examples["y"][:, 0].astype(x.dtype) - x[0]
    task = fjs.functions(lambda key: jnp.zeros(1, jnp.bfloat16), loss)
    mean = lambda x: passes.mean_values(task, x, data)["loss"].astype(jnp.float32)
    assert jax.jit(jax.grad(mean))(jnp.ones(1, jnp.bfloat16)) == -1


@pytest.mark.slow
def test_derivatives_in_the_first_model_are_those_of_single_precision():
    """Of clients' own models, and of a diagnostic that reads everybody's data."""
    y = np.random.default_rng(0).uniform(0.5, 1.5, 600).astype(np.float32)
    clients = [{"y": np.full((1, 1), one)} for one in y]
    data = fjs.datasets.from_clients(clients, test=clients)

    def derivatives(dtype):
        task = fjs.functions(
            lambda key: jnp.zeros(1, dtype), lambda x, examples: (x[0].astype(jnp.float32) - examples["y"][:, 0]) ** 2
        )
        train = fjs.make_train(
            task=task, rounds=1, eval_every=1, cohort=fjs.cohort.uniform(2), work=fjs.local.steps(1),
            batches=fjs.local.full_batch(), layout=fjs.layout.turns(), evaluate=fjs.per_client(task),
            diagnostics=["dissimilarity"],
        )  # fmt: skip

        def found(start):
            method = fjs.apfl(client_optimizer=fjs.optim.sgd(0.25), alpha=0.01)
            result = train(method, data, jax.random.key(0), initial_params=start)
            return jnp.stack([result.metrics["personal_loss"][0], result.rounds["dissimilarity"][0]])

        return np.asarray(jax.jit(jax.jacrev(found))(jnp.zeros(1, dtype)), np.float32)

    np.testing.assert_allclose(derivatives(jnp.bfloat16), derivatives(jnp.float32), rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("method", [fjs.large_batch_sgd, pytest.param(fjs.fedavg, marks=pytest.mark.slow)])
def test_a_full_gradient_in_many_pieces(method):
    """The first takes it as a survey."""
    x = jnp.ones((512, 1), jnp.bfloat16)
    train = fjs.make_train(
        task=fjs.functions(lambda key: jnp.zeros(1, jnp.bfloat16), lambda y, examples: -(examples["x"] @ y)), rounds=1,
        eval_every=1, evaluate_train=False, cohort=fjs.cohort.full(), work=fjs.local.steps(1),
        batches=fjs.local.full_batch(piece_size=1), layout=fjs.layout.turns(),
    )  # fmt: skip
    data = fjs.datasets.from_clients([(x, x)], test=[(x[:1], x[:1])])
    assert jax.jit(train)(method(client_optimizer=fjs.optim.sgd(1.0)), data, jax.random.key(0)).params[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.999, 0.98])
def test_a_moving_average_of_models_moves(decay):
    """0.999 is 1 in bfloat16: what was evaluated stayed the model that the run began with."""

    def averaged(dtype):
        data = fjs.datasets.quadratics(num_clients=2, dim=3, scale=1.0, dtype=dtype)
        method = fjs.ema(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.5)), decay=decay)
        train = fjs.make_train(
            task=fjs.quadratic(start=4.0), rounds=300, eval_every=300, evaluate_train=False, cohort=fjs.cohort.full(),
            work=fjs.local.steps(1), batches=fjs.local.full_batch(), evaluate=lambda params, data: {"x": params},
        )  # fmt: skip
        found = jax.jit(train)(method, data, jax.random.key(0))
        assert found.params.dtype == dtype
        return jnp.asarray(found.params, "f")

    assert jnp.allclose(averaged(jnp.bfloat16), averaged(jnp.float32), atol=0.02)


@pytest.mark.parametrize(("dtype", "value"), [("bfloat16", 3), ("float16", 1000)])
def test_a_mean_of_many_models_in_half_precision(dtype, value):
    """301 and 903 are 300 and 904 in bfloat16, 301,000 is infinite in float16."""
    method = fjs.last_k(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), k=301)
    server = method.init(jnp.full(2, value, dtype), jnp.ones(1))
    window = server.extra._replace(models=jnp.full((301, 2), value, dtype), rounds=jnp.int32(400))
    found = method.evaluated(server._replace(extra=window))
    assert found.dtype == dtype
    assert found.tolist() == [value, value]
