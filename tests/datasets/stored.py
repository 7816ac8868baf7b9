"""Files of data sets: those that are published, where they are at hand, and others that a test writes."""

import json
import os
import struct
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.core.descriptions import build, describe

REAL = Path(os.environ.get("FEDJAX_SIM_DATA") or "nowhere")


def needs(*folders: str) -> pytest.MarkDecorator:
    """Skips a test where the published files are not there."""
    missing = [folder for folder in folders if not (REAL / folder).is_dir()]
    return pytest.mark.skipif(bool(missing), reason=f"FEDJAX_SIM_DATA names no directory with {', '.join(missing)}")


def put(path: Path, content: str | bytes) -> Path:
    """Writes a file and the folders around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def idx(array: np.ndarray) -> bytes:
    """An array in MNIST's format."""
    code = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}[array.dtype.str[1:]]
    header = struct.pack(">BBBB", 0, 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def check_rebuilt(data: datasets.FederatedDataset) -> None:
    """The data set is what its description, by way of JSON, makes."""
    again = build(json.loads(json.dumps(describe(data))))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(data), jax.tree.leaves(again))
