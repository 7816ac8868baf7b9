"""Named randomness: every draw is a pure function of (run key, purpose, round, client id[, step]).

No draw depends on an algorithm, a layout, a device or a client's slot in its cohort. Two algorithms run with one key
therefore see the same cohorts, local work, batches and initial model (common random numbers), and a run can be
restarted at any round.
"""

from __future__ import annotations

import enum

import jax


class Purpose(enum.IntEnum):
    """What a draw is for; the values are part of the reproducibility contract and never reused."""

    INIT = 0
    COHORT = 1
    WORK = 2
    BATCH = 3
    MODEL = 4
    ALGORITHM = 5
    STRAGGLER = 6


def named_key(key: jax.Array, purpose: Purpose, *path: int | jax.Array) -> jax.Array:
    """The key for ``purpose`` at ``path`` (round, client id, ...): ``fold_in`` of each in turn.

    Args:
      key: the run's typed PRNG key.
      purpose: what the draw is for.
      *path: scalar integers.
    """
    key = jax.random.fold_in(key, int(purpose))
    for part in path:
        key = jax.random.fold_in(key, part)
    return key


def per_client(key: jax.Array, ids: jax.Array) -> jax.Array:
    """One key for each client id: ``fold_in(key, id)``, shape ``ids.shape``."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, ids)
