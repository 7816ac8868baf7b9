"""Models of the clients' own, pulled towards their mean."""

from __future__ import annotations

from typing import Any

import jax

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Message, Requires, Share
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import real
from fedjax_sim.core.trees import square, subtract


class MrMtl(FedAvg):
    """MR-MTL: each client has a model of its own, which is regularised towards the mean of all of them.

    v_i <- v_i - eta (g_i(v_i) + lam (v_i - x));   x = (1/N) sum_j v_j

    It minimises (1/N) sum_i (F_i(v_i) + lam/2 |v_i - x|^2) over all v_i and their mean x. lam = 0 is local training.
    The server keeps x the mean over ALL clients: x <- x + eta_g (1/N) sum_S (change of v_i), at eta_g = 1; with
    ``average="sample"`` in the cohort scheme it is sum_j p_j v_j. Clients who do not take part keep their v_i.

    Args:
      lam: lambda >= 0, how strongly the models are pulled together.

    Raises:
      ValueError: (before a run) another average, or a scheme with replacement.

    Reference: Liu, Hu, Wu and Smith 2022, "On privacy and personalization in cross-silo federated learning"; the
    objective: Evgeniou and Pontil 2004, "Regularized multi-task learning".
    """

    lam: Any = real(default=1.0, low=0.0)

    requires = Requires(average="plain", averages=WEIGHTED_MEANS, duplicates=False)

    def init_client(self, params: Any) -> Any:
        return params

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return c_i

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        return F(y) + self.lam / 2 * square(subtract(y, sent.params))

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y, c_i)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Share(delta)}, y

    def personal(self, server: Any, c_i: Any) -> Any:
        return c_i


mr_mtl = recorded(
    "algorithm.mr_mtl",
    MrMtl,
    step="v_i ← v_i − η (g_i(v_i) + λ (v_i − x)), x = mean of all v_j",
    cite="""@inproceedings{liu2022privacy,
  title = {On Privacy and Personalization in Cross-Silo Federated Learning},
  author = {Liu, Ziyu and Hu, Shengyuan and Wu, Zhiwei Steven and Smith, Virginia},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2022},
  eprint = {2206.07902},
  archiveprefix = {arXiv},
}""",
    kept="1",
    case={"lam": 0.7},
)
