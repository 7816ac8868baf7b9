"""Wrappers that see all messages of a round side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fedjax_sim import trees
from fedjax_sim.algorithms.contract import Client, Cohort, Method
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper

SENT = "sent"  # the stack as the clients made it
RECEIVED = "received"  # the stack as the server got it, on its way to the wrapper that makes sums of it


class Messages(NamedTuple):
    """All messages of one client, or the [S, ...] stacks of a cohort's.

    Attributes:
      averaged: those of which the server takes the cohort's average, by name.
      summed: those that the base method weighs itself, each times its weight: they are added up.
      single: those that the base method asks for in stacks.
    """

    averaged: dict[str, Any]
    summed: dict[str, Any]
    single: dict[str, Any]


class Gathering(Wrapper):
    """Delivers every message of the base method in one stack, before anything is made of it.

    Such wrappers stack: the outermost one lets each, from the inside out, change what the clients have sent
    (:meth:`intercepted`); then one of them makes of the stack what the base method expects (:meth:`reduced`).
    """

    @property
    def gathers(self) -> bool:
        """Whether this wrapper needs the stack; if not it is a plain wrapper."""
        return True

    @property
    def stacked(self) -> tuple[str, ...]:  # type: ignore[override]
        return (SENT,) if self.gathers else self.base.stacked

    def phases(self) -> tuple[Method, ...]:
        return tuple(self.replace(base=phase) for phase in self.base.phases())

    def finish(self, y: Any, sent: Any, c_i: Any, local: Any, client: Client) -> tuple[dict[str, Any], Any]:
        messages, new = super().finish(y, sent, c_i, local, client)
        if not self.gathers:
            return messages, new
        if SENT in messages:
            others = {name: message for name, message in messages.items() if name != SENT}
            inner: Messages = messages[SENT]
            return {SENT: inner._replace(single=inner.single | others)}, new
        own = self.base.weigh(client)
        single = {name: messages[name] for name in self.base.stacked}
        summed = {
            name: trees.scale(own[name], message)
            for name, message in messages.items()
            if name in own and name not in single
        }
        averaged = {name: message for name, message in messages.items() if name not in {*own, *single}}
        return {SENT: Messages(averaged, summed, single)}, new

    def weigh(self, client: Client) -> dict[str, jax.Array]:
        return {} if self.gathers else super().weigh(client)  # the base's weights are in the stack already

    def upload_bytes(self, messages: dict[str, Any], sent: Any) -> int:
        if self.gathers and SENT in messages:
            parts: Messages = messages[SENT]
            others = {name: message for name, message in messages.items() if name != SENT}
            messages = others | parts.averaged | parts.summed | parts.single
        return super().upload_bytes(messages, sent)

    def aggregate(self, server: Wrapped, sums: dict[str, Any], cohort: Cohort) -> Any:
        if SENT in sums:  # nobody outside of this wrapper needed the stack
            others = {name: message for name, message in sums.items() if name != SENT}
            sums = others | {RECEIVED: _delivered(self, sums[SENT], cohort)}
        if RECEIVED in sums and self.reduces:
            others = {name: message for name, message in sums.items() if name != RECEIVED}
            return self.reduced(server, sums[RECEIVED], others, cohort)
        return super().aggregate(server, sums, cohort)

    @property
    def reduces(self) -> bool:
        """Whether the sums are made here: the innermost wrapper makes them, unless another one says that it does."""
        return SENT not in self.base.stacked

    def intercepted(self, stack: Messages, cohort: Cohort) -> Messages:
        """What becomes of the stack between the clients and the server."""
        return stack

    def reduced(self, server: Any, stack: Messages, others: dict[str, Any], cohort: Cohort) -> Any:
        """The server's next state from the stack; ``others`` are the messages of wrappers further out."""
        raise TypeError(f"{type(self).__name__} must define reduced(server, stack, others, cohort)")


def _delivered(method: Method, stack: Messages, cohort: Cohort) -> Messages:
    """The stack after all wrappers of ``method``, the innermost first."""
    if not isinstance(method, Wrapper):
        return stack
    stack = _delivered(method.base, stack, cohort)
    return method.intercepted(stack, cohort) if isinstance(method, Gathering) else stack
