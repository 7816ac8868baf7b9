"""What the models share: fields that are checked as declared, the inputs they take, dropout, pixels as bytes."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import register
from fedjax_sim.core.fields import Check, check_fields, real, static
from fedjax_sim.core.values import INT32_MAX, check_count, check_real, shown
from fedjax_sim.models.calling import says_features, told


class Model(nn.Module):
    """A flax module whose fields are checked as :mod:`fedjax_sim.core.fields` declares them.

    One that reads token ids has ``vocabulary``, how many there are.
    """

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__)
        super().__post_init__()


def of_kind(kind: Any, fix: str) -> Check:
    """The check of a field that is an object of a class (or of one in a union); ``fix`` says what to give."""

    def check(what: str, value: Any) -> None:
        if not isinstance(value, kind):
            if isinstance(value, type) and issubclass(value, kind):
                raise TypeError(f"{what} is the class {value.__name__}: give an object of it, {value.__name__}(...)")
            raise TypeError(f"{what} is {shown(value)}: give {fix}")

    return check


def several(check: Check, number: int | None = None, **kwargs: Any) -> Any:
    """A field that is a tuple of values, ``number`` of them if it says so, each of which ``check`` allows."""

    def each(what: str, values: Any) -> None:
        if not isinstance(values, (tuple, list)) or number not in (None, len(values)):
            raise TypeError(f"{what} is {values!r}: give a tuple of {'' if number is None else f'{number} '}numbers")
        for value in values:
            check(what, value)

    return static(each, **kwargs)


widths = functools.partial(several, check_count)


def wide(initializer: Any) -> Any:
    """The ``initializer`` of an array, which draws in single precision at least and rounds.

    Of bfloat16's own draws there are 128: the mean of uniform ones in +-a is -a/128, none of normal ones is beyond 2.9.
    """

    def drawn(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        dtype = jax.dtypes.canonicalize_dtype(dtype)  # float is float32 where double precision is off
        array: jax.Array = initializer(key, shape, trees.widest((), dtype, jnp.float32))
        return array.astype(dtype)

    return drawn


def as_images(model: str, x: jax.Array, dtype: Any, smallest: int) -> jax.Array:
    """Images [B, height, width, channels] in the model's dtype, not smaller than it can reduce; an axis is added."""
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4:
        raise ValueError(
            f"{model} got features of shape {list(x.shape[1:])}: it needs images [height, width, channels] or "
            "[height, width] (data sets of ours that flatten their images take flat=False)"
        )
    if x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] > 3:
        raise ValueError(
            f"{model} got features of shape {list(x.shape[1:])}, images with their channels first: it needs [height, "
            "width, channels], x.transpose(0, 2, 3, 1)"
        )
    if min(x.shape[1:3]) < smallest:
        raise ValueError(f"{model} got images of {x.shape[1]} x {x.shape[2]}: {smallest} x {smallest} is the least")
    return x.astype(dtype)


def as_tokens(model: str, x: jax.Array) -> jax.Array:
    """Token ids int32[B, T]; raises ValueError for another rank or an empty sequence, TypeError for no integers.

    Ids below 0, which JAX would count from the end, become one beyond any vocabulary, whose embedding is NaN.
    """
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"{model} got features of shape {list(x.shape[1:])}: it needs token ids [T], T of at least 1")
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{model} got {x.dtype} features: it needs integer token ids")
    tokens = x.astype(jnp.int32)
    return jnp.where(tokens < 0, INT32_MAX, tokens)


class Dropout(Model):
    """Zeroes each value with probability ``rate`` and divides the others by 1 - rate, where a dropout key is given.

    Tasks give the key ``"dropout"`` in local training only, another one to every client, round and step.

    Attributes:
      rate: probability of a zero, in [0, 1); 0 leaves nothing of it in the program.

    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".
    """

    rate: float = real(low=0.0, below=1.0, structure=True)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dropout(self.rate, deterministic=not self.has_rng("dropout"))(x)


class FromBytes(Model):
    """A model behind pixels that are stored as bytes: model((x / 255 - mean) / std).

    Data sets with ``scaled=False`` take a quarter of the memory of floats; a batch is scaled when it is used.

    Attributes:
      model: the model.
      mean: of the scaled pixels, one number or one per channel.
      std: likewise their standard deviation, > 0.

    Raises:
      TypeError: ``model`` is no flax module; features that are not uint8.

    Example:
      >>> from fedjax_sim.models import FemnistCNN
      >>> model = FromBytes(FemnistCNN(num_classes=10), mean=(0.1307,), std=(0.3081,))
    """

    model: nn.Module = static(of_kind(nn.Module, "a flax.linen module"))
    mean: tuple[float, ...] = several(check_real, default=(0.0,))
    std: tuple[float, ...] = several(functools.partial(check_real, above=0.0), default=(1.0,))

    @property
    def says_features(self) -> bool:
        """Whether the model says its features itself."""
        return says_features(self.model)

    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return self._called("__call__", x, train)

    def features(self, x: jax.Array, train: bool = False) -> jax.Array:
        """What the model says its last layer receives, [B, D]."""
        return self._called("features", x, train)

    def _called(self, method: str, x: jax.Array, train: bool) -> jax.Array:
        if x.dtype != jnp.uint8:
            raise TypeError(f"FromBytes got {x.dtype} features: it scales bytes, so give the data set scaled=False")
        ones = (1,) * (x.ndim - 1)
        mean, std = (jnp.asarray(v, jnp.float32).reshape(*ones, -1) for v in (self.mean, self.std))
        of_model = told(getattr(type(self.model), method), train=train)
        return getattr(self.model, method)((x.astype(jnp.float32) / 255 - mean) / std, **of_model)


register("model.FromBytes", FromBytes)
