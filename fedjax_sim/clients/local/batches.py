"""Which examples a local step sees."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core import sampling
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.keys import ClientDraws, Purpose, order_words
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.models.task import Batch


class Positions(NamedTuple):
    """Rows of a batch within a client's examples.

    Attributes:
      rows: int32[B], each in [0, n_i) where ``mask`` holds.
      mask: bool[B], false for padding.
      first: int32, the first of consecutive rows, which may be read as a slice; None of others.
    """

    rows: jax.Array
    mask: jax.Array
    first: jax.Array | None = None


class Batches(Described):
    """Base of the batch schemes."""

    def rows(self, dataset: FederatedDataset) -> int:
        """B, the rows of a batch; static."""
        raise TypeError(f"{type(self).__name__} must define rows(dataset)")

    def prepare(self, draws: ClientDraws) -> Any:
        """What each client of a round needs for its batches: a pytree, leading axis S."""
        return ()

    def positions(self, prepared: Any, size: jax.Array, step: jax.Array, rows: int) -> Positions:
        """The batch of a client's step ``step`` = 0, 1, ... in this round."""
        raise TypeError(f"{type(self).__name__} must define positions(prepared, size, step, rows)")

    def epoch(self, size: Any, rows: int) -> Any:
        """Steps of one epoch, ceil(n_i / B)."""
        return batches_in(size, rows)

    def most_in_epoch(self, dataset: FederatedDataset) -> int:
        """An upper bound of one client's steps in one epoch; static."""
        return int(self.epoch(dataset.max_size, self.rows(dataset)))

    def most_in_epochs(self, dataset: FederatedDataset, slots: int) -> int:
        """An upper bound of the steps of ``slots`` distinct clients in one epoch each; static."""
        rows = self.rows(dataset)
        ceilings = (dataset.largest_total(slots) + slots * (rows - 1)) // rows  # >= sum of ceil(n_i / rows)
        return min(ceilings, slots * self.most_in_epoch(dataset))

    def pieces(self, size: Any, rows: int) -> Any:
        """Batches that make up ONE step (1 but for full local gradients, accumulated piece by piece)."""
        return size * 0 + 1

    def examples_per_batch(self, size: jax.Array, rows: int) -> jax.Array:
        """The mean number of a client's examples in the batch of one gradient, padding left out; float."""
        batches, real = self.epoch(size, rows) * self.pieces(size, rows), jnp.result_type(float)
        return size.astype(real) / jnp.maximum(batches, 1).astype(real)


class _OfSize(Batches):
    """Base of the schemes whose batches have B rows, the largest client's n_i where that is less."""

    batch_size: int = count()

    def rows(self, dataset: FederatedDataset) -> int:
        return min(self.batch_size, dataset.max_size)


class _Permuted(Batches):
    """Base of the schemes that see every example once an epoch, in a fresh random permutation."""

    def prepare(self, draws: ClientDraws) -> Any:
        return draws.words  # whole: what a loop is given is computed once, and not once for each who reads of it

    def positions(self, prepared: Any, size: jax.Array, step: jax.Array, rows: int) -> Positions:
        batch = self._batch(size, rows)
        per_epoch = batches_in(size, batch)
        epoch = _quotient(step, per_epoch)
        row = jnp.arange(rows, dtype=jnp.int32)
        place = (step - epoch * per_epoch) * batch + row
        chosen = sampling.permute(order_words(prepared), size, jnp.minimum(place, size - 1), epoch)
        return Positions(chosen, (place < size) & (row < batch))

    def _batch(self, size: Any, rows: int) -> Any:
        """Examples of a client's whole batch, which is padded to ``rows``."""
        return rows


class Shuffled(_OfSize, _Permuted):
    """A fresh random permutation of the client's examples each epoch: every example once, the last batch partial."""


def _exact(share: float) -> Fraction:
    return Fraction(float(share)).limit_denominator(1000)


class FractionOf(_Permuted):
    """Batches of ceil(f n_i): a share of the client's own examples, in a fresh random permutation each epoch.

    Every example exactly once an epoch, last batch partial. An epoch has ceil(n_i / ceil(f n_i)) steps, at most
    ceil(1 / f): 5 for f = 0.2 wherever 5 divides n_i (the experiments of SCAFFOLD, Karimireddy et al. 2020), fewer for
    some other small n_i.

    Args:
      share: f in (0, 1], exact to the nearest fraction with a denominator of at most 1000.
    """

    share: float = real(low=0.0, high=1.0, structure=True)

    def checked(self) -> Self:
        checked = super().checked().replace(share=float(self.share))
        if _exact(checked.share) == 0:
            raise ValueError(f"fraction(share=...) is {self.share}: it must be at least 1/1000, and at most 1")
        return checked

    def rows(self, dataset: FederatedDataset) -> int:
        return int(self._batch(dataset.max_size))

    def epoch(self, size: Any, rows: int) -> Any:
        return batches_in(size, self._batch(size))

    def most_in_epoch(self, dataset: FederatedDataset) -> int:
        # ceil(n / ceil(f n)) <= ceil(1 / f), and neither grows with n: the largest client need not have the most.
        return min(math.ceil(1 / _exact(self.share)), dataset.max_size)

    def most_in_epochs(self, dataset: FederatedDataset, slots: int) -> int:
        return slots * self.most_in_epoch(dataset)

    def _batch(self, size: Any, rows: int = 0) -> Any:
        """ceil(f n) in integers that stay below n: with n = q d + r and f = m / d it is m q + ceil(m r / d)."""
        part, whole = _exact(self.share).as_integer_ratio()
        return size // whole * part + (size % whole * part + whole - 1) // whole


class InOrder(_OfSize):
    """Batches in the stored order, the same every epoch; last batch partial. No randomness: for replays."""

    def positions(self, prepared: Any, size: jax.Array, step: jax.Array, rows: int) -> Positions:
        return consecutive(size, step % batches_in(size, rows), rows)


class WithReplacement(_OfSize):
    """B examples uniformly with replacement at every step; clients with fewer examples still draw B."""

    def rows(self, dataset: FederatedDataset) -> int:
        return self.batch_size

    def prepare(self, draws: ClientDraws) -> Any:
        return draws.purpose(Purpose.BATCH)

    def examples_per_batch(self, size: jax.Array, rows: int) -> jax.Array:
        return jnp.full(size.shape, rows, jnp.result_type(float))

    def positions(self, prepared: Any, size: jax.Array, step: jax.Array, rows: int) -> Positions:
        words = jax.random.bits(jax.random.fold_in(prepared, step), (rows,), jnp.uint32)
        return Positions(sampling.below(words, size), jnp.ones((rows,), bool))


class FullBatch(Batches):
    """The full local gradient at every step (deterministic), accumulated over pieces of ``piece_size`` examples.

    An epoch is one step. The size of a piece bounds memory and, for clients of unequal size, padding.
    """

    piece_size: int = count(default=64)

    def rows(self, dataset: FederatedDataset) -> int:
        return min(self.piece_size, dataset.max_size)

    def epoch(self, size: Any, rows: int) -> Any:
        return size * 0 + 1

    def pieces(self, size: Any, rows: int) -> Any:
        return batches_in(size, rows)

    def positions(self, prepared: Any, size: jax.Array, step: jax.Array, rows: int) -> Positions:
        return consecutive(size, step % batches_in(size, rows), rows)


shuffled = factory("batches.shuffled", Shuffled)
fraction = factory("batches.fraction", FractionOf)
in_order = factory("batches.in_order", InOrder)
with_replacement = factory("batches.with_replacement", WithReplacement)
full_batch = factory("batches.full_batch", FullBatch)


def batches_in(size: Any, rows: Any) -> Any:
    """Batches of ``rows`` that hold ``size`` examples: ceil(n_i / B)."""
    return _quotient(size + rows - 1, rows)


def _quotient(a: Any, b: Any) -> Any:
    """a // b of numbers that are not negative: without the signs that ``//`` looks at, kernels of their own."""
    if not isinstance(a, jax.Array):
        return a // b
    return lax.div(a, jnp.broadcast_to(jnp.asarray(b, a.dtype), a.shape))


def consecutive(size: jax.Array, number: jax.Array | int, rows: int) -> Positions:
    """Batch ``number`` of a client's examples in stored order, ``rows`` in each, the last one partial."""
    first = jnp.int32(number * rows)
    place = first + jnp.arange(rows, dtype=jnp.int32)
    return Positions(place, place < size, first)


def fetch(
    dataset: FederatedDataset, offset: jax.Array, size: jax.Array, positions: Positions, *, serial: bool = False
) -> Batch:
    """A batch of the client whose n_i = ``size`` examples begin at ``offset``.

    An example's place in the batch is the scheme's, wherever it is stored: noise of a row is drawn for its place.
    Padding repeats the client's last example.

    ``serial`` says that clients run one after another on a CPU.
    """
    rows, mask, first = positions
    absolute = offset + jnp.minimum(rows, size - 1)
    number = jnp.sum(mask, dtype=jnp.int32)
    bytes_ = sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(dataset.examples))
    if serial and bytes_ <= _SHORT:

        def one(row: jax.Array) -> Any:
            return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, row, keepdims=False), dataset.examples)

        def one_by_one() -> Any:
            return lax.map(one, absolute)

        def at_once() -> Any:
            return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, absolute[0], len(rows)), dataset.examples)

        if first is None:
            examples = one_by_one()
        else:
            # Of a batch with padding a slice would have other clients' examples, or be moved back at the data's end.
            alike = jnp.all(rows == first + jnp.arange(len(rows), dtype=jnp.int32))  # where nobody has changed the rows
            examples = lax.cond((first + len(rows) <= size) & alike, at_once, one_by_one)
    else:
        examples = jax.tree.map(lambda leaf: leaf.at[absolute].get(mode="promise_in_bounds"), dataset.examples)
    weights = mask.astype(jnp.result_type(float))
    if dataset.example_weights is not None:
        given = dataset.example_weights.at[absolute].get(mode="promise_in_bounds")
        weights = jnp.where(mask, given, jnp.zeros_like(given))
    return Batch(examples, weights, number)


# Bytes of a row that a loop of slices is best for, on a CPU with clients one after another, rather than XLA's gather,
# whose cost XLA takes for that of all data, so that two threads share it: 7.5 against 17.7 ms a round of 1,420 steps
# with 20 rows of 240 bytes each (on one thread 8.0 against 7.6); of rows of 3 KB, 49 against 43
# (python -m benchmarks.speed.limit measures both workloads).
_SHORT = 1 << 10
