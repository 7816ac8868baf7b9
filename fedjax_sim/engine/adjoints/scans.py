"""Adjoints that go back through the rounds themselves: what they store, and what they compute again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_count, shown
from fedjax_sim.engine.adjoints.base import Ran, Run, Scanned, Span, joined, stopped
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.plan import Plan, TrainState


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

    levels: int = static(default=1)

    def checked(self) -> Nested:
        check_count("nested(levels=...)", self.levels)
        return self

    def scan(self, body: Callable[..., Any], carry: Any, xs: jax.Array, span: Span) -> tuple[Any, Any]:
        return segmented_scan(body, carry, xs, segment_lengths(span, self.levels))


class Truncated(Scanned):
    """The derivative of the last rounds only: it stops at the state from which they start.

    Of the earlier rounds nothing is stored and they run as without a derivative. The result is biased: the part that
    hyper-parameters and initial parameters had in the earlier rounds is missing, and what was recorded in those has
    derivative zero. For settled runs it approaches the full derivative as
    the rounds' contraction to the power k.

    Args:
      last: k >= 1, rounds to differentiate; all of them where the run has no more.
      base: how those are differentiated: ``direct()``, ``per_round()`` or ``nested()``.

    Reference: Shaban et al. 2019, "Truncated back-propagation for bilevel optimization".
    """

    last: int = static()
    base: Scanned = PerRound()

    def checked(self) -> Truncated:
        check_count("truncated(last)", self.last)
        if not isinstance(self.base, (Direct, PerRound)):
            raise TypeError(
                f"truncated(base) is {shown(self.base)}: give direct(), per_round() or nested() of fedjax_sim.adjoints"
            )
        return self

    def fitted(self, layout: Layout) -> Layout:
        return self.base.fitted(layout)

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        cut = run.rounds - self.last
        if cut <= 0:
            return self.base.run(run, plan, state)
        early = Direct().between(run, stopped(plan), stopped(state), 0, cut)
        late = self.base.between(run, plan, early.state, cut, run.rounds)
        records, metrics = ([getattr(early, name), getattr(late, name)] for name in ("records", "metrics"))
        return Ran(late.state, joined(records), joined(metrics))


def segmented_scan(body: Callable[..., Any], carry: Any, xs: jax.Array, lengths: tuple[int, ...]) -> tuple[Any, Any]:
    """``lax.scan(body, carry, xs)`` of which the backward pass stores only the carries between segments.

    Args:
      body: ``(carry, x) -> (carry, y)``.
      carry: the state.
      xs: an array, leading axis iterations.
      lengths: iterations in a segment, in a segment of that segment, and so on; each is computed again as a whole.
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

    Args:
      span: the loop.
      levels: L.
    """
    best = [span.rounds ** ((levels - level) / (levels + 1)) for level in range(levels)]
    if span.blocks:
        wanted, total = [length / span.block for length in best if length >= span.block], span.rounds // span.block
    else:
        wanted, total = [length for length in best if length < span.block], span.block
    lengths: list[int] = []
    for length in wanted:
        total = _near(length, total)
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
