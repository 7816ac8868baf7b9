"""Moreau envelopes of the clients' losses."""

from __future__ import annotations

from typing import Any

import jax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import OWN_MODELS, Client, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import count, real
from fedjax_sim.core.trees import add_scaled, select, square, subtract
from fedjax_sim.optim.parts import Parts


class PFedMe(FedAvg):
    """pFedMe: clients minimise the Moreau envelopes of their losses, min_theta F_i(theta) + lam/2 |theta - w|^2.

    For each of tau_i batches:   theta_i <- theta_i - l (g_i(theta_i) + lam (theta_i - w_i)), K times;
                                 w_i <- w_i - eta lam (w_i - theta_i)
    x <- x + beta (mean_S w_i - x)

    from w_i = theta_i = x. The local solver, of rate l, is that of theta_i; beta is ``server_learning_rate``. The
    personal model is theta_i. K = 1 with eta lam = 1 is plain-mean FedAvg.

    Args:
      lam: lambda > 0.
      inner_steps: K, steps of theta_i on each batch; a local step of the work is K gradients.
      outer_learning_rate: eta >= 0, of w_i; eta lam is at most 1 where w_i should stay between x and theta_i.

    Raises:
      ValueError: (before a run) a scheme with replacement, an average that scales the clients' objectives, or batches
        that are taken in pieces.

    Reference: Dinh, Tran and Nguyen 2020, "Personalized federated learning with Moreau envelopes", Algorithm 1.
    """

    lam: Any = real(default=15.0, above=0.0)
    inner_steps: int = count(default=5)
    outer_learning_rate: Any = real(default=0.005, low=0.0)

    @property
    def requires(self) -> Requires:
        return OWN_MODELS.but(hold=self.inner_steps, average="plain")

    def init_client(self, params: Any) -> Any:
        return params

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts(w=sent.params, theta=sent.params)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return F(y["theta"]) + self.lam / 2 * square(subtract(y["theta"], client.held["w"]))

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        moved, state = super().step(g, y, state, k, sent, c_i, client)
        w, rate = y["w"], self.outer_learning_rate * self.lam  # the old w: a solver may move it without a gradient
        pulled = add_scaled(w, rate, subtract(moved["theta"], w))
        return Parts(moved, w=select((k + 1) % self.inner_steps == 0, pulled, w)), state

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y["w"], sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta)}, y["theta"]

    def personal(self, server: Any, c_i: Any) -> Any:
        return c_i


pfedme = recorded(
    "algorithm.pfedme",
    PFedMe,
    step="θ_i ≈ argmin F_i(θ) + λ/2 ‖θ − w_i‖² a batch; w_i ← w_i − η λ (w_i − θ_i); x ← x + β (mean w_i − x)",
    cite="""@inproceedings{dinh2020personalized,
  title = {Personalized Federated Learning with {Moreau} Envelopes},
  author = {Dinh, Canh T. and Tran, Nguyen H. and Nguyen, Tuan Dung},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020},
  eprint = {2006.08848},
  archiveprefix = {arXiv},
}""",
    kept="1",
    case={"lam": 2.0, "inner_steps": 2, "outer_learning_rate": 0.2},
)
