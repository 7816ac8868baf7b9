"""What a simulation recorded: arrays, a table, a plot, a file."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tokenize
import zipfile
import zlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import serialization, traverse_util

from fedjax_sim.reporting.files import write_atomically
from fedjax_sim.reporting.recorded import rounds_of
from fedjax_sim.values import suggest

_FORMAT = 1
# What numpy, zipfile, zlib and json raise for bytes that are not what they expect.
_DAMAGE = (
    AttributeError,
    EOFError,
    KeyError,
    IndexError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """The record of one ``simulate`` call.

    Attributes:
      evaluated: int[E], numbers of finished rounds at the evaluations; starts with 0.
      metrics: [seeds, E, ...] arrays by name: ``"loss"`` (training objective F), the task's metrics, ``"test_..."``.
      rounds: [seeds, R, ...] arrays by name: ``"cohort_size"``, ``"useful_steps"``, ``"computed_steps"``, and what the
        algorithm and the diagnostics recorded of every round.
      params: the final global models, leaves [seeds, ...].
      seeds: one number a run.
      seconds: wall time of all rounds and evaluations of all seeds, after compilation.
      compile_seconds: wall time of tracing and compiling (next to nothing when the program was there already).
      description: the resolved configuration, as ``describe`` writes it, and where it ran.
    """

    evaluated: np.ndarray
    metrics: dict[str, np.ndarray]
    rounds: dict[str, np.ndarray]
    params: Any
    seeds: list[int]
    seconds: float
    compile_seconds: float
    description: dict[str, Any]

    def __getitem__(self, name: str) -> np.ndarray:
        """The metric ``name``, [seeds, E, ...], or the record ``name`` of every round, [seeds, R, ...].

        Raises:
          KeyError: nothing of that name was recorded; the nearest names are listed.
        """
        for records in (self.metrics, self.rounds):
            if name in records:
                return records[name]
        raise KeyError(f"nothing called {name!r} was recorded: {suggest(name, [*self.metrics, *self.rounds])}")

    def final(self, name: str) -> np.ndarray:
        """The last value of a metric or record, [seeds, ...]."""
        return self[name][:, -1]

    def rounds_to(self, name: str, target: float) -> np.ndarray:
        """Rounds until a metric or record reaches a target: at most it for losses, at least it for all others.

        Returns:
          float[seeds]; inf where it was never reached.
        """
        values = self[name]
        reached = values <= target if name.endswith("loss") else values >= target
        first = np.where(reached.any(axis=1), rounds_of(self, name)[reached.argmax(axis=1)], np.inf)
        return np.asarray(first, dtype=float)

    @property
    def useful_ratio(self) -> float:
        """Gradients the clients needed over gradients the layout computed; 1 where nothing was wasted."""
        return float(self.rounds["useful_steps"].sum() / max(self.rounds["computed_steps"].sum(), 1))

    @property
    def algorithm(self) -> str:
        """The algorithm's registered name, without its kind."""
        described = self.description.get("algorithm", {})
        return str(described.get("name", described.get("opaque", "run"))).rpartition(".")[2]

    def table(self, *, target: float | None = None) -> str:
        """A table of the final values, mean and standard deviation over seeds; printable.

        Args:
          target: adds the rounds until the test (else training) accuracy, or the loss, reached this value.
        """
        from fedjax_sim.reporting.table import results_table

        return results_table({self.algorithm: self}, target=target)

    def plot(self, metric: str = "loss", ax: Any = None, *, round: int | None = None, seed: int = 0) -> Any:
        """Draws a metric or a record of every round; needs matplotlib.

        One number a round is a line with its band over seeds, quantiles (``"update_norms"``) are bands around their
        middle, a matrix (``"cosine_matrix"``) is a heat map of one round.

        Args:
          metric: its name.
          ax: matplotlib axes to draw on; None makes a figure.
          round: of a matrix, the round to draw, 1 to R; None for the last.
          seed: of quantiles and matrices, the position of the seed to draw.

        Returns:
          The axes.
        """
        from fedjax_sim.reporting import plots, round_plots

        if self[metric].ndim == 4:
            return round_plots.heat_map(self, metric, round=round, seed=seed, ax=ax)
        if self[metric].ndim == 3:
            return round_plots.bands(self, metric, seed=seed, ax=ax)
        return plots.curves({self.algorithm: self}, metric, ax=ax)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one ``.npz`` file, atomically and without pickle."""
        leaves: list[np.ndarray] = []
        structure = _numbered(serialization.to_state_dict(self.params), leaves)
        about: dict[str, Any] = {
            "format": _FORMAT,
            "seeds": self.seeds,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "description": self.description,
            "params": structure,
        }
        arrays = {
            "evaluated": self.evaluated,
            **{f"metrics/{name}": value for name, value in self.metrics.items()},
            **{f"rounds/{name}": value for name, value in self.rounds.items()},
            **{f"params/{number}": leaf for number, leaf in enumerate(leaves)},
        }
        # numpy's format knows no bfloat16 and the like: their names are kept beside
        about["dtypes"] = {name: str(value.dtype) for name, value in arrays.items() if value.dtype.kind == "V"}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Reads what :meth:`save` wrote; parameters come back as nested dictionaries (one array for one array).

        Raises:
          ValueError: not such a file, or damaged.
        """
        with open(path, "rb") as raw:
            content = io.BytesIO(raw.read())
        try:
            with np.load(content, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(arrays.pop("about").tobytes())
            if about["format"] != _FORMAT:
                raise ValueError(f"format {about['format']}")
            for name, dtype in about["dtypes"].items():
                arrays[name] = arrays[name].view(jnp.dtype(dtype))
            evaluated = arrays.pop("evaluated")
            parts: dict[str, dict[str, np.ndarray]] = {"metrics": {}, "rounds": {}, "params": {}}
            for name, value in arrays.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = value
            return cls(
                evaluated=evaluated,
                metrics=parts["metrics"],
                rounds=parts["rounds"],
                params=_filled(about["params"], parts["params"]) if "params" in about else _by_path(parts["params"]),
                seeds=about["seeds"],
                seconds=about["seconds"],
                compile_seconds=about["compile_seconds"],
                description=about["description"],
            )
        except _DAMAGE as error:
            raise ValueError(f"{os.fspath(path)} is not a result of fedjax_sim, or is damaged ({error})") from error


def _numbered(state: Any, leaves: list[np.ndarray]) -> Any:
    """The tree ``state`` with its arrays, moved to ``leaves``, replaced by their numbers there: plain JSON."""
    if isinstance(state, dict):
        return {key: _numbered(value, leaves) for key, value in state.items()}
    if state is None:
        return None
    leaves.append(np.asarray(state))
    return len(leaves) - 1


def _filled(structure: Any, leaves: dict[str, np.ndarray]) -> Any:
    """The inverse of :func:`_numbered`."""
    if isinstance(structure, dict):
        return {key: _filled(value, leaves) for key, value in structure.items()}
    return None if structure is None else leaves[str(structure)]


def _by_path(params: dict[str, np.ndarray]) -> Any:
    """Parameters of the first files, whose arrays are named by their paths."""
    return params[""] if set(params) == {""} else traverse_util.unflatten_dict(params, sep="/")
