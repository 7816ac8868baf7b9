"""The cross-entropy in columns against the one in rows, and both against numpy."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.models import cross_entropy as module
from fedjax_sim.models.cross_entropy import cross_entropy

MOST = module._COLUMNS


def drawn(classes, examples=50):
    rng = np.random.default_rng(classes)
    return (5 * rng.normal(size=(examples, classes))).astype("f"), rng.integers(0, classes, examples).astype("i")


def in_numpy(logits, labels):
    shifted = logits.astype(float) - logits.max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]


@pytest.mark.parametrize("classes", [2, 10, MOST, MOST + 1])
def test_value_and_derivatives(classes) -> None:
    logits, labels = drawn(classes)
    found, slope, curved = jax.jit(lambda z, y: (
        cross_entropy(z, y),
        jax.grad(lambda z: jnp.sum(cross_entropy(z, y)))(z),
        jax.jvp(jax.grad(lambda z: jnp.sum(cross_entropy(z, y))), (z,), (z,))[1],
    ))(logits, labels)  # fmt: skip
    np.testing.assert_allclose(found, in_numpy(logits, labels), rtol=2e-6, atol=1e-6)
    p = np.exp(logits.astype(float) - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(slope, p - np.eye(classes)[labels], atol=1e-6)
    np.testing.assert_allclose(curved, p * (logits - (p * logits).sum(1, keepdims=True)), atol=1e-5)


def test_what_is_no_number_and_what_is_no_class_are_as_in_rows() -> None:
    logits, labels = drawn(4, examples=6)
    logits[0, 1], logits[1, 2], logits[2, :], logits[3, 0] = np.nan, np.inf, -np.inf, -np.inf
    logits[5] = [1000, -1000, 0, 1000]
    labels[:] = [0, 2, 1, 1, 4, 3]
    for no_class in (4, -1):
        labels[4] = no_class
        by_rows = module._by_rows(logits, labels)
        assert np.isnan(by_rows[:4]).all()
        assert by_rows[4] == 0
        np.testing.assert_allclose(cross_entropy(logits, labels), by_rows, rtol=1e-6)
    stacked = jax.vmap(cross_entropy)(np.stack([logits, -logits]), np.stack([labels, labels]))
    np.testing.assert_allclose(stacked[1], module._by_rows(-logits, labels), rtol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere it is the other form")
def test_few_classes_are_one_loop_over_the_rows_and_training_keeps_its_own() -> None:
    """Else an evaluation of many small examples reads its logits seven times."""
    logits, labels = drawn(10, examples=64)

    def kernels(function):
        text = jax.jit(function).lower(logits, labels).compile().as_text()
        return len(re.findall(r"^\s+(?:ROOT )?%\S+ = .* fusion\(", text[text.index("ENTRY") :], re.MULTILINE))

    def program(function):
        gradient = functools.partial(jax.grad(lambda z, y: jnp.sum(function(z, y))))
        return jax.jit(gradient).lower(logits, labels).compile().as_text().split("ENTRY")[1].count("fusion(")

    assert kernels(cross_entropy) == 1 < kernels(module._by_rows)
    assert program(cross_entropy) == program(module._by_rows)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_not_summed_in_columns(dtype) -> None:
    logits, labels = drawn(10)
    np.testing.assert_array_equal(
        np.asarray(cross_entropy(jnp.asarray(logits, dtype), labels), "f"),
        np.asarray(module._by_rows(jnp.asarray(logits, dtype), labels), "f"),
    )
