"""Parkinsons telemonitoring: regression with one client for each patient."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.files import parsing, read_text
from fedjax_sim.core.values import INT32_MAX, check_flag, shown, suggest
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.places import check_sha256, find
from fedjax_sim.datasets.split import held_out

_GET = "Get it from https://archive.ics.uci.edu/dataset/189/parkinsons+telemonitoring"
_SHA256 = "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39"
_SUBJECT, _TARGETS = "subject#", ["motor_UPDRS", "total_UPDRS"]
_COLUMNS = [
    _SUBJECT, "age", "sex", "test_time", *_TARGETS, "Jitter(%)", "Jitter(Abs)", "Jitter:RAP", "Jitter:PPQ5",
    "Jitter:DDP", "Shimmer", "Shimmer(dB)", "Shimmer:APQ3", "Shimmer:APQ5", "Shimmer:APQ11", "Shimmer:DDA", "NHR",
    "HNR", "RPDE", "DFA", "PPE",
]  # fmt: skip
_FEATURES = [name for name in _COLUMNS if name not in (_SUBJECT, *_TARGETS)]


@recipe("dataset.parkinsons")
def parkinsons(
    target: Literal["motor_UPDRS", "total_UPDRS", "both"] = "motor_UPDRS",
    seed: int = 0,
    *,
    standardise: bool = True,
    test_fraction: float = 0.2,
    verify: bool = True,
) -> FederatedDataset:
    """A patient's severity score from measures of their voice: regression, 42 patients with 101 to 168 recordings.

    Args:
      target: the score, in points of the Unified Parkinson's Disease Rating Scale; "both" gives y two columns.
      seed: of the draw of held-out recordings.
      standardise: whether each feature has mean 0 and standard deviation 1 over all patients' training recordings.
        The features' own units differ by a factor of 10⁷.
      test_fraction: share of each patient's recordings held out, drawn uniformly.
      verify: whether to check the file against its SHA-256.

    Returns:
      ``{"x": float[n, 19], "y": float[n] (float[n, 2] for "both")}``: age, sex, days since recruitment and 16 voice
      measures in the file's order. ``client_ids`` are the file's subjects, 1 to 42.

    Raises:
      FileNotFoundError: ``<data>/parkinsons_telemonitoring/parkinsons_updrs.data`` is missing.
      ValueError: another file or an unknown target.

    Source: Tsanas, Little, McSharry and Ramig 2009, doi:10.1109/TBME.2009.2036000; UCI repository, CC BY 4.0.
    """
    if target not in (*_TARGETS, "both"):
        raise ValueError(f"parkinsons(target={target!r}): {suggest(str(target), [*_TARGETS, 'both'])}")
    check_flag("parkinsons(standardise=...)", standardise)
    path = find("parkinsons_telemonitoring", "parkinsons_updrs.data", get=_GET)
    if verify:
        check_sha256(path, _SHA256)
    header, _, body = read_text(path, encoding="ascii", wrong="is not ascii text").partition("\n")
    columns = header.strip().split(",")
    if columns != _COLUMNS:
        raise ValueError(f"{path} has the columns {shown(columns)}, and {_COLUMNS} are needed: is it the right file?")
    if not body.strip():
        raise ValueError(f"{path} has no rows: fetch it again")
    with parsing(path, "is not a table of numbers"):
        table = np.loadtxt(io.StringIO(body), delimiter=",", ndmin=2)
    if table.shape[1] != len(_COLUMNS) or not np.isfinite(table).all():
        raise ValueError(f"{path} has missing or infinite values, or {table.shape[1]} numbers a row: fetch it again")
    subjects = table[:, 0]
    for row in np.flatnonzero((subjects != np.rint(subjects)) | (np.abs(subjects) > INT32_MAX))[:1]:
        raise ValueError(f"{path}: row {row} (counted from 0) has the subject {subjects[row]}: fetch it again")
    column = {name: table[:, place] for place, name in enumerate(_COLUMNS)}
    x = np.stack([column[name] for name in _FEATURES], axis=1)
    y = np.stack([column[name] for name in _TARGETS], axis=1) if target == "both" else column[target]
    ids = column[_SUBJECT].astype(np.int64)
    held = held_out(ids, test_fraction, seed)
    if standardise:
        spread = x[~held].std(axis=0)
        x = (x - x[~held].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    test = {"test": (x[held], y[held]), "test_ids": ids[held]} if held.any() else {}
    return from_ids((x[~held], y[~held]), ids[~held], **test)
