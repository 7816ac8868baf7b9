"""The one program of a search: rounds of all members, and the decisions between them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_sim.core.keys import fold_in
from fedjax_sim.core.loops import counted, over_leading_axis
from fedjax_sim.core.values import is_float, shown
from fedjax_sim.engine.arguments import Evaluate
from fedjax_sim.engine.checks import unmet
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import init_state
from fedjax_sim.reporting.recorded import less_is_better, telling_of_divergence
from fedjax_sim.studies.objectives import Final
from fedjax_sim.studies.search.strategies import Decision, Strategy, Values
from fedjax_sim.studies.subject import Subject
from fedjax_sim.studies.sweeps.program import placed, up_to


class Settings(NamedTuple):
    """What is fixed at compile time."""

    rounds: int
    eval_every: int
    evaluate: Evaluate | None
    sizes: tuple[int, ...]  # members at work before each evaluation

    @property
    def stages(self) -> list[tuple[int, int, int]]:
        """Members at work, the first evaluation with so many, and the first one with fewer."""
        starts = [number for number, size in enumerate(self.sizes) if size != (0, *self.sizes)[number]]
        ends = [*starts[1:], len(self.sizes)]
        return [(self.sizes[start], start, end) for start, end in zip(starts, ends, strict=True)]


class Given(NamedTuple):
    """What stays the same through a search; a pytree."""

    plan: Plan
    strategy: Strategy
    objective: Final
    transforms: Any
    keys: jax.Array  # [S], of the runs
    key: jax.Array  # of the decisions
    fresh: Values  # new points, [E, P, ...] by name, or {}


class Record(NamedTuple):
    """What is known of E evaluations; NaN, or 0 where that is none, of members that were out."""

    values: Values  # [E, P, ...], of the rounds before an evaluation
    metrics: dict[str, jax.Array]  # [E, P, S, ...]
    scores: jax.Array  # [E, P]
    source: jax.Array  # int32[E, P], from whose state each goes on


class Members(NamedTuple):
    """Where the members stand, and what they have been through."""

    values: Values  # [P, ...]
    states: TrainState  # leaves [P, S, ...]
    order: jax.Array  # int32[P]: those at work are the first
    record: Record


@functools.partial(jax.jit, static_argnames="settings")
def begin(given: Given, initial_params: Any, values: Values, settings: Settings) -> Members:
    """All members before the first round."""

    def state(values: Values, key: jax.Array) -> TrainState:
        return init_state(placed(given.plan, values)._replace(key=key), initial_params)

    def blank(leaf: Any, *front: int) -> jax.Array:
        nothing = jnp.nan if is_float(leaf) else 0
        return jnp.full((len(settings.sizes), *front, *leaf.shape), nothing, leaf.dtype)

    states = jax.vmap(lambda values: over_leading_axis(lambda key: state(values, key), given.keys))(values)
    order = jnp.arange(settings.sizes[0], dtype=jnp.int32)
    first = jax.tree.map(lambda leaf: leaf[0], values), given.keys[0], jax.tree.map(lambda leaf: leaf[0, 0], states)
    _, (metrics, _) = jax.eval_shape(functools.partial(_run_on, given, settings, jnp.int32(0)), *first)
    record = Record(
        jax.tree.map(blank, values),
        jax.tree.map(lambda leaf: blank(leaf, len(order), len(given.keys)), metrics),
        blank(jnp.zeros(len(order))),
        jnp.tile(order, (len(settings.sizes), 1)),
    )
    return Members(values, states, order, record)


@functools.partial(jax.jit, static_argnames="settings", donate_argnames="members")
def advance(given: Given, members: Members, first: jax.Array, last: jax.Array, settings: Settings) -> Members:
    """Evaluations ``first`` to ``last`` - 1, with the rounds before and the decisions after them."""
    for size, start, end in settings.stages:
        low, high = jnp.clip(first, start, end), jnp.clip(last, start, end)
        step = jax.jit(functools.partial(_segment, given, settings, size))  # traced once, for the shapes and the loop
        members, _ = counted(high - low)(step, members, low + jnp.arange(end - start, dtype=jnp.int32))
    return members


def _segment(
    given: Given, settings: Settings, size: int, members: Members, number: jax.Array
) -> tuple[Members, tuple[()]]:
    rows, places = members.order[:size], jnp.arange(size, dtype=jnp.int32)
    values, states = jax.tree.map(lambda leaf: leaf[rows], (members.values, members.states))

    def of_member(member: tuple[Values, TrainState]) -> Any:
        of_seed = functools.partial(_run_on, given, settings, number, member[0])
        return over_leading_axis(lambda one: of_seed(*one), (given.keys, member[1]))

    states, (metrics, wrong) = over_leading_axis(of_member, (values, states))
    scores = jnp.where(jnp.any(wrong, axis=1), jnp.inf, score(given.objective, metrics))

    def decided() -> Decision:
        fresh = {name: column[number][rows] for name, column in given.fresh.items()}
        return given.strategy.decide(fold_in(given.key, number), scores, values, fresh, given.transforms)

    between = (number > 0) & (number < len(settings.sizes) - 1)
    decision = lax.cond(between, decided, lambda: Decision(places, places, values))
    new = Record(values, metrics, scores, rows[decision.source])
    states = jax.tree.map(lambda leaf: leaf[decision.source], states)
    order = members.order.at[:size].set(rows[decision.order])
    record = jax.tree.map(lambda all_, leaf: all_.at[number, rows].set(leaf), members.record, new)
    after = jax.tree.map(lambda all_, leaf: all_.at[rows].set(leaf), members[:2], (decision.values, states))
    return Members(after[0], after[1], order, record), ()


def _run_on(
    given: Given, settings: Settings, number: jax.Array, values: Values, key: jax.Array, state: TrainState
) -> tuple[TrainState, tuple[dict[str, jax.Array], jax.Array]]:
    """One run up to evaluation ``number``: its state, its metrics, whether a factory would refuse its values."""
    plan = placed(given.plan, values)._replace(key=key)
    state, (metrics, _) = up_to(plan, settings.rounds, settings.eval_every, settings.evaluate, state, number)
    wrong = unmet(Subject.of(plan), plan.dataset)
    return state, (metrics, jnp.bool_(False) if wrong is None else wrong)


def score(objective: Final, metrics: dict[str, jax.Array]) -> jax.Array:
    """[P], the mean over seeds, negative where more is better; inf where it, or a loss of a run, is not finite.

    A model of NaN has an accuracy.
    """
    values = objective.of(metrics)
    if values.ndim != 2:
        raise ValueError(
            f"objective {shown(objective)}: it has the shape {values.shape[2:]} at an evaluation, and members are "
            "compared by one number"
        )
    single = {name: leaf for name, leaf in metrics.items() if leaf.ndim == 2}
    judged = [values, *(single[name] for name in telling_of_divergence(single))]
    finite = functools.reduce(jnp.logical_and, map(jnp.isfinite, judged))
    mean = jnp.mean(values, axis=1).astype(jnp.result_type(float))
    return jnp.where(jnp.all(finite, axis=1), mean if less_is_better(objective.name) else -mean, jnp.inf)
