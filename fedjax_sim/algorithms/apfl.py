"""Mixtures of a model of each client's own and the shared one."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import OWN_MODELS, Client, Mean, Message
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import flag, real
from fedjax_sim.core.trees import mix, subtract
from fedjax_sim.optim.parts import Parts


class Kept(NamedTuple):
    """What a client of APFL keeps: its part v_i of the mixture and, where that is learned, the part's weight."""

    own: Any
    alpha: Any = ()


class Apfl(FedAvg):
    """APFL: client i uses the mixture alpha v_i + (1 - alpha) x of a model of its own and the shared one.

    w_i <- w_i - eta g_i(w_i), from x;   v_i <- v_i - eta alpha g_i(alpha v_i + (1 - alpha) w_i);   x as FedAvg of w_i

    both at the w_i and v_i before the step. alpha = 0 is FedAvg, alpha = 1 local training. With ``adaptive`` each
    client has an alpha_i of its own and learns it in every step by the local solver (eq. 10), kept in [0, 1]:

    alpha_i <- alpha_i - eta <g_i(alpha_i v_i + (1 - alpha_i) w_i), v_i - w_i>

    The running statistics of a BatchNorm in v_i are those of the mixture's batches.

    Args:
      alpha: weight of the client's own model, in [0, 1]; where ``adaptive`` begins.
      adaptive: whether each client learns its alpha_i.

    Raises:
      ValueError: (before a run) a scheme with replacement, or an average that scales the clients' objectives.

    Reference: Deng, Kamani and Mahdavi 2020, "Adaptive personalized federated learning", Algorithm 1 and eq. 10.
    """

    alpha: Any = real(default=0.5, low=0.0, high=1.0)
    adaptive: bool = flag(default=False)

    requires = OWN_MODELS.but(per_step=2)

    def init_client(self, params: Any) -> Any:
        return Kept(params, jnp.asarray(self.alpha, jnp.result_type(float)) if self.adaptive else ())

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts(shared=sent.params, own=c_i.own, alpha=c_i.alpha)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        alpha = y["alpha"] if self.adaptive else self.alpha
        mixture = mix(alpha, y["own"], client.held["shared"])
        return F(y["shared"]) + F(F.with_statistics(mixture, y["own"]))

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        moved, state = super().step(g, y, state, k, sent, c_i, client)
        return Parts(moved, alpha=jnp.clip(moved["alpha"], 0, 1) if self.adaptive else ()), state

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y["shared"], sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta)}, Kept(y["own"], y["alpha"])

    def personal(self, server: Any, c_i: Any) -> Any:
        return mix(c_i.alpha if self.adaptive else self.alpha, c_i.own, server.params)


apfl = recorded(
    "algorithm.apfl",
    Apfl,
    step="FedAvg of w_i, and v_i ← v_i − η α g_i(α v_i + (1 − α) w_i)",
    cite="""@article{deng2020adaptive,
  title = {Adaptive Personalized Federated Learning},
  author = {Deng, Yuyang and Kamani, Mohammad Mahdi and Mahdavi, Mehrdad},
  journal = {arXiv preprint arXiv:2003.13461},
  year = {2020},
}""",
    kept="1 (1 + a scalar with `adaptive`)",
    options="`alpha`; each client learns its own: `adaptive`",
    case={"alpha": 0.4},
)
