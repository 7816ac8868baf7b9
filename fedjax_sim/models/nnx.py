"""Models of flax nnx, as the tasks of a flax.linen module take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.fields import static
from fedjax_sim.core.values import shown
from fedjax_sim.models.base import Model
from fedjax_sim.models.calling import told

if TYPE_CHECKING:
    from flax import nnx


def _check_make(what: str, make: Any) -> None:
    if isinstance(make, type) or (callable(make) and not hasattr(make, "train")):
        return
    raise TypeError(f"{what} is {shown(make)}: give what makes the model, make(rngs): its class, or a function")


class Nnx(Model):
    """A model of flax nnx: ``fjs.classification(fjs.models.Nnx(Perceptron))``.

    Its ``nnx.Param``s are what is trained and averaged. In local training it is in ``train()`` mode, and its random
    streams begin with a key of every client, round and step, so that ``nnx.Dropout`` draws; elsewhere it is in
    ``eval()`` mode. Its ``__call__`` is told ``train``, ``training``, ``is_training`` or ``deterministic`` where it has
    such an argument. A method ``features(x)`` of it says what its last layer receives.

    Attributes:
      make: ``make(rngs) -> nnx.Module``, its class or a function.

    Raises:
      TypeError: ``make`` makes something else; it has no method ``features`` and a method asks for them.
      ValueError: it keeps other state, as ``nnx.BatchNorm`` does, in which a batch's padding would count.

    Example:
      >>> from flax import nnx
      >>> model = Nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
      >>> variables = model.init(jax.random.key(0), jax.numpy.ones((2, 4)))
      >>> jax.tree.map(lambda leaf: leaf.shape, variables)
      {'params': {'model': {'bias': (3,), 'kernel': (4, 3)}}}
    """

    make: Callable[[nnx.Rngs], nnx.Module] = static(_check_make)

    def setup(self) -> None:
        self.weights = self.param("model", self._weights)

    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return self._called("__call__", x, train)

    def features(self, x: jax.Array, train: bool = False) -> jax.Array:
        """What the last layer receives, [B, D]."""
        return self._called("features", x, train)

    def _made(self, key: Any) -> nnx.Module:
        from flax import nnx

        model = self.make(nnx.Rngs(key))
        if not isinstance(model, nnx.Module):
            raise TypeError(f"Nnx.make makes {shown(model)}: it must make a flax.nnx.Module")
        return model

    def _weights(self, key: jax.Array) -> Any:
        from flax import nnx

        return _by_name(nnx.to_pure_dict(nnx.state(self._made(key), nnx.Param)))

    def _called(self, method: str, x: jax.Array, train: bool) -> jax.Array:
        from flax import nnx

        model = nnx.eval_shape(lambda: self._made(0))
        if not hasattr(model, method):
            raise TypeError(
                f"{type(model).__name__} has no method {method}(x), which says what its last layer receives"
            )
        train = train and self.has_rng("dropout")
        mode: Any = model.train if train else model.eval
        mode()
        split: Any = nnx.split(model, nnx.Param, nnx.RngState, ...)
        graph, params, streams, rest = split
        if kept := ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(rest)]:
            raise ValueError(
                f"the nnx model keeps state besides its nnx.Param ({', '.join(kept)}), and nothing says how clients' "
                "states become one, nor leaves a batch's padding out of running statistics: use nnx.GroupNorm or "
                "LayerNorm, or a flax.linen module with flax.linen.BatchNorm"
            )
        nnx.replace_by_pure_dict(params, self.weights)
        leaves, structure = jax.tree.flatten(streams)  # keys, and counts of what was drawn with them
        keys = jax.random.split(self.make_rng("dropout") if train else jax.random.key(0), max(len(leaves), 1))
        begun = [
            key if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.zeros(leaf.shape, leaf.dtype)
            for key, leaf in zip(keys, leaves, strict=False)
        ]
        call = getattr(nnx.merge(graph, params, jax.tree.unflatten(structure, begun)), method)
        return call(x, **told(getattr(type(model), method), train=train))


def _by_name(tree: Any) -> Any:
    """Layers of a list are called by text too, as files give them back; nnx takes either."""
    return {str(name): _by_name(value) for name, value in tree.items()} if isinstance(tree, dict) else tree
