"""Scores that are no means over examples, against loops by hand, in every evaluation."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import FedAvg
from fedjax_sim.core.trees import scale

pytestmark = pytest.mark.usefixtures("x64")

scores = fjs.scores
ALL = (scores.roc_auc(), scores.f1(), scores.balanced_accuracy(), scores.calibration_error(bins=4))


def auc(p, y):
    """P(p of a positive > p of a negative) + P(equal)/2 by all pairs, the mean over the classes that can have one."""

    def area(s, positive):
        pairs = s[positive][:, None] - s[~positive][None, :]
        return ((pairs > 0) + (pairs == 0) / 2).mean()

    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    areas = [area(p[:, c], y == c) for c in classes if 0 < (y == c).sum() < len(y)]
    return np.mean(areas) if areas else np.nan


def per_class(p, y, of):
    said = p.argmax(1)
    counts = [((said == c) & (y == c), y == c, said == c) for c in range(p.shape[1])]
    values = [of(*(one.sum() for one in count)) for count in counts]
    return np.mean([value for value in values if value is not None]) if len(y) else np.nan


def f1(p, y):
    return per_class(p, y, lambda tp, real, said: 2 * tp / (real + said) if real + said else None)


def balanced_accuracy(p, y):
    return per_class(p, y, lambda tp, real, said: tp / real if real else None)


def calibration_error(p, y, bins=4):
    confidence, right = p.max(1), p.argmax(1) == y
    found = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        found += abs((right[inside] - confidence[inside]).sum()) / len(y) if inside.any() else 0.0
    return found if len(y) else np.nan


BY_HAND = {"roc_auc": auc, "f1": f1, "balanced_accuracy": balanced_accuracy, "calibration_error": calibration_error}


@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_score_is_what_a_loop_finds(classes):
    rng = np.random.default_rng(classes)
    p = rng.dirichlet(np.ones(classes), 60).round(1) + 0.01  # with ties
    p /= p.sum(1, keepdims=True)
    y = rng.integers(0, classes, 60)
    group = rng.integers(0, 5, 60)  # in no order
    y[group == 1] = 0  # one class
    group[group == 3] = 2  # nothing at all
    for score in ALL:
        by_hand = BY_HAND[score.name]
        found, together, defined = found_by(score, *map(jnp.asarray, (p, y.astype(np.int32), group.astype(np.int32))))
        expected = [by_hand(p[group == g], y[group == g]) for g in range(5)]
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=score.name)
        np.testing.assert_allclose(together[0], by_hand(p, y), rtol=1e-12)
        np.testing.assert_array_equal(defined, np.isfinite(expected))


@jax.jit
def found_by(score, p, y, group):
    together = score.of_groups(p, y, jnp.zeros_like(group), 1)
    return score.of_groups(p, y, group, 5), together, score.defined(y, p.shape[1], group, 5)


@pytest.mark.parametrize("score", ALL, ids=lambda score: score.name)
def test_a_model_that_diverged_has_no_score(score):
    p = jnp.array([[0.2, 0.8], [jnp.nan, jnp.nan], [0.6, 0.4], [0.3, 0.7]])
    found = found_by(score, p, jnp.array([1, 0, 0, 1], jnp.int32), jnp.array([0, 0, 1, 1], jnp.int32))[0]
    np.testing.assert_array_equal(np.isfinite(found[:2]), [False, True])


IDS, SIZES, TEST_SIZES = np.array([70, 20, 90, 40]), (6, 3, 8, 5), (300, 0, 4, 9)


@functools.cache
def data():
    rng = np.random.default_rng(0)

    def part(n, client):
        x = rng.standard_normal((n, 3))
        noisy = x @ np.array([1.0, -1.0, 0.5]) * (-1) ** client + rng.standard_normal(n)
        return {"x": x, "y": np.zeros(n, np.int32) if client == 2 else (noisy > 0).astype(np.int32)}

    def parts(sizes):
        return [part(n, client) for client, n in enumerate(sizes)]

    return fjs.datasets.from_clients(parts(SIZES), test=parts(TEST_SIZES), client_ids=IDS)


class Own(FedAvg):
    """Each client's own model is the shared one, turned round where its id is large."""

    def init_client(self, params):
        return jnp.zeros(())

    def finish(self, delta, y, sent, c_i, client):
        return super().finish(delta, y, sent, c_i, client)[0], jnp.asarray(client.id, float)

    def personal(self, server, c_i):
        return scale(jnp.where(c_i > 50, -1.0, 1.0), server.params)


TASK = fjs.binary_classification(nn.Dense(1, param_dtype=float), scores=ALL[::3])
RECORDED = {score.name: BY_HAND[score.name] for score in TASK.scores}
TUNED = fjs.personalise(TASK, fjs.optim.sgd(0.2), fjs.local.steps(3))


def probabilities(params, x):
    z = x @ np.asarray(params["params"]["kernel"])[:, 0] + np.asarray(params["params"]["bias"])
    return np.stack([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "home",
    [
        "device",
        pytest.param("beside tuned models", marks=pytest.mark.slow),
        pytest.param("host", marks=pytest.mark.slow),
    ],
)
def test_scores_are_part_of_every_evaluation(home):
    host, tuned = home == "host", TUNED if home == "beside tuned models" else None
    evaluate = fjs.per_client(TASK, worst=0.5, tuned=tuned)
    method = (fjs.fedavg if host else Own)(client_optimizer=fjs.optim.sgd(0.3))
    history = fjs.simulate(
        method, fjs.datasets.on_host(data()) if host else data(), task=TASK, rounds=1, batches=fjs.local.full_batch(),
        cohort=fjs.cohort.full(), work=fjs.local.steps(2), evaluate=evaluate, progress=False,
    )  # fmt: skip
    params = jax.tree.map(lambda leaf: leaf[0], history.params)
    for prefix, part in (("", data()), ("test_", data().test)):
        clients = [part.client(position) for position in range(4)]
        x, y = (np.concatenate([client[key] for client in clients]) for key in "xy")
        for name, by_hand in RECORDED.items():
            expected = [by_hand(probabilities(params, client["x"]), client["y"]) for client in clients]
            np.testing.assert_allclose(history[f"{prefix}client_{name}"][0, -1], expected, rtol=1e-9)
            np.testing.assert_allclose(history.final(prefix + name)[0], by_hand(probabilities(params, x), y), rtol=1e-9)
            known = np.sort([value for value in expected if np.isfinite(value)])
            most = -(-len(known) // 2)
            worst = known[-most:] if name == "calibration_error" else known[:most]
            np.testing.assert_allclose(history.final(f"{prefix}{name}_worst")[0], worst.mean(), rtol=1e-9)
    if host:
        return
    adapted = None if tuned is None else jax.jit(tuned.models)(params, data())
    for name, by_hand in RECORDED.items():
        for model in ("personal",) if tuned is None else ("personal", "tuned"):
            expected = []
            for position, id_ in enumerate(IDS):
                index = np.argsort(np.argsort(IDS))[position]
                turned = jax.tree.map(lambda leaf, s=-1.0 if id_ > 50 else 1.0: s * leaf, params)
                own = turned if model == "personal" else jax.tree.map(lambda leaf, i=index: leaf[i], adapted)
                test = data().test.client(position)
                expected.append(by_hand(probabilities(own, test["x"]), test["y"]))
            np.testing.assert_allclose(history[f"{model}_client_{name}"][0, -1], expected, rtol=1e-9)
            np.testing.assert_allclose(history.final(f"{model}_{name}")[0], np.nanmean(expected), rtol=1e-9)


@pytest.mark.slow
def test_personal_models_of_data_on_the_host_are_refused():
    with pytest.raises(ValueError, match="own models need their test examples on the device"):
        fjs.simulate(
            Own(client_optimizer=fjs.optim.sgd(0.3)), fjs.datasets.on_host(data()), task=TASK, rounds=1, batch_size=4,
            cohort=fjs.cohort.full(), work=fjs.local.steps(1), evaluate=fjs.per_client(TASK), progress=False,
        )  # fmt: skip


@pytest.mark.slow
def test_one_logit_is_the_second_of_two():
    """sigmoid(z) is softmax((0, z)): losses, metrics and scores of the two tasks agree."""
    params = {"params": {"kernel": jnp.array([[0.5], [-1.0], [0.2]]), "bias": jnp.array([0.1])}}
    both = {"params": {"kernel": jnp.pad(params["params"]["kernel"], ((0, 0), (1, 0))), "bias": jnp.array([0.0, 0.1])}}
    two = fjs.classification(nn.Dense(2, param_dtype=float), scores=ALL[::3])
    federation = data()  # made before the jit: what its cache keeps must not be traced
    one, other = jax.jit(
        lambda *models: [fjs.evaluate(task, of, federation) for task, of in zip((TASK, two), models, strict=True)]
    )(params, both)
    assert one.overall.keys() == {"loss", "accuracy", *RECORDED}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one, other)
    described = fjs.describe(fjs.binary_classification(fjs.models.MLP(1, hidden=(4,)), scores=ALL))
    assert fjs.build(described).scores == ALL


def test_what_is_refused():
    dense = nn.Dense(1)
    with pytest.raises(TypeError, match=r"binary_classification\(scores=...\).*give a tuple of scores"):
        fjs.binary_classification(dense, scores=scores.f1())
    with pytest.raises(ValueError, match="two scores of one name"):
        fjs.classification(dense, scores=(scores.calibration_error(), scores.calibration_error(bins=4)))
    with pytest.raises(ValueError, match=r"the shape \[2\]: binary_classification needs one logit"):
        fjs.binary_classification(nn.Dense(2)).check(data())
    three = data().replace(num_classes=3)
    with pytest.raises(ValueError, match="has 3 classes: binary_classification tells two apart"):
        TASK.check(three)
    real = data().replace(examples={**data().examples, "y": data().examples["x"][:, 0]})
    with pytest.raises(ValueError, match="needs the integers 0 and 1"):
        TASK.check(real)


@pytest.mark.slow
def test_outputs_of_functions_must_be_logits_of_the_classes():
    def task(classes):
        given = (lambda key: jnp.ones(()), lambda params, examples: params * examples["x"][:, 0])
        said = (lambda params, examples: examples["x"][:, classes]) if classes is not None else None
        return fjs.functions(*given, outputs_function=said, scores=(scores.f1(),))

    for classes, shape in ((0, r"\[\]"), (slice(1), r"\[1\]")):
        with pytest.raises(ValueError, match=rf"one example have the shape {shape}.*a logit for each of 2 classes"):
            fjs.evaluate(task(classes), jnp.ones(()), data())
    with pytest.raises(ValueError, match="a logit for each of 3 classes"):
        task(slice(2)).check(data().replace(num_classes=3))
    with pytest.raises(TypeError, match=r"outputs_function=\.\.\."):
        fjs.evaluate(task(None), jnp.ones(()), data())
    found, x, y = fjs.evaluate(task(slice(2)), jnp.ones(()), data()), *(np.asarray(data().examples[k]) for k in "xy")
    np.testing.assert_allclose(found.overall["f1"], f1(x[:, :2], y))


@pytest.mark.slow
def test_half_precision_does_not_tie_what_is_told_apart():
    """Logits of 8 and 9 are two numbers in bfloat16, and their probabilities are both 1."""
    half = jnp.bfloat16
    task = fjs.binary_classification(nn.Dense(1, dtype=half, param_dtype=half), scores=(scores.roc_auc(),))
    params = {"params": {"kernel": jnp.ones((1, 1), half), "bias": jnp.zeros(1, half)}}
    examples = fjs.datasets.from_clients([(np.array([[8.0], [9.0], [8.0], [9.0], [-1.0]]), [0, 1, 0, 1, 0])])
    assert fjs.evaluate(task, params, examples).overall["roc_auc"] == 1.0


@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_area_tells_apart_what_is_certain(classes):
    """The probabilities of logits of 40, 45 and 50 are all 1, and those of the other classes are not all 0."""
    z = jnp.array([40.0, 50.0, 45.0, 50.0, -60.0, -50.0])
    p = jax.nn.softmax(jnp.stack([jnp.zeros(6), z, jnp.full(6, -100.0)][:classes], axis=1))
    assert (p[:4, 1] == 1).all()
    positive = jnp.array([0, 1, 0, 1, 0, 1], jnp.int32)
    found = found_by(scores.roc_auc(), p, positive, jnp.zeros(6, jnp.int32))[1]
    np.testing.assert_allclose(found[0], 7 / 9)


@jax.jit
def of_two(score, p, y, group):
    return score.of_groups(p, y, group, 2)


@pytest.mark.slow
def test_the_area_of_many_examples_of_one_client_keeps_its_digits():
    """Added one after another, it was 0.9809 for 0.9810, of 100,000 examples."""
    size, rng = 100_000, np.random.default_rng(0)
    y, group = jnp.arange(size) % 3 == 0, (jnp.arange(size) >= size - 10).astype(jnp.int32)
    p = jax.nn.sigmoid(jnp.asarray(np.round(rng.normal(size=size) + 3 * np.asarray(y), 2), jnp.float32))
    own, ranks = np.asarray(y)[:-10], np.unique(np.asarray(p)[:-10], return_inverse=True)[1]
    below = np.cumsum(np.bincount(ranks[~own], minlength=ranks.max() + 1))
    ties = np.bincount(ranks[~own], minlength=ranks.max() + 1)
    area = (below - ties / 2)[ranks[own]].mean() / (~own).sum()
    labels = y.astype(jnp.int32)
    found = of_two(scores.roc_auc(), jnp.stack([1 - p, p], axis=1), labels, group)
    np.testing.assert_allclose(found[0], area, rtol=1e-5)


def test_the_calibration_of_many_examples_of_one_client_keeps_its_digits():
    """Added one after another, the errors of 100,000 examples were 0.6997 for 0.7."""
    size = 100_000
    group, sure = (jnp.arange(size) >= size - 10).astype(jnp.int32), jnp.tile(jnp.float32([0.3, 0.7]), (size, 1))
    found = of_two(scores.calibration_error(), sure, jnp.zeros(size, jnp.int32), group)
    np.testing.assert_allclose(found, 0.7, rtol=1e-5)
