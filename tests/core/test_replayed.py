"""Loops that go back through what they recorded, against the same steps written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_sim.core.replayed import Loop, replayed

MOST = 5
STEPS = 3
REAL = {1: 1.3, 2: 0.4}  # the leaves with a derivative, in their places


class Waves(Loop):
    """y <- sin(c y), ``steps`` times, of the leaves (steps, c, y)."""

    def __init__(self, step=lambda c, y: jnp.sin(c * y)):
        self.step = step

    def plain(self, leaves):
        steps, c, y = leaves
        return [lax.fori_loop(0, steps, lambda k, y: self.step(c, y), y), steps]

    def static(self, leaves):
        steps, c, y = leaves

        def step(y, k):
            return jnp.where(k < steps, self.step(c, y), y), None

        return [lax.scan(step, y, jnp.arange(MOST, dtype=jnp.int32))[0], steps]

    def recorded(self, leaves):
        steps, c, y = leaves

        def step(k, at):
            return self.step(c, at[0]), lax.dynamic_update_index_in_dim(at[1], at[0], k, 0)

        y, trail = lax.fori_loop(0, steps, step, (y, jnp.zeros((MOST, *y.shape), y.dtype)))
        return [y, steps], [trail]

    def pulled(self, leaves, trail, cotangents, places):
        steps, c, _ = leaves
        trail = self.recorded(leaves)[1] if trail is None else trail

        def back(n, bars):
            more, y_bar = jax.vjp(self.step, c, trail[0][steps - 1 - n])[1](bars[1])
            return bars[0] + more, y_bar

        c_bar, y_bar = lax.fori_loop(0, steps, back, (jnp.zeros_like(c), cotangents[0]))
        return [{1: c_bar, 2: y_bar}[place] for place in places]


WAVES = Waves()


def looped(c, y, steps=STEPS, waves=WAVES):
    return replayed(waves, [jnp.asarray(steps, jnp.int32), c, y], waves.static)[0]


def written_out(c, y):
    for _ in range(STEPS):
        y = jnp.sin(c * y)
    return y


def summed(function):
    """One number of it, in a loop of one's own."""

    def of(c, y):
        return lax.scan(lambda total, k: (total * function(c, y) + k, None), jnp.ones(()), jnp.arange(3.0))[0]

    return of


def ways(function):
    """Derivatives of all kinds."""
    several = jnp.linspace(0.5, 1.5, 4)
    both = jax.grad(function, (0, 1))
    return {
        "value": function,
        "reverse": both,
        "forward": jax.jacfwd(function, (0, 1)),
        "in one": jax.grad(function, 1),
        "forward over reverse": jax.jacfwd(both, (0, 1)),
        "reverse over reverse": jax.jacrev(both, (0, 1)),
        "reverse over forward": jax.jacrev(jax.jacfwd(function, (0, 1)), (0, 1)),
        "third": jax.jacrev(jax.jacfwd(jax.grad(function))),
        "computed again": jax.grad(jax.checkpoint(function), (0, 1)),
        "in a loop": jax.grad(summed(function), (0, 1)),
        "twice in a loop": jax.jacrev(jax.grad(summed(function), (0, 1)), (0, 1)),
        "mapped in one": lambda c, y: jax.vmap(both, (0, None))(several * c, y),
        "mapped in both": lambda c, y: jax.vmap(jax.vmap(both, (0, None)), (None, 0))(several * c, several * y),
        "of a mean": jax.grad(lambda c, y: jnp.mean(jax.vmap(function, (0, None))(several * c, y)), (0, 1)),
        "twice of a mean": jax.hessian(lambda c, y: jnp.mean(jax.vmap(function, (None, 0))(c, several * y)), (0, 1)),
        "rows": jax.jacrev(lambda c, y: jax.vmap(function, (0, None))(several * c, y), (0, 1)),
        "transposed": lambda c, y: jax.linear_transpose(jax.vjp(function, c, y)[1], c)((c, y)),
    }


@pytest.mark.parametrize("way", ways(looped))
def test_derivatives_are_those_of_the_steps_written_out(x64, way):
    found, expected = (jax.jit(ways(function)[way])(*REAL.values()) for function in (looped, written_out))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


def test_runs_of_unequal_length_are_mapped_together(x64):
    steps = jnp.arange(MOST, dtype=jnp.int32)
    found = jax.vmap(jax.grad(looped), (None, None, 0))(1.3, 0.4, steps)
    alone = jnp.stack([jax.grad(looped)(1.3, 0.4, one) for one in steps])
    np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_steps_are_recorded_where_there_is_a_way_back_alone():
    """Not by the run without a derivative, nor by the one that a derivative computes again before its way back."""

    def repeated(c, y):
        return lax.scan(lambda y, _: (jax.checkpoint(looped)(c, y), None), y, None, length=3)[0]

    def records(function):
        return str(jax.make_jaxpr(function)(1.3, jnp.float32(0.4))).count("recording=True")

    assert records(looped) == records(repeated) == 0
    assert records(jax.grad(looped)) == records(jax.value_and_grad(repeated)) == 1


def test_a_step_may_have_what_jax_lowers_later():
    """``jnp.searchsorted`` is a primitive of JAX's higher level in jax 0.12, where a run ended in an error of JAX's."""

    def step(c, y):
        return jnp.sin(c * y) + jnp.searchsorted(jnp.asarray([0.1, 0.5]), y).astype(y.dtype)

    def found(c, y):
        return looped(c, y, waves=Waves(step))

    def expected(c, y):
        for _ in range(STEPS):
            y = step(c, y)
        return y

    for of in (lambda function: function, lambda function: jax.grad(function, (0, 1)), jax.hessian):
        at = jnp.float32(1.3), jnp.float32(0.4)
        np.testing.assert_allclose(jax.jit(of(found))(*at), jax.jit(of(expected))(*at), rtol=1e-5)


def test_a_step_may_tell_the_host_in_order():
    told = []

    def step(c, y):
        jax.debug.callback(lambda y: told.append(float(y)), y, ordered=True)
        return jnp.sin(c * y)

    def found(c, y):
        return looped(c, y, waves=Waves(step))

    at = jnp.float32(1.3), jnp.float32(0.4)
    jax.block_until_ready(jax.jit(found)(*at))
    jax.effects_barrier()
    np.testing.assert_allclose(told, [0.4, np.sin(0.52), np.sin(1.3 * np.sin(0.52))], rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(found))(*at), jax.grad(written_out)(*at), rtol=1e-6)

    def shown(c, y):
        jax.debug.callback(told.append, y)
        return jnp.sin(c * y)

    seen = jax.grad(lambda c, y: looped(c, y, waves=Waves(shown)))
    # to look at a run out of order leaves its derivative
    assert "replayed_derivative" in str(jax.make_jaxpr(seen)(*at))


def test_a_value_that_a_function_closes_over_has_no_derivative_without_a_word():
    def closed(c):
        return looped(0.0, jnp.float32(0.4), waves=Waves(lambda _, y: jnp.sin(c * y)))

    assert jax.jit(closed)(1.3) == looped(1.3, jnp.float32(0.4))
    for derivative in (jax.grad, jax.jacfwd):
        with pytest.raises((jax.errors.UnexpectedTracerError, TypeError)):
            jax.jit(derivative(closed))(1.3)
