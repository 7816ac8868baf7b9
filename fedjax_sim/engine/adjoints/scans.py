"""What an adjoint is, and those that go through the rounds themselves: what they store, and what they compute again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_sim.clients.scheme import one_of
from fedjax_sim.core.derived import primitive
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, leaf
from fedjax_sim.core.loops import Reached, Tell, filled, silent
from fedjax_sim.core.replayed import reals
from fedjax_sim.core.values import is_float
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import some_rounds


class Run(NamedTuple):
    """The rounds of a run as functions.

    Attributes:
      tell: the identity in ``(reached, rounds done)``, called at the start and after every round, with the metrics
        where there is an evaluation.
    """

    step: Callable[[Plan, TrainState, jax.Array], tuple[TrainState, Any]]  # (plan, state, t) -> (state, record)
    measure: Callable[[Plan, TrainState], Any]  # (plan, state) -> metrics
    rounds: int
    eval_every: int
    tell: Tell = silent

    def start(self, state: TrainState) -> Reached:
        """``state`` where nobody has been told of anything yet."""
        return Reached(state) if self.tell is silent else Reached(state, jnp.int32(0))


class Span(NamedTuple):
    """A loop of a run, for an adjoint that plans by lengths."""

    rounds: int  # all that are differentiated
    block: int  # rounds between evaluations
    blocks: bool  # whether an iteration is such a block; else a single round within one


class Ran(NamedTuple):
    """What is left of some rounds: the last state, records by round, metrics by evaluation."""

    state: TrainState
    records: Any
    metrics: Any


class Adjoint(Described):
    """Base of the adjoints; pure structure.

    An adjoint changes the memory and the time of a derivative, and some say which part of it is left out. What a run
    returns without a derivative is the same to the last bit for all of them.
    """

    def check(self, plan: Plan, rounds: int) -> None:
        """Raises ``ValueError`` where the run has no such derivative."""

    def fitted(self, plan: Plan) -> Plan:
        """The plan with what this adjoint knows of its loops."""
        return plan

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        """All rounds from ``state``, evaluated at the start, every ``eval_every`` rounds and at the end."""
        raise TypeError(f"{type(self).__name__} must define run(run, plan, state)")


class Scanned(Adjoint):
    """Base of the adjoints that scan over rounds; subclasses say what is stored and what is computed again."""

    def stored(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """One round or one evaluation, with what the backward pass keeps of its inside."""
        return function

    def scan(self, body: Callable[..., Any], carry: Any, xs: jax.Array, span: Span) -> tuple[Any, Any]:
        """``lax.scan(body, carry, xs)``, of the loop ``span``."""
        return lax.scan(body, carry, xs)

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        reached, records, metrics = self.between(run, plan, run.start(state), 0, run.rounds)
        return Ran(reached.state, records, metrics)

    def between(self, run: Run, plan: Plan, reached: Reached, start: int, stop: int) -> tuple[Reached, Any, Any]:
        """Rounds ``start`` to ``stop - 1`` and the evaluations before them; after them too where they are the last."""
        every = run.eval_every
        stored_step = self.stored(lambda state, t: run.step(plan, state, t))
        stored_measure = self.stored(lambda state: run.measure(plan, state))

        def step(_: Plan, reached: Reached, t: jax.Array) -> tuple[Reached, Any]:
            state, record = stored_step(reached.state, t)
            reached = reached._replace(state=state)
            if every > 1:
                reached, _done = run.tell(reached, t + 1, {})
            return reached, record

        def measure(reached: Reached, done: jax.Array) -> tuple[Reached, jax.Array, Any]:
            measured = stored_measure(reached.state)
            return *run.tell(reached, done, measured), measured

        def scan(body: Callable[..., Any], reached: Reached, ts: jax.Array) -> tuple[Reached, Any]:
            if len(ts) == 1:  # a loop around it would store the state once more
                reached, record = body(reached, ts[0])
                return reached, _row(record)
            return self.scan(body, reached, ts, Span(stop - start, min(every, stop - start), blocks=False))

        def rounds(reached: Any, ts: jax.Array) -> tuple[Any, Any]:
            return some_rounds(plan, reached, ts, scan, step)

        def block(reached: Reached, ts: jax.Array) -> tuple[Reached, Any]:
            # Evaluated before its rounds, not after: what an evaluation and the first round store is then one state.
            reached, first, measured = measure(reached, ts[0])
            reached, records = rounds(reached, ts + (first - ts[0]))  # zero: no round starts before the call was made
            return reached, (records, measured)

        records: list[Any] = []
        metrics: list[Any] = []
        first = min(-(-start // every) * every, stop)
        last = max(stop - stop % every, first)
        if start < first:
            reached, record = rounds(reached, jnp.arange(start, first, dtype=jnp.int32))
            records.append(record)
        if first < last:
            tss = jnp.arange(first, last, dtype=jnp.int32).reshape(-1, every)
            reached, (record, measured) = self.scan(block, reached, tss, Span(stop - start, every, blocks=True))
            records.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), record))
            metrics.append(measured)
        if last < stop:
            reached, (record, one) = block(reached, jnp.arange(last, stop, dtype=jnp.int32))
            records.append(record)
            metrics.append(_row(one))
        if stop == run.rounds:
            reached, _, measured = measure(reached, jnp.int32(run.rounds))
            metrics.append(_row(measured))
        return reached, joined(records), joined(metrics)


def joined(pieces: list[Any]) -> Any:
    """Pytrees of arrays, one after another along their leading axis; ``()`` for no piece."""
    if len(pieces) < 2:
        return pieces[0] if pieces else ()
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)


def stopped(tree: Any) -> Any:
    """``tree`` as a constant: no derivative reaches it, and none is computed behind it."""
    return jax.tree.map(lambda leaf: lax.stop_gradient(leaf) if isinstance(leaf, jax.core.Tracer) else leaf, tree)


def varying(state: Any, on: Any) -> Any:
    """``state``; in a derivative along ``on``, all its real numbers have one, which may be zero.

    A run's first state knows nothing of its hyper-parameters, the states after it do. JAX differentiates the body of a
    loop for a carry without a derivative, finds that it gets one, and begins again: for the loops within, each time.
    """
    leaves, structure = jax.tree.flatten(state)
    places = [i for i, one in enumerate(leaves) if is_float(one)]
    others = [one for one in reals(on) if jnp.size(one)]
    found = _varying.bind(*[jnp.asarray(leaves[i]) for i in places], *others, count=len(places))
    return jax.tree.unflatten(structure, filled(leaves, places, found))


def _varied(primals: list[Any], tangents: list[Any], *, count: int) -> tuple[list[Any], list[Any]]:
    along = [one for one in tangents[count:] if not isinstance(one, ad.Zero)]

    def given(leaf: Any, tangent: Any) -> Any:
        if not along or not isinstance(tangent, ad.Zero):
            return tangent
        some = jnp.ravel(along[0])[0].astype(leaf.dtype)
        return jnp.where(False, some, jnp.zeros_like(leaf))  # a choice: 0 times infinity is NaN

    moved = [given(*one) for one in zip(primals[:count], tangents[:count], strict=True)]
    return _varying.bind(*primals, count=count), moved


_varying = primitive("varying", lambda *given, count: list(given[:count]))
_varying.def_abstract_eval(lambda *given, count: list(given[:count]))
ad.primitive_jvps[_varying] = _varied
batching.primitive_batchers[_varying] = lambda given, axes, *, count: (
    _varying.bind(*given, count=count),
    list(axes[:count]),
)


def _row(tree: Any) -> Any:
    # Of a number that an evaluation always says jax.checkpoint makes a number of Python's.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)


class Direct(Scanned):
    """Stores what the backward pass needs of every local step of every round: nothing is computed twice.

    Memory grows with R Σ τ_i: for short runs of small models. Fastest where it fits.
    """


class PerRound(Scanned):
    """Stores the state before each round and computes the round again on the way back.

    Memory: R states (model, server and client states) and the inside of one round; time: one forward run more than
    :func:`direct`. Evaluations are computed again too. The default of :func:`fedjax_sim.make_train`.
    """

    def stored(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.checkpoint(function)


def constant(run: Run, plan: Plan, state: TrainState, stop: int) -> tuple[Reached, Any, Any]:
    """The first ``stop`` rounds, of which no derivative is computed."""
    return Direct().between(run, stopped(plan), run.start(stopped(state)), 0, stop)


class Nested(PerRound):
    """Recursive checkpointing: segments of rounds, inside them shorter segments, and so on down to single rounds.

    With L ``levels`` of segments the memory is about (L + 1) R^(1/(L+1)) states and the inside of one round, the time
    L forward runs more than :func:`per_round`: one level stores 2 √R states, log2(R) - 1 levels 2 log2(R). Segment
    lengths divide each other where R (and ``eval_every``) have divisors near the best lengths; otherwise a shorter last
    segment is compiled besides, which takes longer to compile and computes the same.

    Args:
      levels: L >= 1.

    Reference: Griewank and Walther 2000, "Algorithm 799: revolve", for the idea and the optimum for a given memory;
    the uniform recursion here is that of Chen et al. 2016, "Training deep nets with sublinear memory cost", section 4.
    """

    levels: int = count(default=1)

    def scan(self, body: Callable[..., Any], carry: Any, xs: jax.Array, span: Span) -> tuple[Any, Any]:
        return segmented_scan(body, carry, xs, segment_lengths(span, self.levels))


class Truncated(Scanned):
    """The derivative of the last rounds only: it stops at the state from which they start.

    Of the earlier rounds nothing is stored and they run as without a derivative. The result is biased: the part that
    hyper-parameters and initial parameters had in the earlier rounds is missing, and what was recorded in those has
    derivative zero. For settled runs it approaches the full derivative as the rounds' contraction to the power k.

    Args:
      last: k >= 1, rounds to differentiate; all of them where the run has no more.
      base: how those are differentiated: ``direct()``, ``per_round()`` or ``nested()``.

    Reference: Shaban et al. 2019, "Truncated back-propagation for bilevel optimization".
    """

    last: int = count()
    base: Scanned = leaf(one_of(Direct, PerRound, example="fedjax_sim.adjoints.per_round()"), default=PerRound())

    def fitted(self, plan: Plan) -> Plan:
        return self.base.fitted(plan)

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        cut = run.rounds - self.last
        if cut <= 0:
            return self.base.run(run, plan, state)
        reached, *early = constant(run, plan, state, cut)
        reached, *late = self.base.between(run, plan, reached, cut, run.rounds)
        return Ran(reached.state, *(joined(list(pieces)) for pieces in zip(early, late, strict=True)))


class Forward(Scanned):
    """Forward mode through the loops as they run: no idle step, and memory that does not grow with R.

    For ``jax.jacfwd``, ``jax.jvp`` and a few hyper-parameters: time grows with their number, about one forward run each
    and one more; memory is that of the run times their number plus one. Reverse mode is refused when the program is
    traced, for the loops cannot be run backwards.
    """

    def fitted(self, plan: Plan) -> Plan:
        return plan._replace(schedule=plan.schedule.replace(reverse=False))

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        return jax.tree.map(_one_way_only, super().run(run, plan, state))


def _one_way_only(leaf: Any) -> Any:
    return _one_way.bind(leaf) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) else leaf


def _refuse(cotangent: Any, operand: Any) -> NoReturn:
    raise TypeError(
        "adjoint=forward() has no reverse mode, so jax.grad, jax.vjp and jax.jacrev cannot pass it: use jax.jacfwd, or "
        "give make_train another adjoint, such as per_round() or nested() of fedjax_sim.adjoints"
    )


# The identity, linear, batched and lowered as such; only its transpose is missing. JAX has no function for this:
# custom_vjp refuses forward mode, and linear_call cannot be vmapped.
_one_way = Primitive("one_way")
_one_way.def_impl(lambda x: x)
_one_way.def_abstract_eval(lambda x: x)
ad.deflinear2(_one_way, _refuse)
batching.defvectorized(_one_way)
mlir.register_lowering(_one_way, lambda _, x: [x])


def segmented_scan(body: Callable[..., Any], carry: Any, xs: jax.Array, lengths: tuple[int, ...]) -> tuple[Any, Any]:
    """``lax.scan(body, carry, xs)`` of which the backward pass stores only the carries between segments.

    ``lengths`` are the iterations in a segment, in a segment of that segment, and so on; each is computed again as a
    whole.
    """
    if not lengths:
        return lax.scan(body, carry, xs)
    length, rest = lengths[0], lengths[1:]
    if length >= len(xs):
        return segmented_scan(body, carry, xs, rest)

    @jax.checkpoint
    def segment(carry: Any, xs: jax.Array) -> tuple[Any, Any]:
        return segmented_scan(body, carry, xs, rest)

    whole, left = divmod(len(xs), length)
    carry, ys = lax.scan(segment, carry, xs[: whole * length].reshape(whole, length, *xs.shape[1:]))
    ys = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), ys)
    if left:
        carry, more = segment(carry, xs[whole * length :])
        ys = joined([ys, more])
    return carry, ys


def segment_lengths(span: Span, levels: int) -> tuple[int, ...]:
    """Iterations in a segment of one of a run's two loops, in a segment of that segment, and so on.

    The best lengths of L levels are R^(L/(L+1)), ..., R^(1/(L+1)) rounds. Those of at least a block cut the loop over
    blocks, the others the loop inside a block.
    """
    best = [span.rounds ** ((levels - level) / (levels + 1)) for level in range(levels)]
    unit, total = (span.block, span.rounds // span.block) if span.blocks else (1, span.block)
    lengths: list[int] = []
    for length in best:
        if (length >= span.block) == span.blocks:
            total = _near(length / unit, total)
            lengths.append(total)
    return tuple(lengths)


def _near(length: float, total: int) -> int:
    """The divisor of ``total`` next to ``length``, if there is one within a factor of 3/2; else ``length`` rounded."""
    divisors = [d for i in range(1, math.isqrt(total) + 1) if total % i == 0 for d in (i, total // i)]
    best = min(divisors, key=lambda d: abs(math.log(d / length)))
    return best if abs(math.log(best / length)) <= math.log(1.5) else max(1, round(length))


direct = factory("adjoint.direct", Direct)
per_round = factory("adjoint.per_round", PerRound)
nested = factory("adjoint.nested", Nested)
truncated = factory("adjoint.truncated", Truncated)
forward = factory("adjoint.forward", Forward)
