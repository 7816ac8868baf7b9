"""How long a run's own rounds take in each of some layouts."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.checks import check_counts
from fedjax_sim.engine.client_states import UNUSED
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.layout.stacked import Stacked
from fedjax_sim.engine.layout.turns import turns
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import Record, chunk_of_rounds, initial_states
from fedjax_sim.engine.streaming import Window, cohorts, drawn_ahead

_LENGTH = 32  # rounds of one timed call, at most
_TARGET = 0.02  # seconds of a timed call: many times the clock's and a call's own
_SHORT = 0.2  # seconds of a first round that a hiccup of the machine may have made long
_WINDOW = 4  # rounds that are timed of data on the host: their cohorts' examples are sent to the device


class Timing(NamedTuple):
    """One candidate.

    Attributes:
      layout: the candidate.
      milliseconds: of a round, the median of the timed calls; None where none was made.
      rounds: how many were timed.
      compile_seconds: of its program; None where it was not compiled.
      computed: micro-steps that it computed for each that the clients needed; None where none was timed.
      note: why it was measured less than the others, or not at all; empty as a rule.
    """

    layout: Layout
    milliseconds: float | None = None
    rounds: int = 0
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
    *,
    limit: float,
    repeats: int,
    together: bool = False,
    hopeless: float = 4.0,
    say: Callable[[int, str], None] = lambda number, text: None,
) -> list[Timing]:
    """Times rounds of a run, all candidates the same ones: the program of ``simulate`` without evaluations.

    Args:
      plan: the run, with one key a seed; its layout does not count.
      host: the data that stays on the host, of which the plan has the frame; or None.
      rounds: R.
      initial_params: where all seeds start, or None.
      candidates: the most promising first, so that hopeless ones are known early.
      limit: seconds of one candidate's rounds after which it is timed no more.
      repeats: timed calls of a candidate, at most.
      together: whether the seeds run side by side; else the first stands for all.
      hopeless: times the best: the first round of a candidate that is given up.
      say: told how many candidates are done, and in words what was found.
    """
    plan = plan if together else plan._replace(key=plan.key[:1])
    clients = None
    if host is not None or plan.client_states.apart:
        rounds = min(rounds, _WINDOW)
        plan, clients = _in_window(plan, host, rounds)
    best = pace = math.inf  # seconds of a round, and of a micro-step
    found: list[Timing] = []

    def timed(layout: Layout) -> Timing:
        nonlocal best, pace
        try:
            check_counts(plan._replace(layout=layout), rounds)
        except ValueError:
            return Timing(layout, note="computes more steps than 32 bits can count")
        expected = _stacked_steps(plan, layout) * (pace if pace < math.inf else 0.0)
        if expected > max(limit, hopeless * best):
            return Timing(layout, note=f"left out: would take some {expected:.0f} s a round")
        length, started = min(rounds, _LENGTH), time.perf_counter()
        run, needs = _program(plan._replace(layout=layout), initial_params, clients, length, together)
        compile_seconds, free = time.perf_counter() - started, _free_memory()
        if needs > free:
            note = f"left out: needs {needs / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
            return Timing(layout, compile_seconds=compile_seconds, note=note)
        run(0, 0)  # the program's own memory and threads come with its first call
        calls = [run(0, 1)]
        if calls[0][0] < _SHORT:
            calls += [run(0, 1), run(0, 1)]
        seconds = first = min(taken for taken, _ in calls)
        note = "given up after its first round" if first > hopeless * best else ""
        if not note:
            count = max(1, min(length, math.ceil(_TARGET / max(first, 1e-9))))
            each: list[float] = []
            for repeat in range(repeats):
                if not each or sum(taken for taken, _ in calls) < limit:
                    calls.append(run(repeat * count % (rounds - count + 1), count))
                    each.append(calls[-1][0] / count)
            seconds = statistics.median(each)
        records = [record for _, record in calls]
        needed, computed = (sum(float(np.sum(record[name])) for record in records) for name in _COUNTED)
        best = min(best, seconds)
        pace = min(pace, sum(taken for taken, _ in calls) / max(computed, 1.0))
        number = sum(np.shape(record[_COUNTED[0]])[-1] for record in records)
        return Timing(layout, seconds * 1e3, number, compile_seconds, computed / needed if needed else None, note)

    for layout in candidates:
        try:
            found.append(timed(layout))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            found.append(Timing(layout, note="out of memory"))
        taken = found[-1].milliseconds
        say(len(found), f"{label(layout)}: {found[-1].note or f'{taken:.3g} ms a round'}")
    return found


_COUNTED = ("useful_steps", "computed_steps")
Run = Callable[[int, int], tuple[float, dict[str, np.ndarray]]]


def _program(
    plan: Plan, initial_params: Any, clients: np.ndarray | None, length: int, together: bool
) -> tuple[Run, int]:
    """``run(start, count) -> (seconds, record)`` of some rounds, and the bytes that it needs besides its arguments.

    The state goes from call to call.
    """
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
    program = _rounds.lower(plan, states, np.int32(0), np.int32(0), length=length, together=together).compile()

    def run(start: int, count: int) -> tuple[float, dict[str, np.ndarray]]:
        nonlocal states
        states = jax.block_until_ready(jax.device_put(states, shardings))
        begun = time.perf_counter()
        states, record = jax.block_until_ready(program(plan, states, np.int32(start), np.int32(count)))
        seconds = time.perf_counter() - begun
        return seconds, {name: np.asarray(record[name])[..., :count] for name in _COUNTED}

    analysis = program.memory_analysis()
    return run, 0 if analysis is None else int(analysis.temp_size_in_bytes)


@functools.partial(jax.jit, static_argnames=("length", "together"), donate_argnames="states")
def _rounds(
    plan: Plan, states: TrainState, start: jax.Array, count: jax.Array, *, length: int, together: bool
) -> tuple[TrainState, Record]:
    """``count`` <= ``length`` rounds of every seed from round ``start``, and all that they record."""

    def of_seed(key: jax.Array, state: TrainState) -> tuple[TrainState, Record]:
        return chunk_of_rounds(plan._replace(key=key), state, start, count, length=length)

    if together:
        return jax.vmap(of_seed)(plan.key, states)
    alone = of_seed(plan.key[0], jax.tree.map(lambda leaf: leaf[0], states))
    return jax.tree.map(lambda leaf: leaf[None], alone)  # type: ignore[no-any-return]


def _stacked_steps(plan: Plan, layout: Layout) -> float:
    """Micro-steps of a round that the stacked layout computes on each device, whatever the clients need; else 0."""
    inner, parts = (layout.inner, layout.placement.parts) if isinstance(layout, OnMesh) else (layout, 1)
    if not isinstance(inner, Stacked):
        return 0.0
    return (
        plan.slots * sum(plan.bounds(method).per_client for method in plan.algorithm.phases()) * len(plan.key) / parts
    )


def _free_memory() -> float:
    """Bytes that a program may still take; infinity where nobody says."""
    found = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in found:
        return float(found["bytes_limit"] - found.get("bytes_in_use", 0))
    meminfo = Path("/proc/meminfo")
    available = re.search(r"MemAvailable: *(\d+)", meminfo.read_text()) if meminfo.exists() else None
    return math.inf if available is None else float(available[1]) * 1024


def _in_window(plan: Plan, host: HostDataset | None, rounds: int) -> tuple[Plan, np.ndarray | None]:
    """The run with what its first rounds need on the device, and the clients whose states these are; None for all."""
    frame, clients = plan.dataset, None
    drawn = drawn_ahead(plan._replace(key=plan.key[0]), rounds)
    if plan.client_states.apart:
        clients = np.unique(cohorts(drawn, frame))
        clients = clients[clients < UNUSED]
    if host is not None:
        positions = np.unique(drawn[drawn < frame.num_clients])
        rows = int(np.asarray(host.sizes)[positions].sum(dtype=np.int64))
        # A batch or a piece of a pass is read as a slice, never longer than the largest client.
        examples, weights, starts = host.window(positions, max(rows, host.max_size))
        window = Window(*jax.tree.map(jnp.asarray, (examples, weights, positions, starts)))
        plan = plan._replace(dataset=window.on(frame))
    return plan, clients
