"""The numbers of small runs as they were: every method, scheme, diagnostic, driver and hyper-gradient, in float64.

What the package computes is tested elsewhere, from equations. This says whether a change of its structure has changed
a number: ``regression.npz`` beside it has what these runs gave, and they must give it again to 1e-12. Where a change is
meant, record the runs concerned again and say why in the commit::

    python -m pytest tests/engine/test_regression.py -m "" -k NAME --record
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim import adjoints, asynchronous, systems
from tests.algorithms import test_sweep
from tests.algorithms.test_sweep import (
    CASES,
    DIM,
    IDS,
    ROUNDS,
    SIZES,
    TURNS,
    VARIANTS,
    N,
    compiled,
    make,
    problem,
    start,
)

pytestmark = [pytest.mark.usefixtures("x64")]

FILE = pathlib.Path(__file__).with_name("regression.npz")
TOLERANCE = 1e-12  # relative to the largest entry of an array; other machines add up in another order
# A solver that stops at a tolerance, or a root of nearly nothing, makes more of round-off.
LOOSE = {"aware": 1e-9, "fedaware": 1e-9, "dane": 1e-9}
FAST = [("scaffold", 0)]
STATIC, STACKED, LANES = fjs.layout.static_schedule(2), fjs.layout.stacked(), fjs.layout.lanes(2)

Arrays = dict[str, np.ndarray]


@functools.cache
def known() -> Arrays:
    with np.load(FILE) as file:
        return dict(file)


@pytest.fixture
def same(request):
    """``same(name, tree)``: the leaves of ``tree`` are those recorded as ``name``, or are recorded by ``--record``."""

    def check(name, tree, tolerance=TOLERANCE, only=None):
        found = flattened(tree)
        if request.config.getoption("--record") and only is None:
            kept = dict(known()) if FILE.exists() else {}
            kept = {key: array for key, array in kept.items() if key.partition(":")[0] != name}
            np.savez_compressed(FILE, **kept, **{f"{name}:{key}": array for key, array in found.items()})
            known.cache_clear()
            return
        expected = {key.partition(":")[2]: a for key, a in known().items() if key.partition(":")[0] == name}
        if only is not None:
            found, expected = ({key: a for key, a in arrays.items() if only(key)} for arrays in (found, expected))
        if not expected and name.startswith(("method/", "gradient/")):
            pytest.skip("the method came after the record: it has a golden test")
        assert expected, f"nothing is recorded of {name}"
        assert found.keys() >= expected.keys()  # what is recorded since then changes no number
        for key, array in expected.items():
            scale = np.max(np.abs(array), initial=0.0, where=np.isfinite(array))
            np.testing.assert_allclose(
                found[key], array, rtol=0, atol=tolerance * max(scale, 1e-3), err_msg=f"{name}: {key}"
            )

    return check


def flattened(tree) -> Arrays:
    """The leaves by their paths, as float64; keys by their words."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if jnp.issubdtype(getattr(leaf, "dtype", jnp.float64), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found[jax.tree_util.keystr(path, simple=True, separator=".")] = np.asarray(leaf, np.float64)
    return found


def recorded(result):
    """Of a run: model, metrics, what was recorded of every round, and what server and clients keep."""
    rounds = {name: value for name, value in result.rounds.items() if name != "computed_steps"}  # the layout's
    return {"params": result.params, "metrics": result.metrics, "rounds": rounds, "state": result.state}


def marked(names, fast=()):
    return [
        pytest.param(*name, id="-".join(map(str, name)), marks=[] if name in fast else [pytest.mark.slow])
        for name in names
    ]


@pytest.mark.parametrize(("name", "number"), marked(VARIANTS, FAST))
def test_methods(same, name, number):
    algorithm, average = make(name, number)
    program = compiled(TURNS, average, test_sweep.batches_of(algorithm, test_sweep.SHUFFLED))
    result = program(algorithm, problem(), *test_sweep.arguments(algorithm))
    same(f"method/{name}-{number}", recorded(result), LOOSE.get(name, TOLERANCE))


@pytest.mark.parametrize("name", marked([(name,) for name in CASES]))
def test_hyper_gradients(same, name):
    """In every real hyper-parameter, the example weights and the initial parameters."""
    gradient = jax.jit(jax.grad(test_sweep.objective(TURNS, name, 0)))(test_sweep.point(name))
    same(f"gradient/{name}", ravel_pytree(gradient)[0], max(LOOSE.get(name, 0), 1e-10))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [STACKED, LANES, STATIC, "mesh"], ids=["stacked", "lanes", "static", "mesh"])
@pytest.mark.parametrize(("name", "number"), [("fedavg", 1), ("scaffold", 0), ("fednova", 2), ("feddane", 0)])
def test_layouts(same, name, number, layout):
    """What was recorded of clients taken in turns."""
    if layout == "mesh":
        if jax.device_count() < 2:
            pytest.skip("needs two devices")
        layout = fjs.layout.mesh(2)
    algorithm, average = make(name, number)
    result = compiled(layout, average, test_sweep.SHUFFLED)(algorithm, problem(), *test_sweep.arguments(algorithm))
    same(f"method/{name}-{number}", recorded(result), only=lambda key: not key.startswith("state"))


# Runs that draw everything themselves.

RUN = {
    "task": fjs.quadratic(),
    "rounds": 5,
    "eval_every": 2,
    "cohort": fjs.cohort.uniform(3),
    "work": fjs.local.random_epochs(1, 2),
    "batches": fjs.local.shuffled(4),
    "layout": TURNS,
}
SECONDS = np.array([0.3, 0.1, 1.1, 0.5, 0.2, 0.7])
FLEET = {"seconds_per_step": SECONDS, "latency": 0.05}


def trained(algorithm, dataset=None, **changes):
    train = jax.jit(fjs.make_train(**RUN | changes))
    return train(algorithm, problem() if dataset is None else dataset, jax.random.key(0), initial_params=start())


@pytest.mark.parametrize(
    ("name", "number"), marked([("fedavg", 2), ("scaffold", 0), ("fednova", 2), ("feddyn", 0), ("top_k", 1)])
)
def test_drivers(same, name, number):
    """One record: everything on the device, client states or data on the host, and ``make_train``."""
    algorithm, average = make(name, number)
    run = RUN | {"cohort": RUN["cohort"].replace(average=average)}
    setting = run | {"seeds": [0, 7], "initial_params": start()}
    kinds = {
        "resident": (problem(), {}),
        "client states": (problem(), {"client_states": fjs.client_states.on_host()}),
        "streamed": (fjs.datasets.on_host(problem()), {}),
    }
    for kind, (dataset, more) in kinds.items():
        if kind == "client states" and not jax.tree.leaves(algorithm.init_client(start())):
            continue
        history = fjs.simulate(algorithm, dataset, **setting | more)
        rounds = {key: value for key, value in history.rounds.items() if key != "computed_steps"}
        found = {"params": history.params, "metrics": history.metrics, "rounds": rounds}
        same(f"driver/{name}-{number}", found, only=None if kind == "resident" else lambda key: True)
    result = trained(algorithm, cohort=run["cohort"])
    np.testing.assert_allclose(result.params, known()[f"driver/{name}-{number}:params"][0], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        asynchronous.fedbuff(2, staleness=asynchronous.hinge(1.0, 0.5)),
        asynchronous.fedasync(0.6, staleness=asynchronous.polynomial(0.5)),
    ],
    ids=["fedbuff", "fedasync"],
)
def test_asynchronous_servers(same, scheme):
    algorithm, _ = make("fedprox")
    kind = type(scheme).__name__.lower()
    algorithm = algorithm.replace(client_learning_rate=fjs.rates.inverse_time(1.2, decay=0.4))
    result = trained(algorithm, system=systems.devices(**FLEET), asynchronous=scheme)
    same(f"asynchronous/{kind}", recorded(result))


SYSTEMS = {
    "wait": systems.devices(**FLEET, dropout=0.2, seed=3),
    "deadline": systems.devices(**FLEET, policy=systems.deadline(1.5), jitter=systems.uniform(0.5, 1.5), seed=3),
    "first": systems.devices(**FLEET, policy=systems.first(2), download=np.linspace(1e3, 1e4, N), seed=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SYSTEMS)
def test_systems(same, kind):
    same(f"system/{kind}", recorded(trained(make("scaffold")[0], system=SYSTEMS[kind])))


COHORTS = {
    "full": lambda: fjs.cohort.full(),
    "uniform-sample": lambda: fjs.cohort.uniform(3, average="sample"),
    "uniform-original": lambda: fjs.cohort.uniform(3, average="original"),
    "uniform-plain": lambda: fjs.cohort.uniform(3, average="plain"),
    "with_replacement": lambda: fjs.cohort.with_replacement(4),
    "weighted": lambda: fjs.cohort.weighted(3, weights=[1.0, 2.0, 0.5, 1.0, 3.0, 0.2]),
    "independent": lambda: fjs.cohort.independent(0.5, cap=N, average="inverse"),
    "shuffled": lambda: fjs.cohort.shuffled(2, passes="uniform"),
    "available": lambda: fjs.cohort.available(fjs.cohort.uniform(3), fjs.cohort.bernoulli(0.6)),
    "periodic": lambda: fjs.cohort.available(fjs.cohort.uniform(3), fjs.cohort.periodic(3, 2, offsets=np.arange(N))),
    "trace": lambda: fjs.cohort.available(
        fjs.cohort.uniform(2), fjs.cohort.trace(np.arange(4 * N).reshape(4, N) % 3 > 0)
    ),
    "given": lambda: fjs.cohort.given(np.resize(np.array([10, 3, -1, 21, 7]), (5, 3))),
}
WORK = {
    "steps": lambda: fjs.local.steps(3),
    "epochs": lambda: fjs.local.epochs(2),
    "random_epochs": lambda: fjs.local.random_epochs(1, 4),
    "stragglers": lambda: fjs.local.stragglers(0.5, 3),
    "stragglers-drop": lambda: fjs.local.stragglers(0.5, 3, keep=False),
    "stragglers-steps": lambda: fjs.local.stragglers(0.5, 3, draw="steps"),
    "gaussian_steps": lambda: fjs.local.gaussian_steps(3, most=9, variance=2.0),
    "given_steps": lambda: fjs.local.given_steps(np.arange(5 * N).reshape(5, N) % 4, most=4),
    "deadline": lambda: fjs.local.deadline(2.0, np.linspace(1.0, 3.0, N), 4),
    "window": lambda: fjs.local.window(2.0, 30),
}
BATCHES = {
    "shuffled": lambda: fjs.local.shuffled(3),
    "in_order": lambda: fjs.local.in_order(3),
    "with_replacement": lambda: fjs.local.with_replacement(3),
    "fraction": lambda: fjs.local.fraction(0.4),
    "full_batch": lambda: fjs.local.full_batch(piece_size=3),
}
SCHEMES = {"cohort": COHORTS, "work": WORK, "batches": BATCHES}


@pytest.mark.slow
@pytest.mark.parametrize(("part", "kind"), [(part, kind) for part, kinds in SCHEMES.items() for kind in kinds])
def test_schemes(same, part, kind):
    """What they draw shows in the model: clients, steps and examples all differ."""
    algorithm = test_sweep.arrays(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.05)))
    clock = {"system": systems.devices(**FLEET)} if kind == "window" else {}
    same(f"{part}/{kind}", recorded(trained(algorithm, **{part: SCHEMES[part][kind]()}, **clock)))


def classified():
    """Three classes, with a test part."""
    rng = np.random.default_rng(9)
    clients = [(rng.standard_normal((3 * n, DIM)), rng.integers(0, 3, 3 * n)) for n in SIZES]
    parts = fjs.datasets.from_clients(clients, num_classes=3, test_fraction=0.3)  # drawn in the order of the clients
    train, test = ([part.client(at) for at in range(len(IDS))] for part in (parts, parts.test))
    return fjs.datasets.from_clients(train, test=test, client_ids=IDS, num_classes=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "mlp", "regression"])
def test_tasks_and_evaluation(same, kind):
    double = {"param_dtype": jnp.float64}
    models = {"logistic": fjs.models.LogisticRegression(3, **double), "mlp": fjs.models.MLP(3, (5,), **double)}
    data = classified()
    if kind == "regression":
        task = fjs.regression(fjs.models.MLP(1, (4,), **double), weight_decay=0.02)
        data = fjs.datasets.from_clients(
            [(x, np.sin(x).sum(axis=1)) for x in (np.random.default_rng(n).standard_normal((n, 4)) for n in SIZES)]
        )
    else:
        task = fjs.classification(models[kind], weight_decay=0.05 if kind == "mlp" else None)
    run = RUN | {"task": task, "evaluate": fjs.per_client(task, worst=0.3)}
    result = jax.jit(fjs.make_train(**run))(make("fedavg")[0], data, jax.random.key(3))
    same(f"task/{kind}", recorded(result))


MEASURED = (
    "client_losses", "coherence", "communication", "consensus", "cosine_matrix", "dissimilarity", "drift", "e_lud",
    "efficiency", "gradient_moments", "gradient_variance", "inexactness", "lud", "surrogate", "update_norms",
)  # fmt: skip


@pytest.mark.slow
def test_diagnostics(same):
    diagnostics = [*MEASURED, fjs.diagnostics.hessian_dissimilarity(iterations=20)]
    result = trained(make("fedavg")[0], diagnostics=diagnostics, cohort=fjs.cohort.uniform(4))
    same("diagnostics", {"rounds": recorded(result)["rounds"]}, 1e-10)


ADJOINTS = {
    "per_round": adjoints.per_round(),
    "nested": adjoints.nested(2),
    "direct": adjoints.direct(),
    "truncated": adjoints.truncated(2),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADJOINTS)
def test_adjoints(same, kind):
    algorithm, _ = make("scaffold", 1)

    def value(algorithm, x0):
        train = fjs.make_train(**RUN | {"adjoint": ADJOINTS[kind]})
        return train(algorithm, problem(), jax.random.key(2), initial_params=x0).metrics["loss"][-1]

    gradient = ravel_pytree(jax.jit(jax.grad(value, (0, 1)))(algorithm, start()))[0]
    exact = kind != "truncated"
    same("adjoint/exact" if exact else "adjoint/truncated", gradient, 1e-10)


@pytest.mark.slow
def test_a_sweep(same):
    space = fjs.sweeps.grid({"mu": [0.1, 1.0], "client_optimizer.learning_rate": [0.05, 0.1]})
    swept = fjs.sweep(make("fedprox")[0], problem(), space, **RUN, seeds=[0, 1], initial_params=start())
    same("sweep", {"metrics": swept.metrics, "cohort_size": swept.rounds["cohort_size"]})


@pytest.mark.slow
@pytest.mark.parametrize("first_order", [False, True])
def test_personalised_evaluation(same, first_order):
    task = fjs.classification(fjs.models.LogisticRegression(3, param_dtype=jnp.float64))
    adapted = fjs.personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(3), first_order=first_order)
    data = classified()
    params = jax.tree.map(lambda leaf: leaf + 0.1, task.init(jax.random.key(0), data))
    found = jax.jit(adapted)(params, data)
    gradient = jax.jit(jax.grad(lambda params: adapted(params, data)["personal_loss"]))(params)
    same(f"personal/{first_order}", {"found": found, "gradient": gradient})


def test_the_file_has_no_more_than_these_runs():
    """And is small."""
    names = {key.partition(":")[0] for key in known()}
    methods = {f"method/{name}-{number}" for name, number in VARIANTS}
    gradients = {f"gradient/{name}" for name in CASES}
    schemes = {f"{part}/{kind}" for part, kinds in SCHEMES.items() for kind in kinds}
    assert schemes | {f"system/{kind}" for kind in SYSTEMS} <= names
    assert len(methods & names) == 76  # methods that came since have golden tests
    assert len(gradients & names) == 31
    assert ROUNDS == 3
    assert FILE.stat().st_size < 1_000_000
