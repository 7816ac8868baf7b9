"""FedAWARE, and its extension of any other method."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.attacked import Attacked
from fedjax_sim.algorithms.averaging import Ema, LastK
from fedjax_sim.algorithms.base import ServerState, recorded
from fedjax_sim.algorithms.contract import WEIGHTED_MEANS, Client, Cohort, Mean, Message, Method, Requires, Stack
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.algorithms.feddyn import FedDyn
from fedjax_sim.algorithms.partial import as_patterns, split
from fedjax_sim.algorithms.private import Dp
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper, innermost, within
from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.fields import choice, flag, integers, real, static
from fedjax_sim.core.values import as_int32, demand
from fedjax_sim.optim.min_norm import MinNormSolver, gram_rows, shortest

_SHORT = 1e-8  # of max |m_i|: below this length d has no direction to speak of


class Memory(NamedTuple):
    """What the server remembers of N clients (or C clusters of them)."""

    momenta: Any  # m_i, leaves [N, ...]
    gram: Any  # <m_i, m_j>, [N, N]; ``()`` where no shortest vector is asked for
    seen: jax.Array  # bool[N], who has taken part so far
    mass: Any  # [N], n_i / mean n of those seen; ``()`` unless the weights are p_i
    weights: jax.Array  # [N], lambda of the last round
    solution: Any  # the last solution's report; ``()`` where no shortest vector is asked for


class Solution(NamedTuple):
    """How good the last shortest vector is."""

    norm: jax.Array  # |d|
    gap: jax.Array  # duality gap |d|^2 - min_i <m_i, d>
    stationary: jax.Array  # whether the hull contains 0
    steps: jax.Array  # of the solver


class Hull(Described, kw_only=True):
    """The momenta m_i of the clients and the vector d = sum_i lambda_i m_i: formulas and arguments of FedAware."""

    alpha: Any = real(default=0.5, above=0.0, high=1.0)
    candidates: str = choice(("seen", "all"), default="seen")
    weights: str = choice(("shortest", "uniform", "sample"), default="shortest")
    normalised: bool = flag(default=False)
    warm_up: bool = flag(default=False)
    layers: tuple[str, ...] | None = static(default=None)
    clusters: Any = integers(default=None)
    num_clusters: int = static(default=0)
    solver: MinNormSolver | None = None

    def checked(self) -> Self:
        checked, name = super().checked(), self.factory_name()
        layers = None if self.layers is None else as_patterns(f"{name}(layers=...)", self.layers)
        if self.weights == "sample" and self.clusters is not None:
            raise ValueError(f"{name}(weights='sample', clusters=...): a cluster has no share; use weights='uniform'")
        if self.normalised and self.weights != "shortest":
            raise ValueError(f"{name}(normalised=True, weights={self.weights!r}): give weights='shortest'")
        checked = checked.replace(layers=layers)
        if self.clusters is None:
            return checked
        traced = isinstance(self.clusters, jax.core.Tracer)
        clusters = self.clusters if traced else np.asarray(self.clusters)
        whole = clusters.ndim == 1 and jnp.issubdtype(clusters.dtype, jnp.integer)
        if not whole or (not traced and clusters.min(initial=0) < 0):
            raise ValueError(f"{name}(clusters={self.clusters!r}): give one integer from 0 on for each client")
        if traced:
            given, most = as_int32(clusters, -1), self.num_clusters or clusters.shape[0]
            demand(lambda: (given >= 0) & (given < most))
            return checked
        return checked.replace(clusters=jnp.asarray(clusters, jnp.int32), num_clusters=int(clusters.max(initial=0)) + 1)

    def empty(self, params: Any, num_clients: int) -> Memory:
        """The memory before the first round."""
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
        return memory._replace(weights=weights), trees.weighted_sum(weights, momenta)

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
        gram = memory.gram.at[rows].set(new, mode="drop").at[:, rows].set(new.T, mode="drop")
        scales = None
        if self.normalised:
            squares = jnp.diagonal(gram)
            scales = jnp.where(squares > 0, 1 / jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
        found = shortest(vectors, gram, candidates, memory.weights, solver=self.solver, scales=scales)
        weights = found.weights if scales is None else found.weights * scales
        d = found.point if self.layers is None else trees.weighted_sum(weights, memory.momenta)
        solution = Solution(trees.norm(d).astype(dtype), found.gap.astype(dtype), found.stationary, found.steps)
        return memory._replace(gram=gram, weights=found.weights.astype(dtype), solution=solution), d

    def _moved(self, momenta: Any, moved: Any, rows: jax.Array, count: int) -> Any:
        if self.clusters is None:

            def one_each(m: jax.Array, g: jax.Array) -> jax.Array:
                return m.at[rows].set(trees.mix(self.alpha, g, m.at[rows].get(mode="clip")), mode="drop")

            return jax.tree.map(one_each, momenta, moved)
        members = jnp.zeros((count,), jnp.int32).at[rows].add(1, mode="drop").at[rows].get(mode="clip")

        def mean_of_members(m: jax.Array, g: jax.Array) -> jax.Array:
            alpha = trees.as_dtype(self.alpha, m)
            share = alpha / trees.column(jnp.maximum(members, 1).astype(m.dtype), m)
            kept = m.at[rows].set((1 - alpha) * m.at[rows].get(mode="clip"), mode="drop")
            return kept.at[rows].add(share * g, mode="drop")

        return jax.tree.map(mean_of_members, momenta, moved)

    def _of_layers(self, momenta: Any) -> Any:
        if self.layers is None:
            return momenta
        return split(momenta, self.layers, f"{self.factory_name()}(layers=...)")[1]


class FedAware(Hull, FedAvg):
    """FedAWARE: steps along the shortest vector in the hull of the clients' remembered changes.

    m_i <- (1 - alpha) m_i + alpha (x - y_i) for i in S, else unchanged;   m_i = 0 before the first visit
    lambda = argmin over the simplex of |sum_i lambda_i m_i|^2;   x <- x - eta_g sum_i lambda_i m_i

    lambda ranges over the clients seen so far (the paper's eq. 2 says all N: ``candidates="all"``). Its length,
    duality gap and whether the hull contains 0 are recorded in every round as ``"min_norm..."``. Memory on the server:
    N models, and their Gram matrix (N^2 numbers).

    Args:
      alpha: weight of the new change, in (0, 1].
      candidates: over whom lambda ranges: ``"seen"`` clients, or ``"all"`` as eq. 2 is written, where unseen ones hold
        m_i = 0, so that d = 0 until everybody was seen.
      weights: ``"shortest"``; ``"uniform"``: lambda_i = 1/|seen|, "FedAWARE-NA"; ``"sample"``: lambda_i
        proportional to n_i.
      normalised: lambda AND d on m_i / |m_i|, as the authors' code does; with ``layers`` |m_i| is that of the layers.
      warm_up: FedAvg until everybody was seen; the round that sees the last one uses d.
      layers: parts of the paths of the parameters that the Gram matrix is computed from, one or a tuple of them, as in
        :class:`Keep`; None for all.
      clusters: int[N], the cluster of each client (in the order of ids): one m per cluster, updated with the plain mean
        of its members in the cohort; None for one per client. Traced: a run with one that is not in 0 .. C - 1 is NaN.
      num_clusters: C, read from ``clusters`` where that is concrete; N where it is traced and none is given.
      solver: of ``fedjax_sim.min_norm``; None for active sets up to 512 vectors, away steps beyond.

    Raises:
      ValueError: an unknown option, or a scheme with replacement.

    Reference: Zeng et al. 2025, "On the power of adaptive weighted aggregation in heterogeneous federated learning and
    beyond", eqs 2-3, Algorithm 1.
    """

    @property
    def requires(self) -> Requires:
        return Requires(averages=WEIGHTED_MEANS, duplicates=False, remembers_everyone=self.clusters is None)

    def init(self, params: Any, shares: jax.Array) -> ServerState:
        server: ServerState = super().init(params, shares)
        return server._replace(extra=self.empty(params, len(shares)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        again = {"delta": Mean(delta, nbytes=0)}  # the same vector, for its average
        return self.messages(delta, client) | (again if self.warm_up else {}), c_i

    def update(self, server: ServerState, got: dict[str, Any], cohort: Cohort) -> ServerState:
        memory, d = self.remembered(server.extra, got, cohort)
        step = trees.scale(-1.0, d)
        if self.warm_up:
            step = trees.select(jnp.all(memory.seen), step, got["delta"])
        return self.server_step(server._replace(extra=memory), step, cohort)

    def report(self, server: ServerState) -> dict[str, jax.Array]:
        return self.report_of(server.extra)


class Aware(Hull, Wrapper):
    """The AWARE extension: any method's step, projected on the shortest vector of the clients' changes.

    x <- x - (<d~, d> / <d, d>) d

    with d as in FedAWARE and d~ what the base method would have stepped (x less its new model, its server rate and
    optimiser included). The base method's own state is updated as if it had stepped d~. No step is made where
    |d| <= 1e-8 max |m_i|. FedDyn is refused: its server does not step along a descent direction.
    Memory on the server: N models and their Gram matrix, beside what the base method keeps.

    Args:
      base: the method. The other arguments are those of :class:`FedAware`; until ``warm_up`` is over the base steps
        unprojected.

    Raises:
      ValueError: an unknown option, FedDyn, or a scheme with replacement.

    Reference: Zeng et al. 2025 (see FedAware), Proposition 3.1.
    """

    of_one_model: ClassVar[bool] = True

    @property
    def requires(self) -> Requires:
        base = self.base.requires
        return base.but(duplicates=False, remembers_everyone=base.remembers_everyone or self.clusters is None)

    def checked(self) -> Self:
        if isinstance(self.base, Method) and isinstance(innermost(self.base), FedDyn):
            raise ValueError(
                "aware(feddyn(...)): FedDyn's server has no descent step to project; extend another method"
            )
        if any(isinstance(one, Ema | LastK) for one in within(self)):
            raise ValueError(
                "aware(ema(...)): inside of aware the models that are averaged would be those before the projection: "
                "put ema or last_k outside, ema(aware(...))"
            )
        if any(isinstance(one, Dp) for one in within(self)):
            raise ValueError(
                "aware(dp(...)): aware steps along what single clients changed, neither clipped nor with noise, so "
                "that dp would hide nothing: give dp a method that averages, for instance fedavg, and leave out aware"
            )
        if any(isinstance(one, Attacked) for one in within(self)):
            raise ValueError(
                "aware(attacked(...)): inside of aware attackers would lie to the base method alone, and aware would "
                "remember what they really changed: put attacked outside, attacked(aware(...), ...)"
            )
        return super().checked()

    def init(self, params: Any, shares: jax.Array) -> Wrapped:
        if self.shared(params) is not params:
            raise ValueError(
                "aware(base): the base's clients report changes of a part of the model: put aware inside, "
                "keep(aware(...), ...) or freeze(aware(...), ...)"
            )
        return Wrapped(self.base.init(params, shares), self.empty(params, len(shares)))

    def finish(self, delta: Any, y: Any, sent: Any, c_i: Any, client: Client) -> tuple[dict[str, Message], Any]:
        messages, new = super().finish(delta, y, sent, c_i, client)
        # The base's messages tell the server the change; where it is one of them, as FedAWARE's, it counts once.
        return self.messages(delta, client, nbytes=0) | messages, new

    def update(self, server: Wrapped, got: dict[str, Any], cohort: Cohort) -> Wrapped:
        new: Wrapped = super().update(server, got, cohort)
        memory, d = self.remembered(server.extra, got, cohort)
        x, stepped = self.model(server), self.model(new)
        square = trees.inner(d, d)
        longest = jnp.max(jax.vmap(trees.inner)(memory.momenta, memory.momenta))
        long = square > _SHORT**2 * longest
        share = trees.inner(trees.subtract(x, stepped), d) / jnp.where(long, square, 1)
        projected = trees.add_scaled(x, jnp.where(long, -share, 0), d)
        if self.warm_up:
            projected = trees.select(jnp.all(memory.seen), projected, stepped)
        return self.with_model(new, projected)._replace(extra=memory)

    def report(self, server: Wrapped) -> dict[str, jax.Array]:
        return self.base.report(server.base) | self.report_of(server.extra)


fedaware = recorded(
    "algorithm.fedaware",
    FedAware,
    step="x ← x − η_g d, d the shortest vector in the hull of the clients' momenta",
    cite="zeng2025power",
    case={"alpha": 0.6},
)
aware = recorded(
    "algorithm.aware",
    Aware,
    step="around a method: its step projected on d",
    cite="zeng2025power",
    kept="the base's",
    case={"alpha": 0.6},
)
