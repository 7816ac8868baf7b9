"""What becomes of the members of a search after an evaluation: who goes on, from whose state, with which values."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.keys import fold_in, random_words
from fedjax_sim.core.sampling import below, happens
from fedjax_sim.studies.subject import Transform
from fedjax_sim.studies.sweeps.space import Random, Space

Values = dict[str, jax.Array]  # hyper-parameters by name, [n, ...]


class Decision(NamedTuple):
    """About n members at work; the indices are places among them."""

    order: jax.Array  # int32[n], all of them, those first that go on where fewer do
    source: jax.Array  # int32[n], from whose state each goes on: its own, or a copy
    values: Values  # with which each goes on


class Strategy(Described):
    """Base of the strategies. Members are compared by scores: less is better, and that of a diverged run is inf.

    Attributes:
      explores: whether members may get values that no point of the space has.
    """

    explores: ClassVar[bool] = False

    def sizes(self, members: int, evaluated: list[int]) -> tuple[int, ...]:
        """How many members are at work before each evaluation, of rounds ``evaluated``; checks that this can be."""
        raise TypeError(f"{type(self).__name__} must define sizes(members, evaluated)")

    def fresh(self, space: Space, transforms: dict[str, Transform], evaluations: int) -> Space | None:
        """Checks the space; P points an evaluation, those of the space first, from which values are drawn, or None."""
        return None

    def decide(self, key: jax.Array, scores: jax.Array, values: Values, fresh: Values, transforms: Any) -> Decision:
        """The decision after an evaluation; ``key`` names what it draws, ``fresh`` has a new point for each member."""
        raise TypeError(f"{type(self).__name__} must define decide(...)")


class Population(Strategy):
    """Population-based training: after every evaluation the worst members go on as copies of the best, with changes.

    Of P members the q = max(1, floor(fraction P)) worst each take one of the q best, drawn uniformly from those of them
    that have not diverged (from the first where all have): its model, server state, client states and
    hyper-parameters theta, which they then change (*explore*)::

        u = f^-1(theta),  theta <- f(u + log factor) or f(u - log factor), each with probability 1/2,

    in the coordinates of :func:`fedjax_sim.tune`: theta is multiplied or divided by ``factor`` where it is positive,
    its odds are where it lies between 0 and 1; each entry of an array by itself. With probability ``resample`` a
    hyper-parameter is drawn anew from the space instead. All others go on unchanged. Of equals the first is the better.

    What member m draws after evaluation e (1, 2, ...) are random words of the key ``fold_in(fold_in(s, e), m)``, s the
    branch ``Purpose.SEARCH`` of the first seed's key: one for the source, then for each hyper-parameter, in the order
    of names, one for whether it is drawn anew and one an entry, up where the highest bit is 1.

    Args:
      fraction: in (0, 1/2).
      factor: > 1.
      resample: in [0, 1]; above 0 the space is ``fjs.sweeps.random``: what member m gets after evaluation e is from its
        point e P + m.

    Raises:
      ValueError: (before a search) a space of one point, or without what is asked of it; a cohort or work that finds a
        bound from a value that changes, ``independent(q)`` without a ``cap`` or ``geometric(p)`` without ``most``.

    Reference: Jaderberg et al. 2017, "Population based training of neural networks"; in federated learning Chen et al.
    2023, "FedPop: Federated population-based hyperparameter tuning", of which this is the level of the server.
    """

    fraction: float = real(above=0.0, below=0.5, structure=True, default=0.25)
    factor: Any = real(above=1.0, default=1.25)
    resample: Any = real(low=0.0, high=1.0, default=0.0)

    explores: ClassVar[bool] = True

    def sizes(self, members: int, evaluated: list[int]) -> tuple[int, ...]:
        if members < 2:
            raise ValueError("population(): one member has nobody to copy; give a space of at least 2 points")
        return (members,) * len(evaluated)

    def fresh(self, space: Space, transforms: dict[str, Transform], evaluations: int) -> Space | None:
        for name, column in space.points().items():
            for number, value in enumerate(column):
                transforms[name].check(f"population(): there are no factors of point {number}, {name!r}", value)
        if isinstance(space, Random):
            return space.replace(count=space.count * evaluations)
        if float(self.resample) > 0:
            raise ValueError(
                f"population(resample={float(self.resample):g}) draws from the space, and {space.factory_name()}(...) "
                "has no distributions: give fedjax_sim.sweeps.random({...}, count), or resample=0"
            )
        return None

    def decide(self, key: jax.Array, scores: jax.Array, values: Values, fresh: Values, transforms: Any) -> Decision:
        members = jnp.arange(len(scores), dtype=jnp.int32)
        copied = max(1, int(round(self.fraction * len(scores), 9)))  # 0.29 * 100 is 28.999...
        ranked = jnp.argsort(scores, stable=True).astype(jnp.int32)
        replaced = jnp.zeros(len(scores), bool).at[ranked[-copied:]].set(True)
        sizes = [values[name][0].size for name in sorted(values)]
        words = random_words(fold_in(key, members), 1 + len(sizes) + sum(sizes))
        sound = jnp.clip(jnp.sum(jnp.isfinite(scores), dtype=jnp.int32), 1, copied)
        source = jnp.where(replaced, ranked[below(words[:, 0], sound)], members)
        explored, at = {}, 1
        for name, size in zip(sorted(values), sizes, strict=True):
            own = values[name]
            column = (len(own), *[1] * (own.ndim - 1))
            anew = happens(words[:, at], trees.as_dtype(self.resample, scores)).reshape(column)
            up = (words[:, at + 1 : at + 1 + size] >> 31 == 1).reshape(own.shape)
            u = jax.vmap(transforms[name].coordinate)(own[source])
            step = jnp.log(trees.as_dtype(self.factor, u))
            changed = jax.vmap(transforms[name].value)(jnp.where(up, u + step, u - step))
            explored[name] = jnp.where(replaced.reshape(column), jnp.where(anew, fresh.get(name, own), changed), own)
            at += 1 + size
        return Decision(members, source, explored)


class Halving(Strategy):
    """Successive halving: after each rung the best 1 / eta of the members go on, from where they are.

    Rung k = 0 .. K - 1 has floor(P / eta^k) members and ends after R / eta^(K - 1 - k) rounds, R those of the run. Of
    equals the first is the better. One rung is a sweep.

    Args:
      rungs: K.
      eta: of so many members one goes on.

    Reference: Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization"; Li
    et al. 2018, "Hyperband: A novel bandit-based approach to hyperparameter optimization", whose bracket s has s + 1
    rungs.
    """

    rungs: int = count(default=3)
    eta: int = count(low=2, default=2)

    def sizes(self, members: int, evaluated: list[int]) -> tuple[int, ...]:
        power, rounds = self.eta ** (self.rungs - 1), evaluated[-1]
        ends = [rounds * self.eta**rung / power for rung in range(self.rungs)]
        if members < power or not {*ends} <= {*evaluated}:
            raise ValueError(
                f"halving(rungs={self.rungs}, eta={self.eta}) of {members} members and {rounds} rounds: the first rung "
                f"would end after {ends[0]:g} rounds, the last have {members / power:g} members: rounds must be a "
                f"multiple of {power} eval_every, and the points at least {power}"
            )
        return tuple(members // self.eta ** int(rung) for rung in np.searchsorted(ends, evaluated))

    def decide(self, key: jax.Array, scores: jax.Array, values: Values, fresh: Values, transforms: Any) -> Decision:
        ranked = jnp.argsort(scores, stable=True).astype(jnp.int32)
        return Decision(ranked, jnp.arange(len(scores), dtype=jnp.int32), values)


population = factory("search.population", Population)
halving = factory("search.halving", Halving)
