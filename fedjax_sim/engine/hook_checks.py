"""What the hooks of a method return and read, checked once before a run is compiled: messages name class and hook.

One round is traced by shapes alone, with F in which there is no model: structures, shapes and types are compared, never
values, and the program of the run has nothing of it. A wrapper's base comes first, so what is wrong is said of the
class that is wrong.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_sim.algorithms.contract import (
    ALL_AVERAGES,
    Client,
    Cohort,
    Message,
    Method,
    Requires,
    Stack,
    nobody,
    received,
)
from fedjax_sim.algorithms.declarations import Misuse
from fedjax_sim.algorithms.probe import NoLoss
from fedjax_sim.algorithms.wrapper import Wrapper, encoded, encodes
from fedjax_sim.core.values import shown, suggest
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.engine.hooks import OF_WORK, brief, call, difference, explanation, named
from fedjax_sim.engine.loss import Loss
from fedjax_sim.models.task import Batch, Task
from fedjax_sim.optim import parts
from fedjax_sim.optim.rates import rate_at


def check_hooks(method: Method, task: Task, params: Any, losses: Any, dataset: FederatedDataset, slots: int) -> None:
    """Calls every hook of a method as a round does, on shapes alone; what was checked before is remembered."""
    _check_requires(method)
    rows = losses.shape[0]
    some = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), dataset.examples)
    _traced.eval_shape(dataset.num_clients, slots, method, task, params, losses, some)


def begins_with_model(method: Method, params: Any, num_clients: int) -> bool:
    """Whether what a client trains begins with the server's model: itself is in it, and nothing made of it."""
    found: list[bool] = []

    def begun(params: Any, kept: Any, shares: jax.Array, client: Client) -> Any:
        sent = received(call(method, "send", call(method, "init", params, shares)), client.index)
        y = call(method, "begin", sent, kept, client)
        found.append({*map(id, jax.tree.leaves(params))} <= {*map(id, jax.tree.leaves(y))})
        return y

    jax.eval_shape(begun, params, jax.eval_shape(method.init_client, params), jnp.ones(num_clients), nobody())
    return found[0]


class _Given(NamedTuple):
    """What a run gives the hooks."""

    params: Any
    F: _Loss
    shares: jax.Array
    client: Client
    cohort: Cohort
    bound: bool  # whether something binds delta, so that no message may know more of y


class _Work(NamedTuple):
    """What a client has done in an exchange, before it reports."""

    survey: Any
    y: Any
    delta: Any


@functools.partial(jax.jit, static_argnums=(0, 1))
def _traced(
    num_clients: int, slots: int, method: Method, task: Task, params: Any, losses: jax.Array, examples: Any
) -> None:
    """Jitted for its shapes alone, which JAX remembers of a jitted function."""
    count, number = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.result_type(float))
    key = jax.random.key(0)
    rate = jax.tree.map(jnp.asarray, rate_at(method.client_learning_rate, count, count))
    client = _fresh(nobody()._replace(learning_rate=rate, key=key))
    cohort = Cohort(
        indices=jnp.zeros((slots,), jnp.int32), valid=jnp.zeros((slots,), bool),
        weights=jnp.zeros((slots,), number.dtype), size=count, num_clients=num_clients, mass=number, round=count,
        key=key, expected=number if method.requires.expected_size else None,
    )  # fmt: skip
    batch = Batch(examples, jnp.ones_like(losses), jnp.zeros((), jnp.int32))
    F = _Loss(task, batch, key)._like(params, losses)
    shares = jnp.zeros((num_clients,), number.dtype)
    _check(method, _Given(params, F, shares, client, cohort, encodes(method)))


def _check(method: Method, given: _Given) -> list[_Work]:
    """A round of the method, after one of what is inside it; what a client has done in each exchange."""
    inside = _check(method.base, given) if isinstance(method, Wrapper) else []
    phases = call(method, "phases")
    server = _fresh(call(method, "init", given.params, given.shares))
    if method.requires.objective:
        server = call(method, "open", server, jnp.mean(given.F.losses(given.params)))
    c_i = _fresh(call(method, "init_client", given.params))
    works = []
    for number, phase in enumerate(phases):
        _check_requires(phase)
        known = inside[number] if len(inside) == len(phases) and _passes_on(phase) else None
        server, c_i, work = _exchange(phase, given, server, c_i, known)
        works.append(work)
    call(method, "with_model", server, call(method, "model", server))
    call(method, "evaluated", server)
    call(method, "personal", server, c_i)
    call(method, "report", server)
    for name in () if isinstance(method, Wrapper) else method.requires.hears:
        if not hasattr(server, name):
            fix = suggest(name, list(getattr(server, "_fields", ())))
            raise TypeError(f"{named(method, 'requires')} has {name!r} in hears, which the server's state lacks: {fix}")
    return works


def _passes_on(method: Method) -> bool:
    """Whether clients of a wrapper do what its base says, so that there is nothing to be called again."""
    if not isinstance(method, Wrapper):
        return False
    ours, theirs = ({**vars(one.requires), "minimises": None} for one in (method, method.base))
    return ours == theirs and all(getattr(type(method), name) is getattr(Wrapper, name) for name in OF_WORK)


def _exchange(method: Method, given: _Given, server: Any, c_i: Any, known: _Work | None) -> tuple[Any, Any, _Work]:
    """The server and a client after one exchange, and the client's work: computed, unless it is ``known``."""
    requires, client = method.requires, given.client
    sent = _fresh(received(call(method, "send", server), client.index))
    work = known or _worked(method, given.F, sent, c_i, client)
    client = _knowing(requires, client, work.survey, work.y)
    delta, kept, notes = encoded(method, work.delta, sent, c_i, client, lambda one, *given: call(one, "encode", *given))
    messages, kept = call(method, "finish", delta, work.y, sent, kept, client)
    if given.bound:
        _only_through_delta(method, delta, work.y, sent, kept, client)
    got = {name: _gathered(message, len(given.cohort.valid)) for name, message in (messages | notes).items()}
    server = call(method, "update", server, got, given.cohort)
    if requires.hears:
        kept = call(method, "settle", server, kept, client)
    return server, kept, work


def _worked(method: Method, F: _Loss, sent: Any, c_i: Any, client: Client) -> _Work:
    """A client's work."""
    requires, survey = method.requires, None
    F = copy.copy(F)
    F.other = F if requires.other_batch else None
    if requires.survey:
        survey = call(method, "survey", F, sent, c_i, client)
        client = client._replace(survey=survey)
    y = _fresh(call(method, "begin", sent, c_i, client))
    client = _knowing(requires, client, survey, y)
    if requires.steps:
        y = _stepped(method, F, y, sent, c_i, client)
    return _Work(survey, y, call(method, "change", y, sent, c_i, client))


def _knowing(requires: Requires, client: Client, survey: Any, y: Any) -> Client:
    """The client with what it is told before its first step."""
    slope = jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), y)
    return client._replace(
        survey=survey, slope=slope if requires.slope else None, step_size=slope if requires.step_size else None
    )


def _stepped(method: Method, F: _Loss, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
    """y after a step."""
    k = client.steps
    state = parts.begin(method.client_optimizer, y)
    requires, holding = method.requires, client._replace(held=y)
    asked = NoLoss(F) if requires.slope or requires.step_size else F

    def objective(y: Any) -> jax.Array:
        with jax.numpy_dtype_promotion("standard"):
            value = call(method, "objective", asked, y, k, sent, c_i, holding)
        return jnp.asarray(value)

    turn = call(method, "turn", k, client)
    if turn is not None and (not isinstance(y, parts.Parts) or turn.keys() != y.keys()):
        has = f"Parts of {sorted(y)}" if isinstance(y, parts.Parts) else brief(y)
        raise TypeError(
            f"{named(method, 'turn')} names {sorted(turn)}, and begin returned {has}: name all parts, or None"
        )
    g = jax.grad(objective)(y)
    return call(method, "step", g, y, state, k, sent, c_i, client)[0]


def _gathered(message: Message, slots: int) -> Any:
    """What the server gets of a message."""
    if isinstance(message, Stack):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (slots, *leaf.shape)), message.value)
    return message.value


def _fresh(tree: Any) -> Any:
    """The same shapes as a run has them: of values that nobody knows yet, also where Python's numbers stood."""
    return lax.optimization_barrier(tree)


class _Loss(Loss):
    """F without its model: of the right types, with a derivative; it knows which parameters it may be asked about."""

    def _like(self, params: Any, losses: jax.Array) -> _Loss:
        self._params, self._found = params, losses
        return self

    def __call__(self, params: Any) -> jax.Array:
        _like_params(self._params, params)
        return functools.reduce(lax.add, (_number(leaf, self._found.dtype) for leaf in jax.tree.leaves(params)))

    def losses(self, params: Any) -> jax.Array:
        return jnp.broadcast_to(self(params), self._found.shape)

    def mean(self, values: jax.Array) -> jax.Array:
        if np.shape(values)[:1] != self._found.shape:
            raise Misuse(f"called F.mean on {brief(values)}: give an array [B, ...], a value for each example")
        return super().mean(values)


def _number(leaf: Any, dtype: Any) -> jax.Array:
    """A number that depends on an array, in few operations."""
    square = lax.square(jnp.asarray(leaf))
    real = lax.real(square) if jnp.issubdtype(square.dtype, jnp.complexfloating) else square
    return lax.convert_element_type(lax.reduce_sum(real, range(real.ndim)), dtype)


def _like_params(params: Any, asked: Any) -> None:
    """Checks that F is asked about parameters like the task's."""
    trees: tuple[Any, Any] = jax.tree.structure(params), jax.tree.structure(asked)
    leaves = zip(jax.tree.leaves(params), jax.tree.leaves(asked), strict=False)
    if trees[0] == trees[1] and all(np.shape(one) == np.shape(other) for one, other in leaves):
        return
    path, was, now = difference(params, asked) or ("", brief(params), brief(asked))
    raise Misuse(f"called F with {now} for params{path}, which is {was}: F takes parameters like the task's")


# What a method requires


def _check_requires(method: Method) -> None:
    """Checks what a method, and those inside it, ask for."""
    if isinstance(method, Wrapper):
        _check_requires(method.base)
    try:
        complaint = _requires(method.requires)
    except Exception as error:
        explained = explanation(error, method, "requires", ())
        if explained is None:
            raise
        raise explained from error
    if complaint:
        raise TypeError(f"{named(method, 'requires')} {complaint}")


def _requires(requires: Any) -> str:
    if not isinstance(requires, Requires):
        return f"returned {brief(requires)}: return Requires(...), super().requires.but(...)"
    unknown = sorted(set(requires.averages) - ALL_AVERAGES) if _names(requires.averages) else [requires.averages]
    if unknown:
        known = suggest(str(unknown[0]), sorted(ALL_AVERAGES))
        return f"has {shown(unknown[0])} in averages: a set of names of averages, {known}"
    if requires.average not in requires.averages:
        return f"has average={shown(requires.average)}: it must be one of its averages, {sorted(requires.averages)}"
    if not _names(requires.hears):
        return f"has hears={shown(requires.hears)}: give a tuple of names of fields of the server's state, ('params',)"
    for name, of, least in (("hold", "steps", 1), ("more_steps", "steps", 0), ("per_step", "gradients", 1)):
        number = getattr(requires, name)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            return f"has {name}={shown(number)}: it must be a whole number of {of}, {least} or more"
    if not callable(requires.minimises):
        return f"has minimises={shown(requires.minimises)}: give a function of words, lambda objective: ..."
    for name, value in vars(requires).items():
        if isinstance(getattr(_NOTHING, name), bool) and not isinstance(value, (bool, np.bool_)):
            return f"has {name}={shown(value)}: it must be True or False"
    return ""


_NOTHING = Requires()


def _names(value: Any) -> bool:
    return isinstance(value, (tuple, list, set, frozenset)) and all(isinstance(name, str) for name in value)


# What messages know of y


def _only_through_delta(method: Method, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> None:
    """Checks that what is sent knows nothing of y but delta, where that is clipped or compressed."""
    names: list[str] = []

    def values(delta: Any, y: Any) -> list[Any]:
        messages, _ = method.finish(delta, y, sent, c_i, client)
        names[:] = [name for name in messages for _ in jax.tree.leaves(messages[name].value)]
        return [jnp.asarray(leaf) for name in messages for leaf in jax.tree.leaves(messages[name].value)]

    jaxpr, number = jax.make_jaxpr(values)(delta, y).jaxpr, len(jax.tree.leaves(delta))
    for place, name in enumerate(names):
        _, used = dce_jaxpr(jaxpr, [other == place for other in range(len(names))])
        if any(used[number:]):
            raise ValueError(
                f"{named(method, 'finish')} computes the message {name!r} from y, and a wrapper binds delta alone (it "
                "clips or compresses it): compute it from delta, and put what the server must hear into change"
            )
