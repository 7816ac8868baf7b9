"""Arguments that nobody means and sizes at the edges: what is refused is refused by name before anything compiles.

Refusals of single arguments are in test_errors.py; here they come in combinations, drawn by hypothesis.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_sim as fjs
from fedjax_sim import datasets
from fedjax_sim.datasets import partition

INT32_MAX = 2**31 - 1
REFUSED = (TypeError, ValueError)
sgd = fjs.optim.sgd


@contextlib.contextmanager
def said() -> Iterator[list[str]]:
    """Collects the message of a documented refusal; everything else is an error of the test."""
    messages: list[str] = []
    try:
        yield messages
    except REFUSED as error:
        messages.append(checked_message(error, 1500))


def checked_message(error: Exception, most: int) -> str:
    """The message of a documented error of a length that can be read."""
    message = str(error)
    assert type(error) in REFUSED, repr(error)
    assert 10 < len(message) < most, message
    return message


# Partitions

labels = st.lists(st.integers(-3, 6), min_size=0, max_size=40)
clients = st.one_of(st.integers(-1, 12), st.sampled_from([0, 41, 10**6]))
seeds = st.sampled_from([0, 1, 2**32, -1])
PARTITIONERS: dict[str, Callable[..., Any]] = {
    "iid": lambda y, n, s, a: partition.iid(len(y), n, s),
    "dirichlet": lambda y, n, s, a: partition.dirichlet(y, n, a, s),
    "dirichlet, bounds": lambda y, n, s, a: partition.dirichlet(y, n, a, s, 2, max_size=9, balanced=True),
    "dirichlet_per_client": lambda y, n, s, a: partition.dirichlet_per_client(y, n, a, s, prior_exponent=1.0),
    "shards": lambda y, n, s, a: partition.shards(y, n, 2, s),
    "similarity": lambda y, n, s, a: partition.similarity(y, n, a, s),
    "classes": lambda y, n, s, a: partition.classes(y, n, 2, s),
    "even_classes": lambda y, n, s, a: partition.even_classes(y, n, 2, s),
    "consecutive_classes": lambda y, n, s, a: partition.consecutive_classes(y, n, 2, s, base=1, sigma=abs(a)),
    "sized": lambda y, n, s, a: partition.sized(y, [1] * min(n, 50), s),
    "power law": lambda y, n, s, a: partition.sized(y, partition.power_law_sizes(len(y), n, a, s), s),
}


@pytest.mark.parametrize("name", PARTITIONERS)
@given(
    y=labels,
    num_clients=clients,
    seed=seeds,
    alpha=st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 1e300, -1.0, np.nan, np.inf, 150.0]),
)
@settings(max_examples=25)
def test_partitions_are_whole_or_refused(name: str, y: list[int], num_clients: int, seed: int, alpha: float) -> None:
    with said() as messages:
        made = PARTITIONERS[name](np.array(y, np.int64), num_clients, seed, alpha)
        assert made.sizes.min() >= 1
        assert made.rows.size == made.sizes.sum() == np.unique(made.rows).size
        assert made.rows.min() >= 0
        assert made.rows.max() < len(y)
        if name != "sized":
            assert len(made) == num_clients
        data = datasets.from_partition(np.zeros((len(y), 1)), made)
        assert data.num_clients == len(made)
    if num_clients < 1 and name != "sized":
        assert messages


# Data sets

TYPES = [
    "bool", "int8", "uint8", "int64", "uint64", "float16", ml_dtypes.bfloat16, "float32", "float64", ">f8", ">i4",
    "complex64", "object", "datetime64[s]", "S3", "U3",
]  # fmt: skip
SPECIAL = [0.0, 1.0, -1.0, 1e30, np.nan, np.inf, float(2**31), 255.0]


def array_of(kind: Any, shape: tuple[int, ...], value: float, form: str) -> np.ndarray:
    """An array of that type, in an unusual form."""
    with np.errstate(all="ignore"):
        wide = np.zeros((shape[0] * 2, *shape[1:]))
        wide[::2] = value
        if np.dtype(kind).kind == "M":
            made = np.zeros(wide.shape, "int64").view("datetime64[s]")
        else:
            made = wide.astype(kind)
    made = made[::2]  # not contiguous
    if form == "contiguous":
        made = np.ascontiguousarray(made)
    elif form == "fortran":
        made = np.asfortranarray(made)
    elif form == "reversed":
        made = made[::-1]
    made.flags.writeable = False
    return made


def check_stored(data: datasets.FederatedDataset) -> None:
    sizes = np.asarray(data.sizes)
    assert sizes.min() >= 1
    assert sizes.sum() == data.num_examples
    for leaf in jax.tree.leaves(data.examples):
        found = np.asarray(leaf)
        assert found.shape[0] == data.num_examples
        assert found.dtype.kind in "biu" or np.isfinite(found.astype(np.float64)).all()


def constructed(kind: Any, label: Any, value: float, target: float, form: str, sizes: list[int], width: int) -> None:
    x = [array_of(kind, (n, width), value, form) for n in sizes]
    y = [array_of(label, (n,), target, form) for n in sizes]
    with said() as messages:
        data = datasets.from_clients(list(zip(x, y, strict=True)))
        check_stored(data)
        got = np.asarray(data.examples["x"]).astype(np.float64)
        exact = x[0].astype(np.float64)
        tolerance = 1e-2 if np.dtype(kind).itemsize <= 2 else 1e-6
        np.testing.assert_allclose(got[: sizes[0]], exact, rtol=tolerance)
        again = datasets.from_ids((np.concatenate(x), np.concatenate(y)), np.repeat(np.arange(len(sizes)), sizes))
        jax.tree.map(np.testing.assert_array_equal, again.examples, data.examples)
    if np.dtype(kind).kind in "MSUc" or 0 in sizes or not sizes:  # arrays of objects are what these are
        assert messages
    if np.dtype(kind).kind == "f" and width and not np.isfinite(value):
        assert messages


drawn = given(
    kind=st.sampled_from(TYPES),
    label=st.sampled_from(["int64", "uint8", "bool", "float32", "object", "int8"]),
    value=st.sampled_from(SPECIAL),
    target=st.sampled_from([0.0, 1.0, 2.0, -1.0, np.nan]),
    form=st.sampled_from(["strided", "contiguous", "fortran", "reversed"]),
    sizes=st.lists(st.integers(0, 3), max_size=3),
    width=st.integers(0, 2),
)


@pytest.mark.slow
@drawn
@settings(max_examples=100)
def test_constructors_keep_values_or_refuse(**arguments: Any) -> None:
    constructed(**arguments)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16", "int64", ">f8"])
def test_constructors_in_double_precision(kind: str) -> None:
    for value in SPECIAL:
        for sizes in ([1], [2, 1], [0, 1]):
            constructed(jnp.dtype(kind), "int64", value, 1.0, "strided", sizes, 2)


@pytest.mark.parametrize("label", [-1, 3, 2**31, 2**40, -(2**63)])
def test_labels_out_of_range_are_named(label: int) -> None:
    x, y = np.zeros((2, 1)), np.array([0, label])
    with pytest.raises(ValueError, match=rf"{label}, outside \[0, 3\)"):
        datasets.from_clients([(x, y)], num_classes=3)
    with pytest.raises(ValueError, match=rf"{label}, outside \[0, 3\)"):
        datasets.host.from_clients([(x, y)], num_classes=3)


@pytest.mark.parametrize("where", ["x", "y"])
def test_objects_of_several_kinds_are_refused_by_row(where: str) -> None:
    arrays = {"x": np.zeros((2, 1)), "y": np.array([0, 1])}
    arrays[where] = np.array([[1], "a"], object)
    for make in (datasets.from_clients, datasets.host.from_clients):
        with pytest.raises(TypeError, match=rf"\['{where}'\] of client 0 mixes int, str \(row 0 .* row 1 'a'\)"):
            make([arrays])


# Factories: every argument of every registered one, but those of data sets

HOSTILE: list[Any] = [
    None, -1, 0, 2**31, 2**70, np.nan, np.inf, -0.5, 1e30, True, "", "x", [], [1.0, 2.0], {"mapping": {}},
    {"mapping": {"a": 1.0}}, {"array": [[1.0, 2.0]], "dtype": "float32"}, {"array": [], "dtype": "int32"},
    {"dtype": "float32"}, {"name": "optim.sgd", "arguments": {"learning_rate": 0.1}},
    {"name": "cohort.full", "arguments": {}},
]  # fmt: skip
SIZES = ("model.random_table",)  # they make what they are asked for


@pytest.mark.slow
def test_factories_refuse_or_build() -> None:
    from tests.core.test_descriptions import MADE, load_everything

    load_everything()
    refused = 0
    for name, make in MADE.items():
        described = {} if name.startswith("dataset.") or name in SIZES else fjs.describe(make())
        for argument in described.get("arguments", {}):
            for value in HOSTILE:
                changed = {**described, "arguments": {**described["arguments"], argument: value}}
                try:
                    fjs.build(changed)
                except REFUSED as error:
                    refused += bool(checked_message(error, 4000))
                except Exception as error:
                    raise AssertionError(f"{name}({argument}={value!r})") from error
    assert refused > 2000


# Runs: only traced, so that many can be looked at


def data(sizes: tuple[int, ...] = (4, 2, 5)) -> datasets.FederatedDataset:
    return datasets.from_clients([(np.ones((n, 2), np.float32), np.arange(n) % 3) for n in sizes])


def common(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "task": fjs.classification(fjs.models.LogisticRegression(3)),
        "rounds": 2,
        "cohort": fjs.cohort.full(),
        "work": fjs.local.steps(1),
        "batch_size": 2,
    }
    return {**base, **changes}


def traced(sizes: tuple[int, ...], **changes: Any) -> dict[str, Any]:
    """The shapes that a run would return: everything but compiling and running it."""
    train = fjs.make_train(**common(**changes))
    algorithm, dataset = fjs.fedavg(client_optimizer=sgd(0.1)), data(sizes)
    shapes: dict[str, Any] = jax.eval_shape(lambda key: train(algorithm, dataset, key).rounds, jax.random.key(0))
    return shapes


HUGE: dict[str, Callable[[int], Any]] = {
    "steps": lambda most: fjs.local.steps(most),
    "epochs": lambda most: fjs.local.epochs(most),
    "random_epochs": lambda most: fjs.local.random_epochs(1, most),
    "gaussian_steps": lambda most: fjs.local.gaussian_steps(1.0, 0.0, most),
    "stragglers": lambda most: fjs.local.stragglers(0.5, most),
    "deadline": lambda most: fjs.local.deadline(1.0, 1.0, most),
    "given_steps": lambda most: fjs.local.given_steps([[1, 1, 1], [1, 1, 1]], most=most),
}
LAYOUTS = {
    "the rule": None,
    "turns": fjs.layout.turns(),
    "stacked": fjs.layout.stacked(),
    "lanes": fjs.layout.lanes(2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", HUGE)
def test_steps_beyond_32_bits_are_refused(name: str, layout: str) -> None:
    """They wrapped round: ``steps(2**31)`` ran no step at all, and said so in ``useful_steps`` alone."""
    for most in (2**31, 2**40):
        with pytest.raises(ValueError, match=r"\d+ local steps that a round may .* at most 2147483647") as caught:
            fjs.simulate(
                fjs.fedavg(client_optimizer=sgd(0.1)), data(), **common(work=HUGE[name](most), layout=LAYOUTS[layout])
            )
        assert str(most) in str(caught.value)


def test_the_limit_of_steps_counts_the_whole_cohort() -> None:
    """No single client has too many: the cohort's sum is what wraps."""
    rule = "at most 2147483647 can be counted"
    with pytest.raises(ValueError, match=rule):
        traced((4, 2, 5), work=fjs.local.steps(2**30), layout=fjs.layout.stacked())
    with pytest.raises(ValueError, match=rule):
        traced((1,) * 50, work=fjs.local.steps(2**26))
    dane = fjs.feddane(client_optimizer=sgd(0.1), mu=0.1)
    train = fjs.make_train(**common(work=fjs.local.steps(2**29)))
    with pytest.raises(ValueError, match=rule):
        train(dane, data(), jax.random.key(0))
    shapes = traced((1,), work=fjs.local.steps(2**30 - 1), layout=fjs.layout.turns())
    assert shapes["useful_steps"].dtype == jnp.int32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 2**31}, "2147483648 rounds: at most 2147483647"),
        (
            {"batch_size": None, "batches": fjs.local.with_replacement(2**31)},
            r"2147483659 rows of a batch beside all .*: at most",
        ),
        ({"cohort": fjs.cohort.with_replacement(2**40)}, r"1099511627776 slots \(cohort=.*: at most 2147483647"),
    ],
    ids=["rounds", "batch", "cohort"],
)
def test_other_counts_beyond_32_bits_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fjs.simulate(fjs.fedavg(client_optimizer=sgd(0.1)), data(), **common(**changes))


cohorts = st.one_of(
    st.just(fjs.cohort.full()),
    st.builds(fjs.cohort.uniform, st.integers(1, 5)),
    st.builds(fjs.cohort.with_replacement, st.integers(1, 9)),
    st.builds(fjs.cohort.weighted, st.integers(1, 5)),
    st.builds(fjs.cohort.shuffled, st.integers(1, 5)),
    st.builds(fjs.cohort.independent, st.sampled_from([0.0, 0.3, 1.0])),
)
works = st.one_of(
    st.builds(fjs.local.steps, st.sampled_from([1, 3, 10**6])),
    st.builds(fjs.local.epochs, st.sampled_from([1, 2, 10**6])),
    st.builds(fjs.local.deadline, st.sampled_from([0.0, 1e30]), st.just(1.0), st.just(2)),
    st.builds(fjs.local.stragglers, st.sampled_from([0.0, 1.0]), st.just(2), st.booleans()),
)
batches = st.one_of(
    st.builds(fjs.local.shuffled, st.sampled_from([1, 2, 10**9, 2**40])),
    st.builds(fjs.local.in_order, st.sampled_from([1, 10**9, 2**40])),
    st.builds(fjs.local.fraction, st.sampled_from([0.001, 1.0])),
    st.builds(fjs.local.full_batch, st.sampled_from([1, 2**40])),
)


@pytest.mark.slow
@given(
    sizes=st.sampled_from([(1,), (4, 2, 5), (1, 1, 1), (300,)]),
    cohort=cohorts,
    work=works,
    batches=batches,
    rounds=st.sampled_from([1, 2, 7]),
    eval_every=st.sampled_from([1, 3, 7, 2**40]),
    layout=st.sampled_from(list(LAYOUTS.values())[:2]),
)
@settings(max_examples=20)
def test_settings_run_or_are_refused(sizes: tuple[int, ...], **changes: Any) -> None:
    with said() as messages:
        shapes = traced(sizes, batch_size=None, **changes)
        assert shapes["useful_steps"].shape == (changes["rounds"],)
    wanted = getattr(changes["cohort"], "num_sampled", 1)
    assert bool(messages) == (wanted > len(sizes)), messages


# Real runs at the edges


def ran(dataset: datasets.FederatedDataset, **changes: Any) -> fjs.History:
    given_ = common(**changes)
    history = fjs.simulate(fjs.fedavg(client_optimizer=sgd(0.1)), dataset, **given_, progress=False)
    assert np.isfinite(history["loss"]).all()
    return history


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_example_in_all(layout: str) -> None:
    history = ran(data((1,)), layout=LAYOUTS[layout], batch_size=10**9, work=fjs.local.steps(2))
    assert history.rounds["useful_steps"].tolist() == [[2, 2]]
    assert history["loss"][0, -1] < history["loss"][0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"work": fjs.local.given_steps([[0, 0, 0], [0, 0, 0]])},
        {"work": fjs.local.deadline(0.0, 1.0, 1)},
        {"cohort": fjs.cohort.independent(0.0)},
        {"cohort": fjs.cohort.available(fjs.cohort.full(), fjs.cohort.bernoulli(0.0))},
    ],
    ids=["tau = 0", "no time", "q = 0", "nobody is available"],
)
def test_nobody_works_and_nothing_moves(changes: dict[str, Any]) -> None:
    history = ran(data(), **changes)
    assert history.rounds["useful_steps"].tolist() == [[0, 0]]
    assert history.rounds["cohort_size"].tolist() == [[0, 0]]
    assert np.ptp(history["loss"]) == 0.0


@pytest.mark.slow
def test_a_hundred_thousand_clients_of_one_example() -> None:
    count = 100_000
    rng = np.random.default_rng(0)
    examples = rng.normal(size=(count, 2)).astype(np.float32), rng.integers(0, 3, count)
    dataset = datasets.from_ids(examples, rng.permutation(count), num_classes=3)
    schemes = [
        fjs.cohort.uniform(50),
        fjs.cohort.with_replacement(50),
        fjs.cohort.weighted(50),
        fjs.cohort.shuffled(50),
        fjs.cohort.independent(5e-4),
        fjs.cohort.available(fjs.cohort.uniform(50), fjs.cohort.bernoulli(0.5)),
    ]
    for scheme in schemes:
        history = ran(dataset, cohort=scheme, rounds=1)
        assert 10 <= history.rounds["useful_steps"].item() <= 90
