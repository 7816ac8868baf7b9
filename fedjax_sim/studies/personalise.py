"""Personalised evaluation: what the model is worth to each client after a few steps on the client's own examples.

A pure function of the initial parameters, so that its gradient with respect to them is meta-learning's (MAML). The
steps are those of a federated round (the same draw, local solver and layouts); only what a client reports differs:
how its adapted model does on its held-out examples.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim import optim
from fedjax_sim.algorithms.base import Sent
from fedjax_sim.algorithms.contract import Client, Message, Stack
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.partial import as_patterns, merged, split
from fedjax_sim.clients.cohort import full
from fedjax_sim.clients.local.batches import Batches, full_batch
from fedjax_sim.clients.local.work import Work
from fedjax_sim.clients.scheme import one_of
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.devices import check_not_summed
from fedjax_sim.core.fields import count, flag, leaf, real, static
from fedjax_sim.core.trees import square, subtract
from fedjax_sim.core.values import LARGEST_SEED, shown
from fedjax_sim.datasets.federated import FederatedDataset, held_out_parts, training_part
from fedjax_sim.engine.checks import check_joint
from fedjax_sim.engine.draw import draw
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.plan import Plan, layout_by_rule
from fedjax_sim.engine.solver import Solver
from fedjax_sim.models.evaluation import FineTuned, client_values, worst_mean
from fedjax_sim.models.passes import Sums, values_of_client
from fedjax_sim.models.predictions import nothing_said, said_of_client, scores, tuned_scores
from fedjax_sim.models.shapes import check_values
from fedjax_sim.models.task import Task
from fedjax_sim.optim.described import hoisted
from fedjax_sim.reporting.recorded import less_is_better

_VALUES, _MODELS, _SAID = "values", "models", "said"  # what clients report


class Personalise(FineTuned):
    """Every client fine-tunes the model and is tested before and after: ``personalise(...)(params, dataset)``.

    y_i = x after tau_i local steps of the client's optimiser on its training examples, on F_i(y) + mu/2 |y - x|^2;
    F(x) = (1/M) sum_i f_i(y_i(x)) over the M clients with test examples, f_i the mean test loss of client i

    Returned are, by name, for the loss (penalty included; where there is one also ``data_loss``, without it) and every
    metric of the task:

    * ``"personal_<name>"``: the mean over the M clients, each counting the same;
    * ``"personal_<name>_worst"``: the mean over the clients that are served worst;
    * ``"personal_client_<name>"``: every client, float[N] in storage order, NaN for clients without test examples;

    and the same of the model x itself with ``"_before"`` at the end, and of a validation part with ``"validation_"`` in
    front. Usable as ``evaluate`` of ``simulate`` and ``make_train``, and by itself inside ``jit``, ``vmap`` and
    ``grad``.

    The gradient of ``"personal_loss"`` with respect to ``params`` is MAML's, through all local steps, second
    derivatives included. With ``first_order`` the Jacobian of y_i in x counts as the identity (FOMAML), at the cost of
    the forward run; the gradients in the optimiser's own hyper-parameters stay what they are. Reptile needs nothing of
    this: it is FedAvg with a server learning rate.

    Args:
      task: what is learned.
      client_optimizer: the fine-tuning optimiser: ``fjs.optim.sgd(0.01)``.
      work: how many steps: ``fjs.local.steps(5)``, ``fjs.local.epochs(1)``. Clients that take none are tested with x.
      batches: which training examples a step sees; None is ``fjs.local.full_batch()``, which draws nothing.
      first_order: whether y_i's Jacobian in x counts as the identity.
      worst: the share of the clients that are the worst, in (0, 1].
      seed: of the batches' and the work's draws, >= 0.
      layout: how clients are run on the hardware; None chooses by a rule.
      mu: weight of the term mu/2 |y - x|^2 that keeps a client's model near x, >= 0; None for no such term.
      only: which parameters take steps, by parts of their paths as in ``fjs.keep``: ``"Dense_1"``, one or a tuple of
        them; the others stay those of x. None for all. Structure.

    Reference: Finn, Abbeel and Levine 2017, "Model-agnostic meta-learning for fast adaptation of deep networks"
    (MAML and its first-order form); Fallah, Mokhtari and Ozdaglar 2020, "Personalized federated learning with
    theoretical guarantees: a model-agnostic meta-learning approach", eq. 3 (one client, one task); Nichol, Achiam and
    Schulman 2018, "On first-order meta-learning algorithms" (Reptile).

    Example:
      >>> import jax, fedjax_sim as fjs
      >>> from fedjax_sim.studies.personalise import personalise
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=60, seed=0)
      >>> task = fjs.classification(fjs.models.LogisticRegression(10))
      >>> adapted = personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(3))
      >>> params = task.init(jax.random.key(0), data)
      >>> def after_adapting(params):
      ...     found = adapted(params, data)
      ...     return found["personal_loss"], found
      >>> gradient, found = jax.jit(jax.grad(after_adapting, has_aux=True))(params)
      >>> found["personal_client_loss"].shape, bool(found["personal_loss"] < found["personal_loss_before"])
      ((5,), True)
    """

    task: Task = leaf(one_of(Task, example="fedjax_sim.classification(model)"))
    client_optimizer: optim.Optimizer
    work: Work = leaf(one_of(Work, example="fedjax_sim.local.steps(5)"))
    batches: Batches | None = leaf(one_of(Batches, NoneType, example="fedjax_sim.local.shuffled(20)"), default=None)
    first_order: bool = flag(default=False)
    worst: float = real(above=0.0, high=1.0, structure=True, default=0.1)
    seed: int = count(low=0, high=LARGEST_SEED, default=0)
    layout: Layout | None = leaf(one_of(Layout, NoneType, example="fedjax_sim.layout.turns()"), default=None)
    mu: Any = real(low=0.0, default=None)
    only: tuple[str, ...] | None = static(default=None)

    def checked(self) -> Self:
        super().checked()
        return self.replace(
            client_optimizer=optim.as_optimizer(self.client_optimizer, "personalise(client_optimizer=...)"),
            batches=full_batch() if self.batches is None else self.batches,
            only=None if self.only is None else as_patterns("personalise(only=...)", self.only),
        )

    def __call__(self, params: Any, dataset: FederatedDataset) -> dict[str, jax.Array]:
        """The values of the model ``params`` by name, see the class."""
        self._check(params, dataset, tested=True)
        starts = self._before(params, dataset)
        ends = self._values(params, dataset, starts)
        found: dict[str, jax.Array] = {}
        for part, data in held_out_parts(dataset).items():
            prefix, (before, defined), after = "" if part == "test" else f"{part}_", starts[part], ends[part]
            for values, when in ((before, "_before"), (after, "")):
                for name, value in values.items():
                    these = defined.get(name, data.sizes > 0)
                    found[f"{prefix}personal_{name}{when}"] = _mean(value, these)
                    worst = worst_mean(value, self.worst, highest=less_is_better(name), held=these)
                    found[f"{prefix}personal_{name}_worst{when}"] = worst
                    found[f"{prefix}personal_client_{name}{when}"] = value
        return found

    def tested(self, params: Any, dataset: FederatedDataset) -> dict[str, Sums]:
        """Mean values of the clients at their adapted models, by held-out part and name: [N] in storage order."""
        self._check(params, dataset, tested=True)
        return self._values(params, dataset, self._before(params, dataset))

    def models(self, params: Any, dataset: FederatedDataset) -> Any:
        """The adapted models y_i, leaves [N, ...] in the order of the client ids, as client states are; no test part.

        N models have to fit on the device.
        """
        self._check(params, dataset, tested=False)
        valid, reported = self._adapted(params, dataset, _MODELS)

        def chosen(end: jax.Array, x: Any) -> jax.Array:
            return jnp.where(valid.reshape(-1, *[1] * (end.ndim - 1)), end, jnp.asarray(x)[None])

        return jax.tree.map(chosen, reported[_MODELS], params)

    def _check(self, params: Any, dataset: Any, *, tested: bool) -> None:
        if not isinstance(dataset, FederatedDataset):
            raise TypeError(
                f"personalise(...) was given {shown(dataset)}: clients take steps on their examples, which must be on "
                "the device; for a HostDataset use dataset.on_device()"
            )
        if tested and not held_out_parts(dataset):
            raise ValueError(
                "personalise(...) tests adapted models on examples that they have not seen, and this data set has no "
                "test part: hold some out, for instance with test_fraction=0.2"
            )
        check_not_summed("personalise(...)", (self, params, dataset))
        self.task.check(dataset)
        self.work.check(dataset, 1)
        check_joint(self.task, self.batches, dataset)  # type: ignore[arg-type]
        losses = check_values(self.task, params, dataset.examples, training=True)
        check_not_summed("personalise(...)", losses)

    def _before(self, params: Any, dataset: FederatedDataset) -> dict[str, tuple[Sums, Sums]]:
        """By held-out part: the clients' values at the model x, and of each score which clients' labels allow it."""
        found = {}
        for name, part in held_out_parts(dataset).items():
            scored = scores(self.task, params, part)
            found[name] = client_values(self.task, part, params) | scored.clients, scored.defined
        return found

    def _values(self, params: Any, dataset: FederatedDataset, starts: dict[str, tuple[Sums, Sums]]) -> dict[str, Sums]:
        """By held-out part: the clients' values after their steps, [N] in storage order; at x for those without any."""
        valid, reported = self._adapted(params, dataset, _VALUES)
        positions = dataset.order  # slot s holds the client of index s

        def stored(value: jax.Array, at_start: jax.Array) -> jax.Array:
            return at_start.at[positions].set(jnp.where(valid, value, at_start[positions]))

        found = {}
        for name, part in held_out_parts(dataset).items():
            before, ended = starts[name][0], reported[_VALUES][name]
            found[name] = {metric: stored(value, before[metric]) for metric, value in ended.items()}
            if self.task.scores:
                found[name] |= tuned_scores(self.task, reported[_SAID][name], valid, before, part)
        return found

    def _adapted(self, params: Any, dataset: FederatedDataset, what: str) -> tuple[jax.Array, Any]:
        """Which clients take steps, bool[N] by client index, and what they report of their models after them."""
        assert self.batches is not None  # as checked
        data = training_part(dataset)
        tuned = _FineTuning(
            client_optimizer=self.client_optimizer, task=self.task, mu=self.mu, what=what, only=self.only,
            parts=held_out_parts(dataset) if what == _VALUES else {}, origin=params if self.first_order else None,
        )  # fmt: skip
        tuned = hoisted(tuned, tuned.tuned(params))
        key, sent = jax.random.key(self.seed), Sent(lax.stop_gradient(params) if self.first_order else params)
        plan = Plan(self.task, full(), self.work, self.batches, algorithm=tuned, dataset=data, key=key)
        drawn = draw(plan, plan.phases()[-1], sent, jnp.int32(0))
        layout = layout_by_rule(plan) if self.layout is None else self.layout
        result = layout.run(Solver(tuned, self.task, self.batches, data), sent, (), drawn.slots, plan.bounds(tuned))
        return drawn.cohort.valid, result.stacks


class _FineTuning(FedAvg, kw_only=True):
    """Clients that report how their adapted model does on their held-out examples, or the model itself."""

    task: Task
    parts: Any  # held-out parts by name
    mu: Any = None
    origin: Any = None  # x, where y_i's Jacobian in it is to count as the identity; the broadcast is a constant then
    what: str = static(default="values")
    only: tuple[str, ...] | None = static(default=None)

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return self.tuned(sent.params)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        value: jax.Array = F(self._whole(sent.params, y))
        return value if self.mu is None else value + self.mu / 2 * square(subtract(y, self.tuned(sent.params)))

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y, self.tuned(sent.params))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        y = self._whole(sent.params, y)
        if self.origin is not None:
            # Adds 0, whose derivative in x is the identity.
            y = jax.tree.map(lambda end, x: end + (x - lax.stop_gradient(x)), y, self.origin)
        if self.what == _MODELS:
            return {_MODELS: Stack(y)}, c_i
        values = {name: values_of_client(self.task, part, y, client.index) for name, part in self.parts.items()}
        reported: dict[str, Message] = {_VALUES: Stack(values)}
        if self.task.scores:
            said = {}
            for name, part in self.parts.items():
                into = nothing_said(self.task, y, part, part.max_size)
                said[name] = said_of_client(self.task, part, y, client.index, into)
            reported[_SAID] = Stack(said)
        return reported, c_i

    def tuned(self, params: Any) -> Any:
        """The part of a model that takes steps."""
        return params if self.only is None else split(params, self.only, "personalise(only=...)")[1]

    def _whole(self, params: Any, y: Any) -> Any:
        return y if self.only is None else merged(split(params, self.only, "personalise(only=...)")[0], y)


def _mean(values: jax.Array, held: jax.Array) -> jax.Array:
    total = jnp.sum(jnp.where(held, values, jnp.zeros_like(values)))
    return total / jnp.sum(held, dtype=jnp.int32).astype(values.dtype)


personalise = factory("evaluation.personalise", Personalise)
