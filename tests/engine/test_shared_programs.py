"""Another draw of a data set of the same kind runs the program of the first, and nothing reads the padding."""

from concurrent.futures import ThreadPoolExecutor

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.clients.cohort.schemes import Uniform
from fedjax_sim.datasets import buckets
from fedjax_sim.datasets.buckets import InBucket, bucket, in_bucket
from fedjax_sim.engine.plan import Plan
from fedjax_sim.models.passes import mean_values, passed
from tests.engine.test_program import compilations

SGD = fjs.optim.sgd(0.02)
TASK = fjs.classification(fjs.models.LogisticRegression(10))


def settings(**changes):
    return {
        "task": TASK,
        "rounds": 4,
        "eval_every": 2,
        "batch_size": 20,
        "cohort": fjs.cohort.uniform(5),
        "work": fjs.local.epochs(1),
        "layout": fjs.layout.turns(),
        "progress": False,
        **changes,
    }


def data(seed=0, **changes):
    return fjs.datasets.synthetic(1.0, 1.0, num_clients=30, seed=seed, **changes)


def partitioned(seed):
    """700 images, a fifth of each client's held out: how many are left depends on the sizes."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(700, 8)).astype(np.float32), draws.integers(0, 4, 700)
    rows = fjs.datasets.partition.dirichlet(y, num_clients=30, alpha=0.3, seed=seed)
    return fjs.datasets.from_partition((x, y), rows, test_fraction=0.2, num_classes=4)


def numbers(dataset):
    return dataset.num_examples, dataset.test.num_examples, dataset.max_size


@pytest.mark.slow
def test_draws_of_a_kind_are_one_program_and_another_bucket_is_another():
    first, second = data(0), data(1)
    assert len(set(zip(numbers(first), numbers(second), strict=True))) == 3
    assert all(a != b for a, b in zip(numbers(first), numbers(second), strict=True))
    algorithm = fjs.fedavg(client_optimizer=SGD)
    fjs.simulate(algorithm, first, **settings())
    with compilations() as again:
        fjs.simulate(algorithm, second, **settings(), seeds=[3, 4])
    assert again == []
    with compilations() as other:
        fjs.simulate(algorithm, data(2, sizes=[10] * 30), **settings())
    assert other != []


@pytest.mark.slow
def test_runs_in_threads_give_what_they_give_one_after_another():
    """Programs of one method are shared by two threads, those of the others are traced at the same time."""
    methods = [fjs.fedavg(client_optimizer=SGD), fjs.scaffold(client_optimizer=SGD), fjs.fednova(client_optimizer=SGD)]

    def run(algorithm):
        history = fjs.simulate(algorithm, data(), **settings(rounds=2))
        return history.params, history["loss"]

    with ThreadPoolExecutor(4) as threads:
        beside = list(threads.map(run, [*methods, methods[0]]))
    chex.assert_trees_all_equal(beside, [run(algorithm) for algorithm in (*methods, methods[0])])


@pytest.mark.slow
def test_draws_of_a_partition_are_one_program():
    algorithm = fjs.fedavg(client_optimizer=SGD)
    first, second = partitioned(0), partitioned(1)
    assert all(a != b for a, b in zip(numbers(first), numbers(second), strict=True))
    fjs.simulate(algorithm, first, **settings(batch_size=4))
    with compilations() as again:
        fjs.simulate(algorithm, second, **settings(batch_size=4))
    assert again == []


@pytest.mark.slow
def test_a_sweep_of_another_draw_runs_the_program_of_the_first():
    space = fjs.sweeps.points([{"client_optimizer.learning_rate": rate} for rate in (0.01, 0.02)])
    run = settings(layout=None, evaluate=fjs.per_client(TASK))

    def swept(dataset):
        return fjs.sweep(fjs.fedavg(client_optimizer=SGD), dataset, space, **run)

    swept(data(0))
    with compilations() as again:
        second = swept(data(1))
    assert again == []
    alone = fjs.simulate(fjs.fedavg(client_optimizer=SGD), data(1), **run)
    for name, values in alone.metrics.items():
        np.testing.assert_allclose(second.at(1)[name], values, rtol=1e-5, err_msg=name)


CASES = {
    "validation, weights": {"data": lambda: weighted(fjs.datasets.with_validation(data(1, max_size=80), 0.2))},
    "every client's values": {"evaluate": fjs.per_client(TASK)},
    "stored order": {"batch_size": None, "batches": fjs.local.in_order(16)},
    "by examples": {"cohort": fjs.cohort.with_replacement(5), "algorithm": fjs.fednova},
    "client states off the device": {"algorithm": fjs.scaffold, "client_states": fjs.client_states.on_host()},
    "two exchanges": {"algorithm": fjs.feddane},
    "the objective": {"algorithm": fjs.fedprox, "adaptive": True},
    "side by side": {"layout": fjs.layout.lanes(3)},
}


def weighted(dataset):
    return dataset.with_example_weights(np.linspace(0.5, 2.0, dataset.num_examples).astype(np.float32))


def garbage(tree, extra):
    """As :func:`lengthened_rows`, with what spoils every sum that it gets into."""

    def lengthened(leaf):
        bad = np.nan if np.issubdtype(leaf.dtype, np.floating) else 3
        return np.concatenate([leaf, np.full((extra, *leaf.shape[1:]), bad, leaf.dtype)])

    return jax.tree.map(lengthened, tree)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_padding_changes_no_draw_and_no_model(case, monkeypatch):
    given = dict(CASES[case])
    dataset = given.pop("data", lambda: data(1, max_size=80))()
    options = {"adaptive": given.pop("adaptive")} if "adaptive" in given else {}
    algorithm = given.pop("algorithm", fjs.fedavg)(client_optimizer=SGD, **options)
    shared, seen = Plan.shared, []

    def noted(plan, evaluate):
        seen.append(shared(plan, evaluate).dataset)
        return plan._replace(dataset=seen[-1])

    monkeypatch.setattr(buckets, "lengthened_rows", garbage)
    monkeypatch.setattr(Plan, "shared", noted)
    padded = fjs.simulate(algorithm, dataset, **settings(**given))
    assert [type(of) for of in seen] == [InBucket]
    assert seen[0].num_rows > dataset.num_examples
    monkeypatch.setattr(Plan, "shared", lambda plan, evaluate: plan)
    plain = fjs.simulate(algorithm, dataset, **settings(**given))
    for name, values in plain.rounds.items():
        np.testing.assert_array_equal(padded.rounds[name], values, err_msg=name)
    for name, values in plain.metrics.items():
        np.testing.assert_allclose(padded.metrics[name], values, rtol=2e-6, err_msg=name)
    close = {"rtol": 1e-5, "atol": 1e-7}  # to the last bit where products have the same shapes
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), padded.params, plain.params)
    assert padded.description["bounds"] == plain.description["bounds"]
    assert padded.description["dataset"] == plain.description["dataset"]


@pytest.mark.parametrize("sizes", [None, pytest.param([50] * 30, marks=pytest.mark.slow)], ids=["drawn", "of one size"])
def test_passes_end_with_the_last_example(sizes, monkeypatch):
    monkeypatch.setattr(buckets, "lengthened_rows", garbage)
    params = {"params": {"Dense_0": {"kernel": np.full((60, 10), 0.1, "f"), "bias": np.arange(10, dtype="f")}}}
    dataset = weighted(data(4, **{} if sizes is None else {"sizes": sizes}))
    made = in_bucket(dataset, rough=True)
    assert made.num_rows > 1.3 * dataset.num_examples

    @jax.jit
    def values(*given):
        return [(mean_values(TASK, params, of), passed(TASK, params, of, clients=True).clients) for of in given]

    (found, of_clients), (expected, wanted) = values(made, dataset)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    for name, value in wanted.items():
        np.testing.assert_allclose(of_clients[name], value, rtol=1e-5, err_msg=name)
    with pytest.raises(TypeError, match=r"Shapes must be|abstract|concrete"):
        jax.eval_shape(lambda of: jnp.zeros(of.num_examples), made)  # a static size fails before it can be wrong


class Own(Uniform):
    pass


def plan_of(dataset, evaluate=None, algorithm=fjs.fedavg(client_optimizer=SGD), **changes):  # noqa: B008
    from fedjax_sim.engine.arguments import DEFAULTS, check_arguments
    from fedjax_sim.engine.checks import resolve

    run = DEFAULTS | settings(**changes)
    del run["progress"]
    asked = check_arguments(run)._replace(algorithm=algorithm, dataset=dataset, key=jax.random.key(0))
    return resolve(asked, 4, None).placed().shared(evaluate)


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluate": lambda params, dataset: {"n": dataset.num_examples}},
        {"diagnostics": ["dissimilarity"]},
        {"diagnostics": ["surrogate"]},
        {"cohort": Own(5)},
        {"cohort": fjs.cohort.available(Own(5), fjs.cohort.periodic(4, 2))},
        {"task": TASK.replace(scores=(fjs.scores.f1(),))},
        {"evaluate": fjs.per_client(TASK.replace(scores=(fjs.scores.f1(),)))},
        {"evaluate": fjs.per_client(TASK, tuned=fjs.personalise(TASK, SGD, fjs.local.steps(1)))},
        {"evaluate": fjs.per_client(TASK), "algorithm": fjs.ditto(client_optimizer=SGD)},
    ],
    ids=[
        "evaluate",
        "dissimilarity",
        "surrogate",
        "own cohort",
        "own cohort inside",
        "scores",
        "scores of clients",
        "fine-tuned",
        "personal",
    ],
)
def test_what_may_read_the_data_otherwise_gets_them_as_they_are(changes):
    assert plan_of(data(0, max_size=80), **changes).dataset.placement is None
    assert not isinstance(plan_of(data(0, max_size=80), **changes).dataset, InBucket)
    assert isinstance(plan_of(data(0, max_size=80), diagnostics=["e_lud", "communication"]).dataset, InBucket)


@pytest.mark.parametrize(
    ("changes", "rough"),
    [
        ({}, True),
        ({"layout": fjs.layout.lanes(3)}, True),
        ({"layout": fjs.layout.stacked(), "work": fjs.local.steps(3)}, True),
        ({"layout": fjs.layout.stacked()}, False),  # as many steps as the largest client could take
        ({"layout": fjs.layout.factored()}, False),
        ({"batch_size": 1000}, False),
        ({"batch_size": None, "batches": fjs.local.fraction(0.5)}, False),
        ({"batch_size": None, "batches": fjs.local.full_batch(), "work": fjs.local.steps(1)}, True),
        ({"batch_size": None, "batches": fjs.local.full_batch(90), "work": fjs.local.steps(1)}, False),  # in one piece
    ],
    ids=str,
)
def test_rough_bounds_of_sizes_cost_nothing(changes, rough):
    dataset = data(0, max_size=100)
    made = plan_of(dataset, **changes).dataset
    assert (made.max_size, made.num_rows) == ((made.num_rows if rough else dataset.max_size), bucket(dataset))
    assert made.largest_total(5) == (made.num_rows if rough else dataset.largest_total(5))
    assert made.test.max_size == made.test.num_rows == bucket(dataset.test)


def test_buckets():
    def rows(count, features):
        like = {"x": jax.ShapeDtypeStruct((count, features), jnp.float32)}
        return bucket(data(0, max_size=20).replace(examples=like, num_examples=count))

    assert [rows(count, 60) for count in (1, 2, 4, 5, 4096, 4097, 6206, 16384, 16385)] == [
        1, 4, 4, 16, 4096, 16384, 16384, 16384, 65536,
    ]  # fmt: skip
    assert [rows(count, 784) for count in (1025, 5349, 9_000, 13_700, 16_384, 20_000)] == [
        4096, 8192, 16384, 16384, 16384, 20480,
    ]  # fmt: skip
    assert rows(48_012, 784) == rows(47_990, 784) == 49_152  # the copy has an eighth more at most
    assert rows(100_001, 784) == 100_001  # 314 MB: no copy
