"""How fast a method gets to where another one ends."""

from __future__ import annotations

import numpy as np

from fedjax_sim.run.history import History

_ROUNDING = 1e-9  # a mean of equal numbers may lie this far from them


def rounds_to_each(run: History, metric: str, targets: np.ndarray) -> float:
    """Rounds until every seed has reached its own target, mean of the seeds; inf if one never does.

    Args:
      run: of any method, with the seeds of the targets.
      metric: a loss, which falls to its target, or anything else, which rises to it.
      targets: [seeds].
    """
    slack = _ROUNDING if metric.endswith("loss") else -_ROUNDING
    reached = [run.rounds_to(metric, float(target) + slack)[seed] for seed, target in enumerate(targets)]
    return float(np.mean(reached))
