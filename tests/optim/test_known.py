"""Bare optax objects that are made again: which are known to be the same, and share a program."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim.optim.described import as_optimizer
from fedjax_sim.optim.known import known
from tests.engine.test_program import compilations

MADE = {
    "sgd": lambda rate: optax.sgd(rate),
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    "a numpy rate": lambda rate: optax.sgd(np.float32(rate)),
    "adam": lambda rate: optax.adam(rate),
    "adamw": lambda rate: optax.adamw(rate),
    "rmsprop": lambda rate: optax.rmsprop(rate),
    "yogi": lambda rate: optax.yogi(rate),
    "lamb": lambda rate: optax.lamb(rate),
    "adafactor": lambda rate: optax.adafactor(rate),
    "of another type": lambda rate: optax.adam(rate, mu_dtype=jnp.bfloat16),
    "clipped": lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(rate)),
    "decayed": lambda rate: optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(rate)),
    "scheduled": lambda rate: optax.sgd(optax.cosine_decay_schedule(rate, 10)),
}


@pytest.mark.parametrize("name", MADE)
def test_made_again_it_is_the_same(name):
    make = MADE[name]
    first = known(make(0.1))
    assert known(make(0.1)) is first
    assert known(make(0.2)) is not first
    assert as_optimizer(make(0.1), "x") == as_optimizer(make(0.1), "x")


def test_other_arguments_are_another_one():
    different = [
        optax.sgd(0.1), optax.sgd(-0.1), optax.sgd(0.1, momentum=0.0), optax.sgd(0.1, momentum=-0.0), optax.sgd(1),
        optax.sgd(1.0), optax.adam(0.1), optax.adam(0.1, b1=0.8), optax.adam(0.1, nesterov=True),
        optax.chain(optax.sgd(0.1)), optax.chain(optax.clip(1.0), optax.sgd(0.1)),
        optax.chain(optax.sgd(0.1), optax.clip(1.0)), optax.scale_by_adam(), optax.scale_by_adamax(),
        optax.sgd(np.float32(0.1)), optax.sgd(np.float64(0.1)),
    ]  # fmt: skip
    assert len({id(known(one)) for one in different}) == len(different)


def test_what_may_change_or_be_traced_is_like_no_other():
    """A closed-over array, a container, a function whose module may define anew what it calls."""
    transforms = {"a": optax.sgd(0.1)}

    def own_rate(count):
        return 0.1 / (1 + count)

    def rule(scale):
        def update(gradients, state, params=None):
            return jax.tree.map(lambda g: -scale * g, gradients), state

        return optax.GradientTransformation(lambda params: (), update)

    for make in (
        lambda: optax.sgd(jnp.float32(0.1)),
        lambda: optax.multi_transform(transforms, lambda params: "a"),
        lambda: optax.sgd(optax.piecewise_constant_schedule(0.1, {3: 0.1})),
        lambda: optax.sgd(functools.partial(lambda count, rate: rate, rate=0.1)),
        lambda: rule(0.1),
        lambda: optax.sgd(eval("lambda count: 0.1", {})),  # a function of no module
    ):
        made = make()
        assert known(made) is made
        assert known(make()) is not made
    shared = known(optax.sgd(own_rate))
    assert known(optax.sgd(own_rate)) is shared  # the same function
    assert known(optax.sgd(lambda count: own_rate(count))) is not shared

    def stepped(rate):
        return as_optimizer(optax.sgd(rate), "x").transform().update(jnp.ones(()), (optax.EmptyState(),) * 2)[0]

    with jax.checking_leaks():
        assert jax.jit(jax.grad(stepped))(0.1) == -1


def test_nothing_compiles_again():
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=4, max_size=30, seed=0)
    run = {
        "task": fjs.classification(fjs.models.LogisticRegression(10)), "rounds": 2, "batch_size": 10,
        "cohort": fjs.cohort.uniform(2), "work": fjs.local.steps(2),
    }  # fmt: skip

    def loss(rate):
        method = fjs.fedavg(client_optimizer=optax.sgd(rate), server_optimizer=optax.adam(0.01))
        return fjs.simulate(method, data, **run).final("loss")[0]

    first = loss(0.05)
    with compilations() as again:
        assert loss(0.05) == first
    assert again == []
    with compilations() as again:
        assert loss(0.06) != first
    assert again != []
