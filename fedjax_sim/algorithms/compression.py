"""Changes sent with fewer bytes: stochastic quantisation, the largest entries, random entries."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Message, Requires
from fedjax_sim.algorithms.wrapper import Wrapper
from fedjax_sim.core import sampling, trees
from fedjax_sim.core.fields import choice, count, flag, real

_ROUNDING, _PLACES = 0x5153, 0x524B  # branches of a client's key: for the rounding, for the places
_INDEX_BYTES = 4
_MOST_BITS = 52  # those of a double


class Compressed(Wrapper):
    """Base of the methods whose clients send a compressed change.

    What is compressed is the change y_i - x itself, before the method sees it: whatever the method sends or keeps is
    computed from what the server hears. Bytes: in what the base sends one model is replaced by the compressed change;
    control variates beside it go up as they are.
    """

    only_once: ClassVar[str] = "compressed"

    def compress(self, change: Any, key: jax.Array) -> Any:
        """The change as the server hears it."""
        raise TypeError(f"{type(self).__name__} must define compress(change, key)")

    def compressed_bytes(self, change: Any) -> int:
        """Bytes of a compressed change, from its shapes."""
        raise TypeError(f"{type(self).__name__} must define compressed_bytes(change)")

    def encode(self, delta: Any, memory: Any, sent: Any, client: Client) -> tuple[Any, Any, dict[str, Message]]:
        return self.compress(delta, client.key), memory, {}

    def uploaded(self, nbytes: int, delta: Any) -> int:
        return nbytes - trees.size_in_bytes(delta) + self.compressed_bytes(delta)


class Quantised(Compressed):
    """Any method whose clients send their change in few bits an entry, rounded at random without bias.

    Q(v)_j = |v| sign(v_j) xi_j,   xi_j = l/s or (l+1)/s around |v_j| / |v|, the upper one with probability
    s |v_j| / |v| - l, so that E Q(v) = v;   s = 2^(bits - 1) - 1 levels beside 0

    for each parameter array v of the change by itself. E |Q(v) - v|^2 <= min(d / s^2, sqrt(d) / s) |v|^2 for d entries
    and ``scale="l2"``. Counted are ``bits`` an entry (one is the sign) and |v|; the paper's variable-length code would
    need fewer. Derivatives pass straight through, d Q(v) = d v, the derivative of E Q(v).

    Args:
      bits: an entry, 2 to 52; 2 is ternary.
      scale: |v|: ``"l2"``, the paper's, or ``"max"``, max_j |v_j|, whose error is smaller at many levels.

    Raises:
      ValueError: another number of bits or scale, or a base that is compressed already.

    Reference: Alistarh et al. 2017, "QSGD: Communication-efficient SGD via gradient quantization and encoding",
    section 3.1 and Lemma 3.1 (the maximum: their experiments).
    """

    bits: int = count(default=8, low=2, high=_MOST_BITS)
    scale: str = choice(("l2", "max"), default="l2")

    def compress(self, change: Any, key: jax.Array) -> Any:
        leaves, structure = jax.tree.flatten(change)
        keys = jax.random.split(jax.random.fold_in(key, _ROUNDING), len(leaves))
        return jax.tree.unflatten(structure, map(self._rounded, leaves, keys))

    def compressed_bytes(self, change: Any) -> int:
        leaves = jax.tree.leaves(change)
        return sum(-(-leaf.size * self.bits // 8) + leaf.dtype.itemsize for leaf in leaves)

    def _rounded(self, v: jax.Array, key: jax.Array) -> jax.Array:
        real = trees.widest(v, jnp.float32)
        size = jnp.abs(jax.lax.stop_gradient(v)).astype(real)
        length = jnp.max(size, initial=0) if self.scale == "max" else jnp.sqrt(jnp.sum(jnp.square(size)))
        levels = jnp.asarray(2 ** (self.bits - 1) - 1, real)
        place = size / jnp.where(length > 0, length, 1) * levels  # levels / length may be infinite, length / levels 0
        below = jnp.floor(place)
        up = jax.random.uniform(key, v.shape, real) < place - below
        rounded = jnp.sign(v).astype(real) * ((below + up.astype(real)) / levels) * length
        # v - stop_gradient(v) is 0, with the derivative of v.
        return jax.lax.stop_gradient(rounded).astype(v.dtype) + (v - jax.lax.stop_gradient(v))


class Sparsified(Compressed):
    """Base of the methods whose clients send some of the entries of their change."""

    fraction: float = real(above=0.0, high=1.0, structure=True, default=0.1)
    feedback: bool = flag(default=True)

    @property
    def requires(self) -> Requires:
        base = self.base.requires
        return base.but(duplicates=base.duplicates and not self.feedback)

    def count(self, change: Any) -> int:
        """k = ceil(fraction * d), of the d entries of all parameters together."""
        return min(math.ceil(round(self.fraction * _entries(change), 9)), _entries(change))

    def compressed_bytes(self, change: Any) -> int:
        """Of the values, in the widest of the leaves' dtypes."""
        return self.count(change) * int(trees.widest(change).itemsize)

    @property
    def remembers(self) -> bool:
        return self.feedback

    def init_memory(self, params: Any) -> Any:
        """e_i, what the client has not sent yet."""
        return trees.zeros_like(self.shared(params))

    def encode(self, delta: Any, memory: Any, sent: Any, client: Client) -> tuple[Any, Any, dict[str, Message]]:
        if not self.feedback:
            return super().encode(delta, memory, sent, client)
        whole = trees.add(delta, memory)
        heard = self.compress(whole, client.key)
        return heard, trees.subtract(whole, heard), {}


class TopK(Sparsified):
    """Any method whose clients send the largest entries of their change, and remember the rest.

    v = Delta_i + e_i;   sent: the k entries of v of largest magnitude, k = ceil(fraction d);   e_i <- v - sent

    with Delta_i = y_i - x, d the number of all parameters and e_i = 0 before the first visit. Ties go to the first
    entry. What was sent so far and e_i add up to all changes that the client made. Without ``feedback`` small entries
    are never sent, and the limit is biased. Counted are k values and their places, 4 bytes each. Derivatives are those
    of the entries chosen.

    Args:
      fraction: k / d in (0, 1]; structure, because it decides sizes.
      feedback: whether there is an e_i.

    Raises:
      ValueError: a fraction out of its range, a base that is compressed already or, with ``feedback``, a scheme with
        replacement.

    Reference: Stich et al. 2018, "Sparsified SGD with memory", Algorithm 1; Karimireddy et al. 2019, "Error feedback
    fixes SignSGD and other gradient compression schemes", Algorithm 2.
    """

    def compress(self, change: Any, key: jax.Array) -> Any:
        real = trees.widest(change)
        sizes = ravel_pytree(jax.tree.map(lambda v: jnp.abs(jax.lax.stop_gradient(v)).astype(real), change))[0]
        _, places = jax.lax.top_k(sizes, self.count(change))
        return _only(places, change)

    def compressed_bytes(self, change: Any) -> int:
        return self.count(change) * _INDEX_BYTES + super().compressed_bytes(change)


class RandomK(Sparsified):
    """Any method whose clients send entries of their change at random places.

    sent: (d / k) Delta_i at k places drawn anew by each client and round, 0 elsewhere: E = Delta_i

    with k = ceil(fraction d). Its variance is d / k - 1 times |Delta_i|^2. With ``feedback`` the entries of
    v = Delta_i + e_i are sent as they are and e_i <- v - sent is remembered. Counted are k values: the places follow
    from a key that the server knows.

    Args:
      fraction: k / d in (0, 1]; structure, because it decides sizes.
      feedback: whether there is an e_i, in the place of the factor d / k.

    Raises:
      ValueError: as :class:`TopK`.

    Reference: Stich et al. 2018, "Sparsified SGD with memory", Definition 2.2; the unbiased form: Konecny et al. 2016,
    "Federated learning: Strategies for improving communication efficiency" (sketched updates, subsampling).
    """

    feedback: bool = flag(default=False)

    def compress(self, change: Any, key: jax.Array) -> Any:
        entries, count = _entries(change), self.count(change)
        places = sampling.choose(jax.random.fold_in(key, _PLACES), entries, count)
        chosen = _only(places, change)
        return chosen if self.feedback else trees.scale(entries / count, chosen)


def _entries(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _only(places: jax.Array, tree: Any) -> Any:
    """The entries at ``places`` of all leaves laid end to end, zeros elsewhere."""
    mask, as_tree = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), tree))
    masks = as_tree(mask.at[places].set(True))
    return jax.tree.map(lambda mask, leaf: jnp.where(mask, leaf, jnp.zeros_like(leaf)), masks, tree)


quantised = recorded(
    "algorithm.quantised",
    Quantised,
    step="around a method: Δ_i rounded at random to few bits an entry, unbiased",
    cite="alistarh2017qsgd",
    kept="the base's",
    sent="the base's, compressed",
    case={"bits": 46},
)
top_k = recorded(
    "algorithm.top_k",
    TopK,
    step="around a method: the largest entries of Δ_i + e_i; e_i ← the rest",
    cite=("stich2018sparsified", "karimireddy2019error"),
    kept="the base's + 1 (`feedback`)",
    sent="the base's, compressed",
    case={"fraction": 0.3},
)
random_k = recorded(
    "algorithm.random_k",
    RandomK,
    step="around a method: random entries of Δ_i, scaled to be unbiased",
    cite=("stich2018sparsified", "konecny2016federated"),
    paper="Konečný et al. 2016",
    kept="the base's",
    sent="the base's, compressed",
    case={"fraction": 0.5},
)
