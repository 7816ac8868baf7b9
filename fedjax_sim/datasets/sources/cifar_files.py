"""The two CIFAR sets in the binary version: which files, their digests, and where they may lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedjax_sim.core.values import check_flag
from fedjax_sim.datasets.reading.cifar import archive_contents, check_content, decode_cifar, file_content
from fedjax_sim.datasets.reading.places import data_dir, find


@dataclasses.dataclass(frozen=True)
class CifarSet:
    """One of the two CIFAR sets.

    Attributes:
      folder: its folder in the data directory, and its name in messages.
      archive: file name of the published archive.
      inner: the folder inside the archive.
      num_classes: number of classes.
      label_bytes: bytes of labels in a record.
      published: file name to the SHA-256 of its content.
    """

    folder: str
    archive: str
    inner: str
    num_classes: int
    label_bytes: int
    published: Mapping[str, str]

    def read(self, names: Sequence[str], *, verify: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images uint8[n, 32, 32, 3] and labels uint8[n] of some of the set's files, end to end.

        The files are taken from the folder (or its folder ``inner``), packed with xz or gzip or not, and all of them
        from the published archive where one is missing there.

        Args:
          names: the files.
          verify: whether to check their content against the published SHA-256.

        Raises:
          FileNotFoundError: a file is missing, and so is the archive.
          ValueError: not the published file, or damaged.
        """
        check_flag(f"{self.folder}(verify=...)", verify)
        parts = []
        for name, (where, content) in self._contents(names).items():
            if verify:
                check_content(content, where, self.published[name])
            parts.append(decode_cifar(content, where, classes=self.num_classes, label_bytes=self.label_bytes))
        images, labels = zip(*parts, strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def _contents(self, names: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """File name to where it was found and what it holds."""
        archive = data_dir() / self.folder / self.archive
        paths = {name: self._path(name) for name in self.published}
        missing = [name for name in names if paths[name] is None]
        if missing and archive.exists():
            held = archive_contents(archive, [f"{self.inner}/{name}" for name in names])
            return {name: (f"{archive}: {name}", held[f"{self.inner}/{name}"]) for name in names}
        if missing:
            batches = tuple(int(name[len("data_batch_")]) for name in paths if "data_batch" in name and paths[name])
            fewer = f"; batches={batches} reads the training files that are there" if batches else ""
            get = (
                f"Get it from https://www.cs.toronto.edu/~kriz/{self.archive} (its members {', '.join(missing)} are "
                f"not there as files either{fewer})"
            )
            find(self.folder, self.archive, get=get)
        return {name: (str(path), file_content(path)) for name in names if (path := paths[name]) is not None}

    def _path(self, name: str) -> Path | None:
        """Where a file lies, in whichever form."""
        folder = data_dir() / self.folder
        forms = [f"{place}{name}{packed}" for place in ("", f"{self.inner}/") for packed in ("", ".xz", ".gz")]
        return next((folder / form for form in forms if (folder / form).exists()), None)


CIFAR10 = CifarSet(
    folder="cifar10",
    archive="cifar-10-binary.tar.gz",
    inner="cifar-10-batches-bin",
    num_classes=10,
    label_bytes=1,
    published={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
)

CIFAR100 = CifarSet(
    folder="cifar100",
    archive="cifar-100-binary.tar.gz",
    inner="cifar-100-binary",
    num_classes=100,
    label_bytes=2,
    published={
        "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
)
