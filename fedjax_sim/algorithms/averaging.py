"""Server averaging: the model that is evaluated is an average of the iterates; training does not know of it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Cohort
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.core import trees
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.values import INT32_MAX


class Ema(Wrapper):
    """Exponential moving average of the global models of any method.

    x~ <- beta x~ + (1 - beta) x after every round,   x~_0 = x_0; x~ is evaluated and returned, x trains on.

    A round that changes nothing (nobody took part) does not move x~ either.

    Args:
      decay: beta in [0, 1).

    Reference: Polyak and Juditsky 1992, "Acceleration of stochastic approximation by averaging" (the idea); the
    exponential weights as usual for deep networks.
    """

    decay: Any = real(default=0.9, low=0.0, below=1.0)

    of_one_model: ClassVar[bool] = True

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        # In half precision 0.999 is 1, and what is nearer than some hundredths would not be approached.
        return Wrapped(self.base.init(params, shares), trees.wide(params))

    def evaluated(self, server: Wrapped) -> Any:
        return trees.of_types(server.extra, self.model(server))

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Wrapped:
        new: Wrapped = super().update(server, got, cohort)
        model = trees.of_types(self.model(new), server.extra)
        return new._replace(extra=trees.mix(self.decay, server.extra, model))


class Window(NamedTuple):
    """The last k models, [k, ...], and how many rounds there were."""

    models: Any
    rounds: jax.Array


class LastK(Wrapper):
    """The mean of the last k global models of any method.

    x~_t = mean of x_s, s = max(0, t - k + 1) .. t; x~ is evaluated and returned, x trains on.

    Rounds that change nothing (nobody took part) are not counted.

    Memory: k models on the server.

    Args:
      k: how many models, at least 1.

    Reference: Izmailov et al. 2018, "Averaging weights leads to wider optima and better generalization", section 3.
    """

    k: int = count(default=5, high=INT32_MAX)

    of_one_model: ClassVar[bool] = True

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        models = jax.tree.map(lambda leaf: jnp.zeros((self.k, *leaf.shape), leaf.dtype).at[0].set(leaf), params)
        return Wrapped(self.base.init(params, shares), Window(models, jnp.int32(0)))

    def evaluated(self, server: Wrapped) -> Any:
        models, rounds = server.extra
        held = jnp.minimum(rounds + 1, self.k)
        means = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / held.astype(leaf.dtype), trees.wide(models))
        return trees.of_types(means, self.model(server))

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Wrapped:
        new: Wrapped = super().update(server, got, cohort)
        rounds = server.extra.rounds + 1
        place = rounds % self.k
        models = jax.tree.map(lambda all_, leaf: all_.at[place].set(leaf), server.extra.models, self.model(new))
        return new._replace(extra=Window(models, rounds))


ema = recorded(
    "algorithm.ema",
    Ema,
    step="around a method: reports x̃ ← β x̃ + (1 − β) x",
    cite="polyak1992acceleration",
    kept="the base's",
    case={"decay": 0.7},
)
last_k = recorded(
    "algorithm.last_k",
    LastK,
    step="around a method: reports the mean of the last k models",
    cite="izmailov2018averaging",
    kept="the base's",
    case={"base": "scaffold", "k": 2},
)
