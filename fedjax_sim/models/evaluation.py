"""What a model is worth: to all examples, to every client, to those it serves worst; what a run records of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import leaf, real
from fedjax_sim.core.programs import renew
from fedjax_sim.core.values import check_real, is_real, shown, wrong_name
from fedjax_sim.datasets.federated import HELD_OUT, FederatedDataset, held_out_parts
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.models.base import of_kind
from fedjax_sim.models.passes import Clients, Sums, client_means, passed, personal_values, streamed
from fedjax_sim.models.predictions import Reading, check_data, check_model, personal_scores, read, streamed_readings
from fedjax_sim.models.task import Task
from fedjax_sim.reporting.recorded import less_is_better

_REAL = "it must be real numbers or truth values; of complex ones record .real and .imag, or their absolute value"
_ROUND_OFF = 100  # times the type's epsilon: two passes over the same examples differ by less


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


class FineTuned(Described):
    """Base of what gives every client a model by steps of its own from the shared one: ``fjs.personalise(...)``."""

    def tested(self, params: Any, dataset: FederatedDataset) -> dict[str, Sums]:
        """Mean values of the clients at the models that they have from ``params``, by held-out part and name: [N].

        In storage order.
        """
        raise TypeError(f"{type(self).__name__} must define tested(params, dataset)")


class PerClient(Described):
    """For ``simulate(evaluate=...)`` and ``make_train(evaluate=...)``: every client's values at every evaluation.

    Records ``"client_<name>"``, float[N] in storage order, and ``"<name>_worst"``, the mean over the clients that are
    served worst, for the losses (see :class:`Evaluation`) and every metric of the task; with the prefix ``"test_"`` for
    the test part and ``"validation_"`` for a validation part. Clients without examples there are NaN and left out of
    the worst.

    Where the method gives clients models of their own (``Method.personal``), or with ``tuned``, and where there is a
    test part, the models are compared on each client's own test examples. ``<model>`` is ``shared``, ``personal`` (what
    ``personal(server, c_i)`` returns) or ``tuned``:

    * ``"<model>_<name>"``, ``"<model>_<name>_by_examples"``, ``"<model>_<name>_worst"``: the mean over the clients,
      each counting the same; by their numbers of test examples; over those that are served worst;
    * ``"personal_client_<name>"``, ``"tuned_client_<name>"``: every client, float[N] in storage order, NaN without test
      examples;
    * ``"personal_<name>_gain"``, ``"personal_<name>_losing"``, ``"personal_client_<name>_gain"``: how much better than
      the shared model the personal one is on average (positive is better, of losses too), the share of the clients for
      whom it is worse (by more than round-off), and every client's gain; likewise of the fine-tuned model;
      ``"..._gain_over_tuned"`` and ``"..._losing_to_tuned"`` are those of the personal over the fine-tuned model;
    * ``"client_visited"``, bool[N] in storage order, and ``"unvisited"``: who has trained in a round so far, and how
      many clients with test examples have not.

    But for ``"client_visited"`` these are recorded of a validation part too, with the prefix ``"validation_"``: to
    choose a method's own parameters by.

    A client that was never visited has the model that it began with: the numbers for all clients are over those that
    have been visited, for each of the models alike (before the first visit of anybody: over all).

    Args:
      task: what is learned.
      worst: the share of the clients that are the worst, in (0, 1].
      tuned: also what the shared model is worth after fine-tuning: ``fjs.personalise(task, fjs.optim.sgd(0.01),
        fjs.local.steps(5))``. It costs these steps of all clients at every evaluation. None for no fine-tuning.
    """

    task: Task = leaf(of_kind(Task, "the run's task"))
    worst: float = real(above=0.0, high=1.0, structure=True, default=0.1)
    tuned: FineTuned | None = leaf(
        of_kind(FineTuned | None, "fedjax_sim.personalise(task, client_optimizer, work), or None"), default=None
    )

    @property
    def in_buckets(self) -> bool:
        """Whether one program serves data sets of a kind (``datasets.buckets``): where it reads all by passes."""
        return self.tuned is None and not self.task.joint and not self.task.scores

    def __call__(
        self,
        params: Any,
        dataset: FederatedDataset | HostDataset,
        clients: Clients | None = None,
        readings: Mapping[str, Reading] | None = None,
    ) -> dict[str, jax.Array]:
        """The values at ``params``, by name; with the ``clients`` those of their own models too.

        ``readings`` are what has been read of the parts already, by name, ``""`` for the training examples.
        """
        parts = held_out_parts(dataset)
        tuned = self.tuned.tested(params, dataset) if parts and self.tuned is not None else {}  # type: ignore[arg-type]
        found: dict[str, jax.Array] = {}
        seen = None
        if parts and clients is not None and clients.visited is not None:
            order = dataset.frame.order if isinstance(dataset, HostDataset) else dataset.order
            seen = found["client_visited"] = jnp.zeros_like(clients.visited).at[order].set(clients.visited)
        for what, part in {"": dataset, **parts}.items():
            prefix = f"{what}_" if what else ""
            reading = (readings or {}).get(what) or _read(self.task, params, part)
            values, defined = _evaluated(self.task, params, part, self.worst, reading)
            found |= {f"{prefix}client_{name}": value for name, value in values.clients.items()}
            found |= {f"{prefix}{name}_worst": value for name, value in values.worst.items()}
            if not what or (clients is None and self.tuned is None):
                continue
            models = {"shared": values.clients} | ({"tuned": tuned[what]} if tuned else {})
            if clients is not None:
                own = personal_values(self.task, clients, part)
                models["personal"] = own | personal_scores(self.task, clients, part)
            compared = self._compared(models, defined, part.sizes, seen)
            found |= compared if what == "test" else {f"{prefix}{name}": value for name, value in compared.items()}
        return found

    def _compared(self, models: dict[str, Sums], defined: Sums, sizes: jax.Array, seen: jax.Array | None) -> Sums:
        """The models beside each other; ``seen`` are those who were visited, None where that is no matter."""
        found: Sums = {}
        counted = held = sizes > 0
        if seen is not None:
            counted = held & (seen | ~jnp.any(held & seen))
            found["unvisited"] = jnp.sum(held & ~seen, dtype=jnp.int32)

        def among(name: str) -> jax.Array:
            return counted & defined.get(name, held)

        def mean(name: str, values: jax.Array, weights: jax.Array) -> jax.Array:
            these = among(name)
            weights = jnp.where(these, weights, jnp.zeros_like(weights)).astype(values.dtype)
            return jnp.sum(jnp.where(these, values, jnp.zeros_like(values)) * weights) / jnp.sum(weights)

        same = jnp.ones_like(sizes)
        for model, values in models.items():
            for name, of_clients in values.items():
                found[f"{model}_{name}"] = mean(name, of_clients, same)
                found[f"{model}_{name}_by_examples"] = mean(name, of_clients, sizes)
                lost = less_is_better(name)
                found[f"{model}_{name}_worst"] = worst_mean(of_clients, self.worst, highest=lost, held=among(name))
                if model != "shared":
                    found[f"{model}_client_{name}"] = of_clients
        pairs = (
            ("tuned", "shared", "_gain", "_losing"),
            ("personal", "shared", "_gain", "_losing"),
            ("personal", "tuned", "_gain_over_tuned", "_losing_to_tuned"),
        )
        for model, other, gain, losing in pairs:
            for name, of_clients in models[model].items() if models.keys() >= {model, other} else ():
                gains = of_clients - models[other][name]
                gains = -gains if less_is_better(name) else gains
                found[f"{model}_{name}{gain}"] = mean(name, gains, same)
                least = _ROUND_OFF * jnp.finfo(gains.dtype).eps * jnp.abs(models[other][name])
                found[f"{model}_{name}{losing}"] = mean(name, (gains < -least).astype(gains.dtype), same)
                found[f"{model}_client_{name}{gain}"] = gains
        return found


def evaluate(task: Task, params: Any, dataset: FederatedDataset | HostDataset, *, worst: float = 0.1) -> Evaluation:
    """A model on the data of all clients, in one pass; usable inside ``jax.jit`` (not with a :class:`HostDataset`).

    Args:
      task: what is learned.
      params: the model.
      dataset: the examples; ``dataset.test`` or ``dataset.validation`` for held-out ones.
      worst: the share of the clients (of those with examples) that are the worst, in (0, 1]: 0.1 is the worst decile.

    Returns:
      An :class:`Evaluation`. The highest losses, errors and spreads are the worst, and the lowest values of all else.

    Raises:
      ValueError, TypeError: examples that the task refuses in a run too, or a model of another shape.

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=20, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> found = fjs.evaluate(task, task.init(jax.random.key(0), data), data.test)
      >>> found.clients["accuracy"].shape, bool(found.worst["accuracy"] <= found.overall["accuracy"])
      ((20,), True)
    """
    check_real("evaluate(worst=...)", worst, above=0.0, high=1.0, host=True)
    check_data("evaluate", dataset)
    renew(task)
    task.check(dataset.frame if isinstance(dataset, HostDataset) else dataset)
    return _evaluated(task, params, dataset, worst, _read(task, params, dataset))[0]


def _evaluated(
    task: Task, params: Any, dataset: FederatedDataset | HostDataset, worst: float, reading: Reading
) -> tuple[Evaluation, Sums]:
    """The values, and of each score which clients' labels allow it."""
    scored, held = reading.scored, dataset.sizes > 0
    clients = client_means(task, params, reading.clients, dataset.sizes) | scored.clients
    found = {
        name: worst_mean(value, worst, highest=less_is_better(name), held=scored.defined.get(name, held))
        for name, value in clients.items()
    }
    return Evaluation(reading.overall, clients, found), scored.defined


def reads_the_same(evaluate: Any, task: Task) -> bool:
    """Whether an evaluation wants, of every client, what the run of the task reads itself; never when in doubt.

    Numbers within a task (its penalty's weight) may be traced, so that nobody knows whether they are the same.
    """
    if type(evaluate) is not PerClient or jax.tree.leaves(task):
        return False
    own: Any = jax.tree.structure(evaluate.task)
    return own == jax.tree.structure(task)


def client_values(task: Task, dataset: FederatedDataset, params: Any) -> dict[str, jax.Array]:
    """F_i and the mean metrics of every client at one model, {name: [N]} in storage order; NaN without examples."""
    check_model(task, params, dataset)
    if isinstance(dataset, HostDataset):
        found = streamed(task, [params], dataset, clients=True)[0]
    else:
        found = passed(task, params, dataset, clients=True)
    return client_means(task, params, found.clients, dataset.sizes)


def worst_mean(values: jax.Array, share: float, *, highest: bool, held: jax.Array | None = None) -> jax.Array:
    """Mean of the worst ceil(share M) of the M values of ``held``, bool[N]: the ``highest`` (losses) or the lowest.

    NaN where none is held.
    """
    held = jnp.ones(values.shape, bool) if held is None else held
    badness = values if highest else -values
    ordered = jnp.sort(jnp.where(held, badness, jnp.full_like(badness, -jnp.inf)), descending=True)
    real = jnp.result_type(float)
    product = jnp.sum(held, dtype=jnp.int32).astype(real) * jnp.asarray(share, real)
    # A whole number may come out a little above itself: 0.3 * 50 is 15.000001 in single precision.
    count = jnp.maximum(jnp.ceil(product * (1 - 2 * float(jnp.finfo(real).eps))), 1)
    taken = jnp.arange(len(values), dtype=jnp.int32) < count.astype(jnp.int32)
    chosen = ordered if highest else -ordered  # before the sum: minus the mean of zeros would be -0.0
    mean = jnp.sum(jnp.where(taken, chosen, jnp.zeros_like(chosen))) / count.astype(values.dtype)
    return jnp.where(jnp.any(held), mean, jnp.nan)


def _read(task: Task, params: Any, dataset: FederatedDataset | HostDataset) -> Reading:
    check_model(task, params, dataset)
    if isinstance(dataset, HostDataset):
        return streamed_readings(task, [params], dataset, clients=True)[0]
    return read(task, params, dataset, clients=True)


def all_metrics(overall: Mapping[str, Sums], given: Any) -> Sums:
    """What is recorded at an evaluation: of each part, ``""`` for the training data, and what ``evaluate`` returned."""
    metrics: Sums = {}
    for part, values in overall.items():
        named = {f"{part}_{name}" if part else name: value for name, value in values.items()}
        for name in sorted(metrics.keys() & named.keys()):
            raise ValueError(f"the task has a metric {name!r}, as another one is called on the {part} data: rename it")
        metrics |= named
    if not isinstance(given, Mapping):
        raise TypeError(f"evaluate(...) returns {given!r}: it must return a mapping {{name: array}}")
    more = {name: _as_array(name, value) for name, value in given.items()}
    if not metrics and not more:
        raise ValueError(
            "evaluate_train=False, and the data set has no test or validation part: nothing would be evaluated; leave "
            "it out, or split the data (fedjax_sim.datasets.with_validation(dataset, 0.2)), or give evaluate=..."
        )
    taken = {"data_loss", *(f"{part}_data_loss" for part in HELD_OUT), *metrics}
    for name in more:
        rule = "a name the run records itself: choose another" if name in taken else wrong_name(name)
        if rule is not None:
            raise ValueError(f"evaluate(...) returns {shown(name)}, {rule}")
    return metrics | more


def check_recorded(metrics: Mapping[str, Any], rounds: Mapping[str, Any]) -> None:
    """Checks what a run will record, from its names and types: so that it can be kept, found by name and drawn.

    ``metrics`` are those of an evaluation, ``rounds`` what is recorded of every round.
    """
    for what, recorded in (("metric", metrics), ("record of every round", rounds)):
        for name, values in recorded.items():
            rule = wrong_name(name)
            if what == "metric" and name in ("virtual_time", "bytes"):  # rules and figures take these for clocks
                rule = "a name of a run's clock: choose another"
            if rule is not None:
                raise ValueError(f"the {what} {shown(name)}: {rule}")
            if not is_real(values.dtype):
                raise TypeError(f"the {what} {name!r} is {values.dtype}: {_REAL}")
    both = sorted(metrics.keys() & rounds.keys())
    if both:
        raise ValueError(
            f"a metric and a record of every round are both called {both[0]!r}, so history[{both[0]!r}] could be "
            "either: rename what evaluate=, the task, the algorithm's report or the diagnostic calls so"
        )


def _as_array(name: Any, value: Any) -> jax.Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        array = None
    except OverflowError:  # a Python integer; JAX cuts the bits off one of numpy's
        array = jnp.int32(0)
    if array is None or not isinstance(name, str):
        raise TypeError(f"evaluate(...) returns {value!r} for {name!r}: it must return arrays or numbers by name")
    if not is_real(array.dtype):
        raise TypeError(f"evaluate(...) returns {shown(value)} for {name!r}: {_REAL}")
    if jnp.issubdtype(array.dtype, jnp.integer) and isinstance(value, (int, np.integer, np.ndarray)):
        held = jnp.iinfo(array.dtype)
        if np.any(np.asarray(value) < held.min) or np.any(np.asarray(value) > held.max):
            raise ValueError(f"evaluate(...) returns {shown(value)} for {name!r}, beyond {array.dtype}: return a float")
    return array


per_client = factory("evaluation.per_client", PerClient)
