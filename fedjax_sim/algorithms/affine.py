"""Methods whose clients form sums and multiples only, so that what they train may be written in any coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Hook = TypeVar("Hook", bound=Callable[..., Any])

_HOOKS = ("begin", "objective", "turn", "step", "change", "finish")


def affine(hook: Hook) -> Hook:
    """Marks a client's hook that forms sums and scalar multiples of y, x and gradients, and no more.

    Multiples are by numbers that do not depend on them; to an objective it may add multiples of |y|^2 and |y - x|^2.
    Such a hook does not care in which coordinates they are (:mod:`fedjax_sim.models.coordinates`), as far as it asks F
    for nothing but ``F(y)``, treats all arrays of a model alike, and sends none of them in a ``Stack``. A method that
    overrides it without the mark is not taken for one.
    """
    hook.affine = True  # type: ignore[attr-defined]
    return hook


def is_affine(method: Any, *, surveying: bool = False) -> bool:
    """Whether all that the method's clients compute, but for F itself, is marked :func:`affine`.

    ``surveying`` asks it of a method whose clients survey their data in the place of steps.
    """
    requires, hooks = method.requires, (*_HOOKS, *(["survey"] if surveying else []))
    marked = all(getattr(getattr(type(method), name), "affine", False) for name in hooks)
    alone = requires.steps != requires.survey
    return marked and requires.survey == surveying and alone and not (requires.other_batch or method.keep_optimizer)
