"""All 62 characters by hand: LEAF's FEMNIST by writer, and EMNIST's unbalanced split by class."""

from __future__ import annotations

import numpy as np

from fedjax_sim.core.values import check_count, check_flag, shown
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.reading.npz import read_npy
from fedjax_sim.datasets.reading.tables import csv_rows
from fedjax_sim.datasets.sources.image_files import EMNIST_BYCLASS, Normalisation
from fedjax_sim.datasets.sources.images import from_image_set
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set
from fedjax_sim.datasets.sources.sharing import Named, Partitioner

_CLASSES = 62
_NIST = "from NIST Special Database 19, a work of the US government"
_GET = (
    "These are the test files of LEAF's femnist (https://github.com/TalwalkarLab/leaf, preprocess.sh -s niid --sf 0.14 "
    "-t sample) as one array of pixels and a table row,writer,label; LEAF's own json is read by "
    "fedjax_sim.datasets.from_leaf"
)
_IMAGES, _LABELS = (
    DataFile("leaf_femnist_520", names, _GET, sum_)
    for names, sum_ in (
        (
            ("femnist_images_uint8.npy", "femnist_images_uint8.npy.xz"),
            "333c88aff22fdfdc4b3796fc05bcff285861529ee8d37d037dd4e1b1cd97cf3c",
        ),
        (("femnist_labels.csv",), "5dcc3959548afe405a495eee8caf9c7f9255a821486b1a37a09a8bc4c2b57f0f"),
    )
)


@data_set(
    "dataset.femnist_writers", source=Source((_IMAGES, _LABELS), size="1.3 MB", terms=f"{_NIST}; LEAF: BSD-2-Clause")
)
def femnist_writers(
    min_images: int = 2,
    seed: int = 0,
    *,
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    verify: bool = True,
) -> FederatedDataset:
    """LEAF's FEMNIST, one client a writer: digits, capital and small letters of 520 people, 1 to 44 images each.

    These are the test images (a tenth of each writer's) of LEAF's non-IID sample of 14 %: 11,687 in all, of the classes
    0-9, A-Z, a-z in this order. White is 1 and ink 0, as LEAF gives them; MNIST has it the other way round.

    Args:
      min_images: leaves out writers with fewer; 505 have 10 or more, 199 have 20.
      seed: of the draw of held-out images.
      test_fraction: share of each writer's images held out.
      flat: vectors [n, 784], or [n, 28, 28, 1].
      scaled: float32 in [0, 1], or the bytes, uint8.
      verify: whether to check the files against their SHA-256.

    Returns:
      ``{"x": float32 or uint8, "y": int32[n]}``, 62 classes; :func:`fedjax_sim.datasets.client_names` has LEAF's names
      of the writers, ``"f0004_09"``.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: another file, or no writer with as many images.

    Source: Caldas et al. 2018, LEAF, arXiv:1812.01097.
    """
    check_count("femnist_writers(min_images=...)", min_images)
    check_flag("femnist_writers(flat=...)", flat)
    check_flag("femnist_writers(scaled=...)", scaled)
    images, rows = read_npy(_IMAGES.path(verify=verify)), _LABELS.path(verify=verify)
    table = list(csv_rows(rows, ("row", "writer", "label")))
    if images.dtype != np.uint8 or images.shape != (len(table), 28, 28):
        raise ValueError(
            f"femnist_writers: {_IMAGES.path()} has {images.dtype}{list(images.shape)}, and {rows} has {len(table)} "
            "rows: they do not belong together"
        )
    labels = {str(label): label for label in range(_CLASSES)}
    for number, (row, _, label) in enumerate(table):
        if row != str(number) or label not in labels:
            raise ValueError(
                f"{rows}: line {number + 2} has the row {shown(row)} and the label {shown(label)}, not the row "
                f"{number} and a label of 0 to {_CLASSES - 1}"
            )
    names, owner, sizes = np.unique([row[1] for row in table], return_inverse=True, return_counts=True)
    kept = (sizes >= min_images)[owner]
    if not kept.any():
        raise ValueError(f"femnist_writers(min_images={min_images}): the most that a writer has are {sizes.max()}")
    x = images[kept].reshape((int(kept.sum()), -1) if flat else (int(kept.sum()), 28, 28, 1))
    x = x.astype(np.float32) / np.float32(255) if scaled else x
    y = np.array([labels[row[2]] for row in table])[kept]
    return from_ids((x, y), names[owner[kept]], test_fraction=test_fraction, seed=seed, num_classes=_CLASSES)


@data_set(
    "dataset.emnist_byclass",
    source=Source(tuple(EMNIST_BYCLASS.files.values()), size="11 MB", terms=f"{_NIST}; no separate licence stated"),
)
def emnist_byclass(
    num_clients: int = 100,
    alpha: float = 0.1,
    partition: Named | Partitioner = "dirichlet",
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    test_fraction: float = 0.2,
    flat: bool = True,
    scaled: bool = True,
    normalise: bool | Normalisation = False,
    verify: bool = True,
) -> FederatedDataset:
    """EMNIST by class, every second image of its test files: 58,162 images, 62 classes of 170 to 3,154.

    Digits, capital and small letters in this order, upright. Each client is tested on its own images; all else as in
    :func:`fedjax_sim.datasets.mnist`. ``normalise=True`` uses the mean 0.1738 and the standard deviation 0.3318.

    Source: Cohen, Afshar, Tapson and van Schaik 2017, arXiv:1702.05373.
    """
    return from_image_set("emnist_byclass", EMNIST_BYCLASS, test="local", **locals())
