"""All data on the device: whole chunks of rounds, and all seeds, are one program."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core import trees
from fedjax_sim.datasets.placement import as_here
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.client_states import as_arrays
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import Record, chunk_of_rounds, initial_states
from fedjax_sim.models.evaluation import check_recorded
from fedjax_sim.run.training import measure

_PAUSE = 0.5  # seconds of rounds between two reports; a call of the program takes about a thousandth of it


class ResidentDriver:
    """See :class:`fedjax_sim.run.drivers.base.Driver`.

    Args:
      plan: the run, with one key a seed.
      initial_params: where all seeds start, :class:`fedjax_sim.engine.rounds.EachSeed`, or None.
      initial_state: what they start in, leaves [seeds, ...]; or None.
      length: the most rounds of one call.
      evaluate: more to record at every evaluation, or None.
      may_stop: whether ``advance`` is ever told that a seed has stopped.
    """

    def __init__(
        self,
        plan: Plan,
        initial_params: Any,
        initial_state: TrainState | None,
        *,
        length: int,
        evaluate: Evaluate | None,
        may_stop: bool,
    ) -> None:
        self._seeds, self._num_clients = len(plan.key), plan.dataset.num_clients
        self._pace: float | None = None  # seconds a round, once it is known
        self._layout = plan.layout
        plan = plan.placed().everywhere()
        self._states: TrainState = self._settled(
            initial_states(plan, *self._layout.everywhere((initial_params, initial_state)))
        )
        self._run = functools.partial(_advance, plan, length=length, evaluate=evaluate, may_stop=may_stop)

    def start(self) -> dict[str, jax.Array]:
        return self.advance(0, 0, np.ones(self._seeds, bool))[1]

    def advance(
        self, start: int, count: int, running: np.ndarray, tell: Callable[[int], None] | None = None
    ) -> tuple[Record, dict[str, jax.Array]]:
        if tell is not None and count > 1:
            return self._in_parts(start, count, running, tell)
        record, metrics = self._called(start, count, running, last=True)
        return jax.tree.map(lambda leaf: leaf[:, :count], record), metrics

    def _in_parts(
        self, start: int, count: int, running: np.ndarray, tell: Callable[[int], None]
    ) -> tuple[Record, dict[str, jax.Array]]:
        """A chunk by several calls of the program, about ``_PAUSE`` apart, of which the last one evaluates.

        A callback from inside the program would keep it from being cached, and would count rounds of derivatives.
        """
        done, pace, records = 0, self._pace, []
        while done < count:
            part = min(max(1, int(_PAUSE / pace)) if pace else 1, count - done)
            began = time.perf_counter()
            record, metrics = self._called(start + done, part, running, last=done + part == count)
            # Sliced on the host: on the device each length would be a program of its own.
            records.append(jax.tree.map(lambda leaf, part=part: np.asarray(leaf)[:, :part], record))  # waits for it
            pace = (time.perf_counter() - began) / part
            done += part
            tell(start + done)
        self._pace = pace
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *records), metrics

    def _called(
        self, start: int, count: int, running: np.ndarray, *, last: bool
    ) -> tuple[Record, dict[str, jax.Array]]:
        counts = np.where(running, count, 0).astype(np.int32)
        self._states, record, metrics = self._run(self._states, np.int32(start), counts, np.bool_(last))
        return as_here(record), as_here(metrics)

    def states(self) -> TrainState:
        # Of several devices, each has as many rows.
        clients = jax.tree.map(lambda leaf: leaf[:, : self._num_clients], self._states.clients)
        return self._states._replace(clients=clients)

    def clients(self) -> Any:
        return as_arrays(self.states().clients)

    def stored(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, states: TrainState, stored: Mapping[str, np.ndarray]) -> None:
        # A copy: the program is given its memory to write to.
        self._states = self._settled(jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), states))

    def close(self) -> None:
        pass

    def _settled(self, states: TrainState) -> TrainState:
        """The states where the program leaves them, so that it is compiled for one place alone."""
        clients = self._layout.spread(states.clients, axis=1)
        return self._layout.everywhere(states._replace(clients=()))._replace(clients=clients)  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnames=("length", "evaluate", "may_stop"), donate_argnames="states")
def _advance(
    plan: Plan,
    states: TrainState,
    start: jax.Array,
    counts: jax.Array,
    last: jax.Array,
    *,
    length: int,
    evaluate: Evaluate | None,
    may_stop: bool,
) -> tuple[TrainState, Record, dict[str, jax.Array]]:
    """``counts[s]`` <= ``length`` rounds of seed s from round ``start``; if ``last``, an evaluation, else zeros."""

    def rounds(key: jax.Array, state: TrainState, count: jax.Array) -> tuple[TrainState, Record]:
        return chunk_of_rounds(plan._replace(key=key), state, start, count, length=length)

    def evaluation(state: TrainState) -> dict[str, jax.Array]:
        return measure(plan, state, evaluate=evaluate)

    def measured(state: TrainState) -> dict[str, jax.Array]:
        nothing = trees.zeros_like(jax.eval_shape(evaluation, state))
        return lax.cond(last, evaluation, lambda state: nothing, state)  # type: ignore[no-any-return]

    if jax.default_backend() == "cpu":
        # Vmapped dynamic loops would make every seed wait for the slowest.
        def one(of_seed: tuple[jax.Array, TrainState, jax.Array]) -> Any:
            key, state, count = of_seed
            state, record = rounds(key, state, count)
            return state, record, measured(state)

        after, records, metrics = lax.map(one, (plan.key, states, counts))
        check_recorded(metrics, records)
        return after, records, metrics
    # One count for all: a count of its own would make every step of every seed a choice.
    most = jnp.max(counts)
    after, records = jax.vmap(lambda key, state: rounds(key, state, most))(plan.key, states)
    if may_stop:
        after, records = _kept(counts == most, (after, records), (states, trees.zeros_like(records)))
    metrics = jax.vmap(measured)(after)
    check_recorded(metrics, records)
    return after, records, metrics


def _kept(rows: jax.Array, new: Any, old: Any) -> Any:
    """The rows of ``new``, and of ``old`` where ``rows`` is false: seeds that have stopped keep what they had."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)
