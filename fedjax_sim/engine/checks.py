"""Everything that can be known to be wrong before a program is compiled."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.averaging import Ema, LastK
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.partial import Partial
from fedjax_sim.algorithms.wrapper import Wrapper
from fedjax_sim.clients.cohort.participation import Participation
from fedjax_sim.clients.local import batches as batch_schemes
from fedjax_sim.clients.local.batches import Batches, FullBatch
from fedjax_sim.clients.local.work import Work
from fedjax_sim.clients.systems.base import Clock, System
from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.values import check_count, check_flag, check_real, conditions, is_concrete, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.diagnostics.base import Diagnostic, as_diagnostics
from fedjax_sim.engine.arguments import RunArguments
from fedjax_sim.engine.asynchronous.checking import check_method, check_scheme
from fedjax_sim.engine.hook_checks import check_hooks
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.limits import check_counts
from fedjax_sim.engine.plan import Guard, Plan, layout_by_rule
from fedjax_sim.models.task import Task
from fedjax_sim.models.task.shapes import check_values
from fedjax_sim.optim.described import hoisted
from fedjax_sim.optim.rates import OverClients, Rate


def check_arguments(run: RunArguments) -> Plan:
    """What a run's keyword arguments say: its plan without algorithm, data and key.

    Args:
      run: all of them.

    Raises:
      TypeError: an argument is of another kind than it must be.
      ValueError: a number is out of its range, or both or neither of ``batch_size`` and ``batches`` are given.
    """
    task, cohort, work, evaluate = run["task"], run["cohort"], run["work"], run["evaluate"]
    check_kind("task", task, Task, "fedjax_sim.classification(model)")
    check_kind("cohort", cohort, Participation, "fedjax_sim.cohort.uniform(10)")
    check_kind("work", work, Work, "fedjax_sim.local.epochs(1)")
    check_count("rounds", run["rounds"])
    check_count("eval_every", run["eval_every"])
    layout = _check_layout(run["layout"])
    if evaluate is not None and not callable(evaluate):
        raise TypeError(f"evaluate is {evaluate!r}: it must be a function evaluate(params, dataset) -> {{name: array}}")
    if isinstance(inspect.unwrap(evaluate), type):  # type: ignore[arg-type]
        raise TypeError(f"evaluate is {evaluate!r}, which makes an evaluation: call it, {evaluate.__name__}(task)")  # type: ignore[union-attr]
    batch_size, batches = run["batch_size"], run["batches"]
    if (batch_size is None) == (batches is None):
        raise ValueError(
            f"batch_size={batch_size!r} and batches={batches!r}: give exactly one, batch_size=20 for shuffled epochs "
            "or batches=fedjax_sim.local.full_batch() and the like"
        )
    if batch_size is not None:
        batches = batch_schemes.shuffled(batch_size)
    check_kind("batches", batches, Batches, "fedjax_sim.local.shuffled(20)")
    check_flag("skip_nonfinite", run["skip_nonfinite"])
    asked, system, asynchronous = as_diagnostics(run["diagnostics"]), run["system"], run["asynchronous"]
    if system is not None:
        check_kind("system", system, System, "fedjax_sim.systems.devices(seconds_per_step=0.1)")
        asked = _beside_the_clock(asked)
    elif work.needs_system:
        raise ValueError(
            f"work={work!r} counts the steps that a client's device makes in its time: give the run "
            "system=fedjax_sim.systems.devices(seconds_per_step=...)"
        )
    if asynchronous is not None:
        check_scheme(asynchronous, system, cohort, work)
    guard = Guard(run["skip_nonfinite"])
    return Plan(task, cohort, work, batches, layout, asked, guard, system, asynchronous)  # type: ignore[arg-type]


def check_run(plan: Plan, rounds: int, initial_params: Any = None) -> Plan:
    """Checks what depends on the algorithm and the data set; traced values are not looked at.

    Returns:
      The plan with the static sizes that the cohort scheme reads off the data set.

    Raises:
      TypeError: the algorithm, data set or key is of another kind.
      ValueError: they do not fit each other or the rest.
    """
    algorithm, dataset, key = plan.algorithm, plan.dataset, plan.key
    check_kind("algorithm", algorithm, Method, "fedjax_sim.fedavg(client_optimizer=fedjax_sim.optim.sgd(0.1))")
    if isinstance(dataset, HostDataset):
        raise TypeError(
            "make_train was given a HostDataset: a run whose data stays on the host is no JAX function of it, so only "
            "simulate takes one; use dataset.on_device() if the device has room for all of it"
        )
    check_kind("dataset", dataset, FederatedDataset, "fedjax_sim.datasets.synthetic(1.0, 1.0)")
    if not (hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)) or jnp.shape(key) != ():
        raise TypeError(f"key is {key!r}: give one typed PRNG key, jax.random.key(0)")
    name = type(algorithm).__name__
    algorithm.check(dataset.num_clients)
    if algorithm.requires.apart:
        _check_apart(plan)
    plan.cohort.check(dataset, rounds)
    plan.work.check(dataset, rounds)
    plan.task.check(dataset)
    plan = plan._replace(cohort=plan.cohort.fitted(dataset))
    if plan.system is not None:
        plan.system.check(dataset, rounds)
        plan.system.policy.check(plan.cohort.size(dataset.num_clients))
    average = plan.average(algorithm)
    requires = algorithm.requires
    if average not in requires.averages:
        why = requires.averages_why and f"; {requires.averages_why}"
        raise ValueError(f"{name} cannot average by {average!r}: allowed are {sorted(requires.averages)}" + why)
    if plan.asynchronous is not None:
        check_method(plan)
    slots = plan.cohort.size(dataset.num_clients)
    if requires.everyone and slots < dataset.num_clients:
        raise ValueError(
            f"{name} needs everybody in every round, and this cohort has {slots} of {dataset.num_clients} clients: use "
            "cohort.full()"
        )
    if requires.full_gradients and not isinstance(plan.batches, FullBatch):
        raise ValueError(
            f"{name} solves local problems to a tolerance, which needs full local gradients, not {plan.batches!r}: "
            "use batches=fedjax_sim.local.full_batch()"
        )
    whole = requires.whole_batches or requires.other_batch or requires.hold > 1
    if whole and plan.batches.pieces(dataset.max_size, plan.batches.rows(dataset)) > 1:
        raise ValueError(
            f"{name} needs a whole batch at a time, and {shown(plan.batches)} takes its gradients in pieces, which add "
            "up for sums over examples alone: use smaller batches, or pieces as large as the largest client"
        )
    for diagnostic in plan.diagnostics:
        diagnostic.check(dataset, plan.task)
    if plan.cohort.replacement and (algorithm.keep_optimizer or not requires.duplicates):
        raise ValueError(
            f"{name} updates client state once per visit, so clients drawn twice have no meaning: use "
            "cohort.uniform(K) in place of cohort.with_replacement(K)"
        )
    for what in ("client_learning_rate", "server_learning_rate"):
        rate = getattr(algorithm, what)
        if isinstance(rate, Rate):
            rate.check(f"{name}({what}=...)", dataset.num_clients, rounds)
    if isinstance(algorithm.server_learning_rate, OverClients):
        raise ValueError(f"{name}(server_learning_rate=over_clients(...)): a server has no clients, use over_rounds")
    if not isinstance(algorithm.server_learning_rate, Rate):
        what = f"{name}(server_learning_rate=...)"
        _check_like(what, algorithm.server_learning_rate, 0.0, "one number or a rate over rounds")
    for optimizer in (algorithm.client_optimizer, algorithm.server_optimizer):
        if optimizer is not None:
            optimizer.transform()  # checks that its hyper-parameters are single numbers
    params = plan.params
    losses = check_values(plan.task, params, dataset.examples, training=True)
    _check_statistics(plan, params)
    rate = algorithm.client_learning_rate
    single = jax.tree_util.all_leaves([rate]) and np.shape(rate) == ()
    if not isinstance(rate, Rate) and not single:
        rule = "one number, a rate of fedjax_sim.rates or a pytree like the parameters"
        _check_like(f"{name}(client_learning_rate=...)", rate, params, rule, numbers=True)
    if initial_params is not None:
        check_initial("initial_params", initial_params, params)
    check_counts(plan, rounds)
    check_hooks(algorithm, plan.task, params, losses, dataset, plan.slots)
    return plan


def resolve(asked: Plan, rounds: int, initial_params: Any = None, *, several: bool = False) -> Plan:
    """The plan of a run, of what was asked for with algorithm, data and key: checked, and nothing left open.

    Args:
      asked: what :func:`check_arguments` returned, with an algorithm, data and a key.
      rounds: R.
      initial_params: where the run starts, or None.
      several: whether a run that is given no layout may be spread over several devices.

    Raises:
      TypeError, ValueError: see :func:`check_run`.
    """
    plan = check_run(asked, rounds, initial_params)
    prepared = hoisted(plan.algorithm, plan.params)
    guard = plan.guard.replace(traced=not is_concrete((plan.cohort, plan.work, plan.dataset.client_ids)))
    plan = plan._replace(algorithm=prepared, guard=guard)
    return plan if plan.layout is not None else plan._replace(layout=layout_by_rule(plan, several=several))


def unmet(parts: Any, dataset: FederatedDataset) -> jax.Array | None:
    """Whether a traced value is one that its object's check would refuse; bool scalar, None where nothing is traced.

    Args:
      parts: a pytree with all that a run is made of.
      dataset: the data.
    """
    with conditions() as met:
        for part in _traced_parts(parts):
            try:
                part.checked()
            except (AttributeError, TypeError, ValueError):  # somebody's own check, which takes no traced values
                continue
        if is_traced(dataset.example_weights):
            check_real("with_example_weights(weights)", dataset.example_weights, low=0.0)
    return ~jnp.all(jnp.stack(met)) if met else None


def _traced_parts(tree: Any) -> Iterator[Described]:
    """All described objects in ``tree``, those inside others too, that have a traced leaf."""
    for node in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Described)):
        if isinstance(node, Described) and is_traced(node):
            yield node
            yield from _traced_parts([getattr(node, field.name) for field in dataclasses.fields(node)])  # type: ignore[arg-type]


def is_traced(tree: Any) -> bool:
    """Whether a leaf of it is."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _check_statistics(plan: Plan, params: Any) -> None:
    """Checks that running statistics are averaged and nothing else: any other step may leave a variance below zero.

    Rates that are traced or not constant are not looked at.
    """
    method: Any = plan.algorithm
    shared = method.shared(params) if isinstance(method, Wrapper) else params
    if not jax.tree.leaves(plan.task.statistics(shared)):
        return
    average, why = plan.average(method), ""
    while isinstance(method, Wrapper):
        if not isinstance(method, (Partial, Ema, LastK)):
            why = why or type(method).__name__
        method = method.base
    rate = method.server_learning_rate
    averages = isinstance(method, FedAvg) and type(method).update is FedAvg.update
    if average not in ("sample", "plain"):
        why = f"average={average!r}"
    elif plan.asynchronous is not None:
        why = f"{type(plan.asynchronous).__name__}"
    elif not (averages and method.requires.steps and type(method).server_step is FedAvg.server_step):
        why = why or type(method).__name__
    elif method.server_solver() is not None:
        why = why or f"the server optimiser of {type(method).__name__}"
    elif not isinstance(rate, Rate) and is_concrete(rate) and rate > 1:
        why = why or f"server_learning_rate={rate}"
    if why:
        raise ValueError(
            f"the model has running statistics (batch_stats, of a BatchNorm), and {why} does not just average what "
            "clients report, so that a variance could fall below zero: let every client keep its own, "
            "fedjax_sim.keep(method, 'batch_stats'), or train a model with flax.linen.GroupNorm"
        )


def _check_apart(plan: Plan) -> None:
    """Checks that what a client does is known without the others, on which the bound of a private sum rests."""
    name = type(plan.algorithm).__name__
    comparing: list[tuple[str, Any]] = [("work", plan.work)] if plan.work.compares else []
    if plan.system is not None and plan.system.policy.compares:
        comparing.append(("system policy", plan.system.policy))
    for what, part in comparing:
        raise ValueError(
            f"{name}: with {what} {shown(part)} one client changes what others do or whether they count, so the sum "
            "can change by more than the clipping norm and the noise would not hide it: use another one"
        )


def _beside_the_clock(diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """The diagnostics without ``communication()``, whose records a run with a system has anyway.

    Raises:
      ValueError: another one records a name that the system's clock does.
    """
    from fedjax_sim.diagnostics.catalogue import Communication

    left = tuple(one for one in diagnostics if not isinstance(one, Communication))
    for one in left:
        taken = sorted(set(one.names()) & set(Clock._fields))
        if taken:
            raise ValueError(
                f"diagnostics: {type(one).__name__} records {taken[0]!r}, which a run with a system records itself: "
                "choose another name"
            )
    return left


def _check_layout(layout: Any) -> Layout | None:
    """The layout, or None where the rule chooses it."""
    if layout is None or (isinstance(layout, str) and layout == "auto"):
        return None
    if isinstance(layout, str) and layout == "tune":
        raise ValueError(
            "layout='tune': only simulate measures layouts itself; here the program is compiled for one, so measure "
            "before: layout=fedjax_sim.layout.tune(algorithm, dataset, ...).layout"
        )
    if isinstance(layout, str):
        raise ValueError(
            f"layout is {shown(layout)}: give a layout, for instance fedjax_sim.layout.turns(), 'tune' (simulate "
            "measures what is fastest), or 'auto' or None (a rule chooses)"
        )
    example = "fedjax_sim.layout.turns(), 'tune' (simulate measures), or 'auto' or None (a rule chooses)"
    check_kind("layout", layout, Layout, example)
    return layout  # type: ignore[no-any-return]


def check_kind(what: str, value: Any, kind: type, example: str) -> None:
    """Raises ``TypeError`` for a ``value`` that is no ``kind``; ``example`` is one that is."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        call = ", so call it" if inspect.isroutine(value) or isinstance(value, type) else ""
        raise TypeError(f"{what} is {shown(value)}: it must be {article} {kind.__name__}{call}, for instance {example}")


def check_initial(what: str, given: Any, params: Any) -> None:
    """Checks that a model to start from is one of the task's, whose ``params`` have these shapes.

    Raises:
      ValueError: another structure or shape.
      TypeError: integers in the place of real numbers.
    """
    _check_like(what, given, params, "a pytree like the task's parameters")
    for leaf, wanted in zip(jax.tree.leaves(given), jax.tree.leaves(params), strict=True):
        if jnp.issubdtype(wanted.dtype, jnp.inexact) and not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise TypeError(f"{what} has a leaf of {jnp.result_type(leaf)}: it must be {wanted.dtype}")


def _check_like(what: str, tree: Any, like: Any, rule: str, *, numbers: bool = False) -> None:
    """Checks that ``tree`` has the structure and shapes of ``like``; with ``numbers`` a leaf may be one number."""
    found: Any = jax.tree.structure(tree)
    wanted: Any = jax.tree.structure(like)
    scalar: Any = jax.tree.structure(0.0)
    if found != wanted:
        given = f"has shape {np.shape(tree)}" if found == scalar else f"is a pytree {found}"
        raise ValueError(f"{what} {given}: it must be {rule}, {wanted}")
    for (path, leaf), other in zip(jax.tree_util.tree_flatten_with_path(tree)[0], jax.tree.leaves(like), strict=True):
        if np.shape(leaf) != np.shape(other) and not (numbers and np.shape(leaf) == ()):
            name = f"{what}{jax.tree_util.keystr(path)}"
            raise ValueError(f"{name} has shape {np.shape(leaf)}: it must be {rule}, here of shape {np.shape(other)}")
