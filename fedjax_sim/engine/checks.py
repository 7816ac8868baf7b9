"""Everything that can be known to be wrong before a program is compiled, and the plan that is left: :func:`resolve`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.averaging import Ema, LastK
from fedjax_sim.algorithms.contract import Method
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.partial import Partial, keep
from fedjax_sim.algorithms.wrapper import Wrapper, innermost
from fedjax_sim.clients.local.batches import Batches, FullBatch
from fedjax_sim.clients.scheme import check_kind
from fedjax_sim.core.descriptions import check_again, is_traced, within
from fedjax_sim.core.devices import check_not_summed
from fedjax_sim.core.fields import check_single
from fedjax_sim.core.programs import renew, uncollected
from fedjax_sim.core.values import INT32_MAX, LARGEST_SEED, as_seeds, check_real, conditions, is_concrete, shown
from fedjax_sim.datasets.federated import FederatedDataset, check_copy
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.diagnostics.catalogue import Inexactness
from fedjax_sim.engine.asynchronous.buffer import check_method
from fedjax_sim.engine.client_states import ClientStates, OnDevice
from fedjax_sim.engine.hook_checks import begins_with_model, check_hooks
from fedjax_sim.engine.layout.factored import Factored
from fedjax_sim.engine.layout.mesh import OnMesh
from fedjax_sim.engine.layout.pooled import Pooled
from fedjax_sim.engine.memory import side_by_side
from fedjax_sim.engine.plan import Plan, apart, coordinates, layout_by_rule
from fedjax_sim.engine.scheme_checks import check_schemes
from fedjax_sim.models.shapes import check_values
from fedjax_sim.models.task import Task
from fedjax_sim.optim.described import hoisted
from fedjax_sim.optim.rates import OverClients, Rate, of_all_parameters


def check_run(plan: Plan, rounds: int, initial_params: Any = None) -> Plan:
    """Checks what depends on the algorithm and the data set; traced values are not looked at.

    The plan gets what the method and the cohort scheme read off the task and the data set.
    """
    algorithm, dataset, key = plan.algorithm, plan.dataset, plan.key
    check_kind("algorithm", algorithm, Method, example="fedjax_sim.fedavg(client_optimizer=fedjax_sim.optim.sgd(0.1))")
    if isinstance(dataset, HostDataset):
        raise TypeError(
            "make_train was given a HostDataset: a run whose data stays on the host is no JAX function of it, so only "
            "simulate takes one; use dataset.on_device() if the device has room for all of it"
        )
    check_kind("dataset", dataset, FederatedDataset, example="fedjax_sim.datasets.from_ids((x, y), clients) of arrays")
    check_copy(dataset)
    if not (hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)) or jnp.shape(key) != ():
        raise TypeError(f"key is {key!r}: give one typed PRNG key, jax.random.key(0)")
    check_not_summed("the run", (plan, initial_params))
    name, inside = type(algorithm).__name__, type(innermost(algorithm)).__name__  # who asks for more than averages
    check_again(plan._replace(dataset=None))  # type: ignore[arg-type]
    for one in within((algorithm, plan.cohort, plan.work, plan.system, plan.asynchronous, plan.diagnostics)):
        check_single(one, one.factory_name())
    algorithm.check(dataset.num_clients)
    requires = algorithm.requires
    policy = None if plan.system is None else plan.system.policy
    for what, part in (("work", plan.work), ("system policy", policy)):
        if requires.apart and part is not None and part.compares:
            raise ValueError(
                f"{name}: with {what} {shown(part)} one client changes what others do or whether they count, so the "
                "sum can change by more than the clipping norm and the noise would not hide it: use another one"
            )
    plan.cohort.check(dataset, rounds)
    plan.work.check(dataset, rounds)
    plan.task.check(dataset)
    if requires.classes and plan.task.num_classes(dataset) is None:
        raise ValueError(
            f"{inside} needs a task that tells classes apart (logits, integer labels), and {type(plan.task).__name__} "
            "does not: use fedjax_sim.classification(model), or fedjax_sim.functions(..., outputs_function=...) for "
            "data with integer labels 'y'"
        )
    algorithm = algorithm.fitted(plan.task, dataset)
    plan = plan._replace(algorithm=algorithm, cohort=plan.cohort.fitted(dataset))
    slots = plan.cohort.size(dataset.num_clients)
    if plan.system is not None:
        plan.system.check(dataset, rounds)
        plan.system.policy.check(slots)
    average = plan.average(algorithm)
    if average not in requires.averages:
        why = requires.averages_why and f"; {requires.averages_why}"
        raise ValueError(f"{name} cannot average by {average!r}: allowed are {sorted(requires.averages)}" + why)
    if plan.asynchronous is not None:
        check_method(plan)
    if requires.everyone and slots < dataset.num_clients:
        raise ValueError(
            f"{inside} needs everybody in every round, and this cohort has {slots} of {dataset.num_clients} clients: "
            "use cohort.full()"
        )
    if requires.full_gradients and not isinstance(plan.batches, FullBatch):
        raise ValueError(
            f"{inside} solves local problems to a tolerance, which needs full local gradients, not {plan.batches!r}: "
            "use batches=fedjax_sim.local.full_batch()"
        )
    whole = requires.whole_batches or requires.other_batch or requires.hold > 1
    if whole and plan.batches.pieces(dataset.max_size, plan.batches.rows(dataset)) > 1:
        raise ValueError(
            f"{inside} needs a whole batch at a time, and {shown(plan.batches)} takes its gradients in pieces, which "
            "add up for sums over examples alone: use smaller batches, or pieces as large as the largest client"
        )
    check_joint(plan.task, plan.batches, dataset)
    if plan.task.joint and (plan.diagnostics or isinstance(plan.layout, OnMesh)):
        what = "diagnostics, which take gradients in pieces" if plan.diagnostics else "a mesh, which shares them out"
        raise ValueError(f"{_joint(plan.task)}: leave out {what}")
    for diagnostic in plan.diagnostics:
        diagnostic.check(dataset, plan.task)
        if isinstance(diagnostic, Inexactness) and (why := _ends_elsewhere(plan)):
            raise ValueError(
                f"diagnostics={shown(diagnostic)} of {name}: it takes gradients at x and at x + the change that a "
                f"client reports, and {why}: leave it out"
            )
    if plan.cohort.replacement and (algorithm.keep_optimizer or not requires.duplicates):
        kept = " with keep_optimizer=True" if requires.duplicates else ""
        raise ValueError(
            f"{name}{kept} has each client once in a round, so clients drawn twice have no meaning: use "
            "cohort.uniform(K) in place of cohort.with_replacement(K)"
        )
    given = {what: getattr(algorithm, what) for what in ("client_learning_rate", "server_learning_rate")}
    for what, rate in given.items():
        if isinstance(rate, Rate):
            rate.check(f"{inside}({what}=...)", dataset.num_clients, rounds)
    if isinstance(given["server_learning_rate"], OverClients):
        raise ValueError(f"{inside}(server_learning_rate=over_clients(...)): a server has no clients, use over_rounds")
    for optimizer in (algorithm.client_optimizer, algorithm.server_optimizer):
        if optimizer is not None:
            optimizer.transform()  # checks that its hyper-parameters are single numbers
    params = plan.params
    carries = algorithm.keep_optimizer and jax.tree.leaves(jax.eval_shape(algorithm.client_optimizer.init, params))
    if carries and (requires.slope or requires.step_size):
        raise ValueError(
            f"{inside}(keep_optimizer=True): it divides changes by what its local solver moves in so many steps from a "
            "fresh state, and this solver goes on from the state of the client's last visit: leave keep_optimizer "
            "out, or use fedjax_sim.fedavg(...) or a solver without a state"
        )
    losses = check_values(plan.task, params, dataset.examples, training=True)
    check_not_summed("the run", losses)  # what a loss closes over
    _check_statistics(plan, params)
    for what, rate in given.items():
        if not of_all_parameters(rate):
            rule = "one number, a rate of fedjax_sim.rates or a pytree like the parameters"
            _check_like(f"{inside}({what}=...)", rate, params, rule, numbers=True)
    if initial_params is not None:
        check_initial("initial_params", initial_params, params)
    check_counts(plan, rounds)
    check_schemes(plan)
    check_hooks(algorithm, plan.task, params, losses, dataset, plan.slots)
    return plan


def _ends_elsewhere(plan: Plan) -> str:
    """Why clients do not train from the server's model x to x + the change that they report; else nothing."""
    method, params = plan.algorithm, plan.params
    if plan.asynchronous is not None:
        return "clients of an asynchronous run begin with older models"
    if method.requires.several:
        return "clients begin with one of several models"
    if isinstance(method, Wrapper) and method.shared(params) is not params:
        return "clients report the change of a part of the model"
    if not begins_with_model(method, params, plan.dataset.num_clients):
        return "clients begin with models of their own"
    return ""


def check_joint(task: Task, batches: Batches, dataset: FederatedDataset) -> None:
    """Refuses batches that are not all examples of each client at once, where a task compares them."""
    whole = isinstance(batches, FullBatch) and batches.pieces(dataset.max_size, batches.rows(dataset)) == 1
    if task.joint and not whole:
        raise ValueError(
            f"{_joint(task)}, so neither minibatches nor pieces add up to it, and this is {shown(batches)}: use "
            f"batches=fedjax_sim.local.full_batch(piece_size={dataset.max_size}), all examples of the largest client"
        )


def _joint(task: Task) -> str:
    return f"the loss of {type(task).__name__.lower()} compares all of a client's examples with each other"


@uncollected()
def resolve(asked: Plan, rounds: int, initial_params: Any = None, *, several: bool = False) -> Plan:
    """The plan of a run, of what was asked for with algorithm, data and key: checked, and nothing left open.

    ``several`` says whether a run that is given no layout may be spread over several devices.
    """
    renew(asked._replace(dataset=None))  # type: ignore[arg-type]
    return resolved(asked, rounds, initial_params, several=several)


def resolved(asked: Plan, rounds: int, initial_params: Any = None, *, several: bool = False) -> Plan:
    """:func:`resolve` of a plan of which no part has changed since another one was resolved, as of a sweep's points."""
    plan = check_run(asked, rounds, initial_params)
    prepared = hoisted(plan.algorithm, plan.params)
    guard = plan.guard.replace(traced=not is_concrete((plan.cohort, plan.work, plan.dataset.client_ids)))
    plan = plan._replace(algorithm=prepared, guard=guard)
    if isinstance(_of_one(plan.layout), Factored) and isinstance(why := coordinates(plan), str):
        raise ValueError(
            f"layout={shown(plan.layout)}: clients cannot train the first layer in coordinates of their examples, "
            f"because {why}: use layout=None, with which a rule chooses, or fedjax_sim.layout.turns()"
        )
    if isinstance(_of_one(plan.layout), Pooled) and (reason := apart(plan)) is not None:
        raise ValueError(
            f"layout={shown(plan.layout)}: the cohort's work is not one gradient, because {reason}: use layout=None, "
            "with which a rule chooses, or fedjax_sim.layout.stacked()"
        )
    return plan if plan.layout is not None else plan._replace(layout=layout_by_rule(plan, several=several))


def _of_one(layout: Any) -> Any:
    """The layout of one device."""
    return layout.inner if isinstance(layout, OnMesh) else layout


def resolve_seeds(
    asked: Plan, dataset: Any, seeds: list[int], rounds: int, initial_params: Any, client_states: Any
) -> Plan:
    """The plan of a run of several seeds, one key each, whose data and client states may be off the device.

    Of a :class:`HostDataset` the plan has the frame, all but the examples.
    """
    each = [jax.random.key(np.uint32(seed)) for seed in seeds]
    # Put together by numpy: for JAX, each number of seeds would be another program.
    keys = jax.random.wrap_key_data(jax.device_put(np.stack([jax.random.key_data(key) for key in each])))
    streamed = isinstance(dataset, HostDataset)
    asked = asked._replace(dataset=dataset.frame if streamed else dataset, key=each[0])
    plan = resolve(asked, rounds, initial_params, several=True)
    if streamed:
        _check_streamed(plan)
    return plan._replace(key=keys, client_states=_client_states(client_states, plan))


def check_seeds(seeds: Any) -> list[int]:
    """The seeds as a list of integers, at least one, in [0, 2^32) and none twice."""
    seeds = as_seeds(seeds)
    if isinstance(seeds, (str, jax.Array)) or not isinstance(seeds, (int, np.integer, np.ndarray, Iterable)):
        raise TypeError(f"seeds is {seeds!r}: give an integer or several, range(5)")
    found = [seeds] if isinstance(seeds, (int, np.integer)) else list(seeds)
    if not found:
        raise ValueError("seeds is empty: give at least one seed")
    for number, seed in enumerate(found):
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise TypeError(f"seeds has {seed!r}: seeds must be integers")
        if not 0 <= seed <= LARGEST_SEED:
            raise ValueError(f"seeds has {seed}: seeds must be in [0, 2^32)")
        if seed in found[:number]:
            raise ValueError(f"seeds has {seed} twice: a seed is a run, again it would be the same run: give it once")
    return [int(seed) for seed in found]


def _check_streamed(plan: Plan) -> None:
    """Checks that a round needs no more examples than its cohort's, for data that stays on the host."""
    if plan.asynchronous is not None:
        raise ValueError(
            f"asynchronous=... with a HostDataset: {_TOO_LATE} the examples ahead: use dataset.on_device()"
        )
    if isinstance(plan.layout, OnMesh) and plan.layout.data == "sharded":
        raise ValueError(
            f"layout={shown(plan.layout)} with a HostDataset: only the examples of a round's cohort are on the "
            "devices, on all of them: use data='replicated'"
        )
    needing = [plan.algorithm] if plan.algorithm.requires.objective else []
    needing += [diagnostic for diagnostic in plan.diagnostics if diagnostic.everyone]  # type: ignore[misc]
    if needing:
        raise ValueError(
            f"{type(needing[0]).__name__} reads the examples of all clients in every round, and this data set stays on "
            "the host: a round sees its cohort's examples alone. Use dataset.on_device(), or do without"
        )


def _client_states(given: Any, plan: Plan) -> ClientStates:
    """Where client states are kept, from the argument of ``simulate``; None for ``on_device()``."""
    if given is None:
        return OnDevice()
    example = "fedjax_sim.client_states.on_host(), or None for on_device()"
    check_kind("client_states", given, ClientStates, example=example)
    check_again(given)
    if given.apart and plan.asynchronous is not None:
        raise ValueError(
            f"asynchronous=... with client_states={shown(given)}: {_TOO_LATE} client states ahead: use "
            "client_states=fedjax_sim.client_states.on_device()"
        )
    if given != OnDevice() and plan.algorithm.requires.remembers_everyone:
        raise ValueError(
            f"{type(plan.algorithm).__name__} keeps a vector of every client on the server and reads all of them in "
            f"every round, so client_states={shown(given)} would save nothing: leave client_states out, or give the "
            "method fewer vectors (clusters=...)"
        )
    return given


_TOO_LATE = "who reports in a round is known once its clock has run, too late for sending"


def unmet(parts: Any, dataset: FederatedDataset) -> jax.Array | None:
    """Whether a traced value is one that its object's check would refuse; bool scalar, None where nothing is traced."""
    with conditions() as met:
        for part in filter(is_traced, within(parts)):
            try:
                part.checked()
            except (AttributeError, TypeError, ValueError):  # somebody's own check, which takes no traced values
                continue
        if is_traced(dataset.example_weights):
            check_real("with_example_weights(weights)", dataset.example_weights, low=0.0)
    return ~jnp.all(jnp.stack(met)) if met else None


def check_counts(plan: Plan, rounds: int) -> None:
    """Checks that what a run counts in int32 fits: it would wrap round without a word.

    Of micro-steps: what the cohort may need at most, and what the layout may compute while it waits for the slowest.
    """
    dataset, batches = plan.dataset, plan.batches
    slots = plan.cohort.size(dataset.num_clients)
    limits = [plan.bounds(method) for method in plan.algorithm.phases()]
    steps = sum(one.per_cohort + side_by_side(plan.layout, slots) * one.per_client for one in limits)
    work, most = " ".join(shown(plan.work).split()), max(one.per_client for one in limits)
    counted = {
        "rounds": rounds,
        f"rows of a batch beside all examples (batches={shown(batches)})": dataset.num_examples + batches.rows(dataset),
        f"slots (cohort={shown(plan.cohort)})": slots,
        f"local steps that a round may compute ({slots} clients with up to {most} each, work={work})": steps,
    }
    for what, number in counted.items():
        if number > INT32_MAX:
            raise ValueError(f"{number} {what}: at most {INT32_MAX} can be counted: ask for fewer")


def _check_statistics(plan: Plan, params: Any) -> None:
    """Checks that running statistics are averaged and nothing else: any other step may leave a variance below zero.

    Rates that are traced or not constant are not looked at.
    """
    method: Any = plan.algorithm
    shared = method.shared(params) if isinstance(method, Wrapper) else params
    if not jax.tree.leaves(plan.task.statistics(shared)):
        return
    average, changing = plan.average(method), []
    while isinstance(method, Wrapper):
        if not isinstance(method, (Partial, Ema, LastK)):
            changing.append(type(method).__name__)
        method = method.base
    rate, own = method.server_learning_rate, type(method)
    if average not in ("sample", "plain"):
        changing.insert(0, f"average={average!r}")
    elif plan.asynchronous is not None:
        changing.insert(0, type(plan.asynchronous).__name__)
    averages = isinstance(method, FedAvg) and own.update is FedAvg.update and own.server_step is FedAvg.server_step
    if not averages or method.requires.several or not method.requires.steps:
        changing.append(own.__name__)
    if method.server_solver() is not None:
        changing.append(f"the server optimiser of {own.__name__}")
    if not isinstance(rate, Rate) and is_concrete(rate) and any(np.any(leaf > 1) for leaf in jax.tree.leaves(rate)):
        changing.append(f"server_learning_rate={rate}")
    if changing:
        instead = "keep each client's (fedjax_sim.keep(method, 'batch_stats'); the shared model has the first), or "
        try:
            keep(plan.algorithm, ("batch_stats",))
        except ValueError:  # it needs the whole model, or has several
            instead = ""
        raise ValueError(
            f"the model has running statistics (batch_stats, of a BatchNorm), and {changing[0]} does not just average "
            f"what clients report, so that a variance could fall below zero: {instead}use flax.linen.GroupNorm"
        )


def check_initial(what: str, given: Any, params: Any) -> None:
    """Checks that a model to start from is one of the task's: structure, shapes, and no integers for real numbers."""
    _check_like(what, given, params, "a pytree like the task's parameters")
    for leaf, wanted in zip(jax.tree.leaves(given), jax.tree.leaves(params), strict=True):
        if jnp.issubdtype(wanted.dtype, jnp.inexact) and not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise TypeError(f"{what} has a leaf of {jnp.result_type(leaf)}: it must be {wanted.dtype}")


def _check_like(what: str, tree: Any, like: Any, rule: str, *, numbers: bool = False) -> None:
    """Checks that ``tree`` has the structure and shapes of ``like``; with ``numbers`` a leaf may be one number."""
    found, wanted, scalar = (cast(Any, jax.tree.structure(one)) for one in (tree, like, 0.0))
    if found != wanted:
        given = f"has shape {np.shape(tree)}" if found == scalar else f"is a pytree {found}"
        raise ValueError(f"{what} {given}: it must be {rule}, {wanted}")
    for (path, leaf), other in zip(jax.tree_util.tree_flatten_with_path(tree)[0], jax.tree.leaves(like), strict=True):
        if np.shape(leaf) != np.shape(other) and not (numbers and np.shape(leaf) == ()):
            name, shape, wanted = f"{what}{jax.tree_util.keystr(path)}", np.shape(leaf), np.shape(other)
            fix = ", of several take the first: jax.tree.map(lambda leaf: leaf[0], ...)" if shape[1:] == wanted else ""
            raise ValueError(f"{name} has shape {shape}: it must be {rule}, here of shape {wanted}{fix}")
