"""The LSTM classifiers of the federated-learning papers, their layer, and word vectors that are never trained.

The layer trains fast on a CPU and has derivatives of every order and mode.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.descriptions import recipe, register
from fedjax_sim.core.fields import count, static
from fedjax_sim.core.values import check_count
from fedjax_sim.models.base import Model, as_tokens, of_kind, wide
from fedjax_sim.models.dense import Dense

_GLOROT = wide(nn.initializers.glorot_uniform())
_Pair: TypeAlias = tuple[jax.Array, jax.Array]


class LSTM(Model):
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

    hidden: int = count()
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """States [T, B, H] for inputs [T, B, E]: time first, so that a step reads contiguous memory."""
        length, batch, width = x.shape
        sizes = (width + self.hidden, 4 * self.hidden)
        kernel = self.param("kernel", _GLOROT, sizes, self.param_dtype)
        bias = self.param("bias", _forget_gate_open, (4 * self.hidden,), self.param_dtype)
        # All steps' inputs go through W in one matrix product outside the loop.
        rows = x.astype(self.param_dtype).reshape(length * batch, width)
        inputs = (rows @ kernel[:width] + bias[None]).reshape(length, batch, 4 * self.hidden)
        return _states(inputs, kernel[width:])


def _forget_gate_open(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    hidden = shape[0] // 4
    return jnp.zeros(shape, dtype).at[hidden : 2 * hidden].set(1)


# Reverse mode through the plain loop would add the [H, 4H] gradient of the recurrent kernel up in every step. With the
# rule below that sum is one matrix product outside the loop (training steps were a quarter to a third shorter). It is a
# jvp and no vjp, so that forward mode and higher derivatives, which the simulator's own derivatives use, still work.
@jax.custom_jvp
def _states(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """h_t for all t, [T, B, H], from x_t W + b, [T, B, 4H], and the recurrent kernel [H, 4H]."""

    def step(carry: _Pair, z: jax.Array) -> tuple[_Pair, jax.Array]:
        _, c, h = _cell(z + carry[0] @ kernel, carry[1])
        return (h, c), h

    return lax.scan(step, _at_rest(inputs), inputs)[1]


@_states.defjvp
def _states_jvp(primals: _Pair, tangents: _Pair) -> _Pair:
    (inputs, kernel), (d_inputs, d_kernel) = primals, tangents

    def step(carry: _Pair, z: jax.Array) -> tuple[_Pair, Any]:
        gates, c, h = _cell(z + carry[0] @ kernel, carry[1])
        return (h, c), (c, gates)

    _, (c, gates) = lax.scan(step, _at_rest(inputs), inputs)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    tanh_c = jnp.tanh(c)
    h = o * tanh_c  # as in the cell; an array less to write in every step
    # Derivatives of c_t in the pre-activations of i, f, g, of h_t in that of o, and of h_t in c_t.
    of_gates = i * (1 - i) * g, f * (1 - f) * _previous(c), (1 - g * g) * i, o * (1 - o) * tanh_c
    slopes = jnp.concatenate(of_gates, axis=-1)
    of_c = o * (1 - tanh_c * tanh_c)
    rows = _previous(h).reshape(-1, kernel.shape[0]) @ d_kernel
    d_z = d_inputs + rows.reshape(d_inputs.shape)

    def linear(carry: _Pair, at: Any) -> tuple[_Pair, jax.Array]:
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


def _at_rest(inputs: jax.Array) -> _Pair:
    zero = jnp.zeros((inputs.shape[1], inputs.shape[2] // 4), inputs.dtype)
    return zero, zero


def _previous(values: jax.Array) -> jax.Array:
    """The value of the step before, zero in the first."""
    return jnp.concatenate([jnp.zeros_like(values[:1]), values[:-1]])


@jax.tree_util.register_static
class FrozenTable:
    """A table [V, E] that is part of a model's structure and no parameter.

    It cannot move: no gradient, weight decay, average or momentum sees it, and clients do not send it. It compares and
    hashes by content, so that models which hold equal tables share compiled programs. A program holds the table as a
    constant, so keep the words that the data use: 20,000 words of width 300 (24 MB) cost nothing to speak of, 400,000
    (480 MB) some 20 s at the start of a run. Made by :func:`frozen_table` and :func:`random_table`.
    """

    def __init__(self, vectors: Any) -> None:
        array = np.array(vectors)
        if array.ndim != 2 or array.size == 0:
            raise ValueError(f"frozen_table: vectors have shape {list(array.shape)}: give [words, width], not empty")
        if not np.issubdtype(array.dtype, np.floating):
            raise TypeError(f"frozen_table: vectors are {array.dtype}: give floating-point numbers")
        if not np.all(np.isfinite(array)):
            raise ValueError("frozen_table: vectors have NaN or infinite entries: replace them, by zeros for instance")
        array.flags.writeable = False
        self.vectors = array
        self._digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenTable) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"FrozenTable({self.vectors.shape[0]} words, width {self.vectors.shape[1]})"


@recipe("model.frozen_table")
def frozen_table(vectors: Any) -> FrozenTable:
    """A table of given vectors, pretrained ones for instance.

    Args:
      vectors: floating-point numbers [V, E]; row t is token t's. A description records up to 100,000 numbers; a run
        with a larger table describes itself as opaque there.

    Raises:
      ValueError: another rank, an empty table, NaN or infinite entries.
      TypeError: not floating-point numbers.
    """
    return FrozenTable(vectors)


@recipe("model.random_table")
def random_table(words: int, width: int = 300, seed: int = 0) -> FrozenTable:
    """A table of random vectors, for when the pretrained ones are not at hand.

    Entries are N(0, 1/width), float32, so that a vector has an expected squared length of 1.

    Args:
      words: V.
      width: E; 300 is that of the GloVe vectors in FedProx.
      seed: of the numbers.
    """
    check_count("random_table(words=...)", words)
    check_count("random_table(width=...)", width)
    check_count("random_table(seed=...)", seed, low=0)
    rng = np.random.Generator(np.random.PCG64(seed))
    return FrozenTable((rng.standard_normal((words, width)) / np.sqrt(width)).astype(np.float32))


def _check_bottleneck(what: str, value: Any) -> None:
    if value is not None:
        check_count(what, value)


class CharLSTM(Model):
    """The next character after a window of text: embedding, LSTM layers, a dense layer on the last state.

    x int[B, T] -> logits [B, num_classes]. With the defaults (LEAF's and FedProx's Shakespeare model, T = 80) it has
    80·8 + 4·100·(8 + 100 + 1) + 4·100·(100 + 100 + 1) + 80·(100 + 1) = 132,720 parameters. The same formula gives the
    published 820,522 of Reddi et al. 2021 for 90 characters and 256 hidden units.

    The embedding and the dense kernel start Glorot-uniform, the default of TensorFlow's ``get_variable``, which the
    papers' code uses; for the cells see :class:`LSTM`.

    Attributes:
      num_classes: size of the alphabet, of the embedding and of the output.
      hidden: width of the LSTM states.

    Source: Caldas et al. 2018 (LEAF); Li et al. 2020 (FedProx), appendix C.1.
    """

    num_classes: int = count(default=80)
    embedding: int = count(default=8)
    hidden: int = count(default=100)
    layers: int = count(default=2)
    param_dtype: Any = jnp.float32

    @property
    def vocabulary(self) -> int:
        """How many characters there are."""
        return self.num_classes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = as_tokens("CharLSTM", x)
        table = nn.Embed(self.num_classes, self.embedding, param_dtype=self.param_dtype, embedding_init=_GLOROT)
        last = _last_state(table(tokens.T), self.hidden, self.layers, self.param_dtype)
        return Dense(self.num_classes, param_dtype=self.param_dtype, kernel_init=_GLOROT)(last)


class SentimentLSTM(Model):
    """The class of a short text whose words have fixed vectors: LSTM layers and dense layers on the last state.

    With ``table``, x int[B, T] holds word numbers; without, x float[B, T, E] holds the vectors themselves. The vectors
    are no parameters. FedProx's Sent140 model has T = 25 words, E = 300 (GloVe) and a linear layer of
    30 before the output; the paper's text leaves that layer out (``bottleneck=None``). With 300-wide vectors and two
    classes: 4·256·(300 + 256 + 1) + 4·256·(256 + 256 + 1) + 30·(256 + 1) + 2·(30 + 1) = 1,103,452 parameters, 1,096,194
    without the bottleneck. (The authors' code has one output and a logistic loss where two and a softmax stand here;
    the functions they can represent are the same.)

    Dense kernels start Glorot-uniform, as in the authors' code; for the cells see :class:`LSTM`.

    Attributes:
      table: the words' vectors, from :func:`frozen_table` or :func:`random_table`; None where the data hold vectors.
      hidden: width of the LSTM states.
      bottleneck: width of a linear layer before the output, None for none.
      param_dtype: dtype of the parameters, the vectors and the logits.

    Source: Li et al. 2020 (FedProx), appendix C.1, and the authors' repository litian96/FedProx,
    ``flearn/models/sent140/stacked_lstm.py``.
    """

    num_classes: int = count(default=2)
    table: FrozenTable | None = static(of_kind(FrozenTable | None, "fjs.models.frozen_table(vectors)"), default=None)
    hidden: int = count(default=256)
    layers: int = count(default=2)
    bottleneck: int | None = static(_check_bottleneck, default=30)
    param_dtype: Any = jnp.float32

    @property
    def vocabulary(self) -> int | None:
        """How many words the table has; None without one."""
        return None if self.table is None else len(self.table.vectors)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        last = _last_state(jnp.swapaxes(self._vectors(x), 0, 1), self.hidden, self.layers, self.param_dtype)
        dense: dict[str, Any] = {"param_dtype": self.param_dtype, "kernel_init": _GLOROT}
        if self.bottleneck is not None:
            last = Dense(self.bottleneck, **dense)(last)
        return Dense(self.num_classes, **dense)(last)

    def _vectors(self, x: jax.Array) -> jax.Array:
        if self.table is not None:
            return jnp.take(jnp.asarray(self.table.vectors, self.param_dtype), as_tokens("SentimentLSTM", x), axis=0)
        if x.ndim != 3 or x.shape[1] == 0:
            raise ValueError(
                f"SentimentLSTM got features of shape {list(x.shape[1:])}: it needs word vectors [T, width], or a "
                "table (fjs.models.frozen_table) and word numbers [T]"
            )
        return x.astype(self.param_dtype)


def _last_state(x: jax.Array, hidden: int, layers: int, param_dtype: Any) -> jax.Array:
    """h_T [B, H] of the last of ``layers`` LSTM layers over x [T, B, E]; called inside a compact module."""
    for _ in range(layers):
        x = LSTM(hidden, param_dtype=param_dtype)(x)
    return x[-1]


register("model.CharLSTM", CharLSTM)
register("model.SentimentLSTM", SentimentLSTM)
