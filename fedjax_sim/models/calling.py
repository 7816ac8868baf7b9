"""A flax module as a run calls it: told whether it trains, with padding left out of statistics; what its head receives.

Which rows of a batch are padding and what a layer inside receives are no business of a module's arguments. Flax has a
place for that: every method of every layer can be intercepted while the module is traced. What a layer receives is
``sow``-n into a collection and not kept aside, where ``flax.linen.remat`` and the like would leave a tracer of theirs.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import errors
from flax.traverse_util import flatten_dict

from fedjax_sim.models.contract import MaybeArray

STATISTICS = "batch_stats"  # flax's name of the collection of running statistics
_RECEIVED = "fedjax_sim_received"


def intercepted(by: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
    """Flax's way to intercept methods. Raises RuntimeError under ``python -O``, where flax would never end it."""
    if not __debug__:
        raise RuntimeError("python -O: flax takes its interceptors back in an assert, so each would stay: leave -O out")
    return nn.intercept_methods(by)


def each_alone(rows: int) -> contextlib.AbstractContextManager[Any]:
    """Within, ValueError of a convolution that takes the axis of the ``rows`` examples for one of an image.

    Flax takes an input without an axis of channels, [B, height, width], for one image [height, width, channels].
    ``rows`` is a number that no other axis has.
    """

    def check(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        layer = context.module
        if isinstance(layer, (nn.Conv, nn.ConvLocal, nn.ConvTranspose)) and context.method_name == "__call__":
            received = jnp.shape([*args, *kwargs.values()][0])
            axes = 1 if isinstance(layer.kernel_size, int) else len(layer.kernel_size)
            if received[:1] == (rows,) and len(received) < axes + 2:
                raise ValueError(
                    f"{'/'.join(layer.path)} receives {list(received)} of {rows} examples, and a convolution over "
                    f"{axes} axes takes the examples, these axes and one of channels: without the last it would be "
                    "taken over the examples: give the features the axis of channels, x[..., None]"
                )
        return call(*args, **kwargs)

    return intercepted(check)


def told(method: Callable[..., Any], *, train: bool) -> dict[str, Any]:
    """The arguments that tell a module's method whether it trains, as far as it takes them."""
    known = {"train": train, "training": train, "is_training": train, "deterministic": not train}
    return {name: known[name] for name in inspect.signature(method).parameters if name in known}


def outputs_of(
    module: nn.Module, variables: Any, x: jax.Array, key: MaybeArray = None, weights: MaybeArray = None
) -> tuple[jax.Array, Any]:
    """What the module returns for x, [B, ...], and its running statistics after it; arguments as :func:`features_of`.

    The collection ``batch_stats`` is moved by this batch in training, as it was in evaluation, None where there is
    none. Raises ValueError where they cannot be computed without the padding, or move in evaluation.
    """
    outputs, new = _apply(module, variables, x, key, weights, "__call__", ())
    return outputs, new.get(STATISTICS, variables.get(STATISTICS))


def says_features(module: nn.Module) -> bool:
    """Whether it has a method ``features`` that answers; one around a model has a ``says_features``, for it may not."""
    return callable(getattr(type(module), "features", None)) and getattr(module, "says_features", True)


def features_of(
    module: nn.Module, variables: Any, x: jax.Array, key: MaybeArray = None, weights: MaybeArray = None
) -> jax.Array:
    """What the module's last dense layer receives, [B, D]: of its method ``features`` if it has one.

    ``variables`` are its parameters, and its running statistics where it has some; ``key`` is that of a training step,
    None in evaluation; ``weights``, [B], are 0 for rows that must not count in the batch's statistics, None where all
    count. Raises ValueError where its last dense layer cannot be told, or as :func:`outputs_of`.
    """
    name = type(module).__name__
    if says_features(module):
        features, _ = _apply(module, variables, x, key, weights, "features", ())
        return features
    outputs, layers = dense_layers(module, variables, x, key, weights)
    fix = "give it a method features(self, x) that returns what its last layer receives, [B, D]"
    if not layers:
        raise ValueError(f"{name} calls no flax.linen.Dense, whose input would be its features: {fix}")
    last, lifted = layers[-1], " inside a lifted transformation"
    # A layer that is not the head (of an attention, of a squeeze) would pass for it without a word.
    if last.received is None or last.shape[0] != x.shape[0] or jnp.size(outputs) != math.prod(last.shape):
        raise ValueError(
            f"the last flax.linen.Dense that {name} calls, {'/'.join(last.path)}, returns {list(last.shape)} for "
            f"outputs of {list(jnp.shape(outputs))}{lifted if last.received is None else ''}: it receives may not be "
            f"the model's features: {fix}"
        )
    return last.received


class Called(NamedTuple):
    """A dense layer as a module has called it."""

    layer: nn.Dense
    path: tuple[str, ...]  # of the layer's parameters in those of the module
    shape: tuple[int, ...]  # of what it returned
    received: MaybeArray  # what it received; None inside a lifted transformation, which keeps it to itself


def dense_layers(
    module: nn.Module, variables: Any, x: jax.Array, key: MaybeArray = None, weights: MaybeArray = None
) -> tuple[jax.Array, list[Called]]:
    """What the module returns for x, and every call of a ``flax.linen.Dense`` inside, in order.

    Of a layer that is called several times all calls have what the last one received.
    """
    noted: list[tuple[nn.Dense, tuple[str, ...], tuple[int, ...], bool]] = []

    def note(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        result = call(*args, **kwargs)
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            received = [*args, *kwargs.values()][0]
            kept = context.module.sow(_RECEIVED, "input", received, reduce_fn=lambda _, new: new, init_fn=tuple)
            noted.append((context.module, context.module.path, jnp.shape(result), kept))
        return result

    with intercepted(note):
        outputs, found = _apply(module, variables, x, key, weights, "__call__", (_RECEIVED,))
    received = flatten_dict(found.get(_RECEIVED, {}))
    return outputs, [
        Called(layer, path, shape, received[*path, "input"] if kept else None) for layer, path, shape, kept in noted
    ]


def _apply(
    module: nn.Module, variables: Any, x: jax.Array, key: Any, weights: Any, method: str, collections: tuple[str, ...]
) -> tuple[Any, Any]:
    """What a method of the module returns, and the collections that it writes: ``collections`` and its statistics."""
    train = key is not None
    given = told(getattr(type(module), method), train=train)
    if method != "__call__":
        given["method"] = method
    moved = (STATISTICS,) if train and STATISTICS in variables else ()
    if not moved:
        try:
            done: Any = module.apply(
                variables, x, rngs=None if key is None else {"dropout": key}, mutable=[*collections] or False, **given
            )
        except errors.ModifyScopeVariableError as error:
            raise ValueError(
                f"{type(module).__name__} moves its running statistics in evaluation too: give its {method} an "
                "argument train, and its layers flax.linen.BatchNorm(use_running_average=not train)"
            ) from error
        return done if collections else (done, {})
    normed: list[tuple[str, ...]] = []
    left_out = contextlib.nullcontext() if weights is None else intercepted(_without_padding(weights, normed))
    with left_out:
        rngs: Any = {"dropout": key}
        done, new = module.apply(variables, x, rngs=rngs, mutable=[*collections, *moved], **given)
    if weights is not None:
        _check_all_normed(type(module).__name__, variables[STATISTICS], new[STATISTICS], normed)
    return done, new


def _without_padding(weights: jax.Array, normed: list[tuple[str, ...]]) -> Callable[..., Any]:
    """An interceptor that leaves rows of weight 0 out of batch normalisation; it lists the layers that it has met.

    Where no row counts all do, for a mean of nothing is NaN, also in derivatives of what is thrown away later.
    """
    counts = weights != 0
    counts = counts | ~jnp.any(counts)

    def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        layer = context.module
        if isinstance(layer, nn.SpectralNorm):  # its statistics are of the kernel: no rows
            normed.append(layer.path)
        if not isinstance(layer, nn.BatchNorm) or context.method_name != "__call__":
            return call(*args, **kwargs)
        normed.append(layer.path)

        def masked(x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None) -> Any:
            if layer.use_running_average if use_running_average is None else use_running_average:
                return call(x, use_running_average, mask=mask)
            axes = layer.axis if isinstance(layer.axis, (tuple, list)) else (layer.axis,)
            if x.shape[:1] != counts.shape or 0 in {axis % x.ndim for axis in axes}:
                raise ValueError(
                    f"the BatchNorm {'/'.join(layer.path)} receives {list(x.shape)} of a batch of {len(counts)} "
                    "examples: its first axis must be theirs, so that a batch's padding is left out of the statistics"
                )
            rows = counts.reshape(-1, *(1,) * (x.ndim - 1))
            return call(x, use_running_average, mask=rows if mask is None else rows & mask.astype(bool))

        return masked(*args, **kwargs)

    return intercept


def _check_all_normed(name: str, old: Any, new: Any, normed: list[tuple[str, ...]]) -> None:
    """Checks that all statistics that have moved belong to layers that leave padding out."""
    for (path, before), after in zip(jax.tree_util.tree_leaves_with_path(old), jax.tree.leaves(new), strict=True):
        of = tuple(entry.key for entry in path)
        if after is not before and not any(of[: len(layer)] == layer for layer in normed):
            raise ValueError(
                f"{name} keeps running statistics at {'/'.join(of)}, which are not those of a flax.linen.BatchNorm: "
                "the padding of a batch would count in them: use flax.linen.BatchNorm, or flax.linen.GroupNorm, which "
                "has none"
            )
