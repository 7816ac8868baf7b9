"""What an attack is, and who attacks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import Described
from fedjax_sim.core.values import LARGEST_SEED, check_count, check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset


class Attack(Described):
    """An attacker that knows its own message alone."""

    def tampered(self, message: Any, key: jax.Array) -> Any:
        """What is sent in the place of ``message``, a pytree of its structure.

        Args:
          message: all that the client would send.
          key: PRNG key of (run, round, client).
        """
        raise TypeError(f"{type(self).__name__} must define tampered(message, key)")


class Collusion(Described):
    """Attackers that know all messages of a round and send one and the same."""

    def agreed(self, stack: Any, honest: jax.Array, attackers: jax.Array) -> Any:
        """What every attacker sends.

        Args:
          stack: what all clients of the round would send, leaves [S, ...]; zeros in void slots.
          honest: bool[S], who keeps to the rules.
          attackers: bool[S], who does not; neither is a void slot.
        """
        raise TypeError(f"{type(self).__name__} must define agreed(stack, honest, attackers)")


def draw_attackers(data: FederatedDataset, fraction: float, seed: int = 0) -> np.ndarray:
    """The floor(fraction N) clients that a seed makes attackers.

    A client's lot depends on its id and the seed alone, not on where it is stored, and the attackers of a smaller
    fraction are among those of a larger one.

    Args:
      data: a data set.
      fraction: of the clients, in [0, 1].
      seed: integer >= 0.

    Returns:
      int32[M], their indices (clients are numbered in the order of their ids), in rising order.

    Raises:
      TypeError: no data set.
      ValueError: a fraction outside [0, 1], or a negative seed.
    """
    if not hasattr(data, "client_ids"):
        raise TypeError(f"draw_attackers({shown(data)}): give a data set of fedjax_sim.datasets")
    check_real("draw_attackers(fraction=...)", fraction, low=0.0, high=1.0)
    check_count("draw_attackers(seed=...)", seed, low=0, high=LARGEST_SEED)
    ids = jnp.asarray(np.sort(np.asarray(data.client_ids)))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), ids)
    lots = np.asarray(jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(keys))
    count = int(np.floor(round(float(fraction) * len(lots), 9)))
    return np.sort(np.argsort(lots, kind="stable")[:count]).astype(np.int32)
