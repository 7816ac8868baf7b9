"""What an adjoint is: how the derivative of a run's rounds is computed, never what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.host_callbacks import Tell, silent
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import some_rounds


class Run(NamedTuple):
    """The rounds of a run as functions.

    Attributes:
      step: ``(plan, state, t) -> (state, record)``, round t.
      measure: ``(plan, state) -> metrics``, an evaluation.
      rounds: R.
      eval_every: rounds between evaluations.
      tell: ``(state, rounds done, metrics) -> (state, rounds done)``, the identity, called at the start and after every
        round, with the metrics where there is an evaluation.
    """

    step: Callable[[Plan, TrainState, jax.Array], tuple[TrainState, Any]]
    measure: Callable[[Plan, TrainState], Any]
    rounds: int
    eval_every: int
    tell: Tell = silent


class Span(NamedTuple):
    """A loop of a run, for an adjoint that plans by lengths.

    Attributes:
      rounds: all rounds that are differentiated.
      block: rounds between evaluations.
      blocks: whether an iteration is such a block (or, within one, a single round).
    """

    rounds: int
    block: int
    blocks: bool


class Ran(NamedTuple):
    """What is left of some rounds.

    Attributes:
      state: after the last of them.
      records: leading axis rounds.
      metrics: leading axis evaluations.
    """

    state: TrainState
    records: Any
    metrics: Any


class Adjoint(Described):
    """Base of the adjoints; pure structure.

    An adjoint changes the memory and the time of a derivative, and some say which part of it is left out. What a run
    returns without a derivative is the same to the last bit for all of them.
    """

    def check(self, plan: Plan, rounds: int) -> None:
        """Raises ``ValueError`` where the run has no such derivative."""

    def fitted(self, layout: Layout) -> Layout:
        """The layout as this adjoint differentiates it."""
        return layout

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        """All rounds from ``state``, evaluated at the start, every ``eval_every`` rounds and at the end."""
        raise TypeError(f"{type(self).__name__} must define run(run, plan, state)")


class Scanned(Adjoint):
    """Base of the adjoints that scan over rounds; subclasses say what is stored and what is computed again."""

    def stored(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """One round or one evaluation, with what the backward pass keeps of its inside."""
        return function

    def scan(self, body: Callable[..., Any], carry: Any, xs: jax.Array, span: Span) -> tuple[Any, Any]:
        """``lax.scan(body, carry, xs)``.

        Args:
          body: ``(carry, x) -> (carry, y)``.
          carry: the state.
          xs: rounds, leading axis iterations.
          span: which loop this is.
        """
        return lax.scan(body, carry, xs)

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        return self.between(run, plan, state, 0, run.rounds)

    def between(self, run: Run, plan: Plan, state: TrainState, start: int, stop: int) -> Ran:
        """Rounds ``start`` to ``stop - 1`` and the evaluations before them; after them too where they are the last."""
        every = run.eval_every
        stored_step = self.stored(lambda state, t: run.step(plan, state, t))
        stored_measure = self.stored(lambda state: run.measure(plan, state))

        def step(_: Plan, state: TrainState, t: jax.Array) -> tuple[TrainState, Any]:
            state, record = stored_step(state, t)
            if every > 1:
                state = run.tell(state, t + 1, {})[0]
            return state, record

        def measure(state: TrainState, done: jax.Array) -> tuple[TrainState, jax.Array, Any]:
            measured = stored_measure(state)
            return *run.tell(state, done, measured), measured

        def scan(body: Callable[..., Any], state: TrainState, ts: jax.Array) -> tuple[TrainState, Any]:
            if len(ts) == 1:  # a loop around it would store the state once more
                state, record = body(state, ts[0])
                return state, _row(record)
            return self.scan(body, state, ts, Span(stop - start, min(every, stop - start), blocks=False))

        def rounds(state: TrainState, ts: jax.Array) -> tuple[TrainState, Any]:
            return some_rounds(plan, state, ts, scan, step)

        def block(state: TrainState, ts: jax.Array) -> tuple[TrainState, Any]:
            # Evaluated before its rounds, not after: what an evaluation and the first round store is then one state.
            state, first, measured = measure(state, ts[0])
            state, records = rounds(state, ts + (first - ts[0]))  # zero: no round starts before the call was made
            return state, (records, measured)

        records: list[Any] = []
        metrics: list[Any] = []
        first = min(-(-start // every) * every, stop)
        last = max(stop - stop % every, first)
        if start < first:
            state, record = rounds(state, jnp.arange(start, first, dtype=jnp.int32))
            records.append(record)
        if first < last:
            tss = jnp.arange(first, last, dtype=jnp.int32).reshape(-1, every)
            state, (record, measured) = self.scan(block, state, tss, Span(stop - start, every, blocks=True))
            records.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), record))
            metrics.append(measured)
        if last < stop:
            state, (record, one) = block(state, jnp.arange(last, stop, dtype=jnp.int32))
            records.append(record)
            metrics.append(_row(one))
        if stop == run.rounds:
            state, _, measured = measure(state, jnp.int32(run.rounds))
            metrics.append(_row(measured))
        return Ran(state, joined(records), joined(metrics))


def joined(pieces: list[Any]) -> Any:
    """Pytrees of arrays, one after another along their leading axis; ``()`` for no piece."""
    if len(pieces) < 2:
        return pieces[0] if pieces else ()
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)


def stopped(tree: Any) -> Any:
    """``tree`` as a constant: no derivative reaches it, and none is computed behind it."""
    return jax.tree.map(lambda leaf: lax.stop_gradient(leaf) if isinstance(leaf, jax.core.Tracer) else leaf, tree)


def _row(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)
