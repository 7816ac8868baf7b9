"""Learned optimisers: a tiny network says how far to go, and along which mixture of the directions of known rules."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import choice, count, flag, leaf
from fedjax_sim.core.values import shown
from fedjax_sim.optim.described import Optimizer

DECAYS = (0.5, 0.9, 0.99)  # of the momenta
SECOND = 0.99  # of the second moment
TIMES = (1, 3, 10, 30, 100, 300, 1000)  # steps


class LearnedState(NamedTuple):
    """Momenta, leaves [3, ...]; second moment; steps so far, int32."""

    momenta: Any
    second: Any
    steps: jax.Array


class Learned(Optimizer):
    """A rule whose network looks at every tensor, or at every parameter: at directions of known rules, which it mixes.

    With o = net(features), and m_k, v the bias-corrected averages of g and g^2::

        u = -exp(o_0) [g + sum_j o_j (d_j - g)],    d = m_1, m_2, m_3 (decays 0.5, 0.9, 0.99), rms(g) m_2 / sqrt(v)

    so that zero weights are SGD, FedAvg on a server. No feature sees the scale of g, so u scales as g does, and
    ``client_learning_rate`` and ``server_learning_rate`` are what they are beside SGD.

    Args:
      per: ``"tensor"``, which costs little more than Adam, or ``"parameter"``, about 300 operations each at 8 hidden.
      weights: kernels and biases by name, leaves to trace; None for a start that is SGD.
      hidden: width of the network's two hidden layers, tanh.
      dispersion: whether it sees how far a cohort's changes agree, which :func:`fedjax_sim.fedlopt` tells it.

    Raises:
      ValueError: weights of other names or shapes.

    Reference: Metz et al. 2019, "Understanding and correcting pathologies in the training of learned optimizers" (the
    features); Harrison et al. 2022, "A closer look at learned optimization" (a known rule and a correction to it).
    """

    per: str = choice(("tensor", "parameter"), default="tensor")
    weights: Any = leaf(default=None)
    hidden: int = count(default=8)
    dispersion: bool = flag(default=False)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights by name."""
        inputs = len(TIMES) + 2 * len(DECAYS) + self.dispersion  # features of a tensor, and of a parameter
        inputs += 3 + 2 * len(DECAYS) + 2 * self.dispersion if self.per == "parameter" else 0
        widths = (inputs, self.hidden, self.hidden, len(DECAYS) + 2)
        kernels = {f"kernel_{layer}": widths[layer : layer + 2] for layer in range(3)}
        return kernels | {f"bias_{layer}": widths[layer + 1 : layer + 2] for layer in range(3)}

    def checked(self) -> Self:
        if self.weights is not None:
            self._check_weights()
            return super().checked()

        def drawn(name: str, shape: tuple[int, ...], key: jax.Array) -> jax.Array:
            start = name in ("kernel_0", "kernel_1")
            return jax.random.normal(key, shape) / shape[0] ** 0.5 if start else jnp.zeros(shape)

        shapes = self.shapes()
        keys = jax.random.split(jax.random.key(0), len(shapes))
        weights = {name: drawn(name, shape, key) for (name, shape), key in zip(shapes.items(), keys, strict=True)}
        return super().checked().replace(weights=weights)

    def _check_weights(self) -> None:
        what, wanted = "learned(weights=...)", self.shapes()
        if not isinstance(self.weights, Mapping):
            raise TypeError(f"{what} is {shown(self.weights)}: give arrays by name, {', '.join(wanted)}")
        found = {name: np.shape(array) for name, array in self.weights.items()}
        if found != wanted:
            wrong = [f"{name} {found.get(name)}" for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
            raise ValueError(
                f"{what} has {', '.join(wrong)}: with per={self.per!r}, hidden={self.hidden}, "
                f"dispersion={self.dispersion} it must have "
                + ", ".join(f"{name} {shape}" for name, shape in wanted.items())
            )

    def transform(self) -> optax.GradientTransformationExtraArgs:
        self._check_weights()

        def init(params: Any) -> LearnedState:
            zeros = trees.wide(trees.zeros_like(params))
            momenta = jax.tree.map(lambda leaf: jnp.zeros((len(DECAYS), *leaf.shape), leaf.dtype), zeros)
            return LearnedState(momenta, zeros, jnp.int32(0))

        def update(gradients: Any, state: LearnedState, params: Any = None, *, square: Any = None) -> Any:
            if params is None:
                raise ValueError("learned() looks at the parameters: call update(gradients, state, params)")
            if self.dispersion and square is None:
                raise ValueError(
                    "learned(dispersion=True) needs to hear how far clients agree, which this method "
                    "does not tell it: use fedjax_sim.fedlopt(server_optimizer=...), or a rule with dispersion=False"
                )
            gradients, params, square = trees.wide((gradients, params, square))

            def averaged(m: jax.Array, g: jax.Array) -> jax.Array:
                decays = jnp.asarray(DECAYS, m.dtype).reshape(-1, *[1] * g.ndim)
                return decays * m + (1 - decays) * g

            momenta = jax.tree.map(averaged, state.momenta, gradients)
            second = trees.mix(SECOND, state.second, jax.tree.map(jnp.square, gradients))
            told = (square,) if self.dispersion else ()
            of_tensor = functools.partial(self._update, state.steps)
            updates = jax.tree.map(of_tensor, gradients, params, momenta, second, *told)
            return updates, LearnedState(momenta, second, state.steps + 1)

        return optax.GradientTransformationExtraArgs(init, update)

    def _update(self, before: jax.Array, g: jax.Array, p: Any, m: Any, v: Any, square: Any = None) -> jax.Array:
        """u of one tensor after ``before`` steps."""
        steps = (before + 1).astype(g.dtype)
        m = m / (1 - jnp.asarray(DECAYS, g.dtype) ** steps).reshape(-1, *[1] * g.ndim)
        v = v / (1 - jnp.asarray(SECOND, g.dtype) ** steps)
        of_each, of_tensor = features(before, g, p, m, v, square, each=self.per == "parameter")
        out = self._net(of_each, of_tensor)
        adam = trees.root(jnp.mean(jnp.square(g))) * _over(m[DECAYS.index(0.9)], v)
        mixed = g
        for number, direction in enumerate((*m, adam), 1):
            mixed = mixed + out[..., number] * (direction - g)
        return -jnp.exp(out[..., 0]) * mixed

    def _net(self, of_each: jax.Array, of_tensor: jax.Array) -> jax.Array:
        """[..., outputs] from [..., features of each] and [features of the tensor]."""
        weights = {name: jnp.asarray(array).astype(of_tensor.dtype) for name, array in self.weights.items()}
        number = of_each.shape[-1]
        x = trees.matmul(of_tensor, weights["kernel_0"][number:]) + weights["bias_0"]
        if number:
            x = trees.matmul(of_each, weights["kernel_0"][:number]) + x
        x = jnp.tanh(trees.matmul(jnp.tanh(x), weights["kernel_1"]) + weights["bias_1"])
        return trees.matmul(x, weights["kernel_2"]) + weights["bias_2"]


def features(
    before: jax.Array, g: jax.Array, p: jax.Array, m: jax.Array, v: jax.Array, square: Any = None, *, each: bool
) -> tuple[jax.Array, jax.Array]:
    """What a network sees of one tensor: ``([..., features of each parameter], [features of the tensor])``.

    Of the tensor: tanh(t / T - 1) of the steps t taken before, T = 1, 3, .., 1000; the cosine of m_k and g; log of the
    norm of m_k over that of g; with dispersion mean g^2 / mean q, 1 where all agree. Of each parameter (``each``), over
    their root mean square: g, p, m_k, 1 / sqrt(v / mean v + 1e-4), and with dispersion q - g^2, the variance of the
    changes, 0 where that is round-off of q; as they are: m_k / sqrt(v), and with dispersion g / sqrt(q). All are the
    same for c g.

    Here g is the gradient, or the negative pseudo-gradient, m [3, ...] and v are bias-corrected, q = ``square`` is
    sum_S w_i Delta_i^2.
    """
    own = jnp.mean(jnp.square(g))
    axes = tuple(range(1, m.ndim))
    of_m = jnp.mean(jnp.square(m), axis=axes)
    both = (of_m > 0) & (own > 0)
    ratio = jnp.where(both, of_m, 1) / jnp.where(both, own, 1)
    cosine = _over(jnp.mean(m * g, axis=axes), of_m * own)
    times = jnp.tanh(before.astype(g.dtype) / jnp.asarray(TIMES, g.dtype) - 1)
    of_tensor = [times, cosine, jnp.log(ratio) / 2]
    if square is not None:
        of_tensor.append(jnp.square(_over(trees.root(own), jnp.mean(square)))[None])
    if not each:
        return jnp.zeros((0,), g.dtype), jnp.concatenate(of_tensor)
    level = jnp.mean(v)
    rsqrt = jax.lax.rsqrt(v / jnp.where(level > 0, level, 1) + 1e-4)
    of_each = [_normalised(g), _normalised(p), *map(_normalised, m), *_over(m, v), _normalised(rsqrt)]
    if square is not None:
        variance = square - jnp.square(g)
        told = variance > 10 * jnp.finfo(g.dtype).eps * square  # less is round-off, of one client or of all alike
        of_each += [_normalised(jnp.where(told, variance, 0)), _over(g, square)]
    return jnp.stack(of_each, axis=-1), jnp.concatenate(of_tensor)


def _over(x: jax.Array, square: jax.Array) -> jax.Array:
    """x / sqrt(square), and 0, with derivative 0, where that is 0."""
    positive = square > 0
    return jnp.where(positive, x * jax.lax.rsqrt(jnp.where(positive, square, 1)), 0)


def _normalised(x: jax.Array) -> jax.Array:
    """x over its root mean square."""
    return _over(x, jnp.mean(jnp.square(x)))


learned = factory("optim.learned", Learned)
