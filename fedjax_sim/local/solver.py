"""One client's round as three pure functions, begin, step and finish, for a layout to run.

A *micro-step* takes one gradient on one batch. An ordinary local step is one micro-step. A full local gradient is
ceil(n_i / piece) of them, accumulated. An anchor, the full gradient at the start point, is ceil(n_i / B) more before
the first local step: the model has not moved yet, so the same gradient code serves both.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_sim import trees
from fedjax_sim.algorithms.contract import Client, Method
from fedjax_sim.algorithms.declarations import check_stacked, check_weights
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.local.batches import Batches, Positions, batches_in, fetch
from fedjax_sim.task import Task


class Slot(NamedTuple):
    """A client and where to find its data; every field with a leading slot axis [S] outside the layouts.

    Attributes:
      client: the client.
      offset: int32, where its examples begin.
      draws: what the batch scheme prepared for its draws of this round.
      model_key: PRNG key for the model's own randomness (dropout).
    """

    client: Client
    offset: jax.Array
    draws: Any
    model_key: jax.Array

    def at(self, steps: jax.Array, offset: jax.Array) -> Slot:
        """The same client with other ``steps``, its examples at another place."""
        return self._replace(client=self.client._replace(steps=steps), offset=offset)


class Progress(NamedTuple):
    """A client at work.

    Attributes:
      params: y.
      optimizer: state of the local optimiser.
      local: what the algorithm computed at the start.
      gradient: sum of the pieces of a full local gradient so far, or ``()``.
      anchor: sum of the pieces of the anchor so far, or ``()``.
      mean_loss: likewise of F_i at the start point, or ``()``.
    """

    params: Any
    optimizer: Any
    local: Any
    gradient: Any
    anchor: Any
    mean_loss: Any


class Watch(struct.PyTreeNode):
    """What is asked of every client beside its messages, delivered in stacks.

    Attributes:
      updates: y_i - x, under the name ``UPDATES``.
      drift: |y_i - x|, under the name ``DRIFT``.
      finite: whether all it sends and keeps is finite, under the name ``FINITE``.
      skip: whether a client of whom that is not true leaves nothing: zero messages, the old c_i.
    """

    updates: bool = struct.field(pytree_node=False, default=False)
    drift: bool = struct.field(pytree_node=False, default=False)
    finite: bool = struct.field(pytree_node=False, default=False)
    skip: bool = struct.field(pytree_node=False, default=False)

    UPDATES: ClassVar[str] = "watched updates"
    DRIFT: ClassVar[str] = "watched drift"
    FINITE: ClassVar[str] = "watched finite"


class Solver(NamedTuple):
    """Everything one client's round is computed from; a pytree, so that derivatives reach its leaves.

    Attributes:
      algorithm: the method.
      task: the losses.
      batches: which examples a step sees.
      dataset: training examples.
      watch: what is observed besides.
    """

    algorithm: Method
    task: Task
    batches: Batches
    dataset: FederatedDataset
    watch: Watch = Watch()

    @property
    def stacked(self) -> tuple[str, ...]:
        """Names of the messages that are delivered as [S, ...] stacks."""
        watch = self.watch
        asked = ((Watch.UPDATES, watch.updates), (Watch.DRIFT, watch.drift), (Watch.FINITE, watch.finite))
        return (*self.algorithm.stacked, *(name for name, wanted in asked if wanted))

    def micro_steps(self, slot: Slot) -> jax.Array:
        """Gradients the client takes this round; 0 in a void slot."""
        steps, size = slot.client.steps, slot.client.size
        rows = self.batches.rows(self.dataset)
        total = steps * self.batches.pieces(size, rows) if self.algorithm.takes_steps else jnp.zeros_like(steps)
        if self._anchored:
            total = total + batches_in(size, rows)
        return jnp.where(steps > 0, total, 0).astype(jnp.int32)

    def begin(self, sent: Any, c_i: Any, slot: Slot) -> Progress:
        """The client before its first step."""
        params, local = self.algorithm.start(sent, c_i, slot.client)
        state = self.algorithm.client_optimizer.init(params)
        anchor, mean_loss = (trees.zeros_like(params), self._zero_loss(params)) if self._anchored else ((), ())
        return Progress(params, state, local, trees.zeros_like(params) if self._in_pieces else (), anchor, mean_loss)

    def step(self, sent: Any, slot: Slot, progress: Progress, k: jax.Array, *, serial: bool = False) -> Progress:
        """The client after micro-step ``k``.

        Args:
          sent: the round's broadcast.
          slot: the client.
          progress: the client before.
          k: int32 scalar, 0, 1, ...
          serial: see :func:`fedjax_sim.local.batches.fetch`.
        """
        size, rows = slot.client.size, self.batches.rows(self.dataset)
        first = batches_in(size, rows) if self._anchored else jnp.int32(0)
        positions = self.batches.positions(slot.draws, size, jnp.maximum(k - first, 0), rows)
        if self._anchored:
            anchoring = k < first
            place = jnp.minimum(k, first - 1) * rows + jnp.arange(rows, dtype=jnp.int32)
            positions = Positions(
                jnp.where(anchoring, jnp.minimum(place, size - 1), positions.rows),
                jnp.where(anchoring, place < size, positions.mask),
            )
        batch = fetch(self.dataset, slot.offset, size, positions, contiguous=self.batches.contiguous, serial=serial)
        key = jax.random.fold_in(slot.model_key, k)
        loss, g = jax.value_and_grad(self.task.batch_loss)(progress.params, batch, key)
        if not isinstance(slot.client.scale, tuple):
            loss, g = trees.scale(slot.client.scale, (loss, g))
        part = batch.count.astype(loss.dtype) / size.astype(loss.dtype)
        if not self._anchored:
            return self._descend(sent, slot.client, progress, g, part, k)
        anchored = progress._replace(
            anchor=trees.add_scaled(progress.anchor, part, g), mean_loss=progress.mean_loss + part * loss
        )
        if not self.algorithm.takes_steps:
            return anchored
        client = slot.client._replace(anchor=progress.anchor, mean_loss=progress.mean_loss)
        return trees.select(anchoring, anchored, self._descend(sent, client, progress, g, part, k - first))  # type: ignore[no-any-return]

    def finish(self, sent: Any, c_i: Any, slot: Slot, progress: Progress) -> tuple[dict[str, Any], Any]:
        """``(messages, new c_i)``; of a void slot, zero messages and the old c_i."""
        client = slot.client._replace(anchor=progress.anchor, mean_loss=progress.mean_loss)
        messages, new = self._messages(sent, c_i, client, progress)
        check_stacked(self.algorithm, messages)
        valid = client.steps > 0
        finite = trees.all_finite((messages, new)) if self.watch.finite else jnp.bool_(True)
        if self.watch.updates or self.watch.drift:
            update = trees.subtract(progress.params, sent.params)
            if self.watch.updates:
                messages |= {Watch.UPDATES: update}
            if self.watch.drift:
                messages |= {Watch.DRIFT: trees.norm(update)}
        if self.watch.skip:
            valid = valid & finite
        messages, new = trees.select(valid, messages, trees.zeros_like(messages)), trees.select(valid, new, c_i)
        return (messages | {Watch.FINITE: finite} if self.watch.finite else messages), new

    def weigh(self, slot: Slot, messages: dict[str, Any]) -> dict[str, Any]:
        """The messages that are summed, each times its weight."""
        weights = self.algorithm.weigh(slot.client)
        summed = {name: message for name, message in messages.items() if name not in self.stacked}
        check_weights(self.algorithm, weights, [*summed, *self.algorithm.stacked])
        return {name: trees.scale(weights.get(name, slot.client.weight), one) for name, one in summed.items()}

    def _descend(
        self, sent: Any, client: Client, progress: Progress, g: Any, part: jax.Array, k: jax.Array
    ) -> Progress:
        if not self._in_pieces:
            return self._move(sent, client, progress, g)
        summed = progress._replace(gradient=trees.add_scaled(progress.gradient, part, g))
        pieces = self.batches.pieces(client.size, self.batches.rows(self.dataset))
        moved = self._move(sent, client, summed, summed.gradient)
        moved = moved._replace(gradient=trees.zeros_like(summed.gradient))
        return trees.select(k % pieces == pieces - 1, moved, summed)  # type: ignore[no-any-return]

    def _move(self, sent: Any, client: Client, progress: Progress, g: Any) -> Progress:
        y = progress.params
        direction = self.algorithm.direction(g, y, sent, progress.local, client)
        y, state = self.algorithm.local_step(direction, y, progress.optimizer, sent, client)
        return progress._replace(params=y, optimizer=state)

    def _messages(self, sent: Any, c_i: Any, client: Client, progress: Progress) -> tuple[dict[str, Any], Any]:
        if not self.algorithm.encodes:
            return self.algorithm.finish(progress.params, sent, c_i, progress.local, client)
        change = trees.subtract(progress.params, sent.params)
        change, c_i, notes = self.algorithm.encode(change, sent, c_i, client)
        at_zero = sent._replace(params=trees.zeros_like(sent.params))  # y - x is then the change to the last bit
        messages, new = self.algorithm.finish(change, at_zero, c_i, progress.local, client)
        return messages | notes, new

    @property
    def _anchored(self) -> bool:
        return "anchor" in self.algorithm.needs

    @property
    def _in_pieces(self) -> bool:
        rows = self.batches.rows(self.dataset)
        return self.batches.pieces(self.dataset.max_size, rows) > 1  # type: ignore[no-any-return]

    def _zero_loss(self, params: Any) -> jax.Array:
        examples = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), self.dataset.examples
        )
        return jnp.zeros((), jax.eval_shape(self.task.losses, params, examples).dtype)
