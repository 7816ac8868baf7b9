"""Scores of a classifier that are no means over examples: of all of them together, and of those of every client.

Given to a task, ``fjs.classification(model, scores=(fjs.scores.roc_auc(),))``, they are part of every evaluation.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import count, leaf
from fedjax_sim.core.loops import with_rows
from fedjax_sim.core.values import INT32_MAX, shown


class Score(Described):
    """Base of the scores: subclasses have a ``name`` and define :meth:`of_groups`.

    The groups are the clients, or one group of all examples; there, too, a score is not the mean of the clients'.
    """

    name = ""

    def of_groups(self, p: jax.Array, y: jax.Array, group: jax.Array, groups: int) -> jax.Array:
        """The score of every group of examples.

        Args:
          p: [n, C], the probabilities that the model gives to the classes.
          y: int32[n], the labels.
          group: int32[n], the group of each example.
          groups: how many groups there are.

        Returns:
          float[groups]; NaN for a group without examples, and where the probabilities are not finite.
        """
        raise TypeError(f"{type(self).__name__} must define of_groups(p, y, group, groups)")

    def defined(self, y: jax.Array, classes: int, group: jax.Array, groups: int) -> jax.Array:
        """bool[groups], where the labels (int32[n]) allow a score; others are NaN and left out of means over groups."""
        return _totals(jnp.ones_like(y), group, groups) > 0


def given_scores() -> Any:
    """The field of a task for the scores that are part of its evaluations."""

    def check(what: str, scores: Any) -> None:
        if not (isinstance(scores, tuple) and all(isinstance(one, Score) for one in scores)):
            raise TypeError(f"{what} is {shown(scores)}: give a tuple of scores, (fedjax_sim.scores.roc_auc(),)")
        names = [one.name for one in scores]
        if len(set(names)) < len(names):
            raise ValueError(f"{what} has two scores of one name ({', '.join(names)}): give each once")

    return leaf(check, default=(), kw_only=True)


class Confusion(Score):
    """Base of scores that are a function of how many examples of each class are taken for which."""

    def of_groups(self, p: jax.Array, y: jax.Array, group: jax.Array, groups: int) -> jax.Array:
        classes = p.shape[1]
        said = jnp.argmax(p, axis=1).astype(y.dtype)

        def counted(of: jax.Array, these: jax.Array) -> jax.Array:
            found = _totals(these.astype(jnp.int32), group * classes + of, groups * classes)
            return found.reshape(groups, classes).astype(p.dtype)

        every = jnp.ones_like(y)
        found = self.of_counts(counted(y, said == y), counted(y, every), counted(said, every))
        # The class of the largest of probabilities that are NaN is the first one, which would pass for an answer.
        sound = _totals((~jnp.all(jnp.isfinite(p), axis=1)).astype(jnp.int32), group, groups) == 0
        return jnp.where(sound, found, jnp.full_like(found, jnp.nan))

    def of_counts(self, right: jax.Array, real: jax.Array, said: jax.Array) -> jax.Array:
        """The score from counts [groups, C]: rightly said to be of the class; of the class; said to be of it."""
        raise TypeError(f"{type(self).__name__} must define of_counts(right, real, said)")


class F1(Confusion):
    """The F1 score, its mean over the classes (macro): 2 TP / (2 TP + FP + FN) of each.

    Classes that neither occur nor are predicted in a group do not count there.
    """

    name = "f1"

    def of_counts(self, right: jax.Array, real: jax.Array, said: jax.Array) -> jax.Array:
        return _mean_where(real + said > 0, 2 * right / jnp.maximum(real + said, 1))


class BalancedAccuracy(Confusion):
    """The mean over the classes that occur in a group of the share that is recognised (recall)."""

    name = "balanced_accuracy"

    def of_counts(self, right: jax.Array, real: jax.Array, said: jax.Array) -> jax.Array:
        return _mean_where(real > 0, right / jnp.maximum(real, 1))


class RocAuc(Score):
    """The area under the receiver operating characteristic: P(p of a positive > p of a negative), ties count half.

    Of more than two classes it is the mean over the classes of the area of each against the rest. A class that no
    example of a group has, or all have, does not count there; a group of one class has no such area (NaN). Where
    probabilities round to 0 and 1, examples tie: in single precision those of logits that are further apart than 87.
    It sorts the examples for each class.
    """

    name = "roc_auc"

    def of_groups(self, p: jax.Array, y: jax.Array, group: jax.Array, groups: int) -> jax.Array:
        rows = jnp.arange(len(y), dtype=jnp.int32)
        # Next to 1 a probability has few digits, and what it leaves the other classes has all of its own.
        digits, likeliest = jnp.asarray(jnp.finfo(p.dtype).eps ** 0.5, p.dtype), jnp.argmax(p, axis=1).astype(y.dtype)
        rest = jnp.minimum(jnp.sum(p.at[rows, likeliest].set(0), axis=1), digits)

        def area(c: jax.Array) -> jax.Array:
            score = p[:, c]
            sure = jnp.where(likeliest == c, -rest, -digits)
            order = jnp.lexsort((sure, score, group))
            score, sure, of, positive = score[order], sure[order], group[order], y[order] == c
            # Of each example the negatives of its group before it, and before or among those that it ties with.
            negative = (~positive).astype(jnp.int32)
            until = jnp.cumsum(negative, dtype=jnp.int32)
            apart = (score[1:] != score[:-1]) | (sure[1:] != sure[:-1]) | (of[1:] != of[:-1])
            new = jnp.concatenate([jnp.ones(1, bool), apart])
            run = jnp.cumsum(new, dtype=jnp.int32) - 1
            first = jax.ops.segment_min(rows, run, len(y), indices_are_sorted=True)[run]
            last = jax.ops.segment_max(rows, run, len(y), indices_are_sorted=True)[run]
            negatives = _totals(negative, of, groups)
            others = (jnp.cumsum(negatives, dtype=jnp.int32) - negatives)[of]  # of the groups before
            halves = (until - negative)[first] + until[last] - 2 * others
            won = halves.astype(p.dtype) / jnp.maximum(2 * negatives[of], 1).astype(p.dtype)
            total = _totals(jnp.where(positive, won, jnp.zeros_like(won)), of, groups)
            found = total / jnp.maximum(_totals(positive, of, groups), 1).astype(p.dtype)
            bad = _totals(~jnp.isfinite(score), of, groups) > 0
            return jnp.where(bad, jnp.full_like(found, jnp.nan), found)

        classes = p.shape[1]
        if classes == 2:
            return jnp.where(self.defined(y, 2, group, groups), area(jnp.int32(1)), jnp.nan)
        areas = jax.lax.map(area, jnp.arange(classes, dtype=jnp.int32)).T
        return _mean_where(_both(y, classes, group, groups), areas)

    def defined(self, y: jax.Array, classes: int, group: jax.Array, groups: int) -> jax.Array:
        return jnp.any(_both(y, classes, group, groups), axis=1)


class CalibrationError(Score):
    """The expected calibration error: sum_b (n_b / n) |accuracy of b - mean confidence of b| over bins b.

    An example's confidence is the largest of its probabilities; the bins are equally wide parts of (0, 1].

    Args:
      bins: how many.

    Reference: Guo, Pleiss, Sun and Weinberger 2017, "On calibration of modern neural networks", eq. 3.
    """

    bins: int = count(default=15, high=INT32_MAX)

    name = "calibration_error"

    def of_groups(self, p: jax.Array, y: jax.Array, group: jax.Array, groups: int) -> jax.Array:
        confidence, right = jnp.max(p, axis=1), jnp.argmax(p, axis=1).astype(y.dtype) == y
        bin_ = jnp.clip(jnp.ceil(confidence * self.bins).astype(jnp.int32) - 1, 0, self.bins - 1)
        place = group * self.bins + bin_
        order = jnp.argsort(place)  # so that values of a bin lie together
        gaps = _totals((right.astype(p.dtype) - confidence)[order], place[order], groups * self.bins)
        size = _totals(jnp.ones_like(y), group, groups)
        error = jnp.sum(jnp.abs(gaps.reshape(groups, self.bins)), axis=1) / jnp.maximum(size, 1).astype(p.dtype)
        return jnp.where(size > 0, error, jnp.nan)


def _totals(values: jax.Array, group: jax.Array, groups: int) -> jax.Array:
    """Sums of the values [n] of every group, [groups]; truth values are counted. Floats of a group lie together."""
    values = values.astype(jnp.int32) if values.dtype == bool else values
    if groups == 1:  # as a tree: adding one value after the other to a large sum loses digits
        return jnp.sum(values, dtype=values.dtype)[None]
    if jnp.issubdtype(values.dtype, jnp.floating):
        return with_rows(jnp.zeros(groups, values.dtype), group, values)
    return jax.ops.segment_sum(values, group, groups)


def _both(y: jax.Array, classes: int, group: jax.Array, groups: int) -> jax.Array:
    """bool[groups, C]: some examples of the group are of the class, and some are not."""
    table = _totals(jnp.ones_like(y), group * classes + y, groups * classes).reshape(groups, classes)
    return (table > 0) & (table < jnp.sum(table, axis=1, dtype=table.dtype)[:, None])


def _mean_where(counts: jax.Array, values: jax.Array) -> jax.Array:
    """Means along the last axis over what counts; NaN where nothing does."""
    number = jnp.sum(counts, axis=1, dtype=jnp.int32)
    total = jnp.sum(jnp.where(counts, values, jnp.zeros_like(values)), axis=1)
    return jnp.where(number > 0, total / jnp.maximum(number, 1).astype(values.dtype), jnp.nan)


f1 = factory("score.f1", F1)
balanced_accuracy = factory("score.balanced_accuracy", BalancedAccuracy)
roc_auc = factory("score.roc_auc", RocAuc)
calibration_error = factory("score.calibration_error", CalibrationError)
