"""Models of the clients' own that share the mean features of their classes."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.base import recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Message, Method, Requires, Sum
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import choice, count, real
from fedjax_sim.core.trees import divide, matmul, scale, select, subtract, zeros_like
from fedjax_sim.models.supervised import per_example


class Prototypes(NamedTuple):
    """The mean features of the classes, [C, D], and of which there are any yet, [C]."""

    means: jax.Array
    known: jax.Array


class Own(NamedTuple):
    """What a client keeps: its model, and whether it has trained since it last reported."""

    model: Any
    trained: jax.Array


class FedProto(FedAvg):
    """FedProto: every client trains a model of its own; what is shared are prototypes, the classes' mean features.

    1. y_i: tau_i steps from the client's own model on F_i(y) + lam sum_c |C_ic(y) - C_c|^2
    2. C_ic = mean of z(y_i) over the client's labels of class c
       C_c = sum_S n_ic C_ic / sum_S n_ic, which stays what it was where no client of S has the class

    with z the features, what the model's last dense layer receives, and C_ic(y) that of the step's batch; only classes
    that the batch and C have count in the sum. The distance is squared: where one client alone has a class the two are
    the same to round-off, and the distance itself has no gradient. No model is ever sent: the shared one, which is
    evaluated, stays as it was at the start, and ``personal`` is the client's own (``evaluate=per_client(task)``).
    lam = 0 is local training.

    ``form="code"`` is what the authors' published implementation does: the mean over the batch's examples and the
    features of (z - C_y)^2 in the place of the sum, and the plain mean over the clients of S that have the class.

    Args:
      lam: weight of the distance to the prototypes, >= 0.
      form: ``"paper"`` or ``"code"``.
      num_classes: C, structure: the task's, which every run fills in.
      width: D, structure: the model's, filled in too.

    Raises:
      ValueError: (before a run) another number of classes or width than the run's, a task without classes, a scheme
        with replacement, another average than ``"sample"`` and ``"plain"``, which mean the same here, or with the
        paper's form batches that are taken in pieces.
      TypeError: (before a run) a task or a model that does not say its features.

    Reference: Tan et al. 2022, "FedProto: Federated prototype learning across heterogeneous clients", Algorithm 1.
    """

    lam: Any = real(default=1.0, low=0.0)
    form: str = choice(("paper", "code"), default="paper")
    num_classes: int | None = count(default=None)
    width: int | None = count(default=None)

    @property
    def requires(self) -> Requires:
        return Requires(
            steps=False, survey=True, own_cohort=False, classes=True, duplicates=False,
            averages=WEIGHTED_MEANS, averages_why="no models are averaged",
            whole_model=True, whole_batches=self.form == "paper",
        )  # fmt: skip

    def fitted(self, task: Any, dataset: Any) -> Self:
        params = jax.eval_shape(lambda: task.init(jax.random.key(0), dataset))
        width = jax.eval_shape(task.features, params, dataset.examples).shape[-1]
        found = {"num_classes": task.num_classes(dataset), "width": width}
        for name, number in found.items():
            if getattr(self, name) not in (None, number):
                raise ValueError(f"fedproto({name}={getattr(self, name)}): it is {number} in this run: leave it out")
        return self.replace(**found)

    def phases(self) -> tuple[Method, ...]:
        names = ("client_optimizer", "client_learning_rate", "keep_optimizer", "lam", "form")
        return _Train(**{name: getattr(self, name) for name in names}), self

    def init(self, params: Any, shares: jax.Array) -> Any:
        means = jnp.zeros((self.num_classes or 1, self.width or 1), jnp.result_type(float))
        return super().init(params, shares)._replace(extra=Prototypes(means, jnp.zeros(len(means), bool)))

    def send(self, server: Any) -> Any:
        return ()

    def init_client(self, params: Any) -> Any:
        return Own(params, jnp.bool_(False))

    def survey(self, F: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return scale(client.size, _sums(F, c_i.model, self.num_classes))

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return c_i.model

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return zeros_like(c_i.model)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        features, counts = client.survey
        if self.form == "code":
            features, counts = divide(features, counts[:, None]), jnp.where(counts > 0, 1, 0).astype(counts.dtype)
        # An exchange without steps drops nobody: one that did not train has nothing to tell.
        features, counts = select(c_i.trained, (features, counts), zeros_like((features, counts)))
        return {"features": Sum(features), "counts": Sum(counts)}, c_i._replace(trained=jnp.bool_(False))

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        old, seen = server.extra, got["counts"] > 0
        means = divide(got["features"], got["counts"][:, None]).astype(old.means.dtype)
        return server._replace(extra=Prototypes(jnp.where(seen[:, None], means, old.means), old.known | seen))

    def personal(self, server: Any, c_i: Any) -> Any:
        return c_i.model


class _Train(FedAvg):
    """FedProto's first exchange: every client trains its own model."""

    lam: Any = real(default=1.0, low=0.0)
    form: str = choice(("paper", "code"), default="paper")

    factory_name = FedProto.factory_name  # what users know it by

    @property
    def requires(self) -> Requires:
        return Requires(own_cohort=False, whole_batches=self.form == "paper")

    def send(self, server: Any) -> Any:
        return server.extra

    def begin(self, sent: Any, c_i: Any, client: Client) -> Any:
        return c_i.model

    def objective(self, F: Any, y: Any, k: jax.Array, sent: Prototypes, c_i: Any, client: Client) -> Any:
        if self.form == "code":
            apart = jnp.mean(jnp.square(F.features(y) - sent.means[F.labels]), axis=-1)
            return F(y) + self.lam * F.mean(per_example(jnp.where(sent.known[F.labels], apart, 0)))
        features, counts = _sums(F, y, len(sent.means))
        count = (counts > 0) & sent.known
        apart = jnp.where(count[:, None], divide(features, counts[:, None]) - sent.means, 0)
        return F(y) + self.lam * jnp.sum(jnp.square(apart))

    def change(self, y: Any, sent: Any, c_i: Any, client: Client) -> Any:
        return subtract(y, c_i.model)

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        return {}, Own(y, jnp.bool_(True))

    def update(self, server: Any, got: dict[str, Any], cohort: Cohort) -> Any:
        return server


def _sums(F: Any, params: Any, classes: Any) -> tuple[jax.Array, jax.Array]:
    """Of the batch's mean example: the sums [C, D] of the features by class, and the number of labels [C]."""
    z = F.features(params)
    of = jax.nn.one_hot(F.labels, classes, dtype=z.dtype)
    of, z = of.reshape(len(z), -1, of.shape[-1]), z.reshape(len(z), -1, z.shape[-1])
    return F.mean(matmul(jnp.swapaxes(of, 1, 2), z)), F.mean(jnp.sum(of, axis=1))


fedproto = recorded(
    "algorithm.fedproto",
    FedProto,
    step="models stay; local loss + λ · distance of the classes' mean features to the shared ones, which are averaged",
    cite="""@inproceedings{tan2022fedproto,
  title = {{FedProto}: Federated Prototype Learning across Heterogeneous Clients},
  author = {Tan, Yue and Long, Guodong and Liu, Lu and Zhou, Tianyi and Lu, Qinghua and Jiang, Jing and Zhang, Chengqi},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2022},
  eprint = {2105.00243},
  archiveprefix = {arXiv},
}""",
    kept="1",
    sent="prototypes / prototypes",
    options="`lam`; `form` paper or code; read off the task: `num_classes`, `width`",
    case=None,
)
