"""The fields of what a user builds: leaf or structure, and what values are allowed, said once where the field is.

A class of :class:`fedjax_sim.core.descriptions.Described` is checked by its fields before its own ``checked`` is asked,
so that only rules of several fields need code:

>>> from fedjax_sim.core.descriptions import Described, factory
>>> class Halve(Described):
...     rate: float = real(default=0.1, low=0.0)
...     every: int | None = count(default=None)
>>> halve = factory("example.halve", Halve)
>>> halve(rate=-1.0)
Traceback (most recent call last):
...
ValueError: halve(rate=...) is -1.0: it must be in [0, inf)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from flax import struct

from fedjax_sim.core.values import array_of, check_choice, check_count, check_flag, check_real, check_scalar, shown

Check = Callable[[str, Any], None]


def static(check: Check | None = None, **kwargs: Any) -> Any:
    """A dataclass field that is structure, not a leaf: hashable, fixed at compile time.

    ``check`` is called with what a message names the value, ``"epochs(num_epochs=...)"``, and the value; it raises.
    Other arguments, ``default`` and the like, are those of ``dataclasses.field``.
    """
    return struct.field(pytree_node=False, metadata={"check": check}, **kwargs)


def leaf(check: Check | None = None, **kwargs: Any) -> Any:
    """A dataclass field that is a leaf with a check of its own (see :func:`static`)."""
    return struct.field(metadata={"check": check}, **kwargs)


def integers(check: Check | None = None, **kwargs: Any) -> Any:
    """A leaf that is an array of integers: lists given for it are not turned into floats."""
    return struct.field(metadata={"integers": True, "check": check}, **kwargs)


def real(
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    infinite: bool = False,
    structure: bool = False,
    several: bool = False,
    **kwargs: Any,
) -> Any:
    """A real hyper-parameter, checked by :func:`fedjax_sim.core.values.check_real`: what bounds it, is said there.

    It may be None if that is its default. It is a leaf, to be traced and differentiated; with ``structure`` a number of
    the host's. A run takes one number (:func:`check_single`), or with ``several`` an array too, which a list becomes
    (:func:`with_arrays`).
    """
    bounds: dict[str, Any] = {"low": low, "high": high, "above": above, "below": below, "infinite": infinite}
    optional = kwargs.get("default", 0) is None

    def check(what: str, value: Any) -> None:
        if hasattr(value, "factory_name") or callable(value):  # numbers that mean something else, an optax schedule
            raise TypeError(
                f"{what} is {shown(value)}: it must be a number; a rate that changes with rounds or clients multiplies "
                "an optimiser's steps, as the method's client_learning_rate= or server_learning_rate="
            )
        if structure and isinstance(value, jax.core.Tracer):
            raise TypeError(f"{what} is traced: programs are made by it, so give a number")
        if structure and np.ndim(value) != 0:
            raise TypeError(f"{what} is {shown(value)}: it must be one real number")
        check_real(what, value, **bounds, host=structure, optional=optional)

    if structure:
        return static(check, **kwargs)
    return struct.field(metadata={"check": check, "single": not several}, **kwargs)


def count(*, low: int = 1, high: int | None = None, **kwargs: Any) -> Any:
    """Structure: an integer in low, ..., high; None too if that is the default."""
    return static(_optional(functools.partial(check_count, low=low, high=high), kwargs), **kwargs)


def flag(**kwargs: Any) -> Any:
    """Structure: True or False; None too if that is the default."""
    return static(_optional(check_flag, kwargs), **kwargs)


def choice(known: Collection[str], **kwargs: Any) -> Any:
    """Structure: one of the words ``known``; None too if that is the default."""
    return static(_optional(functools.partial(check_choice, known=known), kwargs), **kwargs)


def _optional(check: Check, kwargs: dict[str, Any]) -> Check:
    """A check that passes None where that is the field's default."""
    if kwargs.get("default", 0) is not None:
        return check
    return lambda what, value: None if value is None else check(what, value)


def check_fields(obj: Any, name: str) -> None:
    """Checks every field of a dataclass by what was declared with it; messages call it ``name``."""
    for field in dataclasses.fields(obj):
        check = field.metadata.get("check")
        if check is not None:
            check(f"{name}({field.name}=...)", getattr(obj, field.name))


def with_arrays(obj: Any, name: str) -> Any:
    """``obj`` with arrays in the place of lists for :func:`real` fields of several: of a list each number is a leaf."""
    changed = {}
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name)
        if field.metadata.get("single") is False and isinstance(value, (list, tuple)):
            changed[field.name] = array_of(f"{name}({field.name}=...)", value)
    return obj.replace(**changed) if changed else obj


def check_single(obj: Any, name: str) -> None:
    """Checks, of what a run is about to use, that every :func:`real` field is one number and not a stack of them.

    Of stacks that ``jax.vmap`` takes apart a run sees one number.
    """
    for field in dataclasses.fields(obj):
        if field.metadata.get("single"):
            check_scalar(f"{name}({field.name}=...)", getattr(obj, field.name))
