"""Averages that some of the clients cannot spoil."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.aggregators import Aggregator, CenteredClipping, Combined, Present, median, present
from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Message, Requires
from fedjax_sim.algorithms.gathering import SENT, Gathering, Messages
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper, innermost, within
from fedjax_sim.core import trees
from fedjax_sim.core.mistakes import explained
from fedjax_sim.core.values import shapes, shown


class Ruled(NamedTuple):
    """What a rule keeps, and what it reported of the last round."""

    state: Any
    report: dict[str, jax.Array]


class Robust(Gathering):
    """Any method that averages, with a robust rule in the place of the cohort's average.

    avg_S(m_i) = sum_S w_i m_i  becomes  rule({m_i : i in S}),  m_i all that client i sends, as one vector

    All else is the base method's. What the base weighs itself (SCAFFOLD's control variates, FedDyn's sums:
    sum_S v_i m_i) becomes |S| times the rule's answer for the v_i m_i / (|S| w_i), so that liars do not come in by that
    way; but for ``mean`` those sums are then no longer exact. For rules that know no weights w_i is 1 / |S|. Clients
    whose messages are not finite are no part of S.

    The scheme's weights enter where ``rule.weighted`` (``mean``, ``geometric_median``); the other rules count every
    client once and are refused with ``average="sample"``; None means "plain" for them.
    Memory: all messages of a cohort at once, S models.

    Args:
      base: the method. Methods that weigh clients themselves are refused (q-FedAvg, AFL, FedAWARE, ``reweighted``).
      rule: of ``fedjax_sim.aggregators``; None for the coordinate-wise median.

    Raises:
      TypeError: a rule that is none.
      ValueError: a method in which the cohort's average has no part; a robust method as base; centred clipping around
        a method whose averaged message is not one change of the model; and, before a run, a scheme with replacement,
        an average that need not sum to one, or a cohort too small for the rule.
    """

    rule: Any = None

    @property
    def requires(self) -> Requires:
        base, rule = self.base.requires, self.rule.factory_name()
        common = base.but(duplicates=False, excludes_nonfinite=True)
        if self.rule.weighted:
            why = "a robust rule replaces averages whose weights sum to 1"
            return common.but(averages=base.averages & {"sample", "plain"}, averages_why=why)
        return common.but(
            average="plain",
            averages=base.averages & {"plain"},
            averages_why=f"{rule} counts every client once, whatever its size",
            minimises=lambda objective: f"{base.minimises(objective)}, but for the bias of {rule}",
        )

    @property
    def reduces(self) -> bool:
        return True

    def checked(self) -> Self:
        checked = super().checked()
        rule = median() if self.rule is None else self.rule
        if not isinstance(rule, Aggregator):
            raise TypeError(
                f"robust(rule={shown(rule)}): give a rule, for instance fedjax_sim.aggregators.trimmed_mean(0.2)"
            )
        if any(isinstance(one, Robust) for one in within(self.base)):
            raise ValueError("robust(robust(...)): there is one average to replace; give one rule")
        if isinstance(rule, CenteredClipping) and len(self.base.phases()) > 1:
            name = innermost(self.base).factory_name()
            raise ValueError(
                f"robust({name}(...), centered_clipping(...)): the rule starts from its last answer, and this "
                "method averages two kinds of messages in a round; use another rule"
            )
        return checked.replace(rule=rule)

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        one = jax.tree.map(jnp.asarray, self.shared(params))
        state, stack = self.rule.init(one), jax.tree.map(lambda leaf: leaf[None], one)
        with explained(of=self.rule.combine):
            found = jax.eval_shape(lambda: self.rule.combine(stack, present(1), state))
            wanted = jax.tree.map(np.shape, (one, state))
            if not isinstance(found, Combined) or jax.tree.map(np.shape, found[:2]) != wanted:
                raise TypeError(
                    f"{type(self.rule).__name__}.combine returned {shapes(found)}: return Combined(value, state, "
                    f"report), a value like one vector, {shapes(one)}, and a state like that of init, {shapes(state)}"
                )
        return Wrapped(self.base.init(params, shares), Ruled(state, trees.zeros_like(found.report)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, new = super().finish(delta, y, sent, c_i, client)
        parts: Messages = messages[SENT].value
        if not parts.averaged or parts.single:
            name = self.base.factory_name()
            raise ValueError(
                f"robust({name}(...)): {name} weighs its clients itself or asks for each one's message, so the "
                "cohort's average is not all there is to protect: give a method that averages, for instance fedavg, "
                "fednova or scaffold, without wrappers like aware and reweighted"
            )
        return messages, new

    def reduced(self, server: Wrapped, stack: Messages, others: dict[str, Any], cohort: Cohort) -> Any:
        self.rule.check(len(cohort.valid))
        valid = Present.among(cohort.valid, cohort.weights, cohort.indices)
        vectors, who = valid.finite(jax.tree.map(trees.real, (stack.averaged, stack.parts)))
        count = who.size.astype(jnp.result_type(float))
        if self.rule.weighted:  # so that |S| times a weighted mean of them is their sum
            counts = who.valid & (who.weights > 0)
            each = jnp.where(counts, 1 / (count * jnp.where(counts, who.weights, 1)), 0)
            vectors = vectors[0], jax.vmap(trees.scale)(each, vectors[1])
        state = server.extra.state
        if isinstance(self.rule, CenteredClipping):
            state = self._like(state, vectors)
        combined = self.rule.combine(vectors, who, state)
        averaged, summed = combined.value
        kept = jax.tree.leaves(combined.state)
        kept = jax.tree.unflatten(jax.tree.structure(server.extra.state), kept)
        server = server._replace(extra=Ruled(kept, combined.report))
        sums = others | averaged | trees.of_types(trees.scale(count, summed), stack.summed)
        if self.requires.acts_alone:
            return Wrapper.update(self, server, sums, cohort)
        # A round in which no message is finite is one in which nobody took part.
        return jax.lax.cond(who.size > 0, lambda: Wrapper.update(self, server, sums, cohort), lambda: server)

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        ours: dict[str, jax.Array] = server.extra.report
        return self.base.report(server.base) | ours

    def _like(self, state: Any, vectors: Any) -> Any:
        """The model-shaped state of centred clipping in the structure of the messages."""
        averaged, summed = vectors
        shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
        if len(averaged) != 1 or summed or [leaf.shape[1:] for leaf in jax.tree.leaves(averaged)] != shapes:
            name = self.base.factory_name()
            raise ValueError(
                f"robust({name}(...), centered_clipping(...)): the rule starts from its last answer, shaped as the "
                f"model, and the messages are {sorted({*averaged, *summed})}: use a method that sends one change of "
                "the model, for instance fedavg or fedprox, or another rule"
            )
        return jax.tree.unflatten(jax.tree.structure(vectors), jax.tree.leaves(state))


robust = recorded(
    "algorithm.robust",
    Robust,
    step="around a method: a median, trimmed mean, Krum, ... of the messages in the place of their average",
    paper="Yin et al. 2018, Blanchard et al. 2017, Pillutla et al. 2022, ...",
    kept="the base's",
)
