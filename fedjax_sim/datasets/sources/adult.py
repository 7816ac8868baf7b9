"""UCI's Adult: census rows with clients by one of their columns."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedjax_sim.core.values import check_choice, shown
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.tables import csv_rows, numbers
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set

_GET = "Get it from https://archive.ics.uci.edu/dataset/2/adult"
_FILES = {
    half: DataFile("adult", (f"adult.{ending}", f"adult.{ending}.xz"), _GET, sum_)
    for half, ending, sum_ in (
        ("train", "data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        ("test", "test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    )
}
_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_NUMBERS = [_COLUMNS.index(name) for name in _COLUMNS if name in (
    "age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"
)]  # fmt: skip
_CATEGORIES = [place for place in range(len(_COLUMNS) - 1) if place not in _NUMBERS]
_DOCTORATE = "doctorate"
Column = Literal[
    "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
    "doctorate",
]  # fmt: skip


@data_set("dataset.adult", source=Source(tuple(_FILES.values()), size="6.0 MB", terms="CC BY 4.0"))
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
    known = [*(_COLUMNS[place] for place in _CATEGORIES), _DOCTORATE]
    check_choice("adult(client=...)", client, known)
    halves = {half: _table(half, verify) for half in _FILES}
    train = halves["train"]
    mean, spread = train[0].mean(axis=0), train[0].std(axis=0)
    values = [np.unique(column) for column in train[1].T]

    def features(half: str) -> np.ndarray:
        numeric, categories, _ = halves[half]
        scaled = (numeric - mean) / np.where(spread > 0, spread, 1.0)
        one_hot = [column[:, None] == of for column, of in zip(categories.T, values, strict=True)]
        return np.concatenate([scaled, *one_hot], axis=1).astype(np.float32)

    def owners(half: str) -> np.ndarray:
        if client == _DOCTORATE:
            return np.where(halves[half][1][:, known.index("education")] == "Doctorate", "yes", "no")
        return halves[half][1][:, known.index(client)]

    return from_ids(
        (features("train"), train[2]), owners("train"), test=(features("test"), halves["test"][2]),
        test_ids=owners("test"), num_classes=2,
    )  # fmt: skip


def _table(half: str, verify: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers [n, 6], the categories as text [n, 8] and the classes int[n] of one of the two files."""
    path = _FILES[half].path(verify=verify)
    rows = list(csv_rows(path, len(_COLUMNS), skip_spaces=True, comment="|"))
    table = np.array(rows, dtype=object).reshape(len(rows), len(_COLUMNS))
    written = np.array([str(value).rstrip(".") for value in table[:, -1]], dtype=str)  # the test file adds a full stop
    for number in np.flatnonzero(~np.isin(written, ("<=50K", ">50K")))[:1]:
        found = shown(str(written[number]))
        raise ValueError(f"{path}: row {number} (counted from 0) has the class {found}, not <=50K or >50K")
    numeric = numbers(path, table[:, _NUMBERS].tolist())
    return numeric, table[:, _CATEGORIES].astype(str), (written == ">50K").astype(np.int64)
