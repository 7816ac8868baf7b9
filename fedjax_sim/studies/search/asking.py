"""Points that others suggest (optuna, evosax, code of one's own): a batch of them evaluated as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.checks import check_seeds
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.studies.objectives import Final, check_inputs, final
from fedjax_sim.studies.sweeps.running import sweep
from fedjax_sim.studies.sweeps.space import LogUniform, Uniform, points

Evaluate = Callable[[Sequence[Mapping[str, Any]]], np.ndarray]  # points to losses, less is better


def evaluator(
    algorithm: Method,
    dataset: FederatedDataset,
    *,
    objective: Final | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    **run: Any,
) -> Evaluate:
    """Makes ``evaluate(points) -> losses``, for what suggests points and wants to be told how good they are.

    All points of a call and all seeds are one program, that of :func:`fedjax_sim.sweep`, compiled once for a number of
    points. Arguments as there; ``objective`` is the metric at the end of a run, by default
    ``fjs.hyper.final("validation_loss")``, without such a part of ``"test_loss"``. Losses are float64[P], means over
    seeds, the negative of a metric of which more is better, infinite where it or a loss is not finite.
    """
    seed_list = check_seeds(seeds)
    metric = check_inputs("evaluator", algorithm, dataset, objective, final)

    def evaluate(batch: Sequence[Mapping[str, Any]]) -> np.ndarray:
        swept = sweep(
            algorithm, dataset, points(batch), seeds=seed_list, initial_params=initial_params, progress=False, **run
        )
        means = swept.compared(metric.name)[1]
        return np.where(np.isnan(means), np.inf, means if less_is_better(metric.name) else -means)

    return evaluate


def ask_optuna(
    study: Any, evaluate: Evaluate, over: Mapping[str, Uniform], *, batch: int = 8, batches: int = 10
) -> None:
    """Asks an optuna study, which minimises, for ``batches`` times ``batch`` points and tells it their losses.

    Losses are those of ``evaluate``, which :func:`evaluator` makes. Hyper-parameters are suggested from ``over``,
    ``{"mu": fjs.sweeps.log_uniform(1e-3, 1)}``. None of a batch's points knows of the losses of the others. What was
    found is in the study.
    """
    import optuna

    if study.directions != [optuna.study.StudyDirection.MINIMIZE]:
        raise ValueError("ask_optuna(study): it must minimise, optuna.create_study(direction='minimize')")
    suggested = {
        name: optuna.distributions.FloatDistribution(one.low, one.high, log=isinstance(one, LogUniform))
        for name, one in over.items()
    }
    for _ in range(batches):
        trials = [study.ask(suggested) for _ in range(batch)]
        for trial, loss in zip(trials, evaluate([trial.params for trial in trials]), strict=True):
            study.tell(trial, float(loss))


def ask_evosax(
    make: Any, evaluate: Evaluate, over: Mapping[str, Uniform], *, batch: int = 8, batches: int = 10, seed: int = 0
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Lets an evolution strategy of evosax suggest ``batches`` generations of ``batch`` points.

    It moves u, from 0 on, by draws of ``seed``; a hyper-parameter is the quantile of its distribution in ``over`` at
    1 / (1 + exp(-u)), and losses are those of ``evaluate``, which :func:`evaluator` makes.
    ``make`` is a distribution-based algorithm that ranks losses, ``evosax.algorithms.CMA_ES``, or a function of its
    arguments ``population_size`` and ``solution``: the loss of a run that diverged is infinite.

    Returns:
      All points that were tried, float64[batches, batch] by name, and their losses, float64[batches, batch].
    """
    key, tried, found = jax.random.key(seed), [], []
    middle = {name: jnp.zeros((), jnp.result_type(float)) for name in over}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # which evosax expects
        strategy = make(population_size=batch, solution=middle)
        parameters = strategy.default_params
        state = strategy.init(key, middle, parameters)
        for number in range(batches):
            asked, told = jax.random.split(jax.random.fold_in(key, number))
            u, state = strategy.ask(asked, state, parameters)
            shares = {name: np.asarray(jax.nn.sigmoid(leaf), np.float64) for name, leaf in u.items()}
            tried.append({name: one.quantile(shares[name]) for name, one in over.items()})
            found.append(evaluate([dict(zip(over, row, strict=True)) for row in zip(*tried[-1].values(), strict=True)]))
            fitness = jnp.asarray(found[-1], jnp.result_type(float))
            state, _ = strategy.tell(told, u, fitness, state, parameters)
    return {name: np.stack([one[name] for one in tried]) for name in over}, np.stack(found)
