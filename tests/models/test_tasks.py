"""Tasks of flax modules: labels with axes, regression, modules that are told when they train."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_sim as fjs
from fedjax_sim.models.shapes import check_values
from fedjax_sim.models.task import Batch


class Positions(nn.Module):
    """Logits for every position of a sequence of integers."""

    classes: int = 5
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.classes, dtype=self.dtype)(jax.nn.one_hot(x, 7))


class Line(nn.Module):
    """One output, a vector of outputs, or none but the batch axis."""

    outputs: int = 1
    squeezed: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(self.outputs)(x)
        return y[:, 0] if self.squeezed else y


@functools.cache
def sequences():
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 7, (n, 6)), rng.integers(0, 5, (n, 6))) for n in (4, 9, 2)]
    return fjs.datasets.from_clients(clients)


@functools.cache
def real_targets(outputs=None):
    rng = np.random.default_rng(0)
    shape = () if outputs is None else (outputs,)
    return fjs.datasets.from_clients(
        [(rng.normal(size=(n, 3)).astype("f"), rng.normal(size=(n, *shape)).astype("f")) for n in (4, 9, 2)]
    )


def described(task, data):
    """Parameters anywhere, without compiling how the model begins."""
    shapes = jax.eval_shape(lambda: task.init(jax.random.key(1), data))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(leaf.dtype), shapes)


def labelled(y):
    return fjs.datasets.from_clients([(np.ones((3, 4), np.float32), np.asarray(y))])


def test_labels_with_axes() -> None:
    data, task = sequences(), fjs.classification(Positions())
    task.check(data)
    params = described(task, data)
    x, y = np.asarray(data.examples["x"]), np.asarray(data.examples["y"])
    kernel, bias = params["params"]["Dense_0"]["kernel"], params["params"]["Dense_0"]["bias"]
    logits = np.asarray(kernel)[x] + np.asarray(bias)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    losses = -np.log(np.take_along_axis(probabilities, y[..., None], -1))[..., 0].mean(axis=1)
    values = jax.jit(task.values)(params, data.examples)
    np.testing.assert_allclose(values["loss"], losses, rtol=2e-5)
    accuracy = (logits.argmax(-1) == y).mean(axis=1)
    np.testing.assert_allclose(values["accuracy"], accuracy, rtol=1e-6)
    table = data.statistics().label_table
    assert table is not None
    assert table.sum() == y.size


@pytest.mark.parametrize(("outputs", "model"), [(None, Line()), (None, Line(squeezed=True)), (2, Line(2))])
def test_regression(outputs, model) -> None:
    data, task = real_targets(outputs), fjs.regression(model, weight_decay=0.1)
    task.check(data)
    params = described(task, data)
    kernel, bias = (params["params"]["Dense_0"][name] for name in ("kernel", "bias"))
    errors = np.asarray(data.examples["x"]) @ kernel + bias - np.asarray(data.examples["y"]).reshape(15, -1)

    @jax.jit
    def values(params, batch):
        return task.losses(params, batch.examples), task.metrics(params, batch.examples), task.batch_loss(params, batch)

    losses, metrics, found = values(params, Batch(data.examples, np.ones(15, np.float32), np.int32(15)))
    np.testing.assert_allclose(losses, (errors**2).sum(1) / 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["mse"], (errors**2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(metrics["mae"], np.abs(errors).mean(1), rtol=1e-5)
    objective = (errors**2).sum() / 2 / 15 + 0.1 * ((kernel**2).sum() + (bias**2).sum())
    assert float(found) == pytest.approx(float(objective), rel=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_losses_and_penalties_of_half_precision_keep_their_digits(dtype) -> None:
    """A loss of 0.0003 was 0 with a gradient of 0 in its logit, and a target of 2000.4 was 2000."""
    one, zero, label = np.ones((1, 1), dtype), np.zeros((1, 1), dtype), np.zeros(1, np.int32)
    large = {"params": {"Dense_0": {"kernel": np.array([[8, 0]], dtype), "bias": np.zeros(2, dtype)}}}
    level = {"params": {"Dense_0": {"kernel": zero, "bias": np.array([2000], dtype)}}}
    of_two = {"params": {"Dense_0": {"kernel": zero, "bias": np.array([-8], dtype)}}}
    classified, told_apart = fjs.classification(Line(2)), fjs.binary_classification(Line(), weight_decay=0.3)
    examples, target = {"x": one, "y": label}, {"x": one, "y": np.array([2000.4], "f")}

    @jax.jit
    def found(large, level, of_two):
        slope = jax.grad(lambda params: jnp.sum(classified.losses(params, examples)))(large)
        values = [classified.values(large, examples)["loss"], told_apart.values(of_two, examples)["loss"]]
        return values, slope, fjs.regression(Line()).values(level, target), told_apart.penalty(of_two)

    losses, slope, errors, penalty = found(large, level, of_two)
    np.testing.assert_allclose(losses, np.log1p(np.exp(-8)) * np.ones((2, 1)), rtol=1e-4)
    small = 1 / (1 + np.exp(8))
    np.testing.assert_allclose(slope["params"]["Dense_0"]["bias"].astype("f"), [-small, small], rtol=5e-3)
    np.testing.assert_allclose([errors[name][0] for name in ("loss", "mse", "mae")], [0.08, 0.16, 0.4], rtol=1e-3)
    np.testing.assert_allclose(penalty, 0.3 * 64, rtol=1e-6)


def test_the_accuracy_of_a_sequence_keeps_its_digits_in_half_precision() -> None:
    """The mean over the positions of an example was rounded to bfloat16: two of three were 0.668."""
    task, x = fjs.classification(Positions(2, jnp.bfloat16)), jnp.zeros((2, 3), jnp.int32)
    params = {"params": {"Dense_0": {"kernel": jnp.zeros((7, 2)), "bias": jnp.array([1.0, 0.0])}}}
    values = jax.jit(task.values)(params, {"x": x, "y": jnp.array([[0, 0, 1], [0, 1, 1]])})
    np.testing.assert_allclose(values["accuracy"], [2 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.slow
def test_a_federated_regression_reaches_least_squares() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3)).astype("f")
    y = (x @ np.array([1.0, -2.0, 0.5], "f") + 0.1 * rng.normal(size=60)).astype("f")
    data = fjs.datasets.from_ids((x, y), np.arange(60) % 4)
    train = fjs.make_train(
        task=fjs.regression(Line()), rounds=60, eval_every=60, batches=fjs.local.full_batch(),
        cohort=fjs.cohort.full(), work=fjs.local.epochs(1),
    )  # fmt: skip
    result = jax.jit(train)(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.3)), data, jax.random.key(0))
    design = np.concatenate([x, np.ones((60, 1))], axis=1)
    solution, residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    np.testing.assert_allclose(result.params["params"]["Dense_0"]["kernel"][:, 0], solution[:3], atol=1e-3)
    assert result.metrics["mse"][-1] == pytest.approx(residual[0] / 60, rel=1e-3)


class Told(nn.Module):
    """Doubles its input in training, if it is told of it."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(2)(x) * (2 if train else 1)


class ToldOtherwise(Told):
    @nn.compact
    def __call__(self, x: jax.Array, training: bool = False) -> jax.Array:
        return nn.Dense(2)(x) * (2 if training else 1)


class ToldInOtherWords(Told):
    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool = False) -> jax.Array:
        return nn.Dense(2)(x) * (2 if is_training else 1)


class ToldTheOpposite(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool) -> jax.Array:
        return nn.Dense(2)(nn.Dropout(0.5)(x, deterministic=deterministic))


class Asking(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(x))


@pytest.mark.parametrize(
    "model",
    [Told(), ToldOtherwise(), ToldInOtherWords(), ToldTheOpposite(), Asking()],
    ids=["train", "training", "is_training", "deterministic", "has_rng"],
)
def test_a_module_knows_when_it_trains(model) -> None:
    data = fjs.datasets.from_clients([(np.ones((3, 8), np.float32), [0, 1, 1])])
    task = fjs.classification(model)
    params = described(task, data)

    @jax.jit
    def outputs(params, examples):
        keys = [None, None, jax.random.key(1), jax.random.key(2)]
        return [task.outputs(params, examples, key) for key in keys]

    quiet, again, in_training, other = map(np.asarray, outputs(params, data.examples))
    np.testing.assert_array_equal(quiet, again)
    assert np.abs(in_training - quiet).max() > 1e-3
    if not isinstance(model, Told):
        assert np.abs(in_training - other).max() > 1e-3


@pytest.mark.parametrize(
    ("task", "data", "error", "message"),
    [
        (fjs.classification(Line(3)), sequences(), ValueError, r"logits of one example have the shape.*\[6\]"),
        (fjs.classification(Line(3)), real_targets(), ValueError, "float32: classification needs integers"),
        (
            fjs.classification(Line(3)),
            real_targets(),
            ValueError,
            r"y\.astype\('int32'\), or use fedjax_sim\.regression",
        ),
        (
            fjs.classification(Line(2)),
            fjs.datasets.from_clients([{"image": np.ones((3, 4)), "y": np.arange(3)}]),
            ValueError,
            r"needs examples \{'x': features, 'y': targets\}, and the data set has .*'image': float32\[3, 4\]",
        ),
        (fjs.classification(Line(2)), labelled([[0], [1], [1]]), ValueError, r"label the shape \[1\].*give y\[:, 0\]"),
        (fjs.classification(Line(2)), labelled([[0.0], [1.0], [1.0]]), ValueError, r"float32.*give y\[:, 0\]"),
        (
            fjs.classification(Line(2)),
            labelled(np.eye(2, dtype=int)[[0, 1, 1]]),
            ValueError,
            r"one-hot, give y\.argmax",
        ),
        (fjs.classification(Line(2)), labelled(np.eye(2)[[0, 1, 1]]), ValueError, r"one-hot, give y\.argmax\(-1\)"),
        (fjs.classification(Line(squeezed=True)), labelled([0, 1, 1]), ValueError, r"has the shape \[\].*\[classes\]"),
        (fjs.classification(Positions(4)), sequences(), ValueError, "5 classes and the model 4 outputs"),
        (fjs.regression(Line()), sequences(), ValueError, "int32: regression needs floats"),
        (fjs.regression(Line(2)), real_targets(3), ValueError, r"shape \[2\] and its target the shape \[3\]"),
        (fjs.regression(Line(2)), real_targets(), ValueError, r"shape \[2\] and its target the shape \[\]"),
    ],
)
def test_what_does_not_fit(task, data, error, message) -> None:
    with pytest.raises(error, match=message):
        task.check(data)


@pytest.mark.parametrize("kind", [nn.Conv, fjs.models.Conv, nn.ConvTranspose])
def test_images_without_channels_are_not_convolved_across_examples(kind) -> None:
    data = fjs.datasets.from_clients([(np.zeros((4, 6, 6)), np.arange(4) % 2)])
    of_each = nn.vmap(kind, variable_axes={"params": None}, split_rngs={"params": False})

    class Net(nn.Module):
        channels: bool
        kind: type[nn.Module]

        @nn.compact
        def __call__(self, x):
            seen = self.kind(2, (3, 3))(x[..., None] if self.channels else x)
            return nn.Dense(2)(seen.reshape(len(x), -1))

    def check(model):
        task = fjs.classification(model)
        check_values(task, described(task, data), data.examples, training=True)

    with pytest.raises(ValueError, match=r"receives \[5, 6, 6\] of 5.*the axis of channels, x\[\.\.\., None\]"):
        check(Net(channels=False, kind=kind))
    check(Net(channels=True, kind=kind))
    check(Net(channels=True, kind=of_each))  # one image after the other


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"regression\(model=.* is the class Line: .* an object of it, Line\(\.\.\.\)"):
        fjs.regression(Line)
    with pytest.raises(TypeError, match=r"regression\(model=\.\.\.\) is Linear\(.*\.\.\.: give a flax.linen module"):
        fjs.regression(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))  # in one line
    for task in (fjs.classification, fjs.binary_classification, fjs.regression, fjs.cox):
        with pytest.raises(TypeError, match=r"what comes after \* is given by its name, .*\(weight_decay=\.\.\.\)"):
            task(Line(), 3)  # which meant classes
    with pytest.raises(TypeError, match=r"has no argument 'num_classes', it is the model's: .*flax.linen.Dense\(3\)"):
        fjs.classification(Line(), num_classes=3)
    with pytest.raises(TypeError, match=r"regression\(model=.*nnx fedjax_sim.models.Nnx\(the class\).*losses\)$"):
        fjs.regression(nnx.Linear)
    with pytest.raises(ValueError, match=r"regression\(weight_decay=\.\.\.\)"):
        fjs.regression(Line(), weight_decay=-1.0)


def test_a_function_that_does_not_say_what_it_takes_is_accepted() -> None:
    task = fjs.functions(lambda *given: jnp.zeros(()), lambda *given, **more: jnp.zeros((2,)))
    assert task.init(jax.random.key(0), sequences()) == 0
    assert fjs.functions(jnp.float32, np.add).losses_function is np.add  # a class and a ufunc


@jax.jit
def said(task, params, examples, key):
    return task.features(params, examples, key), task.outputs(params, examples, key)


IMAGES = np.random.default_rng(0).uniform(size=(4, 8, 8, 1)).astype(np.float32)
ROWS = fjs.datasets.from_clients([(IMAGES[:, :, 0, 0], [0, 1, 1, 0])])
PIXELS = (255 * IMAGES).astype(np.uint8)
GPT = fjs.models.GPTNeoX(20, 8, layers=1, heads=2, feedforward=8, rotary=0.5)
HEADS = {
    "LogisticRegression": (fjs.models.LogisticRegression(3), IMAGES, ("Dense_0",), 64),
    "MLP": (fjs.models.MLP(3, hidden=(5, 7)), IMAGES, ("Dense_2",), 7),
    "FemnistCNN": (fjs.models.FemnistCNN(3, (0.2, 0.5), channels=(2, 3), hidden=5), IMAGES, ("Dense_1",), 5),
    "behind bytes": (fjs.models.FromBytes(fjs.models.MLP(3, hidden=(5,))), PIXELS, ("model", "Dense_1"), 5),
    "a layer": (nn.Dense(3), IMAGES[:, :, 0, 0], (), 8),
    "remat": (nn.remat(Line)(3), IMAGES[:, :, 0, 0], ("Dense_0",), 8),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "FemnistCNN" else ()) for name in HEADS]
)
def test_features_are_what_the_head_receives(name) -> None:
    model, x, path, width = HEADS[name]
    task = fjs.classification(model)
    data = fjs.datasets.from_clients([(x, [0, 1, 2, 1])])
    params = described(task, data)
    head = params["params"]
    for part in path:
        head = head[part]
    for key in (None, jax.random.key(5)):  # in training with the step's dropout
        features, outputs = said(task, params, data.examples, key)
        assert features.shape == (4, width)
        logits = np.asarray(features) @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
        np.testing.assert_allclose(outputs, logits, rtol=1e-5, atol=1e-6)
    assert task.num_classes(data) == logits.shape[1]


@pytest.mark.parametrize(
    ("model", "shape", "width"),
    [
        (fjs.models.CifarCNN(3, channels=(2, 2, 2), hidden=5), (18, 18, 3), 5),
        (fjs.models.DigitsCNN(3, channels=(2, 2, 2), hidden=(5, 4)), (8, 8, 3), 4),
        (fjs.models.LeNet(3, channels=(2, 2), hidden=(5, 4)), (16, 16, 1), 4),
        (fjs.models.VGG11(3, hidden=(6,), width=2), (32, 32, 3), 6),
        pytest.param(fjs.models.ResNet18(3, groups=2, width=2), (8, 8, 3), 16, marks=pytest.mark.slow),
        (fjs.models.SentimentLSTM(3, hidden=4, bottleneck=5), (6, 7), 5),
        (fjs.models.CharLSTM(20, hidden=4, layers=1), (6,), 4),
        (fjs.models.GPTNeoXClassifier(3, GPT), (6,), 8),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_widths_of_features(model, shape, width) -> None:
    task = fjs.classification(model)
    dtype = np.float32 if len(shape) > 1 else np.int32
    data = fjs.datasets.from_clients([(np.zeros((2, *shape), dtype), [0, 1])])
    params = jax.eval_shape(lambda: task.init(jax.random.key(0), data))
    assert jax.eval_shape(task.features, params, data.examples).shape == (2, width)


def test_features_inside_transformations(x64) -> None:
    """The derivative, one model at a time and several at once, is that of a formula."""
    model = fjs.models.MLP(2, hidden=(3,), param_dtype=jnp.float64)
    task = fjs.classification(model)
    data = fjs.datasets.from_clients([(np.random.default_rng(0).normal(size=(4, 5)), [0, 1, 1, 0])])
    several = jax.tree.map(lambda leaf: np.stack([leaf, -leaf]), described(task, data))

    def by_task(params):
        return jnp.sum(task.features(params, data.examples) ** 2)

    def by_formula(params):
        layer = params["params"]["Dense_0"]
        return jnp.sum(jax.nn.relu(data.examples["x"] @ layer["kernel"] + layer["bias"][None]) ** 2)

    gradients = jax.jit(jax.vmap(lambda params: [jax.grad(of)(params) for of in (by_task, by_formula)]))
    found, expected = gradients(several)
    jax.tree.map(lambda mine, theirs: np.testing.assert_allclose(mine, theirs, rtol=1e-12), found, expected)


class Saying(nn.Module):
    """Says what its features are, otherwise in training; ends in no dense layer."""

    def setup(self) -> None:
        self.body, self.scale = nn.Dense(5), self.param("scale", nn.initializers.ones, (5, 2))

    def features(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        return jnp.tanh(self.body(x)) * (1 if deterministic else 2)

    def __call__(self, x: jax.Array, deterministic: bool = True) -> jax.Array:
        return self.features(x, deterministic) @ self.scale


def test_a_module_says_its_features() -> None:
    task = fjs.classification(Saying())
    params = described(task, ROWS)
    body = params["params"]["body"]
    expected = np.tanh(IMAGES[:, :, 0, 0] @ body["kernel"] + body["bias"])
    quiet, in_training = (said(task, params, ROWS.examples, key)[0] for key in (None, jax.random.key(0)))
    np.testing.assert_allclose(quiet, expected, rtol=1e-5)
    np.testing.assert_allclose(in_training, 2 * expected, rtol=1e-5)


@pytest.mark.slow
def test_a_module_behind_bytes_says_its_features() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for inner in (Saying(), fjs.models.MLP(2, (5,))):
        task, key = fjs.classification(fjs.models.FromBytes(inner)), jax.random.key(0)
        params = task.init(key, fjs.datasets.from_clients([(pixels, [0, 1, 1, 0])]))
        own = {"params": params["params"]["model"]}
        scaled = {"x": pixels.astype(np.float32) / 255}
        expected = fjs.classification(inner).features(own, scaled, key)
        np.testing.assert_allclose(task.features(params, {"x": pixels}, key), expected, rtol=1e-5)


def test_outputs_labels_and_features_of_a_regression_and_of_sequences() -> None:
    data, task = real_targets(), fjs.regression(Line())
    params = described(task, data)
    features, outputs = said(task, params, data.examples, None)
    np.testing.assert_array_equal(features, data.examples["x"])
    assert outputs.shape == (15, 1)
    np.testing.assert_array_equal(task.labels(data.examples), data.examples["y"])
    assert task.num_classes(data) is None
    data, task = sequences(), fjs.classification(Positions())
    params = described(task, data)
    assert jax.eval_shape(task.features, params, data.examples).shape == (15, 6, 7)
    assert task.num_classes(data) == 5


class NoHead(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.param("w", nn.initializers.ones, (8, 2))


class Squeezed(nn.Module):
    """Its last dense layer weighs channels; the logits are means over them."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = x[:, :, None] * self.param("w", nn.initializers.ones, (1, 1, 2))
        return (y * nn.sigmoid(nn.Dense(8)(x))[:, :, None]).mean(axis=1)


class Looped(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def body(layer, carry, _):
            return layer(carry), None

        loop = nn.scan(body, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        return loop(nn.Dense(8), x, None)[0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NoHead(), "NoHead calls no flax.linen.Dense.*give it a method features"),
        (
            Squeezed(),
            r"the last flax.linen.Dense that Squeezed calls, Dense_0, returns \[4, 8\] for outputs of \[4, 2\]",
        ),
        (Looped(), r"Looped calls, Dense_0, returns \[4, 8\].*inside a lifted transformation"),
    ],
)
def test_features_that_cannot_be_told(model, message) -> None:
    task = fjs.classification(model)
    params = described(task, ROWS)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(task.features, params, ROWS.examples)


def test_what_functions_say() -> None:
    def features(params, examples):
        return jnp.tanh(examples["x"] @ params["body"])

    def outputs(params, examples):
        return features(params, examples) @ params["head"]

    def losses(params, examples):
        return outputs(params, examples)[:, 0] ** 2

    given = (lambda key: {"body": jnp.ones((3, 4)), "head": jnp.ones((4, 2))}, losses)
    task = fjs.functions(*given, outputs_function=outputs, features_function=features)
    data = real_targets()
    params = {"body": np.ones((3, 4), np.float32), "head": np.ones((4, 2), np.float32)}
    for found, expected in zip(said(task, params, data.examples, None), (features, outputs), strict=True):
        np.testing.assert_array_equal(found, jax.jit(expected)(params, data.examples))
    np.testing.assert_array_equal(task.labels(data.examples), data.examples["y"])
    plain = fjs.functions(*given)
    with pytest.raises(TypeError, match=r"Functions has a loss.*functions\(\.\.\., outputs_function=\.\.\.\)"):
        plain.outputs(params, data.examples)
    with pytest.raises(TypeError, match=r"functions\(\.\.\., features_function=\.\.\.\), or define features"):
        plain.features(params, data.examples)
    averaging = fjs.functions(*given, outputs_function=lambda params, examples: outputs(params, examples).mean(0))
    with pytest.raises(ValueError, match=r"outputs_function returns float32\[2\] for 15 examples"):
        averaging.outputs(params, data.examples)
    with pytest.raises(TypeError, match=r"functions\(features_function=...\) is 3: give a function or None"):
        fjs.functions(*given, features_function=3)


def test_a_quadratic_says_nothing_but_its_loss() -> None:
    task, examples = fjs.quadratic(), {"H": jnp.ones((1, 2, 2)), "e": jnp.ones((1, 2))}
    for function in (task.outputs, task.features):
        with pytest.raises(TypeError, match="Quadratic has a loss of each example and does not say what"):
            function(jnp.zeros(2), examples)
    with pytest.raises(TypeError, match=r"Quadratic has no labels: its examples are \['H', 'e'\]"):
        task.labels(examples)
    with pytest.raises(TypeError, match=r"its examples are tuple"):
        task.labels((jnp.zeros(2),))


def test_a_quadratic_with_a_constant() -> None:
    H, e, x = jnp.array([[[2.0, 1.0], [1.0, 4.0]]]), jnp.array([[1.0, -1.0]]), jnp.array([3.0, -2.0])
    loss = fjs.quadratic().losses(x, {"H": H, "e": e, "c": jnp.array([7.0])})
    np.testing.assert_allclose(loss, [(2 * 9 - 2 * 6 + 4 * 4) / 2 - 5 + 7])
    np.testing.assert_allclose(fjs.quadratic().losses(x, {"H": H, "e": e}), [11 - 5])


def test_examples_are_not_written_into() -> None:
    """Metrics, which are computed from the same examples, would see what a loss has made of them."""

    def halved(params: jax.Array, examples: dict[str, jax.Array]) -> jax.Array:
        examples["x"] = examples["x"] / 2
        return examples["x"] @ params

    task = fjs.functions(lambda key: jnp.zeros(2), halved)
    with pytest.raises(TypeError, match=r"^losses_function writes into examples\['x'\]"):
        check_values(task, jnp.zeros(2), {"x": jnp.zeros((3, 2))}, training=False)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("loss", "losses"),
        ("loss_of", "losses_of"),
        ("metric", "metrics"),
        ("output", "outputs"),
    ],
)
def test_a_misspelt_loss_would_train_that_of_the_base(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"^Mine.{name}: no base has it.* did you mean '{meant}'\?"):
        type("Mine", (fjs.task.Classification,), {name: lambda self, *given: 0})


def test_a_task_has_helpers_of_any_name() -> None:
    own = {
        "loss": lambda self, z, y: (z[:, 0] - y) ** 2,
        "losses_of": lambda self, z, examples: self.loss(z, examples["y"]),
    }
    own |= dict.fromkeys(("_penalty", "metric", "_init"), lambda self: 0)
    mine: Any = type("Mine", (fjs.task.Regression,), own)
    type("Other", (mine,), {"loss": lambda self, z, y: 0})
    assert mine(nn.Dense(1)).losses_of(jnp.ones((2, 1)), {"y": jnp.zeros(2)}).tolist() == [1.0, 1.0]


def test_a_model_of_two_outputs_is_refused() -> None:
    class Both(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            return nn.Dense(2)(x), x

    data = fjs.datasets.from_clients([(np.ones((3, 8), np.float32), [0, 1, 1])])
    with pytest.raises(
        TypeError, match=r"the model returns \(float32\[1, 2\], float32\[1, 8\]\): it must return one array"
    ):
        fjs.classification(Both()).check(data)
