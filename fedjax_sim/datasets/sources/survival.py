"""How long patients live, by name: FLamby's Fed-TCGA-BRCA."""

from __future__ import annotations

import re

import numpy as np

from fedjax_sim.core.values import check_flag, shown
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.tables import csv_rows, numbers
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set

_GET = "Get it from https://github.com/owkin/FLamby, flamby/datasets/fed_tcga_brca"
_PATIENTS = DataFile(
    "fed_tcga_brca", ("brca.csv",), _GET, "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020"
)
_SPLIT = DataFile(
    "fed_tcga_brca",
    ("train_test_split.csv.xz", "train_test_split.csv"),
    _GET,
    "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
)
_COLUMNS = 42  # pid, 39 features, E, T


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
    header, *rows = [*csv_rows(path, _COLUMNS)] or [[]]
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
        spread = x[~held].std(axis=0)
        x = (x - x[~held].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    train, test = ((x[mask], table[mask, -2:]) for mask in (~held, held))
    parts = {"test": test, "test_ids": region[held]} if held.any() else {}
    return from_ids(train, region[~held], **parts)
