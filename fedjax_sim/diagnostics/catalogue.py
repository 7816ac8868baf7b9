"""The diagnostics: each a class that says what it measures, what it needs and what it records.

The first sentence of a docstring is the diagnostic's row in the table of docs/diagnostics.md. g_i = y_i - x are the
cohort's local updates, l_i the objective's shares over the cohort, renormalised.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.algorithms.fednova import FedNova
from fedjax_sim.algorithms.wrapper import innermost
from fedjax_sim.clients.scheme import EachClient, as_arrays, check_lengths
from fedjax_sim.clients.systems.base import Cost, Visit, close_exchange
from fedjax_sim.clients.systems.devices import Devices
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import count, flag, leaf, real
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.diagnostics import measures, streams
from fedjax_sim.diagnostics.base import Diagnostic, RoundView
from fedjax_sim.models.evaluation import client_values, worst_mean
from fedjax_sim.models.task import Task

_FAIRNESS = ("worst", "std", "gini", "jain")


class _OfCohort(Diagnostic):
    reads = everyone = False


class _OfUpdates(_OfCohort):
    observes = frozenset({"updates"})


class _OfNorms(_OfCohort):
    observes = frozenset({"drift"})


class _OfShares(_OfUpdates):
    """The measure of the same name, of the updates with the objective's shares."""

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        (name,) = self.names()
        return {name: getattr(measures, name)(view.updates, _shares(view))}


class _OfSlots(_OfUpdates):
    """The measure of the same name, of the updates in valid slots."""

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        (name,) = self.names()
        return {name: getattr(measures, name)(view.updates, view.cohort.valid)}


class Lud(_OfShares):
    """Local update diversity sqrt(sum l_i |g_i|^2 / |sum l_i g_i|^2), l_i the objective's shares over the cohort.

    The shares are not FedAWARE's lambda: it is the paper's quantity with full participation. 1 where all updates
    vanish, inf where their mean alone does.

    Reference: Zeng et al. 2025, FedAWARE, Definition 4.1.
    """


class ELud(_OfSlots):
    """Empirical LUD, the same with weights 1/(number in S).

    Its running mean is the "e-LUD dynamics" of the paper's tables: :func:`fedjax_sim.diagnostics.running_mean`.

    Reference: Zeng et al. 2025, FedAWARE, section 5, metrics.
    """


class Consensus(_OfShares):
    """Client consensus rho = |sum l_i g_i|^2.

    Reference: Zeng et al. 2025, FedAWARE, Property 4.1.
    """


class Coherence(_OfSlots):
    """Client coherence, sum cos(g_i, g_j) over the pairs i < j of the cohort.

    Reference: Zeng et al. 2025, FedAWARE, appendix B.2.
    """


class CosineMatrix(_OfSlots):
    """cos(g_i, g_j) of the cohort's slots, [S, S]; 0 in void slots.

    Reference: Zeng et al. 2025, FedAWARE, Figure 7.
    """


class UpdateNorms(_OfNorms):
    """Minimum, quartiles and maximum of |g_i| over the cohort, [5]."""

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        levels = jnp.asarray((0.0, 0.25, 0.5, 0.75, 1.0), view.drift.dtype)
        return {"update_norms": measures.quantiles(view.drift, view.cohort.valid, levels)}


class Drift(_OfNorms):
    """Mean and maximum of |g_i| over the cohort."""

    records = ("drift_mean", "drift_max")

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"drift_mean": _mean(view.drift, view), "drift_max": jnp.max(view.drift)}


class Surrogate(_OfCohort):
    """The objective sum w_i F_i that unequal local work really minimises, beside the one that was meant.

    Written as x - tau_eff eta sum w_i G_i a_i / s_i with s_i = sum_k a_ik (|a_i|_1 for a_i >= 0), a round of federated
    averaging has w_i proportional to weight_i s_i and minimises F~ = sum w_i F_i; FedNova has w_i = weight_i. Clients'
    own rates are part of s_i, what the average scales F_i by of weight_i and p_i, the objective's shares renormalised:

      ``chi_square``         chi^2(p || w)
      ``effective_steps``    tau_eff
      ``slowdown``           tau_bar / tau_eff, tau_bar the mean of tau_i
      ``relative_variance``  A = m tau_eff sum w_i^2 |a_i|_2^2 / s_i^2
      ``surrogate_loss``     F~(x)
      ``cohort_loss``        sum p_i F_i(x), at the model with which the round starts

    Args:
      normalised: whether the method itself divides local changes by s_i; None: whether it is FedNova.

    Reference: Wang et al. 2020, FedNova, eqs 6-10 and Theorem 2.
    """

    normalised: bool | None = flag(default=None)

    reads = True
    observes = frozenset({"accumulation"})
    records = ("chi_square", "effective_steps", "slowdown", "relative_variance", "surrogate_loss", "cohort_loss")

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        weight, steps = view.client.weight, view.client.steps.astype(view.client.weight.dtype)
        sums = trees.as_dtype(jnp.sum(view.weights_of_steps, axis=1), weight)
        scale = jnp.ones_like(weight) if view.client.scale is None else view.client.scale
        rate = jax.tree.leaves(view.client.learning_rate)[0].reshape(len(weight), -1)[:, 0].astype(weight.dtype)
        paced, method = weight * measures.relative(rate, weight), innermost(view.algorithm)
        is_normalised = isinstance(method, FedNova) if self.normalised is None else self.normalised
        w = measures.normalised(weight * scale if is_normalised else paced * scale * sums)
        if isinstance(method, FedNova):  # H has no factors of the average, the normalised changes have them
            effective = measures.mean(scale, weight) * trees.inner(paced, _taken(method, sums, steps))
        else:
            effective = trees.inner(paced * scale, sums)
        p = measures.normalised(_shares(view) * scale)
        losses = streams.cohort_losses(view.task, view.dataset, view.before, view.client.index, view.cohort.valid)
        return {
            "chi_square": measures.chi_square(p, w),
            "effective_steps": effective,
            "slowdown": measures.quotient(_mean(steps, view), effective),
            "relative_variance": measures.relative_variance(w, view.weights_of_steps, effective),
            "surrogate_loss": trees.weighted_sum(w, losses),
            "cohort_loss": trees.weighted_sum(p, losses),
        }


class _OfGradients(Diagnostic):
    """Exact gradients of all clients at the model x with which the round starts; two passes over the data a round."""

    uniform: bool = flag(default=False)

    def names(self) -> tuple[str, ...]:
        return tuple(f"{name}_uniform" if self.uniform else name for name in super().names())

    def _moments(self, view: RoundView, *, plain_centre: bool = True) -> measures.Moments:
        data = view.dataset
        plain = jnp.full_like(data.shares, 1 / data.num_clients) if self.uniform else data.shares
        centre = plain if plain_centre else data.shares
        return streams.client_gradient_moments(view.task, data, view.before, weights=plain, centre_weights=centre)

    def _named(self, *values: jax.Array) -> dict[str, jax.Array]:
        return dict(zip(self.names(), values, strict=True))


class Dissimilarity(_OfGradients):
    """B(x) = sqrt(sum p_i |grad F_i|^2 / |grad F|^2); 1 where all gradients vanish, inf where grad F alone does.

    Args:
      uniform: B of F = (1/N) sum F_i, with weights 1/N; recorded as ``"dissimilarity_uniform"``.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", Definition 3.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        found = self._moments(view)
        return self._named(measures.root_ratio(found.mean_square, found.square_of_mean))


class GradientVariance(_OfGradients):
    """sum p_i |grad F_i - grad F|^2.

    Args:
      uniform: (1/N) sum |grad F_i - grad F|^2 with F = sum p_i F_i still, as the authors' published code has it;
        recorded as ``"gradient_variance_uniform"``.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", section 5.3.3 and Corollary 10.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return self._named(self._moments(view, plain_centre=False).variance)


class GradientMoments(_OfGradients):
    """sum p_i |grad F_i|^2 and |grad F|^2.

    What :func:`fedjax_sim.diagnostics.fit_dissimilarity` takes. As all diagnostics of exact gradients: two passes over
    the data a round, O(d) memory.

    Args:
      uniform: weights 1/N in both, as in (A1); recorded as ``"..._uniform"``.

    Reference: Karimireddy et al. 2020, SCAFFOLD, (A1).
    """

    records = ("gradient_mean_square", "gradient_square_of_mean")

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        found = self._moments(view)
        return self._named(found.mean_square, found.square_of_mean)


class HessianDissimilarity(Diagnostic):
    """delta(x) = max_i |hess F_i - hess F| in the spectral norm, by Lanczos, a lower bound.

    It grows with the iterations and is exact once they reach the dimension. A round takes ``iterations`` Hessian-vector
    products of the whole data for every client that is looked at: sample clients where there are many.

    Args:
      iterations: Lanczos steps per client.
      num_clients: how many clients to draw, anew each round; None for all.

    Reference: Karimireddy et al. 2020, SCAFFOLD, (A2).
    """

    iterations: int = count(default=20)
    num_clients: int | None = count(default=None)

    def check(self, dataset: FederatedDataset, task: Task) -> None:
        if self.num_clients is not None and self.num_clients > dataset.num_clients:
            raise ValueError(
                f"hessian_dissimilarity(num_clients={self.num_clients}): the data set has {dataset.num_clients} "
                "clients: draw at most as many"
            )

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        asked = view.key, self.iterations, self.num_clients
        return {"hessian_dissimilarity": streams.hessian_difference(view.task, view.dataset, view.before, *asked)}


class Inexactness(_OfUpdates):
    """Mean and maximum of gamma_i = |grad h_i(y_i)| / |grad h_i(x)|, h_i(y) = F_i(y) + mu/2 |y - x|^2.

    How far each client of the cohort solved its local problem: 0 solved, 1 as good as not started. A client that
    starts at a stationary point and stays there counts as 0, one that leaves it as inf. Where the averaging scheme
    scales F_i, so does h_i.

    Args:
      mu: of the proximal term; FedProx's own.

    Reference: Li et al. 2020, "Federated optimization in heterogeneous networks", Definition 2.
    """

    mu: Any = real(low=0.0, default=0.0)

    reads = True
    records = ("inexactness_mean", "inexactness_max")

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        gammas = streams.client_inexactness(view.task, view.dataset, view.before, view.updates, view.client, self.mu)
        return {"inexactness_mean": _mean(gammas, view), "inexactness_max": jnp.max(gammas)}


class ClientLosses(Diagnostic):
    """How evenly the model after the round serves all N clients.

    Of the clients' training losses F_i: the mean of the worst share, standard deviation, Gini coefficient and Jain's
    index; of their accuracies, where the task has them, likewise. Every client counts 1/N. One pass over the data a
    round.

    Args:
      worst: the share of the clients that are the worst, in (0, 1].
    """

    worst: float = real(above=0.0, high=1.0, structure=True, default=0.1)

    records = tuple(f"client_{what}_{name}" for what in ("loss", "accuracy") for name in _FAIRNESS)

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        values = client_values(view.task, view.dataset, view.after)
        record: dict[str, jax.Array] = {}
        for what in [name for name in ("loss", "accuracy") if name in values]:
            of = values[what]
            worst = worst_mean(of, self.worst, highest=what == "loss")
            found = (worst, measures.deviation(of), measures.gini(of), measures.jain(of))
            record |= {f"client_{what}_{name}": value for name, value in zip(_FAIRNESS, found, strict=True)}
        return record


class Communication(_OfCohort):
    """Bytes sent to and by all clients of the round, in all its phases, as the method needs them.

    A run with a ``system=`` records both anyway, with what clients that fail or are late have received.
    """

    records = ("bytes_down", "bytes_up")

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"bytes_down": view.bytes_down, "bytes_up": view.bytes_up}


class VirtualTime(_OfCohort):
    """Seconds until the slowest client of the cohort is done, max tau_i / v_i + transfer.

    0 in a round in which nobody took part. It is a clock beside the run, which changes nothing in it; a run's
    ``system=`` has bandwidths, failures and deadlines besides, and decides who takes part.

    Args:
      speeds: v_i, local steps per second: a number, or [N] by client index (in the order of the client ids).
      transfer: seconds for its communication, a number or [N].
    """

    speeds: Any = leaf(EachClient(above=0.0), default=1.0)
    transfer: Any = leaf(EachClient(), default=0.0)

    def checked(self) -> VirtualTime:
        return as_arrays(super().checked())

    def check(self, dataset: FederatedDataset, task: Task) -> None:
        check_lengths(self, dataset.num_clients)

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        clock = Devices(seconds_per_step=1 / jnp.asarray(self.speeds), latency=self.transfer / 2)
        one, none = jnp.ones_like(view.client.steps), jnp.zeros_like(view.client.steps)
        visit = Visit(view.client.index, view.client.id, view.cohort.valid, view.client.steps, one, none, none)
        closed, _ = close_exchange(clock, visit, view.key, view.cohort.round, Cost(0.0, 0.0))
        return {"virtual_time": closed.duration}


class Efficiency(_OfCohort):
    """Gradients that the clients needed over gradients that the layout computed; 1 where nothing was computed."""

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        useful, computed = (steps.astype(jnp.result_type(float)) for steps in (view.useful_steps, view.computed_steps))
        return {"efficiency": jnp.where(computed > 0, useful / jnp.maximum(computed, 1), jnp.ones_like(useful))}


def _mean(values: jax.Array, view: RoundView) -> jax.Array:
    """Of what is 0 in void slots, over the cohort's clients."""
    return jnp.sum(values) / jnp.maximum(view.cohort.size, 1).astype(values.dtype)


def _shares(view: RoundView) -> jax.Array:
    """The objective's shares p_i of the cohort's clients, renormalised; 0 in void slots."""
    return measures.normalised(jnp.where(view.cohort.valid, view.client.share, jnp.zeros_like(view.client.share)))


def _taken(method: FedNova, sums: jax.Array, steps: jax.Array) -> jax.Array:
    """What FedNova's tau_eff is the mean of, [S]."""
    if method.effective("slope"):
        return sums
    return steps if method.effective("steps") else jnp.full_like(steps, method.tau_eff)


lud = factory("diagnostic.lud", Lud)
e_lud = factory("diagnostic.e_lud", ELud)
consensus = factory("diagnostic.consensus", Consensus)
coherence = factory("diagnostic.coherence", Coherence)
cosine_matrix = factory("diagnostic.cosine_matrix", CosineMatrix)
update_norms = factory("diagnostic.update_norms", UpdateNorms)
drift = factory("diagnostic.drift", Drift)
surrogate = factory("diagnostic.surrogate", Surrogate)
dissimilarity = factory("diagnostic.dissimilarity", Dissimilarity)
gradient_variance = factory("diagnostic.gradient_variance", GradientVariance)
gradient_moments = factory("diagnostic.gradient_moments", GradientMoments)
hessian_dissimilarity = factory("diagnostic.hessian_dissimilarity", HessianDissimilarity)
inexactness = factory("diagnostic.inexactness", Inexactness)
client_losses = factory("diagnostic.client_losses", ClientLosses)
communication = factory("diagnostic.communication", Communication)
virtual_time = factory("diagnostic.virtual_time", VirtualTime)
efficiency = factory("diagnostic.efficiency", Efficiency)
