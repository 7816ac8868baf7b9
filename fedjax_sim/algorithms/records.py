"""How a method is registered: with the record that tables, citations and tests are made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.records import RECORDS, Record

P = ParamSpec("P")
T = TypeVar("T")


def recorded(name: str, cls: Callable[P, T], **about: Any) -> Callable[P, T]:
    """The factory of a method, as :func:`fedjax_sim.factory` makes it, and its record.

    Args:
      name: registered name, ``"algorithm.fedavg"``.
      cls: the class.
      **about: the fields of :class:`fedjax_sim.core.records.Record`.
    """
    record = RECORDS[name] = Record(**about)
    make = factory(name, cls)
    sends = record.sends[:1].lower() + record.sends[1:]
    make.__doc__ = f"{make.__doc__}\n    State per client: {record.keeps}. Sent a round and client: {sends}.\n    "
    return make
