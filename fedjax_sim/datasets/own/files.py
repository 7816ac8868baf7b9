"""Own data by the names of files, as configurations give them: what was read is known again by its checksum.

Each set remembers how it was made, with the SHA-256 of its files, so that a run of it can be made again and does not
take other data for the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedjax_sim.core.descriptions import register
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.own.directory import from_directory
from fedjax_sim.datasets.own.leaf import from_leaf
from fedjax_sim.datasets.own.table import from_table
from fedjax_sim.datasets.reading.places import sha256_of


def table_file(
    table: str,
    *,
    client: str,
    x: str | Sequence[str] | None = None,
    y: str | None = None,
    encode: Sequence[str] = (),
    test_fraction: float = 0.0,
    seed: int = 0,
    num_classes: int | None = None,
    sha256: str | None = None,
) -> FederatedDataset:
    """A csv or parquet file with one row for each example and a column that names its client; needs pyarrow.

    Arguments as in :func:`fedjax_sim.datasets.from_table`, and the file's checksum ``sha256``: another content is
    refused. It is written down by itself.

    Raises:
      TypeError: ``table`` is no name of a file.
      ValueError: another checksum.
    """
    return _read(from_table, dict(locals()), "table", [table])


def client_files(
    folder: str,
    *,
    test_fraction: float = 0.0,
    seed: int = 0,
    num_classes: int | None = None,
    sha256: str | None = None,
) -> FederatedDataset:
    """A directory with one npz file for each client, ``<client>.npz``, or with such ones in ``train`` and ``test``.

    Arguments as in :func:`fedjax_sim.datasets.from_directory`, and ``sha256``, that of all files, as of a table.

    Raises:
      TypeError: ``folder`` is no name of a directory.
      ValueError: another checksum.
    """
    return _read(from_directory, dict(locals()), "folder", [folder], "*.npz", "train/*.npz", "test/*.npz")


def leaf_files(
    train: str | Sequence[str],
    test: str | Sequence[str] | None = None,
    *,
    num_classes: int | None = None,
    sha256: str | None = None,
) -> FederatedDataset:
    """LEAF's json files whose examples are numbers (FEMNIST, synthetic, your own); text is encoded in Python.

    Arguments as in :func:`fedjax_sim.datasets.from_leaf`, and ``sha256``, the checksum of all files, as of a table.

    Raises:
      TypeError: no names of files.
      ValueError: another checksum.
    """
    given = dict(locals())
    sources = [[one] if isinstance(one, str) else list(one) for one in (train, test) if one is not None]
    return _read(from_leaf, given, "train and test", [path for source in sources for path in source], "*.json")


def _read(
    reader: Callable[..., FederatedDataset], given: dict[str, Any], argument: str, places: Sequence[Any], *inside: str
) -> FederatedDataset:
    """Reads files, and those of folders that match one of ``inside``, once they have the checksum that is given.

    The data set describes itself by these arguments and the checksum, as a recipe's does.
    """
    name, wanted = reader.__name__, given.pop("sha256")
    files: list[tuple[str, Path]] = []
    for place in places:
        if not isinstance(place, str):
            raise TypeError(
                f"{name}({argument}) has {shown(place)}: a configuration names files; in Python, "
                f"fedjax_sim.datasets.{name} takes other things too"
            )
        path = Path(place)
        found = sorted(one for pattern in inside for one in path.glob(pattern)) if path.is_dir() else []
        files += [(one.relative_to(path).as_posix(), one) for one in found] or [(path.name, path)]
    sums = [f"{sha256_of(path)}  {called}\n" for called, path in files if not path.is_dir()]
    # Of one file it is what sha256sum prints; of several, that of what it prints of them, in order.
    digest = sums[0][:64] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    if wanted not in (None, digest):
        raise ValueError(
            f"{', '.join(map(str, places))}: the content has the SHA-256 {digest}, and sha256 = {shown(wanted)}: give "
            "the data of then, or leave sha256 out to take these"
        )
    made = reader(**given)
    object.__setattr__(made, "_recipe", (f"dataset.{name}", {**given, "sha256": digest}))
    return made


register("dataset.from_table", table_file)
register("dataset.from_directory", client_files)
register("dataset.from_leaf", leaf_files)
