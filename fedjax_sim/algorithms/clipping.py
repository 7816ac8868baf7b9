"""Changes of bounded length: a fixed bound, and one that follows a quantile of the clients' lengths."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Message, Sum
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper
from fedjax_sim.core import trees
from fedjax_sim.core.fields import real

WITHIN = "within the norm"  # a message: 1 of a client whose change is no longer than the bound, else 0


class Bound(NamedTuple):
    """What a server knows of the bound C."""

    norm: jax.Array  # C of the next round
    used: jax.Array  # C of the last one
    clipped: jax.Array  # fraction of the last round's clients whose change was longer


BoundSent = namedtuple("BoundSent", ["base", "norm"])  # the base method's broadcast and C


def clip(tree: Any, norm: Any) -> tuple[Any, jax.Array]:
    """``(min(1, C / |tree|) tree, whether |tree| <= C)``, with |tree| over all leaves, in single precision at least.

    The derivative is finite everywhere: that of the factor is zero where nothing is clipped.
    """
    dtype = trees.widest(tree, jnp.float32)
    wide = jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    length, bound = trees.norm(wide), jnp.asarray(norm).astype(dtype)
    longer = length > bound
    # Both ends of the quotient are replaced: an infinite bound would make 0 * inf of its derivative.
    quotient = jnp.where(longer, bound, 1) / jnp.where(longer, length, 1)
    # In float16 a quotient below 6e-8 would be 0, and one of 1e-6 another by 5 %.
    return trees.of_types(trees.scale(jnp.where(longer, quotient, 1), wide), tree), ~longer


class Clipping(Wrapper):
    """Base of the methods whose clients report changes of bounded length; counts those that were longer."""

    only_once: ClassVar[str] = "clipped"

    @property
    def follows(self) -> bool:
        """Whether C changes from round to round, so that clients are sent it and report whether they were longer."""
        return False

    @property
    def first(self) -> Any:
        """C in the first round, and C where it stays."""
        return self.norm  # type: ignore[attr-defined]

    def followed(self, bound: Bound, share: jax.Array, cohort: Cohort) -> jax.Array:
        """C of the next round, after one in which a ``share`` of the clients was no longer than C."""
        return bound.norm

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        norm = jnp.asarray(self.first).astype(jnp.result_type(float))
        return Wrapped(self.base.init(params, shares), Bound(norm, norm, jnp.zeros_like(norm)))

    def send(self, server: Wrapped) -> Any:
        sent = self.base.send(server.base)
        return BoundSent(sent, server.extra.norm) if self.follows else sent

    def received(self, sent: Any) -> Any:
        return sent.base if self.follows else sent

    def bounded(self, change: Any, sent: Any) -> tuple[Any, Sum]:
        """A change as :func:`clip` leaves it, and what the client says of its length: for the record where C stays."""
        change, within = clip(change, sent.norm if self.follows else self.first)
        return change, Sum(within.astype(jnp.result_type(float)), nbytes=None if self.follows else 0)

    def encode(self, delta: Any, memory: Any, sent: Any, client: Client) -> tuple[Any, Any, dict[str, Message]]:
        delta, note = self.bounded(delta, sent)
        return delta, memory, {WITHIN: note}

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Any:
        inner = {name: message for name, message in got.items() if name != WITHIN}
        new: Wrapped = super().update(server, inner, cohort)
        bound, share = server.extra, share_of(got[WITHIN], cohort)
        return new._replace(extra=Bound(self.followed(bound, share, cohort), bound.norm, 1 - share))

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        record = self.base.report(server.base) | {"clipped": server.extra.clipped}
        return record | {"clipping_norm": server.extra.used} if self.follows else record


class Clipped(Clipping):
    """Any method whose clients report changes of length at most C.

    Delta_i <- min(1, C / |Delta_i|) Delta_i,   Delta_i = y_i - x, |.| the L2 norm over all parameters

    Clipped is the change itself, before the method sees it: whatever the method sends or keeps (SCAFFOLD's control
    variates, FedDyn's b_i) is computed from the clipped change, so that server and client agree. Gradients that a
    client reports without moving (FedDANE's first exchange) are not clipped. Recorded: ``"clipped"``, the fraction of
    the cohort that was longer than C.

    Args:
      norm: C > 0; infinity clips nothing.

    Raises:
      ValueError: a bound that is not positive, or a base that is clipped already.

    Reference: McMahan et al. 2018, "Learning differentially private recurrent language models", section 2 (flat
    clipping).
    """

    norm: Any = real(default=1.0, above=0.0, infinite=True)


class AdaptivelyClipped(Clipping):
    """Clipping to a bound that follows a quantile of the lengths of the clients' changes.

    C <- C exp(-eta (b - gamma)),   b = the fraction of the cohort with |Delta_i| <= C

    so that in the long run a fraction gamma is not clipped, whatever the lengths become. C goes down with the model.
    What is clipped: see :class:`Clipped`. b counts clients alike, whatever the average. Recorded: ``"clipped"``, 1 - b,
    and ``"clipping_norm"``, the C that the round's clients used.

    Args:
      quantile: gamma in [0, 1], the fraction of clients to be left as they are.
      rate: eta >= 0.
      initial: C in the first round, > 0.

    Raises:
      ValueError: a value out of its range, or a base that is clipped already.

    Reference: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section 2.1 (geometric
    updates); the defaults are their experiments'.
    """

    quantile: Any = real(default=0.5, low=0.0, high=1.0)
    rate: Any = real(default=0.2, low=0.0)
    initial: Any = real(default=0.1, above=0.0)

    @property
    def follows(self) -> bool:
        return True

    @property
    def first(self) -> Any:
        return self.initial

    def followed(self, bound: Bound, share: jax.Array, cohort: Cohort) -> jax.Array:
        moved = geometric(bound.norm, self.rate, share, self.quantile)
        return jnp.where(cohort.size > 0, moved, bound.norm)


def geometric(norm: jax.Array, rate: Any, share: jax.Array, quantile: Any) -> jax.Array:
    """C exp(-eta (b - gamma)) (Andrew et al. 2021, section 2.1)."""
    rate, quantile = trees.as_dtype(rate, norm), trees.as_dtype(quantile, norm)
    return norm * jnp.exp(-rate * (share.astype(norm.dtype) - quantile))


def share_of(within: jax.Array, cohort: Cohort) -> jax.Array:
    """b, from the number of clients within the bound; 1 where nobody took part."""
    size = cohort.size.astype(within.dtype)
    return jnp.where(size > 0, within / jnp.maximum(size, 1), jnp.ones_like(within))


clipped = recorded(
    "algorithm.clipped",
    Clipped,
    step="around a method: Δ_i ← min(1, C/‖Δ_i‖) Δ_i",
    cite="mcmahan2018learning",
    kept="the base's",
    case={"norm": 0.4},
)
adaptively_clipped = recorded(
    "algorithm.adaptively_clipped",
    AdaptivelyClipped,
    step="the same, C follows a quantile of the ‖Δ_i‖",
    cite="andrew2021differentially",
    kept="the base's",
    sent="the base's + a scalar",
    case={"initial": 0.4},
)
