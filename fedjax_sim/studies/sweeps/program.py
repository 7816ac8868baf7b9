"""The one program of a sweep: some runs, each with its own values and seed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fedjax_sim.core.loops import counted
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import Record, chunk_of_rounds, init_state
from fedjax_sim.models.evaluation.metrics import check_recorded
from fedjax_sim.run.training import evaluation_rounds, measure
from fedjax_sim.studies.sweeps.placing import placed

AXIS = "runs"  # of the mesh over which runs are spread


class Runs(NamedTuple):
    """The runs of one call.

    Attributes:
      values: [C, ...] by name.
      keys: typed PRNG keys [C], whose type says by which generator they draw: made inside, the program of one would
        be run for another.
      evaluations: int32[C], evaluations of the run, the one before the first round included; 0 where a place is left
        over, whose results mean nothing.
    """

    values: dict[str, Any]
    keys: Any
    evaluations: Any


class Outcome(NamedTuple):
    """What runs leave, leaves [C, ...].

    Attributes:
      metrics: [C, E, ...] by name.
      records: [C, E, L, ...] by name, L = ``eval_every``: rounds before each evaluation; zero where there are fewer.
      params: the final global models, or ``()``.
    """

    metrics: dict[str, jax.Array]
    records: Record
    params: Any


@functools.partial(jax.jit, static_argnames=("rounds", "eval_every", "evaluate", "keep_params", "in_turn", "mesh"))
def compute(
    plan: Plan,
    initial_params: Any,
    runs: Runs,
    *,
    rounds: int,
    eval_every: int,
    evaluate: Evaluate | None,
    keep_params: bool,
    in_turn: bool,
    mesh: Mesh | None,
) -> Outcome:
    """All runs of a call.

    Args:
      plan: the run that the values and keys are placed in.
      initial_params: where all runs start, or None.
      runs: C of them.
      rounds: R.
      eval_every: rounds between evaluations.
      evaluate: more to record at every evaluation, or None.
      keep_params: whether the final models are wanted.
      in_turn: whether a device takes its runs one after another, or all at once.
      mesh: devices that share the runs evenly, each with a copy of the data; None for one device.
    """

    def on_one_device(plan: Plan, initial_params: Any, runs: Runs) -> Outcome:
        one = functools.partial(
            _whole_run, plan, initial_params,
            rounds=rounds, eval_every=eval_every, evaluate=evaluate, keep_params=keep_params,
        )  # fmt: skip
        if in_turn:
            return lax.map(lambda run: one(*run), runs)  # type: ignore[no-any-return]
        # One count for all: a count of its own would make every step of every run a choice.
        most = jnp.max(runs.evaluations)
        return jax.vmap(one, (0, 0, None))(runs.values, runs.keys, most)

    if mesh is None:
        return on_one_device(plan, initial_params, runs)
    everywhere, spread = PartitionSpec(), PartitionSpec(AXIS)
    sharded = jax.shard_map(
        on_one_device, mesh=mesh, in_specs=(everywhere, everywhere, spread), out_specs=spread,
        check_vma=False,
    )  # fmt: skip
    return sharded(plan, initial_params, runs)


def _whole_run(
    plan: Plan,
    initial_params: Any,
    values: dict[str, jax.Array],
    key: jax.Array,
    evaluations: jax.Array,
    *,
    rounds: int,
    eval_every: int,
    evaluate: Evaluate | None,
    keep_params: bool,
) -> Outcome:
    """One run; the first ``evaluations`` evaluations of it and the rounds before them."""
    plan = placed(plan, values)._replace(key=key)
    length, total = min(eval_every, rounds), len(evaluation_rounds(rounds, eval_every))

    @jax.jit  # traced once, for the shapes and for the loop
    def block(state: TrainState, number: jax.Array) -> tuple[TrainState, tuple[dict[str, jax.Array], Record]]:
        start = jnp.maximum(number - 1, 0) * length
        count = jnp.where(number > 0, jnp.minimum(length, rounds - start), 0)
        state, record = chunk_of_rounds(plan, state, start, count, length=length)
        metrics = measure(plan, state, evaluate=evaluate)
        check_recorded(metrics, record)
        return state, (metrics, record)

    numbers = jnp.arange(total, dtype=jnp.int32)
    state, (metrics, records) = counted(evaluations)(block, init_state(plan, initial_params), numbers)
    return Outcome(metrics, records, plan.algorithm.evaluated(state.server) if keep_params else ())
