"""Which driver a run has."""

from __future__ import annotations

from typing import Any

import jax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.client_states import OnDevice
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.drivers.base import Driver
from fedjax_sim.drivers.resident import ResidentDriver
from fedjax_sim.drivers.streamed import StreamedDriver
from fedjax_sim.setting import Setting
from fedjax_sim.training import Evaluate


def make_driver(
    setting: Setting,
    algorithm: Method,
    keys: jax.Array,
    initial_params: Any,
    dataset: FederatedDataset | HostDataset,
    *,
    rounds: int,
    length: int,
    evaluate: Evaluate | None,
    may_stop: bool,
) -> Driver:
    """The driver for where a run's data and client states are.

    Args:
      setting: the run.
      algorithm: the method; where its clients keep nothing, no place is made for it.
      keys: [seeds], one key a seed.
      initial_params: where all seeds start, or None.
      dataset: the data.
      rounds: number of rounds of the run.
      length: the most rounds between evaluations.
      evaluate: more to record at every evaluation, or None.
      may_stop: whether a seed may stop before the others.
    """
    known = dataset.frame if isinstance(dataset, HostDataset) else dataset
    params = jax.eval_shape(lambda key: setting.task.init(key, known), keys[0])
    if not jax.tree.leaves(jax.eval_shape(algorithm.init_client, params)):
        setting = setting._replace(client_states=OnDevice())
    given = setting, algorithm, keys, initial_params
    if isinstance(dataset, HostDataset) or setting.client_states.apart:
        return StreamedDriver(*given, dataset, rounds=rounds, evaluate=evaluate)
    return ResidentDriver(*given, dataset, length=length, evaluate=evaluate, may_stop=may_stop)
