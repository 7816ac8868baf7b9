"""``tune``: hyper-parameters found by following the gradient of a whole federated run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import optim
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core import sampling, trees
from fedjax_sim.core.descriptions import describe
from fedjax_sim.core.loops import over_leading_axis
from fedjax_sim.core.programs import compiling
from fedjax_sim.core.values import LARGEST_SEED, check_count, check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.checks import check_seeds
from fedjax_sim.reporting.progress import progress_bar
from fedjax_sim.run.training import make_train
from fedjax_sim.studies.hyper.tuned import Tuned
from fedjax_sim.studies.objectives import Objective, check_inputs, check_minimised, evaluated, final
from fedjax_sim.studies.outer.estimators import Estimate, Estimator, estimate
from fedjax_sim.studies.outer.problems import federated
from fedjax_sim.studies.subject import Subject, Transform, values_of

Values = dict[str, jax.Array]  # by path


class Descent(NamedTuple):
    """Where a descent stands, which survives divergence; a pytree.

    A point whose value or gradient is not finite is not moved to: the step that led there is halved until it ends
    somewhere finite, and grows back to its full length by doublings, one after every accepted point.
    """

    proposal: Any  # the point to evaluate next, point + scale * direction
    point: Any  # the last accepted one
    direction: Any  # the step that the optimiser wants to take from there
    solver: Any  # its state behind that step
    scale: jax.Array  # in (0, 1], the part of the step that is tried


def begin(optimizer: optim.Optimizer, point: Any, direction: Any) -> Descent:
    """A descent whose first proposal is ``point + direction``; if that fails, half the way, and so on."""
    scale = jnp.ones((), jnp.result_type(float))
    return Descent(trees.add(point, direction), point, direction, optimizer.init(point), scale)


def advance(optimizer: optim.Optimizer, descent: Descent, accepted: jax.Array, gradient: Any) -> Descent:
    """The descent after its proposal was evaluated: accepted if value and ``gradient`` there are finite."""
    updates, solver = optimizer.update(gradient, descent.solver, descent.proposal)
    moved = (descent.proposal, updates, solver, jnp.minimum(2 * descent.scale, 1))
    halted = (descent.point, descent.direction, descent.solver, descent.scale / 2)
    point, direction, solver, scale = trees.select(accepted, moved, halted)
    return Descent(trees.add_scaled(point, scale, direction), point, direction, solver, scale)


class Evaluated(NamedTuple):
    """One evaluation of the objective, with the fields of :class:`Tuned`; a pytree."""

    by_seed: jax.Array
    values: Values
    gradients: Values
    accepted: jax.Array
    scale: jax.Array


def tune(
    algorithm: Method,
    dataset: FederatedDataset,
    *,
    over: Iterable[str] | Mapping[str, Transform | None],
    objective: Objective | None = None,
    estimator: Estimator | None = None,
    optimizer: Any = None,
    steps: int = 50,
    seeds: int | Iterable[int] = 0,
    restarts: int = 1,
    spread: float = 1.0,
    restart_seed: int = 0,
    initial_params: Any = None,
    progress: bool | None = None,
    **run: Any,
) -> Tuned:
    """Minimises a validation objective over named hyper-parameters, by gradients through whole runs.

    With hyper-parameters theta = f(u) and runs with the seeds s = 1 .. S::

        J(u) = 1/S sum_s objective(train(algorithm with f(u), dataset, key_s))
        u <- u + scale * optimizer(dJ/du)

    The seeds are the same in every step, so J is one deterministic function; report the result on other seeds. A point
    at which J or its gradient is not finite (the run diverged) is rejected: the step that led there is halved until it
    ends somewhere finite, and grows back afterwards. What was rejected is in the result.

    All runs of a step, restarts and seeds, are one program (in turn on a CPU, side by side elsewhere), compiled once. A
    step costs about three to six times the runs without derivative.

    Args:
      algorithm: the method, with the values to start from.
      dataset: whose data; its validation part, or else its test part, is what the default objective validates on.
      over: the hyper-parameters, by path: ``["mu", "client_optimizer.learning_rate"]``, ``"task.weight_decay"`` (a part
        of the run), arrays as a whole. A mapping gives each a transform, None for the default: the one that keeps the
        value where its owner accepts it (``positive()`` for rates and mu, ``unit_interval()`` for momenta).
      objective: a function of a :class:`fedjax_sim.run.training.TrainResult` that returns one real number, minimised;
        by default ``fedjax_sim.hyper.final`` of ``"validation_loss"``, without such a part of ``"test_loss"``.
      estimator: how the gradient is found, an object of ``fjs.outer``: ``fjs.outer.pes(sigma=0.1, window=5)``. The
        objective is then ``fjs.hyper.mean(name)`` or ``fjs.hyper.final(name)``; values and gradients are estimates,
        each step's with draws of its own, and ``tuned.gradients`` are those in the coordinates u. None for the
        derivative through the runs.
      optimizer: ours or a bare optax object, for the coordinates u; ``fedjax_sim.optim.adam(0.1)`` by default: with
        ``positive()`` a step of about 10 %.
      steps: steps after the evaluation of the start.
      seeds: one seed or several of the runs.
      restarts: how many descents. The first starts at the values given, the others at ``u + spread * normal``.
      spread: standard deviation of these perturbations in the coordinates u: 1 is a factor of e with ``positive()``.
      restart_seed: of the perturbations.
      initial_params: where the runs start; None draws them from each seed.
      progress: a progress bar; None shows one on a terminal only.
      **run: the arguments of :func:`fedjax_sim.make_train`: task, rounds, cohort, work, batch_size, ...

    Returns:
      A :class:`fedjax_sim.hyper.Tuned`: the best algorithm, and all that was tried.

    Raises:
      TypeError, ValueError: before anything is compiled: an unknown path, a hyper-parameter that is structure or an
        integer, a start outside its transform's values, an objective that nothing records, a bad argument of the run.
      FloatingPointError: objective or gradient are not finite at the values given.

    Reference: Maclaurin et al. 2015, "Gradient-based hyperparameter optimization through reversible learning" (the idea
    of the gradient of a training run).

    Example:
      >>> import fedjax_sim as fjs
      >>> from fedjax_sim.studies.hyper import final, tune
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, scale=1.0)
      >>> tuned = tune(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.01)), data, over=["client_optimizer.learning_rate"],
      ...     objective=final("loss"), steps=5, task=fjs.quadratic(), rounds=2,
      ...     batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ... )
      >>> bool(tuned.algorithm.client_optimizer.learning_rate > 0.01 and tuned.value < tuned.values[0, 0])
      True
    """
    solver = optim.as_optimizer(optim.adam(0.1) if optimizer is None else optimizer, "tune(optimizer=...)")
    check_count("tune(steps=...)", steps)
    check_count("tune(restarts=...)", restarts)
    check_count("tune(restart_seed=...)", restart_seed, low=0, high=LARGEST_SEED)
    check_real("tune(spread=...)", spread, low=0.0)
    seed_list = check_seeds(seeds)
    objective = check_inputs("tune", algorithm, dataset, objective, final)
    check_minimised("tune", objective)
    subject = Subject(algorithm, run)
    transforms = subject.transforms("tune", over)
    start = subject.coordinates(transforms)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seed_list, jnp.uint32))
    directions = _perturbations(start, restarts, spread, restart_seed)

    def of_seed(values: Values, algorithm: Method, dataset: FederatedDataset, params: Any, key: jax.Array) -> jax.Array:
        varied = Subject(algorithm, subject.run).replace(values)
        result = make_train(**varied.run)(varied.algorithm, dataset, key, initial_params=params)
        return evaluated(objective, result)

    def differentiated(given: Any, u: Values, keys: jax.Array, number: jax.Array) -> tuple[Any, Values, Values, Values]:
        values, pull = jax.vjp(lambda u: values_of(u, transforms), u)
        by_seed, each = over_leading_axis(lambda key: jax.value_and_grad(of_seed)(values, *given, key), keys)
        gradients = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), each)
        return by_seed, values, gradients, *pull(gradients)

    def estimated(given: Any, u: Values, keys: jax.Array, number: jax.Array) -> tuple[Any, Values, Values, Values]:
        def of_key(key: jax.Array) -> Estimate:
            return estimate(estimator, given, u, jax.random.fold_in(key, number))  # type: ignore[arg-type]

        found = over_leading_axis(of_key, keys)
        gradient = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), found.gradient)
        return found.value, values_of(u, transforms), gradient, gradient

    @jax.jit
    def step(descents: Descent, given: Any, keys: jax.Array, number: jax.Array) -> tuple[Descent, Evaluated]:
        def one(descent: Descent) -> tuple[Descent, Evaluated]:
            found = (differentiated if estimator is None else estimated)(given, descent.proposal, keys, number)
            by_seed, values, gradients, gradient = found
            accepted = trees.all_finite((by_seed, gradient))
            record = Evaluated(by_seed, values, gradients, accepted, descent.scale)
            return advance(solver, descent, accepted, gradient), record

        return over_leading_axis(one, descents)

    given: Any = subject.algorithm, dataset, initial_params
    if estimator is not None:
        given = federated(
            subject.algorithm, dataset, over=transforms, objective=objective,  # type: ignore[arg-type]
            initial_params=initial_params, **subject.run,
        )  # fmt: skip
    begun = time.perf_counter()
    descents = jax.vmap(lambda direction: begin(solver, start, direction))(directions)
    records: list[Evaluated] = []
    with progress_bar(steps + 1, progress, "tune") as bar:
        bar.compiling()
        with compiling():
            program = step.lower(descents, given, keys, np.int32(0)).compile()
        compiled = time.perf_counter()
        for number in range(steps + 1):
            descents, record = program(descents, given, keys, np.int32(number))
            records.append(jax.tree.map(np.asarray, record))
            if number == 0:
                _check_first(records[0])
            if bar.enabled:
                bar.update(number + 1, {"objective": float(np.mean(records[-1].by_seed[0]))})
    finished = time.perf_counter()
    history = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *records)
    return Tuned.of(
        subject,
        by_seed=history.by_seed,
        hyper={path: history.values[path] for path in transforms},  # JAX has sorted them
        gradients={path: history.gradients[path] for path in transforms},
        accepted=history.accepted,
        scales=history.scale,
        seeds=seed_list,
        seconds=finished - compiled,
        compile_seconds=compiled - begun,
        description={
            **subject.description(),
            "dataset": describe(dataset),
            "over": {path: describe(transform) for path, transform in transforms.items()},
            "objective": describe(objective),
            **({} if estimator is None else {"estimator": describe(estimator)}),
            "optimizer": describe(solver),
            "steps": steps,
            "seeds": seed_list,
            "restarts": restarts,
            "spread": spread,
            "restart_seed": restart_seed,
        },
    )


def _perturbations(start: Values, restarts: int, spread: float, seed: int) -> Values:
    """What each descent starts with besides ``start``, [restarts, ...]; nothing for the first."""
    like = [jnp.broadcast_to(leaf, (restarts, *leaf.shape)) for leaf in start.values()]
    normal = sampling.normal_tree(jax.random.key(seed), like)
    return {path: leaf.at[0].set(0) for path, leaf in zip(start, trees.scale(spread, normal), strict=True)}


def _check_first(record: Evaluated) -> None:
    """Ends a study whose start diverges: there is no gradient to follow."""
    if record.accepted[0]:
        return
    values = ", ".join(f"{path} = {shown(value[0].tolist())}" for path, value in record.values.items())
    objective = float(np.mean(record.by_seed[0]))
    if not np.isfinite(objective):
        raise FloatingPointError(
            f"the objective is {objective} at the start ({values}): the run diverges; give smaller learning rates to "
            "start from"
        )
    bad = [path for path, gradient in record.gradients.items() if not np.isfinite(gradient[0]).all()]
    raise FloatingPointError(
        f"the objective is {objective:.6g} at the start ({values}) and its gradient in {' and '.join(bad)} is not "
        "finite: start from other values, run fewer rounds, or leave it out of 'over'"
    )
