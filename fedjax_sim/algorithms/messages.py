"""What clients send: values, and how the cohort's are put together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described


class Message(Described):
    """Base of the messages.

    Attributes:
      value: a pytree of arrays or numbers; integers are averaged as real numbers, and truths and small integers are
        summed as int32.
      nbytes: bytes that it counts for; None for those of the arrays that are given, 0 for what the server knows from
        the others or what is for the record alone.
    """

    value: Any
    nbytes: int | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self) -> None:
        arrays = jax.tree.map(
            lambda leaf: jnp.asarray(leaf) if isinstance(leaf, bool | int | float) else leaf, self.value
        )
        summable = jax.tree.map(self._summable, arrays)
        if self.nbytes is None:  # what is sent is as it was given
            leaves = zip(jax.tree.leaves(arrays), jax.tree.leaves(summable), strict=True)
            if any(given is not leaf for given, leaf in leaves):
                self.__dict__["nbytes"] = trees.size_in_bytes(arrays)
        self.__dict__["value"] = summable

    def _summable(self, leaf: Any) -> Any:
        """The leaf in a type that its sum needs: times a weight an integer would be 0, and many int8 go round."""
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not hasattr(leaf, "astype"):
            return leaf
        if isinstance(self, Mean | Share) and not jnp.issubdtype(dtype, jnp.inexact):
            return trees.real(leaf)
        narrow = dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize < 4)
        return jnp.asarray(leaf, jnp.int32) if isinstance(self, Sum) and narrow else leaf

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return trees.size_in_bytes(self.value) if self.nbytes is None else self.nbytes


class Mean(Message):
    """The cohort's average: sum_S w_i m_i, with the weights w_i of the scheme."""


class Share(Message):
    """sum_S lambda_i m_i, with lambda_i the client's share of the objective: p_i, or 1/N."""


class Sum(Message):
    """sum_S m_i."""


class Stack(Message):
    """All messages side by side, [S, ...]; zeros in void slots."""
