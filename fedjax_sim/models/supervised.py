"""The tasks of a flax module: classification, of two classes by one logit too, and regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.descriptions import factory
from fedjax_sim.core.fields import real, static
from fedjax_sim.core.values import shapes
from fedjax_sim.datasets.federated import FederatedDataset, can_be_read, held_out_parts
from fedjax_sim.models.base import Model, of_kind
from fedjax_sim.models.calling import STATISTICS, features_of, outputs_of, told
from fedjax_sim.models.contract import MaybeArray, Mixture, Task, single
from fedjax_sim.models.cross_entropy import cross_entropy
from fedjax_sim.models.scores import Score, given_scores
from fedjax_sim.optim import third_party

_MODEL = (
    "a flax.linen module, of a class of flax.nnx fedjax_sim.models.Nnx(the class), or make a task of any other model "
    "by fedjax_sim.functions(init, losses)"
)


class Supervised(Task):
    """Base of the tasks of a flax module.

    The module is called in training with ``rngs={"dropout": key}``, a key of its own for every client, round and step,
    and without randomness everywhere else. A module whose ``__call__`` has an argument ``train``, ``training``,
    ``is_training`` or ``deterministic`` is told which of the two it is; others can ask ``self.has_rng("dropout")``.

    A module with ``flax.linen.BatchNorm`` has running statistics, the collection ``batch_stats``, beside its
    parameters: see :meth:`Task.statistics`. In training it normalises by the batch's own, of which padding is no part
    (nor are examples of weight 0); in evaluation by the running ones.

    What the module's last ``flax.linen.Dense`` receives are its features; a module that ends in something else has a
    method ``features`` that takes what ``__call__`` does.

    Args:
      model: flax module that maps features [B, ...] to outputs.
      weight_decay: lambda >= 0, adds lambda |w|^2 to every client's loss (no factor 1/2; all parameters, biases
        included); None for no penalty in the program.
    """

    model: nn.Module = static(of_kind(nn.Module, _MODEL))
    weight_decay: Any = real(default=None, low=0.0, kw_only=True)

    def check(self, dataset: FederatedDataset) -> None:
        if not (isinstance(dataset.examples, dict) and {"x", "y"} <= dataset.examples.keys()):
            raise ValueError(
                f"{type(self).__name__.lower()} needs examples {{'x': features, 'y': targets}}, and the data set has "
                f"{shapes(dataset.examples)}"
            )
        vocabulary = getattr(self.model, "vocabulary", None) if isinstance(self.model, Model) else None
        if vocabulary is not None:
            for part in (dataset, *held_out_parts(dataset).values()):
                _check_tokens(type(self.model).__name__, vocabulary, part.examples["x"])

    def init(self, key: jax.Array, dataset: FederatedDataset) -> Any:
        with third_party():
            variables: Any = self.model.init(key, self._one(dataset), **told(type(self.model).__call__, train=False))
        extra = sorted(set(variables) - {"params", STATISTICS})
        if extra:
            raise ValueError(
                f"the model keeps state besides its parameters and a BatchNorm's running statistics "
                f"({', '.join(extra)}): nothing says how clients' states become one; write a model without it"
            )
        statistics = self.statistics(variables)
        if statistics is None:
            return variables
        # Flax starts them in single precision and moves them in that of the activations.
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(variables["params"])]
        with third_party():
            wide = jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(leaf.dtype, *dtypes)), statistics)
        return self.with_statistics(variables, wide)

    def penalty(self, params: Any) -> jax.Array | None:
        if self.weight_decay is None:
            return None
        squares = [jnp.sum(jnp.square(single(leaf))) for leaf in jax.tree.leaves(self.with_statistics(params, ()))]
        total = jnp.sum(jnp.stack(squares))
        return jnp.asarray(self.weight_decay).astype(total.dtype) * total

    def outputs(self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None) -> jax.Array:
        if isinstance(params, Mixture):
            return self.mixed(
                params, jax.vmap(lambda model: self.outputs(model, examples, key, weights))(params.models)
            )
        with third_party():
            return outputs_of(self.model, params, examples["x"], key, weights)[0]

    def mixed(self, mixture: Mixture, outputs: jax.Array) -> jax.Array:
        """What a mixture says, from what its models say, [K, B, ...]."""
        return mixture.of(outputs)

    def features(self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None) -> jax.Array:
        with third_party():
            return features_of(self.model, params, examples["x"], key, weights)

    def statistics(self, params: Any) -> Any:
        return params.get(STATISTICS) if isinstance(params, Mapping) else None

    def with_statistics(self, params: Any, statistics: Any) -> Any:
        return params if self.statistics(params) is None else {**params, STATISTICS: statistics}

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        return self.losses_of(single(self.outputs(params, examples, key)), examples)

    def losses_of(self, outputs: jax.Array, examples: Any) -> jax.Array:
        """Loss of each example from what the model says of it, [B]: of half precision it is widened."""
        raise TypeError(f"{type(self).__name__} must define losses_of(outputs, examples)")

    def losses_and_statistics(
        self, params: Any, examples: Any, key: MaybeArray = None, weights: MaybeArray = None
    ) -> tuple[jax.Array, Any]:
        old = self.statistics(params)
        if old is None:
            return self.losses(params, examples, key), None
        for name in ("losses", "outputs"):
            if getattr(type(self), name) is not getattr(Supervised, name):
                raise TypeError(
                    f"{type(self).__name__} defines {name}, and its model has running statistics, which come from one "
                    "pass with the outputs: define losses_of(outputs, examples) in its place"
                )
        with third_party():
            outputs, new = outputs_of(self.model, params, examples["x"], key, weights)
        still = jnp.bool_(False) if weights is None else ~jnp.any(weights != 0)
        new = jax.tree.map(lambda before, after: jnp.where(still, before, after.astype(before.dtype)), old, new)
        return self.losses_of(single(outputs), examples), new

    def output_shape(self, dataset: FederatedDataset) -> tuple[int, ...]:
        """The shape of the model's output for one example."""
        said: Any = _first_outputs.eval_shape(self, dataset)
        if not hasattr(said, "shape"):
            raise TypeError(f"the model returns {shapes(said)}: it must return one array, [B, ...]")
        return tuple(said.shape[1:])

    @staticmethod
    def _one(dataset: FederatedDataset) -> jax.Array:
        x = dataset.examples["x"]
        return jnp.zeros((1, *x.shape[1:]), x.dtype)


class Classification(Supervised):
    """Softmax cross-entropy of a flax module's logits for examples ``{"x", "y"}``, with accuracy.

    F_i(w) = (1/n_i) sum_j -log softmax(model(x_j))_{y_j} + weight_decay |w|^2

    (the penalty as in Li et al. 2020, "On the convergence of FedAvg on non-IID data"). Labels may have axes of their
    own, y int[n, T], for a model with logits [B, T, classes]: an example's loss and accuracy are the means over them.

    Args:
      model: flax module that maps [B, ...] features to [B, classes] logits.
      weight_decay: lambda >= 0; see :class:`Supervised`.
      scores: of ``fedjax_sim.scores``, part of every evaluation.
    """

    scores: tuple[Score, ...] = given_scores()

    def check(self, dataset: FederatedDataset) -> None:
        super().check(dataset)
        labels = dataset.examples["y"]
        outputs = self.output_shape(dataset)
        if not outputs:
            raise ValueError(
                "the model's output of one example has the shape []: classification needs a logit for each class, "
                "[classes], as flax.linen.Dense(classes) gives; for a real target use fedjax_sim.regression(model)"
            )
        *positions, classes = outputs
        fix = _labels_fix(labels.shape[1:], outputs)
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            cast = "cast whole numbers with y.astype('int32'), or use fedjax_sim.regression for real targets"
            raise ValueError(f"labels 'y' are {labels.dtype}: classification needs integers: {fix or cast}")
        if tuple(positions) != labels.shape[1:]:
            raise ValueError(
                f"the model's logits of one example have the shape {list(outputs)} and its label the shape "
                f"{list(labels.shape[1:])}: logits need the label's axes and then the classes{fix and f': {fix}'}"
            )
        if dataset.num_classes is not None and dataset.num_classes > classes:
            seen = not isinstance(labels, jax.core.Tracer) and labels.size > 0
            first = int(np.asarray(labels).min()) if seen else 0
            number = dataset.num_classes
            fix = f"give the model num_classes={number}, or flax.linen.Dense({number}) at its end"
            if first > 0:
                fix = f"the least label is {first}: number the classes from 0, y - {first}, or {fix}"
            raise ValueError(f"the data set has {number} classes and the model {classes} outputs: {fix}")

    def num_classes(self, dataset: FederatedDataset) -> int:
        return self.output_shape(dataset)[-1]

    def mixed(self, mixture: Mixture, outputs: jax.Array) -> jax.Array:
        """log sum_k weights_k softmax(logits_k): probabilities are mixed."""
        return _log_of_mixed(mixture, jax.nn.log_softmax(outputs, axis=-1))

    def losses_of(self, outputs: jax.Array, examples: Any) -> jax.Array:
        return per_example(cross_entropy(outputs, examples["y"]))

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        logits = single(self.outputs(params, examples))
        correct = jnp.argmax(logits, axis=-1).astype(examples["y"].dtype) == examples["y"]
        return {"accuracy": per_example(correct.astype(logits.dtype))}


class BinaryClassification(Supervised):
    """Cross-entropy of a flax module's one logit for examples ``{"x", "y"}`` with labels 0 and 1, with accuracy.

    F_i(w) = (1/n_i) sum_j log(1 + exp((1 - 2 y_j) z_j)) + weight_decay |w|^2,   z_j = model(x_j)

    The model says 1 where z > 0; the probability of 1 is 1 / (1 + exp(-z)).

    Args:
      model: flax module that maps [B, ...] features to [B, 1] or [B] logits.
      weight_decay: lambda >= 0; see :class:`Supervised`.
      scores: of ``fedjax_sim.scores``, part of every evaluation.
    """

    scores: tuple[Score, ...] = given_scores()

    def check(self, dataset: FederatedDataset) -> None:
        super().check(dataset)
        labels, shape = dataset.examples["y"], self.output_shape(dataset)
        if not jnp.issubdtype(labels.dtype, jnp.integer) or labels.ndim != 1:
            raise ValueError(
                f"labels 'y' are {labels.dtype}{list(labels.shape)}: binary_classification needs the integers 0 and 1, "
                "one an example: cast them with y.astype('int32'), or use fedjax_sim.regression for real targets"
            )
        if shape not in ((), (1,)):
            raise ValueError(
                f"the model's output of one example has the shape {list(shape)}: binary_classification needs one "
                "logit, as flax.linen.Dense(1) gives; of a logit for each class make fedjax_sim.classification(model)"
            )
        if dataset.num_classes is not None and dataset.num_classes > 2:
            raise ValueError(
                f"the data set has {dataset.num_classes} classes: binary_classification tells two apart: use "
                "fedjax_sim.classification(model), or labels that are 0 and 1"
            )

    def losses_of(self, outputs: jax.Array, examples: Any) -> jax.Array:
        z = outputs.reshape(examples["y"].shape)
        return jax.nn.softplus(jnp.where(examples["y"] > 0, -z, z))

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        outputs = self.outputs(params, examples)
        correct = (outputs.reshape(examples["y"].shape) > 0) == (examples["y"] > 0)
        return {"accuracy": correct.astype(outputs.dtype)}

    def mixed(self, mixture: Mixture, outputs: jax.Array) -> jax.Array:
        """The logit of sum_k weights_k sigmoid(logit_k): probabilities are mixed."""
        one, zero = (_log_of_mixed(mixture, jax.nn.log_sigmoid(sign * outputs)) for sign in (1, -1))
        return one - zero

    def probabilities(self, outputs: jax.Array) -> jax.Array:
        z = outputs.reshape(len(outputs))
        return jnp.stack([jax.nn.sigmoid(-z), jax.nn.sigmoid(z)], axis=1)


class Regression(Supervised):
    """Squared error of a flax module's outputs for examples ``{"x", "y"}`` with real targets.

    F_i(w) = (1/n_i) sum_j 1/2 |model(x_j) - y_j|^2 + weight_decay |w|^2

    The metrics of an example are the means over its outputs of the squared error, ``"mse"``, and of the absolute
    error, ``"mae"``. Targets y float[n] are compared with outputs [B] or [B, 1].

    Args:
      model: flax module that maps [B, ...] features to outputs of the targets' shape.
      weight_decay: lambda >= 0; see :class:`Supervised`.
    """

    def check(self, dataset: FederatedDataset) -> None:
        super().check(dataset)
        y = dataset.examples["y"]
        if not jnp.issubdtype(y.dtype, jnp.floating):
            raise ValueError(f"targets 'y' are {y.dtype}: regression needs floats, cast them with y.astype('float32')")
        shape = self.output_shape(dataset)
        if shape != y.shape[1:] and not (shape == (1,) and y.ndim == 1):
            raise ValueError(
                f"the model's output of one example has the shape {list(shape)} and its target the shape "
                f"{list(y.shape[1:])}: they must be the same (one output may stand for a target without an axis)"
            )

    def losses_of(self, outputs: jax.Array, examples: Any) -> jax.Array:
        errors = _errors(outputs, examples)
        return jnp.sum(jnp.square(errors), axis=tuple(range(1, errors.ndim))) / 2

    def metrics(self, params: Any, examples: Any) -> dict[str, jax.Array]:
        errors = _errors(single(self.outputs(params, examples)), examples)
        return {"mse": per_example(jnp.square(errors)), "mae": per_example(jnp.abs(errors))}


@jax.jit  # for its shapes alone, which JAX remembers of a jitted function: a large model takes a second to trace
def _first_outputs(task: Supervised, dataset: FederatedDataset) -> jax.Array:
    return task.outputs(task.init(jax.random.key(0), dataset), {"x": task._one(dataset)})


def _log_of_mixed(mixture: Mixture, logarithms: jax.Array) -> jax.Array:
    """log sum_k weights_k exp(l_k) of l_k in [K, B, ...]."""
    weights = mixture.weights.astype(logarithms.dtype).reshape(-1, *[1] * (logarithms.ndim - 1))
    return jax.nn.logsumexp(logarithms, axis=0, b=weights)


def _check_tokens(model: str, vocabulary: int, x: Any) -> None:
    if not can_be_read(x) or not jnp.issubdtype(x.dtype, jnp.integer) or not x.size:
        return
    tokens = np.asarray(x)
    for token in (int(tokens.min()), int(tokens.max())):
        if not 0 <= token < vocabulary:
            raise ValueError(f"the examples have the token {token}: those of {model} are 0 to {vocabulary - 1}")


def _labels_fix(label: tuple[int, ...], logits: tuple[int, ...]) -> str:
    """What to do about labels of one example that have an axis too many; empty where they have not."""
    if label == logits and label[-1] > 1:
        return "these labels are one-hot, give y.argmax(-1)"
    if label == (1,) and len(logits) == 1:
        return "give y[:, 0].astype('int32')"
    return ""


def _errors(outputs: jax.Array, examples: Any) -> jax.Array:
    return outputs.reshape(examples["y"].shape) - examples["y"].astype(outputs.dtype)


def per_example(values: jax.Array) -> jax.Array:
    """[B, ...] to [B], the mean over the other axes."""
    return values if values.ndim == 1 else jnp.mean(values, axis=tuple(range(1, values.ndim)))


classification = factory("task.classification", Classification)
binary_classification = factory("task.binary_classification", BinaryClassification)
regression = factory("task.regression", Regression)
