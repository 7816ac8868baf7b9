"""``phase``: methods over two axes and seeds, with as few programs as there are structures."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

import numpy as np

from fedjax_sim.core.descriptions import describe, is_traced
from fedjax_sim.core.devices import environment
from fedjax_sim.core.opaque import check_known
from fedjax_sim.core.values import check_count, check_flag, shown
from fedjax_sim.datasets.fingerprints import fingerprint
from fedjax_sim.engine.arguments import RunArguments, takes_run
from fedjax_sim.engine.checks import check_seeds
from fedjax_sim.reporting.progress import progress_bar
from fedjax_sim.reporting.recorded import less_is_better, more_is_better
from fedjax_sim.studies.phases.result import PhaseDiagram
from fedjax_sim.studies.phases.runs import Diagram, refined
from fedjax_sim.studies.phases.settings import Grid, axis
from fedjax_sim.studies.sweeps.program import of_points
from fedjax_sim.studies.sweeps.space import Space
from fedjax_sim.studies.sweeps.stored import Folder


@takes_run("eval_every", eval_every="a cell is judged after the last round")
def phase(
    algorithms: Mapping[str, Any],
    data: Any,
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    seeds: int | Iterable[int] = range(5),
    metric: str = "loss",
    less: bool | None = None,
    best_of: Space | None = None,
    choosing_seeds: Iterable[int] = (),
    refine: int | None = None,
    initial_params: Any = None,
    progress: bool | None = None,
    resume: str | os.PathLike[str] | None = None,
    **run: Unpack[RunArguments],
) -> PhaseDiagram:
    """Runs methods in every cell of two axes with every seed: the same data, starts and draws for each method.

    An axis is a parameter of functions given in the place of the data, an algorithm or an argument of the run, which
    are called with a cell's values; or, where none has it, the path of a real leaf as in :func:`fedjax_sim.sweep`. What
    functions return may differ in numbers: these are traced, and one program serves all. Each other structure is a
    program of its own. Only integers at ``work`` need a word: ``local.steps(K)`` is structure and
    ``local.given_steps(K, most=64)`` a number. A cell equals ``simulate`` of that setting alone, up to round-off.

    Args:
      algorithms: methods, or functions that make them, by the names to print.
      data: a data set, or its factory, which may take axes and ``seed``: a draw of the data for each seed.
      x: the horizontal axis, ``{"alpha": [0.0, 0.5, 1.0]}``, ascending.
      y: the vertical one.
      seeds: of runs, and of a data factory's draws: the same for all cells and methods.
      metric: one number of an evaluation; its value after the last round counts, NaN where the run diverged.
      less: whether less is better; None for losses, errors and accuracies, whose names say it.
      best_of: values of which each method takes its best in each cell, by the mean over the ``choosing_seeds``.
      choosing_seeds: for ``best_of``; none of ``seeds``, so that what is reported is not what was chosen by.
      refine: so many cells at most: coarse ones, then those next to where verdicts, not corrected, differ or do not
        separate.
      initial_params: where all runs start; None draws them from each seed.
      progress: a progress bar, after a line with the cost; None on a terminal only.
      resume: a folder for finished calls, from which the same call goes on, to the same bits.
      **run: the arguments of :func:`fedjax_sim.make_train` but ``eval_every``, or functions of axes that return them.

    Returns:
      A :class:`fedjax_sim.studies.phases.PhaseDiagram`.

    Raises:
      TypeError, ValueError: bad input, before anything is compiled; a folder of another diagram.
      RuntimeError: a cohort scheme drew more clients than it has slots.
    """
    seed_list = check_seeds(seeds)
    choosing = check_seeds(choosing_seeds) if best_of is not None else list(choosing_seeds)
    if not isinstance(algorithms, Mapping) or not algorithms:
        raise TypeError(
            f"phase: algorithms is {shown(algorithms)}: give methods by name, {{'FedAvg': fjs.fedavg(...)}}"
        )
    if best_of is not None and not isinstance(best_of, Space):
        raise TypeError(f"phase(best_of={shown(best_of)}): give a space, fedjax_sim.sweeps.grid({{...}})")
    if (best_of is None and choosing) or set(choosing) & set(seed_list):
        raise ValueError("phase(choosing_seeds=...): they go with best_of=..., and none may be one of the seeds")
    if refine is not None:
        check_count("phase(refine=...)", refine)
        if len(algorithms) < 2 or len(seed_list) < 2:
            raise ValueError("phase(refine=...): a boundary needs two methods and two seeds")
    grid = Grid(algorithms, data, (axis("x", x), axis("y", y)), best_of, dict(run))
    if is_traced((data, list(algorithms.values()), initial_params)):
        raise TypeError("phase was given traced values: call it outside of jit, grad and vmap")
    evaluate = of_points(run["evaluate"], [*(one.name for one in grid.axes), *grid.points[0]], run["task"])
    diagram = Diagram(grid, metric, _direction(metric, less), seed_list, choosing, evaluate, initial_params)
    total = len(grid.axes[0].values) * len(grid.axes[1].values)
    cost = diagram.plan(total if refine is None else min(refine, total))
    about = {
        "axes": [[one.name, list(one.values)] for one in grid.axes], "methods": list(grid.methods), "metric": metric,
        "less": diagram.less, "seeds": seed_list, "choosing_seeds": choosing,
        "best_of": None if best_of is None else describe(best_of),
        "evaluate": None if run["evaluate"] is None else describe(run["evaluate"]),
        "initial_params": None if initial_params is None else fingerprint(initial_params),
    }  # fmt: skip
    where, started = environment(), time.perf_counter()

    def now() -> PhaseDiagram:
        spent = {"seconds": time.perf_counter() - started, "cost": cost._asdict()}
        return diagram.result(about | {"environment": where} | spent)

    with contextlib.ExitStack() as stack:
        if resume is not None:
            check_known("a phase diagram that is stored", about)
            decides = about | {"float": where["float"], "generator": where["generator"]}
            diagram.restore(stack.enter_context(Folder(resume, decides, where, "phase")))
        bar = stack.enter_context(progress_bar(cost.runs, progress, "phase diagram", unit="run"))
        if bar.enabled:
            print(cost, file=sys.stderr)
            bar.compiling()
        count = [0]

        def told(runs: int) -> None:
            count[0] += runs
            bar.update(count[0])

        diagram.told = told
        if refine is None:
            diagram.run(list(np.ndindex(*diagram.shape[:2])))
        else:
            refined(
                diagram.shape[0], diagram.shape[1], refine, diagram.run, lambda: now().verdict(correction=None).winner
            )
    return now()


def _direction(metric: str, less: bool | None) -> bool:
    """Whether less is better."""
    if less is not None:
        check_flag("phase(less=...)", less)
        return less
    if not less_is_better(metric) and not more_is_better(metric):
        raise ValueError(
            f"phase(metric={metric!r}): its name does not say whether less is better: give less=True or False"
        )
    return less_is_better(metric)
