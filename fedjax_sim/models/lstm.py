"""A long short-term memory layer that trains fast on a CPU and has derivatives of every order and mode."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core.values import check_count


class LSTM(nn.Module):
    """One layer: states h_1, ..., h_T of a sequence, starting from h_0 = c_0 = 0.

    z_t = [x_t, h_{t-1}] W + b, split into i, f, g, o;
    c_t = σ(f) c_{t-1} + σ(i) tanh(g),  h_t = σ(o) tanh(c_t).

    One bias per gate, as in TensorFlow and Keras: 4H (E + H + 1) parameters. (PyTorch has two, 4H more, of which only
    the sum matters.) W starts Glorot-uniform, b at zero but for the forget gate, where it is 1: TensorFlow's
    ``BasicLSTMCell``, the papers' cell, adds that 1 as a constant instead.

    Attributes:
      hidden: H, the width of the state.
      param_dtype: dtype of W, b and the states.

    Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000 for the forget gate.
    """

    hidden: int
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        check_count("LSTM(hidden=...)", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """States [T, B, H] for inputs [T, B, E]: time first, so that a step reads contiguous memory."""
        length, batch, width = x.shape
        kernel = self.param(
            "kernel", nn.initializers.glorot_uniform(), (width + self.hidden, 4 * self.hidden), self.param_dtype
        )
        bias = self.param("bias", _forget_gate_open, (4 * self.hidden,), self.param_dtype)
        # All steps' inputs go through W in one matrix product outside the loop.
        rows = x.astype(self.param_dtype).reshape(length * batch, width)
        inputs = (rows @ kernel[:width] + bias[None]).reshape(length, batch, 4 * self.hidden)
        states: jax.Array = _states(inputs, kernel[width:])
        return states


def _forget_gate_open(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    hidden = shape[0] // 4
    return jnp.zeros(shape, dtype).at[hidden : 2 * hidden].set(1)


# Reverse mode through the plain loop would add the [H, 4H] gradient of the recurrent kernel up in every step. With the
# rule below that sum is one matrix product outside the loop (training steps were a quarter to a third shorter). It is a
# jvp and no vjp, so that forward mode and higher derivatives, which the simulator's own derivatives use, still work.
@jax.custom_jvp
def _states(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """h_t for all t, [T, B, H], from x_t W + b, [T, B, 4H], and the recurrent kernel [H, 4H]."""

    def step(carry: tuple[jax.Array, jax.Array], z: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        _, c, h = _cell(z + carry[0] @ kernel, carry[1])
        return (h, c), h

    return lax.scan(step, _at_rest(inputs), inputs)[1]


@_states.defjvp
def _states_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (inputs, kernel), (d_inputs, d_kernel) = primals, tangents

    def step(carry: tuple[jax.Array, jax.Array], z: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Any]:
        gates, c, h = _cell(z + carry[0] @ kernel, carry[1])
        return (h, c), (h, c, gates)

    _, (h, c, gates) = lax.scan(step, _at_rest(inputs), inputs)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    tanh_c = jnp.tanh(c)
    # Derivatives of c_t in the pre-activations of i, f, g, of h_t in that of o, and of h_t in c_t.
    slopes = jnp.concatenate(
        [i * (1 - i) * g, f * (1 - f) * _previous(c), (1 - g * g) * i, o * (1 - o) * tanh_c], axis=-1
    )
    of_c = o * (1 - tanh_c * tanh_c)
    rows = _previous(h).reshape(-1, kernel.shape[0]) @ d_kernel
    d_z = d_inputs + rows.reshape(d_inputs.shape)

    def linear(carry: tuple[jax.Array, jax.Array], at: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        d_h, d_c = carry
        d_z, slopes, f, of_c = at
        d_i, d_f, d_g, d_o = jnp.split((d_z + d_h @ kernel) * slopes, 4, axis=-1)
        d_c = f * d_c + d_i + d_f + d_g
        d_h = of_c * d_c + d_o
        return (d_h, d_c), d_h

    def tangent(d_z: jax.Array) -> jax.Array:
        return lax.scan(linear, _at_rest(inputs), (d_z, slopes, f, of_c))[1]

    # It is linear already; but JAX before 0.7 transposes only scans that its own jvp has marked as linear.
    return h, jax.jvp(tangent, (jnp.zeros_like(d_z),), (d_z,))[1]


def _cell(z: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gates [B, 4H], c_t and h_t from the pre-activations and c_{t-1}."""
    i, f, g, o = jnp.split(z, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * c + i * g
    return jnp.concatenate([i, f, g, o], axis=-1), c, o * jnp.tanh(c)


def _at_rest(inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    zero = jnp.zeros((inputs.shape[1], inputs.shape[2] // 4), inputs.dtype)
    return zero, zero


def _previous(values: jax.Array) -> jax.Array:
    """The value of the step before, zero in the first."""
    return jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])
