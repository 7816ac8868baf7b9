"""Examples and client states off the device: a round has its cohort's, which travel while other rounds compute."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_sim.clients.cohort.participation import storage
from fedjax_sim.datasets.buckets import rounded_up
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.datasets.placement import as_here, on_host
from fedjax_sim.engine.client_states import UNUSED, Rows
from fedjax_sim.engine.client_table import Allocate, Table
from fedjax_sim.engine.plan import Plan

# Who takes part: draws depend on the key and the round alone

_TOGETHER = 256  # rounds whose cohorts are drawn in one call


def drawn_ahead(plan: Plan, rounds: int) -> np.ndarray:
    """int[rounds, S]: the distinct storage positions of every round's clients, in front; N elsewhere."""
    numbers = np.arange(-(-rounds // _TOGETHER) * _TOGETHER if rounds > _TOGETHER else rounds, dtype=np.int32)
    chunks = numbers.reshape(-1, min(rounds, _TOGETHER))
    drawn = np.concatenate([on_host(_positions(plan, chunk)) for chunk in chunks])[:rounds]
    drawn.sort(axis=1)
    repeated = np.zeros(drawn.shape, bool)
    repeated[:, 1:] = drawn[:, 1:] == drawn[:, :-1]
    return np.sort(np.where(repeated, plan.dataset.num_clients, drawn), axis=1)


def cohorts(drawn: np.ndarray, frame: FederatedDataset) -> np.ndarray:
    """int32[..., W]: the client indices of rounds that were drawn ahead, ascending, then ``UNUSED``; W at most N."""
    order = on_host(frame.order)
    index_at = np.full(len(order) + 1, UNUSED, np.int32)
    index_at[order] = np.arange(len(order), dtype=np.int32)
    return np.sort(index_at[drawn], axis=-1)[..., : len(order)]


@jax.jit
def _positions(plan: Plan, ts: jax.Array) -> jax.Array:
    """int32[rounds, S] storage positions of the clients of all phases; N in void slots."""
    data = plan.dataset

    def of_round(t: jax.Array) -> jax.Array:
        found = []
        for phase in plan.phases():
            selection = phase.cohort.select(data, phase.key, t)
            position = storage(data, selection.indices)
            found.append(jnp.where(selection.present, position, data.num_clients).astype(jnp.int32))
        return jnp.concatenate(found)

    return lax.map(of_round, jnp.asarray(ts))


# Examples


class Window(NamedTuple):
    """The examples of one round's cohort on the device."""

    examples: Any  # leaves [W, ...]
    weights: Any  # [W] example weights, or None
    positions: Any  # int32[S], storage positions of the clients; N in void slots
    starts: Any  # int32[S], where each begins in the window

    def on(self, frame: FederatedDataset) -> FederatedDataset:
        """The data set of the round: the frame, with the window as its examples."""
        return frame.replace(
            examples=self.examples,
            offsets=frame.offsets.at[self.positions].set(self.starts, mode="drop"),
            example_weights=self.weights,
        )


class ExampleWindows:
    """Makes the windows of a run.

    The largest cohort decides the window's length, which is part of the compiled program: rounded up to an eighth of a
    power of two, so that other seeds and rounds seldom compile it again.

    Args:
      dataset: the data.
      planned: int[..., S], distinct storage positions of each round's clients, in front; N elsewhere.
    """

    def __init__(self, dataset: HostDataset, planned: np.ndarray) -> None:
        self._dataset = dataset
        sizes = np.append(np.asarray(dataset.sizes), 0)
        most = int(sizes[planned].sum(axis=-1).max(initial=0))
        # A batch or a piece of a pass is read as a slice, never longer than the largest client.
        self._rows = rounded_up(max(most, dataset.max_size))

    def window(self, planned: np.ndarray) -> Window:
        """The window of one round's clients."""
        positions = planned[planned < self._dataset.num_clients]
        examples, weights, starts = self._dataset.window(positions, self._rows)
        places = np.full(planned.size, self._dataset.num_clients, np.int32)
        begins = np.zeros(planned.size, np.int32)
        places[: positions.size], begins[: positions.size] = positions, starts
        return jax.device_put(Window(examples, weights, places, begins))


# Client states


class ClientWindows:
    """The client states of one seed: all in a table, those of the last cohort in a newer version on the device.

    While round t computes, a thread puts back the rows of cohort t - 1, except for those of clients that are in cohort
    t too, and reads the rows of cohort t + 1, except for those of clients that are in cohort t: these exist on the
    device alone, where :func:`fedjax_sim.engine.client_states.moved` passes them on. So no row is read that is still to
    be written, whatever is fast or slow.

    Args:
      first: a client before its first visit, as it is kept.
      cohorts: int32[R, W], the distinct clients of each round, ascending, then ``UNUSED``.
      num_clients: N.
      allocate: what gives the table's memory.
      thread: which reads and writes; one for all seeds.
    """

    def __init__(
        self, first: Rows, cohorts: np.ndarray, num_clients: int, allocate: Allocate, thread: ThreadPoolExecutor
    ) -> None:
        flat, self._structure = jax.tree_util.tree_flatten_with_path(first.leaves)
        initial = {jax.tree_util.keystr(path): on_host(leaf) for path, leaf in flat}
        self._used, self._cohorts, self._thread = first.used, cohorts, thread
        self._num_clients = num_clients
        self._table = Table(initial, num_clients, allocate)
        nobody = np.full(cohorts.shape[1], UNUSED, np.int32)
        self._nobody, self._indices = nobody, nobody  # of the rows on the device
        self.on_device = self._sent(nobody, self._table.read(np.full(len(nobody), -1)))
        self._future: Future[list[np.ndarray]] | None = None
        self._ahead = -1  # the round of which it reads the rows

    def window(self, round: int) -> Rows:
        """The rows of the cohort of ``round``; those that are on the device are to be ``moved`` in."""
        cohort, leaves = self._cohorts[round], self._finish()
        if self._ahead != round:
            leaves = self._read(cohort, self._indices)
        return self._sent(cohort, leaves)

    def computed(self, round: int, rows: Rows) -> None:
        """Called once ``round`` has begun to compute; ``rows`` are those of its cohort when it has."""
        self._finish()
        before, left = self.on_device, self._indices
        self.on_device, self._indices = rows, self._cohorts[round]
        self._ahead = round + 1

        def exchange(now: np.ndarray) -> list[np.ndarray]:
            self._write(before, left, without=now)
            return self._read(self._cohorts[round + 1], now) if round + 1 < len(self._cohorts) else []

        self._future = self._thread.submit(exchange, self._indices)

    def stored(self) -> dict[str, np.ndarray]:
        """All rows, for a checkpoint; valid until the next round."""
        self._put_back()
        return self._table.stored()

    def everyone(self) -> Rows:
        """All N rows, in memory of their own."""
        self._put_back()
        leaves = self._table.read(np.arange(self._num_clients))
        return Rows(jax.tree.unflatten(self._structure, leaves), None, self._used)

    def restore(self, stored: Mapping[str, np.ndarray]) -> None:
        """Puts back what :meth:`stored` gave, before the first round.

        Raises:
          ValueError: it is of other client states.
        """
        self._table.restore(stored)

    def _put_back(self) -> None:
        self._finish()
        self._write(self.on_device, self._indices, without=self._nobody)

    def _finish(self) -> list[np.ndarray]:
        """Waits for the thread, and raises what it raised; what it read."""
        return [] if self._future is None else self._future.result()

    def _read(self, cohort: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
        wanted = (cohort < UNUSED) & ~np.isin(cohort, known)
        return self._table.read(np.where(wanted, cohort, -1))

    def _write(self, rows: Rows, indices: np.ndarray, without: np.ndarray) -> None:
        chosen = np.flatnonzero((indices < UNUSED) & ~np.isin(indices, without))
        if chosen.size:
            leaves = [np.asarray(as_here(leaf))[chosen] for leaf in jax.tree.leaves(rows.leaves)]  # waits for the round
            self._table.write(indices[chosen], leaves)

    def _sent(self, indices: np.ndarray, leaves: list[np.ndarray]) -> Rows:
        # From the caller's thread: whether JAX has double precision may be a matter of the thread.
        rows, whose = jax.device_put((jax.tree.unflatten(self._structure, leaves), indices))
        return Rows(rows, whose, self._used)
