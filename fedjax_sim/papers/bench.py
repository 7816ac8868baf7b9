"""What an experiment is given: its size, its seeds, and runs that are stored and shared."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import describe
from fedjax_sim.core.keys import GENERATOR, generator
from fedjax_sim.core.version import __version__
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.fingerprints import dataset_fingerprint, digest, fingerprint
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.layout import turns
from fedjax_sim.models import MLP
from fedjax_sim.papers.experiment import Size
from fedjax_sim.run.history import History
from fedjax_sim.run.simulation import simulate
from fedjax_sim.studies.sweeps.result import Sweep
from fedjax_sim.studies.sweeps.running import sweep
from fedjax_sim.studies.sweeps.space import Space

T = TypeVar("T")

SMOKE_ROUNDS, SMOKE_CLIENTS = 3, 8  # the most of a smoke size, whose only aim is that every line is executed


class Bench:
    """Runs methods for an experiment, at one size.

    Every run is stored under a checksum of all that decides it (algorithm, data, setting, seeds, precision, random
    generator, version), so that figures which are drawn from the same runs share them, and what was interrupted goes on
    where it was.

    Args:
      size: of the experiment.
      seeds: their number; the same for all methods, which therefore see the same cohorts, stragglers, batches and
        initial models (common random numbers).
      runs: folder for finished runs.
      show: what to do with each line of text.

    Attributes:
      recorded: the record of every run of this experiment by its label, for the raw results.
      data: in words, which data was used.
    """

    def __init__(self, size: Size, seeds: int, runs: Path, show: Callable[[str], None] = print) -> None:
        self.size: Size = size
        self.seeds = range(seeds)
        self.show = show
        self.recorded: dict[str, History | Sweep] = {}
        self.data: list[str] = []
        self._runs = runs

    def choose(self, *, smoke: T, cpu: T, paper: T) -> T:
        """The value for this size."""
        return {"smoke": smoke, "cpu": cpu, "paper": paper}[self.size]

    def load(
        self, what: str, real: Callable[[], FederatedDataset], nearest: Callable[[], FederatedDataset], name: str
    ) -> FederatedDataset:
        """Real data where it is; else the nearest data set that needs no file, and a line that says so.

        Args:
          what: the real data in words: "EMNIST letters".
          real: loads it.
          nearest: makes the other; at the smoke size it is always taken.
          name: the other in words: "scikit-learn's digits".

        Raises:
          FileNotFoundError: at the paper's size there is no other; the message says how to come by the files.
        """
        made, words = None, f"{what} (real)"
        if self.size == "smoke":
            made, words = nearest(), f"{name} in place of {what}: the smoke size reads no files"
        else:
            try:
                made = real()
            except FileNotFoundError as error:
                if self.size == "paper":
                    raise
                words = f"{name} in place of {what}: {error}"
        if words not in self.data:
            self.data.append(words)
            self.show(f"data: {words}")
        return nearest() if made is None else made

    def model(self, real: Any, num_outputs: int, hidden: tuple[int, ...] = (16,)) -> Any:
        """The experiment's model; at the smoke size a small MLP in its place, which compiles in a second."""
        return MLP(num_outputs, hidden) if self.size == "smoke" else real

    def simulate(
        self, label: str, algorithm: Method, dataset: FederatedDataset | HostDataset, **setting: Any
    ) -> History:
        """:func:`fedjax_sim.simulate` with the bench's seeds, unless the run is stored already.

        Args:
          label: of the run in the raw results, unique in its experiment; only letters, digits and "-_.,=() ".
          algorithm: as for ``simulate``, as all that follows.
          dataset: whose data.
          **setting: keywords of ``simulate``; ``keep_params=True`` keeps the final models.

        Returns:
          The history, without final models unless they are kept.
        """
        setting, keep = self._checked(dataset, setting)
        place = self._place("run", label, algorithm, dataset, setting, keep)
        stored = place.with_name(f"{place.name}.npz")  # no with_suffix: labels have dots
        if stored.exists():
            history = History.load(stored)
        else:
            history = simulate(algorithm, dataset, **_on_one_device() | setting)
            history = history if keep else dataclasses.replace(history, params={})
            history.save(stored)
            self._tell(label, history.seconds, history.compile_seconds)
        return self._record(label, history)

    def sweep(
        self,
        label: str,
        algorithm: Method,
        dataset: FederatedDataset,
        space: Space,
        *,
        chunk: int | None = None,
        **setting: Any,
    ) -> Sweep:
        """:func:`fedjax_sim.sweep` with the bench's seeds; runs that are stored already are not run again.

        All points and seeds are one program and shared out over all devices, which on a CPU of several cores is the
        fastest way to run many small models.

        Args:
          label: as for :meth:`simulate`.
          algorithm: as for ``sweep``, as all that follows.
          dataset: whose data.
          space: the points.
          chunk: the most runs at once, where they go side by side; not part of what decides a run.
          **setting: other keywords of ``sweep``.
        """
        setting, keep = self._checked(dataset, setting)
        folder = self._place("sweep", label, algorithm, dataset, setting | {"space": space}, keep)
        new = not folder.exists()
        result = sweep(algorithm, dataset, space, **setting, keep_params=keep, chunk=chunk, resume=folder)
        if new:
            self._tell(label, result.seconds, result.compile_seconds)
        return self._record(label, result)

    def _checked(self, dataset: FederatedDataset | HostDataset, setting: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        setting = {"seeds": self.seeds} | setting
        keep = bool(setting.pop("keep_params", False))
        if self.size == "smoke" and (setting["rounds"] > SMOKE_ROUNDS or dataset.num_clients > SMOKE_CLIENTS):
            raise ValueError(
                f"a smoke size has at most {SMOKE_ROUNDS} rounds and {SMOKE_CLIENTS} clients, not "
                f"{setting['rounds']} and {dataset.num_clients}: give smaller ones by bench.choose(smoke=...)"
            )
        return setting, keep

    def _record(self, label: str, record: T) -> T:
        if label in self.recorded:
            raise ValueError(f"two runs of one experiment have the label {label!r}: give each one of its own")
        self.recorded[label] = record  # type: ignore[assignment]
        return record

    def _tell(self, label: str, seconds: float, compiling: float) -> None:
        self.show(f"{label}: {seconds:.1f} s, compiling {compiling:.1f} s")

    def _place(
        self, kind: str, label: str, algorithm: Method, dataset: Any, setting: dict[str, Any], keep: bool
    ) -> Path:
        decides = {
            "version": __version__,
            "algorithm": describe(algorithm),
            "data": dataset_fingerprint(dataset),
            "setting": {name: _plain(value) for name, value in setting.items()},
            "arrays": fingerprint([leaf for leaf in jax.tree.leaves((algorithm, setting)) if hasattr(leaf, "dtype")]),
            "keep_params": keep,
            "precision": str(jax.numpy.result_type(float)),
        }
        if generator() != GENERATOR:
            decides["generator"] = generator()
        if jax.default_backend() != "cpu":  # another machine's results are near, not equal
            decides["backend"] = jax.default_backend()
        key = digest(json.dumps(decides, sort_keys=True).encode())
        stem = "".join(letter if letter.isalnum() or letter in "-_.,=" else "-" for letter in label)
        # Functions are known by their names alone: the label tells two apart, and such runs are not shared.
        known = "opaque" not in json.dumps(decides)
        return self._runs / (f"{kind}-{key}" if known else f"{kind}-{stem}-{key}")


def rounds_in_words(reached: float, limit: int) -> str:
    """A number of rounds as tables of papers print it: "77", or "1000+" where the target was not reached."""
    return f"{limit}+" if math.isinf(reached) else f"{reached:.0f}"


def _on_one_device() -> dict[str, Any]:
    """On a CPU, the layout that uses one of its devices: the same results to the last bit whatever number it has."""
    return {"layout": turns()} if jax.default_backend() == "cpu" else {}


def _plain(value: Any) -> Any:
    """What a checksum needs to know of an argument, as JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, range)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array, dict)):
        return fingerprint(value)
    return describe(value)
