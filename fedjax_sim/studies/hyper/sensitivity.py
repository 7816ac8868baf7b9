"""What each example and each client is worth: the gradient of a run's outcome with respect to data weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.resolving import check_seeds
from fedjax_sim.models.evaluation import example_owners
from fedjax_sim.run.training import make_train
from fedjax_sim.studies.hyper.objectives import Objective, check_objective, evaluated, final
from fedjax_sim.studies.hyper.subject import check_inputs


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
        ``fedjax_sim.hyper.final("test_loss")`` by default. (The training loss depends on the weights directly as well.)
      seeds: one seed or several.
      initial_params: where the runs start; None draws them from each seed.
      **run: the arguments of :func:`fedjax_sim.make_train`.

    Returns:
      An :class:`Influence`.

    Raises:
      TypeError, ValueError: bad input, before anything is compiled.
      FloatingPointError: the run or its derivative is not finite.

    Reference: Koh and Liang 2017, "Understanding black-box predictions via influence functions" (the question; they
    answer it at a minimum, with an inverse Hessian).

    Example:
      >>> import fedjax_sim as fjs
      >>> from fedjax_sim.studies.hyper import final, influence
      >>> data = fjs.datasets.quadratics(num_clients=3, dim=2, scale=1.0)
      >>> found = influence(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, objective=final("loss"), task=fjs.quadratic(),
      ...     rounds=2, batch_size=1, cohort=fjs.cohort.full(), work=fjs.local.steps(2),
      ... )
      >>> found.examples.shape, found.clients.shape
      ((3,), (3,))
    """
    objective = final() if objective is None else objective
    check_objective("influence(objective=...)", objective)
    check_inputs("influence", algorithm, dataset)
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
        owned = jnp.zeros((dataset.num_clients,), gradient.dtype).at[example_owners(dataset)].add(weights * gradient)
        return jnp.mean(values), gradient, owned

    value, examples, clients = jax.tree.map(np.asarray, means(weights, algorithm, dataset, initial_params, keys))
    if not (np.isfinite(value) and np.isfinite(examples).all()):
        raise FloatingPointError(
            f"the objective is {float(value):.6g} and {int((~np.isfinite(examples)).sum())} of its "
            f"{examples.size} derivatives are not finite: lower the learning rates or run fewer rounds"
        )
    return Influence(float(value), examples, clients)
