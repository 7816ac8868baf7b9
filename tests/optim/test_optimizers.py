"""Described optimisers on one scalar, against their recursions; adaptive servers; which of them are linear."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim.optim import adaptive, parts
from fedjax_sim.optim.described import is_linear, move

GRADIENTS = (0.5, -0.2, 0.8)


def updates(optimizer):
    params, found = jnp.zeros(()), []
    state = optimizer.init(params)
    for gradient in GRADIENTS:
        update, state = optimizer.update(jnp.asarray(gradient), state, params)
        found.append(float(update))
    return found


def test_nesterov_is_a_truth_value_before_it_asks_for_a_momentum():
    with pytest.raises(TypeError, match=r"sgd\(nesterov=...\) is 'False': it must be True or False"):
        fjs.optim.sgd(0.1, nesterov="False")
    with pytest.raises(ValueError, match="Nesterov's form needs a momentum"):
        fjs.optim.sgd(0.1, nesterov=True)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_and_decay(nesterov):
    eta, rho, gamma = 0.1, 0.5, 0.8
    b, expected = 0.0, []
    for k, g in enumerate(GRADIENTS):
        b = rho * b + g
        expected.append(-eta * gamma**k * (g + rho * b if nesterov else b))
    sgd = fjs.optim.sgd
    np.testing.assert_allclose(updates(sgd(eta, rho, nesterov, gamma)), expected, rtol=1e-6)
    flat = [value / gamma**k for k, value in enumerate(expected)]
    np.testing.assert_allclose(updates(sgd(eta, rho, nesterov)), flat, rtol=1e-6)


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAms"])
def test_moments_of_half_precision_are_those_of_single(name):
    """A beta2 of 0.999 is 1 in bfloat16: v stayed at tau^2, and steps along 1 were of 500 and not of 1."""
    made = getattr(adaptive, name)(beta2=0.999)

    @functools.partial(jax.jit, static_argnums=1)
    def stepped(made, dtype):
        params = jnp.zeros(1, dtype)
        state, none = made.init(params), jnp.ones(1, dtype)
        for _ in range(3):
            update, state = made.update(none, state, params)
        return update, made.peek(none, state, params)

    half, single = stepped(made, jnp.bfloat16), stepped(made, jnp.float32)
    assert [update.dtype for update in half] == [jnp.bfloat16] * 2
    np.testing.assert_allclose(np.asarray(half, "f"), single, rtol=1e-2)


def test_adam_of_half_precision_forgets():
    """In bfloat16 a b2 of 0.999 is 1: after 2000 equal gradients v was a half of what it is, and the step too long."""

    def last(dtype):
        adam, x = fjs.optim.adam(0.1), jnp.zeros(2, dtype)

        def step(state, _):
            updates, state = adam.update(jnp.ones_like(x), state, x)
            return state, updates

        state, updates = jax.lax.scan(step, adam.init(x), length=2000)
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32"), jnp.dtype("int32")}
        return updates

    found = jax.jit(last, static_argnums=0)(jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found[-1], float), -0.1, rtol=0.005)


def test_an_optimiser_of_optax_that_is_another_with_an_argument_given():
    """optax.nadam is a partial application, no function: "optax has no optimiser 'nadam': did you mean 'adam'?"."""
    np.testing.assert_allclose(
        updates(fjs.optim.from_optax("nadam", learning_rate=0.1, b1=0.7)),
        updates(fjs.optim.from_optax("adam", learning_rate=0.1, b1=0.7, nesterov=True)),
    )


@pytest.mark.parametrize("name", ["FedAdagrad", "FedAdam", "FedYogi"])
def test_adaptive_servers_of_reddi_et_al(name):
    """m and v from 0 and tau^2, u = m / (sqrt(v) + tau) along -gradient (Reddi et al. 2021, Algorithm 2)."""
    beta1, beta2, tau = 0.6, 0.9, 0.05
    m, v, expected = 0.0, tau**2, []
    for g in GRADIENTS:
        m = beta1 * m + (1 - beta1) * g
        v = {
            "FedAdagrad": v + g**2,
            "FedAdam": beta2 * v + (1 - beta2) * g**2,
            "FedYogi": v - (1 - beta2) * g**2 * np.sign(v - g**2),
        }[name]
        expected.append(-m / (np.sqrt(v) + tau))
    made = getattr(adaptive, name)(beta1=beta1, beta2=beta2, tau=tau)
    np.testing.assert_allclose(updates(made), expected, rtol=1e-5)


def test_a_forgotten_step_divides_by_the_second_moment_as_it_was():
    """What the server of Mime shows its clients: m with the new gradient, v without it."""
    made = adaptive.FedAdam(beta1=0.6, beta2=0.9, tau=0.05)
    state = made.init(jnp.zeros(()))
    _, state = made.update(jnp.asarray(0.5), state, jnp.zeros(()))
    m, v = 0.6 * (0.4 * 0.5) + 0.4 * -0.2, 0.9 * 0.05**2 + 0.1 * 0.5**2
    assert float(made.peek(jnp.asarray(-0.2), state, jnp.zeros(()))) == pytest.approx(-m / (v**0.5 + 0.05), rel=1e-5)


def test_the_gradient_is_taken_in_the_part_that_moves():
    y = parts.Parts(left=jnp.asarray(2.0), right=jnp.asarray(3.0))
    for name, slope in {"left": 3.0, "right": 4.0}.items():
        moving = {other: jnp.asarray(other == name) for other in y}
        found, beside = parts.gradient(lambda y: (y["left"] * y["right"] + y["right"] ** 2 / 3, y["left"]), y, moving)
        assert {other: float(g) for other, g in found.items()} == {other: slope * (other == name) for other in y}
        assert float(beside) == 2.0


def test_a_rate_for_each_parameter():
    y, u = {"a": jnp.ones(2), "b": jnp.ones(())}, {"a": jnp.array([1.0, -2.0]), "b": jnp.asarray(0.5)}
    moved = move(y, {"a": 0.1, "b": 10.0}, u)
    np.testing.assert_allclose(moved["a"], [1.1, 0.8], rtol=1e-6)
    np.testing.assert_allclose(moved["b"], 6.0)
    np.testing.assert_allclose(move(y, 0.1, u)["b"], 1.05)


def test_which_solvers_are_linear_in_the_gradients():
    linear = [fjs.optim.sgd(0.1), fjs.optim.sgd(0.1, momentum=0.9, nesterov=True, decay=0.5)]
    assert [is_linear(one) for one in linear] == [True, True]
    clipped = fjs.optim.as_optimizer(optax.chain(optax.clip(1.0), optax.sgd(0.1)), "clipped")
    others = [fjs.optim.adam(0.1), fjs.optim.from_optax("sign_sgd", learning_rate=0.1), clipped]
    assert [is_linear(one) for one in others] == [False, False, False]


def test_a_hyper_parameter_that_is_an_array_leaves_the_dtypes_as_they_are():
    gradient = {"w": jnp.asarray([1.0, 3.0], jnp.bfloat16)}
    numbers = fjs.optim.sgd(0.1, momentum=0.5)
    arrays = fjs.optim.sgd(jnp.float32(0.1), momentum=jnp.float32(0.5))  # as in a sweep, where it has no other dtype
    found = []
    for optimizer in (numbers, arrays):
        state = optimizer.init(gradient)
        for _ in range(2):
            updates, state = optimizer.update(gradient, state, gradient)
        assert {leaf.dtype for leaf in jax.tree.leaves((updates, state))} == {jnp.dtype(jnp.bfloat16)}
        found.append(np.asarray(updates["w"], float))
    np.testing.assert_allclose(*found, rtol=2**-7)
