"""A run, resolved: all that its rounds are a function of; and what changes in it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.wrapper import keeps_personal
from fedjax_sim.clients.cohort.participation import Averaging, Participation
from fedjax_sim.clients.cohort.schemes import full
from fedjax_sim.clients.local.batches import Batches, batches_in
from fedjax_sim.clients.local.work import Work
from fedjax_sim.clients.systems.base import Clock, System
from fedjax_sim.clients.systems.flops import gradient_flops
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import row_of
from fedjax_sim.datasets.buckets import in_bucket
from fedjax_sim.datasets.federated import FederatedDataset, training_part
from fedjax_sim.diagnostics.base import Diagnostic
from fedjax_sim.engine.asynchronous.schemes import Asynchronous
from fedjax_sim.engine.client_states import ClientStates, OnDevice
from fedjax_sim.engine.layout.base import Bounds, Layout
from fedjax_sim.engine.layout.choose import choose_devices, choose_layout, choose_pooled, choose_sharding, choose_width
from fedjax_sim.engine.layout.factored import Factored, coordinates_of, factored
from fedjax_sim.engine.layout.mesh import mesh
from fedjax_sim.engine.layout.pooled import Pooled, not_pooled, pooled
from fedjax_sim.engine.layout.turns import Turns
from fedjax_sim.engine.solver import Solver, Watch
from fedjax_sim.models.coordinates import Layer
from fedjax_sim.models.task import Task


class Guard(Described):
    """What a run does about what no check before it can see; pure structure.

    Attributes:
      skip: whether clients whose messages or state are not finite are left out of the round, as stragglers are who drop
        out; otherwise they are counted only.
      traced: whether ids and steps are traced, so that the record says of each round how many were refused.
    """

    skip: bool = static(default=False)
    traced: bool = static(default=False)


class Measured(Described):
    """What a run is evaluated on beside its held-out parts; pure structure.

    Attributes:
      training: whether on the training examples.
    """

    training: bool = static(default=True)


class Schedule(Described):
    """What an adjoint knows of a round's loops; pure structure.

    Attributes:
      per_cohort: most micro-steps of a round's clients together, 0 where only the static bound is known.
    """

    per_cohort: int = static(default=0)
    per_client: int = static(default=0)  # most micro-steps of one client, likewise
    reverse: bool = static(default=True)  # whether reverse mode is to pass the loops


class Phase(NamedTuple):
    """One exchange of a round with its clients."""

    method: Method  # what is exchanged
    key: jax.Array  # names the draws
    cohort: Participation  # who takes part in it
    after: int  # how many exchanges come after it in the round
    seen: bool  # whether it is the one that diagnostics see: the last in which clients train


class Plan(NamedTuple):
    """A run but for its state: a pytree, in which it can be vmapped (``plan._replace(key=key)``) and differentiated.

    Made in two steps before anything compiles: :func:`fedjax_sim.engine.arguments.check_arguments` has what the keyword
    arguments say; with a method, data and a key ``resolve`` beside it checks that all fit each other, and
    settles what was left open.

    Attributes:
      layout: how clients are run; None, for the rule of :func:`layout_by_rule`, until the plan is resolved.
      asynchronous: what a server does that waits for messages, not for cohorts; None for rounds.
      algorithm: the method, prepared: the traced values of bare optax objects are leaves.
      dataset: the clients' data, where the layout reads it from; of a streamed run another one every round.
      key: the run's key; [seeds] of them for a driver.
    """

    task: Task  # what is learned
    cohort: Participation  # who takes part
    work: Work  # how many local steps
    batches: Batches  # which examples a step sees
    layout: Layout = None  # type: ignore[assignment]
    diagnostics: tuple[Diagnostic, ...] = ()  # what is measured in every round
    guard: Guard = Guard()  # what becomes of clients that diverge, and of ids and steps that are traced
    measured: Measured = Measured()  # what the run is evaluated on
    system: System | None = None  # the clients' devices in virtual time, or None for no clock
    asynchronous: Asynchronous | None = None
    client_states: ClientStates = OnDevice()  # where client states are kept, and in which type
    schedule: Schedule = Schedule()  # what the adjoint of a derivative knows of a round's loops
    algorithm: Method = None  # type: ignore[assignment]
    dataset: FederatedDataset = None  # type: ignore[assignment]
    key: jax.Array = None  # type: ignore[assignment]

    @property
    def training(self) -> Plan:
        """The plan with the training part of the data, which is all that a round may see."""
        return self._replace(dataset=training_part(self.dataset))

    @property
    def slots(self) -> int:
        """S, the clients that a layout gets in a round."""
        if self.asynchronous is not None:
            return int(self.asynchronous.messages)
        return self.cohort.size(self.dataset.num_clients)

    @property
    def recorded(self) -> frozenset[str]:
        """Names that the devices' clock, the diagnostics and the method record of every round."""
        of_clock = () if self.system is None else Clock._fields

        def reported(params: Any, shares: Any) -> Any:
            return self.algorithm.report(self.algorithm.init(params, shares))

        shares = jax.ShapeDtypeStruct((self.dataset.num_clients,), jnp.result_type(float))
        of_method = jax.eval_shape(reported, self.params, shares)
        return frozenset((*of_clock, *of_method)).union(*(one.names() for one in self.diagnostics))

    @property
    def may_be_empty(self) -> bool:
        """Whether there can be a round in which nobody takes part."""
        dropped = self.work.may_drop or self.guard.skip
        return self.cohort.may_be_empty or dropped or (self.system is not None and self.system.may_be_empty)

    @property
    def params(self) -> Any:
        """The task's parameters, as shapes."""
        return jax.eval_shape(lambda: self.task.init(jax.random.key(0), self.dataset))

    @property
    def keeps_clients(self) -> bool:
        """Whether anything is kept for a client from visit to visit."""
        kept = jax.eval_shape(self.algorithm.init_client, self.params)
        return bool(self.algorithm.keep_optimizer or jax.tree.leaves(kept))

    def observes(self, what: str) -> bool:
        """Whether a diagnostic asks for ``what``."""
        return any(what in diagnostic.observes for diagnostic in self.diagnostics)

    def average(self, method: Method) -> str:
        """The cohort's own choice of average, else the method's."""
        return self.cohort.average or method.requires.average

    def averaging(self, method: Method) -> Averaging:
        """What that average means."""
        return self.cohort.averaging(self.average(method))

    def phases(self) -> list[Phase]:
        """The exchanges of a round, in order.

        The last one shares its draws with every other algorithm; earlier ones may have their own.
        """
        methods, found = self.algorithm.phases(), []
        trains = [method for method in methods if method.requires.steps] or methods
        for after, method in zip(range(len(methods) - 1, -1, -1), methods, strict=True):  # how many come after it
            own = after if method.requires.own_cohort else 0
            key = jax.random.fold_in(self.key, own) if own else self.key
            found.append(Phase(method, key, self.cohort.of_exchange(own), after, seen=method is trains[-1]))
        return found

    def bounds(self, method: Method) -> Bounds:
        """Static upper bounds of a phase's micro-steps in a round, from the largest clients' sizes."""
        batches, work, data = self.batches, self.work, self.dataset
        rows, largest = batches.rows(data), data.max_size
        slots = min(self.cohort.size(data.num_clients), data.num_clients)
        ceilings = (data.largest_total(slots) + slots * (rows - 1)) // rows  # >= sum of ceil(n_i / rows)
        epoch, pieces = batches.most_in_epoch(data), batches.pieces(largest, rows)
        requires = method.requires
        most = requires.gradients(work.most_steps(epoch))
        per_client = most * pieces
        total = work.most_total(slots, batches.most_in_epochs(data, slots), epoch)
        per_cohort = total * requires.hold + slots * requires.more_steps
        if pieces > 1:
            per_cohort = most * ceilings
        survey, of_all = (batches_in(largest, rows), ceilings) if requires.survey else (0, 0)
        if not requires.steps:
            per_client, per_cohort, survey, of_all = survey, of_all, 0, 0
        if self.asynchronous is not None:  # a fast client may be in a buffer several times
            messages = self.asynchronous.messages
            found = Bounds(per_client, messages * per_client, False, survey, messages * survey)
        else:
            found = Bounds(per_client, min(per_cohort, slots * per_client), True, survey, min(of_all, slots * survey))
        known = self.schedule
        return found._replace(
            per_client=min(known.per_client or per_client, per_client),
            per_cohort=min(known.per_cohort or found.per_cohort, found.per_cohort),
            reverse=known.reverse,
            varies=bool(requires.steps) and work.varies,
        )

    def placed(self) -> Plan:
        """The plan with its data where the layout reads it from."""
        return self._replace(dataset=self.layout.placed(self.dataset))

    def shared(self, evaluate: Any) -> Plan:
        """The placed plan with its data as a program sees them that is also that of other draws (``InBucket``).

        For programs that nobody differentiates. As it is where something might read the rows or the numbers of the
        data otherwise: an ``evaluate``, diagnostics that look at them, a joint task or one with scores, a mesh, and
        classes that are not the package's. Bounds of clients' sizes stay exact where a layout or a batch would compute
        more for rough ones.
        """
        parts = (self.task, self.cohort, self.work, self.batches, self.layout, self.system, self.asynchronous)
        reads = any(one.reads or "accumulation" in one.observes for one in self.diagnostics)
        if evaluate is not None:
            reads = reads or keeps_personal(self.algorithm) or not getattr(evaluate, "in_buckets", False)
        reads = reads or self.task.joint or bool(self.task.scores)
        if reads or self.dataset.placement is not None or not all(map(_of_package, (*parts, *self.diagnostics))):
            return self
        rough = self._replace(dataset=in_bucket(self.dataset, rough=True))
        if rough._sizes() == self._sizes():
            return rough
        return self._replace(dataset=in_bucket(self.dataset, rough=False))

    def _sizes(self) -> Any:
        """All static numbers from clients' sizes that a forward program computes by."""
        rows = self.batches.rows(self.dataset)
        in_pieces = self.batches.pieces(self.dataset.max_size, rows) > 1
        bounds = map(self.bounds, self.algorithm.phases())
        return rows, in_pieces, [self.layout.sized_by(of_phase, self.dataset) for of_phase in bounds]

    def everywhere(self) -> Plan:
        """The plan with all else on every device of the layout."""
        return self.layout.everywhere(self._replace(dataset=None))._replace(dataset=self.dataset)  # type: ignore[arg-type]


class TrainState(NamedTuple):
    """Everything that changes from round to round.

    Clients are in the order of their ids, whatever the order in which the data set stores them: row i is the client
    with the i-th smallest id, the one stored at ``dataset.order[i]``.

    Attributes:
      server: the algorithm's server state.
      clients: what the method keeps for each client, leaves [N, ...] (``Kept(own, optimizer)`` where the local
        optimiser's state is carried over); ``()`` for methods that keep nothing. While a run goes on also
        :class:`fedjax_sim.client_states.Rows` of all or of a cohort.
      flight: who is in flight (:class:`fedjax_sim.engine.asynchronous.events.Flight`) in asynchronous runs; else None.
      visited: bool[N], who has trained so far, of methods with personal models; else None.
    """

    server: Any
    clients: Any
    flight: Any = None
    visited: Any = None

    def client(self, client_id: int, dataset: FederatedDataset) -> Any:
        """What the method keeps for the client of that id, after a run of ``make_train``'s function.

        Args:
          client_id: one of ``dataset.client_ids``.
          dataset: the data of the run.

        Raises:
          KeyError: no client has that id.
        """
        row = row_of(client_id, np.sort(np.asarray(dataset.client_ids)))
        return jax.tree.map(lambda leaf: leaf[row], self.clients)


def _of_package(part: Any) -> bool:
    """Whether a part of a run, and what it is made of, is of the package's own classes."""
    if not isinstance(part, Described):
        return True
    fields = (getattr(part, field.name) for field in dataclasses.fields(part))  # type: ignore[arg-type]
    return type(part).__module__.startswith("fedjax_sim.") and all(map(_of_package, fields))


def layout_by_rule(plan: Plan, *, several: bool = False) -> Layout:
    """The layout of a run that is given none: of one device, or of ``several`` if there are."""
    devices = choose_devices(plan.slots, functools.partial(_operations, plan)) if several else 1
    bounds, dataset = plan.bounds(plan.algorithm), plan.dataset
    parameters = sum(leaf.size for leaf in jax.tree.leaves(plan.params))
    chosen = choose_layout(plan.slots, parameters, bounds, _mean_steps(plan)[0])
    rows = plan.batches.rows(dataset)
    passes = bounds.per_client * rows / dataset.max_size
    if choose_pooled(plan.slots, parameters) and apart(plan) is None:  # the loss is traced for it
        flops = gradient_flops(plan.task, plan.params, dataset, rows) / rows
        chosen = pooled(chosen) if choose_pooled(plan.slots, parameters, flops) else chosen
    elif isinstance(chosen, Turns) and passes > 1:  # the model is traced for it
        layer = coordinates(plan)
        width = None if isinstance(layer, str) else choose_width(layer.inputs, layer.outputs, passes, dataset)
        chosen = chosen if width is None else factored(chosen, width)
    if devices == 1:
        return chosen
    inner = chosen if isinstance(chosen, (Factored, Pooled)) else None
    return mesh(devices, inner, data=choose_sharding(trees.size_in_bytes(dataset.examples), devices))


def _operations(plan: Plan) -> float:
    """Of a round's gradients, where its clients are like the mean of all."""
    data, rows = plan.dataset, plan.batches.rows(plan.dataset)
    return plan.slots * sum(_mean_steps(plan)) * gradient_flops(plan.task, plan.params, data, rows)


def _mean_steps(plan: Plan) -> tuple[float, float]:
    """Micro-steps of the data set's mean client, and of its survey."""
    every = plan._replace(cohort=full(), asynchronous=None).bounds(plan.algorithm)
    number = plan.dataset.num_clients
    return every.per_cohort / number, every.survey_per_cohort / number


def coordinates(plan: Plan) -> Layer | str:
    """The layer whose kernel a run's clients can train in coordinates of their examples; else why there is none."""
    shapes = _shapes(plan)
    return shapes if isinstance(shapes, str) else coordinates_of(*shapes)


def apart(plan: Plan) -> str | None:
    """Why a round's local work is not the gradient of one sum; None where it is."""
    shapes = _shapes(plan)
    return shapes if isinstance(shapes, str) else not_pooled(*shapes, plan.bounds(plan.algorithm))


def _shapes(plan: Plan) -> tuple[Solver, Any, Any] | str:
    """The solver of a run's one exchange, and shapes of what is sent and kept; else why there is no such exchange."""
    method, params = plan.algorithm, plan.params
    if plan.asynchronous is not None:
        return "clients of an asynchronous run begin with models of different rounds"
    if len(method.phases()) > 1:
        return f"a round of {type(method).__name__} has several exchanges"
    shares = jax.ShapeDtypeStruct((plan.dataset.num_clients,), jnp.result_type(float))
    sent = jax.eval_shape(lambda params, shares: method.send(method.init(params, shares)), params, shares)
    states = jax.eval_shape(method.init_client, params)
    watch = Watch(updates=plan.observes("updates"), drift=plan.observes("drift"))
    return Solver(method, plan.task, plan.batches, plan.dataset, watch), sent, states
