"""A contrast between the features of a client's model, of the server's and of the client's last one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Mean, Message, Requires
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import real
from fedjax_sim.models.contract import single
from fedjax_sim.models.supervised import per_example


class Moon(FedAvg):
    """MOON: features are drawn to those of the server's model, away from those of the client's last one.

    F_i(y) + mu mean_j -log e^{sim(z, z_x)/temperature} / (e^{sim(z, z_x)/temperature} + e^{sim(z, z_prev)/temperature})

    with z the features of example j in y, z_x in x, z_prev in the client's model at the end of its last visit (before
    the first one, the run's initial model), sim the cosine, 0 where a feature vector is 0. Features are what the
    model's last dense layer receives: for the paper's projection head give the model one. mu = 0 is FedAvg.

    Args:
      mu: weight of the contrast, >= 0.
      temperature: > 0, in units of a cosine.

    Raises:
      TypeError: (before a run) a task or a model that does not say its features.
      ValueError: (before a run) a scheme with replacement.

    Reference: Li, He and Song 2021, "Model-contrastive federated learning", eqs 3 and 4, Algorithm 1.
    """

    mu: Any = real(default=1.0, low=0.0)
    temperature: Any = real(default=0.5, above=0.0)

    requires = Requires(duplicates=False)

    def init_client(self, params: Any) -> Any:
        return params

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Any, c_i: Any, client: Client) -> Any:
        z, near, far = (single(F.features(params)) for params in (y, sent.params, c_i))
        apart = (_cosine(z, far) - _cosine(z, near)) / self.temperature
        return F(y) + self.mu * F.mean(per_example(jax.nn.softplus(apart)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta)}, y


def _cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Of the last axis; 0, with derivative 0, where a vector is 0: a network of ReLUs may say nothing at all."""
    squares = jnp.sum(a * a, axis=-1), jnp.sum(b * b, axis=-1)
    apart = (squares[0] > 0) & (squares[1] > 0)
    lengths = [jnp.sqrt(jnp.where(apart, square, 1)) for square in squares]
    return jnp.where(apart, jnp.sum(a * b, axis=-1) / (lengths[0] * lengths[1]), 0)


moon = recorded(
    "algorithm.moon",
    Moon,
    step="local loss + μ · contrast of features: near those of x, far from those of the last local model; FedAvg",
    cite="""@inproceedings{li2021moon,
  title = {Model-Contrastive Federated Learning},
  author = {Li, Qinbin and He, Bingsheng and Song, Dawn},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2021},
  eprint = {2103.16257},
  archiveprefix = {arXiv},
}""",
    kept="1",
    case=None,
)
