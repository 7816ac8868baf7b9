"""Prepares the test's data sets in array_record format:  python prepare.py FOLDER [MNIST_FILES]

Needs tensorflow-datasets and TensorFlow (``pip install tensorflow-datasets tensorflow-cpu importlib_resources``);
reading what it writes needs no TensorFlow. ``MNIST_FILES`` is a folder with the four original MNIST files: with their
published checksums they stand in for the downloads, so that nothing is fetched.
"""

import pathlib
import sys
import tempfile
import time

import tensorflow_datasets as tfds
from tiny_writers import TinyWriters


def prepare(builder: tfds.core.DatasetBuilder, **options: object) -> None:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as downloads:
        builder.download_and_prepare(
            download_dir=downloads, download_config=tfds.download.DownloadConfig(**options), file_format="array_record"
        )
    print(f"{builder.info.full_name}: {time.monotonic() - start:.1f} s, {builder.data_dir}")


def main(folder: str, mnist_files: str | None = None) -> None:
    prepare(TinyWriters(data_dir=folder))
    if mnist_files is not None:
        # A file of the published name and checksum in `manual_dir` is taken instead of the download.
        builder = tfds.builder("mnist", data_dir=folder)
        missing = [i.filename for i in builder.url_infos.values() if not pathlib.Path(mnist_files, i.filename).exists()]
        if missing:
            sys.exit(f"{mnist_files} has no {', '.join(missing)}")
        prepare(builder, manual_dir=mnist_files, force_checksums_validation=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
