"""The keyword arguments of ``make_train``, for functions that look at a run without running it."""

from __future__ import annotations

from typing import Any, Unpack

from fedjax_sim.engine.arguments import RunArguments, takes_run
from fedjax_sim.engine.checks import check_arguments
from fedjax_sim.engine.plan import Plan


def asked_of(run: dict[str, Any]) -> tuple[Plan, int]:
    """What is asked for, without algorithm, data and key, and the number of rounds.

    Args:
      run: keyword arguments of :func:`fedjax_sim.make_train`.

    Raises:
      TypeError, ValueError: as ``make_train``.
    """
    return make_train(**{name: value for name, value in run.items() if name not in ("adjoint", "on_round")})


@takes_run()
def make_train(**run: Unpack[RunArguments]) -> tuple[Plan, int]:
    """As far as both go the same way; errors name it."""
    return check_arguments(run), run["rounds"]
