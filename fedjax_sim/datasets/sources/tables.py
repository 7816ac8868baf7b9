"""Tables by name: scikit-learn's digits, Parkinsons telemonitoring, FedProx's synthetic data."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedjax_sim.core.files import parsing, read_text
from fedjax_sim.core.values import INT32_MAX, check_choice, check_flag, shown
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.from_arrays import held_out
from fedjax_sim.datasets.own.leaf import from_leaf
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set, scikit_learn


@data_set("dataset.digits", source=Source(module="sklearn", terms="CC BY 4.0"))
def digits(num_clients: int = 20, alpha: float = 0.1, seed: int = 0, test_fraction: float = 0.2) -> FederatedDataset:
    """The 1,797 8x8 digits that come with scikit-learn, shared out by Dirichlet label skew.

    Args:
      num_clients: number of clients; each gets two examples or more.
      alpha: concentration of :func:`fedjax_sim.datasets.partition.dirichlet`.
      seed: of the partition and of the held-out examples.
      test_fraction: share of each client's examples held out.

    Returns:
      ``{"x": float32[n, 64] in [0, 1], "y": int32[n]}``, ten classes.

    Raises:
      ImportError: scikit-learn is not installed.

    Source: Alpaydin and Kaynak 1998, UCI optical recognition of handwritten digits (the test half).
    """
    x, y = scikit_learn("digits").load_digits(return_X_y=True)
    rows = partitions.dirichlet(y, num_clients, alpha, seed, min_size=2)
    features = (x / 16.0).astype(np.float32)
    return from_partition((features, y), rows, test_fraction=test_fraction, seed=seed, num_classes=10)


_PARKINSONS = DataFile(
    "parkinsons_telemonitoring",
    ("parkinsons_updrs.data",),
    "Get it from https://archive.ics.uci.edu/dataset/189/parkinsons+telemonitoring",
    "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39",
)
_TARGETS = ["motor_UPDRS", "total_UPDRS"]
PARKINSONS_HEADER = (
    "subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,Jitter(%),Jitter(Abs),Jitter:RAP,Jitter:PPQ5,Jitter:DDP,"
    "Shimmer,Shimmer(dB),Shimmer:APQ3,Shimmer:APQ5,Shimmer:APQ11,Shimmer:DDA,NHR,HNR,RPDE,DFA,PPE"
)


@data_set("dataset.parkinsons", source=Source((_PARKINSONS,), size="0.9 MB", terms="CC BY 4.0"))
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

    Source: Tsanas, Little, McSharry and Ramig 2009, doi:10.1109/TBME.2009.2036000; UCI repository, CC BY 4.0.
    """
    check_choice("parkinsons(target=...)", target, (*_TARGETS, "both"))
    check_flag("parkinsons(standardise=...)", standardise)
    path, names = _PARKINSONS.path(verify=verify), PARKINSONS_HEADER.split(",")
    header, _, body = read_text(path, encoding="ascii", wrong="is not ascii text").partition("\n")
    columns = header.strip().split(",")
    if columns != names:
        raise ValueError(f"{path} has the columns {shown(columns)}, and {names} are needed: is it the right file?")
    with parsing(path, "is not a table of numbers"):
        table = np.array([row.split(",") for row in body.split()], float)
    if table.shape[1:] != (len(names),) or not np.isfinite(table).all():
        raise ValueError(f"{path} has no rows, not {len(names)} numbers a row, missing or infinite ones")
    ids = table[:, 0].astype(np.int64)
    for row in np.flatnonzero((ids != table[:, 0]) | (np.abs(ids) > INT32_MAX))[:1]:
        raise ValueError(f"{path}: row {row} (counted from 0) has the subject {table[row, 0]}: fetch it again")
    x = table[:, [place for place, name in enumerate(names) if place and name not in _TARGETS]]
    y = table[:, [names.index(name) for name in _TARGETS]] if target == "both" else table[:, names.index(target)]
    if standardise:
        trained = x[~held_out(ids, test_fraction, seed)]
        spread = trained.std(axis=0)
        x = (x - trained.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return from_ids((x, y), ids, test_fraction=test_fraction, seed=seed)


_GET = "Get the folder data/synthetic_{} of https://github.com/litian96/FedProx{}"
_SHA256 = {
    "0_0": "f1226a9f3688487c76c5192dd966d1bcf95df09dc01fe20c14e771dcf8f1cdf5",
    "0.5_0.5": "7636613f78ae1f1fcb14d97d8995ae0456e7d585677509f02bae439be8aa2362",
    "1_1": "b1ca3be6df86de9e7c74205dcc215d2f5e3879ff3d7be45adcf7ec927a9f521a",
    "iid": "d687892eac4c5fd3cec2bf6f07e898f47ae0664b653233e279b906a2b641476f",
}


def _half(variant: str, half: str, note: str = "", published: str = "") -> DataFile:
    """``mytest.json`` or ``mytrain.json`` of one of FedProx's four sets."""
    names = (f"synthetic_{variant}/my{half}.json", f"synthetic_{variant}/data/{half}/my{half}.json")
    return DataFile("fedprox_synthetic", names, _GET.format(variant, note), published)


@data_set(
    "dataset.fedprox_synthetic",
    source=Source((_half("1_1", "test"),), size="4.6 MB", terms="MIT", papers=("li2020federated",)),
)
def fedprox_synthetic(
    variant: Literal["0_0", "0.5_0.5", "1_1", "iid"] = "1_1",
    halves: Literal["test", "both"] | None = None,
    *,
    verify: bool = True,
) -> FederatedDataset:
    """The authors' own draw of synthetic(α, β): 30 devices, 60 features, 10 classes.

    Their repository has the test halves, a tenth of each device's examples; its generator has no seed, so the rest
    cannot be made again. The test halves alone become a data set to **train** on (there is no test part): small, but
    with the published examples, where :func:`fedjax_sim.datasets.synthetic` draws its own.

    Args:
      variant: which (α, β), or the IID set.
      halves: "test" trains on the test halves; "both" trains on ``mytrain.json`` and tests on ``mytest.json``; None
        takes both where the training file is present. Files are looked for as
        ``<data>/fedprox_synthetic/synthetic_<variant>/mytest.json`` and ``.../data/test/mytest.json``, as in the
        repository.
      verify: whether to check the test file against its SHA-256.

    Returns:
      ``{"x": float[n, 60], "y": int32[n]}``, ten classes; devices f_00000 to f_00029.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, section 5.1; https://github.com/litian96/FedProx (MIT).
    """
    check_choice("fedprox_synthetic(variant=...)", variant, _SHA256)
    if halves is not None:
        check_choice("fedprox_synthetic(halves=...)", halves, ("test", "both"))
    test = _half(variant, "test", "", _SHA256[variant]).path(verify=verify)
    training = _half(variant, "train", " as its authors have it, or give halves='test'")
    if halves == "test" or (halves is None and training.found() is None):
        return from_leaf(test, num_classes=10)
    data = from_leaf(train := training.path(), test, num_classes=10)
    shape = data.examples["x"].shape[1:]
    if shape != (60,) or data.num_clients != 30:
        raise ValueError(
            f"{train} has {data.num_clients} devices and features of shape {list(shape)}, and 30 and [60] are needed: "
            "is it the right file?"
        )
    return data
