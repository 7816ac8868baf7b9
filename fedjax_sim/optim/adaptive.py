"""Adaptive server optimisers as their papers write them, which is not as optax does.

All act on the pseudo-gradient Delta (the driver passes -Delta, as to any optimiser) and return u; the server then steps
x <- x + eta_g u. Any method takes them as ``server_optimizer``; what they keep and return is said at the methods of
their names, :class:`fedjax_sim.algorithms.FedAdam` and the like. Moments are kept in single precision at least: in
bfloat16 a beta2 of 0.999 is 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import check_single, flag, real
from fedjax_sim.optim.described import Optimizer


class Moments(NamedTuple):
    """First moment m, second moment v, and v hat or the step count where the method has one."""

    first: Any
    second: Any
    extra: Any = ()


class _Adaptive(Optimizer):
    """u = m / (sqrt(v) + tau), m <- beta1 m + (1 - beta1) Delta, m_0 = 0, v_0 = tau^2 (Reddi et al. 2021)."""

    beta1: Any = real(default=0.9, low=0.0, below=1.0)
    beta2: Any = real(default=0.99, low=0.0, below=1.0)
    tau: Any = real(default=1e-3, above=0.0)

    def second(self, v: jax.Array, square: jax.Array) -> jax.Array:
        """The second moment from the last one and Delta^2."""
        raise TypeError(f"{type(self).__name__} must define second(v, square)")

    def transform(self) -> optax.GradientTransformation:
        check_single(self, self.factory_name())

        def init(params: Any) -> Moments:
            params = trees.wide(params)
            start = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.square(trees.as_dtype(self.tau, leaf))), params)
            return Moments(trees.zeros_like(params), start)

        def update(gradients: Any, state: Moments, params: Any = None) -> tuple[Any, Moments]:
            gradients = trees.wide(gradients)
            first = trees.mix(self.beta1, state.first, gradients)
            second = jax.tree.map(lambda v, g: self.second(v, jnp.square(g)), state.second, gradients)
            return self._step(first, second), Moments(first, second)

        return optax.GradientTransformation(init, update)

    def peek(self, gradients: Any, state: Any, params: Any) -> Any:
        check_single(self, self.factory_name())
        first = trees.mix(self.beta1, state.first, trees.wide(gradients))
        return trees.of_types(self._step(first, state.second), gradients)

    def _step(self, first: Any, second: Any) -> Any:
        return jax.tree.map(lambda m, v: -m / (jnp.sqrt(v) + trees.as_dtype(self.tau, v)), first, second)


class FedAdagrad(_Adaptive):
    """FedAdagrad's server optimiser: FedAdam's, but v <- v + Delta^2; ``beta2`` is not used."""

    def second(self, v: jax.Array, square: jax.Array) -> jax.Array:
        return v + square


class FedAdam(_Adaptive):
    """FedAdam's server optimiser, without bias correction: u = m / (sqrt(v) + tau), with m_0 = 0 and v_0 = tau^2.

    m <- beta1 m + (1 - beta1) Delta;   v <- beta2 v + (1 - beta2) Delta^2
    """

    def second(self, v: jax.Array, square: jax.Array) -> jax.Array:
        return trees.mix(self.beta2, v, square)


class FedYogi(_Adaptive):
    """FedYogi's server optimiser: FedAdam's, but v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)."""

    def second(self, v: jax.Array, square: jax.Array) -> jax.Array:
        return v - (1 - trees.as_dtype(self.beta2, v)) * square * jnp.sign(v - square)


class FedAms(Optimizer):
    """FedAMS's server optimiser, AMSGrad with the maximum stabilised.

    m <- beta1 m + (1 - beta1) Delta;   v <- beta2 v + (1 - beta2) Delta^2;   m_0 = v_0 = 0
    corrected=False (the paper): v^ <- max(v^, v, eps), v^_0 = 0;   u = m / sqrt(v^)
    corrected=True (the authors' code): v^ <- max(v^, v), v^_0 = ``initial``;
      u = [m / (1 - beta1^t)] / (sqrt(v^) / sqrt(1 - beta2^t) + eps), t = 1, 2, ... the server steps so far

    Neither is optax.amsgrad, which corrects v before it takes the maximum.

    Reference: Wang, Lin and Chen 2022, "Communication-efficient adaptive federated learning", Algorithm 1.
    """

    beta1: Any = real(default=0.9, low=0.0, below=1.0)
    beta2: Any = real(default=0.99, low=0.0, below=1.0)
    eps: Any = real(default=1e-3, above=0.0)
    corrected: bool = flag(default=False)
    initial: Any = real(default=1e-3, above=0.0)

    def transform(self) -> optax.GradientTransformation:
        check_single(self, self.factory_name())

        def init(params: Any) -> Moments:
            params = trees.wide(params)
            largest = self.initial if self.corrected else 0.0
            start = jax.tree.map(lambda leaf: jnp.full_like(leaf, trees.as_dtype(largest, leaf)), params)
            zeros = trees.zeros_like(params)
            return Moments(zeros, zeros, (start, jnp.int32(0)))

        def update(gradients: Any, state: Moments, params: Any = None) -> tuple[Any, Moments]:
            largest, count = state.extra
            gradients = trees.wide(gradients)
            first = trees.mix(self.beta1, state.first, gradients)
            second = trees.mix(self.beta2, state.second, jax.tree.map(jnp.square, gradients))
            largest, count = jax.tree.map(jnp.maximum, largest, second), count + 1
            if not self.corrected:
                largest = jax.tree.map(lambda top: jnp.maximum(top, trees.as_dtype(self.eps, top)), largest)

            def step(m: jax.Array, top: jax.Array) -> jax.Array:
                if not self.corrected:
                    return -m / jnp.sqrt(top)
                one, two = (1 - trees.as_dtype(beta, m) ** count.astype(m.dtype) for beta in (self.beta1, self.beta2))
                return -(m / one) / (jnp.sqrt(top) / jnp.sqrt(two) + trees.as_dtype(self.eps, m))

            return jax.tree.map(step, first, largest), Moments(first, second, (largest, count))

        return optax.GradientTransformation(init, update)


fedadagrad = factory("optim.fedadagrad", FedAdagrad)
fedadam = factory("optim.fedadam", FedAdam)
fedyogi = factory("optim.fedyogi", FedYogi)
fedams = factory("optim.fedams", FedAms)
