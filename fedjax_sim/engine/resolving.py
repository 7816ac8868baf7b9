"""The plan of a run of several seeds, whose data and client states may be off the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.values import shown
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.checks import check_kind, resolve
from fedjax_sim.engine.client_states import ClientStates, OnDevice
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.plan import Plan


def resolve_seeds(
    asked: Plan, dataset: Any, seeds: list[int], rounds: int, initial_params: Any, client_states: Any
) -> Plan:
    """The plan of a run of several seeds, one key each, whose data and client states may be off the device.

    Args:
      asked: what was asked for, with an algorithm.
      dataset: the data; of a :class:`HostDataset` the plan has the frame, all that a run but for the readers of
        examples needs to know.
      seeds: one or more.
      rounds: R.
      initial_params: where all seeds start, or None.
      client_states: the argument of ``simulate``.

    Raises:
      TypeError, ValueError: see :func:`check_run`; or rounds need more than their cohorts' examples or states.
    """
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    streamed = isinstance(dataset, HostDataset)
    asked = asked._replace(dataset=dataset.frame if streamed else dataset, key=keys[0])
    plan = resolve(asked, rounds, initial_params, several=True)
    if streamed:
        check_streamed(plan)
    return plan._replace(key=keys, client_states=check_client_states(client_states, plan))


def check_seeds(seeds: Any) -> list[int]:
    """The seeds as a list of integers.

    Raises:
      TypeError: neither an integer nor several.
      ValueError: none, one outside [0, 2^32), or one twice.
    """
    if isinstance(seeds, jax.Array) and jnp.issubdtype(seeds.dtype, jnp.integer):
        seeds = np.asarray(seeds).reshape(-1)
    if isinstance(seeds, (str, jax.Array)) or not isinstance(seeds, (int, np.integer, np.ndarray, Iterable)):
        raise TypeError(f"seeds is {seeds!r}: give an integer or several, range(5)")
    values = [seeds] if isinstance(seeds, (int, np.integer)) else list(seeds)
    if not values:
        raise ValueError("seeds is empty: give at least one seed")
    for seed in values:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise TypeError(f"seeds has {seed!r}: seeds must be integers")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seeds has {seed}: seeds must be in [0, 2^32)")
    found = [int(seed) for seed in values]
    if len(set(found)) < len(found):
        twice = next(seed for number, seed in enumerate(found) if seed in found[:number])
        raise ValueError(f"seeds has {twice} twice: a seed is a run, and again it would be the same run: give it once")
    return found


def check_streamed(plan: Plan) -> None:
    """Checks that a round needs no more examples than its cohort's, for data that stays on the host.

    Raises:
      ValueError: it does.
    """
    if plan.asynchronous is not None:
        raise ValueError(
            "asynchronous=... with a HostDataset: who reports in a round is known once its clock has run, too late for "
            "sending the examples ahead: use dataset.on_device()"
        )
    if isinstance(plan.layout, OnMesh) and plan.layout.data == "sharded":
        raise ValueError(
            f"layout={shown(plan.layout)} with a HostDataset: only the examples of a round's cohort are on the "
            "devices, on all of them: use data='replicated'"
        )
    needing = [type(diagnostic).__name__ for diagnostic in plan.diagnostics if diagnostic.everyone]
    if plan.algorithm.requires.objective:
        needing.insert(0, type(plan.algorithm).__name__)
    if needing:
        raise ValueError(
            f"{needing[0]} reads the examples of all clients in every round, and this data set stays on the host: a "
            "round sees its cohort's examples alone. Use dataset.on_device(), or do without"
        )


def check_client_states(given: Any, plan: Plan) -> ClientStates:
    """Where client states are kept, from the argument of ``simulate``; None for ``on_device()``.

    Raises:
      TypeError: it is something else.
      ValueError: the run or the method cannot do without them on the device.
    """
    if given is None:
        return OnDevice()
    check_kind("client_states", given, ClientStates, "fedjax_sim.client_states.on_host(), or None for on_device()")
    if given.apart and plan.asynchronous is not None:
        raise ValueError(
            f"asynchronous=... with client_states={shown(given)}: who reports in a round is known once its clock has "
            "run, too late for sending client states ahead: use client_states=fedjax_sim.client_states.on_device()"
        )
    if given != OnDevice() and plan.algorithm.requires.remembers_everyone:
        raise ValueError(
            f"{type(plan.algorithm).__name__} keeps a vector of every client on the server and reads all of them in "
            f"every round, so client_states={shown(given)} would save nothing: leave client_states out, or give the "
            "method fewer vectors (clusters=...)"
        )
    return given  # type: ignore[no-any-return]
