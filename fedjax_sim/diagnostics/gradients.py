"""How much the clients' objectives disagree, seen by their gradients, Hessians and local solutions."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import static
from fedjax_sim.core.values import check_count, check_flag, check_real
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics.base import Diagnostic, RoundView
from fedjax_sim.diagnostics.hessian import hessian_dissimilarity as largest_difference
from fedjax_sim.diagnostics.measures import Moments, root_ratio
from fedjax_sim.diagnostics.streams import Piece, client_gradient_moments, read_clients
from fedjax_sim.models.task import Task


class _OfGradients(Diagnostic):
    """Exact gradients of all clients at the model x with which the round starts; two passes over the data a round.

    Args:
      uniform: weights 1/N in place of p_i = n_i / n, recorded as ``"..._uniform"``.
    """

    uniform: bool = static(default=False)

    def checked(self) -> _OfGradients:
        check_flag(f"{type(self).__name__}(uniform=...)", self.uniform)
        return self

    def names(self) -> tuple[str, ...]:
        return tuple(f"{name}_uniform" if self.uniform else name for name in self._names())

    def _names(self) -> tuple[str, ...]:
        return super().names()

    def _moments(self, view: RoundView, *, plain_centre: bool = True) -> Moments:
        if not self.uniform:
            return client_gradient_moments(view.task, view.dataset, view.before)
        plain = jnp.full_like(view.dataset.shares, 1 / view.dataset.num_clients)
        centre = plain if plain_centre else view.dataset.shares
        return client_gradient_moments(view.task, view.dataset, view.before, weights=plain, centre_weights=centre)

    def _named(self, *values: jax.Array) -> dict[str, jax.Array]:
        return dict(zip(self.names(), values, strict=True))


class Dissimilarity(_OfGradients):
    """B(x) = sqrt(sum p_i |grad F_i(x)|^2 / |grad F(x)|^2), recorded as ``"dissimilarity"``.

    1 where all gradients vanish, inf where grad F alone does. Two passes over the data a round, O(d) memory.

    Args:
      uniform: B of F = (1/N) sum F_i, with weights 1/N; recorded as ``"dissimilarity_uniform"``.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", Definition 3.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        found = self._moments(view)
        return self._named(root_ratio(found.mean_square, found.square_of_mean))


class GradientVariance(_OfGradients):
    """sum p_i |grad F_i(x) - grad F(x)|^2, recorded as ``"gradient_variance"``.

    Two passes over the data a round, O(d) memory.

    Args:
      uniform: (1/N) sum |grad F_i - grad F|^2 with F = sum p_i F_i still, as the authors' published code has it;
        recorded as ``"gradient_variance_uniform"``.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", section 5.3.3 and Corollary 10.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return self._named(self._moments(view, plain_centre=False).variance)


class GradientMoments(_OfGradients):
    """sum p_i |grad F_i(x)|^2 and |grad F(x)|^2: ``"gradient_mean_square"`` and ``"gradient_square_of_mean"``.

    What :func:`fedjax_sim.diagnostics.fit_dissimilarity` takes. Two passes over the data a round, O(d) memory.

    Args:
      uniform: weights 1/N in both, as in (A1); recorded as ``"..._uniform"``.

    Reference: Karimireddy et al. 2020, SCAFFOLD, (A1).
    """

    def _names(self) -> tuple[str, ...]:
        return "gradient_mean_square", "gradient_square_of_mean"

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        found = self._moments(view)
        return self._named(found.mean_square, found.square_of_mean)


class HessianDissimilarity(Diagnostic):
    """delta(x) = max_i ||hess F_i(x) - hess F(x)||, recorded as ``"hessian_dissimilarity"``.

    A lower bound that grows with the iterations and is exact once they reach the dimension. A round takes
    ``iterations`` Hessian-vector products of the whole data for every client that is looked at: sample clients where
    there are many.

    Args:
      iterations: Lanczos steps per client.
      num_clients: how many clients to draw, anew each round; None for all.

    Reference: Karimireddy et al. 2020, SCAFFOLD, (A2).
    """

    iterations: int = static(default=20)
    num_clients: int | None = static(default=None)

    def checked(self) -> HessianDissimilarity:
        check_count("hessian_dissimilarity(iterations=...)", self.iterations)
        if self.num_clients is not None:
            check_count("hessian_dissimilarity(num_clients=...)", self.num_clients)
        return self

    def check(self, dataset: FederatedDataset, task: Task) -> None:
        if self.num_clients is not None and self.num_clients > dataset.num_clients:
            raise ValueError(
                f"hessian_dissimilarity(num_clients={self.num_clients}): the data set has {dataset.num_clients} "
                "clients: draw at most as many, or give None for all"
            )

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {
            "hessian_dissimilarity": largest_difference(
                view.task, view.dataset, view.before, view.key, iterations=self.iterations, num_clients=self.num_clients
            )
        }


class Inexactness(Diagnostic):
    """gamma_i = |grad h_i(y_i)| / |grad h_i(x)| with h_i = F_i + mu/2 |. - x|^2: ``"inexactness_mean"`` and ``"_max"``.

    How far each client of the cohort solved its local problem: 0 solved, 1 as good as not started. A client that
    starts at a stationary point and stays there counts as 0, one that leaves it as inf. Where the averaging scheme
    scales F_i, so does h_i.

    Args:
      mu: of the proximal term; FedProx's own.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", Definition 2.
    """

    mu: Any = 0.0

    observes: ClassVar[frozenset[str]] = frozenset({"updates"})
    everyone: ClassVar[bool] = False

    def checked(self) -> Inexactness:
        check_real("inexactness(mu=...)", self.mu, low=0.0)
        return self

    def names(self) -> tuple[str, ...]:
        return "inexactness_mean", "inexactness_max"

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        valid = view.cohort.valid
        gammas = client_inexactness(view.task, view.dataset, view.before, view.updates, view.client, self.mu)
        count = jnp.maximum(jnp.sum(valid, dtype=jnp.int32), 1).astype(gammas.dtype)
        return {"inexactness_mean": jnp.sum(gammas) / count, "inexactness_max": jnp.max(gammas)}


def client_inexactness(
    task: Task, dataset: FederatedDataset, params: Any, updates: Any, client: Any, mu: Any = 0.0
) -> jax.Array:
    """gamma_i of every client of a cohort, [S]; 0 in void slots.

    Args:
      task: F_i.
      dataset: training examples.
      params: x.
      updates: y_i - x, leaves [S, ...].
      client: the cohort's clients, leaves [S]; ``index``, ``steps`` and ``scale`` are read.
      mu: of the proximal term.
    """
    slots = len(client.steps)
    valid = client.steps > 0
    positions = dataset.order.at[client.index].get(mode="clip")
    scale = jnp.ones((slots,), jnp.result_type(float)) if client.scale is None else client.scale
    zero = jnp.zeros_like(trees.inner(params, params))

    def body(given: Any, piece: Piece, carry: Any) -> Any:
        task, params, updates, scale, mu = given
        at_start, at_end, starts, ends = carry
        update = jax.tree.map(lambda leaf: leaf[piece.slot], updates)
        part = piece.part * scale[piece.slot].astype(piece.part.dtype)
        gradient = jax.grad(task.batch_loss)
        at_start = trees.add_scaled(at_start, part, gradient(params, piece.batch))
        at_end = trees.add_scaled(at_end, part, gradient(trees.add(params, update), piece.batch))
        solved = trees.add_scaled(at_end, mu, update)
        starts = starts.at[piece.slot].set(trees.inner(at_start, at_start))  # the last piece has the last word
        ends = ends.at[piece.slot].set(trees.inner(solved, solved))
        rest = jnp.where(piece.last, 0, 1)
        return trees.scale(rest, at_start), trees.scale(rest, at_end), starts, ends

    none = jnp.zeros((slots,), zero.dtype)
    carry = (trees.zeros_like(params), trees.zeros_like(params), none, none)
    constants = (task, params, updates, scale, jnp.asarray(mu))
    _, _, starts, ends = read_clients(body, constants, carry, dataset, positions, valid)
    return jnp.where(ends > 0, root_ratio(ends, starts), jnp.zeros_like(ends))


dissimilarity = factory("diagnostic.dissimilarity", Dissimilarity)
gradient_variance = factory("diagnostic.gradient_variance", GradientVariance)
gradient_moments = factory("diagnostic.gradient_moments", GradientMoments)
hessian_dissimilarity = factory("diagnostic.hessian_dissimilarity", HessianDissimilarity)
inexactness = factory("diagnostic.inexactness", Inexactness)
