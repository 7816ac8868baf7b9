"""The tasks: those of a flax module, quadratic clients, and anyone's own functions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import Check, real, static
from fedjax_sim.core.trees import matmul
from fedjax_sim.core.values import shown
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.models.contract import Batch, MaybeArray, Mixture, Task
from fedjax_sim.models.scores import Score, given_scores
from fedjax_sim.models.supervised import (
    BinaryClassification,
    Classification,
    Regression,
    Supervised,
    binary_classification,
    classification,
    regression,
)
from fedjax_sim.models.survival import Cox, cox

__all__ = [
    "Batch", "BinaryClassification", "Classification", "Cox", "Functions", "Quadratic", "Regression", "Supervised",
    "Task", "binary_classification", "classification", "cox", "functions", "quadratic", "regression",
]  # fmt: skip


class Quadratic(Task):
    """Quadratic clients, whose "examples" are pairs (H, e): loss(x) = 1/2 x^T H x - e^T x (+ c, where there is a "c").

    With one example (or equal copies) a client, F_i(x) = 1/2 x^T H_i x - e_i^T x (Wang et al. 2020, eq. 27).

    Args:
      start: the initial value of every coordinate.
    """

    start: Any = real(default=0.0)

    def check(self, dataset: FederatedDataset) -> None:
        if not (isinstance(dataset.examples, dict) and {"H", "e"} <= dataset.examples.keys()):
            raise ValueError("quadratic needs examples {'H': [n, d, d], 'e': [n, d]}: see datasets.quadratics")

    def init(self, key: jax.Array, dataset: FederatedDataset) -> jax.Array:
        e = dataset.examples["e"]
        return jnp.broadcast_to(jnp.asarray(self.start).astype(e.dtype), e.shape[1:])

    def losses(self, params: jax.Array, examples: Any, key: jax.Array | None = None) -> jax.Array:
        curvature = matmul(matmul(examples["H"], params), params)
        losses = curvature / 2 - matmul(examples["e"], params)
        return losses + examples["c"] if "c" in examples else losses


def _takes(*given: str, optional: bool = False) -> Check:
    """The check of a function that a run calls with what is ``given``, where Python knows what it takes."""

    def check(what: str, function: Any) -> None:
        if function is None and optional:
            return
        if not callable(function):
            raise TypeError(f"{what} is {shown(function)}: give a function{' or None' if optional else ''}")
        with contextlib.suppress(ValueError):  # some that are not written in Python do not say
            signature = inspect.signature(function)
            try:
                signature.bind(*given, **(_key(function, None) if given[:1] == ("params",) else {}))
            except TypeError as error:
                hint = "; examples is what the data set holds, often {'x': ..., 'y': ...}" if len(given) > 1 else ""
                raise TypeError(
                    f"{what} takes {signature} and is called with ({', '.join(given)}): {error}{hint}"
                ) from None

    return check


def _key(function: Any, key: Any) -> dict[str, Any]:
    """The key as an argument of a function that has one of this name, where Python knows what it takes."""
    with contextlib.suppress(ValueError):
        argument = inspect.signature(function).parameters.get("key")
        if argument is not None and argument.default in (None, argument.empty):
            return {"key": key}
    return {}


def _option(*given: str) -> Any:
    return static(_takes(*given, optional=True), default=None)


class Functions(Task):
    """A task from plain functions; a description knows them by their code and what they close over.

    They must not close over traced values, which a derivative could not reach: write a subclass of :class:`Task` with
    those values as fields, or pass them through the data or ``initial_params``.

    Examples come B at a time, B whatever suits the hardware; some may be padding, which the run weights by 0. So losses
    and metrics are one number for each example, never a mean over them; a run refuses anything else.

    A function of parameters and examples that has an argument ``key`` is given a key of every client, round and step in
    training, for dropout and the like, and None in evaluation.

    Args:
      init_function: ``init_function(key) -> params``, a pytree of real arrays.
      losses_function: ``losses_function(params, examples) -> [B]``; examples is what the data set holds, often a dict
        ``{"x": [B, ...], "y": [B]}``.
      metrics_function: ``metrics_function(params, examples) -> {name: [B]}``, or None.
      penalty_function: ``penalty_function(params) -> scalar``, added to every client's mean loss, or None.
      outputs_function: ``outputs_function(params, examples) -> [B, ...]``, what the model says of each example, for
        methods that ask for it; or None.
      features_function: ``features_function(params, examples) -> [B, D]``, what its last layer receives, likewise.
      scores: of ``fedjax_sim.scores``, part of every evaluation; outputs are then logits, and examples have a ``"y"``.

    Example:
      >>> import jax, jax.numpy as jnp, fedjax_sim as fjs
      >>> task = fjs.functions(
      ...     lambda key: {"w": jnp.zeros((3,))},
      ...     lambda params, examples: (examples["x"] @ params["w"] - examples["y"]) ** 2,
      ... )
      >>> task.losses({"w": jnp.ones((3,))}, {"x": jnp.ones((2, 3)), "y": jnp.array([3.0, 1.0])}).tolist()
      [0.0, 4.0]
    """

    init_function: Callable[[jax.Array], Any] = static(_takes("key"))
    losses_function: Callable[[Any, Any], jax.Array] = static(_takes("params", "examples"))
    metrics_function: Callable[[Any, Any], dict[str, jax.Array]] | None = _option("params", "examples")
    penalty_function: Callable[[Any], jax.Array] | None = _option("params")
    outputs_function: Callable[[Any, Any], jax.Array] | None = _option("params", "examples")
    features_function: Callable[[Any, Any], jax.Array] | None = _option("params", "examples")
    scores: tuple[Score, ...] = given_scores()

    def called(self, function: str) -> str:
        return f"{function}_function"

    def check(self, dataset: FederatedDataset) -> None:
        if not self.scores or self.outputs_function is None:
            return
        least = max(dataset.num_classes or 0, 2)
        if (self.num_classes(dataset) or 0) < least:
            said = jax.eval_shape(lambda: self.outputs(self.init(jax.random.key(0), dataset), dataset.examples))
            raise ValueError(
                f"the outputs of one example have the shape {list(said.shape[1:])}: functions(scores=...) needs "
                f"integer labels 'y' and, beside each, a logit for each of {least} classes"
            )

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        return self.init_function(key)

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        return self.losses_function(params, examples, **_key(self.losses_function, key))

    def outputs(self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None) -> jax.Array:
        return self._said("outputs", params, examples, key)

    def features(self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None) -> jax.Array:
        return self._said("features", params, examples, key)

    def num_classes(self, dataset: FederatedDataset) -> int | None:
        """The last axis of outputs that have one more than integer labels ``"y"``."""
        labels = dataset.examples.get("y") if isinstance(dataset.examples, Mapping) else None
        if self.outputs_function is None or labels is None or not jnp.issubdtype(labels.dtype, jnp.integer):
            return None
        params = jax.eval_shape(lambda: self.init(jax.random.key(0), dataset))
        outputs = jax.eval_shape(self.outputs, params, dataset.examples)
        return outputs.shape[-1] if outputs.ndim == labels.ndim + 1 else None

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        if self.metrics_function is not None and isinstance(params, Mixture):
            raise TypeError(
                "metrics_function takes the parameters of one model, and a client's own model is a mixture of several: "
                "use fedjax_sim.classification(model) or regression(model), or leave metrics_function out"
            )
        function = self.metrics_function
        return {} if function is None else function(params, examples, **_key(function, None))

    def penalty(self, params: Any) -> jax.Array | None:
        return None if self.penalty_function is None else self.penalty_function(params)

    def _said(self, what: str, params: Any, examples: Any, key: MaybeArray) -> jax.Array:
        function = getattr(self, f"{what}_function")
        if function is None:
            raise TypeError(self._silent(what))
        values: jax.Array = function(params, examples, **_key(function, key))
        rows = jax.tree.leaves(examples)[0].shape[0]
        if jnp.shape(values)[:1] != (rows,):
            raise ValueError(
                f"{what}_function returns {jnp.result_type(values)}{list(jnp.shape(values))} for {rows} examples: its "
                "first axis must be theirs"
            )
        return values


quadratic = factory("task.quadratic", Quadratic)
functions = factory("task.functions", Functions)
