"""What a study differentiates: one number of a run's result, and its derivatives in the weights of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.descriptions import Described, factory, is_traced
from fedjax_sim.core.fields import static
from fedjax_sim.core.loops import with_rows
from fedjax_sim.core.values import check_metric, shown, suggest
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.checks import check_seeds
from fedjax_sim.models.passes import example_owners
from fedjax_sim.reporting.recorded import known_as, more_is_better
from fedjax_sim.run.training import TrainResult, make_train

Objective = Callable[[TrainResult], jax.Array]
"""A function of a run's result to a scalar: what a study by gradient minimises."""


class _OfMetric(Described):
    """Base of the objectives that read one recorded number."""

    name: str = static(check_metric, default="test_loss")

    def of(self, recorded: Mapping[str, jax.Array]) -> jax.Array:
        """What is recorded under the name."""
        name, called = known_as(self.name, recorded), f"{self.factory_name()}({self.name!r})"
        if name in recorded:
            return recorded[name]
        part, _, of = self.name.partition("_")
        fixes = {"test": "test_fraction=0.2", "validation": "fjs.datasets.with_validation(data, 0.2)"}
        if part in fixes and of in recorded:
            raise ValueError(
                f"{called}: the data set has no {part} examples to validate on; hold some out ({fixes[part]}), or "
                f"minimise {self.factory_name()}({of!r})"
            )
        raise ValueError(f"{called}: nothing of that name is recorded; {suggest(self.name, [*recorded])}")


class Final(_OfMetric):
    """The last recorded value of a metric, or of a record of every round.

    Args:
      name: ``"test_loss"``, ``"validation_loss"``, ``"loss"``, a diagnostic's name, ... A loss has the task's penalty
        in it, with which a weight decay that is tuned itself looks better the smaller it is: for that there is
        ``"test_data_loss"``.
    """

    def __call__(self, result: TrainResult) -> jax.Array:
        return self.of({**result.rounds, **result.metrics})[-1]


class Mean(_OfMetric):
    """The mean of a metric over the evaluations after the start: how fast a run learns, not only where it ends.

    Args:
      name: of a metric, as for :func:`final`.
    """

    def __call__(self, result: TrainResult) -> jax.Array:
        return jnp.mean(self.of(result.metrics)[1:])


final = factory("objective.final", Final)
mean = factory("objective.mean", Mean)


def evaluated(objective: Objective, result: TrainResult) -> jax.Array:
    """``objective(result)``; a ``TypeError``, while a program is traced, where it is not one real number."""
    value: Any = objective(result)
    dtype, shape = getattr(value, "dtype", None), jnp.shape(value)
    if dtype is None or shape != () or not jnp.issubdtype(dtype, jnp.floating):
        found = shown(value) if dtype is None else f"{dtype}{list(shape)}"
        raise TypeError(
            f"the objective returns {found}: it must return one real number, for instance "
            "lambda result: result.metrics['test_loss'][-1]"
        )
    return value


def check_inputs(who: str, algorithm: Any, dataset: Any, objective: Any, default: Callable[[str], Any]) -> Any:
    """Checks what a study is of, before its program is traced; returns the objective.

    Where none is given it is the ``default`` of the loss on the validation part, or without one on the test part.
    """
    if objective is None:
        objective = default("test_loss" if getattr(dataset, "validation", None) is None else "validation_loss")
    if not callable(objective):
        raise TypeError(
            f"{who}(objective=...) is {shown(objective)}: give a function of a TrainResult, for instance "
            "fedjax_sim.hyper.final('test_loss')"
        )
    if not isinstance(algorithm, Method):
        raise TypeError(f"{who}(algorithm) is {shown(algorithm)}: give a method, for instance fedjax_sim.fedavg(...)")
    if not isinstance(dataset, FederatedDataset):
        raise TypeError(
            f"{who}(dataset) is {shown(dataset)}: it must be a FederatedDataset; data that stay on the host have no "
            "derivative, use dataset.on_device() if the device has room for them"
        )
    if is_traced((algorithm, dataset)):
        raise TypeError(f"{who} was given traced values: it is a driver, call it outside jit, grad and vmap")
    return objective


def check_minimised(who: str, objective: Any) -> None:
    """Refuses a metric of which more is better where a study makes its objective small."""
    if isinstance(objective, _OfMetric) and more_is_better(objective.name):
        raise ValueError(
            f"{who}(objective={objective.factory_name()}({objective.name!r})): it is made small, and more of it is "
            "better: give a loss, fedjax_sim.hyper.final('test_loss'), or where a function of the result can be given "
            "one that is small where the run is good"
        )


class Influence(NamedTuple):
    """The sensitivity of an objective J to the data; means over seeds.

    Attributes:
      value: J.
      examples: float[n], dJ/dv_j for the weight v_j of example j, in the stored order. Positive: the run would be
        better off (J lower) with less of it.
      clients: float[N], sum over a client's examples of v_j dJ/dv_j, in storage order: the derivative in a common
        factor of all its weights. To first order J changes by ``-clients[i]`` when client i's data are taken away.
    """

    value: float
    examples: np.ndarray
    clients: np.ndarray


def influence(
    algorithm: Method,
    dataset: FederatedDataset,
    *,
    objective: Objective | None = None,
    seeds: int | Iterable[int] = 0,
    initial_params: Any = None,
    **run: Any,
) -> Influence:
    """Differentiates the outcome of a run with respect to the weight of every training example.

    One run with its derivative in place of one retraining for every client (or example) that is left out. It goes
    through the training as it happened, so no Hessian is inverted and no convergence is assumed. Weights multiply the
    losses of examples; the clients' shares p_i in the average stay as they are.

    Args:
      algorithm: the method.
      dataset: whose data; weights that it has already are where the derivative is taken.
      objective: a function of a :class:`fedjax_sim.run.training.TrainResult` that returns one real number;
        by default ``fedjax_sim.hyper.final`` of the loss on validation examples, else on test examples. (The training
        loss depends on the weights directly as well.)
      seeds: one seed or several.
      initial_params: where the runs start; None draws them from each seed.
      **run: the arguments of :func:`fedjax_sim.make_train`.

    Returns:
      An :class:`Influence`.

    Raises:
      FloatingPointError: the run or its derivative is not finite.

    Reference: Koh and Liang 2017, "Understanding black-box predictions via influence functions" (the question; they
    answer it at a minimum, with an inverse Hessian).

    Example:
      >>> import fedjax_sim as fjs
      >>> from fedjax_sim.studies.hyper import final, influence
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, scale=1.0)
      >>> found = influence(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, objective=final("loss"), task=fjs.quadratic(),
      ...     rounds=2, batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ... )
      >>> found.examples.shape, found.clients.shape
      ((3,), (3,))
    """
    objective = check_inputs("influence", algorithm, dataset, objective, final)
    keys = jax.vmap(jax.random.key)(jnp.asarray(check_seeds(seeds), jnp.uint32))
    weights = dataset.example_weights
    if weights is None:
        weights = jnp.ones((dataset.num_examples,), jnp.result_type(float))

    def of_seed(weights: jax.Array, algorithm: Method, dataset: Any, params: Any, key: jax.Array) -> jax.Array:
        weighted = dataset.with_example_weights(weights)
        return evaluated(objective, make_train(**run)(algorithm, weighted, key, initial_params=params))

    @jax.jit
    def means(weights: jax.Array, algorithm: Method, dataset: Any, params: Any, keys: jax.Array) -> Any:
        values, gradients = jax.lax.map(
            lambda key: jax.value_and_grad(of_seed)(weights, algorithm, dataset, params, key), keys
        )
        gradient = jnp.mean(gradients, axis=0)
        nothing = jnp.zeros((dataset.num_clients,), gradient.dtype)
        owned = with_rows(nothing, example_owners(dataset), weights * gradient)
        return jnp.mean(values), gradient, owned

    value, examples, clients = jax.tree.map(np.asarray, means(weights, algorithm, dataset, initial_params, keys))
    if not (np.isfinite(value) and np.isfinite(examples).all()):
        raise FloatingPointError(
            f"the objective is {float(value):.6g} and {int((~np.isfinite(examples)).sum())} of its "
            f"{examples.size} derivatives are not finite: lower the learning rates or run fewer rounds"
        )
    return Influence(float(value), examples, clients)
