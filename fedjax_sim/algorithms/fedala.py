"""Starts between a client's own model and the shared one, entry by entry as it has learned."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import OWN_MODELS, Client, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.partial import as_patterns, merged, split
from fedjax_sim.core.fields import count, real, static
from fedjax_sim.core.trees import as_dtype, select, subtract, wide
from fedjax_sim.optim.parts import Parts


class Local(NamedTuple):
    """What a client of FedALA keeps: its model as it has trained it, and the weights W_i of the top layers."""

    params: Any
    weights: Any


class FedAla(FedAvg):
    """FedALA: each client starts at its own mixture of its old model and the shared one, learned entry by entry.

    start_i = theta_i + (x - theta_i) * W_i in the top layers, x in the others (eq. 5)
    W_i <- clip(W_i - eta_W g_i(start_i) * (x - theta_i), 0, 1), ``weight_steps`` times before the local steps (eq. 6)
    theta_i: tau_i local steps from start_i;   x <- x + eta_g sum_S w_i (theta_i - x)

    W_i starts at ones: without learning this is FedAvg. The weights see the batches before those of the local steps,
    a random part of the client's data where batches are shuffled; they do not change at a client's first visit in the
    first round, where theta_i = x. They are of single precision at least: bfloat16 has no steps from 1 below 0.002. The
    personal model is start_i, from x and the W_i of the last visit.

    Args:
      top: the layers that have weights: parts of paths of parameters, one or a tuple of them; None for all; structure.
      weight_learning_rate: eta_W >= 0.
      weight_steps: steps of W_i in each round; they count as gradients beside the work's.

    Raises:
      ValueError: (before a run) a pattern that matches nothing, a scheme with replacement, or an average that scales
        the clients' objectives.

    Reference: Zhang, Hua, Wang, Song, Xue, Ma and Guan 2023, "FedALA: Adaptive local aggregation for personalized
    federated learning", Algorithm 1, eqs 5 and 6.
    """

    top: tuple[str, ...] | None = static(default=None)
    weight_learning_rate: Any = real(default=1.0, low=0.0)
    weight_steps: int = count(default=5)

    @property
    def requires(self) -> Requires:
        return OWN_MODELS.but(more_steps=self.weight_steps)

    def checked(self) -> Self:
        checked = super().checked()
        return checked if self.top is None else checked.replace(top=as_patterns("fedala(top=...)", self.top))

    def init_client(self, params: Any) -> Any:
        return Local(params, jax.tree.map(jnp.ones_like, wide(self._split(params)[1])))

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return Parts(model=self._start(sent.params, c_i.params, c_i.weights), weights=c_i.weights)

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        start = self._start(sent.params, c_i.params, y["weights"])
        return F(select(k < self.weight_steps, start, y["model"]))

    def step(self, g: Any, y: Any, state: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> tuple[Any, Any]:
        learned = jax.tree.map(self._weight, y["weights"], g["weights"])
        trained = super().step(g["model"], y["model"], state["model"], k, sent, c_i, client)
        ready = self._start(sent.params, c_i.params, learned), state["model"]
        learning = k < self.weight_steps
        model, solver = select(learning, ready, trained)
        return Parts(y, model=model, weights=select(learning, learned, y["weights"])), Parts(state, model=solver)

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y["model"], sent.params)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta)}, Local(y["model"], y["weights"])

    def personal(self, server: Any, c_i: Any) -> Any:
        return self._start(server.params, c_i.params, c_i.weights)

    def _weight(self, weight: jax.Array, g: jax.Array) -> jax.Array:
        return jnp.clip(weight - as_dtype(self.weight_learning_rate, weight) * g, 0, 1)

    def _start(self, x: Any, own: Any, weights: Any) -> Any:
        lower, top = self._split(x)
        start = jax.tree.map(lambda x, v, w: v + (x - v) * w, wide(top), wide(self._split(own)[1]), weights)
        return merged(lower, jax.tree.map(lambda start, x: start.astype(x.dtype), start, top))

    def _split(self, params: Any) -> tuple[Any, Any]:
        if self.top is None:
            return jax.tree.map(lambda _: None, params), params
        return split(params, self.top, "fedala(top=...)")


fedala = recorded(
    "algorithm.fedala",
    FedAla,
    step="FedAvg from θ_i + (x − θ_i) ⊙ W_i, W_i ∈ [0, 1] learned before the local steps",
    cite="""@inproceedings{zhang2023fedala,
  title = {{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning},
  author = {Zhang, Jianqing and Hua, Yang and Wang, Hao and Song, Tao and Xue, Zhengui and Ma, Ruhui and Guan, Haibing},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2023},
  eprint = {2212.01197},
  archiveprefix = {arXiv},
}""",
    kept="2",
    case={"weight_learning_rate": 0.3, "weight_steps": 2, "server_learning_rate": 0.9},
)
