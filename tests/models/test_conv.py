"""Convolutions by matrix products and pooling by slices: jax's results and derivatives, no grouped convolutions."""

import functools
import itertools

import flax.linen as nn
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_sim as fjs
from fedjax_sim.models import conv
from fedjax_sim.models.conv import Conv, conv_general_dilated, matmul_conv, max_pool, side_by_side
from fedjax_sim.optim import third_party

NUMBERS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def arrays(*shapes, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def close(ours, theirs, atol=1e-10):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=atol), ours, theirs)


def both(spatial, strides, padding, **options):
    """Our convolution and jax's with the same arguments."""
    return [
        functools.partial(
            function, window_strides=strides, padding=padding, dimension_numbers=NUMBERS[spatial], **options
        )
        for function in (matmul_conv, lax.conv_general_dilated)
    ]


def primitives(jaxpr):
    """All equations, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")
        ):
            if hasattr(inner, "jaxpr"):
                inner = inner.jaxpr
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def names(function, *arguments):
    return {str(equation.primitive) for equation in primitives(jax.make_jaxpr(function)(*arguments).jaxpr)}


def cases(of, fast):
    """The names of all; those that are not of a kind of their own are slow."""
    assert fast <= set(of)
    return [pytest.param(n, id=n.replace(" ", "-"), marks=() if n in fast else pytest.mark.slow) for n in of]


# x, kernel, strides, padding, options: what networks use, one per line.
CASES = {
    "3x3 valid": ((2, 7, 6, 3), (3, 3, 3, 4), (1, 1), "VALID", {}),
    "3x3 same": ((2, 7, 6, 3), (3, 3, 3, 4), (1, 1), "SAME", {}),
    "5x5 same, one channel": ((2, 8, 8, 1), (5, 5, 1, 2), (1, 1), "SAME", {}),
    "3x3 stride 2 same": ((2, 9, 8, 2), (3, 3, 2, 3), (2, 2), "SAME", {}),
    "7x7 stride 2 explicit": ((1, 11, 11, 2), (7, 7, 2, 2), (2, 2), ((3, 3), (3, 3)), {}),
    "unequal strides": ((2, 9, 8, 2), (2, 3, 2, 3), (3, 1), ((1, 0), (0, 2)), {}),
    "dilated kernel": ((2, 9, 9, 2), (3, 2, 2, 3), (1, 2), "SAME", {"rhs_dilation": (2, 3)}),
    "same lower": ((2, 6, 6, 2), (2, 2, 2, 3), (1, 1), "SAME_LOWER", {}),
    "cropping": ((2, 9, 9, 2), (3, 3, 2, 3), (1, 1), ((-1, 0), (-2, 1)), {}),
    "1x1": ((2, 5, 5, 3), (1, 1, 3, 4), (1, 1), "VALID", {}),
    "1x1 stride 2": ((2, 5, 5, 3), (1, 1, 3, 4), (2, 2), "SAME", {}),
    "whole image": ((3, 4, 5, 2), (4, 5, 2, 6), (1, 1), "VALID", {}),
    "depthwise": ((2, 6, 6, 4), (3, 3, 1, 4), (1, 1), "SAME", {"feature_group_count": 4}),
    "depthwise, two features each": ((2, 6, 6, 3), (3, 3, 1, 6), (2, 1), "SAME", {"feature_group_count": 3}),
    "two groups": ((2, 6, 6, 4), (3, 3, 2, 6), (1, 1), "VALID", {"feature_group_count": 2}),
    "text": ((2, 9, 3), (4, 3, 5), (1,), "SAME", {}),
    "text, causal": ((2, 9, 3), (3, 3, 5), (1,), ((4, 0),), {"rhs_dilation": (2,)}),
    "volume": ((1, 4, 5, 4, 2), (2, 3, 2, 2, 3), (1, 2, 1), "SAME", {}),
}


KINDS = {
    "3x3 same", "unequal strides", "dilated kernel", "same lower", "cropping", "1x1", "whole image", "depthwise",
    "two groups", "text, causal", "volume",
}  # fmt: skip


@pytest.mark.parametrize("case", cases(CASES, KINDS))
def test_equals_lax_with_all_first_derivatives(case, x64):
    x_shape, kernel_shape, strides, padding, options = CASES[case]
    ours, theirs = both(len(strides), strides, padding, **options)
    assert "conv_general_dilated" not in names(ours, *arrays(x_shape, kernel_shape))
    x, kernel = arrays(x_shape, kernel_shape)
    tangents = arrays(x_shape, kernel_shape, seed=2)

    def everything(function, x, kernel):
        y, pull = jax.vjp(function, x, kernel)
        return {"y": y, "vjp": pull(jnp.cos(y)), "jvp": jax.jvp(function, (x, kernel), tangents)[1]}

    close(*jax.jit(lambda x, kernel: (everything(ours, x, kernel), everything(theirs, x, kernel)))(x, kernel))


@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data())
def test_equals_lax_for_any_geometry(data):
    small = st.integers(1, 3)
    spatial = data.draw(st.integers(1, 2), "spatial")
    per_axis = lambda values, name: tuple(data.draw(values, name) for _ in range(spatial))
    taps, strides, dilation = per_axis(small, "taps"), per_axis(small, "strides"), per_axis(small, "dilation")
    size = per_axis(st.integers(7, 9), "size")
    padding = data.draw(st.one_of(st.sampled_from(["SAME", "VALID"]), st.just(None)), "padding")
    if padding is None:
        padding = per_axis(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), "pads")
    groups, channels, features = data.draw(small, "groups"), data.draw(small, "channels"), data.draw(small, "features")
    ours, theirs = both(spatial, strides, padding, rhs_dilation=dilation, feature_group_count=groups)
    x, kernel = arrays((2, *size, groups * channels), (*taps, channels, groups * features), dtype=np.float32)
    close(*jax.jit(lambda x, kernel: (ours(x, kernel), theirs(x, kernel)))(x, kernel), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "groups", [1, pytest.param(2, marks=pytest.mark.slow), 4], ids=["dense", "groups", "depthwise"]
)
def test_second_derivatives(groups, x64):
    x, kernel, v, u = arrays((2, 5, 5, 4), (3, 3, 4 // groups, 4), (3, 3, 4 // groups, 4), (2, 5, 5, 4))
    ours, theirs = both(2, (1, 1), "SAME", feature_group_count=groups)

    def gradient(function):
        return jax.grad(lambda x, kernel: jnp.sum(jnp.tanh(function(x, kernel))), (0, 1))

    def differences(step=1e-5):
        # Not the second derivative of jax.lax: that in the kernel is wrong when compiled by jax 0.6.2 for a CPU.
        of = jax.jit(gradient(theirs))
        up, down = (of(x + s * u, kernel + s * v) for s in (step, -step))
        return jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / (2 * step), up, down)

    @jax.jit
    def second(x, kernel):
        def reverse(x, kernel):
            a, b = gradient(ours)(x, kernel)
            return jnp.vdot(a, u) + jnp.vdot(b, v)

        return jax.jvp(gradient(ours), (x, kernel), (u, v))[1], jax.grad(reverse, (0, 1))(x, kernel)

    forward_over_reverse, reverse_over_reverse = second(x, kernel)
    close(forward_over_reverse, differences(), atol=1e-6)
    close(reverse_over_reverse, forward_over_reverse)


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)], ids=["both", "kernels", "inputs"])
@pytest.mark.parametrize("groups", [1, 2, 4], ids=["dense", "groups", "depthwise"])
def test_vmap(axes, groups, x64):
    ours, theirs = both(2, (1, 2), "SAME", feature_group_count=groups)
    given = arrays((3, 2, 5, 6, 4), (3, 2, 3, 4 // groups, 4))
    arguments = [leaf if axis == 0 else leaf[0] for leaf, axis in zip(given, axes, strict=True)]
    mapped = jax.vmap(ours, axes)

    @jax.jit
    def results(*arguments):
        every = [[leaf[i] if axis == 0 else leaf for leaf, axis in zip(arguments, axes, strict=True)] for i in range(3)]
        return mapped(*arguments), jnp.stack([theirs(*one) for one in every])

    close(*results(*arguments))
    assert "conv_general_dilated" not in names(mapped, *arguments)


@pytest.mark.parametrize("batch", [11, 12], ids=["with-rest", "without"])
def test_many_examples_are_computed_in_pieces(batch, x64, monkeypatch):
    monkeypatch.setattr(conv, "_MOST_KEPT", 1000)
    monkeypatch.setattr(conv, "_PIECE", 1000)
    ours, theirs = both(2, (1, 1), "VALID")
    x, kernel, t = arrays(
        (batch, 6, 6, 2), (3, 3, 2, 3), (3, 3, 2, 3)
    )  # 288 patch elements each: 3 pieces of 3, and 2 left
    found = primitives(jax.make_jaxpr(ours)(x, kernel).jaxpr)
    sizes = [variable.aval.size for equation in found if str(equation.primitive) == "concatenate" for variable in
             equation.outvars]  # fmt: skip
    assert max(sizes) <= 1000
    assert "scan" in names(ours, x, kernel)

    def loss(function, x, kernel):
        return jnp.sum(jnp.sin(function(x, kernel)))

    def derivatives(function, x, kernel):
        second = jax.jvp(lambda k: jax.grad(loss, 2)(function, x, k), (kernel,), (t,))
        return jax.grad(loss, 1)(function, x, kernel), second

    close(*jax.jit(lambda x, kernel: (derivatives(ours, x, kernel), derivatives(theirs, x, kernel)))(x, kernel))


@pytest.mark.parametrize("options", [{}, {"preferred_element_type": jnp.float32}], ids=["bfloat16", "to-float32"])
@pytest.mark.parametrize("groups", [1, 4], ids=["dense", "depthwise"])
def test_half_precision(options, groups):
    x, kernel = arrays((2, 5, 5, 4), (3, 3, 4 // groups, 4), dtype=jnp.bfloat16)
    ours, _ = both(2, (1, 1), "SAME", feature_group_count=groups, **options)
    _, exact = both(2, (1, 1), "SAME", feature_group_count=groups)
    y = jax.jit(ours)(x, kernel)
    assert y.dtype == options.get("preferred_element_type", jnp.bfloat16)
    expected = jax.jit(exact)(x.astype(np.float32), kernel.astype(np.float32))
    np.testing.assert_allclose(np.asarray(y, np.float32), expected, rtol=2e-2, atol=2e-2)
    gradient = jax.jit(jax.grad(lambda k: jnp.sum(ours(x, k)).astype(jnp.float32)))(kernel)
    assert gradient.dtype == jnp.bfloat16


FOREIGN = {
    "dilated input": ((2, 4, 4, 3), (3, 3, 3, 2), {"lhs_dilation": (2, 2), "padding": ((1, 1), (1, 1))}),
    "channels first": ((2, 3, 5, 5), (2, 3, 3, 3), {"dimension_numbers": None}),
    "batch groups": ((4, 5, 5, 3), (3, 3, 3, 2), {"batch_group_count": 2}),
    "a huge kernel": ((1, 14, 14, 1), (12, 12, 1, 1), {}),
    "an empty result": ((1, 2, 2, 1), (3, 3, 1, 1), {}),
}


@pytest.mark.parametrize("case", FOREIGN, ids=lambda case: case.replace(" ", "-"))
def test_everything_else_is_left_to_lax(case):
    x_shape, kernel_shape, options = FOREIGN[case]
    x, kernel = arrays(x_shape, kernel_shape, dtype=np.float32)
    options = {"window_strides": (1, 1), "padding": "VALID", "dimension_numbers": NUMBERS[2], **options}
    np.testing.assert_array_equal(matmul_conv(x, kernel, **options), lax.conv_general_dilated(x, kernel, **options))


def test_errors_are_those_of_lax():
    x, kernel = arrays((2, 5, 5, 4), (3, 3, 3, 4), dtype=np.float32)
    with pytest.raises(ValueError, match="feature"):
        matmul_conv(x, kernel, (1, 1), "VALID", dimension_numbers=NUMBERS[2])
    with pytest.raises(TypeError, match="dtype"):
        matmul_conv(x, np.ones((3, 3, 4, 4), jnp.bfloat16), (1, 1), "VALID", dimension_numbers=NUMBERS[2])


KEY = jax.random.key(0)
LAYERS = {
    "plain": {"kernel_size": (3, 3)},
    "circular": {"kernel_size": (3, 3), "padding": "CIRCULAR"},
    "strided": {"kernel_size": (3, 3), "strides": 2, "padding": 1},
    "grouped": {"kernel_size": (3, 3), "feature_group_count": 2, "use_bias": False},
    "1-D causal": {"kernel_size": (3,), "padding": "CAUSAL", "kernel_dilation": 2},
    "transposed": {"kernel_size": (3, 3), "input_dilation": 2, "padding": 1},
}


@pytest.mark.parametrize("case", cases(LAYERS, {"circular", "grouped", "1-D causal", "transposed"}))
def test_layer_has_the_parameters_and_outputs_of_flax(case, x64):
    options = dict(features=4, param_dtype=jnp.float64, **LAYERS[case])
    (x,) = arrays((2, 8, 2) if case.startswith("1-D") else (2, 8, 8, 2))

    @jax.jit
    def results(x):
        with third_party():
            (y, variables), theirs = (layer(**options).init_with_output(KEY, x) for layer in (Conv, nn.Conv))
            return variables, y, Conv(**options).apply(variables, x[0]), theirs

    variables, y, of_one, (expected, theirs) = results(x)
    close(variables, theirs, atol=1e-14)
    close(y, expected)
    close(of_one, y[0])  # flax adds the batch axis


def test_the_backend_chooses_and_the_user_may(monkeypatch):
    x = jnp.ones((1, 5, 5, 2))

    def used(layer):
        return "conv_general_dilated" in names(lambda x: layer.init_with_output(jax.random.key(0), x)[0], x)

    def pooled():
        return names(lambda x: max_pool(x, (2, 2), (2, 2)), x)

    assert not used(Conv(2, (3, 3)))
    assert "reduce_window_max" not in pooled()
    assert used(Conv(2, (3, 3), conv_general_dilated=lax.conv_general_dilated))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert used(Conv(2, (3, 3)))
    with side_by_side():
        assert not used(Conv(2, (3, 3)))
        assert used(Conv(2, (3, 3), conv_general_dilated=lax.conv_general_dilated))
    assert used(Conv(2, (3, 3)))
    assert not used(Conv(2, (3, 3), conv_general_dilated=matmul_conv))
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with side_by_side():
        assert used(Conv(2, (3, 3)))
    assert "reduce_window_max" in pooled()
    assert Conv(2, (3, 3)) == Conv(2, (3, 3), conv_general_dilated=conv_general_dilated)
    assert hash(Conv(2, (3, 3))) == hash(Conv(2, (3, 3)))


class Net(nn.Module):
    """A convolutional network in small."""

    conv: type = Conv

    @nn.compact
    def __call__(self, x):
        x = nn.relu(self.conv(4, (3, 3), name="first")(x))
        x = max_pool(x, (2, 2), (2, 2))
        x = nn.relu(self.conv(4, (3, 3), padding="VALID", name="second")(x))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


def federated(layout):
    rng = np.random.default_rng(0)
    clients = [
        (rng.normal(size=(n, 8, 8, 1)).astype(np.float32), rng.integers(0, 3, n).astype(np.int32)) for n in (3, 5, 2, 4)
    ]
    data = fjs.datasets.from_clients(clients)
    return lambda model: (
        fjs.make_train(
            task=fjs.classification(model), rounds=2, eval_every=2, cohort=fjs.cohort.full(),
            batches=fjs.local.in_order(2), work=fjs.local.epochs(1), layout=layout,
        ),
        (fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, jax.random.key(0)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained_with_flax():
    train, arguments = federated(fjs.layout.turns())(Net(nn.Conv))
    return jax.jit(train)(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [fjs.layout.turns(), fjs.layout.stacked()], ids=["turns", "stacked"])
def test_federated_training_equals_that_with_flax(layout, trained_with_flax):
    train, arguments = federated(layout)(Net())
    ours = jax.jit(train)(*arguments)
    np.testing.assert_allclose(ours.metrics["loss"], trained_with_flax.metrics["loss"], rtol=1e-5, atol=0)
    close(ours.params, trained_with_flax.params, atol=1e-5)


def test_no_convolution_in_a_vmapped_training_program():
    train, arguments = federated(fjs.layout.stacked())(Net())
    program = jax.jit(train).lower(*arguments).as_text()
    assert "convolution" not in program
    assert "select_and_scatter" not in program
    assert "dot_general" in program


@pytest.mark.slow
def test_derivative_through_training():
    train, (_, data, key) = federated(fjs.layout.turns())(Net())

    def final(rate):
        return train(fjs.fedavg(client_optimizer=fjs.optim.sgd(rate)), data, key).metrics["loss"][-1]

    reverse, forward = jax.jit(jax.grad(final))(0.1), jax.jit(jax.jacfwd(final))(0.1)
    assert reverse != 0
    np.testing.assert_allclose(reverse, forward, rtol=1e-4)


POOLS = {
    "halving": ((2, 6, 8, 3), (2, 2), (2, 2), "VALID"),
    "uneven": ((2, 7, 9, 3), (2, 3), (2, 3), "VALID"),
    "uneven same": ((2, 7, 9, 3), (2, 3), (2, 3), "SAME"),
    "overlapping": ((2, 7, 7, 3), (3, 3), (2, 2), "SAME"),
    "explicit": ((2, 6, 6, 3), (3, 3), (2, 2), ((1, 1), (0, 1))),
    "stride one": ((2, 5, 5, 3), (2, 2), None, "VALID"),
    "whole image": ((2, 4, 4, 3), (4, 4), None, "VALID"),
    "large": ((1, 12, 12, 2), (9, 9), (1, 1), "SAME"),
    "1-D": ((2, 8, 3), (2,), (2,), "VALID"),
    "no batch": ((6, 6, 3), (2, 2), (2, 2), "VALID"),
    "two batch axes": ((2, 2, 4, 4, 3), (2, 2), (2, 2), "VALID"),
}


OTHERS = {"uneven same", "overlapping", "explicit", "whole image", "large", "1-D", "no batch", "two batch axes"}


@pytest.mark.parametrize("case", cases(POOLS, OTHERS))
def test_pooling_is_that_of_flax_with_its_derivative(case, x64):
    shape, *geometry = POOLS[case]
    (x,) = arrays(shape)

    def everything(x, pool):
        y, pull = jax.vjp(lambda x: pool(x, *geometry), x)
        return y, pull(jnp.cos(y))

    @jax.jit
    def results(x):
        with third_party():
            expected = everything(x, nn.max_pool)
        return everything(x, max_pool), expected

    close(*results(x), atol=1e-12)


def test_the_first_of_equal_values_gets_the_derivative():
    values = np.array(list(itertools.product([0.0, 1.0], repeat=4)), np.float32)

    @jax.jit
    @jax.vmap
    def gradients(x):
        return [jax.grad(lambda x, pool=pool: jnp.sum(pool(x, (2, 2), (2, 2))))(x) for pool in (max_pool, nn.max_pool)]

    ours, theirs = gradients(values.reshape(-1, 1, 2, 2, 1))
    for given, gradient in zip(values, np.asarray(ours), strict=True):
        assert np.flatnonzero(gradient).tolist() == [int(np.argmax(given))]
    np.testing.assert_array_equal(ours, theirs)


def test_the_largest_of_nan_is_nan():
    x = np.tile(np.arange(4, dtype=np.float32), (4, 1))
    np.fill_diagonal(x, np.nan)
    assert np.isnan(jax.jit(lambda x: max_pool(x, (2, 2)))(x.reshape(4, 2, 2, 1))).all()


def test_integers_can_be_pooled():
    x = np.arange(-20, -4, dtype=np.int32).reshape(1, 4, 4, 1)
    pooled = np.asarray(jax.jit(lambda x: max_pool(x, (3, 3), (2, 2), "SAME"))(x))
    np.testing.assert_array_equal(pooled[0, :, :, 0], [[-10, -9], [-6, -5]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 0),), "a stride of at least 1"),
        (((2, 2), (2,)), "for each of its spatial axes"),
        (((2, 2, 2, 2),), "for each of its spatial axes; channels are last"),
        (((2, 2), (2, 2), ((0, 0),)), r"\(low, high\), for each"),
        (((9, 9),), "no window fits into"),
    ],
    ids=["zero", "strides", "rank", "padding", "size"],
)
def test_wrong_windows_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        max_pool(np.ones((1, 4, 4, 1), np.float32), *arguments)
