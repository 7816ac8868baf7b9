"""A run that is saved as it goes, and goes on from where it was saved."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core import devices
from fedjax_sim.core.descriptions import build, describe
from fedjax_sim.core.opaque import opaque_parts
from fedjax_sim.core.values import check_count, check_flag
from fedjax_sim.datasets.federated import FederatedDataset, whole
from fedjax_sim.datasets.fingerprints import dataset_fingerprint, fingerprint, known_again
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import on_host
from fedjax_sim.engine.client_states import ClientStates, OnDevice
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.run.best import Best, ended
from fedjax_sim.run.checkpoints.differences import by_names_alone, check_same, differences, environment_changes
from fedjax_sim.run.checkpoints.files import Checkpoint, read_about
from fedjax_sim.run.checkpoints.store import Caught, Interrupted, Store, interruptions, paths_in
from fedjax_sim.run.drivers import Driver
from fedjax_sim.run.recording import Recording
from fedjax_sim.run.records import Stop

_SHARE = 20  # a save may take a 20th of the time since the last one, where no ``every`` says when
_STATE, _BEST = "state", "best"  # before the names of states: where the run is, and the best so far
_STORED = "stored/"  # before the names of client states that are off the device


class Saving:
    """The checkpoints of one ``simulate`` call, which explains the arguments; a context in which signals are noted."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        configuration: dict[str, Any],
        *,
        rounds: int,
        eval_every: int,
        every: int | None,
        keep: int,
        allow_opaque: bool,
    ) -> None:
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"checkpoint is {directory!r}: give a directory, checkpoint='runs/fedavg'")
        if directory == "":  # it would be the current one
            raise ValueError("checkpoint is '': give a directory, checkpoint='runs/fedavg', or '.' for this one")
        if every is not None:
            check_count("every", every)
        check_flag("allow_opaque", allow_opaque)
        opaque = opaque_parts({key: configuration[key] for key in ("algorithm", "run")}, unknown=True)
        if opaque and not allow_opaque:
            raise ValueError(
                f"a run with checkpoints must be known by its description, and this has opaque parts "
                f"({'; '.join(opaque)}): give them plain values, use registered factories (fedjax_sim.register makes "
                "your own one), or allow_opaque=True if you see to it yourself that they are the same whenever it is "
                "resumed"
            )
        self._configuration, self._allow_opaque = configuration, allow_opaque
        self._rounds, self._eval_every, self._every = rounds, eval_every, every
        first = devices.together(lambda: Store(directory, keep) if devices.is_first() else None)
        self._store = first or Store(directory, keep, writes=False)
        self._caught = Caught()
        self._path = Path(directory).absolute()
        self._saved, self._saved_at, self._cost = 0, time.perf_counter(), 0.0
        self.earlier: list[str] = []  # what was another environment in rounds before, oldest first

    def __enter__(self) -> Self:
        self._context = interruptions()
        self._caught = self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._store.close()
        self._context.__exit__(*error)  # may deliver a signal, so it comes last

    def restore(self, driver: Driver, recording: Recording, best: Best | None) -> float | None:
        """Puts all back to the newest checkpoint: the seconds that went into it; None for none.

        A checkpoint of another run is refused, with what differs; one from elsewhere is taken with a warning.
        """
        found = devices.together(self._store.newest)
        rounds = devices.all_said([-1 if found is None else found.round])[:, 0]
        if len(set(rounds.tolist())) > 1:
            raise ValueError(
                f"the processes find checkpoints of different rounds ({', '.join(map(str, rounds))}; -1: none): the "
                "directory must be one that all of them see"
            )
        if found is None:
            return None
        self._check(found)
        saved = found.about["configuration"]
        self.earlier = list(saved.get("environment", {}).get("earlier", ()))
        changes = environment_changes(saved, self._configuration)
        if changes:
            words = ("before", f"from round {found.round} on")
            self.earlier.append(str(environment_changes(saved, self._configuration, words)))
            warnings.warn(
                f"{found.path} was written elsewhere ({changes}): results may differ by round-off", stacklevel=5
            )
        record = {name: array for name, array in found.arrays.items() if not name.startswith((_STATE, _BEST))}
        stops = {int(row): Stop(*stop) for row, stop in found.about["stops"].items()}
        recording.restore(record, stops)
        if best is not None:
            best.states = jax.tree.map(np.array, unflattened(ended(driver, clients=best.clients), found, _BEST))
        stored = {name.removeprefix(_STORED): found.arrays[name] for name in found.arrays if name.startswith(_STORED)}
        states = unflattened(driver.states(), found, _STATE)
        try:
            driver.restore(states, stored)
        except ValueError as error:
            raise ValueError(f"{found.path} cannot be resumed: {error}") from error
        self._path = found.path
        self._saved, self._saved_at = found.round, time.perf_counter()
        return float(found.about["seconds"])

    def after(self, driver: Driver, recording: Recording, best: Best | None, seconds: float, *, last: bool) -> None:
        """Called between chunks: saves where it is due or the ``last``, and ends the run that a signal has asked to."""
        # The first process's clock decides for all, and a signal to any.
        said = devices.all_said([int(self._due(recording.finished)), int(self._caught.signal or 0)])
        asked = int(said[:, 1].max())
        if last or asked or said[0, 0]:
            self._save(driver, recording, best, seconds)
        if asked and not last:
            raise Interrupted(signal.Signals(asked), recording.finished, self._rounds, self._path)

    def _due(self, finished: int) -> bool:
        if self._every is not None:
            return finished // self._every > self._saved // self._every
        return time.perf_counter() - self._saved_at >= _SHARE * self._cost

    def _save(self, driver: Driver, recording: Recording, best: Best | None, seconds: float) -> None:
        if recording.finished == self._saved:
            return
        states = jax.block_until_ready(driver.states())
        begun = time.perf_counter()
        environment = self._configuration["environment"] | ({"earlier": self.earlier} if self.earlier else {})
        about = {
            "configuration": self._configuration | {"environment": environment},
            "stops": {str(row): list(stop) for row, stop in recording.stops.items()},
            "seconds": seconds,
        }
        stored = {f"{_STORED}{name}": array for name, array in driver.stored().items()}
        flat = {name: on_host(plain(leaf)) for name, leaf in named(states, _STATE).items()}
        kept = {} if best is None else named(best.states, _BEST)
        arrays = recording.arrays() | flat | kept | stored
        self._path = devices.together(lambda: self._store.save(recording.finished, arrays, about))
        self._saved, self._saved_at = recording.finished, time.perf_counter()
        self._cost = self._saved_at - begun

    def _check(self, found: Checkpoint) -> None:
        both = found.about["configuration"], json.loads(json.dumps(self._configuration))
        named_alike = by_names_alone(*both)
        if self._allow_opaque:
            both, hint = named_alike, ""
        else:
            edited = not differences(*named_alike)
            hint = ", or allow_opaque=True if you have seen to it that what differs computes the same" if edited else ""
        check_same(found.path, *both, "run", hint)
        if found.round > self._rounds:
            raise ValueError(
                f"{found.path} has finished {found.round} rounds, and rounds={self._rounds} asks for fewer: give at "
                "least as many, or another directory"
            )
        if found.round < self._rounds and found.round % self._eval_every:
            raise ValueError(
                f"{found.path} ends after {found.round} rounds, no multiple of eval_every={self._eval_every}: a run "
                f"of {self._rounds} rounds would not have been evaluated there, so it cannot go on from it"
            )


def saved_layout(directory: Any) -> Layout | None:
    """The layout of the run that has checkpoints in a directory; None where there are none, or it cannot run here.

    A run whose layout was measured goes on in that layout, which is read before the rest of the checkpoint is.
    """
    if not isinstance(directory, (str, os.PathLike)):
        return None
    # The newest first; one that is damaged is reported by `Saving.restore`.
    for path in reversed(paths_in(Path(directory))):
        with contextlib.suppress(ValueError, TypeError, KeyError, OSError):
            layout = build(read_about(path)["configuration"]["environment"]["layout"])
            missing = isinstance(layout, OnMesh) and not layout.placement.parts  # raises where there are fewer devices
            if isinstance(layout, Layout) and not missing:
                return layout
    return None


def unflattened(like: Any, found: Checkpoint, start: str) -> Any:
    """The arrays of a checkpoint whose names begin with ``start``, in the structure of ``like``."""
    leaves: list[Any] = []
    other = "it was written by another version of the package or of the method, which cannot be resumed with this one"
    known = named(like, start)
    for name in found.arrays.keys() - known.keys():
        if name.startswith(start):
            raise ValueError(f"{found.path} has {name}, which this run has not: {other}")
    for name, leaf in known.items():
        numbers, saved = plain(leaf), found.arrays.get(name)
        if saved is None or saved.shape != numbers.shape or saved.dtype != numbers.dtype:
            raise ValueError(f"{found.path} has no {name} of {numbers.dtype}{list(numbers.shape)}: {other}")
        typed = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        leaves.append(jax.random.wrap_key_data(jnp.asarray(saved), impl=jax.random.key_impl(leaf)) if typed else saved)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def named(states: Any, start: str) -> dict[str, Any]:
    """The leaves by what they are called in a checkpoint."""
    flat = jax.tree_util.tree_flatten_with_path(states)[0]
    return {f"{start}{jax.tree_util.keystr(path)}": leaf for path, leaf in flat}


def plain(leaf: jax.Array) -> jax.Array:
    """Numbers that a file can hold: typed PRNG keys as their words."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


# Of a run's description: what may differ when it is resumed, or is compared by its checksum.
_APART = ("rounds", "initial_params", "layout", "layout_tuning", "client_states")


def configuration(
    description: dict[str, Any],
    seeds: list[int],
    dataset: FederatedDataset | HostDataset,
    initial_params: Any,
    client_states: ClientStates,
) -> dict[str, Any]:
    """All that decides what a run records but the number of rounds, as JSON."""
    rows = whole(dataset) if isinstance(dataset, FederatedDataset) else dataset
    # The directory of a disk decides nothing.
    states = {} if client_states == OnDevice() else {"client_states": describe(client_states.in_program())}
    return {
        "algorithm": description["algorithm"],
        "dataset": known_again(description["dataset"], dataset_fingerprint(rows)),
        "run": {key: value for key, value in description["run"].items() if key not in _APART} | states,
        "seeds": seeds,
        "initial_params": None if initial_params is None else fingerprint(initial_params),
        "float": description["environment"]["float"],
        "generator": description["environment"]["generator"],
        # Another layout changes results by round-off, as another machine does.
        "environment": {**description["environment"], "layout": description["run"]["layout"]},
    }
