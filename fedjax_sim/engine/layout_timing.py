"""How long a run's own rounds take in each of some layouts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.devices import free_memory
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.client_states import UNUSED
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.layout.turns import turns
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import Record, chunk_of_rounds, initial_states
from fedjax_sim.engine.streaming import ExampleWindows, cohorts, drawn_ahead

_LENGTH = 32  # rounds of one timed call, at most
_TARGET = 0.02  # seconds of a timed call: many times the clock's and a call's own
_SHORT = 0.2  # seconds of a first round that a hiccup of the machine may have made long
_WINDOW = 4  # rounds that are timed of data on the host: their cohorts' examples are sent to the device
_HOPELESS = 4.0  # times the best: the first round of a candidate that is given up

Run = Callable[[int, int], tuple[float, float, float]]  # (start, count) -> seconds, steps needed, steps computed


class Timing(NamedTuple):
    """One candidate.

    Attributes:
      layout: the candidate.
      milliseconds: of a round, the median of the timed calls; None where none was made.
      compile_seconds: of its program; None where it was not compiled.
      computed: micro-steps that it computed for each that the clients needed; None where none was timed.
      note: why it was measured less than the others, or not at all; empty as a rule.
    """

    layout: Layout
    milliseconds: float | None = None
    compile_seconds: float | None = None
    computed: float | None = None
    note: str = ""


def label(layout: Layout) -> str:
    """``lanes(8)``: the layout as a user writes it."""
    parts = []
    for place, field in enumerate(dataclasses.fields(layout)):
        value = getattr(layout, field.name)
        if value is not None and (place == 0 or value != field.default):
            written = label(value) if isinstance(value, Layout) else repr(value)
            parts.append(written if place == 0 else f"{field.name}={written}")
    return f"{layout.factory_name()}({', '.join(parts)})"


def timings(
    plan: Plan,
    host: HostDataset | None,
    rounds: int,
    initial_params: Any,
    candidates: Sequence[Layout],
    limit: float,
    repeats: int,
    say: Callable[[int, str], None],
) -> list[Timing]:
    """Times the same rounds of a run in all candidates, which take turns: a machine is not always equally fast.

    The plan has a key for each seed that runs side by side. A candidate is timed in ``repeats`` calls, and no more
    after ``limit`` seconds.
    """
    clients = None
    if host is not None or plan.client_states.apart:
        rounds = min(rounds, _WINDOW)
        plan, clients = _in_window(plan, host, rounds)
    length, best = min(rounds, _LENGTH), math.inf
    found = {layout: Timing(layout) for layout in candidates}
    runs: dict[Layout, Run] = {}

    @contextlib.contextmanager
    def fitting(layout: Layout) -> Iterator[None]:
        try:
            yield
        except (_NoRoom, jax.errors.JaxRuntimeError) as error:
            if not isinstance(error, _NoRoom) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            found[layout] = Timing(layout, note="out of memory")
            runs.pop(layout, None)

    for number, layout in enumerate(candidates, 1):
        with fitting(layout):
            started = time.perf_counter()
            run = _program(plan._replace(layout=layout), initial_params, clients, length)
            compile_seconds = time.perf_counter() - started
            first, needed, computed = run(0, 1)
            if first < _SHORT:
                first = min(first, run(0, 1)[0])
            best = min(best, first)
            note = "given up after its first round" if first > _HOPELESS * best else ""
            found[layout] = Timing(layout, first * 1e3, compile_seconds, computed / needed if needed else None, note)
            if not note:
                runs[layout] = run
        say(number, f"{label(layout)}: {found[layout].note or f'{found[layout].milliseconds:.3g} ms a round'}")
    count = max(1, min(length, math.ceil(_TARGET / max(best, 1e-9))))
    each: dict[Layout, list[float]] = {layout: [] for layout in runs}
    for repeat in range(repeats):
        for layout, run in list(runs.items()):
            if sum(each[layout]) * count < limit:
                with fitting(layout):
                    each[layout].append(run(repeat * count % (rounds - count + 1), count)[0] / count)
                    found[layout] = found[layout]._replace(milliseconds=statistics.median(each[layout]) * 1e3)
    return list(found.values())


class _NoRoom(Exception):
    """A program needs more memory than there is; where it would be taken, the system might end the process."""


def _program(plan: Plan, initial_params: Any, clients: np.ndarray | None, length: int) -> Run:
    """What computes some rounds; the state goes from call to call."""
    layout = plan.layout
    plan = plan.placed().everywhere()
    # Of layouts on one device one stands for all, so that the program is compiled once.
    start = plan if isinstance(layout, OnMesh) else plan._replace(layout=turns())
    states: TrainState = initial_states(start, layout.everywhere(initial_params))
    if clients is None:
        own = layout.spread(states.clients, axis=1)
    else:
        one: Any = states.clients
        leaves = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], len(clients), axis=1), one.leaves)
        own = layout.everywhere(one.replace(leaves=leaves, indices=jnp.asarray(clients, jnp.int32)[None]))
    states = layout.everywhere(states._replace(clients=()))._replace(clients=own)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, states)
    program = _rounds.lower(plan, states, np.int32(0), np.int32(0), length=length).compile()
    analysis = program.memory_analysis()
    if analysis is not None and analysis.temp_size_in_bytes > free_memory():
        raise _NoRoom

    def run(start: int, count: int) -> tuple[float, float, float]:
        nonlocal states
        states = jax.block_until_ready(jax.device_put(states, shardings))
        begun = time.perf_counter()
        states, record = jax.block_until_ready(program(plan, states, np.int32(start), np.int32(count)))
        seconds = time.perf_counter() - begun
        steps = [np.asarray(record[name])[..., :count] for name in ("useful_steps", "computed_steps")]
        return seconds, float(steps[0].sum()), float(steps[1].sum())

    return run


@functools.partial(jax.jit, static_argnames="length", donate_argnames="states")
def _rounds(
    plan: Plan, states: TrainState, start: jax.Array, count: jax.Array, *, length: int
) -> tuple[TrainState, Record]:
    """``count`` <= ``length`` rounds of every seed from round ``start``, and all that they record."""

    def of_seed(key: jax.Array, state: TrainState) -> tuple[TrainState, Record]:
        return chunk_of_rounds(plan._replace(key=key), state, start, count, length=length)

    if len(plan.key) > 1:
        return jax.vmap(of_seed)(plan.key, states)
    alone = of_seed(plan.key[0], jax.tree.map(lambda leaf: leaf[0], states))
    return jax.tree.map(lambda leaf: leaf[None], alone)


def _in_window(plan: Plan, host: HostDataset | None, rounds: int) -> tuple[Plan, np.ndarray | None]:
    """The run with what its first rounds need on the device, and the clients whose states these are; None for all."""
    frame, clients = plan.dataset, None
    drawn = drawn_ahead(plan._replace(key=plan.key[0]), rounds)
    if plan.client_states.apart:
        clients = np.unique(cohorts(drawn, frame))
        clients = clients[clients < UNUSED]
    if host is not None:
        positions = np.unique(drawn[drawn < frame.num_clients])
        plan = plan._replace(dataset=ExampleWindows(host, positions).window(positions).on(frame))
    return plan, clients
