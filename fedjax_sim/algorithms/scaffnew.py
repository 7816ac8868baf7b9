"""ProxSkip where the prox is the average: local steps that are corrected, and averages that are skipped."""

from __future__ import annotations

from typing import Any

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client
from fedjax_sim.algorithms.vrl_sgd import VrlSgd
from fedjax_sim.core.fields import real
from fedjax_sim.core.trees import add_scaled, divide


class Scaffnew(VrlSgd):
    """Scaffnew, ProxSkip for federated learning: gradient steps with control variates, an average with probability p.

    x^_i = x_i - gamma (g_i(x_i) - h_i);   with probability p, for all clients at once, x_i <- mean_j x^_j,
    else x_i <- x^_i;   h_i <- h_i + (p / gamma) (x_i - x^_i),   h_i = 0 at the start

    A round is what lies between two averages: as many local steps as it takes until the coin falls, which is
    ``work=fedjax_sim.local.geometric(p)``, the same number for all clients. Any other ``work`` is allowed, and p is
    what multiplies the correction: with the same tau for everybody and p = 1 / tau this is VRL-SGD, whose correction is
    divided by the steps that were taken. Where tau_i differ it is not, and better: sum_i h_i = 0 always, so that where
    all rests h_i = grad F_i(x) and sum_i grad F_i(x) = 0, whatever the tau_i. gamma is the local solver's step size;
    momentum is allowed. p = 1 with one step is gradient descent. With ``average="sample"`` sum p_i h_i = 0.

    Args:
      p: of the correction, in [0, 1]; as a rule the probability of ``work``. 0 is FedAvg with the plain mean.

    Raises:
      ValueError: (before a run) a cohort without a slot for every client, or another average.

    Reference: Mishchenko et al. 2022, "ProxSkip: Yes! Local gradient steps provably lead to communication
    acceleration! Finally!", Algorithm 2.
    """

    p: Any = real(default=0.1, low=0.0, high=1.0)

    requires = VrlSgd.requires.but(slope=False, step_size=True)

    def corrected(self, c_i: Any, change: Any, client: Client) -> Any:
        return add_scaled(c_i, self.p, divide(change, client.step_size))


scaffnew = recorded(
    "algorithm.scaffnew",
    Scaffnew,
    step="local gradient − h_i; h_i += (p/γ)(x̂ − y_i); everybody",
    cite="""@inproceedings{mishchenko2022proxskip,
  title = {{ProxSkip}: Yes! Local Gradient Steps Provably Lead to Communication Acceleration! Finally!},
  author = {Mishchenko, Konstantin and Malinovsky, Grigory and Stich, Sebastian and Richt{\\'a}rik, Peter},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2022},
  eprint = {2202.09357},
  archiveprefix = {arXiv},
}""",
    kept="1",
    sent="2 / 1",
    case={"p": 0.4},
)
