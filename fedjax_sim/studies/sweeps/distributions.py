"""What a random search draws its values from."""

from __future__ import annotations

import numpy as np

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_real


class Distribution(Described):
    """Base of the distributions of one real hyper-parameter."""

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """``count`` independent draws, float64[count]; the first ones do not depend on ``count``."""
        raise TypeError(f"{type(self).__name__} must define draw(generator, count)")


class Uniform(Distribution):
    """Every value between two ends is equally likely: x ~ U[low, high).

    Args:
      low: smallest value.
      high: upper end, above ``low``.

    Raises:
      ValueError: the ends are not finite, or not in this order.
    """

    low: float = static()
    high: float = static()

    def checked(self) -> Uniform:
        ends = _ends("uniform", self.low, self.high, positive=False)
        return self.replace(low=ends[0], high=ends[1])

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return self.low + (self.high - self.low) * generator.random(count)


class LogUniform(Distribution):
    """Every order of magnitude between two ends is equally likely: log x ~ U[log low, log high).

    Args:
      low: smallest value, > 0.
      high: upper end, above ``low``.

    Raises:
      ValueError: the ends are not positive and finite, or not in this order.
    """

    low: float = static()
    high: float = static()

    def checked(self) -> LogUniform:
        ends = _ends("log_uniform", self.low, self.high, positive=True)
        return self.replace(low=ends[0], high=ends[1])

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        drawn: np.ndarray = np.exp(np.log(self.low) + np.log(self.high / self.low) * generator.random(count))
        return drawn


def _ends(name: str, low: object, high: object, *, positive: bool) -> tuple[float, float]:
    for what, value in (("low", low), ("high", high)):
        check_real(f"{name}({what}=...)", value, low=0.0 if positive else None, open_=positive)
    ends = float(np.asarray(low)), float(np.asarray(high))
    if ends[0] >= ends[1]:
        raise ValueError(f"{name}({ends[0]:g}, {ends[1]:g}): low must be below high")
    return ends


uniform = factory("distribution.uniform", Uniform)
log_uniform = factory("distribution.log_uniform", LogUniform)
