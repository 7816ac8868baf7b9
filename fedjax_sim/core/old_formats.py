"""What files of version 0.1.0, whose format is 1, leave out or say otherwise: said as files say it now.

Histories and sweeps of format 1 are read: what they do not say is what was always so in that version. Its checkpoints
are not: the states in them have another structure. A factory that is renamed, or an argument of one, would be mapped
here as well; so far all are called what they were called.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flax import traverse_util

from fedjax_sim.core.descriptions import all_registered, build, decode, encode, registered_factory
from fedjax_sim.core.keys import GENERATOR

VERSION = "0.1.0"
_EXPLODED = 1e3  # times max(|F(x_0)|, 1): the loss of a run that exploded


def record(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Makes the content of a history's or sweep's file what a file of format 2 would have, in place."""
    for name in ("divergences", "stops"):
        about.setdefault(name, [])
    if "params" not in about:  # the arrays were named by their paths
        paths = [name.removeprefix("params/") for name in arrays if name.startswith("params/")]
        leaves = [arrays.pop(f"params/{path}") for path in paths]
        numbers = {path: number for number, path in enumerate(paths)}
        about["params"] = numbers[""] if paths == [""] else traverse_util.unflatten_dict(numbers, sep="/")
        arrays.update({f"params/{number}": leaf for number, leaf in enumerate(leaves)})
    about["description"].setdefault("environment", {"fedjax_sim": VERSION})
    about["description"].pop("bounds", None)  # of other loops: they counted a survey among the local steps
    rows = {seed: row for row, seed in enumerate(about["seeds"])}
    stopped = {rows[seed]: number for seed, number, _ in about["stops"]}
    if "rounds/client_ids" in arrays:  # there was nobody, and not client 0
        ids = arrays["rounds/client_ids"] = arrays["rounds/client_ids"].copy()
        for row, number in stopped.items():
            ids[row, number:] = -1
    run = about["description"].get("run")
    if isinstance(run, dict) and "divergence_factor" not in run:
        rounds = {name.removeprefix("rounds/"): array for name, array in arrays.items() if name.startswith("rounds/")}
        new = used(rounds, about["description"], range(len(about["seeds"])), stopped)
        arrays.update({f"rounds/{name}": array for name, array in new.items()})
        usual = {"skip_nonfinite": False, "on_divergence": "record", "divergence_factor": _factor(arrays)}
        about["description"]["run"] = usual | run


def configuration(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What the file of a sweep's folder would say in format 2, to be compared with what ``now`` decides one.

    When a loss has exploded is not chosen by a sweep, and which random generator draws was not said: the usual one.
    """
    factor = now["run"]["divergence_factor"]
    generator = GENERATOR | saved.get("generator", {})
    return _completed({**saved, "run": {"divergence_factor": factor, **saved["run"]}, "generator": generator})


def _completed(node: Any) -> Any:
    """A description with the arguments that its factories have got since: by default they change nothing."""
    if isinstance(node, list):
        return [_completed(one) for one in node]
    if not isinstance(node, Mapping):
        return node
    made = {key: _completed(value) for key, value in node.items()}
    if isinstance(made.get("arguments"), dict) and made.get("name") in all_registered():
        make = registered_factory(made["name"])
        # A model's class has also what flax adds.
        known = {} if inspect.isclass(make) else inspect.signature(make).parameters
        usual = {name: encode(one.default) for name, one in known.items() if one.default is not one.empty}
        made["arguments"] = usual | made["arguments"]
    return made


def used(
    rounds: Mapping[str, np.ndarray],
    description: Mapping[str, Any],
    runs: Sequence[int],
    stopped: Mapping[int, int] | None = None,
) -> dict[str, np.ndarray]:
    """The records of which each round has what it used, where 0.1.0 recorded what it left to the next one.

    That is the mu of an adaptive FedProx. The first round's is in the description, and the last one's, which no round
    used, is dropped. Arrays are [runs, R]; ``runs`` are the numbers of a sweep's rows, and ``stopped`` has the round
    after which a row has no records.
    """
    first = _first_mu(description, runs)
    if first is None or "mu" not in rounds:
        return {}
    mu = rounds["mu"]
    found = np.concatenate([first[:, None].astype(mu.dtype), mu[:, :-1]], axis=1)
    for row, number in (stopped or {}).items():
        found[row, number:] = 0
    return {"mu": found}


def _first_mu(description: Mapping[str, Any], runs: Sequence[int]) -> np.ndarray | None:
    """The mu that an adaptive FedProx starts with in each run, float64[runs]; None of other methods."""
    for path, node in _factories(description.get("algorithm")):
        if node.get("name") == "algorithm.fedprox" and node["arguments"].get("adaptive"):
            points = build(description["space"]).points() if "space" in description else {}
            mu = np.asarray(points.get(".".join([*path, "mu"]), decode(node["arguments"]["mu"])), np.float64)
            return mu[np.asarray(runs) // len(description["seeds"])] if mu.ndim else np.full(len(runs), mu)
    return None


def _factories(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """What a description is made of, and where: the description itself, and those in the arguments."""
    if isinstance(node, Mapping) and isinstance(node.get("arguments"), Mapping):
        yield path, node
        for name, argument in node["arguments"].items():
            yield from _factories(argument, (*path, name))


def _factor(arrays: Mapping[str, np.ndarray]) -> float:
    """When a loss had exploded, as a multiple of |F(x_0)|: the largest one where runs began differently."""
    start = np.abs(arrays["metrics/loss"][:, 0].astype(float))
    start = start[np.isfinite(start) & (start > 0)]
    most = np.finfo(np.float32).max  # of a factor
    return min(_EXPLODED / float(start.min(initial=1.0)), float(most))
