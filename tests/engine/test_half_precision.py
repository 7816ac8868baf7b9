"""Models in bfloat16: what many clients or pieces add up to is not lost. 256 and 1 are 256 there."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fedjax_sim as fjs
from fedjax_sim.engine.layout.queue import run_queue
from fedjax_sim.engine.layout.turns import run_turns
from fedjax_sim.engine.solver import Left, Progress
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
