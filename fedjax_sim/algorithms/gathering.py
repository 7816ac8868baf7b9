"""Wrappers that see all messages of a round side by side."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Share, Stack
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper, within
from fedjax_sim.core import trees

SENT = "sent"  # the stack as the clients made it
RECEIVED = "received"  # the stack as the server got it, on its way to the wrapper that makes sums of it


class Messages(NamedTuple):
    """All messages of one client, or the [S, ...] stacks of a cohort's."""

    averaged: dict[str, Any]  # those of which the server takes the cohort's average (``Mean``), by name
    summed: dict[str, Any]  # those that are added up (``Sum``, ``Share``)
    single: dict[str, Any]  # those that the base method asks for in stacks (``Stack``)
    shares: dict[str, Any]  # what the server multiplies ``summed`` by: of a ``Share`` the client's share, else 1

    @property
    def parts(self) -> dict[str, Any]:
        """Of a cohort's stacks what is added up."""
        return {name: jax.vmap(trees.scale)(self.shares[name], each) for name, each in self.summed.items()}


class Gathering(Wrapper):
    """Delivers every message of the base method in one stack, before anything is made of it.

    Such wrappers stack: the outermost one lets each, from the inside out, change what the clients have sent
    (:meth:`intercepted`); then one of them makes of the stack what the base method expects (:meth:`reduced`).
    """

    in_every_phase: ClassVar[bool] = True
    of_averages: ClassVar[bool] = True

    @property
    def gathers(self) -> bool:
        """Whether this wrapper needs the stack; if not it is a plain wrapper."""
        return True

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, new = super().finish(delta, y, sent, c_i, client)
        if not self.gathers:
            return messages, new
        stack = Messages({}, {}, {}, {})
        for name, message in messages.items():
            if name == SENT:
                stack = Messages(*(own | inner for own, inner in zip(stack, message.value, strict=True)))
            elif isinstance(message, Mean):
                stack.averaged[name] = message.value
            elif isinstance(message, Stack):
                stack.single[name] = message.value
            else:
                stack.summed[name] = message.value
                stack.shares[name] = client.share if isinstance(message, Share) else jnp.ones_like(client.share)
        return {SENT: Stack(stack, sum(message.size for message in messages.values()))}, new

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Any:
        others = dict(got)
        if SENT in others:  # nobody outside of this wrapper needed the stack
            stack = others.pop(SENT)
            for one in reversed(list(within(self))):
                stack = one.intercepted(stack, cohort) if isinstance(one, Gathering) else stack
            # Wrappers between this one and the one that makes the sums read theirs, as aware does around robust.
            others |= stack.single
            others[RECEIVED] = stack
        if RECEIVED in others and self.reduces:
            return self.reduced(server, others.pop(RECEIVED), others, cohort)
        return super().update(server, others, cohort)

    @property
    def reduces(self) -> bool:
        """Whether the sums are made here: the innermost wrapper makes them, unless another one says that it does."""
        return not any(isinstance(one, Gathering) and one.gathers for one in within(self.base))

    def intercepted(self, stack: Messages, cohort: Cohort) -> Messages:
        """What becomes of the stack between the clients and the server."""
        return stack

    def reduced(self, server: Any, stack: Messages, others: dict[str, Any], cohort: Cohort) -> Any:
        """The server's next state from the stack; ``others`` are the messages of wrappers further out."""
        raise TypeError(f"{type(self).__name__} must define reduced(server, stack, others, cohort)")
