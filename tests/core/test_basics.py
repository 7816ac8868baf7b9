"""What everything stands on: trees, keys, loops with a derivative, files, fields."""

import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core import trees
from fedjax_sim.core.derived import with_derivative
from fedjax_sim.core.files import write_atomically
from fedjax_sim.core.keys import client_draws, cohort_key, fold_in, order_words, random_words, round_key
from fedjax_sim.core.loops import bounded_loop, over_leading_axis


def test_trees_that_are_not_finite():
    sound, bad = jnp.ones(2), jnp.array([1.0, jnp.nan])
    found = [trees.all_finite(tree) for tree in ({"a": sound, "b": bad}, {"a": bad, "b": sound}, {"a": sound}, {})]
    assert [bool(one) for one in found] == [False, False, True, True]


def test_the_norm_has_a_derivative_everywhere():
    zero, other = {"a": jnp.zeros(2), "b": jnp.zeros(())}, {"a": jnp.array([3.0, 0.0]), "b": jnp.asarray(4.0)}
    value, gradient = jax.value_and_grad(trees.norm)(other)
    np.testing.assert_allclose([value, *gradient["a"], gradient["b"]], [5, 0.6, 0, 0.8], rtol=1e-6)
    value, gradient = jax.value_and_grad(trees.norm)(zero)
    np.testing.assert_array_equal([value, *gradient["a"], gradient["b"]], np.zeros(4))
    assert [float(trees.norm({**zero, "b": jnp.asarray(bad)})) for bad in (-np.inf, np.nan)] == [
        np.inf,
        pytest.approx(np.nan, nan_ok=True),
    ]


def test_norms_of_half_precision_are_of_what_its_squares_do_not_hold():
    """The norm of 1,024 numbers of 1e-4 was 0 in float16, and no clip saw it; that of 300 was infinite."""
    for value in (1e-4, 300):
        tree = {"a": jnp.full(1000, value, "float16"), "b": jnp.full((4, 6), value, "float16")}
        np.testing.assert_allclose(trees.norm(tree), 32 * value, rtol=5e-3)
        np.testing.assert_allclose(trees.inner(tree, trees.scale(-1, tree)), -((32 * value) ** 2), rtol=1e-2)


def test_a_mixture_of_half_precision_has_its_weight():
    a, b = {"x": jnp.full(3, 1.0, jnp.bfloat16)}, {"x": jnp.full(3, 1001.0, jnp.bfloat16)}  # 1000 in bfloat16
    np.testing.assert_allclose(trees.mix(0.999, a, b)["x"], 1.999, rtol=4e-3)


def test_a_choice_is_for_all_or_for_each_of_a_stack():
    a = {"matrix": jnp.ones((2, 3)), "row": jnp.ones(2)}
    for condition in (True, False, np.array([True, False]), np.ones((2, 3), bool)):
        leaves = {"matrix": a["matrix"]} if np.ndim(condition) == 2 else a
        found = trees.select(jnp.asarray(condition), leaves, trees.zeros_like(leaves))
        for name, leaf in leaves.items():
            mask = condition[:, None] if np.ndim(condition) == 1 and leaf.ndim == 2 else condition
            np.testing.assert_array_equal(found[name], np.where(mask, leaf, 0))


def sine_rule(found, of, of_dot, others):
    (x, constant), (x_dot, constant_dot) = of, of_dot
    assert constant_dot is None
    return {"sine": jnp.cos(x) * x_dot * constant.astype(x.dtype) * others}


def test_a_rule_for_a_derivative_holds_in_loops_to_any_order(x64):
    """A search has no derivative of its own: ``jax.custom_jvp`` was forgotten in the second one through a loop."""

    def turn(x, _):
        found = {"sine": jax.lax.stop_gradient(jnp.sin(x))}
        return x + with_derivative(sine_rule, found, (x, jnp.int32(2)), jnp.float64(0.5))["sine"], None

    def by_hand(x, _):
        return x + jnp.sin(x), None

    def after_two(turn):
        return lambda x: jax.lax.scan(turn, x, length=2)[0]

    def derivatives(f):
        second = (lambda x: jax.jvp(jax.grad(f), (x,), (1.0,))[1], jax.grad(jax.grad(f)), jax.jacfwd(jax.jacfwd(f)))
        return jax.jit(lambda x: (jax.vmap(f)(x), *(jax.vmap(one)(x) for one in (jax.grad(f), *second))))

    x = jnp.linspace(-1.0, 2, 3)
    for found, expected in zip(derivatives(after_two(turn))(x), derivatives(after_two(by_hand))(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(turn(x, None)[0], by_hand(x, None)[0])
    assert jax.jit(lambda x: turn(x, None)[0]).lower(x).as_text().count("cosine") == 0


def test_what_is_drawn_depends_on_round_client_and_purpose():
    key, ids = jax.random.key(0), jnp.array([4, 7], jnp.int32)
    draws = [client_draws(key, jnp.int32(t), ids) for t in range(2)]
    words = [np.asarray(of) for one in draws for of in (one.work, one.lot, *one.order.T)]
    words = np.concatenate(words)
    assert len(set(words.tolist())) == len(words) == 2 * 2 * 18
    np.testing.assert_array_equal(jax.vmap(order_words)(draws[0].words), draws[0].order)
    keys = [round_key(key, jnp.int32(t)) for t in range(3)] + [cohort_key(key, jnp.int32(t)) for t in range(3)]
    assert len({tuple(jax.random.key_data(one).tolist()) for one in keys}) == 6


@pytest.mark.parametrize(
    ("impl", "partitionable"),
    [("threefry2x32", True), ("rbg", True), pytest.param("threefry2x32", False, marks=pytest.mark.slow)],
)
def test_keys_and_words_are_those_of_jax_random(impl, partitionable):
    """Whatever generator is in force; the fewer kernels of the usual one give the same bits."""
    ids = jnp.array([0, 3, 2**31 - 1], jnp.int32)
    with jax.threefry_partitionable(partitionable):
        key = jax.random.key(5, impl=impl)
        keys = fold_in(key, ids)
        expected = [jax.random.fold_in(key, one) for one in ids]
        assert keys.dtype == key.dtype
        np.testing.assert_array_equal(jax.random.key_data(keys), [jax.random.key_data(one) for one in expected])
        again, once = fold_in(keys, jnp.uint32(2**31 + 4)), jax.random.fold_in(expected[1], jnp.uint32(2**31 + 4))
        np.testing.assert_array_equal(jax.random.key_data(again[1]), jax.random.key_data(once))
        words = random_words(keys, 7)
        vmapped = jax.vmap(lambda one: jax.random.bits(one, (7,), jnp.uint32))(keys)
        np.testing.assert_array_equal(words, vmapped)
        np.testing.assert_array_equal(random_words(key, 7), jax.random.bits(key, (7,), jnp.uint32))


def test_keys_that_do_not_draw_alone_are_taken_in_turn(monkeypatch):
    """Under vmap XLA's own generators draw for all keys from the first."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
    found = over_leading_axis(
        lambda one: jax.random.bits(one[0], (2,)) + one[1], (keys, jnp.arange(3, dtype=jnp.uint32))
    )
    expected = [jax.random.bits(key, (2,)) + jnp.uint32(number) for number, key in enumerate(keys)]
    np.testing.assert_array_equal(found, expected)


def test_a_bounded_loop_and_its_derivative():
    def body(k, factor, carry):
        return jnp.where(k < 4, carry * factor + k.astype(carry.dtype), carry)

    def by_hand(factor, carry):
        for k in range(4):
            carry = carry * factor + float(k)
        return carry

    loop = bounded_loop(body, 4)
    found, expected = (
        jax.value_and_grad(function, argnums=(0, 1))(jnp.asarray(1.5), jnp.asarray(2.0))
        for function in (lambda factor, carry: loop(jnp.int32(4), factor, carry), by_hand)
    )
    np.testing.assert_allclose([found[0], *found[1]], [expected[0], *expected[1]], rtol=1e-6)


def test_a_file_in_the_place_of_a_link_is_a_file_of_its_own(tmp_path):
    private = tmp_path / "private"
    private.write_bytes(b"secret")
    private.chmod(0o600)
    (tmp_path / "link").symlink_to(private)
    write_atomically(tmp_path / "link", b"new")
    write_atomically(tmp_path / "plain", b"new")
    modes = [stat.S_IMODE(os.lstat(tmp_path / name).st_mode) for name in ("link", "plain", "private")]
    assert modes[0] == modes[1] != modes[2] == 0o600
    assert private.read_bytes() == b"secret"
    write_atomically(private, b"newer")
    assert stat.S_IMODE(os.lstat(private).st_mode) == 0o600


def test_a_field_that_is_not_there_is_not_replaced():
    with pytest.raises(TypeError, match="has no field 'client_optimiser': did you mean 'client_optimizer'"):
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)).replace(client_optimiser=fjs.optim.sgd(0.2))


def test_weights_of_half_precision_leaves_sum_to_one():
    """In bfloat16 seven weights of 1/7 sum to 0.998, and every average was too small by as much."""
    leaf = 1 + jax.random.uniform(jax.random.key(0), (7, 4000)).astype(jnp.bfloat16)
    found = trees.weighted_sum(jnp.full(7, 1 / 7), leaf)
    assert found.dtype == jnp.bfloat16
    exact = np.asarray(leaf, float).mean(axis=0)
    assert abs(np.mean(np.asarray(found, float) / exact) - 1) < 2e-4
    whole = trees.weighted_sum(jnp.array([1, 2]), jnp.array([[3], [2**24]]))
    assert whole.dtype == jnp.int32
    assert whole == 3 + 2**25, "whole numbers stay as they are"


def test_quotients_of_half_precision_have_divisors_of_single():
    """In float16 2e-8 is 0, which divides by 1."""
    found = trees.divide({"x": jnp.full(2, 1e-4, jnp.float16)}, {"x": jnp.array([2e-8, 0.0])})["x"]
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(found, float), [5000, 1e-4], rtol=1e-3)
