"""The fastest layout of a run by measuring: ``layout="tune"`` and ``fjs.layout.tune``."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import build, describe, is_traced
from fedjax_sim.core.devices import affinity, processor
from fedjax_sim.core.files import cache_directory, json_object, read_json, remove_left_overs, write_atomically
from fedjax_sim.core.tabular import text_rows
from fedjax_sim.core.values import check_flag, shown
from fedjax_sim.core.version import __version__
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.fingerprints import digest, fingerprint
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.arguments import RunArguments, check_arguments, takes_run
from fedjax_sim.engine.checks import check_counts, check_seeds, resolve_seeds
from fedjax_sim.engine.client_states import ClientStates, OnDevice
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout.choose import choose_width
from fedjax_sim.engine.layout.factored import factored
from fedjax_sim.engine.layout.mesh import mesh
from fedjax_sim.engine.layout.pooled import pooled
from fedjax_sim.engine.layout.queue import lanes
from fedjax_sim.engine.layout.stacked import buckets, stacked
from fedjax_sim.engine.layout.turns import turns
from fedjax_sim.engine.layout_timing import Timing, label, timings
from fedjax_sim.engine.plan import Plan, apart, coordinates, layout_by_rule
from fedjax_sim.reporting.progress import progress_bar

_ALIKE = 1.03  # the rule's layout is kept where it is so near the best: two measurements would choose the same
_LIMIT = 2.0  # seconds of a candidate's rounds after which it is timed no more
_REPEATS = 5  # timed calls of a candidate, at most
_MOST = 256  # measurements that are kept; the oldest go first


class Tuning(NamedTuple):
    """The layout that was fastest, and the times of all candidates.

    Attributes:
      layout: to pass on: ``fjs.make_train(..., layout=tuning.layout)``.
      timings: of the candidates.
      cached: whether they are those of an earlier measurement.
    """

    layout: Layout
    timings: tuple[Timing, ...]
    cached: bool = False

    @property
    def milliseconds(self) -> float:
        """Of a round in the chosen layout."""
        return next(float(one.milliseconds or 0.0) for one in self.timings if one.layout == self.layout)

    def table(self) -> str:
        """One row per candidate, the fastest first: time, steps computed for each that was needed, compilation."""
        ranked = sorted(self.timings, key=lambda one: (one.milliseconds is None, one.milliseconds or 0.0))

        def column(name: str, digits: int, scale: float = 1.0) -> list[str]:
            values = [getattr(one, name) for one in ranked]
            return ["–" if value is None else f"{value * scale:.{digits}f}" for value in values]

        columns = [
            ("layout", [label(one.layout) + " *" * (one.layout == self.layout) for one in ranked]),
            ("ms a round", column("milliseconds", 3)),
            ("x best", column("milliseconds", 2, 1 / self.milliseconds)),
            ("computed / needed", column("computed", 2)),
            ("compile s", column("compile_seconds", 2)),
        ]
        if any(one.note for one in ranked):
            columns.append(("note", [one.note for one in ranked]))
        return "\n".join(line.rstrip() for line in text_rows(columns))

    def __str__(self) -> str:
        return f"{self.table()}\n\n* chosen{', as measured before' if self.cached else ''}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, for the record of a run and for a file."""
        timings = [{**one._asdict(), "layout": describe(one.layout)} for one in self.timings]
        return {"layout": describe(self.layout), "timings": timings, "cached": self.cached}

    @classmethod
    def from_json(cls, content: Any) -> Tuning:
        """What :meth:`to_json` wrote, as an earlier measurement; ValueError for something else."""
        try:
            timings = tuple(Timing(**{**one, "layout": build(one["layout"])}) for one in content["timings"])
            found = cls(build(content["layout"]), timings, cached=True)
            if not all(isinstance(one.layout, Layout) for one in timings):
                raise ValueError("another thing in the place of a layout")
            if found.layout not in [one.layout for one in timings] or not 0 < found.milliseconds < math.inf:
                raise ValueError("the chosen one was not measured")
            found.table()  # which has all numbers
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise ValueError(f"this is no measurement of layouts ({said})") from error
        return found


@takes_run("layout", layout="it measures layouts: give those to choose from, candidates=[fedjax_sim.layout.turns()]")
def tune(
    algorithm: Method,
    dataset: FederatedDataset | HostDataset,
    *,
    client_states: ClientStates | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    candidates: Sequence[Layout] | None = None,
    refresh: bool = False,
    progress: bool | None = None,
    **run: Unpack[RunArguments],
) -> Tuning:
    """Measures which layout runs this run's rounds fastest on this machine.

    Each candidate's program is compiled and computes a round to warm up; then they take turns with some rounds of the
    run's own cohorts, the same for all. Hopeless ones are given up early. The run itself is not touched: draws are
    functions of key and round, and the states are copies. What is measured goes forward; a derivative has a schedule of
    its own (docs/derivatives.md).

    The times are kept in ``layouts.json`` under ``$FEDJAX_SIM_CACHE``, else the user's cache directory, by device,
    versions, the program's structure and shapes and what decides the clients' steps. Other values of the algorithm's
    hyper-parameters, other seeds and other examples of the same sizes need no new measurement.

    Args:
      algorithm: what is run.
      dataset: whose data; of a :class:`fedjax_sim.datasets.HostDataset`, or of client states that are not on the
        device, what the first four rounds need is sent there.
      client_states: where client states are kept, and in which type; see :func:`fedjax_sim.simulate`.
      seeds: one seed or several; a CPU runs them in turn, so there the first is measured.
      initial_params: where all seeds start; None draws them from each seed.
      candidates: layouts to choose from, the most promising first; None for the rule's choice, turns, lanes of 4, 8, 16
        and 32 up to the cohort's size, stacked, buckets where there is no CPU, and factored and pooled where they can
        be. The first is chosen if it is within 3 % of the fastest.
      refresh: measure again although the times are known.
      progress: a progress bar; None shows one on a terminal only.
      **run: the arguments of :func:`fedjax_sim.make_train` up to ``asynchronous``. Evaluations are not measured: theirs
        are taken so that a run's arguments can be passed as they are.

    Returns:
      A :class:`fedjax_sim.layout.Tuning`: ``print`` shows the times, ``tuning.layout`` is the choice.

    Raises:
      TypeError, ValueError: bad input, before anything is compiled; also in a run of several processes.
      RuntimeError: no candidate could be measured.

    Example:
      >>> import fedjax_sim as fjs
      >>> run = dict(
      ...     task=fjs.quadratic(), rounds=4, cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ...     batches=fjs.local.full_batch(),
      ... )
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
      >>> algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
      >>> tuning = fjs.layout.tune(algorithm, data, **run, candidates=[fjs.layout.turns()])
      >>> train = fjs.make_train(**run, layout=tuning.layout)
    """
    asked, seed_list = check_arguments(run), check_seeds(seeds)
    check_flag("tune(refresh=...)", refresh)
    given = tuple(candidates) if isinstance(candidates, (list, tuple)) else ()
    if candidates is not None and not (given and all(isinstance(one, Layout) for one in given)):
        raise TypeError(
            f"tune(candidates=...) is {shown(candidates)}: it must be layouts, for instance [fedjax_sim.layout.turns(),"
            " fedjax_sim.layout.lanes(8)]"
        )
    if is_traced((algorithm, dataset, asked, initial_params)):
        raise TypeError("layout.tune was given traced values: measure outside jit, grad and vmap")
    plan = resolve_seeds(
        asked._replace(algorithm=algorithm), dataset, seed_list, run["rounds"], initial_params, client_states
    )
    return tuned(
        plan, dataset if isinstance(dataset, HostDataset) else None, run["rounds"], initial_params,
        candidates=tuple(dict.fromkeys(given)), refresh=refresh, progress=progress,
    )  # fmt: skip


def tuned(
    plan: Plan,
    host: HostDataset | None,
    rounds: int,
    initial_params: Any,
    *,
    candidates: Sequence[Layout] = (),
    refresh: bool = False,
    progress: bool | None = None,
) -> Tuning:
    """The fastest layout of a run that has been checked, one key a seed; measured, or recalled. See :func:`tune`."""
    if jax.process_count() > 1:
        raise ValueError(
            f"the layout cannot be measured in a run of {jax.process_count()} processes, each of which might choose "
            "another one: measure in one process, print(fedjax_sim.layout.tune(...)), and give all of them that layout"
        )
    plan = plan._replace(client_states=plan.client_states.in_program() if plan.keeps_clients else OnDevice())
    candidates = candidates or default_candidates(plan)
    candidates = [layout for layout in candidates if _counts(plan._replace(layout=layout), rounds)]
    together = jax.default_backend() != "cpu" and host is None and not plan.client_states.apart
    plan = plan if together else plan._replace(key=plan.key[:1])  # seeds that run in turn: the first stands for all
    key = _signature(plan, candidates, len(plan.key))
    with progress_bar(len(candidates), progress, "layout") as bar:
        found = None if refresh else recall(key)
        if found is None:
            bar.compiling()
            times = timings(plan, host, rounds, initial_params, candidates, _LIMIT, _REPEATS, bar.show)
            found = Tuning(_fastest(times), tuple(times))
            remember(key, found)
        said = "measured before" if found.cached else "the fastest"
        bar.show(len(candidates), f"{label(found.layout)}, {found.milliseconds:.3g} ms a round: {said}")
    return found


def default_candidates(plan: Plan) -> tuple[Layout, ...]:
    """What ``layout="tune"`` measures: with several devices a mesh of all of them too, with other layouts on each."""
    slots, devices = plan.slots, jax.device_count()
    alone = [turns(), *(lanes(count) for count in (4, 8, 16, 32) if count <= slots), stacked()]
    if jax.default_backend() != "cpu":  # buckets have fewer steps than stacked; on a CPU turns has the fewest
        alone.append(buckets())
    inner = [turns(), *(lanes(count) for count in (8, 32) if count * devices <= slots), stacked()]
    together = [mesh(inner=one) for one in inner] if devices > 1 else []
    layer = coordinates(plan)
    if not isinstance(layer, str):
        widths = {choose_width(layer.inputs, layer.outputs, math.inf, plan.dataset), plan.dataset.max_size}
        found = [factored(turns(), width) for width in widths if width is not None and width < layer.inputs - 1]
        alone, together = [*alone, *found], [*together, *(mesh(inner=one) for one in found if devices > 1)]
    if apart(plan) is None:
        alone, together = [*alone, pooled()], [*together, *([mesh(inner=pooled())] if devices > 1 else [])]
    return tuple(dict.fromkeys([layout_by_rule(plan, several=True), *alone, *together]))


def _counts(plan: Plan, rounds: int) -> bool:
    """Whether all that a run in this layout counts fits 32 bits."""
    try:
        check_counts(plan, rounds)
    except ValueError:
        return False
    return True


def _fastest(found: list[Timing]) -> Layout:
    """The first candidate, the rule's choice, if none is clearly faster; else the fastest."""
    times = {one.layout: one.milliseconds for one in found if one.milliseconds is not None}
    if not times:
        reasons = "; ".join(f"{label(one.layout)}: {one.note}" for one in found)
        raise RuntimeError(f"no layout could be measured ({reasons}): give the run a layout, or a smaller cohort")
    best, first = min(times, key=lambda layout: times[layout]), found[0].layout
    return first if times.get(first, math.inf) <= _ALIKE * times[best] else best


def _signature(plan: Plan, candidates: Sequence[Layout], seeds: int) -> str:
    """A checksum of all that decides how fast a round is: device, versions, program, steps; not of values.

    Functions are known by their names. A wrong guess costs time, never a result.
    """
    leaves, structure = jax.tree.flatten((plan._replace(layout=None, key=None), plan.params))  # type: ignore[arg-type]
    device = jax.devices()[0]
    # What decides tau_i counts by its values: work, cohort, devices, the clients' sizes.
    steps = (plan.cohort, plan.work, plan.system, plan.asynchronous, np.sort(np.asarray(plan.dataset.sizes)))
    parts = [
        __version__, jax.__version__, os.environ.get("XLA_FLAGS", ""), os.environ.get("NPROC", ""),
        device.platform, device.device_kind, jax.device_count(),
        [len(affinity()), *processor()] if device.platform == "cpu" else [],
        re.sub(r" at 0x[0-9a-f]+", "", str(structure)),
        [f"{jnp.result_type(leaf)}{np.shape(leaf)}" for leaf in leaves],
        fingerprint(steps), [label(layout) for layout in candidates], seeds,
    ]  # fmt: skip
    return digest(json.dumps(parts).encode())


def recall(key: str) -> Tuning | None:
    """The measurement of that key in the file of the user's cache; None if there is none."""
    try:
        found = _kept().get(key)
        return None if found is None else Tuning.from_json(found)
    except (OSError, RuntimeError, ValueError) as error:
        said = f"layouts.json, with the layouts measured before, is ignored, the next measurement replaces it: {error}"
        warnings.warn(said, stacklevel=2)
        return None


def remember(key: str, tuning: Tuning) -> None:
    """Keeps a measurement as the newest. Of two processes that write at once, one may lose its own."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        known = _kept()
    known.pop(key, None)
    kept = dict([*known.items(), (key, tuning.to_json())][-_MOST:])
    try:
        folder = cache_directory()
        if folder is None:
            return
        remove_left_overs(folder)
        write_atomically(folder / "layouts.json", json.dumps({"version": 2, "layouts": kept}, indent=1).encode())
    except (OSError, RuntimeError) as error:
        fix = "set FEDJAX_SIM_CACHE to a directory that can be written"
        warnings.warn(f"the measured layout cannot be kept for the next run ({error}): {fix}", stacklevel=2)


def _kept() -> dict[str, Any]:
    """All measurements by their keys, the oldest first; none where there is no file, or one of another version."""
    folder = cache_directory()
    if folder is None:
        return {}
    path = folder / "layouts.json"
    content = json_object(path, read_json(path, fix="delete it")) if os.path.lexists(path) else {}
    return json_object(path, content["layouts"]) if content.get("version") == 2 else {}
