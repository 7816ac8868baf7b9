"""What models say of all examples, kept example by example, and the scores that a task makes of that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.core.devices import rows_within
from fedjax_sim.core.loops import Read, bounded_loop
from fedjax_sim.core.programs import renew
from fedjax_sim.core.values import check_flag, shapes
from fedjax_sim.datasets.federated import FederatedDataset, check_copy, whole
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.models.contract import single
from fedjax_sim.models.passes import ROWS_OF_ONE, Clients, Pass, Sums, cut, example_owners, most_rows, passed, streamed
from fedjax_sim.models.shapes import check_values
from fedjax_sim.models.task import Task

Say: TypeAlias = Callable[[Task, Any, Any], jax.Array]  # what a model says of some examples, [rows, ...]


def predict(task: Task, models: Any, dataset: FederatedDataset | HostDataset, *, each: bool = False) -> jax.Array:
    """What one model, or every client's own, says of all examples; usable inside ``jax.jit`` (not with host data).

    Args:
      task: what is learned, with ``outputs``.
      models: the model; with ``each`` one a client, leaves [N, ...] in the order of the client ids, as
        ``fjs.personalise(...).models(params, data)`` returns them, and as client states are.
      dataset: the examples; ``dataset.test`` or ``dataset.validation`` for held-out ones.
      each: whether every client has a model of its own.

    Returns:
      ``task.outputs``, [n, ...]: logits of a classification (``task.probabilities`` makes probabilities of them),
      predictions of a regression. Row for row those of ``dataset.examples``, without padding: the client at storage
      position i has the rows ``offsets[i]`` to ``offsets[i] + sizes[i]``.

    Raises:
      TypeError, ValueError: a task without outputs, models of other shapes, or ``each`` on a ``HostDataset``.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> params = task.init(jax.random.key(0), data)
      >>> shared = fjs.predict(task, params, data.test)
      >>> adapted = fjs.personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(3))
      >>> own = fjs.predict(task, jax.jit(adapted.models)(params, data), data.test, each=True)
      >>> shared.shape == own.shape == (data.test.num_examples, 10)
      True
    """
    check_flag("predict(each=...)", each)
    check_data("predict", dataset)
    renew(task)
    if isinstance(dataset, HostDataset):
        if each:
            raise ValueError(
                "predict(each=True): every client's model needs its examples on the device, and this data set is on "
                "the host: use dataset.on_device()"
            )
        check_model(task, models, dataset)
        return jnp.asarray(np.concatenate([said for said, _ in _blocks(_outputs, task, models, dataset)]))
    if not each:
        check_model(task, models, dataset)
        return _predicted(task, models, whole(dataset))
    clients = dataset.num_clients
    for path, leaf in jax.tree_util.tree_leaves_with_path(models):
        if jnp.shape(leaf)[:1] != (clients,):
            raise ValueError(
                f"predict(each=True): models{jax.tree_util.keystr(path)} has the shape {list(jnp.shape(leaf))}, and "
                f"its first axis must be that of the {clients} clients"
            )
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf)[1:], jnp.result_type(leaf)), models)
    check_values(task, one, dataset.examples, training=False)
    return _predicted_by_each(task, models, whole(dataset))


def check_data(function: str, dataset: Any) -> None:
    """Checks that what a function was given to read is a data set; raises TypeError."""
    if not isinstance(dataset, (FederatedDataset, HostDataset)):
        raise TypeError(
            f"{function}(dataset=...) is {shapes(dataset)}: it must be a data set, for instance data.test; what a "
            "model says of bare arrays is task.outputs(params, {'x': x})"
        )


def check_model(task: Task, params: Any, dataset: FederatedDataset | HostDataset) -> None:
    """Checks that the task has one number for each example at this model, and that it is one model."""
    dataset = dataset.frame if isinstance(dataset, HostDataset) else dataset
    check_copy(dataset)
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


def _outputs(task: Task, params: Any, examples: Any) -> jax.Array:
    return task.outputs(params, examples)


@jax.jit
def _predicted(task: Task, params: Any, data: FederatedDataset) -> jax.Array:
    return _said(task, params, data, _outputs)


@jax.jit
def _predicted_by_each(task: Task, models: Any, data: FederatedDataset) -> jax.Array:
    return _said_by_each(task, lambda index: jax.tree.map(lambda leaf: leaf[index], models), data, _outputs)


class Scores(NamedTuple):
    """What a task's scores are, by name.

    Attributes:
      overall: of all examples together, scalars.
      clients: of every client's examples, float[N] in storage order; NaN where it is not defined.
      defined: bool[N], where the client's labels allow a score.
    """

    overall: Sums
    clients: Sums
    defined: Sums


def scores(task: Task, params: Any, dataset: FederatedDataset | HostDataset) -> Scores:
    """The task's scores at one model; nothing where it has none."""
    if not task.scores:
        return Scores({}, {}, {})
    if isinstance(dataset, HostDataset):
        blocks = zip(*_blocks(_probabilities, task, params, dataset), strict=True)
        said, labels = (jnp.asarray(np.concatenate(part)) for part in blocks)
        return _scored(task, said, labels, dataset.frame)
    data = whole(dataset)
    return _scored(task, _said(task, params, data, _probabilities), task.labels(data.examples), data)


class Reading(NamedTuple):
    """All that a run or ``per_client`` asks of one model on some examples, so that neither reads what the other has.

    Attributes:
      overall: objective, mean metrics and scores of all examples by name.
      clients: as of a :class:`Pass`.
      scored: the task's scores.
    """

    overall: Sums
    clients: Sums
    scored: Scores

    @classmethod
    def of(cls, found: Pass, scored: Scores) -> Reading:
        """From a pass and the scores."""
        return cls({**found.overall, **scored.overall}, found.clients, scored)


def read(task: Task, params: Any, dataset: FederatedDataset, *, clients: bool) -> Reading:
    """Reads examples on the device; ``clients`` asks for the sums of every client too."""
    return Reading.of(passed(task, params, dataset, clients=clients), scores(task, params, dataset))


def streamed_readings(task: Task, models: list[Any], dataset: HostDataset, *, clients: bool) -> list[Reading]:
    """:func:`read` of several models on data on the host."""
    found = streamed(task, models, dataset, clients=clients)
    return [Reading.of(of, scores(task, params, dataset)) for of, params in zip(found, models, strict=True)]


def personal_scores(task: Task, clients: Clients, dataset: FederatedDataset | HostDataset) -> Sums:
    """The task's scores of every client at its own model, {name: [N]} in storage order."""
    if not task.scores:
        return {}
    if isinstance(dataset, HostDataset):
        raise ValueError(
            "the scores of clients' own models need their test examples on the device, and this data set is on the "
            "host: use dataset.on_device(), or a task without scores"
        )
    data = whole(dataset)
    found = _said_by_each(task, clients.in_turn(), data, _probabilities)
    return _scored(task, found, task.labels(data.examples), data).clients


def tuned_scores(task: Task, said: jax.Array, valid: jax.Array, before: Sums, dataset: FederatedDataset) -> Sums:
    """The same from what each client's model says, [N, max_size, C] by client index; ``before`` of who is not valid."""
    data = whole(dataset)
    owners = example_owners(data)
    index = jnp.zeros_like(data.order).at[data.order].set(jnp.arange(data.num_clients, dtype=data.order.dtype))
    rows = jnp.arange(data.num_examples, dtype=jnp.int32) - data.offsets[owners]
    found = _scored(task, said[index[owners], rows], task.labels(data.examples), data).clients
    return {name: jnp.where(valid[index], value, before[name]) for name, value in found.items()}


def nothing_said(
    task: Task, params: Any, data: FederatedDataset, rows: int | None = None, say: Say | None = None
) -> jax.Array:
    """Zeros for what the task's model says of this many examples (None: of all), [rows, ..., C]."""
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), data.examples)
    like = jax.eval_shape(say or _probabilities, task, params, some)
    return jnp.zeros((data.num_examples if rows is None else rows, *like.shape[1:]), like.dtype)


def said_of_client(
    task: Task,
    data: FederatedDataset,
    params: Any,
    index: jax.Array,
    into: jax.Array,
    at: jax.Array | int = 0,
    say: Say | None = None,
) -> jax.Array:
    """``into`` with what the client's model says of its examples, in the rows that begin with ``at``."""
    position = data.order.at[index].get(mode="clip")
    size = data.sizes[position]
    rows = rows_within(task.outputs, params, data.examples, most=min(data.max_size, ROWS_OF_ONE))

    def add(k: jax.Array, given: Any, into: jax.Array) -> jax.Array:
        task, data, held, offset, size, at = given
        row = k * rows + jnp.arange(rows, dtype=jnp.int32)
        examples = jax.tree.map(lambda leaf: leaf.at[offset + row].get(mode="clip"), data.examples)
        said = (say or _probabilities)(task, held.value, examples)
        return into.at[jnp.where(row < size, at + row, len(into))].set(said, mode="drop")

    loop = bounded_loop(add, -(-data.max_size // rows))
    given = (task, data, Read.of(params), data.offsets[position], size, jnp.int32(at))
    return loop(-(-size // rows), given, into)


def _said_by_each(task: Task, personal: Callable[[jax.Array], Any], data: FederatedDataset, say: Say) -> jax.Array:
    """What every client's model, ``personal(index)``, says of its own examples, in the flat order."""

    def add(found: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
        return said_of_client(task, data, personal(index), index, found, data.offsets[data.order[index]], say), None

    some, everybody = jax.eval_shape(personal, jnp.int32(0)), jnp.arange(data.num_clients, dtype=jnp.int32)
    return lax.scan(add, nothing_said(task, some, data, say=say), everybody)[0]


def _said(task: Task, params: Any, data: FederatedDataset, say: Say) -> jax.Array:
    """What one model says of all examples, in the flat order."""
    n, held = data.num_examples, Read.of(params)
    rows = rows_within(task.outputs, params, data.examples, most=most_rows(n))

    def block(found: jax.Array, first: jax.Array) -> tuple[jax.Array, None]:
        start = jnp.minimum(first, n - rows)  # moved back to stay inside the data
        said = say(task, held.value, cut(data.examples, start, rows))
        return lax.dynamic_update_slice_in_dim(found, said, start, 0), None

    return lax.scan(block, nothing_said(task, params, data, say=say), jnp.arange(0, n, rows, dtype=jnp.int32))[0]


def _blocks(say: Say, task: Task, params: Any, dataset: HostDataset) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """What one model says of all examples on the host, block by block, and their labels where there are scores."""
    n = dataset.num_examples
    rows = rows_within(task.outputs, params, dataset.frame.examples, most=most_rows(n))
    for first in range(0, n, rows):
        count = min(rows, n - first)
        block = dataset.take(np.arange(first, first + count), rows)
        labels = np.asarray(task.labels(block))[:count] if task.scores else None
        yield np.asarray(_jitted(say, task, params, block))[:count], labels


def _probabilities(task: Task, params: Any, examples: Any) -> jax.Array:
    # Widened before: probabilities near 1 are few in half precision.
    return task.probabilities(single(task.outputs(params, examples)))


@functools.partial(jax.jit, static_argnums=0)
def _jitted(say: Say, task: Task, params: Any, examples: Any) -> jax.Array:
    return say(task, params, examples)


@jax.jit
def _scored(task: Task, said: jax.Array, labels: jax.Array, data: FederatedDataset) -> Scores:
    """The scores from what is said of each example in the flat order; labels may have axes of their own."""
    classes = said.shape[-1]
    if task.joint:  # of scores of its own, of examples that are no classes
        owners, p, y = example_owners(data), said, labels
    else:
        owners = jnp.repeat(example_owners(data), labels.size // len(labels), total_repeat_length=labels.size)
        p, y = said.reshape(-1, classes), labels.reshape(-1).astype(jnp.int32)
    found = Scores({}, {}, {})
    for score in task.scores:
        found.overall[score.name] = score.of_groups(p, y, jnp.zeros_like(owners), 1)[0]
        found.clients[score.name] = score.of_groups(p, y, owners, data.num_clients)
        found.defined[score.name] = score.defined(y, classes, owners, data.num_clients)
    return found
