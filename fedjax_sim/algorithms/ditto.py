"""A model of each client's own beside the shared one, pulled towards it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import OWN_MODELS, Client, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.trees import select, square, subtract
from fedjax_sim.optim import parts
from fedjax_sim.optim.parts import Parts


class Ditto(FedAvg):
    """Ditto: beside FedAvg's model x each client trains a v_i of its own, min F_i(v_i) + lam/2 |v_i - x|^2.

    v_i <- v_i - eta (g_i(v_i) + lam (v_i - x)), with x as it was received;   x as FedAvg

    lam = 0 is local training, eta lam = 1 makes every step of v_i one from x. Both models see the same batches, in the
    same tau_i steps; with ``personal_steps`` v_i takes its own number of steps, on the batches after those of y_i.
    Both have the local solver, each a state of its own.

    Args:
      lam: lambda >= 0, how strongly v_i is pulled to x; a number, or lambda_i of each client, float[N] by client index.
      personal_steps: s, steps of v_i in a round; None for tau_i. They count as gradients beside the work's.

    Raises:
      ValueError: (before a run) a scheme with replacement, an average that scales the clients' objectives, or another
        number of lambda_i than there are clients.

    Reference: Li, Hu, Beirami and Smith 2021, "Ditto: Fair and robust federated learning through personalization",
    Algorithm 1.
    """

    lam: Any = real(default=1.0, low=0.0, several=True)
    personal_steps: int | None = count(default=None)

    @property
    def requires(self) -> Requires:
        return OWN_MODELS.but(more_steps=self.personal_steps or 0, per_step=2 if self.personal_steps is None else 1)

    def check(self, num_clients: int) -> None:
        if np.shape(self.lam) not in ((), (num_clients,)):
            raise ValueError(
                f"ditto(lam=...) has the shape {np.shape(self.lam)}: give one number, or one for each of the "
                f"{num_clients} clients, in the order of their ids; for several settings use jax.vmap"
            )

    def init_client(self, params: Any) -> Any:
        return params

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts(shared=sent.params, own=c_i)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        lam = self.lam if np.ndim(self.lam) == 0 else jnp.asarray(self.lam).at[client.index].get(mode="clip")
        pull = lam / 2 * square(subtract(y["own"], sent.params))
        if self.personal_steps is None:
            return F(y["shared"]) + F(y["own"]) + pull
        own = k >= client.steps
        return F(select(own, y["own"], y["shared"])) + jnp.where(own, pull, 0)

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        moved = super().step(g, y, state, k, sent, c_i, client)
        if self.personal_steps is None:
            return moved
        own = k >= client.steps
        return parts.in_turn({"own": own, "shared": ~own}, moved, (y, state))

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y["shared"], sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta)}, y["own"]

    def personal(self, server: Any, c_i: Any) -> Any:
        return c_i


ditto = recorded(
    "algorithm.ditto",
    Ditto,
    step="FedAvg, and v_i ← v_i − η (g_i(v_i) + λ (v_i − x))",
    cite="""@inproceedings{li2021ditto,
  title = {Ditto: Fair and Robust Federated Learning Through Personalization},
  author = {Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2021},
  eprint = {2012.04221},
  archiveprefix = {arXiv},
}""",
    kept="1",
    case={"lam": 0.7},
)
