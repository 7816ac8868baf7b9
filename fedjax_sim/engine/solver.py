"""One client's round as three pure functions, begin, step and finish, for a layout to run.

A *micro-step* takes one gradient on one batch. An ordinary local step is one micro-step; along a full local gradient it
is ceil(n_i / piece) of them, accumulated. A survey of the client's data is ceil(n_i / B) micro-steps of its own: a
cohort is surveyed (:attr:`Solver.surveyor`) before it trains, unless its exchange only surveys.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_sim.algorithms.contract import Client, Mean, Message, Method, Share, Stack, received
from fedjax_sim.algorithms.wrapper import downloaded, encoded, uploaded
from fedjax_sim.clients.local.batches import Batches, Positions, batches_in, consecutive, fetch
from fedjax_sim.core import trees
from fedjax_sim.core.loops import Read, Total
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.loss import Loss
from fedjax_sim.models.task import Task
from fedjax_sim.optim import parts


class Slot(NamedTuple):
    """A client and where to find its data; every field with a leading slot axis [S] outside the layouts."""

    client: Client  # the client
    offset: jax.Array  # int32, where its examples begin
    draws: Any  # what the batch scheme prepared for its draws of this round
    model_key: jax.Array  # PRNG key for the model's own randomness (dropout)
    sent: Any = None  # the broadcast that it began with, where that is not the round's; else None

    def at(self, steps: jax.Array, offset: jax.Array) -> Slot:
        """The same client with other ``steps``, its examples at another place."""
        return self._replace(client=self.client._replace(steps=steps), offset=offset)

    def told(self, survey: Any) -> Slot:
        """The same client, which knows its survey."""
        return self._replace(client=self.client._replace(survey=survey))


class Draw(NamedTuple):
    """What a micro-step draws: integers only, which no derivative passes."""

    key: jax.Array  # PRNG key for the model's randomness in it
    batch: Positions  # its examples
    other: Positions | None = None  # those of its second batch, where the method asks for one


class Progress(NamedTuple):
    """A client at work."""

    y: Any  # what it trains
    optimizer: Any  # its optimiser's state
    kept: Any  # a Read, c_i as the round found it
    gradient: Any = None  # a Total, the sum so far of the pieces of a full local gradient
    survey: Any = None  # likewise of the survey


class Kept(NamedTuple):
    """The state of a client whose solver's state is carried over."""

    own: Any
    optimizer: Any


class Watch(struct.PyTreeNode):
    """What is asked of every client beside its messages, delivered in stacks; and how.

    Attributes:
      finite: whether all it sends and keeps is finite, under the name ``FINITE``.
      skip: whether a client of whom that is not true leaves nothing: zero messages, the old c_i.
      surveying: whether the clients survey their data, and nothing else.
      mixing: whether changes are taken from the round's broadcast, whatever a client began with (FedAsync).
    """

    updates: bool = struct.field(pytree_node=False, default=False)  # the change, under the name ``UPDATES``
    drift: bool = struct.field(pytree_node=False, default=False)  # its norm, under the name ``DRIFT``
    finite: bool = struct.field(pytree_node=False, default=False)
    skip: bool = struct.field(pytree_node=False, default=False)
    surveying: bool = struct.field(pytree_node=False, default=False)
    mixing: bool = struct.field(pytree_node=False, default=False)

    UPDATES: ClassVar[str] = "watched updates"
    DRIFT: ClassVar[str] = "watched drift"
    FINITE: ClassVar[str] = "watched finite"
    SURVEY: ClassVar[str] = "survey"
    NAMES: ClassVar[frozenset[str]] = frozenset({UPDATES, DRIFT, FINITE})


class Left(NamedTuple):
    """What one client leaves: its messages by name, to be summed with these weights or stacked, and the new c_i."""

    values: dict[str, Any]
    weights: dict[str, jax.Array]
    stacks: dict[str, Any]
    kept: Any

    @property
    def sums(self) -> dict[str, Any]:
        """The client's part of each weighted sum."""
        return {name: trees.scale(self.weights[name], value) for name, value in self.values.items()}


class Solver(NamedTuple):
    """Everything one client's round is computed from; a pytree, so that derivatives reach its leaves."""

    algorithm: Method
    task: Task
    batches: Batches
    dataset: FederatedDataset
    watch: Watch = Watch()

    @property
    def surveyor(self) -> Solver | None:
        """What surveys the clients before they train; None where nothing does."""
        if self.watch.surveying or not (self.algorithm.requires.survey and self.algorithm.requires.steps):
            return None
        return self._replace(watch=Watch(surveying=True))

    def micro_steps(self, slot: Slot) -> jax.Array:
        """Batches that the client computes on, its survey left out; 0 in a void slot."""
        steps, size, rows = slot.client.steps, slot.client.size, self.batches.rows(self.dataset)
        if self.surveying:
            total = batches_in(size, rows)
        else:
            requires = self.algorithm.requires
            gradients = requires.gradients(steps) if requires.steps else jnp.zeros_like(steps)
            total = gradients * self.batches.pieces(size, rows)
        return jnp.where(steps > 0, total, 0).astype(jnp.int32)

    def all_micro_steps(self, slot: Slot) -> jax.Array:
        """The same with the survey."""
        return self.micro_steps(slot) + (0 if self.surveyor is None else self.surveyor.micro_steps(slot))

    def surveyed(self, sent: Any, c_i: Any, slot: Slot) -> Slot:
        """A client that has found zeros in its survey, for shapes: it may begin as its survey says."""
        return slot if self.surveyor is None else slot.told(self.surveyor.begin(sent, c_i, slot).survey.value)

    def begin(self, sent: Any, c_i: Any, slot: Slot) -> Progress:
        """The client before its first step."""
        sent, own, method = self._sent(sent, slot), self._own(c_i), self.algorithm
        y = optimizer = None
        if not self.watch.surveying:
            y = method.begin(sent, own, slot.client)
            optimizer = c_i.optimizer if method.keep_optimizer else parts.begin(method.client_optimizer, y)
        gradient = Total.zero(y) if self.in_pieces and method.requires.steps else None
        survey = Total.zero(self._survey_shapes(sent, own, slot)) if self.surveying else None
        return Progress(y, optimizer, Read.of(own), gradient, survey)

    def draw(self, slot: Slot, k: jax.Array) -> Draw:
        """What the client's micro-step ``k`` draws: of the slot and k alone, so that all of them can be drawn ahead."""
        client, requires, key = slot.client, self.algorithm.requires, slot.model_key
        size, rows = client.size, self.batches.rows(self.dataset)
        if self.surveying:
            # An idle step reads the last batch again: the mean of no examples is NaN, and then derivatives are.
            last = batches_in(size, rows) - 1
            return Draw(jax.random.fold_in(key, k), consecutive(size, jnp.minimum(k, last), rows))
        first = batches_in(size, rows) if requires.survey else jnp.int32(0)  # the survey's keys come before
        key = jax.random.fold_in(key, k + first)
        other = None
        batch = k if requires.hold == 1 else k // requires.hold
        if requires.other_batch:
            other = self.batches.positions(slot.draws, size, batch + requires.gradients(client.steps), rows)
        return Draw(key, self.batches.positions(slot.draws, size, batch, rows), other)

    def examined(self, slot: Slot, drawn: Draw, *, serial: bool = False) -> tuple[Loss, jax.Array]:
        """F on the batch that is drawn, and which part of the client's examples the batch is."""
        size = slot.client.size

        def loss_at(positions: Positions, other: Any = None) -> tuple[Loss, jax.Array]:
            batch = fetch(self.dataset, slot.offset, size, positions, serial=serial)
            part = batch.count.astype(jnp.result_type(float)) / size.astype(jnp.result_type(float))
            return Loss(self.task, batch, drawn.key, slot.client.scale, other), part

        return loss_at(drawn.batch, None if drawn.other is None else loss_at(drawn.other)[0])

    def step(
        self,
        sent: Any,
        slot: Slot,
        progress: Progress,
        k: jax.Array,
        *,
        serial: bool = False,
        drawn: Draw | None = None,
    ) -> Progress:
        """The client after micro-step ``k``; ``drawn`` is what :meth:`draw` says of it, where that is known."""
        sent, client = self._sent(sent, slot), slot.client
        F, part = self.examined(slot, self.draw(slot, k) if drawn is None else drawn, serial=serial)
        if self.surveying:
            found = self.algorithm.survey(F, sent, progress.kept.value, client)
            return progress._replace(survey=progress.survey.add(trees.scale(part, found)))
        pieces = self.batches.pieces(client.size, self.batches.rows(self.dataset))
        number = k // pieces if self.in_pieces else k

        c_i, holding = progress.kept.value, client._replace(held=progress.y)

        def objective(y: Any) -> tuple[jax.Array, list[Any]]:
            with jax.numpy_dtype_promotion("standard"):  # so that formulas may mix the dtypes of losses and parameters
                value = self.algorithm.objective(F, y, number, sent, c_i, holding)
            return jnp.asarray(value), F.moved(y, (sent, c_i))

        turn = self.algorithm.turn(number, client) if serial else None
        g, statistics = parts.gradient(objective, progress.y, turn)
        if not self.in_pieces:
            return _with_statistics(self._moved(sent, client, progress, g, number), statistics)
        if any(leaf is not None for leaf in statistics):
            raise ValueError(
                "the model has running statistics (batch_stats, of a BatchNorm), which a full gradient taken in pieces "
                "has of each piece and not of the whole: use batches=fedjax_sim.local.full_batch(), all examples at "
                "once, or fedjax_sim.local.shuffled(20)"
            )
        summed = progress._replace(gradient=progress.gradient.add(trees.scale(part, g)))
        moved = self._moved(sent, client, summed, summed.gradient.value, number)
        moved = moved._replace(gradient=trees.zeros_like(summed.gradient))
        return trees.select(k % pieces == pieces - 1, moved, summed)

    def finish(self, sent: Any, c_i: Any, slot: Slot, progress: Progress) -> Left:
        """What the client leaves; of a void slot, zero messages and the old c_i."""
        if self.watch.surveying:
            return Left({}, {}, {Watch.SURVEY: progress.survey.value}, c_i)
        change, messages, kept = self._messages(sent, slot, progress)
        new = Kept(kept, progress.optimizer) if self.algorithm.keep_optimizer else kept
        valid = slot.client.steps > 0
        finite = trees.all_finite((messages, new)) if self.watch.finite else jnp.bool_(True)
        stacks: dict[str, Any] = {}
        if self.watch.updates:
            stacks[Watch.UPDATES] = change
        if self.watch.drift:
            stacks[Watch.DRIFT] = trees.norm(change)
        if self.watch.skip:
            valid = valid & finite
        messages, stacks = trees.select(valid, (messages, stacks), trees.zeros_like((messages, stacks)))
        new = trees.select(valid, new, c_i)
        values, weights = {}, {}
        for name, message in messages.items():
            if isinstance(message, Stack):
                stacks[name] = message.value
                continue
            values[name] = message.value
            once = slot.client.share if isinstance(message, Share) else jnp.ones((), jnp.int32)
            weights[name] = slot.client.weight if isinstance(message, Mean) else once
        if self.watch.finite:
            stacks[Watch.FINITE] = finite
        return Left(values, weights, stacks, new)

    def settle(self, server: Any, c_i: Any, slot: Slot) -> Any:
        """The client's state once it has heard of the new server state; that of a void slot counts for nothing."""
        new = self.algorithm.settle(server, self._own(c_i), slot.client)
        return Kept(new, c_i.optimizer) if self.algorithm.keep_optimizer else new

    def messages(self, sent: Any, c_i: Any, slot: Slot) -> dict[str, Message]:
        """What a client sends that does nothing: for the names, shapes and kinds of messages."""
        return self._idle(sent, c_i, slot)[1]

    def traffic(self, sent: Any, c_i: Any, slot: Slot) -> tuple[int, int]:
        """Bytes that one client receives and sends, from shapes."""
        found = (0, 0)

        def count(sent: Any, c_i: Any, slot: Slot) -> None:
            nonlocal found
            change, messages, _ = self._idle(sent, c_i, slot)
            found = downloaded(self.algorithm, self._sent(sent, slot)), uploaded(self.algorithm, messages, change)

        jax.eval_shape(count, sent, c_i, slot)
        return found

    def _idle(self, sent: Any, c_i: Any, slot: Slot) -> tuple[Any, dict[str, Message], Any]:
        slot = self.surveyed(sent, c_i, slot)
        return self._messages(sent, slot, self.begin(sent, c_i, slot))

    def _messages(self, sent: Any, slot: Slot, progress: Progress) -> tuple[Any, dict[str, Message], Any]:
        """The change, the messages and the method's new c_i."""
        own, c_i, client = self._sent(sent, slot), progress.kept.value, slot.client
        if not self.algorithm.requires.steps:
            client = client._replace(survey=progress.survey.value)
        start = received(sent, client.index) if self.watch.mixing else own
        change = self.algorithm.change(progress.y, start, c_i, client)
        delta, kept, notes = encoded(self.algorithm, change, own, c_i, client)
        messages, kept = self.algorithm.finish(delta, progress.y, own, kept, client)
        return change, messages | notes, jax.tree.map(jnp.asarray, kept)

    def _moved(self, sent: Any, client: Client, progress: Progress, g: Any, k: jax.Array) -> Progress:
        y, state = self.algorithm.step(g, progress.y, progress.optimizer, k, sent, progress.kept.value, client)
        return progress._replace(y=y, optimizer=state)

    def _sent(self, sent: Any, slot: Slot) -> Any:
        return received(sent if slot.sent is None else slot.sent, slot.client.index)

    def _own(self, c_i: Any) -> Any:
        return c_i.own if self.algorithm.keep_optimizer else c_i

    @property
    def surveying(self) -> bool:
        """Whether all that clients do is to survey their data."""
        return self.watch.surveying or (self.algorithm.requires.survey and not self.algorithm.requires.steps)

    @property
    def in_pieces(self) -> bool:
        """Whether a gradient is the sum of those of several micro-steps, each times its part."""
        rows = self.batches.rows(self.dataset)
        return self.batches.pieces(self.dataset.max_size, rows) > 1

    def _survey_shapes(self, sent: Any, own: Any, slot: Slot) -> Any:
        """Shapes of a survey, which no data is read for."""

        def one(slot: Slot) -> Any:
            positions = consecutive(slot.client.size, 0, 1)
            batch = fetch(self.dataset, slot.offset, slot.client.size, positions)
            F = Loss(self.task, batch, slot.model_key, slot.client.scale)
            return self.algorithm.survey(F, sent, own, slot.client)

        return jax.eval_shape(one, slot)


def _with_statistics(progress: Progress, statistics: list[Any]) -> Progress:
    """The client with running statistics as a batch left them, whatever the optimiser did to them."""
    if all(leaf is None for leaf in statistics):
        return progress
    leaves, structure = jax.tree.flatten(progress.y)
    new = [leaf if moved is None else moved for leaf, moved in zip(leaves, statistics, strict=True)]
    return progress._replace(y=jax.tree.unflatten(structure, new))
