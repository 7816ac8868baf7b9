"""``draws``: what the rounds of a run will draw, for those who compute them elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.clients.cohort.participation import AVERAGES, SCHEME_I
from fedjax_sim.clients.local.batches import batches_in
from fedjax_sim.core.descriptions import is_traced
from fedjax_sim.core.keys import Purpose, purpose_key
from fedjax_sim.core.values import LARGEST_SEED, check_count, shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.engine.arguments import asked_of
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, take_part
from fedjax_sim.engine.solver import Slot


class Draws(NamedTuple):
    """What some rounds of a run draw; of a method with several exchanges a round, its last.

    T rounds, S slots of a cohort, K the most batches that any client sees in these rounds, B the rows of one batch.
    Most methods see a batch a local step. FedRep's head and FedALA's weights see theirs before those of local steps,
    Ditto's own ``personal_steps`` theirs after them, and so do Per-FedAvg's inner steps, one each.
    numpy arrays, but for the keys, which are typed PRNG keys of JAX. Client i is the one with the i-th smallest id.

    Attributes:
      rounds: int32[T], the rounds, counted from 0.
      ids: int32[T, S], the client drawn for each slot, whether it takes part or not; -1 for nobody.
      indices: int32[T, S], the same clients by index; N for nobody.
      positions: int32[T, S], the same by storage position: ``dataset.client(position)``; -1 for nobody.
      repeats: int32[T, S], how often the client was drawn, 0 for nobody; negative if it is not available.
      valid: bool[T, S], who takes part: false in void slots, of clients that are not available, that the work scheme
        drops, or that a system's policy leaves out.
      steps: int32[T, S], local steps tau_i; 0 where not valid, and in an exchange without local steps.
      weights: float[T, S], of the average x + sum_i w_i (y_i - x) + shift x; 0 where not valid.
      shift: float[T], or None for averages without.
      scale: float[T, S], what F_i is multiplied by (average ``"transformed"``), or None.
      learning_rate: ``client_learning_rate`` of each client, [T, S], or a pytree with these axes in front.
      rows: int32[T, S, K, B], the examples of each batch: rows of ``dataset.client(position)``, in its order. The
        gradient on it is the mean over the rows of ``mask``, also of full batches, which are all their pieces.
      mask: bool[T, S, K, B], false for padding and for batches that the client does not see; rows are 0 there.
      step_keys: keys[T, S, K, P], with which the task's ``losses`` (dropout) are called on each batch, of full batches
        in each of P pieces of B / P rows, of pFedMe in each of its P steps on a batch; P is 1 otherwise. A step of
        Per-FedAvg calls them on both of its batches with the key of the first.
      model_keys: keys[T, S], of which step keys are ``fold_in(key, k)``: k counts the pieces of steps, and before them
        the batches of B / P rows of a client's pass over all its examples in stored order, of methods that begin with
        one (a survey: SCAFFOLD's option I, FedDANE). The pass draws no rows.
      client_keys: keys[T, S], of each client for the method's own draws.
      server_keys: keys[T], of the server for the method's own draws.
      init_key: the key of the first model, ``task.init(init_key, dataset)``.
      inclusion: float[T, N] by client index, the probability that each takes part, where the average is
        ``"inverse"`` or the method asks for it (``dp``); else None.
      average: name of the average, None for scheme I's mean over all draws, ``"own"`` for one that a scheme of your own
        defines.
      earlier: :class:`Draws` of the exchanges before, in order: FedDANE's S1; ``()`` for most methods.
    """

    rounds: Any
    ids: Any
    indices: Any
    positions: Any
    repeats: Any
    valid: Any
    steps: Any
    weights: Any
    shift: Any
    scale: Any
    learning_rate: Any
    rows: Any
    mask: Any
    step_keys: Any
    model_keys: Any
    client_keys: Any
    server_keys: Any
    init_key: Any
    inclusion: Any
    average: str | None
    earlier: tuple[Draws, ...] = ()


def draws(
    algorithm: Method,
    dataset: FederatedDataset | HostDataset,
    *,
    seed: int | jax.Array = 0,
    at: Iterable[int] | None = None,
    **run: Any,
) -> Draws:
    """What rounds of a run will use, without running it: so that the run can be computed by another program.

    Clients, weights, local steps, the examples of every batch, learning rates and keys, as the run itself draws them.
    Draws do not depend on the model, also not those of a system, whose clock knows work, bytes and devices alone. What
    does is no part of them: what a method computes from gradients, and the clients that ``skip_nonfinite`` leaves out.

    Args:
      algorithm: the method.
      dataset: the data; of a ``HostDataset`` no example is read.
      seed: the run's seed, or the key that ``make_train``'s function is given.
      at: rounds, each in [0, R); None for all R.
      **run: the arguments of :func:`fedjax_sim.make_train`; those that draw nothing (``layout``, ...) do not matter.

    Raises:
      TypeError, ValueError: as ``make_train``; or something is traced; or the run is asynchronous: who reports in an
        update depends on all updates before.

    Example:
      >>> import fedjax_sim as fjs
      >>> data = fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=60, seed=0)
      >>> d = fjs.draws(
      ...     fjs.fedavg(client_optimizer=fjs.optim.sgd(0.02)), data, seed=1, at=[0, 7],
      ...     task=fjs.classification(fjs.models.LogisticRegression(10)), rounds=10, batch_size=20,
      ...     cohort=fjs.cohort.uniform(2), work=fjs.local.steps(3),
      ... )
      >>> d.ids.shape, d.steps.tolist(), d.rows.shape
      ((2, 2), [[3, 3], [3, 3]], (2, 2, 3, 20))
      >>> first_batch = data.client(d.positions[0, 0])["x"][d.rows[0, 0, 0][d.mask[0, 0, 0]]]
    """
    if is_traced((algorithm, dataset, seed, at, run)):
        raise TypeError("draws was given traced values, whose draws are not known: call it outside of jit")
    if "seeds" in run:
        raise TypeError("draws(...) has no argument 'seeds': it looks at one run, so give seed=...")
    asked, rounds = asked_of(run)
    if asked.asynchronous is not None:
        raise ValueError(
            "draws with asynchronous=...: who reports in an update depends on all updates before it, so it is known by "
            "running alone: leave asynchronous out"
        )
    if not isinstance(seed, jax.Array):
        check_count("draws(seed=...)", seed, low=0, high=LARGEST_SEED)
    key = seed if isinstance(seed, jax.Array) else jax.random.key(int(seed))
    known = dataset.frame if isinstance(dataset, HostDataset) else dataset
    asked = asked._replace(algorithm=algorithm, dataset=known, key=key, diagnostics=())
    plan = resolve(asked, rounds).training
    ts = _checked_rounds(at, rounds)
    names: dict[int, str | None] = {id(one): name for name, one in AVERAGES.items()} | {id(SCHEME_I): None}
    found: list[Draws] = []
    for phase, (slots, arrays) in zip(plan.phases(), _drawn(plan, ts), strict=True):
        requires, steps = phase.method.requires, arrays["steps"]
        each = -(-requires.gradients(steps) // requires.hold) * (2 if requires.other_batch else 1)
        seen = jnp.where(steps > 0, each, 0).astype(jnp.int32)  # batches
        most = int(np.max(seen, initial=0))
        rows, mask, step_keys = _batches(plan, slots, seen, most, surveyed=requires.survey, hold=requires.hold)
        average = names.get(id(plan.averaging(phase.method)), "own")
        more = {"rows": rows, "mask": mask, "step_keys": step_keys, "init_key": purpose_key(key, Purpose.INIT)}
        found.append(jax.tree.map(_on_host, Draws(rounds=ts, average=average, **arrays, **more)))
    return found[-1]._replace(earlier=tuple(found[:-1]))


def _checked_rounds(at: Any, rounds: int) -> np.ndarray:
    listed = list(range(rounds)) if at is None else at
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        raise TypeError(f"draws(at={shown(at)}): give a list of rounds, at=[0, 1], or None for all")
    listed = list(listed)
    for t in listed:
        check_count("draws(at=[...])", t, low=0, high=rounds - 1)
    if not listed:
        raise ValueError("draws(at=[]): give a round or more, or None for all")
    return np.asarray(listed, np.int32)


def _on_host(leaf: Any) -> Any:
    kept = isinstance(leaf, str) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if kept else np.asarray(leaf)


@jax.jit
def _drawn(plan: Plan, ts: jax.Array) -> list[tuple[Slot, dict[str, Any]]]:
    """Of each phase the slots and what :class:`Draws` has of them but batches, leading axis rounds."""
    data = plan.dataset
    # No draw depends on the state; what of it methods read is dropped from the program with what they make of it.
    state = init_state(plan)

    def of_round(t: jax.Array) -> list[tuple[Slot, dict[str, Any]]]:
        found = []
        for phase in plan.phases():
            method = phase.method
            selection = phase.cohort.select(data, phase.key, t)
            slots, cohort, *_ = take_part(plan, phase, method.send(state.server), state, t)[0]
            client, somebody = slots.client, selection.count != 0
            asked = plan.average(method) == "inverse" or method.requires.expected_size
            arrays = {
                "ids": jnp.where(somebody, client.id, -1),
                "indices": selection.indices,
                "positions": jnp.where(somebody, data.order.at[selection.indices].get(mode="clip"), -1),
                "repeats": selection.count,
                "valid": cohort.valid,
                "steps": client.steps if method.requires.steps else jnp.zeros_like(client.steps),
                "weights": cohort.weights,
                "shift": cohort.shift,
                "scale": client.scale,
                "learning_rate": client.learning_rate,
                "model_keys": slots.model_key,
                "client_keys": client.key,
                "server_keys": cohort.key,
                "inclusion": phase.cohort.inclusion(data, t) if asked else None,
            }
            found.append((slots, arrays))
        return found

    return lax.map(of_round, jnp.asarray(ts))


@functools.partial(jax.jit, static_argnames=("most", "surveyed", "hold"))
def _batches(
    plan: Plan, slots: Slot, seen: jax.Array, most: int, *, surveyed: bool, hold: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows, mask [T, S, K, B] and keys [T, S, K, P] of the first K = ``most`` batches of each slot."""
    batches = plan.batches
    rows = batches.rows(plan.dataset)
    pieces = batches.pieces(plan.dataset.max_size, rows)

    def of_piece(slot: Slot, seen: jax.Array, k: jax.Array, piece: jax.Array) -> tuple[jax.Array, jax.Array]:
        size = slot.client.size
        own = batches.pieces(size, rows)
        positions = batches.positions(slot.draws, size, k * own + piece, rows)
        mask = positions.mask & (k < seen) & (piece < own)
        return jnp.where(mask, positions.rows, 0), mask

    def key_of(slot: Slot, k: jax.Array, gradient: jax.Array) -> jax.Array:
        first = batches_in(slot.client.size, rows) if surveyed else jnp.int32(0)
        own = batches.pieces(slot.client.size, rows) * hold
        return jax.random.fold_in(slot.model_key, first + k * own + gradient)

    def of_slot(slot: Slot, seen: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def each(one: Callable[..., Any], number: int) -> Any:
            ks, of_k = jnp.arange(max(most, 1), dtype=jnp.int32), jnp.arange(number, dtype=jnp.int32)
            return jax.vmap(lambda k: jax.vmap(lambda part: one(k, part))(of_k))(ks)

        where, mask = each(functools.partial(of_piece, slot, seen), pieces)
        keys = each(functools.partial(key_of, slot), pieces * hold)
        shape = (most, pieces * rows)
        return where[:most].reshape(shape), mask[:most].reshape(shape), keys[:most]

    return jax.vmap(jax.vmap(of_slot))(slots, seen)
