"""Which driver a run has."""

from __future__ import annotations

from typing import Any

from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.client_states import OnDevice
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.run.drivers.base import Driver
from fedjax_sim.run.drivers.resident import ResidentDriver
from fedjax_sim.run.drivers.streamed import StreamedDriver


def make_driver(
    plan: Plan,
    initial_params: Any,
    initial_state: TrainState | None,
    host: HostDataset | None,
    *,
    rounds: int,
    length: int,
    evaluate: Evaluate | None,
    may_stop: bool,
) -> Driver:
    """The driver for where a run's data and client states are.

    Args:
      plan: the run, with one key a seed; where its clients keep nothing, no place is made for it.
      initial_params: where all seeds start, :class:`fedjax_sim.engine.rounds.EachSeed`, or None.
      initial_state: what they start in, leaves [seeds, ...]; or None.
      host: the data that stays on the host, of which the plan has the frame; or None.
      rounds: number of rounds of the run.
      length: the most rounds between evaluations.
      evaluate: more to record at every evaluation, or None.
      may_stop: whether a seed may stop before the others.
    """
    if not plan.keeps_clients:
        plan = plan._replace(client_states=OnDevice())
    if host is not None or plan.client_states.apart:
        return StreamedDriver(plan, initial_params, initial_state, host, rounds=rounds, evaluate=evaluate)
    return ResidentDriver(plan, initial_params, initial_state, length=length, evaluate=evaluate, may_stop=may_stop)
