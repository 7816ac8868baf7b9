"""The local work of clients that began with different models, for layouts that know of one broadcast for all."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fedjax_sim.algorithms.contract import Client
from fedjax_sim.local.solver import Progress, Slot, Solver


class StaleSlot(NamedTuple):
    """A client and what it received, which travels with it through a layout; leading axis [K] outside.

    Attributes:
      slot: the client.
      sent: the broadcast that it began with.
    """

    slot: Slot
    sent: Any

    @property
    def client(self) -> Client:
        """See :class:`fedjax_sim.local.solver.Slot`."""
        return self.slot.client

    @property
    def offset(self) -> jax.Array:
        """See :class:`fedjax_sim.local.solver.Slot`."""
        return self.slot.offset

    def at(self, steps: jax.Array, offset: jax.Array) -> StaleSlot:
        """See :meth:`fedjax_sim.local.solver.Slot.at`."""
        return self._replace(slot=self.slot.at(steps, offset))


class StaleSolver(Solver):
    """A solver whose clients work from their own ``sent``; messages are changes of the model that they began with."""

    def micro_steps(self, slot: StaleSlot) -> jax.Array:  # type: ignore[override]
        return super().micro_steps(slot.slot)

    def begin(self, sent: Any, c_i: Any, slot: StaleSlot) -> Progress:  # type: ignore[override]
        return super().begin(slot.sent, c_i, slot.slot)

    def step(  # type: ignore[override]
        self, sent: Any, slot: StaleSlot, progress: Progress, k: jax.Array, *, serial: bool = False
    ) -> Progress:
        return super().step(slot.sent, slot.slot, progress, k, serial=serial)

    def finish(self, sent: Any, c_i: Any, slot: StaleSlot, progress: Progress) -> tuple[dict[str, Any], Any]:  # type: ignore[override]
        return super().finish(slot.sent, c_i, slot.slot, progress)

    def weigh(self, slot: StaleSlot, messages: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return super().weigh(slot.slot, messages)


class MixingSolver(StaleSolver):
    """The same, whose messages are y_i - x with x the server's present model: what FedAsync averages."""

    def finish(self, sent: Any, c_i: Any, slot: StaleSlot, progress: Progress) -> tuple[dict[str, Any], Any]:  # type: ignore[override]
        return Solver.finish(self, slot.sent._replace(params=sent.params), c_i, slot.slot, progress)
