"""``verify``: runs a saved result again, from the description it carries, and compares."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from fedjax_sim.checkpoints.differences import environment_changes
from fedjax_sim.descriptions import build, decode, opaque_parts
from fedjax_sim.history import History, is_sweep
from fedjax_sim.simulation import simulate
from fedjax_sim.values import check_real, shown

_PARTS = ("task", "cohort", "work", "batches", "layout")
_OPTIONAL = ("evaluate", "stop", "system", "asynchronous", "client_states")


class Difference(NamedTuple):
    """How one array came out.

    Attributes:
      name: ``"metrics/loss"``, ``"rounds/cohort_size"``, ``"params/..."``.
      equal: whether it is the same to the last bit.
      distance: max |a - b| / max(|a|, |b|) over the array's entries that are finite in both; inf where it has another
        shape, or NaN or infinity in other places.
    """

    name: str
    equal: bool
    distance: float


class Verification(NamedTuple):
    """What a second run says about a result.

    Attributes:
      differences: one an array.
      tolerance: the largest distance that passes; 0 asks for equality to the last bit.
      environment: which versions or device are others than those of the result, or None.
      models: whether the result has its final models; a sweep keeps them only if it is told to.
    """

    differences: list[Difference]
    tolerance: float
    environment: str | None
    models: bool = True

    @property
    def passed(self) -> bool:
        """Whether every array is within the tolerance."""
        return not self.failed

    @property
    def failed(self) -> list[Difference]:
        """The arrays that are not, the worst first."""
        far = [one for one in self.differences if not one.equal and one.distance > self.tolerance]
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
        lines += [f"differs: {one.name}, by {one.distance:.3g}" for one in self.failed[:10]]
        return "\n".join([*lines, f"verified ({within})" if self.passed else f"NOT verified ({within})"])


def verify(result: History, *, tolerance: float | None = None, progress: bool | None = None) -> Verification:
    """Runs a result again, from the description it carries, and compares every metric, record and parameter.

    Args:
      result: what ``simulate`` returned, or ``History.load`` read.
      tolerance: largest relative distance that passes; None asks for equality to the last bit where versions and
        device are those of the result, and for 1e-3 elsewhere: other compilers round differently, and training makes
        such differences grow.
      progress: as in ``simulate``.

    Raises:
      TypeError: not a History (a sweep's points are histories: ``sweep.at(0)``).
      ValueError: parts of the run were given as bare functions or arrays, so they cannot be made again (they are
        named); or it was computed in another precision than JAX has now.

    Example:
      >>> import fedjax_sim as fjs
      >>> history = fjs.simulate(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), fjs.datasets.quadratics(num_clients=3, dim=2, seed=0),
      ...     task=fjs.quadratic(), rounds=4, eval_every=2, batches=fjs.local.full_batch(),
      ...     cohort=fjs.cohort.uniform(2), work=fjs.local.steps(3),
      ... )
      >>> verify(history).passed
      True
    """
    if not isinstance(result, History):
        raise TypeError(f"verify was given {shown(result)}: give a History; those of a sweep are sweep.at(0), ...")
    check_real("verify(tolerance=...)", tolerance, low=0.0, optional=True)
    description = result.description
    if is_sweep(result):
        raise ValueError(
            "these are all runs of a sweep, which no single run can be compared with: verify its points, verify("
            "sweep.at(0)), ..."
        )
    missing = [key for key in ("algorithm", "dataset", "run", "environment") if key not in description]
    if missing:
        raise ValueError(f"this result has no description of its {missing[0]}: only what simulate returned can be run")
    opaque = opaque_parts({key: description[key] for key in ("algorithm", "dataset", "run")})
    if opaque:
        raise ValueError(
            f"this result cannot be run again: {'; '.join(opaque)} {'was' if len(opaque) == 1 else 'were'} given as "
            "bare objects, whose arguments were never recorded; use registered factories (fedjax_sim.factory, register "
            "and recipe make your own: docs/algorithms.md)"
        )
    precision = description["environment"].get("float")
    if precision not in (None, str(jnp.result_type(float))):
        switch = "JAX_ENABLE_X64=1" if precision == "float64" else "JAX_ENABLE_X64=0"
        raise ValueError(f"this result was computed in {precision}: set {switch} in the environment and verify again")
    again = _again(result, progress)
    elsewhere = environment_changes(description, again.description, ("in the result", "now"))
    if tolerance is None:
        tolerance = 1e-3 if elsewhere else 0.0
    if result.params is None:
        again = dataclasses.replace(again, params=None)
    return Verification(_compared(result, again), float(tolerance), elsewhere, result.params is not None)


def _again(result: History, progress: bool | None) -> History:
    run = result.description["run"]
    # A stored description of a part that this run did not have is None; older files lack the newer ones.
    optional = {name: build(run[name]) for name in _OPTIONAL if run.get(name) is not None}
    given: dict[str, Any] = {name: build(run[name]) for name in _PARTS}
    initial = run.get("initial_params")
    return simulate(
        build(result.description["algorithm"]),
        build(result.description["dataset"]),
        **given,
        **optional,
        rounds=run["rounds"],
        eval_every=run["eval_every"],
        diagnostics=[build(one) for one in run["diagnostics"]],
        skip_nonfinite=run.get("skip_nonfinite", False),
        on_divergence=run.get("on_divergence", "record"),
        initial_params=None if initial is None else decode(initial),
        seeds=result.seeds,
        progress=progress,
    )


def _compared(one: History, other: History) -> list[Difference]:
    arrays, others = _named(one), _named(other)
    found = []
    for name in {**arrays, **others}:
        a, b = arrays.get(name), others.get(name)
        if a is None or b is None or a.shape != b.shape:
            found.append(Difference(name, False, float("inf")))
            continue
        equal = a.dtype == b.dtype and a.tobytes() == b.tobytes()
        found.append(Difference(name, equal, 0.0 if equal else _distance(a, b)))
    return found


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(float), b.astype(float)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    gaps, sizes = np.abs(a - b)[finite], np.maximum(np.abs(a), np.abs(b))[finite]
    return float(gaps.max(initial=0.0) / max(sizes.max(initial=0.0), np.finfo(float).tiny))


def _named(history: History) -> dict[str, np.ndarray]:
    parts = {"evaluated": history.evaluated, "metrics": history.metrics, "rounds": history.rounds}
    flat = jax.tree_util.tree_flatten_with_path({**parts, "params": serialization.to_state_dict(history.params)})[0]
    return {"/".join(_key(key) for key in path): np.asarray(leaf) for path, leaf in flat}


def _key(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))
