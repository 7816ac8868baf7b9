"""Word vectors that a model looks up and never trains."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import check_count


@jax.tree_util.register_static
class FrozenTable:
    """A table [V, E] that is part of a model's structure and no parameter.

    Being no parameter, it cannot move: no gradient, weight decay, average, server momentum or control variate sees
    it, it is not counted, and clients do not send it. It compares and hashes by content, so that models which hold
    equal tables share compiled programs. A program holds the table as a constant, so keep the words that the data use:
    20,000 words of width 300 (24 MB) cost nothing to speak of, 400,000 (480 MB) some 20 s at the start of a run.

    Made by :func:`frozen_table` and :func:`random_table`.

    Args:
      vectors: real numbers [V, E], copied.

    Raises:
      ValueError: another rank, an empty table, NaN or infinite entries.
      TypeError: not real numbers.
    """

    def __init__(self, vectors: Any) -> None:
        array = np.array(vectors)
        if array.ndim != 2 or array.size == 0:
            raise ValueError(f"frozen_table: vectors have shape {list(array.shape)}: give [words, width], not empty")
        if not np.issubdtype(array.dtype, np.floating):
            raise TypeError(f"frozen_table: vectors are {array.dtype}: give floating-point numbers")
        if not np.all(np.isfinite(array)):
            raise ValueError("frozen_table: vectors have NaN or infinite entries: replace them, by zeros for instance")
        array.flags.writeable = False
        self.vectors = array
        self._digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenTable) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"FrozenTable({self.vectors.shape[0]} words, width {self.vectors.shape[1]})"


@recipe("model.frozen_table")
def frozen_table(vectors: Any) -> FrozenTable:
    """A table of given vectors, pretrained ones for instance.

    Args:
      vectors: floating-point numbers [V, E]; row t is token t's. A description records up to 100,000 numbers; a run
        with a larger table describes itself as opaque there.

    Raises:
      ValueError: another rank, an empty table, NaN or infinite entries.
      TypeError: not floating-point numbers.

    Example:
      >>> frozen_table([[0.0, 0.0, 0.0], [0.5, -1.0, 0.2]])
      FrozenTable(2 words, width 3)
    """
    return FrozenTable(vectors)


@recipe("model.random_table")
def random_table(words: int, width: int = 300, seed: int = 0) -> FrozenTable:
    """A table of random vectors, for when the pretrained ones are not at hand.

    Entries are N(0, 1/width), float32, so that a vector has an expected squared length of 1.

    Args:
      words: V.
      width: E; 300 is that of the GloVe vectors in FedProx.
      seed: of the numbers.

    Raises:
      ValueError: ``words`` or ``width`` below 1, ``seed`` below 0.
    """
    check_count("random_table(words=...)", words)
    check_count("random_table(width=...)", width)
    check_count("random_table(seed=...)", seed, low=0)
    rng = np.random.Generator(np.random.PCG64(seed))
    return FrozenTable((rng.standard_normal((words, width)) / np.sqrt(width)).astype(np.float32))
