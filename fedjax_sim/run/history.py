"""What a simulation recorded: arrays, a table, a plot, a file."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import serialization

from fedjax_sim.core import old_formats as earlier
from fedjax_sim.core.files import check_format, parsing, write_atomically
from fedjax_sim.core.tabular import in_notebook
from fedjax_sim.core.values import numeric_dtype, row_of, suggest
from fedjax_sim.datasets.reading.npz import MAX_BYTES, read_npz
from fedjax_sim.engine.plan import TrainState
from fedjax_sim.reporting import frames, recorded
from fedjax_sim.reporting.divergence import OF_IDS, Divergence
from fedjax_sim.run.records import Entries, Stop, check_record, filled, joined, part_of

if TYPE_CHECKING:
    from fedjax_sim.reporting.plots import Band

_FORMAT = 2


@dataclasses.dataclass(frozen=True, eq=False)
class History(Entries):
    """The record of one ``simulate`` call.

    Attributes:
      evaluated: int[E], numbers of finished rounds at the evaluations; starts with 0.
      metrics: [seeds, E, ...] arrays by name: ``"loss"`` (training objective F, penalty included), ``"data_loss"``
        (without the penalty, of tasks that have one), the task's metrics, ``"test_..."``.
      rounds: [seeds, R, ...] arrays by name, those of :class:`fedjax_sim.run.training.TrainResult`: ``"cohort_size"``,
        ``"useful_steps"``, ``"computed_steps"``, ``"nonfinite_clients"``..., and what the algorithm and the diagnostics
        recorded of every round.
      params: the final global models, leaves [seeds, ...]; with ``keep_best=metric`` those of each seed's best
        evaluation, after ``at_best("round", metric)`` rounds.
      seeds: one number a run.
      seconds: wall time of all rounds and evaluations of all seeds, after compilation.
      compile_seconds: wall time of tracing and compiling (next to nothing when the program was there already).
      description: the resolved configuration, as ``describe`` writes it, and where it ran.
      divergences: where seeds began to diverge (:class:`fedjax_sim.divergence.Divergence`); empty if none did.
      stops: by seed, when and why it stopped before the last round. From then on its metrics stay as they are, and its
        records of rounds are zero (ids of clients -1, nobody).
      state: with ``keep_state=True`` the final ``TrainState`` (``engine/plan.py``), or with ``keep_best=`` that of the
        best evaluation; host arrays [seeds, ...], random keys as their words: ``state.clients`` is what the method
        keeps for each client, leaves [seeds, N, ...] in the order of ``client_ids``. From a file, what was nested in it
        comes back as nested dictionaries. Else None.
      client_ids: with ``keep_state=True`` int[N], ascending; else None.
    """

    evaluated: np.ndarray
    metrics: dict[str, np.ndarray]
    rounds: dict[str, np.ndarray]
    params: Any
    seeds: list[int]
    seconds: float
    compile_seconds: float
    description: dict[str, Any]
    divergences: list[Divergence] = dataclasses.field(default_factory=list)
    stops: dict[int, Stop] = dataclasses.field(default_factory=dict)
    state: Any = None
    client_ids: np.ndarray | None = None

    def client(self, client_id: int) -> Any:
        """What the method keeps for the client of that id after the last round, leaves [seeds, ...].

        Raises:
          KeyError: no client has that id.
          ValueError: the run did not keep its state.
        """
        if self.state is None or self.client_ids is None:
            raise ValueError("client(...): the run did not keep what clients keep: simulate(..., keep_state=True)")
        row = row_of(client_id, self.client_ids)
        return jax.tree.map(lambda leaf: leaf[:, row], self.state.clients)

    def __getitem__(self, name: str) -> np.ndarray:
        """The metric ``name``, [seeds, E, ...], or the record ``name`` of every round, [seeds, R, ...].

        ``"data_loss"`` of a run whose task has no penalty is its ``"loss"``; likewise ``"test_data_loss"``.

        Raises:
          KeyError: nothing of that name was recorded; the nearest names are listed.
        """
        name = recorded.recorded_as(self, name)
        for records in (self.metrics, self.rounds):
            if name in records:
                return records[name]
        summed = f" (history.{name} is a sum of records)" if name in ("virtual_time", "bytes") else ""
        raise KeyError(f"nothing called {name!r} was recorded{summed}: {suggest(name, [*self.metrics, *self.rounds])}")

    def final(self, name: str) -> np.ndarray:
        """The last value of a metric or record, [seeds, ...]; of a seed that stopped, a record's last before that."""
        values = self[name]
        if recorded.recorded_as(self, name) in self.metrics:
            return values[:, -1]
        ends = [self.stops[seed].round - 1 if seed in self.stops else -1 for seed in self.seeds]
        return values[np.arange(len(values)), ends]

    def at_best(self, name: str, metric: str) -> np.ndarray:
        """One metric at each seed's best evaluation by another: ``history.at_best("test_accuracy", "test_loss")``.

        The best is the lowest of losses, errors and spreads, else the highest; of equals the first. NaN is never the
        best, and no value of a model whose loss is not finite is.

        Args:
          name: a metric; ``"round"`` is the number of finished rounds.
          metric: by which evaluations are compared, one number a seed and evaluation.

        Returns:
          [seeds, ...]; of seeds without a single number by which to compare, NaN.

        Raises:
          KeyError: no metric of that name; a record of rounds has no evaluations.
          ValueError: ``metric`` is not one number a seed and evaluation.
        """
        of = recorded.measured(self, metric).astype(float)
        if of.shape[1:] != self.evaluated.shape:
            raise ValueError(
                f"at_best(metric={metric!r}): its values have the shape {of.shape}, and must be one number for each "
                "seed and evaluation"
            )
        best = recorded.best_evaluations(self.metrics, recorded.recorded_as(self, metric))
        if name == "round":
            values = np.broadcast_to(self.evaluated, of.shape)
        else:
            known = recorded.recorded_as(self, name)
            if known not in self.metrics:
                raise KeyError(f"at_best({name!r}): no metric has this name: {suggest(name, ['round', *self.metrics])}")
            values = self.metrics[known]
        found = np.asarray(values)[np.arange(len(of)), best]
        lost = np.isnan(of).all(axis=1)
        return np.where(lost.reshape(-1, *[1] * (found.ndim - 1)), np.nan, found) if lost.any() else found

    def rounds_to(self, name: str, target: float) -> np.ndarray:
        """Rounds until a metric or record reaches a target: at most it for losses, errors, spreads, else at least it.

        Metrics of a model whose loss is not finite reach nothing, nor do records of rounds after a seed has stopped.

        Returns:
          float[seeds]; inf where it was never reached.

        Raises:
          ValueError: not one number a seed and evaluation or round.
        """
        at, (values, _) = np.asarray(recorded.rounds_of(self, name)), recorded.held(self, name)
        return recorded.first_reached(values, at, target, falling=recorded.less_is_better(name))

    def time_to(self, name: str, target: float) -> np.ndarray:
        """Virtual seconds until a metric or record reaches a target, as :meth:`rounds_to`.

        Between evaluations nothing is known, so it is the time of the first evaluation that found the target reached.

        Returns:
          float[seeds]; inf where it was never reached.

        Raises:
          ValueError: the run has no clock, or not one number a seed and evaluation or round.
        """
        at, (values, _) = recorded.positions(self, name, "virtual_time"), recorded.held(self, name)
        return recorded.first_reached(values, at, target, falling=recorded.less_is_better(name))

    @property
    def virtual_time(self) -> np.ndarray:
        """Virtual seconds since the start at each evaluation, float64[seeds, E].

        Raises:
          ValueError: the run has no clock: it had neither a ``system=`` nor ``diagnostics.virtual_time(...)``.
        """
        return recorded.clock(self, "virtual_time")[:, self.evaluated]

    @property
    def bytes(self) -> np.ndarray:
        """Bytes sent and received by all clients since the start at each evaluation, float64[seeds, E].

        Raises:
          ValueError: the run had neither a ``system=`` nor ``diagnostics=["communication"]``.
        """
        return recorded.clock(self, "bytes")[:, self.evaluated]

    @property
    def useful_ratio(self) -> float:
        """Gradients the clients needed over gradients the layout computed; 1 where nothing was wasted."""
        useful, computed = (self.rounds[f"{which}_steps"].sum() for which in ("useful", "computed"))
        return float(useful / computed) if computed else 1.0

    @property
    def algorithm(self) -> str:
        """The algorithm's registered name, without its kind."""
        described = self.description.get("algorithm", {})
        return str(described.get("name", described.get("opaque", "run"))).rpartition(".")[2]

    def table(self, *, target: float | None = None, form: str = "text", **columns: Any) -> str:
        """A table of the final values, mean and standard deviation over seeds; printable.

        Args:
          target: adds the rounds until the test (else training) accuracy, or the loss, reached this value.
          form: ``"text"``, ``"markdown"``, ``"latex"``, ``"csv"`` or ``"html"``.
          columns: ``metrics`` and ``band`` of :func:`fedjax_sim.reporting.results_table`.
        """
        from fedjax_sim.reporting.table import results_table

        return results_table({self.algorithm: self}, target=target, form=form, **columns)

    def __repr__(self) -> str:
        from fedjax_sim.reporting.table import in_short

        return f"History({self.algorithm}, {in_short(self)})"

    def _repr_html_(self) -> str:
        return in_notebook(self, self.table(form="html"))

    def _ipython_key_completions_(self) -> list[str]:
        return [*self.metrics, *self.rounds]

    def plot(
        self,
        metric: str = "loss",
        ax: Any = None,
        *,
        against: str = "round",
        band: Band = "range",
        round: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Draws a metric or a record of every round; needs matplotlib.

        One number a round is a line with its band over seeds, a value for each client (``"test_client_accuracy"``) is
        the distribution over the clients, quantiles (``"update_norms"``) are bands around their middle, a matrix
        (``"cosine_matrix"``) is a heat map of one round.

        Args:
          metric: its name.
          ax: matplotlib axes to draw on; None makes a figure.
          against: of one number a round, what the horizontal axis is: ``"round"``, ``"virtual_time"`` or ``"bytes"``.
          band: of one number a round, as in :func:`fedjax_sim.reporting.curves`.
          round: of a matrix, the round to draw, 1 to R; of clients' values an evaluated one; None for the last.
          seed: of quantiles and matrices, the position of the seed to draw.

        Returns:
          The axes.
        """
        from fedjax_sim.reporting import client_plots, plots

        if metric in OF_IDS:
            raise ValueError(f"plot({metric!r}): these are ids of clients, which have no curve: history[{metric!r}]")
        metric = recorded.recorded_as(self, metric)
        if self[metric].ndim == 4:
            return client_plots.heat_map(self, metric, round=round, seed=seed, ax=ax)
        if self[metric].ndim == 3 and metric in self.metrics:
            return client_plots.distributions({self.algorithm: self}, metric, ax=ax, round=round)
        if self[metric].ndim == 3:
            return client_plots.bands(self, metric, seed=seed, ax=ax)
        return plots.curves({self.algorithm: self}, metric, ax=ax, against=against, band=band)

    def to_pandas(self, *, each: str = "evaluation") -> Any:
        """A ``pandas.DataFrame`` with a line for each seed and evaluation, or each seed and round; needs pandas.

        Args:
          each: ``"evaluation"`` for the columns ``"seed"``, ``"round"`` and every metric that is one number;
            ``"round"`` for those of the records of every round, 1 to R, or to that after which a seed stopped.

        Raises:
          ImportError: pandas is not installed.
          ValueError: another value of ``each``.
        """
        return frames.data_frame(frames.run_columns(self, each))

    def to_csv(self, path: str | os.PathLike[str], *, each: str = "evaluation") -> None:
        """Writes the lines of :meth:`to_pandas` to a csv file, atomically; needs no pandas."""
        frames.write_csv(path, frames.run_columns(self, each))

    def to_xarray(self) -> Any:
        """An ``xarray.Dataset`` of all metrics and records; needs xarray.

        Metrics have the dimensions ``"seed"`` and ``"evaluation"`` (with the coordinate ``"round"``), records
        ``"seed"`` and ``"t"``, the rounds 0 to R - 1, NaN where a seed had stopped; further axes go by the array.

        Raises:
          ImportError: xarray is not installed.
        """
        coordinates = {"seed": ("seed", self.seeds), "round": ("evaluation", self.evaluated)}
        attributes = {"algorithm": self.algorithm, "seconds": self.seconds}
        return frames.data_set(("seed",), self.metrics, frames.ran_rounds(self), coordinates, attributes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one ``.npz`` file, atomically and without pickle; names with .csv, .json are refused."""
        others = {".csv": "a csv is to_csv(path)", ".json": "json is to_pandas().to_json(path)"}
        if (suffix := Path(path).suffix.lower()) in others:
            raise ValueError(f"save({os.fspath(path)!r}): it writes .npz files, of everything: {others[suffix]}")
        params, nodes = jax.tree.flatten(serialization.to_state_dict(self.params))
        state, state_nodes = jax.tree.flatten(_by_names(self.state))
        about: dict[str, Any] = {
            "format": _FORMAT,
            "seeds": self.seeds,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "description": self.description,
            "divergences": self.divergences,
            "stops": [[seed, *stop] for seed, stop in self.stops.items()],
            "params": jax.tree.unflatten(nodes, range(len(params))),
        }
        if self.state is not None:
            about["state"] = jax.tree.unflatten(state_nodes, range(len(state)))
        arrays = {
            "evaluated": self.evaluated,
            **joined(metrics=self.metrics, rounds=self.rounds),
            **{f"params/{number}": np.asarray(leaf) for number, leaf in enumerate(params)},
            **{f"state/{number}": np.asarray(leaf) for number, leaf in enumerate(state)},
            **({} if self.client_ids is None else {"client_ids": self.client_ids}),
        }
        # numpy's format knows no bfloat16 and the like: their names are kept beside
        about["dtypes"] = {name: str(value.dtype) for name, value in arrays.items() if value.dtype.kind == "V"}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> History:
        """Reads what :meth:`save` wrote; parameters come back as nested dictionaries (one array for one array).

        Files of version 0.1.0 are read too; what they recorded gets the names and meanings of this version.

        Args:
          path: the file. Nothing in it is executed.
          max_bytes: most bytes of all arrays together, 8 GiB by default; a file may be a thousand times smaller.

        Raises:
          FileNotFoundError: no such file, or something else than a file.
          ValueError: not such a file, damaged, more than ``max_bytes``, of a later version of this package, or a sweep.
        """
        record = read_record(path, max_bytes=max_bytes)
        if is_sweep(record):
            count = len(record.seeds) // max(len(record.description["seeds"]), 1)
            raise ValueError(
                f"{os.fspath(path)} is no run but a sweep of {count} points: read it with "
                "fedjax_sim.sweeps.Sweep.load, whose at(0), at(1), ... are the histories of the points; `fedjax-sim "
                "report` and `show` take it as it is"
            )
        return record


def read_record(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> History:
    """As :meth:`History.load`, and also the runs of a sweep, one "seed" a run, with their :func:`is_sweep`."""
    place, wrong = Path(path), "is not a result of fedjax_sim, or is damaged"
    try:
        arrays = read_npz(place, kinds="biufcV", max_bytes=max_bytes)
    except ValueError as error:
        raise ValueError(f"{place} {wrong}: {str(error).removeprefix(str(place)).lstrip(': ')}") from error
    with parsing(place, wrong, "give a file that History.save wrote"):
        about = json.loads(arrays.pop("about").tobytes())
        check_format(place, about["format"], _FORMAT)
        for name, given in about["dtypes"].items():
            array, dtype = arrays[name], numeric_dtype(given)
            if array.dtype.type is not np.void or array.dtype.itemsize != dtype.itemsize:
                raise ValueError(f"it has an array of {array.dtype} as one of {dtype}")
            arrays[name] = array.view(dtype)
        if any(array.dtype.type is np.void for array in arrays.values()):
            raise ValueError("it has an array of an unknown type")
        check_record(arrays, about)
        if about["format"] == 1:
            earlier.record(arrays, about)
        return History(
            evaluated=arrays["evaluated"],
            metrics=part_of(arrays, "metrics"),
            rounds=part_of(arrays, "rounds"),
            params=filled(about["params"], part_of(arrays, "params")),
            seeds=about["seeds"],
            seconds=float(about["seconds"]),
            compile_seconds=float(about["compile_seconds"]),
            description=about["description"],
            divergences=[
                Divergence(seed, number, what, tuple(clients), *rest)
                for seed, number, what, clients, *rest in about["divergences"]
            ],
            stops={seed: Stop(*stop) for seed, *stop in about["stops"]},
            state=TrainState(**filled(about["state"], part_of(arrays, "state"))) if "state" in about else None,
            client_ids=arrays.get("client_ids"),
        )


def is_sweep(record: History) -> bool:
    """Whether a record holds all runs of a sweep, by its description."""
    return "space" in record.description and isinstance(record.description.get("seeds"), list)


def _by_names(tree: Any) -> Any:
    """A tree as nested dictionaries, by the names of fields, keys and places."""
    if tree is None or jax.tree_util.all_leaves([tree]):
        return tree
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    return {jax.tree_util.keystr(path, simple=True): _by_names(child) for path, child in children}
