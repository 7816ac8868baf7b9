"""``sweep``: a whole space of hyper-parameters, times seeds, as one program."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import jax
import numpy as np
from flax import serialization

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import MAX_ARRAY, describe, is_traced
from fedjax_sim.core.opaque import check_known
from fedjax_sim.core.values import check_count, check_flag, shown
from fedjax_sim.datasets.federated import FederatedDataset, whole
from fedjax_sim.datasets.fingerprints import fingerprint, known_again
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.arguments import RunArguments, check_arguments, takes_run
from fedjax_sim.engine.checks import check_seeds, resolve
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.memory import room
from fedjax_sim.engine.plan import Plan
from fedjax_sim.reporting.progress import progress_bar
from fedjax_sim.reporting.recorded import telling_loss
from fedjax_sim.run.history import History
from fedjax_sim.run.simulation import describe_run, warn_of_negative_weights
from fedjax_sim.studies.subject import judging
from fedjax_sim.studies.sweeps import stored
from fedjax_sim.studies.sweeps.program import Executor, in_words, of_all_points, of_points, stacked
from fedjax_sim.studies.sweeps.result import Sweep
from fedjax_sim.studies.sweeps.space import Space


@takes_run()
def sweep(
    algorithm: Method,
    dataset: FederatedDataset,
    space: Space,
    *,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    progress: bool | None = None,
    keep_params: bool = False,
    chunk: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    resume: str | os.PathLike[str] | None = None,
    **run: Unpack[RunArguments],
) -> Sweep:
    """Runs every point of a space with every seed, and returns what was recorded with names to its axes.

    All runs are ONE program, compiled once, whatever the values: on a CPU a device takes its runs in turn (vmapped
    dynamic loops would make every run wait for the slowest), elsewhere they run side by side. Several devices share
    the runs evenly. The result of a point and seed is that of ``simulate`` with these values and this seed, up to
    round-off. A run that diverges is a result like any other, with NaN or infinity in its metrics.

    Args:
      algorithm: what to run; the values of the space take the place of its own.
      dataset: whose data.
      space: the points: ``fjs.sweeps.grid({"mu": [0.1, 1.0], "client_optimizer.learning_rate": [0.01, 0.1]})``.
        Names are real leaves of the algorithm, or, after ``task.``, ``cohort.``, ``work.``, ``system.`` or
        ``asynchronous.``, of these. An ``evaluate`` with the run's task in it, ``per_client(task)``, is of each
        point's task.
      seeds: one seed or several, the same for all points.
      initial_params: where all runs start; None draws them from each seed.
      progress: a progress bar; None shows one on a terminal only.
      keep_params: whether the result has the final models of all runs.
      chunk: the most runs of one call of the program, which bounds memory where runs go side by side, and after which
        progress is shown and results are stored; None for 16 a device on a CPU, 64 elsewhere.
      devices: those to use, of one kind; None for all.
      resume: a folder for finished chunks. Call again with the same arguments after an interruption, and only what is
        missing is run; ``chunk`` and ``devices`` may be others. A part of one's own is known by its
        values and its code; one of which that cannot be told is refused.
      **run: the arguments of :func:`fedjax_sim.make_train`: task, rounds, cohort, work, batch_size, ...

    Returns:
      A :class:`fedjax_sim.sweeps.Sweep`.

    Raises:
      TypeError, ValueError: bad input, before anything is compiled; with ``resume`` also a folder of another sweep,
        with what differs.
      OSError: with ``resume``, before anything is compiled: the folder cannot be written, or another process writes a
        sweep to it.
      RuntimeError: a cohort scheme drew more clients than it has slots.

    Warns:
      UserWarning: with ``resume``, runs in the folder were computed by other versions, under other settings, or on
        another device.

    Example:
      >>> import fedjax_sim as fjs
      >>> space = fjs.sweeps.grid({"mu": [0.01, 1.0], "client_optimizer.learning_rate": [0.01, 0.02, 0.05]})
      >>> result = sweep(
      ...     fjs.fedprox(client_optimizer=fjs.optim.sgd(0.02)), fjs.datasets.quadratics(num_clients=3, dim=2, seed=0),
      ...     space, task=fjs.quadratic(), rounds=4, eval_every=2, batches=fjs.local.full_batch(),
      ...     cohort=fjs.cohort.full(), work=fjs.local.steps(3), seeds=range(2),
      ... )
      >>> result["loss"].shape, result.dims
      ((2, 3, 2, 3), ('mu', 'client_optimizer.learning_rate', 'seed'))
      >>> sorted(result.best("loss").point)
      ['client_optimizer.learning_rate', 'mu']
    """
    asked = check_arguments(run)
    rounds, eval_every, evaluate = run["rounds"], run["eval_every"], run["evaluate"]
    seed_list = check_seeds(seeds)
    check_swept("sweep", dataset, space, asked.layout)
    check_flag("sweep(keep_params=...)", keep_params)
    if chunk is not None:
        check_count("sweep(chunk=...)", chunk)
    if is_traced((algorithm, dataset, asked)):
        raise TypeError("sweep was given traced values: inside jit, grad or vmap call make_train(...)'s function")
    # Runs are spread over the devices, each with all data.
    asked = asked._replace(algorithm=algorithm, dataset=whole(dataset), key=jax.random.key(seed_list[0]))
    base = resolve(asked, rounds, initial_params)
    values = stacked(asked, space)
    plan = of_all_points(base, asked, space, rounds, initial_params)
    judged = of_points(evaluate, space.names, asked.task)
    evaluate = judging(judged, plan.task)
    description = describe_run(plan, rounds, eval_every, evaluate=evaluate, initial_params=initial_params)

    with contextlib.ExitStack() as stack:
        stack.enter_context(room(base))
        folder, finished = None, []
        if resume is not None:
            decides = {
                "evaluate": None if evaluate is None else describe(evaluate),
                "space": describe(space),
                "seeds": seed_list,
                "initial_params": None if initial_params is None else fingerprint(initial_params),
                "keep_params": keep_params,
            }
            decisive = configuration(description, plan, "a sweep that is stored") | decides
            folder = stack.enter_context(stored.Folder(resume, decisive, description["environment"]))
            finished = folder.finished()
            if folder.earlier:
                description["environment"] = description["environment"] | {"earlier": folder.earlier}
        total = space.num_points * len(seed_list)
        missing = sorted(set(range(total)) - {number for numbers, _ in finished for number in numbers})
        if not missing:
            description["environment"] = stored.environment(finished) or description["environment"]
        executor = Executor(
            plan.placed().shared(evaluate), initial_params, values, seed_list, count=len(missing), chunk=chunk,
            devices=jax.local_devices() if devices is None else devices,
            rounds=rounds, eval_every=eval_every, evaluate=judged, keep_params=keep_params,
        )  # fmt: skip
        with progress_bar(total * rounds, progress, f"{type(algorithm).__name__} sweep") as bar:
            bar.compiling()
            compile_seconds = executor.compile() if missing else 0.0
            for first in range(0, len(missing), executor.size):
                numbers = missing[first : first + executor.size]
                history = executor.run(numbers)
                points = [space.point(number // len(seed_list)) for number in numbers]
                check_overflow(history, [f"sweep, {in_words(point)}" for point in points])
                if folder is not None:
                    folder.add(numbers, history)
                finished.append((numbers, history))
                if bar.enabled:
                    done = total - len(missing) + first + len(numbers)
                    loss = telling_loss(history.metrics)
                    losses = history.final(loss) if loss else np.empty(0)
                    finite = losses[np.isfinite(losses)]
                    bar.update(done * rounds, {loss or "loss": float(np.median(finite)) if finite.size else np.nan})
    runs = _joined(finished, plan.params if keep_params else None)
    warn_of_negative_weights(runs.rounds, plan.algorithm)
    description |= {"space": describe(space), "seeds": seed_list}
    return Sweep(dataclasses.replace(runs, compile_seconds=compile_seconds, description=description), space, seed_list)


def configuration(description: dict[str, Any], plan: Plan, what: str) -> dict[str, Any]:
    """What decides the results of a plan, as JSON; for ``what``, parts of which that is not known are refused."""
    check_known(what, {key: description[key] for key in ("algorithm", "run")})
    rest = plan._replace(algorithm=None, dataset=None, key=None)  # type: ignore[arg-type]
    # arrays of which the description has no values
    large = [leaf for leaf in jax.tree.leaves((plan.algorithm, rest)) if np.size(leaf) > MAX_ARRAY]
    environment = description["environment"]
    return {
        "algorithm": description["algorithm"],
        "dataset": known_again(description["dataset"], fingerprint(plan.dataset)),
        "run": description["run"],
        "float": environment["float"],
        "generator": environment["generator"],
        **({"arrays": fingerprint(large)} if large else {}),
    }


def _joined(finished: list[tuple[list[int], History]], params: Any) -> History:
    """All runs in their order; parameters that were read from files get the structure of ``params`` back."""
    order = np.argsort([number for numbers, _ in finished for number in numbers])
    parts = [history for _, history in finished]

    def together(*leaves: np.ndarray) -> Any:
        return np.concatenate(leaves)[order]

    def model(part: History) -> Any:
        return serialization.from_state_dict(params, serialization.to_state_dict(part.params))

    models = [] if params is None else [model(part) for part in parts]
    return dataclasses.replace(
        parts[0],
        metrics=jax.tree.map(together, *(part.metrics for part in parts)),
        rounds=jax.tree.map(together, *(part.rounds for part in parts)),
        params=jax.tree.map(together, *models) if models else None,
        seeds=together(*(np.asarray(part.seeds) for part in parts)).tolist(),
        seconds=sum(part.seconds for part in parts),
        divergences=sorted(found for part in parts for found in part.divergences),
    )


def check_swept(who: str, dataset: Any, space: Any, layout: Layout | None) -> None:
    """What ``simulate`` does not ask of a run; ``who`` is what messages call the function."""
    check_one_device(who, dataset, layout)
    if not isinstance(space, Space):
        raise TypeError(
            f"space is {shown(space)}: give a space, for instance fedjax_sim.sweeps.grid({{'mu': [0.1, 1.0]}})"
        )


def check_one_device(who: str, dataset: Any, layout: Layout | None) -> None:
    """Refuses what has no place in a program of many runs on one device."""
    if isinstance(layout, OnMesh):
        raise ValueError(
            f"{who}(layout={shown(layout)}): {who} gives every device runs of its own, which is faster than to deal "
            "each cohort to all; leave layout out, or call simulate for each point"
        )
    if isinstance(dataset, HostDataset):
        raise TypeError(
            f"{who} was given a HostDataset: all its runs are one program, with the data on the device; use "
            "dataset.on_device() if there is room for all of it, or one simulate for each point"
        )


def check_overflow(history: History, runs: list[str]) -> None:
    """Ends a study whose cohort scheme drew more clients than it has slots: its results would be biased."""
    if "overflow" in history.rounds and history.rounds["overflow"].any():
        run, first = np.argwhere(history.rounds["overflow"])[0]
        raise RuntimeError(
            f"{runs[run]}, seed {history.seeds[run]}: round {first} drew more clients than the "
            "cohort scheme has slots, so its model is NaN: give a larger cap, or leave cap=None"
        )
