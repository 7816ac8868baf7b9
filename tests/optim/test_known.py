"""Bare optax objects that are made again: which are the same, and share a program, and which but for some numbers."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import fedjax_sim as fjs
from fedjax_sim.optim import hoist, third_party
from fedjax_sim.optim import known as rules
from fedjax_sim.optim.described import as_optimizer
from fedjax_sim.optim.known import known, opened, with_numbers
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


def updates_of(transform):
    """Those of three steps, primitive by primitive: XLA has no say in the order of operations."""
    params = {"w": jnp.array([[0.3, -1.2], [2.1, 0.7]], jnp.float32), "b": jnp.array([0.1, -0.4, 1.7], jnp.float32)}
    found = []
    with third_party():
        state = transform.init(params)
        for k in range(3):
            gradients = jax.tree.map(lambda leaf, k=k: jnp.sin(7 * leaf + k), params)
            updates, state = transform.update(gradients, state, params)
            found.append(updates)
    return jax.tree.leaves(found)


def assert_same_bits(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


OPENED = {
    "a rate": (lambda x: optax.sgd(0.1 * x), 1),
    "a rate of numpy": (lambda x: optax.sgd(np.float32(0.1 * x)), 1),
    "momentum": (lambda x: optax.sgd(0.1 * x, momentum=0.4 * x, nesterov=True), 2),
    "weight decay": (lambda x: optax.add_decayed_weights(0.1 * x), 1),
    "eps": (lambda x: optax.adam(0.1 * x, eps=0.1 * x, eps_root=0.01 * x), 3),
    "clipped": (lambda x: optax.chain(optax.clip_by_global_norm(0.5 * x), optax.clip(0.2 * x), optax.sgd(0.1 * x)), 3),
    "in a wrapper": (lambda x: optax.apply_if_finite(optax.sgd(0.1 * x), 3), 1),
}


@pytest.mark.parametrize("name", OPENED)
def test_numbers_that_are_opened(name):
    make, count = OPENED[name]
    first, mine = opened(make(1.0))
    again, others = opened(make(1.5))
    assert again is first
    assert len(mine) == len(others)
    assert len(set(others)) == count  # several functions may close over one
    expected = updates_of(make(1.5))
    assert any((one != other).any() for one, other in zip(updates_of(first), expected, strict=True))
    # As a program gets them: nothing of them can be computed in Python.
    assert_same_bits(updates_of(with_numbers(first, jax.device_put(others))), expected)


def factories():
    """Objects of those factories of optax that numbers suffice for, by name, of which something is opened."""
    found = {}
    for module in (optax, optax.contrib):
        for name, factory in inspect.getmembers(module, inspect.isfunction):
            try:
                needed = [one for one in inspect.signature(factory).parameters.values() if one.default is one.empty]
                made = factory(*[0.3] * len(needed))
                jax.eval_shape(made.init, jnp.ones(2))
                updates_of(made)
            except Exception:  # another kind of argument, or of function
                continue
            if isinstance(made, optax.GradientTransformation) and opened(made)[1]:
                found[name] = made
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_opened_is_not_computed_with_in_python():
    """1 - b2 in float64 is another number than 1 minus b2 in float32."""
    found = factories()
    assert {"sgd", "adam", "adamw", "adagrad", "rmsprop", "yogi", "lamb", "lion", "radam"} <= found.keys()
    for made in found.values():
        first, numbers = opened(made)
        others = tuple(0.7 * number for number in numbers)
        on_device = jax.device_put(others)
        assert_same_bits(updates_of(with_numbers(first, on_device)), updates_of(with_numbers(first, others)))


def test_numbers_that_are_structure():
    """Integers, zeros, which optax leaves out, and what Python computes with."""
    one = opened(optax.sgd(0.1, momentum=0.5))[0]
    for other in (optax.sgd(0.1, momentum=0.0), optax.sgd(1, momentum=0.5), optax.sgd(np.float32(0.1), momentum=0.5)):
        assert opened(other)[0] is not one
    adam = opened(optax.adam(0.1))[0]
    for other in (optax.adam(0.1, b1=0.8), optax.adam(0.1, b2=0.99), optax.adam(0.1, eps_root=0.1)):
        assert opened(other)[0] is not adam
    for closed in (optax.sgd(1), optax.add_decayed_weights(0.0), optax.sgd(jnp.float32(0.1)), optax.ema(0.9)):
        assert opened(closed)[1] == ()


def test_a_function_that_calls_itself():
    def scale(step_size):
        def update_fn(updates, state, params=None, times=2):
            if times:
                return update_fn(step_size * updates, state, params, times - 1)
            return updates, state

        update_fn.__module__, update_fn.__qualname__ = "optax.of_a_test", "scale.<locals>.update_fn"
        return optax.GradientTransformation(optax.identity().init, update_fn)

    first, numbers = opened(scale(3.0))
    assert numbers == (3.0,)
    assert with_numbers(first, (5.0,)).update(1.0, ())[0] == 25.0
    assert first.update(1.0, ())[0] == 9.0


PARAMS = jax.ShapeDtypeStruct((3,), jnp.bfloat16)


def test_hoisting_opens_them_once():
    hoisted = hoist(as_optimizer(optax.sgd(0.1), "x"), PARAMS)
    other = hoist(as_optimizer(optax.sgd(0.2), "x"), PARAMS)
    assert jax.tree.structure(hoisted) == jax.tree.structure(other)
    assert jax.tree.leaves(other) == [-0.2]
    assert hoist(other, PARAMS) is other
    ones = jnp.ones(3, jnp.bfloat16)
    for given in (other, jax.device_put(other)):  # a Python number is of no dtype
        updates = jax.jit(lambda optimizer: optimizer.update(ones, optimizer.init(ones), ones)[0])(given)
        np.testing.assert_array_equal(updates, optax.sgd(0.2).update(ones, optax.sgd(0.2).init(ones))[0])


@pytest.mark.parametrize("cell", [("scale_by_sm3", "b2"), ("scale_by_factored_rms", "min_dim_size_to_factor")])
def test_what_python_asks_for_stays_closed(cell, monkeypatch):
    """An optax of which a function looks at a number that is opened."""
    made = {
        "scale_by_sm3": lambda: optax.sm3(0.1, momentum=0.5),
        "scale_by_factored_rms": lambda: optax.scale_by_factored_rms(min_dim_size_to_factor=128.0),
    }[cell[0]]()
    monkeypatch.setattr(rules, "_OPEN", {cell})
    assert opened(made)[1] != ()
    given = as_optimizer(made, "x")
    assert hoist(given, jax.ShapeDtypeStruct((3, 2), jnp.float32)) is given


DATA = fjs.datasets.quadratics(num_clients=4, dim=2, sizes=[12] * 4, seed=0)
RUN = {
    "task": fjs.quadratic(), "rounds": 2, "batches": fjs.local.in_order(8), "cohort": fjs.cohort.full(),
    "work": fjs.local.steps(2),
}  # fmt: skip


def loss(client, server=None):
    method = fjs.clipped(fjs.fedavg(client_optimizer=client, server_optimizer=server), 10.0)
    history = fjs.simulate(method, DATA, **RUN)
    assert history.description["algorithm"] == fjs.describe(method)
    return history["loss"]


def test_other_numbers_compile_nothing():
    def one(x):
        return optax.chain(optax.clip(1.0 * x), optax.sgd(0.05 * x, momentum=0.5 * x)), optax.adamw(0.01 * x)

    first = loss(*one(1.0))
    with compilations() as again:
        same, other = loss(*one(1.0)), loss(*one(1.5))
    assert again == []
    np.testing.assert_array_equal(same, first)
    assert (other != first).any()
    with compilations() as again:
        loss(optax.chain(optax.clip(1.0), optax.sgd(0.05, momentum=0.5)), optax.adamw(0.01, b1=0.8))
    assert again != []


@pytest.mark.slow
def test_it_is_our_optimizer_of_that_rate(monkeypatch):
    """To the last bit; and that of a program with the number in it, but for XLA's order of operations."""
    loss(optax.sgd(0.1))
    found = loss(optax.sgd(0.05))
    np.testing.assert_array_equal(found, loss(fjs.optim.sgd(0.05)))
    monkeypatch.setattr(rules, "_OPEN", set())
    with compilations() as again:
        np.testing.assert_allclose(loss(optax.sgd(0.05)), found, rtol=1e-6)
    assert again != []
