"""The papers' models: parameter counts, inputs, dtypes, dropout and training under a client axis."""

import functools
import inspect
import types
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.descriptions import build, describe
from fedjax_sim.diagnostics.base import Diagnostic, RoundView
from fedjax_sim.models import calling
from fedjax_sim.models.cnn import _block
from fedjax_sim.models.recurrent import _states
from fedjax_sim.optim import third_party

models = fjs.models


def tokens(*shape: int, high: int = 80, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.int32)


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(size=shape).astype(np.float32)


def parameters(model: nn.Module, x: jax.Array) -> int:
    """How many, without allocating them."""
    with third_party():
        shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    assert set(shapes) <= {"params", "batch_stats"}
    return sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


grey, colour, large, text = zeros(1, 28, 28, 1), zeros(1, 32, 32, 3), zeros(1, 224, 224, 3), np.zeros((1, 80), np.int32)

COUNTS = {
    "FEMNIST CNN (Reddi et al. 2021, appendix)": (models.FemnistCNN(), grey, 1_206_590),
    "FEMNIST CNN without channel axis": (models.FemnistCNN(), grey[..., 0], 1_206_590),
    "CIFAR CNN (FedAWARE's code)": (models.CifarCNN(), colour, 122_570),
    "digits CNN (FedBN's code)": (models.DigitsCNN(), zeros(1, 28, 28, 3), 14_219_210),
    "LeNet (NIID-Bench's code)": (models.LeNet(), grey, 44_426),
    "LeNet (PFLlib's FedAvgCNN)": (models.LeNet(channels=(32, 64), hidden=(512,)), grey, 582_026),
    "VGG-11 (FedNova's code)": (models.VGG11(), colour, 9_750_922),
    "VGG-11, one dense layer": (models.VGG11(hidden=(), dropout=0.0), colour, 9_225_610),
    "VGG-11, one dense layer, norms": (models.VGG11(hidden=(), dropout=0.0, groups=32), colour, 9_231_114),
    "ResNet-18, CIFAR-10": (models.ResNet18(), colour, 11_173_962),
    "ResNet-18, CIFAR-100": (models.ResNet18(100), colour, 11_220_132),
    "ResNet-18, ImageNet": (models.ResNet18(1000, imagenet_stem=True), large, 11_689_512),
    "char LSTM (LEAF)": (models.CharLSTM(), text, 132_720),
    "char LSTM (Reddi et al. 2021, 90 characters)": (models.CharLSTM(90, hidden=256), text, 820_522),
    "sentiment LSTM": (models.SentimentLSTM(), zeros(1, 25, 300), 1_103_452),
    "sentiment LSTM, frozen table": (models.SentimentLSTM(table=models.random_table(40)), text[:, :25], 1_103_452),
    "sentiment LSTM, no bottleneck": (models.SentimentLSTM(bottleneck=None), zeros(1, 25, 300), 1_096_194),
    "Pythia-70M without the next-token matrix": (models.GPTNeoX(), text, 70_426_624 - 50_304 * 512),
    "Pythia-70M classifier": (models.GPTNeoXClassifier(4), text, 70_426_624 - 50_304 * 512 + 512 * 4),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    model, x, count = COUNTS[name]
    assert parameters(model, x) == count


DECODER = models.GPTNeoX(vocabulary=11, width=16, layers=1, heads=2, feedforward=24, rotary=0.5)

# Narrow ones: the model, its input for four examples, and its number of classes.
SMALL: dict[str, tuple[Any, jax.Array]] = {
    "FemnistCNN": (models.FemnistCNN(3, dropout=(0.25, 0.5), channels=(2, 4), hidden=8), images(4, 8, 8, 1)),
    "CifarCNN": (models.CifarCNN(3, channels=(2, 4, 4), hidden=8), images(4, 18, 18, 3)),
    "VGG11": (models.VGG11(3, hidden=(8,), groups=1, width=2), images(4, 32, 32, 3)),
    "ResNet18": (models.ResNet18(3, groups=2, width=4), images(4, 8, 8, 3)),
    "ResNet18 for ImageNet": (models.ResNet18(3, groups=2, width=4, imagenet_stem=True), images(4, 20, 20, 3)),
    "CharLSTM": (models.CharLSTM(7, embedding=3, hidden=5), tokens(4, 6, high=7)),
    "SentimentLSTM": (models.SentimentLSTM(3, hidden=5, bottleneck=4), images(4, 6, 3)),
    "SentimentLSTM with a table": (
        models.SentimentLSTM(3, models.random_table(9, 4), hidden=5, bottleneck=None),
        tokens(4, 6, high=9),
    ),
    "GPTNeoXClassifier": (models.GPTNeoXClassifier(3, DECODER, padding=1), tokens(4, 7, high=11)),
}


def initial(model: nn.Module, x: jax.Array) -> Any:
    with third_party():
        return jax.jit(model.init)(jax.random.key(0), x)


def drawn(model: nn.Module, x: Any) -> Any:
    """Parameters anywhere, without compiling how the model begins."""
    with third_party():
        shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype), shapes)


@functools.partial(jax.jit, static_argnums=0)
def logits(model: nn.Module, params: Any, x: jax.Array) -> jax.Array:
    with third_party():
        return model.apply(params, x)  # type: ignore[return-value]


def data_of(x: jax.Array, clients: int = 2) -> fjs.FederatedDataset:
    rows = np.asarray(x)
    labels = np.arange(len(rows)) % 3
    return fjs.datasets.from_clients([(rows[c::clients], labels[c::clients]) for c in range(clients)], num_classes=3)


class Blocks(nn.Module):
    """The two kinds of blocks that ResNet18 has eight of."""

    num_classes: int = 3

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        model = models.ResNet18(self.num_classes, groups=2, width=4)
        x = _block(model, _block(model, x, 4, 1, "same"), 8, 2, "halved")
        return nn.Dense(self.num_classes)(jnp.mean(x, axis=(1, 2)))


UNDER_AXIS = {**SMALL, "the blocks of ResNet18": (Blocks(), images(4, 4, 4, 4))}
HEAVY = ("VGG11", "ResNet18", "ResNet18 for ImageNet")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.nightly if n in HEAVY else pytest.mark.slow) for n in UNDER_AXIS],
)
def test_training_under_a_client_axis(name: str) -> None:
    """Gradients of two clients at once are those of one after the other, and reach every parameter."""
    model, x = UNDER_AXIS[name]
    task = fjs.classification(model)
    params = initial(model, x)
    clients = {"x": np.stack([x[:2], x[2:]]), "y": np.array([[0, 1], [2, 1]], np.int32)}

    def gradient(params: Any, examples: Any, key: jax.Array) -> Any:
        return jax.grad(lambda p: jnp.mean(task.losses(p, examples, key)))(params)

    keys = jax.random.split(jax.random.key(5), 2)
    both = jax.tree.map(np.asarray, jax.jit(jax.vmap(gradient, (None, 0, 0)))(params, clients, keys))
    single = jax.jit(gradient)
    for client in range(2):
        alone = single(params, {name: leaf[client] for name, leaf in clients.items()}, keys[client])
        for path, leaf in jax.tree_util.tree_leaves_with_path(alone):
            assert np.any(leaf), path
        for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[client], b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "ResNet18 for ImageNet" else ()) for n in SMALL]
)
def test_the_dtype_of_the_parameters_is_that_of_the_logits(name: str, x64: None) -> None:
    model, x = SMALL[name]
    if isinstance(model, models.GPTNeoXClassifier):
        model = model.clone(decoder=model.decoder.clone(param_dtype=jnp.float64))
    else:
        model = model.clone(param_dtype=jnp.float64)
    with third_party():
        out, shapes = jax.eval_shape(model.init_with_output, jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float64")}
    assert (out.shape, out.dtype) == ((4, model.num_classes), jnp.float64)


STARTED = {
    "MLP": (models.MLP(3, hidden=(8,)), images(4, 5)),
    "LeNet": (models.LeNet(3, channels=(2, 4), hidden=(8,)), images(4, 16, 16, 1)),
    **SMALL,
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "MLP" else pytest.mark.slow) for n in STARTED])
def test_models_in_bfloat16_start_where_those_in_single_precision_do(name: str) -> None:
    model, x = STARTED[name]

    def started(dtype: Any) -> Any:
        if isinstance(model, models.GPTNeoXClassifier):
            return initial(model.clone(decoder=model.decoder.clone(param_dtype=dtype)), x)
        return initial(model.clone(param_dtype=dtype), x)

    half, whole = started(jnp.bfloat16), started(jnp.float32)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.bfloat16)), half["params"], whole["params"])


@pytest.mark.filterwarnings("error")
def test_pythons_float_is_a_dtype_of_parameters() -> None:
    assert {leaf.dtype.name for leaf in jax.tree.leaves(initial(models.MLP(3, (4,), float), images(4, 5)))} == {
        "float32"
    }


@pytest.mark.parametrize("name", SMALL)
def test_descriptions_round_trip(name: str) -> None:
    model, _ = SMALL[name]
    assert build(describe(model)) == model


def test_uint8_images_are_accepted() -> None:
    model = models.FemnistCNN(3, channels=(2, 2), hidden=4)
    x = tokens(2, 8, 8, high=256).astype(np.uint8)
    params = drawn(model, x)
    np.testing.assert_array_equal(logits(model, params, x), logits(model, params, x[..., None].astype(np.float32)))


# Against the definitions, written out.


def test_femnist_cnn_is_the_network_of_the_table() -> None:
    model = models.FemnistCNN(3, channels=(2, 4), hidden=8)
    x = images(2, 8, 10, 1)
    params = drawn(model, x)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])

    def conv(x: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        return np.maximum(np.einsum("bhwcij,ijco->bhwo", windows, layer["kernel"]) + layer["bias"], 0)

    h = conv(conv(np.asarray(x, np.float64), p["Conv_0"]), p["Conv_1"])
    b, height, width, c = h.shape
    h = h.reshape(b, height // 2, 2, width // 2, 2, c).max(axis=(2, 4)).reshape(b, -1)
    h = np.maximum(h @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"], 0)
    expected = h @ p["Dense_1"]["kernel"] + p["Dense_1"]["bias"]
    np.testing.assert_allclose(logits(model, params, x), expected, rtol=1e-5, atol=1e-6)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def test_char_lstm_is_the_recurrence() -> None:
    model = models.CharLSTM(7, embedding=3, hidden=5)
    x = tokens(4, 6, high=7)
    params = initial(model, x)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    assert np.array_equal(p["LSTM_0"]["bias"], np.repeat([0.0, 1.0, 0.0, 0.0], 5))
    states = p["Embed_0"]["embedding"][np.asarray(x)]
    for layer in ("LSTM_0", "LSTM_1"):
        h, c, out = np.zeros((4, 5)), np.zeros((4, 5)), []
        for t in range(6):
            i, f, g, o = np.split(
                np.concatenate([states[:, t], h], axis=1) @ p[layer]["kernel"] + p[layer]["bias"], 4, axis=1
            )
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out.append(h)
        states = np.stack(out, axis=1)
    expected = states[:, -1] @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]
    np.testing.assert_allclose(logits(model, params, x), expected, rtol=1e-5, atol=1e-6)


def plain_states(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    """The recurrence without a rule of its own."""
    h = c = jnp.zeros((inputs.shape[1], kernel.shape[0]), inputs.dtype)
    out = []
    for z in inputs:
        i, f, g, o = jnp.split(z + h @ kernel, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        out.append(h)
    return jnp.stack(out)


def test_derivatives_of_the_recurrence(x64: None) -> None:
    """Value, reverse mode, forward mode and a Hessian-vector product, as those of the loop written out."""
    rng, shapes = np.random.default_rng(0), ((3, 2, 12), (3, 12), (3, 2, 3), (3, 2, 12), (3, 12))
    inputs, kernel, mixing, d_inputs, d_kernel = (rng.normal(size=shape) for shape in shapes)

    def everything(states: Any) -> Any:
        def f(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
            return jnp.sum(mixing * states(inputs, kernel) ** 2)

        def slope(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
            return jax.jvp(f, (inputs, kernel), (d_inputs, d_kernel))[1]

        return (
            states(inputs, kernel), jax.grad(f, (0, 1))(inputs, kernel), slope(inputs, kernel),
            jax.grad(slope, (0, 1))(inputs, kernel),
        )  # fmt: skip

    got, expected = (jax.jit(lambda s=s: everything(s))() for s in (_states, plain_states))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_the_decoder_is_causal() -> None:
    x = tokens(2, 7, high=11)
    params, other = drawn(DECODER, x), x.copy()
    other[:, 4] = (x[:, 4] + 1) % 11
    before, after = (np.asarray(logits(DECODER, params, of)) for of in (x, other))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.all(np.any(before[:, 4:] != after[:, 4:], axis=-1))


def test_padding_at_the_end_changes_nothing() -> None:
    padded = models.GPTNeoXClassifier(3, DECODER, padding=1)
    whole = padded.clone(padding=None)
    x = tokens(2, 5, high=9) + 2  # no padding inside
    params = drawn(whole, x)
    longer = np.pad(np.concatenate([x, np.ones_like(x[:1])]), ((0, 0), (0, 3)), constant_values=1)
    *found, empty = logits(padded, params, longer)
    np.testing.assert_allclose(found, logits(whole, params, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(empty, logits(whole, params, np.ones((1, 1), np.int32))[0], rtol=1e-5, atol=1e-6)


# Dropout.


class Updates(Diagnostic):
    """The clients' updates themselves."""

    observes: ClassVar[frozenset[str]] = frozenset({"updates"})

    def measure(self, view: RoundView) -> dict[str, jax.Array]:
        return {"raw_updates": view.updates}

    def names(self) -> tuple[str, ...]:
        return ("raw_updates",)


class Masked(fjs.Task):
    """A loss whose gradient is the dropout mask: 2 or 0 in each of 64 coordinates."""

    def init(self, key: jax.Array, dataset: fjs.FederatedDataset) -> Any:
        return jnp.ones(64)

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        rngs = {} if key is None else {"dropout": key}
        kept = models.Dropout(0.5).apply({}, params, rngs=rngs)
        return jnp.broadcast_to(jnp.sum(kept), examples["x"].shape[:1])


STEPS = 3


def masks(layout: Any) -> Any:
    """Those of every round, client and step, [rounds * clients * steps, 64]."""
    data = fjs.datasets.from_clients([(np.ones((1, 64)), [0])] * 3, num_classes=3)
    train = fjs.make_train(
        task=Masked(), rounds=2, cohort=fjs.cohort.full(), work=fjs.local.steps(STEPS), layout=layout,
        batches=fjs.local.full_batch(),
        diagnostics=[Updates()], eval_every=2,
    )  # fmt: skip
    # step k moves by 2^-k times its mask: the digits of y - x are the masks, in two rounds and of three clients
    result = jax.jit(train)(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.5, decay=0.5)), data, jax.random.key(0))
    digits = -np.asarray(result.rounds["raw_updates"]).reshape(6, 1, 64) * 2 ** (STEPS - 1)
    np.testing.assert_allclose(digits, np.rint(digits), atol=1e-5)
    return (np.rint(digits).astype(int) >> np.arange(STEPS)[:, None] & 1).reshape(-1, 64)


@pytest.mark.slow
def test_every_client_and_step_has_its_own_mask() -> None:
    found = masks(fjs.layout.stacked())
    assert len(np.unique(found, axis=0)) == 6 * STEPS
    assert np.all((found.mean(axis=1) > 0.2) & (found.mean(axis=1) < 0.8))
    np.testing.assert_array_equal(masks(fjs.layout.turns()), found)  # the clients' own, not the slots'


@pytest.mark.slow
def test_evaluation_is_deterministic_and_whole() -> None:
    model = models.FemnistCNN(3, dropout=(0.25, 0.5), channels=(2, 4), hidden=8)
    x = images(4, 8, 8, 1)
    params = drawn(model, x)
    examples = {"x": x, "y": np.zeros(4, np.int32)}
    task, without = fjs.classification(model), fjs.classification(model.clone(dropout=(0.0, 0.0)))
    evaluated, plain = jax.jit(lambda: (task.losses(params, examples), without.losses(params, examples)))()
    np.testing.assert_array_equal(evaluated, plain)
    losses = jax.jit(task.losses)
    trained = [np.asarray(losses(params, examples, jax.random.key(seed))) for seed in (3, 3, 4)]
    np.testing.assert_array_equal(trained[0], trained[1])
    assert not np.array_equal(trained[0], trained[2])
    assert not np.array_equal(trained[0], evaluated)


def test_rate_zero_leaves_nothing_in_the_program() -> None:
    program = str(
        jax.make_jaxpr(lambda x, key: models.Dropout(0.0).apply({}, x, rngs={"dropout": key}))(
            np.ones(3, np.float32), jax.random.key(0)
        )
    )
    assert "random" not in program


# Frozen word vectors.


@pytest.mark.slow
def test_frozen_vectors_are_no_parameters() -> None:
    """What is not in the parameters, no gradient, weight decay, average or server momentum can reach."""
    table = models.random_table(13, 4)
    model = models.SentimentLSTM(3, table, hidden=5, bottleneck=None)
    x = tokens(4, 6, high=13)
    params = drawn(model, x)
    embedded = model.clone(table=None), table.vectors[x]
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, drawn(*embedded))
    np.testing.assert_array_equal(logits(model, params, x), logits(embedded[0], params, embedded[1]))


def test_tables_compare_by_content() -> None:
    vectors = np.arange(6.0).reshape(3, 2)
    table = models.frozen_table(vectors)
    assert table == models.frozen_table(vectors.copy())
    assert hash(table) == hash(models.frozen_table(vectors.copy()))
    assert models.SentimentLSTM(2, table) == models.SentimentLSTM(2, models.frozen_table(vectors.copy()))
    others = [vectors.astype(np.float32), vectors.reshape(2, 3), vectors + 1]
    assert all(table != models.frozen_table(other) for other in others)
    vectors[0, 0] = 7.0  # the caller's array, not the table's
    assert table.vectors[0, 0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        table.vectors[0, 0] = 1.0


def test_random_tables() -> None:
    table = models.random_table(2_000, 100, seed=3)
    assert table == models.random_table(2_000, 100, seed=3) != models.random_table(2_000, 100, seed=4)
    assert table.vectors.dtype == np.float32
    np.testing.assert_allclose(np.mean(np.sum(table.vectors**2, axis=1)), 1.0, atol=0.02)


# Bad arguments and bad input.

BAD_ARGUMENTS = {
    "classes": (lambda: models.FemnistCNN(0), r"FemnistCNN\(num_classes=...\) is 0"),
    "channels": (lambda: models.CifarCNN(10, channels=(3, 4)), r"\(3, 4\): give a tuple of 3 numbers"),
    "rates": (lambda: models.FemnistCNN(dropout=0.5), r"dropout=...\) is 0.5: give a tuple of 2 numbers"),
    "rate of one": (lambda: models.FemnistCNN(dropout=(0.0, 1.0)), r"is 1.0: it must be in \[0, 1\)"),
    "dropout": (lambda: models.Dropout(-0.1), r"Dropout\(rate=...\) is -0.1"),
    "hidden": (lambda: models.VGG11(hidden=512), r"VGG11\(hidden=...\) is 512: give a tuple of numbers"),
    "groups of VGG": (lambda: models.VGG11(groups=5), r"VGG11\(groups=5\): it must divide the 64 channels"),
    "groups of ResNet": (lambda: models.ResNet18(10, 48), r"ResNet18\(groups=48\): it must divide the 64 channels"),
    "stem": (lambda: models.ResNet18(10, imagenet_stem="yes"), r"imagenet_stem=...\) is 'yes'"),
    "layers": (lambda: models.CharLSTM(layers=0), r"CharLSTM\(layers=...\) is 0"),
    "table": (lambda: models.SentimentLSTM(table=np.ones(2)), r"table=...\) is array.*: give fjs.models.frozen_table"),
    "bottleneck": (lambda: models.SentimentLSTM(bottleneck=0), r"bottleneck=...\) is 0"),
    "table's rank": (lambda: models.frozen_table(np.ones(3)), r"shape \[3\]: give \[words, width\]"),
    "table's dtype": (lambda: models.frozen_table([[1, 2]]), r"are int64: give floating-point"),
    "table's values": (lambda: models.frozen_table([[np.nan]]), r"NaN or infinite"),
    "words": (lambda: models.random_table(0), r"random_table\(words=...\) is 0"),
    "heads": (lambda: models.GPTNeoX(heads=7), r"GPTNeoX\(heads=7\): it must divide width=512"),
    "rotary": (lambda: models.GPTNeoX(rotary=0.05), r"rotates 3 of a head's 64 coordinates"),
    "rotary above one": (lambda: models.GPTNeoX(rotary=1.5), r"GPTNeoX\(rotary=...\) is 1.5"),
    "decoder": (lambda: models.GPTNeoXClassifier(4, decoder=None), r"decoder=...\) is None: give fjs.models.GPTNeoX"),
    "padding": (lambda: models.GPTNeoXClassifier(4, padding=50_304), r"padding=50304\): tokens are 0 to 50303"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(case: str) -> None:
    make, message = BAD_ARGUMENTS[case]
    with pytest.raises((TypeError, ValueError), match=message):
        make()


BAD_INPUTS = {
    "flat images": (models.FemnistCNN(), zeros(2, 784), r"FemnistCNN got features of shape \[784\].*flat=False"),
    "small images": (models.VGG11(), grey, r"VGG11 got images of 28 x 28: 32 x 32 is the least"),
    "small images, CIFAR CNN": (models.CifarCNN(), zeros(1, 17, 20, 3), "17 x 20: 18 x 18 is the least"),
    "small images, LeNet": (models.LeNet(), zeros(1, 15, 28, 1), "15 x 28: 16 x 16 is the least"),
    "channels first": (models.ResNet18(groups=2, width=8), zeros(1, 3, 32, 32), r"channels first: .* x.transpose"),
    "float tokens": (models.CharLSTM(), zeros(2, 5), r"CharLSTM got float32 features: it needs integer"),
    "one token": (models.CharLSTM(), np.zeros(2, np.int32), r"CharLSTM got features of shape \[\].*token ids \[T\]"),
    "no tokens": (models.GPTNeoXClassifier(3, DECODER), np.zeros((2, 0), np.int32), r"features of shape \[0\]"),
    "no character": (models.CharLSTM(9), tokens(2, 5) + 9, r"the token \d+: those of CharLSTM are 0 to 8"),
    "a token below 0": (models.GPTNeoXClassifier(3, DECODER), tokens(2, 5) * 0 - 1, "the token -1: those of GPTNeoX"),
    "no word": (models.SentimentLSTM(table=models.random_table(3)), tokens(2, 5) + 3, "SentimentLSTM are 0 to 2"),
    "tokens for vectors": (models.SentimentLSTM(), tokens(2, 5), r"SentimentLSTM got.*\[5\].*word vectors"),
    "vectors for tokens": (
        models.SentimentLSTM(table=models.random_table(3)), zeros(2, 5, 300), r"\[5, 300\].*token ids",
    ),
}  # fmt: skip


def test_a_token_below_zero_is_not_the_last_one() -> None:
    model = models.CharLSTM(9, hidden=2)
    params = drawn(model, tokens(1, 3))
    with jax.debug_nans(False):
        found = logits(model, params, np.array([[1, 2, 8], [1, 2, -1], [1, 2, 9]], np.int32))
    np.testing.assert_array_equal(np.isnan(found).any(axis=1), [False, True, True])


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_refused_before_compiling(case: str) -> None:
    model, x, message = BAD_INPUTS[case]
    data = fjs.datasets.from_ids((np.asarray(x), np.zeros(len(x), int)), np.arange(len(x)) % 2)
    with pytest.raises((TypeError, ValueError), match=message):
        fjs.simulate(
            fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, task=fjs.classification(model), rounds=1,
            cohort=fjs.cohort.full(), work=fjs.local.steps(1), batch_size=1,
        )  # fmt: skip


@pytest.mark.slow
def test_lenet_by_its_definition() -> None:
    model, x = models.LeNet(3, channels=(2, 3), hidden=(5,)), images(2, 16, 17, 1)
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0), x)["params"])
    for name, inputs in {"Conv_0": 25, "Conv_1": 50, "Dense_0": 3, "Dense_1": 5}.items():
        assert 0.5 * inputs**-0.5 < np.abs(params[name]["kernel"]).max() <= inputs**-0.5
        assert 0 < np.abs(params[name]["bias"]).max() <= inputs**-0.5
    y = x.astype(np.float64)
    for layer in (params["Conv_0"], params["Conv_1"]):
        windows = np.lib.stride_tricks.sliding_window_view(y, (5, 5), axis=(1, 2))
        y = np.maximum(np.einsum("bhwcij,ijco->bhwo", windows, layer["kernel"]) + layer["bias"], 0)
        b, h, w, c = y.shape
        y = y[:, : h // 2 * 2, : w // 2 * 2].reshape(b, h // 2, 2, w // 2, 2, c).max(axis=(2, 4))
    y = np.maximum(y.reshape(2, -1) @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"], 0)
    expected = y @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
    np.testing.assert_allclose(jax.jit(model.apply)({"params": params}, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_digits_cnn_moves_its_statistics_in_training_alone() -> None:
    model = models.DigitsCNN(3, channels=(2, 3, 2), hidden=(5,))
    x, task = images(4, 8, 8, 3), fjs.classification(model)
    params = jax.jit(task.init)(jax.random.key(0), data_of(x))
    first = params["params"]["Conv_0"]
    assert np.abs(first["kernel"]).max() <= 75**-0.5 < 1.05 * np.abs(first["kernel"]).max()
    assert 0 < np.abs(first["bias"]).max() <= 75**-0.5
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))), (5, 5), axis=(1, 2))
    convolved = np.einsum("bhwcij,ijco->bhwo", windows, first["kernel"])
    means, variances = (of(convolved, axis=(0, 1, 2)) for of in (np.mean, np.var))
    means += np.asarray(first["bias"])
    examples = {"x": x, "y": np.zeros(4, np.int32)}

    @jax.jit
    def updated(params):
        in_training = task.updated_statistics(params, examples, jax.random.key(1), np.ones(4, np.float32))
        return in_training, task.updated_statistics(params, examples, None)

    moved, evaluated = updated(params)
    np.testing.assert_allclose(moved["BatchNorm_0"]["mean"], 0.1 * means, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moved["BatchNorm_0"]["var"], 0.9 + 0.1 * variances, rtol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, evaluated, params["batch_stats"])


def test_bytes_are_scaled_inside_the_model() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 5, 5, 3)).astype(np.uint8)
    inner = models.MLP(2, hidden=(4,))
    wrapped = models.FromBytes(inner, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    data = fjs.datasets.from_clients([(pixels, [0, 1, 1, 0])])
    task = fjs.classification(wrapped)
    params = drawn(wrapped, pixels)
    kernels = params["params"]["model"]
    scaled = (pixels / np.float32(255) - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.6, 0.7])
    direct = logits(inner, {"params": kernels}, scaled.astype(np.float32))
    np.testing.assert_allclose(jax.jit(task.outputs)(params, data.examples), direct, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="float32 features: it scales bytes"):
        wrapped.init(jax.random.key(0), scaled.astype(np.float32))
    with pytest.raises(ValueError, match=r"std=\.\.\."):
        models.FromBytes(inner, std=(0.0,))
    with pytest.raises(TypeError, match=r"the class MLP: give an object of it, MLP\(\.\.\.\)"):
        models.FromBytes(models.MLP)


def test_without_assertions_flax_keeps_its_interceptors_and_nothing_runs() -> None:
    """The module as python -O compiles it: a process of its own would compile all of JAX anew."""
    without = types.ModuleType("fedjax_sim.models.calling")
    exec(compile(inspect.getsource(calling), "calling", "exec", optimize=1), vars(without))
    with pytest.raises(RuntimeError, match="python -O: flax takes its interceptors back in an assert"):
        without.intercepted(None)
