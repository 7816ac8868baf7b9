"""Results as data frames, labelled arrays and csv files; imports pandas and xarray where they are used."""

from __future__ import annotations

import csv
import importlib
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.core.files import write_atomically
from fedjax_sim.core.values import check_choice
from fedjax_sim.reporting.recorded import ran, rounds_of

_EACH = {"evaluation": "metrics", "round": "rounds"}


def data_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """A ``pandas.DataFrame`` of columns by name."""
    return _library("pandas").DataFrame(dict(columns))


def write_csv(path: str | os.PathLike[str], columns: Mapping[str, np.ndarray]) -> None:
    """Writes columns by name to a file, atomically: a line of names, then one for each entry."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_atomically(path, text.getvalue().encode())


def data_set(
    dims: tuple[str, ...],
    metrics: Mapping[str, np.ndarray],
    rounds: Mapping[str, np.ndarray],
    coordinates: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> Any:
    """An ``xarray.Dataset`` of metrics [*dims, evaluation, ...] and records of rounds [*dims, t, ...]."""

    def labelled(name: str, values: np.ndarray, time: str) -> tuple[tuple[str, ...], np.ndarray]:
        more = values.ndim - len(dims) - 1
        return (*dims, time, *(f"{name}_{axis}" for axis in range(more))), values

    arrays = {name: labelled(name, values, "evaluation") for name, values in metrics.items()}
    arrays |= {name: labelled(name, values, "t") for name, values in rounds.items()}
    return _library("xarray").Dataset(arrays, coords=dict(coordinates), attrs=dict(attributes))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"to_{name} needs {name}: pip install 'fedjax_sim[frames]'") from error


def run_columns(run: Any, each: str) -> dict[str, np.ndarray]:
    """See :meth:`fedjax_sim.History.to_pandas`."""
    check_choice("to_pandas(each=...)", each, _EACH)
    records = {name: values for name, values in getattr(run, _EACH[each]).items() if values.ndim == 2}
    times = run.evaluated if each == "evaluation" else rounds_of(run, next(iter(records)))
    columns = {"seed": np.repeat(run.seeds, len(times)), "round": np.tile(times, len(run.seeds))}
    columns |= {name: values.ravel() for name, values in records.items()}
    there = ran(run, len(run.seeds), len(times)).ravel() if each == "round" else slice(None)
    return {name: values[there] for name, values in columns.items()}


def ran_rounds(run: Any) -> dict[str, np.ndarray]:
    """The records of rounds; where a seed had stopped they are zero, and NaN here."""
    found = {}
    for name, values in run.rounds.items():
        there = ran(run, *values.shape[:2])
        column = there.reshape(*there.shape, *[1] * (values.ndim - 2))
        found[name] = values if there.all() else np.where(column, values, np.nan)
    return found
