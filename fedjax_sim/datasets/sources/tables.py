"""Tables by name: digits, Parkinsons telemonitoring, Adult, Fed-TCGA-BRCA, FedProx's synthetic data."""

from __future__ import annotations

import re
from typing import Literal, get_args

import numpy as np

from fedjax_sim.core.values import check_choice, check_flag, shown
from fedjax_sim.datasets import partition as partitions
from fedjax_sim.datasets.construct import from_ids, from_partition
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.from_arrays import held_out
from fedjax_sim.datasets.own.leaf import from_leaf
from fedjax_sim.datasets.reading.tables import csv_rows, numbers, whole
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set, scikit_learn
from fedjax_sim.datasets.sources.sharing import standardised


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
    table = numbers(path, list(csv_rows(path, names, encoding="ascii")))
    ids = whole(path, table[:, 0])
    x = table[:, [place for place, name in enumerate(names) if place and name not in _TARGETS]]
    y = table[:, [names.index(name) for name in _TARGETS]] if target == "both" else table[:, names.index(target)]
    if standardise:
        x = standardised(x, x[~held_out(ids, test_fraction, seed)])
    return from_ids((x, y), ids, test_fraction=test_fraction, seed=seed)


_ADULT_PAGE = "Get it from https://archive.ics.uci.edu/dataset/2/adult"
_ADULT = {
    half: DataFile("adult", (f"adult.{ending}", f"adult.{ending}.xz"), _ADULT_PAGE, sum_)
    for half, ending, sum_ in (
        ("train", "data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        ("test", "test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    )
}
_ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
Column = Literal[
    "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
    "doctorate",
]  # fmt: skip
_CATEGORIES = [_ADULT_COLUMNS.index(name) for name in get_args(Column)[:-1]]
_NUMBERS = [place for place in range(len(_ADULT_COLUMNS) - 1) if place not in _CATEGORIES]


@data_set("dataset.adult", source=Source(tuple(_ADULT.values()), size="6.0 MB", terms="CC BY 4.0"))
def adult(client: Column = "education", *, verify: bool = True) -> FederatedDataset:
    """Whether a person earned more than 50,000 dollars in 1994, by a column of the census: few, unequal clients.

    32,561 training and 16,281 test rows as published; a client is tested on the test rows of its own value. Used for
    fairness between groups of people. For any other partition of these rows see :func:`fedjax_sim.datasets.a9a`.

    Args:
      client: the column whose values are the clients, named by :func:`fedjax_sim.datasets.client_names`: "education"
        (16), "occupation" (15), "native-country" (42), "workclass" (9), "marital-status" (7), "relationship" (6),
        "race" (5), "sex" (2); "doctorate" for the two domains of agnostic federated learning, people with a doctorate
        ("yes") and all others ("no"). An unknown value, "?" in the files, is a value too.
      verify: whether to check the files against their SHA-256.

    Returns:
      ``{"x": float32[n, 108], "y": int32[n]}``, two classes. x is the six numbers, with mean 0 and standard deviation 1
      over the training rows, then a feature of 0 and 1 for each value of each of the eight other columns, in the
      order of the columns and of their values; the client's own column is among them.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: another file, or an unknown ``client``.

    Source: Becker and Kohavi 1996, doi:10.24432/C5XW20, CC BY 4.0; by doctorate: Mohri, Sivek and Suresh 2019,
    Agnostic federated learning, arXiv:1902.00146, section 5.
    """
    known = get_args(Column)
    check_choice("adult(client=...)", client, known)
    train, test = (_adult_half(half, verify) for half in ("train", "test"))
    values = [np.unique(column) for column in train[1].T]

    def examples_and_clients(half: _Half) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        numeric, categories, classes = half
        one_hot = [column[:, None] == of for column, of in zip(categories.T, values, strict=True)]
        x = np.concatenate([standardised(numeric, train[0]), *one_hot], axis=1).astype(np.float32)
        owner = categories[:, known.index("education" if client == "doctorate" else client)]
        return (x, classes), np.where(owner == "Doctorate", "yes", "no") if client == "doctorate" else owner

    (examples, ids), (held, held_ids) = examples_and_clients(train), examples_and_clients(test)
    return from_ids(examples, ids, test=held, test_ids=held_ids, num_classes=2)


_Half = tuple[np.ndarray, np.ndarray, np.ndarray]  # numbers [n, 6], categories as text [n, 8], classes int[n]


def _adult_half(half: str, verify: bool) -> _Half:
    path = _ADULT[half].path(verify=verify)
    rows = list(csv_rows(path, len(_ADULT_COLUMNS), skip_spaces=True, comment="|"))
    table = np.array(rows, dtype=object).reshape(len(rows), len(_ADULT_COLUMNS))
    written = np.array([str(value).rstrip(".") for value in table[:, -1]], dtype=str)  # the test file adds a full stop
    for number in np.flatnonzero(~np.isin(written, ("<=50K", ">50K")))[:1]:
        found = shown(str(written[number]))
        raise ValueError(f"{path}: row {number} (counted from 0) has the class {found}, not <=50K or >50K")
    numeric = numbers(path, table[:, _NUMBERS].tolist())
    return numeric, table[:, _CATEGORIES].astype(str), (written == ">50K").astype(np.int64)


_FLAMBY = "Get it from https://github.com/owkin/FLamby, flamby/datasets/fed_tcga_brca"
_PATIENTS = DataFile(
    "fed_tcga_brca", ("brca.csv",), _FLAMBY, "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020"
)
_SPLIT = DataFile(
    "fed_tcga_brca",
    ("train_test_split.csv.xz", "train_test_split.csv"),
    _FLAMBY,
    "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
)
_BRCA_COLUMNS = 42  # pid, 39 features, E, T


@data_set(
    "dataset.fed_tcga_brca",
    source=Source(
        (_PATIENTS, _SPLIT),
        size="0.2 MB",
        terms="open-access clinical data of TCGA, GDC data access policy (do not identify anybody); the files: MIT",
        papers=("terrail2022flamby",),
    ),
)
def fed_tcga_brca(*, standardise: bool = False, verify: bool = True) -> FederatedDataset:
    """Survival of 1,088 patients with breast cancer, six regions as clients: FLamby's Fed-TCGA-BRCA.

    Training and test patients are FLamby's: 248 + 63, 156 + 40, 164 + 42, 129 + 33, 129 + 33 and 40 + 11 by region.
    Eight patients of ``brca.csv`` are in no part. For :func:`fedjax_sim.cox`.

    Args:
      standardise: whether each feature has mean 0 and standard deviation 1 over all regions' training patients. FLamby
        leaves them as they are: age in years, the others 0 or 1.
      verify: whether to check the files against their SHA-256.

    Returns:
      ``{"x": float[n, 39], "y": float[n, 2]}``: y is whether the patient's death was seen (1) or only that they
      lived so long (0), and for how many days. ``client_ids`` are the regions, 0 to 5.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: another file, or files that do not belong together.

    Source: Ogier du Terrail et al. 2022 (FLamby), arXiv:2210.04620; Liu et al. 2018, doi:10.1016/j.cell.2018.02.052.
    """
    check_flag("fed_tcga_brca(standardise=...)", standardise)
    path, split = _PATIENTS.path(verify=verify), _SPLIT.path(verify=verify)
    header, *rows = [*csv_rows(path, _BRCA_COLUMNS)] or [[]]
    if header[:1] != ["pid"] or header[-2:] != ["E", "T"]:
        raise ValueError(f"{path} has the columns {shown(header)}, and pid, 39 features, E, T are needed")
    places = {row[0]: place for place, row in enumerate(rows)}
    chosen, regions, tested = [], [], []
    for patient, _, part in csv_rows(split, ("pid", "fold", "fold2")):
        found = re.fullmatch(r"(train|test)_([0-5])", part)
        if found is None or patient not in places:
            raise ValueError(f"{split}: {patient!r} in {part!r} is no patient of {path.name} in a part of six regions")
        chosen.append(places[patient])
        regions.append(int(found[2]))
        tested.append(found[1] == "test")
    if len(set(chosen)) < len(chosen) or len(places) < len(rows):
        raise ValueError(f"{split} and {path.name} have patients twice: fetch them again")
    table = numbers(path, [rows[place][1:] for place in chosen])
    held, region = np.array(tested), np.array(regions)
    x = table[:, :-2]
    if standardise:
        x = standardised(x, x[~held])
    train, test = ((x[mask], table[mask, -2:]) for mask in (~held, held))
    parts = {"test": test, "test_ids": region[held]} if held.any() else {}
    return from_ids(train, region[~held], **parts)


_FEDPROX = "Get the folder data/synthetic_{} of https://github.com/litian96/FedProx{}"
_SHA256 = {
    "0_0": "f1226a9f3688487c76c5192dd966d1bcf95df09dc01fe20c14e771dcf8f1cdf5",
    "0.5_0.5": "7636613f78ae1f1fcb14d97d8995ae0456e7d585677509f02bae439be8aa2362",
    "1_1": "b1ca3be6df86de9e7c74205dcc215d2f5e3879ff3d7be45adcf7ec927a9f521a",
    "iid": "d687892eac4c5fd3cec2bf6f07e898f47ae0664b653233e279b906a2b641476f",
}


def _half(variant: str, half: str, note: str = "", published: str = "") -> DataFile:
    """``mytest.json`` or ``mytrain.json`` of one of FedProx's four sets."""
    names = (f"synthetic_{variant}/my{half}.json", f"synthetic_{variant}/data/{half}/my{half}.json")
    return DataFile("fedprox_synthetic", names, _FEDPROX.format(variant, note), published)


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
