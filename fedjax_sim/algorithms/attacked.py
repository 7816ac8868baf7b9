"""Clients that do not send what the method says."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.attacks import Attack, Collusion, scaling, sign_flip
from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Message
from fedjax_sim.algorithms.gathering import SENT, Gathering, Messages
from fedjax_sim.algorithms.reweighted import Reweighted
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper, within
from fedjax_sim.core import trees
from fedjax_sim.core.fields import integers
from fedjax_sim.core.values import INT32_MAX, as_int32, is_concrete, shown

_LOT = 0x417AC4ED  # the branch of a client's key that attacks draw from


class Attacked(Gathering):
    """Any method, some of whose clients send something else than it says (Byzantine clients).

    Attackers train as the method does, and keep their state as it does; what they send is the attack's, all of it:
    FedNova's scalars and SCAFFOLD's control variates too. Weights and sizes are the server's own knowledge and stay
    true. Goes inside or outside of ``robust``, inside of ``reweighted``, and around itself, with other clients and
    another attack. Clipping by the clients (``clipped``) does not bind them. Poisoned data is no message: see
    ``fedjax_sim.datasets.flip_labels``.

    Colluding attacks need all messages of a cohort at once (memory: S models). Recorded: ``"attackers"``, how many took
    part in the round.

    Args:
      clients: int[M], who attacks, by client index (clients are numbered in the order of their ids), -1 for nobody;
        ``fedjax_sim.attacks.draw_attackers(data, 0.2, seed=0)`` draws a fraction. None for nobody.
      attack: of ``fedjax_sim.attacks``; None for ``sign_flip()``.

    Raises:
      TypeError: an attack that is none, or clients that are not integers.
      ValueError: clients that are not one row of numbers, ``reweighted`` inside, or (before a run) a number that no
        client has. A traced one attacks nobody, as ``"attackers"`` shows.
    """

    clients: Any = integers(default=None)
    attack: Any = None

    @property
    def gathers(self) -> bool:
        return isinstance(self.attack, Collusion)

    def checked(self) -> Self:
        checked = super().checked()
        if checked.attack is None:
            checked = checked.replace(attack=sign_flip())
        if any(isinstance(one, Reweighted) for one in within(self.base)):
            raise ValueError(
                "attacked(reweighted(...)): the server weighs what clients send, and here attackers would choose their "
                "weight too: put attacked inside, reweighted(attacked(...), ...)"
            )
        if not isinstance(checked.attack, (Attack, Collusion)):
            raise TypeError(
                f"attacked(attack={shown(self.attack)}): give an attack, for instance fedjax_sim.attacks.scaling(10.0)"
            )
        traced = isinstance(self.clients, jax.core.Tracer)
        clients: Any = self.clients if traced else np.asarray([] if self.clients is None else self.clients)
        whole = not clients.size or jnp.issubdtype(clients.dtype, jnp.integer)
        if not whole or clients.ndim != 1:
            raise (TypeError if not whole else ValueError)(
                f"attacked(clients={shown(self.clients)}): give one row of client indices, integers, [3, 7]; a "
                "fraction is drawn by fedjax_sim.attacks.draw_attackers(data, 0.2, seed=0)"
            )
        if traced:
            return checked
        _check_numbers(clients, INT32_MAX)
        return checked.replace(clients=jnp.asarray(clients, jnp.int32))

    def check(self, num_clients: int) -> None:
        super().check(num_clients)
        if is_concrete(self.clients):
            _check_numbers(np.asarray(self.clients), num_clients - 1)

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        return Wrapped(self.base.init(params, shares), jnp.int32(0))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, new = super().finish(delta, y, sent, c_i, client)
        if self.gathers:
            return messages, new
        key = jax.random.fold_in(client.key, jnp.uint32(_LOT))
        tampered = trees.of_types(self.attack.tampered(jax.tree.map(trees.real, messages), key), messages)
        if SENT in messages:  # shares are the server's own knowledge
            known = tampered[SENT].value._replace(shares=messages[SENT].value.shares)
            tampered[SENT] = tampered[SENT].replace(value=known)
        return trees.select(self._attacks(client.index), tampered, messages), new

    def intercepted(self, stack: Messages, cohort: Cohort) -> Messages:
        if not self.gathers:
            return stack
        attackers = cohort.valid & self._attacks(cohort.indices)
        honest = cohort.valid & ~attackers
        said = stack._replace(shares={})
        agreed = trees.of_types(self.attack.agreed(jax.tree.map(trees.real, said), honest, attackers), said)
        heard = jax.tree.map(lambda leaf, one: jnp.where(trees.column(attackers, leaf), one[None], leaf), said, agreed)
        return heard._replace(shares=stack.shares)

    def reduced(self, server: Wrapped, stack: Messages, others: dict[str, Any], cohort: Cohort) -> Any:
        ones = jnp.ones_like(cohort.indices)  # sums of integers stay integers
        sums = trees.weighted_sum(cohort.weights, stack.averaged) | trees.weighted_sum(ones, stack.parts)
        return Wrapper.update(self, server, others | sums, cohort)

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Any:
        new: Wrapped = super().update(server, got, cohort)
        return new._replace(extra=jnp.sum(cohort.valid & self._attacks(cohort.indices), dtype=jnp.int32))

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        inner = self.base.report(server.base)
        return inner | {"attackers": server.extra + inner.get("attackers", jnp.int32(0))}

    def _attacks(self, index: jax.Array) -> jax.Array:
        """Whether the clients of these indices attack."""
        return jnp.isin(index, as_int32(self.clients, -1))


def _check_numbers(clients: np.ndarray, most: int) -> None:
    wrong = clients[(clients < -1) | (clients > most)]
    if wrong.size:
        raise ValueError(
            f"attacked(clients=...) has {wrong.tolist()[:5]}: clients are numbered 0 to {most} in the order of their "
            "ids (-1 for nobody)"
        )


attacked = recorded(
    "algorithm.attacked",
    Attacked,
    step="around a method: some clients send something else",
    paper="Blanchard et al. 2017, Baruch et al. 2019, Xie et al. 2020",
    kept="the base's",
    case={"clients": [1, 4], "attack": scaling(-0.4)},
)
