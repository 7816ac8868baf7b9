"""The remembered changes of all clients and the shortest vector of their hull: what FedAWARE is made of."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Client, Cohort, Message, Stack
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import integers, static
from fedjax_sim.core.values import as_int32, check_flag, check_real, check_scalar, demand
from fedjax_sim.optim.min_norm import MinNormSolver, gram_rows, shortest


class Memory(NamedTuple):
    """What the server remembers of N clients (or C clusters of them).

    Attributes:
      momenta: m_i, leaves [N, ...].
      gram: <m_i, m_j>, [N, N]; ``()`` where no shortest vector is asked for.
      seen: bool[N], who has taken part so far.
      mass: [N], n_i / mean n of those seen; ``()`` unless the weights are p_i.
      weights: [N], lambda of the last round.
      solution: the last solution's report; ``()`` where no shortest vector is asked for.
    """

    momenta: Any
    gram: Any
    seen: jax.Array
    mass: Any
    weights: jax.Array
    solution: Any


class Solution(NamedTuple):
    """How good the last shortest vector is.

    Attributes:
      norm: |d|.
      gap: duality gap |d|^2 - min_i <m_i, d>.
      stationary: whether the hull contains 0.
      steps: of the solver.
    """

    norm: jax.Array
    gap: jax.Array
    stationary: jax.Array
    steps: jax.Array


class Hull(Described, kw_only=True):
    """The momenta m_i of the clients and the vector d = sum_i lambda_i m_i (Zeng et al. 2025, eqs 2-3).

    m_i <- (1 - alpha) m_i + alpha (x - y_i) for i in S, else unchanged;   m_i = 0 before the first visit
    lambda = argmin over the simplex of |sum_i lambda_i m_i|^2

    Attributes:
      alpha: weight of the new change, in (0, 1].
      candidates: over whom lambda ranges: ``"seen"`` clients, or ``"all"`` as eq. 2 is written, where unseen ones hold
        m_i = 0, so that d = 0 until everybody was seen.
      weights: ``"shortest"``; ``"uniform"``: lambda_i = 1/|seen|, the paper's "-NA"; ``"sample"``: lambda_i
        proportional to n_i.
      normalised: lambda AND d on m_i / |m_i|, as the authors' code does.
      warm_up: steps like the base method until everybody was seen; the round that sees the last one uses d.
      layers: names of the parameters (parts of their paths) that the Gram matrix is computed from; None for all.
      clusters: int[N], the cluster of each client (in the order of ids): one m per cluster, updated with the plain mean
        of its members in the cohort; None for one per client. Traced: a run with one that is not in 0 .. C - 1 is NaN.
      num_clusters: C, read from ``clusters`` where that is concrete; N where it is traced and none is given.
      solver: of ``fedjax_sim.min_norm``; None for active sets up to 512 vectors, away steps beyond.
    """

    alpha: Any = 0.5
    candidates: str = static(default="seen")
    weights: str = static(default="shortest")
    normalised: bool = static(default=False)
    warm_up: bool = static(default=False)
    layers: tuple[str, ...] | None = static(default=None)
    clusters: Any = integers(default=None)
    num_clusters: int = static(default=0)
    solver: MinNormSolver | None = None

    def checked_hull(self, name: str) -> Self:
        """The options checked and normalised; ``name`` is what messages call the method."""
        check_real(f"{name}(alpha=...)", self.alpha, low=0.0, high=1.0)
        for field, known in (("candidates", ("seen", "all")), ("weights", ("shortest", "uniform", "sample"))):
            if getattr(self, field) not in known:
                raise ValueError(f"{name}({field}={getattr(self, field)!r}): it must be one of {', '.join(known)}")
        check_flag(f"{name}(normalised=...)", self.normalised)
        check_flag(f"{name}(warm_up=...)", self.warm_up)
        if self.layers is not None and (isinstance(self.layers, str) or not self.layers):
            raise TypeError(f"{name}(layers={self.layers!r}): give a tuple of names, ('Dense_1',)")
        if self.weights == "sample" and self.clusters is not None:
            raise ValueError(f"{name}(weights='sample', clusters=...): a cluster has no share; use weights='uniform'")
        if self.normalised and self.weights != "shortest":
            raise ValueError(f"{name}(normalised=True, weights={self.weights!r}): give weights='shortest'")
        checked = self if self.layers is None else self.replace(layers=tuple(self.layers))
        return checked._with_clusters(name)

    def empty(self, params: Any, num_clients: int) -> Memory:
        """The memory before the first round."""
        check_scalar("alpha", self.alpha)
        if self.clusters is not None and jnp.shape(self.clusters) != (num_clients,):
            raise ValueError(
                f"clusters has shape {jnp.shape(self.clusters)}: give one number for each of {num_clients}"
            )
        count, dtype = self.num_clusters or num_clients, jnp.result_type(float)
        momenta = jax.tree.map(lambda leaf: jnp.zeros((count, *jnp.shape(leaf)), jnp.result_type(leaf)), params)
        solves = self.weights == "shortest"
        zero = jnp.zeros((), dtype)
        return Memory(
            momenta=momenta,
            gram=jnp.zeros((count, count), dtype) if solves else (),
            seen=jnp.zeros((count,), bool),
            mass=jnp.zeros((count,), dtype) if self.weights == "sample" else (),
            weights=jnp.zeros((count,), dtype),
            solution=Solution(zero, zero, jnp.zeros((), bool), jnp.int32(0)) if solves else (),
        )

    def messages(self, delta: Any, client: Client, nbytes: int | None = None) -> dict[str, Message]:
        """What a client adds to its messages: its change, for ``nbytes``; its size is known to the server."""
        moved: dict[str, Message] = {"moved": Stack(trees.scale(-1.0, delta), nbytes)}
        return moved | ({"relative_size": Stack(client.relative_size, 0)} if self.weights == "sample" else {})

    def remembered(self, memory: Memory, got: dict[str, Any], cohort: Cohort) -> tuple[Memory, Any]:
        """``(memory, d)`` after a round."""
        count = len(memory.seen)
        rows = cohort.indices
        if self.clusters is not None:
            rows = jnp.where(cohort.valid, self.clusters.at[rows].get(mode="clip"), count)
        momenta = self._moved(memory.momenta, got["moved"], rows, count)
        memory = memory._replace(momenta=momenta, seen=memory.seen.at[rows].set(True, mode="drop"))
        candidates = memory.seen if self.candidates == "seen" else jnp.ones_like(memory.seen)
        if self.weights == "shortest":
            return self._shortest(memory, candidates, rows)
        dtype = memory.weights.dtype
        mass = candidates.astype(dtype)
        if self.weights == "sample":
            memory = memory._replace(mass=memory.mass.at[rows].set(got["relative_size"].astype(dtype), mode="drop"))
            mass = memory.mass
        total = jnp.sum(mass) if self.candidates == "seen" else jnp.asarray(count, dtype)  # n_i / mean n sums to N
        weights = mass / jnp.where(total > 0, total, 1)
        return memory._replace(weights=weights), _combined(weights, momenta)

    def report_of(self, memory: Memory) -> dict[str, jax.Array]:
        """The solver's report for the record of a round."""
        if self.weights != "shortest":
            return {}
        norm, gap, stationary, steps = memory.solution
        return {"min_norm": norm, "min_norm_gap": gap, "min_norm_stationary": stationary, "min_norm_steps": steps}

    def _shortest(self, memory: Memory, candidates: jax.Array, rows: jax.Array) -> tuple[Memory, Any]:
        dtype = memory.gram.dtype
        vectors = self._of_layers(memory.momenta)
        new = gram_rows(vectors, rows).astype(dtype)
        gram = memory.gram.at[rows].set(new, mode="drop")
        gram = gram.at[:, rows].set(new.T, mode="drop")
        scales = None
        if self.normalised:
            squares = jnp.diagonal(gram)
            scales = jnp.where(squares > 0, 1 / jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
        found = shortest(vectors, gram, candidates, memory.weights, solver=self.solver, scales=scales)
        weights = found.weights if scales is None else found.weights * scales
        d = found.point if self.layers is None else _combined(weights, memory.momenta)
        solution = Solution(
            trees.norm(d).astype(dtype),
            found.gap.astype(dtype),
            found.stationary,
            found.steps,
        )
        return memory._replace(gram=gram, weights=found.weights.astype(dtype), solution=solution), d

    def _moved(self, momenta: Any, moved: Any, rows: jax.Array, count: int) -> Any:
        if self.clusters is None:

            def one_each(m: jax.Array, g: jax.Array) -> jax.Array:
                return m.at[rows].set(trees.mix(self.alpha, g, m.at[rows].get(mode="clip")), mode="drop")

            return jax.tree.map(one_each, momenta, moved)
        members = jnp.zeros((count,), jnp.int32).at[rows].add(1, mode="drop").at[rows].get(mode="clip")

        def mean_of_members(m: jax.Array, g: jax.Array) -> jax.Array:
            alpha = trees.as_dtype(self.alpha, m)
            share = alpha / jnp.maximum(members, 1).astype(m.dtype).reshape(-1, *[1] * (m.ndim - 1))
            kept = m.at[rows].set((1 - alpha) * m.at[rows].get(mode="clip"), mode="drop")
            return kept.at[rows].add(share * g, mode="drop")

        return jax.tree.map(mean_of_members, momenta, moved)

    def _of_layers(self, momenta: Any) -> Any:
        if self.layers is None:
            return momenta
        flat, _ = jax.tree_util.tree_flatten_with_path(momenta)
        chosen = [leaf for path, leaf in flat if any(name in jax.tree_util.keystr(path) for name in self.layers)]
        if not chosen:
            known = ", ".join(jax.tree_util.keystr(path) for path, _ in flat)
            raise ValueError(f"layers={self.layers} names none of the parameters: {known}")
        return chosen

    def _with_clusters(self, name: str) -> Self:
        if self.clusters is None:
            return self
        traced = isinstance(self.clusters, jax.core.Tracer)
        clusters = self.clusters if traced else np.asarray(self.clusters)
        whole = clusters.ndim == 1 and jnp.issubdtype(clusters.dtype, jnp.integer)
        if not whole or (not traced and clusters.min(initial=0) < 0):
            raise ValueError(f"{name}(clusters={self.clusters!r}): give one integer from 0 on for each client")
        if traced:
            given, most = as_int32(clusters, -1), self.num_clusters or clusters.shape[0]
            demand(lambda: (given >= 0) & (given < most))
            return self
        count = int(clusters.max(initial=0)) + 1
        return self.replace(clusters=jnp.asarray(clusters, jnp.int32), num_clusters=count)


def _combined(weights: jax.Array, vectors: Any) -> Any:
    """sum_i weights_i m_i."""
    return jax.tree.map(lambda m: jnp.tensordot(weights.astype(m.dtype), m, 1), vectors)
