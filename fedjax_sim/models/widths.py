"""Checks of the widths that models are given."""

from __future__ import annotations

from typing import Any

from fedjax_sim.core.values import check_count


def check_widths(what: str, values: Any, number: int | None = None) -> None:
    """Checks for a tuple of positive integers, ``number`` of them.

    Raises:
      TypeError: not a tuple of that many, or one that is not an integer.
      ValueError: one below 1.
    """
    if not isinstance(values, (tuple, list)) or number not in (None, len(values)):
        raise TypeError(f"{what} is {values!r}: give a tuple of {'' if number is None else f'{number} '}widths")
    for value in values:
        check_count(what, value)


def check_groups(model: str, groups: Any, width: int) -> None:
    """Checks that ``groups`` normalisation groups divide the ``width`` channels of the narrowest layer.

    Raises:
      TypeError: not an integer.
      ValueError: not a divisor.
    """
    check_count(f"{model}(groups=...)", groups)
    if width % groups:
        raise ValueError(f"{model}(groups={groups}): it must divide the {width} channels of the first convolution")
