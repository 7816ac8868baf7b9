"""A shared representation under heads of the clients' own, trained in turn."""

from __future__ import annotations

from typing import Any, Self

import jax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Requires
from fedjax_sim.algorithms.partial import BASE, OWN, Keep
from fedjax_sim.core.fields import count
from fedjax_sim.optim import parts


class FedRep(Keep):
    """FedRep: each client first trains its head with the body fixed, then the body with the head fixed.

    v_i <- v_i - eta g_i(u, v_i), ``head_steps`` times;   u_i: the base's tau_i steps under that v_i;   u as the base

    What the patterns name, the head, stays with the client, as :class:`Keep` keeps it; the base runs on the others.
    The work's steps are those of the body; the head's come before them, on the batches before theirs. Each part's
    solver state moves with its part alone. (Both trained together, ``keep``, is FedPer.)

    Args:
      patterns: the head: parts of paths of parameters, one or a tuple of them; structure.
      head_steps: local steps of the head in a round.

    Raises:
      ValueError: as :class:`Keep`; a base that holds its batches or needs the size of a single step.

    Reference: Collins, Hassani, Mokhtari and Shakkottai 2021, "Exploiting shared representations for personalized
    federated learning", Algorithm 1.
    """

    head_steps: int = count(default=10)

    def checked(self) -> Self:
        checked = super().checked()
        requires = self.base.requires
        if requires.hold > 1 or requires.step_size:
            why = "holds its batches for several steps" if requires.hold > 1 else "asks for the size of one step"
            raise ValueError(
                f"{self.factory_name()}(base): {type(self.base).__name__} {why}, and here its steps come after the "
                "head's: use fedjax_sim.fedavg(...) for one"
            )
        return checked

    @property
    def requires(self) -> Requires:
        return super().requires.but(more_steps=self.base.requires.more_steps + self.head_steps)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> jax.Array:
        return super().objective(F, y, k - self.head_steps, sent, c_i, client)

    def turn(self, k: jax.Array, client: Client) -> dict[str, jax.Array]:
        head = k < self.head_steps
        return {OWN: head, BASE: ~head}

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        moved = super().step(g, y, state, k - self.head_steps, sent, c_i, client)
        return parts.in_turn(self.turn(k, client), moved, (y, state))


fedrep = recorded(
    "algorithm.fedrep",
    FedRep,
    step="around a method: each client's head is trained first, then the base trains the others under it",
    cite="""@inproceedings{collins2021exploiting,
  title = {Exploiting Shared Representations for Personalized Federated Learning},
  author = {Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021},
  eprint = {2102.07078},
  archiveprefix = {arXiv},
}""",
    kept="the base's + what is kept",
    sent="the base's, of the others",
    case=None,
)
