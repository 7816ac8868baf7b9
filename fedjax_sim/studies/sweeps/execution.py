"""Runs of a sweep, some at a time, on one device or several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.plan import Plan
from fedjax_sim.reporting.divergence import FACTOR, divergences
from fedjax_sim.run.history import History
from fedjax_sim.run.training import evaluation_rounds
from fedjax_sim.studies.sweeps.program import AXIS, Outcome, Runs, compute

_IN_TURN = 16  # runs of a call for each device that takes them in turn: so often results are stored and shown
_SIDE_BY_SIDE = 64  # runs of a call for each device that holds them all at once


class Executor:
    """Computes any runs of a sweep with one compiled program.

    Args:
      plan: the run.
      initial_params: where all runs start, or None.
      values: [P, ...] by name, of all points.
      seeds: those of every point; run k is that of point k // S with seed k % S.
      count: how many runs there will be.
      chunk: the most runs of one call, or None for the rule.
      devices: those to use.
      rounds: R.
      eval_every: rounds between evaluations.
      evaluate: more to record at every evaluation, or None.
      keep_params: whether the final models are wanted.
    """

    def __init__(
        self,
        plan: Plan,
        initial_params: Any,
        values: dict[str, np.ndarray],
        seeds: list[int],
        *,
        count: int,
        chunk: int | None,
        devices: Sequence[jax.Device],
        rounds: int,
        eval_every: int,
        evaluate: Evaluate | None,
        keep_params: bool,
    ) -> None:
        used = list(devices)[: max(min(count, chunk or count), 1)]
        self._mesh = Mesh(np.array(used), (AXIS,)) if len(used) > 1 else None
        self._spread: Any = used[0] if self._mesh is None else NamedSharding(self._mesh, PartitionSpec(AXIS))
        everywhere: Any = used[0] if self._mesh is None else NamedSharding(self._mesh, PartitionSpec())
        self._plan = plan
        self._given = jax.device_put((plan, initial_params), everywhere)
        self._values, self._seeds = values, np.asarray(seeds, np.uint32)
        self._keys = jax.vmap(jax.random.key)(jnp.asarray(self._seeds))
        self._rounds, self._eval_every = rounds, eval_every
        self._evaluate, self._keep_params = evaluate, keep_params
        self._in_turn = takes_turns(used[0])
        self.size = chunk_size(count, chunk, len(used), in_turn=self._in_turn)

    def compile(self) -> float:
        """Makes the program ready, without a round; returns the seconds it took."""
        started = time.perf_counter()
        self._call([0], 0)
        return time.perf_counter() - started

    def run(self, numbers: Sequence[int]) -> History:
        """What the runs of these numbers, at most ``size``, recorded: a history with one "seed" a run.

        Its divergences have the runs' numbers in the place of seeds, which several runs share.
        """
        started = time.perf_counter()
        evaluated = evaluation_rounds(self._rounds, self._eval_every)
        outcome = jax.tree.map(lambda leaf: np.asarray(leaf)[: len(numbers)], self._call(numbers, len(evaluated)))
        algorithm = self._plan.algorithm

        def by_round(record: np.ndarray) -> np.ndarray:
            after_start = record[:, 1:]
            return after_start.reshape(len(record), -1, *record.shape[3:])[:, : self._rounds]

        rounds = {name: by_round(record) for name, record in outcome.records.items()}
        skipped = self._plan.guard.skip or algorithm.requires.excludes_nonfinite
        return History(
            evaluated=np.asarray(evaluated),
            metrics=outcome.metrics,
            rounds=rounds,
            params=outcome.params if self._keep_params else None,
            seeds=[int(self._seeds[number % len(self._seeds)]) for number in numbers],
            seconds=time.perf_counter() - started,
            compile_seconds=0.0,
            description={},
            divergences=divergences(
                type(algorithm).__name__,
                list(numbers),
                np.asarray(evaluated),
                outcome.metrics,
                rounds,
                skipped=skipped,
                factor=FACTOR,
            ),
        )

    def _call(self, numbers: Sequence[int], evaluations: int) -> Outcome:
        """The first evaluations of some runs; places of the call that are left over repeat the last and do nothing."""
        left = self.size - len(numbers)
        padded = np.asarray([*numbers, *[numbers[-1]] * left])
        points, seeds = np.divmod(padded, len(self._seeds))
        runs = Runs(
            values={name: column[points] for name, column in self._values.items()},
            keys=self._keys[seeds],
            evaluations=np.asarray([evaluations] * len(numbers) + [0] * left, np.int32),
        )
        outcome = compute(
            *self._given, jax.device_put(runs, self._spread), rounds=self._rounds, eval_every=self._eval_every,
            evaluate=self._evaluate, keep_params=self._keep_params, in_turn=self._in_turn, mesh=self._mesh,
        )  # fmt: skip
        return jax.block_until_ready(outcome)  # type: ignore[no-any-return]


def takes_turns(device: jax.Device) -> bool:
    """Whether a device takes runs in turn: on a CPU vmapped dynamic loops would make every run wait for the slowest."""
    return bool(device.platform == "cpu")


def chunk_size(count: int, chunk: int | None, num_devices: int, *, in_turn: bool) -> int:
    """Runs of one call: a multiple of the devices, as few calls as ``chunk`` allows, all of them equally long.

    Args:
      count: of the runs.
      chunk: the most runs of a call, or None for the rule.
      num_devices: that share a call; at most ``chunk``.
      in_turn: whether a device takes its runs one after another.
    """
    most = num_devices * (_IN_TURN if in_turn else _SIDE_BY_SIDE) if chunk is None else chunk
    most -= most % num_devices
    calls = max(-(-count // most), 1)
    even = max(-(-count // calls), 1)
    return -(-even // num_devices) * num_devices
