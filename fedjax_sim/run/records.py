"""What a run has recorded, as files have it: arrays by name, ``"metrics/loss"``, beside JSON; and what must hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.core.values import is_real, shown, wrong_name
from fedjax_sim.reporting.divergence import KINDS
from fedjax_sim.reporting.recorded import LOSSES

# Integers that every run has of every round, and other records that are one number a round.
_COUNTS = ("cohort_size", "useful_steps", "computed_steps")
_NUMBERS = (*_COUNTS, "nonfinite_clients", "diverged", "duration", "virtual_time", "bytes_down", "bytes_up")
_LARGEST = 2**31  # rounds are int32 in a run's program


class Stop(NamedTuple):
    """After how many rounds a seed stopped before the last one, and why, in words."""

    round: int
    reason: str


class Entries:
    """What was recorded is an entry, ``history["loss"]``: an attribute of its name is an error that says so."""

    if not TYPE_CHECKING:  # for who checks types there is no attribute but those that are declared

        def __getattr__(self, name: str) -> Any:
            known = {**vars(self).get("metrics", {}), **vars(self).get("rounds", {})}  # there are none while it is read
            hint = f": what was recorded is an entry, history[{name!r}]" if name in known else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)


def unwritable(values: Any) -> np.ndarray:
    """The values for code of somebody else, who may work in place: what is recorded would change with them."""
    view = np.asarray(values).view()
    view.flags.writeable = False
    return view


def joined(**parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``joined(metrics={"loss": ...})`` is ``{"metrics/loss": ...}``."""
    return {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def part_of(arrays: Mapping[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """The arrays of one part of what :func:`joined` made."""
    return {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{part}/")}


def filled(numbers: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A tree of the arrays' numbers with the arrays of these names; each has its place."""
    wrong = [number for number in jax.tree.leaves(numbers) if type(number) is not int]
    _must(not wrong, f"its parameters have {shown(wrong[:1])} in the place of an array's number")
    found = jax.tree.map(lambda number: arrays[str(number)], numbers)
    unplaced = arrays.keys() - {str(number) for number in jax.tree.leaves(numbers)}
    _must(not unplaced, f"its parameters have no place for the array {shown(min(unplaced, default=''))}")
    return found


def check_record(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
    """Raises a ValueError where what was read has not the structure of a record, on which all rests that shows one."""
    seeds, evaluated, description = about["seeds"], arrays["evaluated"], about["description"]
    sound = isinstance(seeds, list) and seeds and all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
    _must(sound, f"its seeds are {shown(seeds)}, not a list of integers in [0, 2^32)")
    for name in ("seconds", "compile_seconds"):
        sound = type(about[name]) in (int, float) and 0 <= about[name] <= sys.float_info.max
        _must(sound, f"its {name} are {shown(about[name])}, not a number of at least 0")
    sound = isinstance(description, dict) and isinstance(description.get("algorithm", {}), dict)
    _must(sound, f"its description is {shown(description)}, not an object that has one for the algorithm")
    called = description.get("algorithm", {}).get("name", "run")
    _must(wrong_name(called) is None, f"its algorithm is called {shown(called)}: {wrong_name(called)}")
    _must(evaluated.ndim == 1 and evaluated.dtype.kind in "iu", "'evaluated' is no list of integers")
    numbers = evaluated.tolist()
    sound = numbers[:1] == [0] and len(numbers) > 1 and numbers == sorted(set(numbers)) and numbers[-1] < _LARGEST
    _must(sound, f"'evaluated' is {shown(numbers)}: it must start with 0 and increase")
    _check_arrays(arrays, len(seeds), len(numbers), numbers[-1])
    # Several runs of a sweep share a seed: what is said of one names it by its number.
    runs = description.get("runs", list(range(len(seeds))) if "space" in description else seeds)
    sound = isinstance(runs, list) and all(type(run) is int for run in runs)
    _must(sound, f"its runs are {shown(runs)}, not a list of integers")
    left = set(runs)
    for seed, number, what, clients, algorithm, *factor in about.get("divergences", ()):
        sound = _is_round(seed, number, left, 0, numbers[-1]) and what in KINDS and isinstance(algorithm, str)
        sound = sound and isinstance(clients, list) and all(type(one) is int for one in clients) and len(factor) <= 1
        sound = sound and all(one is None or type(one) is float for one in factor)
        said = shown([seed, number, what, clients, algorithm, *factor])
        kinds = ", ".join(KINDS)
        _must(sound, f"it has the divergence {said}, not [seed, round, one of {kinds}, clients, method, factor]")
    for seed, number, reason in about.get("stops", ()):
        sound = _is_round(seed, number, left, 1, numbers[-1]) and isinstance(reason, str)
        _must(sound, f"it has the stop {shown([seed, number, reason])}, not [seed, round, reason]")
        left.remove(seed)


def _must(sound: Any, wrong: str) -> None:
    if not sound:
        raise ValueError(wrong)


def _is_round(seed: Any, number: Any, seeds: set[int], low: int, high: int) -> bool:
    return type(seed) is type(number) is int and seed in seeds and low <= number <= high


def _check_arrays(arrays: Mapping[str, np.ndarray], seeds: int, evaluations: int, rounds: int) -> None:
    """Checks names, types and shapes."""
    axes = {"metrics": (seeds, evaluations), "rounds": (seeds, rounds), "params": (seeds,), "state": (seeds,)}
    for full, array in arrays.items():
        part, _, name = full.partition("/")
        shape, front = list(array.shape), axes.get(part, ())
        _must(array.shape[: len(front)] == front, f"{shown(full)} has the shape {shape}: the first axes are {front}")
        if part not in ("metrics", "rounds"):
            continue
        _must(wrong_name(name) is None, f"{shown(full)}: {wrong_name(name)}")
        _must(is_real(array.dtype), f"{shown(full)} is {array.dtype}, not real numbers")
        if (part == "metrics" and name in LOSSES) or (part == "rounds" and name in _NUMBERS):
            _must(array.ndim == 2, f"{shown(full)} has the shape {shape}, and it is one number at a time")
            _must(name not in _COUNTS or array.dtype.kind in "iu", f"{shown(full)} is {array.dtype}, not integers")
            _must(part == "metrics" or not (array < 0).any(), f"{shown(full)} has an entry below 0")
    _must(part_of(arrays, "metrics"), "it has no metric")
    for full in (f"rounds/{name}" for name in _COUNTS):
        _must(full in arrays, f"it has no {full}")
    both = part_of(arrays, "metrics").keys() & part_of(arrays, "rounds").keys()
    _must(not both, f"a metric and a record of every round are both called {shown(min(both, default=''))}")
