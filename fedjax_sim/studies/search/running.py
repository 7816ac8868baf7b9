"""``search``: members with hyper-parameters of their own, trained side by side and chosen among on the way."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterable
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import describe
from fedjax_sim.core.keys import Purpose, purpose_key
from fedjax_sim.core.programs import compiling
from fedjax_sim.core.values import Found, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.fingerprints import fingerprint
from fedjax_sim.datasets.placement import on_host
from fedjax_sim.engine.arguments import RunArguments, check_arguments, takes_run
from fedjax_sim.engine.checks import check_seeds, resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.reporting.progress import progress_bar
from fedjax_sim.run.checkpoints.differences import check_same, environment_changes
from fedjax_sim.run.checkpoints.store import Store
from fedjax_sim.run.resuming import named, plain, unflattened
from fedjax_sim.run.simulation import describe_run
from fedjax_sim.run.training import evaluation_rounds
from fedjax_sim.studies.objectives import Final, check_inputs, final
from fedjax_sim.studies.search.program import Given, Members, Settings, advance, begin
from fedjax_sim.studies.search.result import Searched
from fedjax_sim.studies.search.strategies import Strategy
from fedjax_sim.studies.subject import Subject
from fedjax_sim.studies.sweeps.program import of_all_points, of_points, placed, stacked
from fedjax_sim.studies.sweeps.running import check_swept, configuration
from fedjax_sim.studies.sweeps.space import Space


@takes_run()
def search(
    algorithm: Method,
    dataset: FederatedDataset,
    space: Space,
    strategy: Strategy,
    *,
    objective: Final | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **run: Unpack[RunArguments],
) -> Searched:
    """Trains a member for every point of a space, and chooses among them on the way.

    Members are runs: for each seed a model with server and client states, and hyper-parameters. After ``eval_every``
    rounds all are evaluated; the strategy then says who goes on, from whose state, with which hyper-parameters. All of
    it is ONE program, whatever the values; members take turns on a CPU and go side by side elsewhere, on one device.
    All members draw the same cohorts and batches, and one that is never replaced is the run of ``simulate`` with its
    values and these seeds, up to round-off.

    Args:
      algorithm: what to run; the values of the space take the place of its own.
      dataset: whose data. What chooses by the test part has seen it: :func:`fedjax_sim.datasets.with_validation`.
      space: the points that members start with, named as in :func:`fedjax_sim.sweep`.
      strategy: ``fjs.hyper.population()`` or ``fjs.hyper.halving()``.
      objective: what compares members, the mean over seeds of a metric at an evaluation: by default
        ``fjs.hyper.final("validation_loss")``, without such a part ``final("test_loss")``. Its name says whether less
        is better: of losses, errors and spreads it is. A member ranks last where the metric, or a loss of one of its
        runs, is not finite.
      seeds: one seed or several, the same for all members; what the strategy draws follows from the first.
      initial_params: where all runs start; None draws them from each seed.
      checkpoint: a directory for a checkpoint after every evaluation. The same call goes on from the newest one, with
        the same result to the last bit. A part of one's own is known by its values and its
        code; one of which that cannot be told is refused.
      progress: a progress bar; None shows one on a terminal only.
      **run: the arguments of :func:`fedjax_sim.make_train`: task, rounds, cohort, work, batch_size, ...

    Raises:
      TypeError, ValueError: bad input, before anything is compiled; a checkpoint of another search, with what differs.
      OSError: the directory cannot be written, or another process writes checkpoints to it.

    Warns:
      UserWarning: the checkpoint was written by other versions, under other settings, or on another device.

    Example:
      >>> import fedjax_sim as fjs
      >>> search(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), fjs.datasets.quadratics(num_clients=3, dim=2, seed=0),
      ...     fjs.sweeps.points([{"client_optimizer.learning_rate": rate} for rate in (0.001, 0.01, 0.1, 10.0)]),
      ...     fjs.hyper.halving(rungs=2), objective=fjs.hyper.final("loss"), task=fjs.quadratic(start=1.0), rounds=4,
      ...     eval_every=2, batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ... )
      Searched(fedavg, halving, 4 members, 1 seed, 4 rounds; best: member 2, score ...)
    """
    asked = check_arguments(run)
    rounds, eval_every, evaluate = run["rounds"], run["eval_every"], run["evaluate"]
    seed_list = check_seeds(seeds)
    check_swept("search", dataset, space, asked.layout)
    objective = check_inputs("search", algorithm, dataset, objective, final)
    if not isinstance(strategy, Strategy) or not isinstance(objective, Final):
        raise TypeError(
            f"search(strategy={shown(strategy)}, objective={shown(objective)}): give fedjax_sim.hyper.population() or "
            "halving(), and fedjax_sim.hyper.final(name)"
        )
    evaluated = evaluation_rounds(rounds, eval_every)
    judged = of_points(evaluate, space.names, asked.task)
    settings = Settings(rounds, eval_every, judged, strategy.sizes(space.num_points, evaluated))
    asked = asked._replace(algorithm=algorithm, dataset=dataset, key=jax.random.key(seed_list[0]))
    base = resolve(asked, rounds, initial_params)
    values = stacked(asked, space, "search")
    plan = of_all_points(base, asked, space, rounds, initial_params, "search")
    if strategy.explores:
        _check_bounds(asked, strategy, {name: column[0] for name, column in values.items()})
    subject = Subject.of(asked)
    transforms = {name: subject.natural(name) for name in space.names}
    new = strategy.fresh(space, transforms, len(evaluated))
    fresh = {} if new is None else stacked(asked, new, "search")
    for number in range(0 if new is None else new.num_points):
        placed(base, {name: column[number] for name, column in fresh.items()})  # checks the values
    shaped: Any = {name: leaf.reshape(len(evaluated), -1, *leaf.shape[1:]) for name, leaf in fresh.items()}
    keys = jax.vmap(jax.random.key)(jnp.asarray(seed_list, jnp.uint32))
    given = Given(plan.placed(), strategy, objective, transforms, keys, purpose_key(keys[0], Purpose.SEARCH), shaped)
    description = describe_run(plan, rounds, eval_every, evaluate=evaluate, initial_params=initial_params) | {
        "space": describe(space), "strategy": describe(strategy), "objective": describe(objective), "seeds": seed_list,
    }  # fmt: skip

    with contextlib.ExitStack() as stack:
        begun = time.perf_counter()
        bar = stack.enter_context(progress_bar(rounds, progress, f"{type(algorithm).__name__} search"))
        bar.compiling()
        with compiling():
            members, done, before, store = begin(given, initial_params, values, settings), 0, 0.0, None
            if checkpoint is not None:
                decisive = description | configuration(description, plan, "a search with checkpoints")
                decisive["initial_params"] = None if initial_params is None else fingerprint(initial_params)
                store = stack.enter_context(Store(checkpoint))
                members, done, before = _restored(store, decisive, members)
            # No evaluation compiles the program.
            members = jax.block_until_ready(advance(given, members, np.int32(done), np.int32(done), settings))
        compiled = time.perf_counter()
        at_once = 1 if store is not None or bar.enabled else len(evaluated)
        for low in range(done, len(evaluated), at_once):
            members = advance(given, members, np.int32(low), np.int32(low + at_once), settings)
            if store is not None:
                arrays = {name: on_host(plain(leaf)) for name, leaf in named(members, "members").items()}
                spent = before + time.perf_counter() - compiled
                about = {"configuration": decisive, "evaluations": low + 1, "seconds": spent}
                store.save(evaluated[low], arrays, about)
            if bar.enabled:
                bar.update(evaluated[low], {"objective": float(np.nanmin(members.record.scores[low]))})
        record: Any = jax.tree.map(np.asarray, members.record)
    finished = time.perf_counter()
    best = int(np.nanargmin(record.scores[-1]))
    server = jax.tree.map(lambda leaf: leaf[best], members.states.server)
    return Searched(
        evaluated=np.asarray(evaluated),
        metrics={name: np.moveaxis(leaf, 0, 2) for name, leaf in record.metrics.items()},
        values={name: record.values[name].swapaxes(0, 1) for name in space.names},
        scores=record.scores.T,
        source=record.source.T,
        params=on_host(jax.vmap(plan.algorithm.evaluated)(server)),
        seeds=seed_list,
        seconds=before + finished - compiled,
        compile_seconds=compiled - begun,
        description=description,
    )


def _check_bounds(asked: Plan, strategy: Strategy, point: dict[str, Any]) -> None:
    """Refuses slots or steps that are found from a value which changes: for other values they would be too few."""

    def bounded(point: dict[str, Any]) -> Any:
        at = placed(asked, point)
        found = {name: None for name, value in vars(at.work).items() if isinstance(value, Found)}
        return jax.tree.leaves((at.cohort.fitted(asked.dataset), at.work.replace(**found).checked() if found else ()))

    try:
        jax.eval_shape(bounded, point)
    except ValueError as error:
        raise ValueError(f"search: {strategy.factory_name()}() changes values on the way: {error}") from error


def _restored(store: Store, configuration: dict[str, Any], members: Members) -> tuple[Members, int, float]:
    """The newest checkpoint's members, evaluations and seconds; ``members`` and 0 where there is none."""
    found = store.newest()
    if found is None:
        return members, 0, 0.0
    saved = found.about["configuration"]
    check_same(found.path, saved, configuration, "search")
    if changes := environment_changes(saved, configuration):
        warnings.warn(f"{found.path} was written elsewhere ({changes}): results may differ by round-off", stacklevel=4)
    restored = jax.tree.map(jnp.asarray, unflattened(members, found, "members"))
    return restored, int(found.about["evaluations"]), float(found.about.get("seconds", 0.0))  # older files have none
