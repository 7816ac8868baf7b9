"""What a model is worth: to all examples together, to every client, and to those it serves worst."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.descriptions import Described, factory, static
from fedjax_sim.evaluation.passes import Sums, client_sums, streamed_client_sums
from fedjax_sim.reporting.recorded import less_is_better
from fedjax_sim.task import Task
from fedjax_sim.task.shapes import check_values
from fedjax_sim.values import check_real, shown


class Evaluation(NamedTuple):
    """What :func:`evaluate` returns.

    ``"loss"`` is the objective, penalty included; ``"data_loss"``, of tasks with a penalty, the mean loss without it.

    Attributes:
      overall: mean over all examples by name, ``"loss"``, ``"accuracy"``...: sum_i p_i of the clients' means.
      clients: mean of each client, float[N] in storage order; NaN for a client without examples.
      worst: mean over the clients that are served worst, each counting the same.
    """

    overall: dict[str, jax.Array]
    clients: dict[str, jax.Array]
    worst: dict[str, jax.Array]


class PerClient(Described):
    """For ``simulate(evaluate=...)`` and ``make_train(evaluate=...)``: every client's values at every evaluation.

    Records ``"client_<name>"``, float[N] in storage order, and ``"<name>_worst"``, the mean over the clients that are
    served worst, for the losses (see :class:`Evaluation`) and every metric of the task; with the prefix ``"test_"`` for
    the test part, where there is one. Clients without test examples are NaN and left out of the worst.

    Args:
      task: what is learned.
      worst: the share of the clients that are the worst, in (0, 1].
    """

    task: Task
    worst: float = static(default=0.1)

    def checked(self) -> PerClient:
        if not isinstance(self.task, Task):
            raise TypeError(f"per_client(task={shown(self.task)}): give the run's task")
        _check_worst("per_client(worst=...)", self.worst)
        return self

    def __call__(self, params: Any, dataset: FederatedDataset | HostDataset) -> dict[str, jax.Array]:
        """The values at ``params``, by name."""
        found: dict[str, jax.Array] = {}
        for prefix, part in (("", dataset), ("test_", dataset.test)):
            if part is not None:
                values = evaluate(self.task, params, part, worst=self.worst)
                found |= {f"{prefix}client_{name}": value for name, value in values.clients.items()}
                found |= {f"{prefix}{name}_worst": value for name, value in values.worst.items()}
        return found


def evaluate(task: Task, params: Any, dataset: FederatedDataset | HostDataset, *, worst: float = 0.1) -> Evaluation:
    """A model on the data of all clients, in one pass; usable inside ``jax.jit`` (not with a :class:`HostDataset`).

    Args:
      task: what is learned.
      params: the model.
      dataset: the examples; ``dataset.test`` for the held-out ones.
      worst: the share of the clients (of those with examples) that are the worst, in (0, 1]: 0.1 is the worst decile.

    Returns:
      An :class:`Evaluation`. The highest losses and errors are the worst, and the lowest values of anything else.

    Raises:
      ValueError: ``worst`` is out of its range.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=20, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> found = fjs.evaluate(task, task.init(jax.random.key(0), data), data.test)
      >>> found.clients["accuracy"].shape, bool(found.worst["accuracy"] <= found.overall["accuracy"])
      ((20,), True)
    """
    _check_worst("evaluate(worst=...)", worst)
    sums = _client_sums(task, params, dataset)
    overall = {name: jnp.sum(total) / dataset.num_examples for name, total in sums.items()}
    clients = _client_means(task, params, dataset, sums)
    held = dataset.sizes > 0
    found = {name: worst_mean(value, worst, highest=less_is_better(name), held=held) for name, value in clients.items()}
    return Evaluation(task.with_penalty(params, overall), clients, found)


def client_values(task: Task, dataset: FederatedDataset, params: Any) -> dict[str, jax.Array]:
    """F_i and the mean metrics of every client at one model, {name: [N]} in storage order.

    One pass over the flat data; NaN for a client without examples (a test part may have some).

    Args:
      task: the losses.
      dataset: training or test examples.
      params: the model.
    """
    return _client_means(task, params, dataset, _client_sums(task, params, dataset))


def worst_mean(values: jax.Array, share: float, *, highest: bool, held: jax.Array | None = None) -> jax.Array:
    """Mean of the worst ceil(share M) of M values.

    Args:
      values: [N].
      share: in (0, 1].
      highest: whether the highest values are the worst (losses), or the lowest (accuracies).
      held: bool[N], which M of the values count; None for all.
    """
    held = jnp.ones(values.shape, bool) if held is None else held
    badness = values if highest else -values
    ordered = jnp.sort(jnp.where(held, badness, jnp.full_like(badness, -jnp.inf)), descending=True)
    real = values.dtype
    count = jnp.maximum(jnp.ceil(jnp.sum(held, dtype=jnp.int32).astype(real) * jnp.asarray(share, real)), 1)
    taken = jnp.arange(len(values), dtype=jnp.int32) < count.astype(jnp.int32)
    mean = jnp.sum(jnp.where(taken, ordered, jnp.zeros_like(ordered))) / count
    return mean if highest else -mean


def _client_sums(task: Task, params: Any, dataset: FederatedDataset | HostDataset) -> Sums:
    _check_model(task, params, dataset.frame if isinstance(dataset, HostDataset) else dataset)
    if isinstance(dataset, HostDataset):
        return streamed_client_sums(task, [params], dataset)[0]
    sums: Sums = client_sums(task, params, dataset)
    return sums


def _client_means(task: Task, params: Any, dataset: FederatedDataset | HostDataset, sums: Sums) -> Sums:
    sizes = jnp.maximum(dataset.sizes, 1)
    means = task.with_penalty(params, {name: total / sizes.astype(total.dtype) for name, total in sums.items()})
    return {name: jnp.where(dataset.sizes > 0, mean, jnp.full_like(mean, jnp.nan)) for name, mean in means.items()}


def _check_model(task: Task, params: Any, dataset: FederatedDataset) -> None:
    """Checks that the task has one number for each example at this model, and that it is one model."""
    try:
        check_values(task, params, dataset.examples, training=False)
    except (TypeError, ValueError):
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
        wanted = jax.tree.leaves(jax.eval_shape(lambda: task.init(jax.random.key(0), dataset)))
        models = shapes[0][0] if shapes and shapes[0] else 0
        if models and shapes == [(models, *leaf.shape) for leaf in wanted]:
            raise ValueError(
                f"params has {models} models on a leading axis, as history.params has one for each seed: give "
                "one, jax.tree.map(lambda leaf: leaf[0], params)"
            ) from None
        raise


def _check_worst(what: str, worst: float) -> None:
    check_real(what, worst, low=0.0, high=1.0)
    if worst == 0:
        raise ValueError(f"{what} is 0: it must be in (0, 1], a share of the clients")


per_client = factory("evaluation.per_client", PerClient)
