"""What clients that do not keep to the rules send: what :func:`fedjax_sim.attacked` puts in the place of messages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np

from fedjax_sim.algorithms.stacks import only
from fedjax_sim.core import sampling, trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import real
from fedjax_sim.core.keys import fold_in, random_words
from fedjax_sim.core.values import LARGEST_SEED, check_count, check_real, shown
from fedjax_sim.datasets.federated import FederatedDataset


class Attack(Described):
    """An attacker that knows its own message alone."""

    def tampered(self, message: Any, key: jax.Array) -> Any:
        """What is sent in the place of ``message``, all that the client would send; ``key`` is its own in the round."""
        raise TypeError(f"{type(self).__name__} must define tampered(message, key)")


class Collusion(Described):
    """Attackers that know all messages of a round and send one and the same."""

    def agreed(self, stack: Any, honest: jax.Array, attackers: jax.Array) -> Any:
        """What every attacker sends.

        ``stack`` is what all clients of the round would send, leaves [S, ...], zeros in void slots; ``honest`` and
        ``attackers`` are bool[S], void slots neither.
        """
        raise TypeError(f"{type(self).__name__} must define agreed(stack, honest, attackers)")


def draw_attackers(data: FederatedDataset, fraction: float, seed: int = 0) -> np.ndarray:
    """The floor(fraction N) clients that a seed makes attackers, int32[M] by client index, in rising order.

    A client's lot depends on its id and the seed alone, and the attackers of a smaller fraction are among those of a
    larger one.

    Args:
      data: a data set.
      fraction: of the clients, in [0, 1].
      seed: integer >= 0.
    """
    if not hasattr(data, "client_ids"):
        raise TypeError(f"draw_attackers({shown(data)}): give a data set of fedjax_sim.datasets")
    check_real("draw_attackers(fraction=...)", fraction, low=0.0, high=1.0)
    check_count("draw_attackers(seed=...)", seed, low=0, high=LARGEST_SEED)
    ids = jnp.asarray(np.sort(np.asarray(data.client_ids)))
    lots = np.asarray(random_words(fold_in(jax.random.key(seed), ids), 1))[:, 0]
    count = int(np.floor(round(float(fraction) * len(lots), 9)))
    return np.sort(np.argsort(lots, kind="stable")[:count]).astype(np.int32)


class SignFlip(Attack):
    """m -> -factor m: the honest message turned round.

    Args:
      factor: >= 0.
    """

    factor: Any = real(default=1.0, low=0.0)

    def tampered(self, message: Any, key: jax.Array) -> Any:
        return jax.tree.map(jnp.negative, trees.scale(self.factor, message))


class Scaling(Attack):
    """m -> factor m: a client that makes itself heard (or, below 1, silent). Negative factors are sign flips.

    Args:
      factor: any number.
    """

    factor: Any = real(default=10.0)

    def tampered(self, message: Any, key: jax.Array) -> Any:
        return trees.scale(self.factor, message)


class Gaussian(Attack):
    """m -> keep m + std z, z standard normal in every coordinate, fresh every round and client.

    Args:
      std: >= 0, in units of the messages.
      keep: 0 sends noise alone (Blanchard et al. 2017, with std 200), 1 adds it to the honest message.
    """

    std: Any = real(default=200.0, low=0.0)
    keep: Any = real(default=0.0)

    def tampered(self, message: Any, key: jax.Array) -> Any:
        leaves, structure = jax.tree.flatten(message)
        # An array that the server reads twice, as FedDyn's change, is sent once.
        sent = [next(number for number, other in enumerate(leaves) if other is leaf) for leaf in leaves]
        keys = [jax.random.fold_in(key, number) for number in sent]
        noise = list(map(sampling.normal, keys, leaves))
        return trees.add_scaled(trees.scale(self.keep, message), self.std, jax.tree.unflatten(structure, noise))


class LittleIsEnough(Collusion):
    """A little is enough: the honest mean less z honest standard deviations, in every coordinate.

    m = mean - z std;   z = Phi^-1((n - f - s) / (n - f)),  s = floor(n/2 + 1) - f

    Small enough that s honest clients are expected to lie further out, so that a median takes the attackers' side. In
    the paper they estimate mean and std from their own messages; here they know the honest ones (as in later work). n
    counts the clients of the round, f the attackers among them.

    Args:
      z: >= 0; None for the paper's rule, with 0 where that has no answer (attackers who are more than half need no
        supporters) or a negative one (too few attackers).

    Reference: Baruch, Baruch and Goldberg 2019, "A little is enough: circumventing defenses for distributed learning",
    algorithm 3.
    """

    z: Any = real(default=None, low=0.0)

    def agreed(self, stack: Any, honest: jax.Array, attackers: jax.Array) -> Any:
        z = _largest_z(honest, attackers) if self.z is None else self.z
        share = _equal_shares(honest)
        mean = trees.weighted_sum(share, only(honest, stack))

        def spread(leaf: jax.Array, at: jax.Array) -> jax.Array:
            apart = jnp.where(trees.column(honest, leaf), leaf - at[None], jnp.zeros_like(leaf))
            return trees.root(trees.weighted_sum(share, jnp.square(apart)))

        return trees.subtract(mean, trees.scale(z, jax.tree.map(spread, stack, mean)))


class InnerProduct(Collusion):
    """Inner-product manipulation: the honest mean turned round, so that the aggregate points against the gradient.

    m = -epsilon mean

    Args:
      epsilon: >= 0; small ones are hard to tell from honest messages, large ones turn a mean round.

    Reference: Xie, Koyejo and Gupta 2020, "Fall of empires: breaking Byzantine-tolerant SGD by inner product
    manipulation", section 4.
    """

    epsilon: Any = real(default=0.1, low=0.0)

    def agreed(self, stack: Any, honest: jax.Array, attackers: jax.Array) -> Any:
        mean = trees.weighted_sum(_equal_shares(honest), only(honest, stack))
        return jax.tree.map(jnp.negative, trees.scale(self.epsilon, mean))


def _equal_shares(honest: jax.Array) -> jax.Array:
    dtype = jnp.result_type(float)
    return honest.astype(dtype) / jnp.maximum(jnp.sum(honest, dtype=dtype), 1)


def _largest_z(honest: jax.Array, attackers: jax.Array) -> jax.Array:
    dtype = jnp.result_type(float)
    count, lying = jnp.sum(honest | attackers), jnp.sum(attackers)
    supporters = count // 2 + 1 - lying
    left = jnp.maximum(count - lying, 1).astype(dtype)
    quantile = jnp.clip((left - supporters.astype(dtype)) / left, 0.5, 1 - jnp.finfo(dtype).eps)
    z: jax.Array = jax.scipy.special.ndtri(quantile)
    return jnp.where(supporters > 0, z, jnp.zeros_like(z))


sign_flip = factory("attack.sign_flip", SignFlip)
scaling = factory("attack.scaling", Scaling)
gaussian = factory("attack.gaussian", Gaussian)
little_is_enough = factory("attack.little_is_enough", LittleIsEnough)
inner_product = factory("attack.inner_product", InnerProduct)
