"""Which layout a run gets by measuring, or by what was measured before."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import describe
from fedjax_sim.core.devices import processor
from fedjax_sim.datasets.fingerprints import digest, fingerprint
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.client_states import OnDevice
from fedjax_sim.engine.client_states.rows import UNUSED
from fedjax_sim.engine.draw_ahead import cohorts, drawn_ahead
from fedjax_sim.engine.example_windows import Window
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout.lanes import lanes
from fedjax_sim.engine.layout.mesh import mesh
from fedjax_sim.engine.layout.stacked import stacked
from fedjax_sim.engine.layout.turns import turns
from fedjax_sim.engine.layout_tuning.measuring import Subject, measure
from fedjax_sim.engine.layout_tuning.remembered import recall, remember
from fedjax_sim.engine.layout_tuning.report import Timing, Tuning, label
from fedjax_sim.engine.plan import Plan, layout_by_rule
from fedjax_sim.reporting.progress import progress_bar

_LANES = (4, 8, 16, 32)
_WINDOW = 4  # rounds that are measured of data on the host: their cohorts' examples are sent to the device
_ALIKE = 1.03  # the rule's layout is kept where it is so near the best: two measurements would choose the same


def default_candidates(plan: Plan) -> tuple[Layout, ...]:
    """What ``layout="tune"`` measures.

    The rule's choice, turns, lanes of 4, 8, 16 and 32 up to S, stacked; with several devices a mesh of all of them too,
    with turns, lanes of 8 and 32 and stacked on each.
    """
    slots, by_rule = plan.slots, layout_by_rule(plan, several=True)
    alone = [turns(), *(lanes(count) for count in _LANES if count <= slots), stacked()]
    devices = jax.device_count()
    inner = [turns(), *(lanes(count) for count in _LANES[1::2] if count * devices <= slots), stacked()]
    together = [mesh(inner=one) for one in inner] if devices > 1 else []
    return tuple(dict.fromkeys([by_rule, *alone, *together]))


def tuned(
    plan: Plan,
    host: HostDataset | None,
    rounds: int,
    initial_params: Any,
    *,
    candidates: Sequence[Layout] | None = None,
    limit: float = 2.0,
    repeats: int = 5,
    refresh: bool = False,
    progress: bool | None = None,
) -> Tuning:
    """The fastest layout of a run that has been checked; measured, or recalled.

    Args:
      plan: the run, with one key a seed; its layout does not count.
      host: the data that stays on the host, of which the plan has the frame; or None.
      rounds: number of rounds R.
      initial_params: where all seeds start, or None.
      candidates: what to choose from; None for :func:`default_candidates`.
      limit: see :func:`fedjax_sim.engine.layout_tuning.measuring.measure`.
      repeats: likewise.
      refresh: measure although there is an earlier measurement.
      progress: as in ``simulate``.

    Raises:
      ValueError: the run is spread over several processes.
      RuntimeError: no candidate could be measured.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"the layout cannot be measured in a run of {jax.process_count()} processes, each of which might choose "
            "another one: measure in one process, print(fedjax_sim.layout.tune(...)), and give all of them that layout"
        )
    plan = plan._replace(client_states=plan.client_states.in_program() if plan.keeps_clients else OnDevice())
    if candidates is None:
        candidates = default_candidates(plan)
    streamed = host is not None or plan.client_states.apart
    together = jax.default_backend() != "cpu" and not streamed
    key = _signature(plan, candidates, len(plan.key) if together else 1)
    with progress_bar(len(candidates), progress, "layout") as bar:
        found = None if refresh else recall(key)
        if found is None:
            bar.compiling()
            subject = Subject(plan, initial_params, rounds, together=together)
            if streamed:
                subject = _in_window(subject, host)
            timings = measure(subject, candidates, limit=limit, repeats=repeats, say=bar.show)
            found = Tuning(_fastest(timings), tuple(timings))
            remember(key, found)
        said = "measured before" if found.cached else "the fastest"
        bar.show(len(candidates), f"{label(found.layout)}, {found.milliseconds:.3g} ms a round: {said}")
    return found


def _fastest(timings: list[Timing]) -> Layout:
    """The first candidate, the rule's choice, if none is clearly faster; else the fastest."""
    measured = [one for one in timings if one.milliseconds is not None]
    if not measured:
        reasons = "; ".join(f"{label(one.layout)}: {one.note}" for one in timings)
        raise RuntimeError(f"no layout could be measured ({reasons}): give the run a layout, or a smaller cohort")
    best = min(measured, key=lambda one: one.milliseconds or 0.0)
    first = timings[0]
    near = first.milliseconds is not None and first.milliseconds <= _ALIKE * (best.milliseconds or 0.0)
    return first.layout if near else best.layout


def _in_window(subject: Subject, host: HostDataset | None) -> Subject:
    """The run's first rounds with what their cohorts need on the device, as a streamed run sees them."""
    plan, rounds = subject.plan, min(subject.rounds, _WINDOW)
    frame = plan.dataset
    drawn = drawn_ahead(plan._replace(key=plan.key[0]), rounds)
    subject = subject._replace(rounds=rounds)
    if plan.client_states.apart:
        indices = np.unique(cohorts(drawn, frame))
        subject = subject._replace(clients=indices[indices < UNUSED])
    if host is not None:
        positions = np.unique(drawn[drawn < frame.num_clients])
        rows = int(np.asarray(host.sizes)[positions].sum(dtype=np.int64))
        # A batch or a piece of a pass is read as a slice, never longer than the largest client.
        examples, weights, starts = host.window(positions, max(rows, host.max_size))
        window = Window(*jax.tree.map(jnp.asarray, (examples, weights, positions, starts)))
        subject = subject._replace(plan=plan._replace(dataset=window.on(frame)))
    return subject


def _signature(plan: Plan, candidates: Sequence[Layout], seeds: int) -> str:
    """A checksum of all that decides how fast a round is: device, versions, program, steps; not of values.

    Functions are known by their names. A wrong guess costs time, never a result.
    """
    from fedjax_sim.core.version import __version__

    model = plan.params
    leaves, structure = jax.tree.flatten((plan._replace(layout=None, key=None), model))  # type: ignore[arg-type]
    device = jax.devices()[0]
    kind, *models = processor() if device.platform == "cpu" else [""]
    affinity = getattr(os, "sched_getaffinity", None)
    cores = os.cpu_count() if affinity is None else len(affinity(0))
    # What decides tau_i counts by its values: work, cohort, devices, the clients' sizes.
    steps = (plan.cohort, plan.work, plan.system, plan.asynchronous, np.sort(np.asarray(plan.dataset.sizes)))
    parts = {
        "versions": [__version__, jax.__version__],
        "device": [device.platform, device.device_kind, jax.device_count(), *([kind, cores, *models] if kind else [])],
        "flags": os.environ.get("XLA_FLAGS", ""),
        "threads": os.environ.get("NPROC", ""),
        "structure": re.sub(r" at 0x[0-9a-f]+", "", str(structure)),
        "shapes": [f"{jnp.result_type(leaf)}{np.shape(leaf)}" for leaf in leaves],
        "steps": fingerprint(steps),
        "candidates": [describe(layout) for layout in candidates],
        "seeds": seeds,
    }
    return digest(json.dumps(parts).encode())
