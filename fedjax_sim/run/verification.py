"""``verify``: runs a saved result again, from the description it carries, and compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from fedjax_sim.core.descriptions import build, decode, encode
from fedjax_sim.core.keys import GENERATOR, generator, switch
from fedjax_sim.core.opaque import opaque_parts, part_at, with_parts
from fedjax_sim.core.trees import by_path
from fedjax_sim.core.values import check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.fingerprints import sizes_of
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.run.checkpoints.differences import differences, environment_changes, listed
from fedjax_sim.run.history import History, is_sweep
from fedjax_sim.run.records import Stop
from fedjax_sim.run.simulation import simulate

# Of a run's description: what is described itself (None, or missing in older files, where there was none), and not.
_PARTS = ("task", "cohort", "work", "batches", "layout", "evaluate", "stop", "system", "asynchronous", "client_states")
_PLAIN = ("rounds", "eval_every", "skip_nonfinite", "on_divergence", "divergence_factor")
_GIVEN = ("algorithm", "dataset", "run", "environment")  # of a description: what the run is made of, and where it was
_WORDS = ("in the result", "now")
_SHOWN = 10  # differences in a text
ELSEWHERE = 1e-3  # distances that pass between runs of other programs or devices


class Difference(NamedTuple):
    """How one array came out.

    Attributes:
      name: ``"metrics/loss"``, ``"rounds/cohort_size"``, ``"params/..."``.
      equal: whether it is the same to the last bit.
      distance: max |a - b| / max(|a|, |b|) over the entries that are finite in both; inf where shape, kind of numbers
        or places of NaN and infinity differ.
    """

    name: str
    equal: bool
    distance: float


class Verification(NamedTuple):
    """What a second run says about a result.

    Attributes:
      differences: one an array.
      tolerance: the largest distance that passes; 0 asks for equality to the last bit.
      environment: which versions, settings or device are others than those of the result, or were in a part of it that
        was resumed elsewhere; or None.
      models: whether the result has its final models; a sweep keeps them only if it is told to.
      said: what else the result says and this run does not, a line each: seeds, divergences, stops, and what its
        description says that follows from the rest.
      unsaid: entries of the environment and arrays that the result, which is older than they are, does not have.
    """

    differences: list[Difference]
    tolerance: float
    environment: str | None
    models: bool = True
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every array is within the tolerance, and all else the same."""
        return not self.failed and not self.said

    def __bool__(self) -> bool:
        """``passed``: ``assert fjs.verify(history)`` would hold of any result, since a tuple of entries is true."""
        return self.passed

    @property
    def failed(self) -> list[Difference]:
        """The arrays that are not, the worst first."""
        bits = self.tolerance == 0
        far = [one for one in self.differences if not one.equal and (bits or one.distance > self.tolerance)]
        return sorted(far, key=lambda one: -one.distance)

    def __str__(self) -> str:
        equal = sum(one.equal for one in self.differences)
        within = "to the last bit" if self.tolerance == 0 else f"to the last bit or within {self.tolerance:g}"
        lines = [f"{equal} of {len(self.differences)} arrays are equal to the last bit"]
        close = [one.distance for one in self.differences if not one.equal]
        if close:
            lines.append(f"the largest relative distance is {max(close):.3g}")
        if not self.models:
            lines.append("final models were not kept, so they are not compared")
        if self.environment:
            lines.append(f"computed elsewhere: {self.environment}")
        unrecorded = [name for name in self.unsaid if "/" in name or name == "divergences"]
        if unrecorded:
            lines.append(f"not recorded by the version that wrote it, so not compared: {', '.join(unrecorded)}")
        if self.unsaid and not self.passed:
            where = ", ".join(name for name in self.unsaid if name not in unrecorded)
            lines.append(f"perhaps computed elsewhere: the result does not say its {where}")
        lines += [f"differs: {one.name}, by {one.distance:.3g}" for one in self.failed[:_SHOWN]]
        lines += [f"differs: {line}" for line in self.said[:_SHOWN]]
        return "\n".join([*lines, f"verified ({within})" if self.passed else f"NOT verified ({within})"])


def verify(
    result: History,
    *,
    parts: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    progress: bool | None = None,
) -> Verification:
    """Runs a result again, from the description it carries, and compares all that it says but the time it took.

    That is every metric, record and parameter, the evaluated rounds, the seeds, ``divergences`` and ``stops``, and what
    follows from the description: the average, the objective, the bounds.

    Args:
      result: what ``simulate`` returned, or ``History.load`` read.
      parts: what cannot be made from the description, models and functions of your own, by its path:
        ``{"run.task.model": Net(32)}``; also what holds it, ``{"run.task": task}``. Each is checked against what the
        result knows of it, its fields and its source.
      tolerance: largest relative distance that passes; None asks for equality to the last bit where versions and
        device are those of the result, and for 1e-3 elsewhere, and of a sweep's points: other compilers and programs
        round differently, and training makes such differences grow. What is no array must always be the same.
      progress: as in ``simulate``.

    Raises:
      TypeError: not a History (a sweep's points are histories: ``sweep.at(0)``).
      ValueError: parts of the run cannot be made from its description and are not in ``parts`` (they are named), or
        are others there (the message says what differs); or it was computed in another precision, or drawn by another
        random generator, than JAX has now. A result that does not say its generator, an older one, is compared all
        the same.

    Example:
      >>> import fedjax_sim as fjs
      >>> history = fjs.simulate(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), fjs.datasets.quadratics(num_clients=3, dim=2, seed=0),
      ...     task=fjs.quadratic(), rounds=4, eval_every=2, batches=fjs.local.full_batch(),
      ...     cohort=fjs.cohort.full(), work=fjs.local.steps(3),
      ... )
      >>> verify(history).passed
      True
    """
    if not isinstance(result, History):
        raise TypeError(f"verify was given {shown(result)}: give a History; those of a sweep are sweep.at(0), ...")
    check_real("verify(tolerance=...)", tolerance, low=0.0, optional=True, host=True)
    description = result.description
    if is_sweep(result):
        raise ValueError("these are all runs of a sweep: verify its points, verify(sweep.at(0)), ...")
    for key in _GIVEN:
        if not isinstance(description.get(key), dict):
            raise ValueError(f"this result has no description of its {key}: only what simulate returned can be run")
    made = _with_parts({key: description[key] for key in ("algorithm", "dataset", "run")}, parts or {})
    opaque = opaque_parts(made)
    if opaque:
        paths = [part.partition(":")[0] for part in opaque]
        raise ValueError(
            f"this result cannot be run again: {'; '.join(opaque)} {'was' if len(opaque) == 1 else 'were'} given as "
            "bare objects, which cannot be made from its description: give them, "
            f"verify(result, parts={{{', '.join(f'{path!r}: ...' for path in paths)}}}), or use "
            "registered factories next time (fedjax_sim.factory, register and recipe make your own: docs/algorithms.md)"
        )
    where = description["environment"]
    _check_numbers(where)
    again = _again(result, made, progress)
    changes = environment_changes(description, again.description, _WORDS)
    earlier = [f"resumed elsewhere, {shown(where['earlier'])}"] if where.get("earlier") else []
    elsewhere = "; ".join(filter(None, [changes, *earlier])) or None
    if tolerance is None:
        tolerance = ELSEWHERE if elsewhere else 0.0
    models = bool(jax.tree.leaves(result.params))
    if not models:
        again = dataclasses.replace(again, params=result.params)
    compared = _compared(result, again)
    now = again.description["environment"]
    unsaid = [key for key in now if key not in where]
    # Another version may have recorded less, also of the runs in a sweep's folder that it has computed.
    if where.get("fedjax_sim") != now["fedjax_sim"] or any("fedjax_sim: " in str(one) for one in earlier):
        known = _named(result)
        unsaid += [one.name for one in compared if one.name not in known]
        compared = [one for one in compared if one.name in known]
        if again.divergences and not result.divergences:  # sweeps did not say any
            unsaid.append("divergences")
            again = dataclasses.replace(again, divergences=[])
    said = differences(_said(result), _said(again, of=description), _WORDS)
    said += _other_parts(description, again.description)
    return Verification(compared, float(tolerance), elsewhere, models, tuple(said), tuple(unsaid))


def _with_parts(description: dict[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """The description with the parts in their places; a ValueError where one is not what the result knows of it."""
    made = with_parts(description, parts)
    for path, part in parts.items():
        saved, given = part_at(description, path), encode(part)
        lines = _other_sizes(saved, part) if path == "dataset" else _unlike(saved, given, path)
        if lines:
            raise ValueError(f"parts[{path!r}] is not what the result was computed with: {listed(lines)}")
    return made


def _unlike(saved: Any, given: Any, path: str) -> list[str]:
    """What differs between a part and another; of bare objects in what is known of them, whatever they were put in."""
    if "opaque" in saved and "known" not in saved:
        return []  # an older result, or what cannot be known: its results will tell
    if "opaque" in saved and "opaque" in given:
        given = {**given, "opaque": saved["opaque"]}
    return differences({path: saved}, {path: given}, _WORDS)


def _other_sizes(saved: Any, part: Any) -> list[str]:
    """What differs in size between data that no recipe made and others; of their examples the results tell."""
    if "sizes" not in saved or not isinstance(part, FederatedDataset | HostDataset):
        return []
    return differences({"dataset": saved["sizes"]}, {"dataset": sizes_of(part)}, _WORDS)


def _other_parts(saved: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """What differs between the opaque parts of two descriptions of a run, in what is known of them."""
    paths = [part.partition(":")[0] for part in opaque_parts({key: saved[key] for key in ("algorithm", "run")})]
    pairs = {path: (part_at(saved, path), part_at(again, path)) for path in paths}
    return [line for path, (one, other) in pairs.items() for line in _unlike(one, other, path)]


def _check_numbers(where: Mapping[str, Any]) -> None:
    """Checks that a result's precision and random generator, if it says which, are those that JAX has now."""
    precision, drawn, now = where.get("float"), where.get("generator"), generator()
    if precision not in (None, str(jnp.result_type(float))):
        x64 = switch("jax_enable_x64", precision == "float64")
        raise ValueError(f"this result was computed in {precision}: set {x64} in the environment and verify again")
    lines = [] if drawn is None else differences({"generator": drawn}, {"generator": now}, _WORDS)
    if lines:
        known = drawn.items() if isinstance(drawn, dict) else ()
        switches = [
            switch(name, value)
            for name, value in known
            if name in GENERATOR and type(value) is type(GENERATOR[name]) and value != now[name]
        ]
        fix = f"set {' '.join(switches)} in the environment and verify again" if switches else "verify it there"
        raise ValueError(f"this result was drawn by another random generator ({'; '.join(lines)}): {fix}")


def _again(result: History, description: Mapping[str, Any], progress: bool | None) -> History:
    run = description["run"]
    if "initial_state" in run:
        raise ValueError("this result started in the state of another run, which it does not have: verify that one")
    given: dict[str, Any] = {name: build(run[name]) for name in _PARTS if run.get(name) is not None}
    return simulate(
        build(description["algorithm"]),
        build(description["dataset"]),
        **given,
        **{name: run[name] for name in _PLAIN},
        diagnostics=[build(one) for one in run["diagnostics"]],
        initial_params=decode(run.get("initial_params")),
        keep_best=run.get("keep_best"),
        evaluate_train=run.get("evaluate_train", True),
        seeds=result.seeds,
        progress=progress,
    )


def _said(history: History, of: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a history says besides its arrays and the time; of its description what ``of`` has too, an older one."""
    diverged: dict[str, list[str]] = {}
    for one in history.divergences:
        clients = f", clients {', '.join(map(str, one.clients))}" if one.clients else ""
        diverged.setdefault(f"seed {one.seed}", []).append(f"{one.algorithm}, round {one.round}, {one.what}{clients}")
    derived = (of or history.description).keys() & history.description.keys() - set(_GIVEN)
    return {
        "seeds": list(history.seeds),
        "divergences": {seed: "; ".join(each) for seed, each in diverged.items()},
        "stops": {f"seed {seed}": f"round {stop.round}, {_reason(stop)}" for seed, stop in history.stops.items()},
        "description": {key: history.description[key] for key in sorted(derived)},
    }


def _reason(stop: Stop) -> str:
    """Why a seed stopped; of a divergence, which is compared by itself, not in which words it was told."""
    return stop.reason.rpartition(": ")[0] if stop.reason.startswith("diverged: ") else stop.reason


def _compared(one: History, other: History) -> list[Difference]:
    arrays, others = _named(one), _named(other)
    found = []
    for name in {**arrays, **others}:
        a, b = arrays.get(name), others.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype.kind != b.dtype.kind:
            found.append(Difference(name, False, float("inf")))
            continue
        equal = a.dtype == b.dtype and a.tobytes() == b.tobytes()
        found.append(Difference(name, equal, 0.0 if equal else _distance(a, b)))
    return found


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    wide = complex if a.dtype.kind == "c" else float
    a, b = a.astype(wide), b.astype(wide)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    a, b = a[finite], b[finite]
    gaps, sizes = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
    return float(gaps.max(initial=0.0) / max(sizes.max(initial=0.0), np.finfo(float).tiny))


def _named(history: History) -> dict[str, np.ndarray]:
    parts = {"evaluated": history.evaluated, "metrics": history.metrics, "rounds": history.rounds}
    named = by_path({**parts, "params": serialization.to_state_dict(history.params)})
    return {name: np.asarray(leaf) for name, leaf in named.items()}
