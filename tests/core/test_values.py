"""The checks that all arguments and fields share: each once here, so that no room repeats them."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import choice, count, flag, real
from fedjax_sim.core.values import check_choice, check_count, check_flag, check_real, close, conditions, shown, suggest


@pytest.mark.parametrize(
    ("value", "bounds", "error", "message"),
    [
        (None, {}, TypeError, "x is None: it must be a real number"),
        ("1", {}, TypeError, "x is '1'"),
        (True, {}, TypeError, "x is True"),
        (np.array("a"), {}, TypeError, "array of <U1"),
        (1j, {}, TypeError, "1j"),
        ([1.0, None, b"a"], {}, TypeError, "b'a'"),
        (math.nan, {}, ValueError, "x is nan: it must be finite"),
        (math.nan, {"infinite": True}, ValueError, "x is nan"),
        (math.inf, {"low": 0.0}, ValueError, r"finite and in \[0, inf\)"),
        (-0.5, {"low": 0.0}, ValueError, r"x is -0.5: it must be in \[0, inf\)"),
        (0, {"above": 0.0}, ValueError, r"in \(0, inf\)"),
        (1.0, {"low": 0.0, "below": 1.0}, ValueError, r"in \[0, 1\)"),
        (2.0, {"high": 1.0}, ValueError, r"in \(-inf, 1\]"),
        ({"w": np.array([0.5, 3.0])}, {"high": 1.0}, ValueError, r"x is \[0.5 3. \]"),
        (1e39, {}, ValueError, "infinite in float32: it must be at most 3.4028235e"),
        (1e-60, {"above": 0.0}, ValueError, "which is 0.0 in float32"),
        (10**400, {}, ValueError, "an integer of about 400 digits: it must be finite as a float"),
    ],
)
def test_numbers_that_are_refused(value, bounds, error, message):
    with pytest.raises(error, match=message):
        check_real("x", value, **bounds)


def test_the_ends_that_are_left_out_are_said_by_methods():
    """At 0 nothing would ever be trained, without a word."""
    sgd = fjs.optim.sgd(0.1)
    for made in (fjs.fedcm, fjs.fedaware):
        with pytest.raises(ValueError, match=r"alpha=...\) is 0.0: it must be in \(0, 1\]"):
            made(client_optimizer=sgd, alpha=0.0)
    with pytest.raises(ValueError, match=r"worst=...\) is 0.0: it must be in \(0, 1\]"):
        fjs.per_client(fjs.quadratic(), worst=0.0)


def test_numbers_that_pass():
    for value in (1, 0.5, np.float64(2), np.ones(3, np.float16), jnp.ones(2, jnp.bfloat16), {"a": [0.0]}, (), 10**30):
        check_real("x", value, low=0.0)
    check_real("x", None, optional=True)
    check_real("x", math.inf, infinite=True)
    check_real("x", 1e-60, above=0.0, host=True)
    with pytest.raises(TypeError, match=r"worst=...\) is traced: programs are made by it"):
        jax.jit(lambda worst: fjs.per_client(fjs.quadratic(), worst=worst).worst)(0.1)


def test_of_traced_numbers_the_condition_is_left():
    @jax.jit
    def met(value):
        with conditions() as found:
            check_real("x", value, low=0.0, below=1.0)
        return jnp.stack(found)

    assert [bool(met(value)) for value in (0.0, 0.5, 1.0, -1.0, math.nan, 3)] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    with pytest.raises(TypeError, match="array of bool"):
        met(True)


def test_integers_flags_and_words():
    check_count("n", np.int64(3), low=1, high=3)
    for wrong, error, message in [
        (1.0, TypeError, "n is 1.0: it must be an integer of at least 1"),
        (True, TypeError, "n is True"),
        (0, ValueError, "n is 0: it must be at least 1"),
        (4, ValueError, "n is 4: it must be at most 3"),
        (10**5000, ValueError, "an integer of about 5000 digits: it must be at most 3"),
    ]:
        with pytest.raises(error, match=message):
            check_count("n", wrong, low=1, high=3)
    with pytest.raises(TypeError, match="f is 1: it must be True or False"):
        check_flag("f", 1)
    check_choice("c", "mean", {"mean": 1, "sum": 2})
    with pytest.raises(ValueError, match=r"c is 'men': did you mean 'mean'\? known: mean, sum"):
        check_choice("c", "men", {"mean": 1, "sum": 2})
    assert suggest("zzz", ["mean"]) == "known: mean"
    assert close("test", ["table", "client", "test_fraction"]) == ["test_fraction"]
    assert close("test", ["test_fraction", "examples_test_part"]) == [], "which of the two is meant is not known"
    assert len(suggest("a", [f"name_{number}" for number in range(10_000)])) < 4000


class Thing(Described):
    rate: float = real(default=0.5, low=0.0, high=1.0)
    scale: float | None = real(default=None, above=0.0, structure=True)
    every: int | None = count(default=None, high=9)
    loud: bool = flag(default=False)
    kind: str = choice(("mean", "sum"), default="mean")
    other: str | None = choice(("a", "b"), default=None)


thing = factory("example.thing", Thing)


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("rate", 2.0, 1), ("rate", None, 0.0), ("scale", 0.0, 1e-60), ("every", 10, 9), ("every", 0, None),
        ("loud", None, True), ("kind", None, "sum"), ("other", "c", "b"),
    ],
)  # fmt: skip
def test_fields_say_what_they_allow(field, wrong, right):
    with pytest.raises((TypeError, ValueError), match=rf"^thing\({field}=\.\.\.\) is {wrong!r}"):
        thing(**{field: wrong})
    assert getattr(thing(**{field: right}), field) == right


def test_real_fields_are_leaves_and_the_others_structure():
    assert jax.tree.leaves(thing(rate=1, scale=2.0, every=3)) == [1.0]


def test_a_list_for_a_real_field_of_several_is_an_array():
    class Rates(Described):
        values: Any = real(default=None, low=0.0, several=True)

    rates = factory("example.rates", Rates)
    assert rates().values is None
    assert rates(0.5).values == 0.5
    for one in (rates([1, 0.5]), rates().replace(values=(1, 0.5)).checked()):
        np.testing.assert_array_equal(one.values, [1.0, 0.5])
        assert len(jax.tree.leaves(one)) == 1
    jax.grad(lambda x: rates([x, 2 * x]).values.sum())(1.0)
    for wrong in ([1.0, [2.0, 3.0]], [1.0, None]):
        with pytest.raises(ValueError, match=r"^rates\(values=\.\.\.\) is \[1\.0, .*numbers, in rows of one length"):
            rates(wrong)


def test_rows_of_several_lengths_are_no_numbers_of_clients():
    with pytest.raises(ValueError, match=r"^weighted\(weights=\.\.\.\) is \[1\.0, \[2\.0\]\]: .*in rows of one length"):
        fjs.cohort.weighted(2, [1.0, [2.0]])


PATHS = ["client_learning_rate", "server_learning_rate", "client_optimizer.learning_rate", "mu"]
FIELDS = ["mu", "client_optimizer", "client_learning_rate", "server_learning_rate", "server_optimizer"]


@pytest.mark.parametrize(
    ("asked", "known", "meant"),
    [
        ("learning_rate", PATHS, "client_optimizer.learning_rate"),
        ("lr", PATHS, "client_optimizer.learning_rate"),
        ("learning_rate", FIELDS, "client_optimizer.learning_rate"),
        ("learning_rate", PATHS[:2], "client_learning_rate"),
        ("learning_rate", [f"algorithm.{one}" for one in PATHS], "algorithm.client_optimizer.learning_rate"),
        ("client_lr", PATHS, "client_learning_rate"),
        ("server_lr", PATHS, "server_learning_rate"),
        ("server_optimizer.lr", PATHS, "server_learning_rate"),
        ("server_optimizer.lr", [*PATHS, "server_optimizer.learning_rate"], "server_optimizer.learning_rate"),
        ("optimizer", FIELDS, "client_optimizer"),
        ("algorithm.mu", PATHS, "mu"),
        ("MU", PATHS, "mu"),
        ("muu", ["algorithm.mu", "task.weight_decay"], "algorithm.mu"),
        ("eta", ["beta", "learning_rate"], "beta"),
        ("zzz", PATHS, None),
    ],
)
def test_what_a_name_is_likely_to_mean(asked, known, meant):
    assert close(asked, known) == ([] if meant is None else [meant])


def test_what_is_shown_is_one_line_and_of_arrays_in_it_the_shapes():
    assert shown({"w": np.zeros((2, 3), np.float32), "b": 1}) == "{'b': 1, 'w': float32[2, 3]}"
    assert shown(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    assert shown({1: np.zeros((2, 2)), "b": 0}) == "{1: array([[0., 0.], [0., 0.]]), 'b': 0}"  # keys that have no order
