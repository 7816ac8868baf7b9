"""What a client sends, by how the server gets it: averaged, by shares, added up, one by one; and what it receives."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from fedjax_sim.core import trees


class Message(struct.PyTreeNode):
    """Base of the messages.

    Attributes:
      value: a pytree of arrays.
      nbytes: bytes that it counts for; None for those of its arrays, 0 for what the server knows from the others or
        what is for the record alone.
    """

    value: Any
    nbytes: int | None = struct.field(pytree_node=False, default=None)

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


class Each(struct.PyTreeNode):
    """In a broadcast: an array [N, ...] of which client i gets row i, and no other.

    Attributes:
      rows: leaves [N, ...] by client index.
    """

    rows: Any

    def of(self, index: jax.Array) -> Any:
        """What the client ``index`` gets; N - 1 stands for a void slot."""
        return jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), self.rows)


def received(sent: Any, index: jax.Array) -> Any:
    """A broadcast as the client ``index`` gets it."""
    return jax.tree.map(lambda node: node.of(index) if _is_each(node) else node, sent, is_leaf=_is_each)


def _is_each(node: Any) -> bool:
    return isinstance(node, Each)
