"""``make_train(on_round=...)``: who is told what, how often, from inside one compiled program."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

import fedjax_sim as fjs
from fedjax_sim.core.devices import inner_programs
from fedjax_sim.core.loops import Reached, teller

DATA = fjs.datasets.quadratics(num_clients=5, dim=3, seed=0)
FEDAVG = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02))
KEY = jax.random.key(0)
ADJOINTS = {
    "per_round": fjs.adjoints.per_round(), "direct": fjs.adjoints.direct(), "nested": fjs.adjoints.nested(),
    "forward": fjs.adjoints.forward(), "truncated": fjs.adjoints.truncated(3),
}  # fmt: skip


class Told(list):
    def __call__(self, done, metrics):
        time.sleep(0.02)  # so that a call which need not wait for the one before would overtake it
        self.append((done, metrics))

    @property
    def rounds(self):
        jax.effects_barrier()
        return [done for done, _ in self]


def make(told, **changes):
    return fjs.make_train(
        **{
            "task": fjs.quadratic(), "rounds": 7, "eval_every": 3, "batches": fjs.local.in_order(1),
            "cohort": fjs.cohort.full(), "work": fjs.local.steps(2), "on_round": told, **changes,
        }
    )  # fmt: skip


@functools.cache
def silent(eval_every):
    return jax.jit(make(None, eval_every=eval_every))(FEDAVG, DATA, KEY)


@pytest.mark.xdist_group("on_round")
@pytest.mark.parametrize(
    ("adjoint", "eval_every"),
    [
        ("truncated", 3),
        *(pytest.param("per_round", every, marks=pytest.mark.slow) for every in (1, 3, 7, 20)),
        *(pytest.param(name, 3, marks=pytest.mark.slow) for name in ("direct", "forward", "nested")),
    ],
)  # fmt: skip
def test_once_at_the_start_and_after_every_round(adjoint, eval_every):
    told = Told()
    result = jax.jit(make(told, eval_every=eval_every, adjoint=ADJOINTS[adjoint]))(FEDAVG, DATA, KEY)
    assert told.rounds == list(range(8))
    evaluated = {done: metrics for done, metrics in told if metrics}
    assert list(evaluated) == result.metrics["round"].tolist()
    for at, metrics in enumerate(evaluated.values()):
        assert set(metrics) == set(result.metrics) - {"round"}
        for name, value in metrics.items():
            np.testing.assert_array_equal(value, result.metrics[name][at])
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(silent(eval_every)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_one_call_under_any_number_of_vmaps():
    """Of states with clients' and an optimiser's parts, some of them batched and some (a counter) not."""
    told = Told()
    algorithm = fjs.scaffold(client_optimizer=fjs.optim.sgd(0.02), server_optimizer=fjs.optim.fedadam())
    keys = jax.random.split(KEY, 3)
    rates = np.asarray([0.01, 0.1], np.float32)

    def run(rate, key):
        return make(told, cohort=fjs.cohort.uniform(2))(algorithm.replace(server_learning_rate=rate), DATA, key)

    result = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))(rates, keys)
    assert told.rounds == list(range(8))
    for at, metrics in enumerate(metrics for _, metrics in told if metrics):
        assert metrics["loss"].shape == (2, 3)
        np.testing.assert_array_equal(metrics["loss"], result.metrics["loss"][:, :, at])


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ["per_round", "nested"])
def test_none_where_the_run_is_differentiated(adjoint):
    told = Told()

    def program(derivative, told):
        def loss(algorithm):
            return make(told, adjoint=ADJOINTS[adjoint])(algorithm, DATA, KEY).metrics["loss"][-1]

        traced = jax.make_jaxpr(derivative(loss))(FEDAVG).jaxpr
        return operations(dce_jaxpr(traced, [True] * len(traced.outvars))[0])  # but for what only the calls would need

    def operations(jaxpr):
        """Their names and results; of what is inside of others too."""
        each = ((one, [operations(inner) for inner in inner_programs(one)]) for one in jaxpr.eqns)
        return [(one.primitive.name, [str(result.aval) for result in one.outvars], inner) for one, inner in each]

    ours = program(jax.grad, told)
    assert ours == program(jax.grad, None)
    assert "callback" not in str(ours)
    assert "callback" not in str(program(jax.jacfwd, told))
    assert "callback" in str(jax.make_jaxpr(teller(told))(Reached(np.ones(2), jnp.int32(0)), jnp.int32(0), {}))


@pytest.mark.slow
def test_without_jit():
    told = Told()
    with jax.disable_jit():
        make(told, rounds=1)(FEDAVG, DATA, KEY)
    assert told.rounds == [0, 1]


def test_a_call_without_jit():
    told = Told()
    with jax.disable_jit():
        reached = Reached({"x": np.ones(2)}, jnp.int32(2))
        (state, last), done = teller(told)(reached, jnp.int32(3), {"loss": jnp.float32(0.5)})
    assert told == [(3, {"loss": 0.5})]
    assert int(done) == int(last) == 3
    np.testing.assert_array_equal(state["x"], 1)


@pytest.mark.slow
def test_a_progress_bar_takes_the_calls(capsys):
    with fjs.reporting.progress_bar(7, True) as bar:
        keys = jax.random.split(KEY, 2)
        result = jax.jit(jax.vmap(make(bar.update, eval_every=1), (None, None, 0)))(FEDAVG, DATA, keys)
        jax.effects_barrier()
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 7
    assert shown[-1].startswith("rounds: round 7/7, ")
    assert f"loss {float(result.metrics['loss'][:, -1].mean()):.4g}" in shown[-1]


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"on_round is 5: it must be a function of \(rounds_done, metrics\), or None"):
        make(5)
