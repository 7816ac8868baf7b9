"""The round by its clients: which objective it serves, whom it serves how well, and what it costs."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.fednova import FedNova
from fedjax_sim.algorithms.wrapper import innermost
from fedjax_sim.clients.cohort.per_client import check_length, per_client
from fedjax_sim.clients.systems.base import Cost
from fedjax_sim.clients.systems.devices import Devices
from fedjax_sim.clients.systems.exchange import Visit, close_exchange
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_real
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics import measures
from fedjax_sim.diagnostics.base import Diagnostic, RoundView
from fedjax_sim.diagnostics.streams import Piece, read_clients
from fedjax_sim.diagnostics.updates import cohort_shares
from fedjax_sim.models.evaluation import client_values, worst_mean
from fedjax_sim.models.task import Task

_FAIRNESS = ("worst", "std", "gini", "jain")


class Surrogate(Diagnostic):
    """The objective that unequal local work really minimises, beside the one that was meant.

    Written as x - tau_eff eta sum w_i G_i a_i / s_i with s_i = sum_k a_ik (|a_i|_1 for a_i >= 0), a round of federated
    averaging has w_i proportional to weight_i s_i and minimises F~ = sum w_i F_i; FedNova has w_i = weight_i. Over the
    cohort, p_i being the objective's shares renormalised:

      ``chi_square``         chi^2(p || w)
      ``effective_steps``    tau_eff
      ``slowdown``           tau_bar / tau_eff, tau_bar the mean of tau_i
      ``relative_variance``  A = m tau_eff sum w_i^2 |a_i|_2^2 / s_i^2
      ``surrogate_loss``     F~(x)
      ``cohort_loss``        sum p_i F_i(x), at the model with which the round starts

    Args:
      normalised: whether the method itself divides local changes by s_i; None: whether it is FedNova.

    Reference: Wang et al. 2020, FedNova, eqs 5-10 and Theorem 2.
    """

    normalised: bool | None = static(default=None)

    observes: ClassVar[frozenset[str]] = frozenset({"accumulation"})
    everyone: ClassVar[bool] = False

    def checked(self) -> Surrogate:
        if self.normalised is not None and not isinstance(self.normalised, bool):
            raise TypeError(f"surrogate(normalised={self.normalised!r}): it must be True, False or None")
        return self

    def names(self) -> tuple[str, ...]:
        return (
            "chi_square", "effective_steps", "slowdown", "relative_variance", "surrogate_loss", "cohort_loss",
        )  # fmt: skip

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        weight, sums = view.client.weight, trees.as_dtype(jnp.sum(view.weights_of_steps, axis=1), view.client.weight)
        steps = view.client.steps.astype(weight.dtype)
        method = innermost(view.algorithm)
        is_normalised = isinstance(method, FedNova) if self.normalised is None else self.normalised
        w = measures.normalised(weight if is_normalised else weight * sums)
        effective = _effective_steps(method, weight, sums, steps)
        p = cohort_shares(view)
        mean_steps = jnp.sum(steps) / jnp.maximum(view.cohort.size, 1).astype(steps.dtype)
        losses = cohort_losses(view)
        return {
            "chi_square": measures.chi_square(p, w),
            "effective_steps": effective,
            "slowdown": measures.quotient(mean_steps, effective),
            "relative_variance": measures.relative_variance(w, view.weights_of_steps, effective),
            "surrogate_loss": jnp.dot(trees.as_dtype(w, losses), losses),
            "cohort_loss": jnp.dot(trees.as_dtype(p, losses), losses),
        }


class ClientLosses(Diagnostic):
    """How evenly the model after the round serves all N clients.

    Of the clients' training losses F_i: ``"client_loss_worst"`` (mean of the worst tenth), ``"client_loss_std"``,
    ``"client_loss_gini"`` and ``"client_loss_jain"``; of their accuracies, where the task has them, likewise
    ``"client_accuracy_..."``. Every client counts 1/N. One pass over the data a round.

    Args:
      worst: the share of the clients that are the worst, in (0, 1].
    """

    worst: float = static(default=0.1)

    def checked(self) -> ClientLosses:
        check_real("client_losses(worst=...)", self.worst, low=0.0, high=1.0)
        if self.worst == 0:
            raise ValueError("client_losses(worst=...) is 0: it must be in (0, 1], a share of the clients")
        return self

    def names(self) -> tuple[str, ...]:
        return tuple(f"client_{what}_{name}" for what in ("loss", "accuracy") for name in _FAIRNESS)

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        values = client_values(view.task, view.dataset, view.after)
        record: dict[str, jax.Array] = {}
        for what in ("loss", "accuracy"):
            if what in values:
                of = values[what]
                worst = worst_mean(of, self.worst, highest=what == "loss")
                found = (worst, jnp.std(of), measures.gini(of), measures.jain(of))
                record |= {f"client_{what}_{name}": value for name, value in zip(_FAIRNESS, found, strict=True)}
        return record


class Communication(Diagnostic):
    """Bytes sent to and by all clients of the round, in all its phases: ``"bytes_down"`` and ``"bytes_up"``.

    A run with a ``system=`` records both anyway, with what clients that fail or are late have received.
    """

    everyone: ClassVar[bool] = False

    def names(self) -> tuple[str, ...]:
        return "bytes_down", "bytes_up"

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"bytes_down": view.bytes_down, "bytes_up": view.bytes_up}


class VirtualTime(Diagnostic):
    """Seconds until the slowest client of the cohort is done, max tau_i / v_i + transfer: ``"virtual_time"``.

    0 in a round in which nobody took part. It is a clock beside the run, which changes nothing in it; a run's
    ``system=`` has bandwidths, failures and deadlines besides, and decides who takes part.

    Args:
      speeds: v_i, local steps per second: a number, or [N] by client index (in the order of the client ids).
      transfer: seconds for its communication, a number or [N].
    """

    speeds: Any = 1.0
    transfer: Any = 0.0

    everyone: ClassVar[bool] = False

    def checked(self) -> VirtualTime:
        speeds = per_client("virtual_time(speeds=...)", self.speeds)
        check_real("virtual_time(speeds=...)", speeds, low=0.0, open_=True)
        return self.replace(speeds=speeds, transfer=per_client("virtual_time(transfer=...)", self.transfer))

    def check(self, dataset: FederatedDataset, task: Task) -> None:
        check_length("virtual_time(speeds=...)", self.speeds, dataset.num_clients)
        check_length("virtual_time(transfer=...)", self.transfer, dataset.num_clients)

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        clock = Devices(seconds_per_step=1 / jnp.asarray(self.speeds), latency=self.transfer / 2)
        one, none = jnp.ones_like(view.client.steps), jnp.zeros_like(view.client.steps)
        visit = Visit(view.client.index, view.client.id, view.cohort.valid, view.client.steps, one, none)
        closed = close_exchange(clock, visit, view.key, view.cohort.round, Cost(0.0, 0.0))
        return {"virtual_time": closed.clock.duration}


class Efficiency(Diagnostic):
    """Gradients that the clients needed over gradients that the layout computed, recorded as ``"efficiency"``.

    1 where nothing was computed.
    """

    everyone: ClassVar[bool] = False

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        useful, computed = (steps.astype(jnp.result_type(float)) for steps in (view.useful_steps, view.computed_steps))
        return {"efficiency": jnp.where(computed > 0, useful / jnp.maximum(computed, 1), jnp.ones_like(useful))}


def cohort_losses(view: RoundView) -> jax.Array:
    """F_i(x) of the cohort's clients at the round's start, [S]; 0 in void slots."""
    positions = view.dataset.order.at[view.client.index].get(mode="clip")

    def body(given: Any, piece: Piece, losses: jax.Array) -> jax.Array:
        task, params = given
        loss = task.batch_loss(params, piece.batch)
        return losses.at[piece.slot].add((loss * piece.part.astype(loss.dtype)).astype(losses.dtype))

    losses = jnp.zeros((len(positions),), jnp.result_type(float))
    return read_clients(body, (view.task, view.before), losses, view.dataset, positions, view.cohort.valid)  # type: ignore[no-any-return]


def _effective_steps(method: Any, weight: jax.Array, sums: jax.Array, steps: jax.Array) -> jax.Array:
    """tau_eff of the server's step: sum weight_i s_i but where FedNova says otherwise."""
    if not isinstance(method, FedNova) or method.effective("slope"):
        return jnp.dot(weight, sums)
    return jnp.dot(weight, steps) if method.effective("steps") else trees.as_dtype(method.tau_eff, weight)


surrogate = factory("diagnostic.surrogate", Surrogate)
client_losses = factory("diagnostic.client_losses", ClientLosses)
communication = factory("diagnostic.communication", Communication)
virtual_time = factory("diagnostic.virtual_time", VirtualTime)
efficiency = factory("diagnostic.efficiency", Efficiency)
