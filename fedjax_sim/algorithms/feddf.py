"""A server that distils its clients' models into one, on public data."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim import optim
from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import Client, Cohort, Mean, Message, Requires, Stack
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.stacks import only
from fedjax_sim.core.fields import count, leaf
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.models.contract import single
from fedjax_sim.models.supervised import per_example
from fedjax_sim.optim import parts


def _public(what: str, value: Any) -> None:
    if not isinstance(value, FederatedDataset):
        raise TypeError(
            f"{what} is {shown(value)}: give a data set with examples like the clients', for instance "
            "fedjax_sim.datasets.from_clients([{'x': x}]); nobody looks at its labels, weights or clients"
        )


class FedDf(FedAvg):
    """FedDF: the server trains the average of its clients' models to say what they say together, on public data.

    x <- x + eta_g sum_S w_i (y_i - x), as FedAvg; then ``steps`` times, on a batch d of the public data,
    x <- x - step of the ``distiller`` along the gradient of KL(softmax(1/|S| sum_S f(y_i, d)) | softmax(f(x, d)))

    with f the logits, without dropout, averaged plainly whatever the models' average is. Labels and weights of the
    public data are not looked at. The server holds all |S| models of a round. ``steps=0`` is FedAvg.

    Args:
      public: a data set with examples like the clients'; all its training examples, whosever they are.
      steps: of distillation a round, structure.
      batch_size: public examples a step, drawn at random with replacement, structure; as many as there are, or more,
        means all of them in every step.
      distiller: optimiser of the distillation, its state fresh in every round; Adam at 1e-3, as in the paper, by
        default, whose cosine schedule and early stopping are left to you.
      task: whose model is distilled: the run's, which every run puts here in the place of what is given.

    Raises:
      TypeError: ``public`` is no data set.
      ValueError: (before a run) a task without classes, or public examples that the model does not take.

    Reference: Lin et al. 2020, "Ensemble distillation for robust model fusion in federated learning", Algorithm 1.
    """

    public: Any = leaf(_public)
    steps: int = count(default=100, low=0)
    batch_size: int = count(default=128)
    distiller: Any = leaf(default=None)
    task: Any = leaf(default=None)

    requires = Requires(classes=True, whole_model=True)

    def checked(self) -> Self:
        distiller = optim.adam(1e-3) if self.distiller is None else self.distiller
        return super().checked().replace(distiller=optim.as_optimizer(distiller, "feddf(distiller=...)"))

    def fitted(self, task: Any, dataset: Any) -> Self:
        def types(examples: Any) -> dict[str, str]:
            leaves = jax.tree_util.tree_leaves_with_path(examples)
            return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape[1:])}" for path, leaf in leaves}

        ours, theirs = types(self.public.examples), types(dataset.examples)
        for name in sorted(theirs.keys() - {"['y']"}):
            if ours.get(name) != theirs[name]:
                raise ValueError(
                    f"feddf(public=...) has {ours.get(name, 'nothing')} for examples{name}, and the clients' are "
                    f"{theirs[name]} each: give public examples like the clients'"
                )
        return self.replace(task=task)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {"delta": Mean(delta), "changes": Stack(delta, nbytes=0)}, c_i

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        models = jax.tree.map(lambda x, delta: x[None] + delta, server.params, got["changes"])
        server = super().update(server, got, cohort)
        if self.steps == 0:
            return server
        examples = self.public.examples
        available = int(np.shape(jax.tree.leaves(examples)[0])[0])

        def batch(k: jax.Array) -> Any:
            if self.batch_size >= available:
                return examples
            rows = jax.random.randint(jax.random.fold_in(cohort.key, k), (self.batch_size,), 0, available)
            return jax.tree.map(lambda leaf: leaf[rows], examples)

        def distilled(carry: Any, k: jax.Array) -> tuple[Any, None]:
            x, state = carry
            drawn = batch(k)
            each = single(jax.vmap(self.task.outputs, (0, None))(models, drawn))  # [S, B, ..., C]
            teacher = jnp.sum(only(cohort.valid, each), axis=0) / jnp.maximum(cohort.size, 1).astype(each.dtype)

            def apart(x: Any) -> jax.Array:
                log_p, log_q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(single(self.task.outputs(x, drawn)))
                return jnp.mean(per_example(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)))

            rate = jnp.ones((), jnp.result_type(float))
            return parts.descend(self.distiller, jax.grad(apart)(x), x, state, rate), None

        x = server.params
        (x, _), _ = jax.lax.scan(distilled, (x, parts.begin(self.distiller, x)), jnp.arange(self.steps))
        return server._replace(params=x)


feddf = recorded(
    "algorithm.feddf",
    FedDf,
    step="FedAvg, then steps on KL(mean logits of the y_i‖logits of x) on public data",
    cite="""@inproceedings{lin2020feddf,
  title = {Ensemble Distillation for Robust Model Fusion in Federated Learning},
  author = {Lin, Tao and Kong, Lingjing and Stich, Sebastian U. and Jaggi, Martin},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020},
  eprint = {2006.07242},
  archiveprefix = {arXiv},
}""",
    options="`public`, `steps`, `batch_size`, `distiller`; the run's: `task`",
    case=None,
)
