"""What a study differentiates: one number of a run's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import shown, suggest
from fedjax_sim.reporting.recorded import known_as
from fedjax_sim.run.training import TrainResult

Objective = Callable[[TrainResult], jax.Array]
"""A function of a run's result to a scalar: what a study by gradient minimises."""


class Final(Described):
    """The last recorded value of a metric, or of a record of every round.

    Args:
      name: ``"test_loss"``, ``"loss"``, a diagnostic's name, ... A loss has the task's penalty in it, with which a
        weight decay that is tuned itself looks better the smaller it is: for that there is ``"test_data_loss"``.
    """

    name: str = static(default="test_loss")

    def checked(self) -> Final:
        if not isinstance(self.name, str):
            raise TypeError(f"final(name={shown(self.name)}): give the name of a metric, 'test_loss'")
        return self

    def __call__(self, result: TrainResult) -> jax.Array:
        recorded = {**result.rounds, **result.metrics}
        name = known_as(self.name, recorded)
        if name in recorded:
            return recorded[name][-1]
        if self.name.startswith("test_") and self.name.removeprefix("test_") in recorded:
            raise ValueError(
                f"final({self.name!r}): the data set has no test examples to validate on; hold some out "
                f"(test_fraction=0.2), or minimise final({self.name.removeprefix('test_')!r})"
            )
        raise ValueError(f"final({self.name!r}): nothing of that name is recorded; {suggest(self.name, [*recorded])}")


final = factory("objective.final", Final)


def evaluated(objective: Objective, result: TrainResult) -> jax.Array:
    """``objective(result)``, checked while a program is traced.

    Raises:
      TypeError: it is not one real number.
    """
    value: Any = objective(result)
    dtype, shape = getattr(value, "dtype", None), jnp.shape(value)
    if dtype is None or shape != () or not jnp.issubdtype(dtype, jnp.floating):
        found = shown(value) if dtype is None else f"{dtype}{list(shape)}"
        raise TypeError(
            f"the objective returns {found}: it must return one real number, for instance "
            "lambda result: result.metrics['test_loss'][-1]"
        )
    return value  # type: ignore[no-any-return]


def check_objective(what: str, objective: Any) -> None:
    """Raises ``TypeError`` where ``objective`` is no function."""
    if not callable(objective):
        raise TypeError(
            f"{what} is {shown(objective)}: give a function of a TrainResult, for instance "
            "fedjax_sim.hyper.final('test_loss')"
        )
