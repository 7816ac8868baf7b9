"""Changes of bounded length: a fixed bound, and one that follows a quantile of the clients' lengths."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client, Cohort, Message, Sum
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.values import check_real, check_scalar

WITHIN = "within the norm"  # a message: 1 of a client whose change is no longer than the bound, else 0


class Bound(NamedTuple):
    """What a server knows of the bound C.

    Attributes:
      norm: C of the next round.
      used: C of the last one.
      clipped: fraction of the last round's clients whose change was longer.
    """

    norm: jax.Array
    used: jax.Array
    clipped: jax.Array


class BoundSent(NamedTuple):
    """The base method's broadcast and C."""

    base: Any
    norm: jax.Array


def clip(tree: Any, norm: Any) -> tuple[Any, jax.Array]:
    """``(min(1, C / |tree|) tree, whether |tree| <= C)``, with |tree| over all leaves, in single precision at least.

    The derivative is finite everywhere: that of the factor is zero where nothing is clipped.
    """
    dtype = trees.widest(tree, jnp.float32)
    length = trees.norm(jax.tree.map(lambda leaf: leaf.astype(dtype), tree))
    bound = jnp.asarray(norm).astype(dtype)
    longer = length > bound
    # Both ends of the quotient are replaced: an infinite bound would make 0 * inf of its derivative.
    quotient = jnp.where(longer, bound, 1) / jnp.where(longer, length, 1)
    return trees.scale(jnp.where(longer, quotient, 1), tree), ~longer


def check_norm(what: str, norm: Any) -> None:
    """Checks that a bound is positive; infinity, which clips nothing, is one."""
    check_real(what, norm, low=0.0, open_=True, infinite=True)


def check_only_clipping(name: str, base: Any) -> None:
    """Raises ``ValueError`` where a method inside clips already: a second bound would hide the first."""
    inside: Any = base
    while isinstance(inside, Wrapper):
        if isinstance(inside, Clipping) or (inside.requires.apart and not inside.base.requires.apart):
            found = type(inside).__name__
            raise ValueError(f"{name}(base): the base is clipped already, by {found}: give one bound, the smaller")
        inside = inside.base


class Clipping(Wrapper):
    """Base of the methods whose clients report changes of bounded length; counts those that were longer."""

    def first(self) -> Any:
        """C in the first round."""
        raise TypeError(f"{type(self).__name__} must define first()")

    def bound(self, sent: Any) -> Any:
        """C, as a client knows it."""
        return self.first()

    def followed(self, bound: Bound, share: jax.Array, cohort: Cohort) -> jax.Array:
        """C of the next round, after one in which a ``share`` of the clients was no longer than C."""
        return bound.norm

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        return Wrapped(self.base.init(params, shares), first_bound(self.first()))

    def encode(self, delta: Any, memory: Any, sent: Any, client: Client) -> tuple[Any, Any, dict[str, Message]]:
        delta, within = clip(delta, self.bound(sent))
        return delta, memory, {WITHIN: self.note(within)}

    def note(self, within: jax.Array) -> Sum:
        """What a client says of its length; here for the record alone."""
        return Sum(within.astype(jnp.result_type(float)), nbytes=0)

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Any:
        new: Wrapped = super().update(server, without_note(got), cohort)
        bound, share = server.extra, share_of(got[WITHIN], cohort)
        return new._replace(extra=Bound(self.followed(bound, share, cohort), bound.norm, 1 - share))

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        return self.base.report(server.base) | {"clipped": server.extra.clipped}


class Clipped(Clipping):
    """Any method whose clients report changes of length at most C.

    Delta_i <- min(1, C / |Delta_i|) Delta_i,   Delta_i = y_i - x, |.| the L2 norm over all parameters

    Clipped is the change itself, before the method sees it: whatever the method sends or keeps (FedNova's normalised
    change, SCAFFOLD's control variates, FedDyn's b_i, FedAWARE's momenta) is computed from the clipped change, so that
    server and client agree. Gradients that a client reports without moving (FedDANE's first exchange) are not clipped.
    Recorded: ``"clipped"``, the fraction of the cohort that was longer than C.
    State per client, and what is sent: the base's.

    Args:
      base: the method.
      norm: C > 0; infinity clips nothing.

    Raises:
      ValueError: a bound that is not positive, or a base that is clipped already.

    Reference: McMahan et al. 2018, "Learning differentially private recurrent language models", section 2 (flat
    clipping).
    """

    norm: Any = 1.0

    def checked(self) -> Self:
        check_norm("clipped(norm=...)", self.norm)
        check_only_clipping("clipped", self.base)
        return super().checked()

    def first(self) -> Any:
        check_scalar("clipped(norm=...)", self.norm)
        return self.norm


class AdaptivelyClipped(Clipping):
    """Clipping to a bound that follows a quantile of the lengths of the clients' changes.

    C <- C exp(-eta (b - gamma)),   b = the fraction of the cohort with |Delta_i| <= C

    so that in the long run a fraction gamma is not clipped, whatever the lengths become. C is the server's and goes
    down with the model. What is clipped: see :class:`Clipped`. b counts clients alike, whatever the average. Recorded:
    ``"clipped"`` (1 - b) and ``"clipping_norm"``, the C that the round's clients used.
    State per client: the base's. One number more down and up.

    Args:
      base: the method.
      quantile: gamma in [0, 1], the fraction of clients to be left as they are.
      rate: eta >= 0.
      initial: C in the first round, > 0.

    Raises:
      ValueError: a value out of its range, or a base that is clipped already.

    Reference: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section 2.1 (geometric
    updates); the defaults are their experiments'.
    """

    quantile: Any = 0.5
    rate: Any = 0.2
    initial: Any = 0.1

    def checked(self) -> Self:
        check_real("adaptively_clipped(initial=...)", self.initial, low=0.0, open_=True)
        check_quantile("adaptively_clipped", self.quantile, self.rate)
        check_only_clipping("adaptively_clipped", self.base)
        return super().checked()

    def first(self) -> Any:
        for name in ("quantile", "rate", "initial"):
            check_scalar(f"adaptively_clipped({name}=...)", getattr(self, name))
        return self.initial

    def send(self, server: Wrapped) -> BoundSent:
        return BoundSent(self.base.send(server.base), server.extra.norm)

    def received(self, sent: BoundSent) -> Any:
        return sent.base

    def bound(self, sent: BoundSent) -> Any:
        return sent.norm

    def note(self, within: jax.Array) -> Sum:
        return Sum(within.astype(jnp.result_type(float)))

    def followed(self, bound: Bound, share: jax.Array, cohort: Cohort) -> jax.Array:
        moved = geometric(bound.norm, self.rate, share, self.quantile)
        return jnp.where(cohort.size > 0, moved, bound.norm)

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        return super().report(server) | {"clipping_norm": server.extra.used}


def geometric(norm: jax.Array, rate: Any, share: jax.Array, quantile: Any) -> jax.Array:
    """C exp(-eta (b - gamma)) (Andrew et al. 2021, section 2.1)."""
    rate, quantile = trees.as_dtype(rate, norm), trees.as_dtype(quantile, norm)
    return norm * jnp.exp(-rate * (share.astype(norm.dtype) - quantile))


def check_quantile(name: str, quantile: Any, rate: Any) -> None:
    """Checks gamma and eta."""
    check_real(f"{name}(quantile=...)", quantile, low=0.0, high=1.0)
    check_real(f"{name}(rate=...)", rate, low=0.0)


def first_bound(norm: Any) -> Bound:
    """What the server knows before the first round."""
    norm = jnp.asarray(norm).astype(jnp.result_type(float))
    return Bound(norm, norm, jnp.zeros_like(norm))


def share_of(within: jax.Array, cohort: Cohort) -> jax.Array:
    """b, from the number of clients within the bound; 1 where nobody took part."""
    size = cohort.size.astype(within.dtype)
    return jnp.where(size > 0, within / jnp.maximum(size, 1), jnp.ones_like(within))


def without_note(messages: dict[str, Any]) -> dict[str, Any]:
    """The base method's messages."""
    return {name: message for name, message in messages.items() if name != WITHIN}


clipped = factory("algorithm.clipped", Clipped)
adaptively_clipped = factory("algorithm.adaptively_clipped", AdaptivelyClipped)
