"""What the cohort's local updates say about each other."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import factory
from fedjax_sim.diagnostics import measures
from fedjax_sim.diagnostics.base import Diagnostic, RoundView

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


class _OfUpdates(Diagnostic):
    observes: ClassVar[frozenset[str]] = frozenset({"updates"})
    everyone: ClassVar[bool] = False


class Lud(_OfUpdates):
    """Local update diversity sqrt(sum l_i |g_i|^2 / |sum l_i g_i|^2), recorded as ``"lud"``.

    l_i are the objective's shares (not FedAWARE's lambda), over the cohort renormalised: the paper's quantity with full
    participation. 1 where all updates vanish, inf where their mean alone does.

    Reference: Zeng et al. 2025, FedAWARE, Definition 4.1.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"lud": measures.lud(view.updates, cohort_shares(view))}


class ELud(_OfUpdates):
    """Empirical LUD, with weights 1/|S|, recorded as ``"e_lud"``.

    Its running mean is the "e-LUD dynamics" of the paper's tables: :func:`fedjax_sim.diagnostics.running_mean`.

    Reference: Zeng et al. 2025, FedAWARE, section 5, metrics.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"e_lud": measures.e_lud(view.updates, view.cohort.valid)}


class Consensus(_OfUpdates):
    """Client consensus rho = |sum l_i g_i|^2 with the objective's shares over the cohort: ``"consensus"``.

    Reference: Zeng et al. 2025, FedAWARE, Property 4.1.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"consensus": measures.consensus(view.updates, cohort_shares(view))}


class Coherence(_OfUpdates):
    """Client coherence: the sum of the cosines of the pairs i < j of the cohort, recorded as ``"coherence"``.

    Reference: Zeng et al. 2025, FedAWARE, appendix B.2.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"coherence": measures.coherence(view.updates, view.cohort.valid)}


class CosineMatrix(_OfUpdates):
    """cos(g_i, g_j) of the cohort's slots, [S, S], recorded as ``"cosine_matrix"``; 0 in void slots.

    Reference: Zeng et al. 2025, FedAWARE, Figure 7.
    """

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"cosine_matrix": measures.cosine_matrix(view.updates, view.cohort.valid)}


class UpdateNorms(Diagnostic):
    """Minimum, quartiles and maximum of |y_i - x| over the cohort, [5], recorded as ``"update_norms"``."""

    observes: ClassVar[frozenset[str]] = frozenset({"drift"})
    everyone: ClassVar[bool] = False

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        levels = jnp.asarray(LEVELS, view.drift.dtype)
        return {"update_norms": measures.quantiles(view.drift, view.cohort.valid, levels)}


class Drift(Diagnostic):
    """Mean and maximum of |y_i - x| over the cohort: ``"drift_mean"`` and ``"drift_max"``."""

    observes: ClassVar[frozenset[str]] = frozenset({"drift"})
    everyone: ClassVar[bool] = False

    def names(self) -> tuple[str, ...]:
        return "drift_mean", "drift_max"

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        count = jnp.maximum(view.cohort.size, 1).astype(view.drift.dtype)
        return {"drift_mean": jnp.sum(view.drift) / count, "drift_max": jnp.max(view.drift)}


def cohort_shares(view: RoundView) -> jax.Array:
    """The objective's shares p_i of the cohort's clients, renormalised; 0 in void slots."""
    return measures.normalised(jnp.where(view.cohort.valid, view.client.share, jnp.zeros_like(view.client.share)))


lud = factory("diagnostic.lud", Lud)
e_lud = factory("diagnostic.e_lud", ELud)
consensus = factory("diagnostic.consensus", Consensus)
coherence = factory("diagnostic.coherence", Coherence)
cosine_matrix = factory("diagnostic.cosine_matrix", CosineMatrix)
update_norms = factory("diagnostic.update_norms", UpdateNorms)
drift = factory("diagnostic.drift", Drift)
