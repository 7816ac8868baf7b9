"""What must hold for every registered algorithm: each has a case in its record and goes through the same checks.

The order in which clients are stored, drawn and brought to the hardware changes nothing; identical clients are one
client; derivatives are those of finite differences. In double precision.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim.core import descriptions
from fedjax_sim.core.records import RECORDS

pytestmark = pytest.mark.usefixtures("x64")

sgd, adam = fjs.optim.sgd, fjs.optim.adam
SIZES = (3, 7, 9, 5, 1, 8)
N, DIM, ROUNDS = len(SIZES), 7, 3  # more coordinates than clients: the hull of their changes does not contain 0
IDS = np.array([10, 3, 7, 0, 21, 5])  # neither sorted nor consecutive
COHORTS = np.array([[0, 7, 3, 21], [10, -1, 5, 0], [5, 21, 3, 10]])  # ids; one void slot
TAU = np.array([[3, 2, 1, 5, 2, 4], [4, 1, 0, 2, 3, 3], [1, 0, 2, 2, 3, 5]])  # by client index; two are dropped
MOST = 6
SHUFFLED, IN_ORDER = fjs.local.shuffled(4), fjs.local.in_order(4)
TURNS = fjs.layout.turns()
OTHERS = (fjs.layout.stacked(), fjs.layout.lanes(2), fjs.layout.static_schedule(2))
CLIENT_RATES = np.array([0.5, 1.0, 0.7, 0.9, 0.6, 0.8])
LOGITS = np.array([0.3, -0.8, 0.1, 1.2, -0.4, 0.6])

# Further constructor arguments than those of the methods' records, which come first. Three more keys: "average" goes to
# the cohort, "base" is a wrapper's method (and which of its cases), and "inert" names the hyper-parameters that this
# variant has no use for.
MORE = {
    "fedavg": [
        {
            "client_optimizer": sgd(0.08, momentum=0.6, nesterov=True),
            "client_learning_rate": fjs.rates.over_clients(CLIENT_RATES),
            "server_optimizer": sgd(0.9, momentum=0.5),
            "server_learning_rate": fjs.rates.over_rounds(np.array([1.0, 0.8, 1.1])),
            "average": "plain",
        },
        {
            "client_optimizer": adam(0.05, b2=0.99, eps=0.02, eps_root=1e-3),  # differences of b2 must stay below 1
            "client_learning_rate": fjs.rates.inverse_time(1.2, decay=0.4),
            "server_optimizer": adam(0.1, b2=0.9, eps=0.03, eps_root=2e-3),
        },
        {"client_optimizer": sgd(0.1), "average": "scheme_ii"},
        {"client_optimizer": sgd(0.1, decay=0.8), "average": "transformed"},
    ],
    "fedavgm": [{"client_optimizer": sgd(0.1), "momentum": 0.6, "nesterov": True, "average": "original"}],
    "fedadagrad": [
        {"client_optimizer": sgd(0.1), "server_learning_rate": 0.2, "form": "optax", "inert": ("beta1", "beta2")}
    ],
    "fedadam": [
        {"client_optimizer": sgd(0.1), "server_learning_rate": 0.2, "tau": 0.1, "form": "optax", "beta2": 0.8},
    ],
    "fedyogi": [
        {"client_optimizer": sgd(0.1), "server_learning_rate": 0.2, "tau": 0.1, "form": "optax", "beta2": 0.8},
    ],
    "fedams": [
        {"client_optimizer": sgd(0.1), "server_learning_rate": 0.2, "form": "code", "initial": 0.05, "beta2": 0.8}
    ],
    "fednova": [
        {
            "client_optimizer": sgd(0.1, momentum=0.7),
            "client_learning_rate": fjs.rates.over_clients(CLIENT_RATES),
            "server_optimizer": sgd(1.0, momentum=0.4),
            "server_learning_rate": 0.7,
        },
        {"client_optimizer": sgd(0.1, momentum=0.5), "mu": 0.6, "variance_reduction": True},
        {"client_optimizer": sgd(0.1, momentum=0.5), "mu": 0.6, "prox_momentum": "outside"},
        {"client_optimizer": sgd(0.1), "tau_eff": 2.5, "average": "transformed"},
    ],
    "fedprox": [
        {
            "client_optimizer": sgd(0.1, momentum=0.5),
            "mu": 0.0,
            "client_learning_rate": fjs.rates.piecewise(1.1, (1, 2), 0.6),
            "inert": ("increment",),
        },
        {"client_optimizer": sgd(0.1), "mu": 0.8, "adaptive": True, "patience": 1},
    ],
    "feddane": [{"client_optimizer": sgd(0.1), "mu": 0.5, "same_cohort": True}],
    "scaffold": [
        {"client_optimizer": sgd(0.08, momentum=0.4), "server_learning_rate": 0.8, "average": "sample"},
        {"client_optimizer": sgd(0.1), "option": "I", "server_learning_rate": 1.1},
    ],
    "vrl_sgd": [{"client_optimizer": sgd(0.1, momentum=0.3), "server_learning_rate": 0.9, "average": "sample"}],
    "fedcm": [{"client_optimizer": sgd(0.1), "alpha": 0.4, "scaling": "direction"}],
    "feddyn": [{"client_optimizer": sgd(0.1), "alpha": 0.5, "form": "code"}],
    "fedvarp": [{"client_optimizer": sgd(0.1, momentum=0.4), "server_learning_rate": 0.8, "average": "sample"}],
    "mime": [
        {"client_optimizer": sgd(0.1), "server_optimizer": fjs.optim.fedadam(0.8, 0.9, 0.3), "average": "sample"},
        {"client_optimizer": sgd(0.1), "server_optimizer": None},
    ],
    "mime_lite": [
        {"client_optimizer": sgd(0.1), "server_optimizer": fjs.optim.fedadagrad(0.8, 0.9, 0.3), "inert": ("beta2",)}
    ],
    "scaffnew": [
        {"client_optimizer": sgd(0.1, momentum=0.3), "p": 0.3, "server_learning_rate": 0.9, "average": "sample"}
    ],
    "fedaware": [
        {"client_optimizer": sgd(0.1), "alpha": 0.6, "normalised": True, "warm_up": True},
        {"client_optimizer": sgd(0.1), "alpha": 0.6, "clusters": np.array([0, 1, 2, 0, 1, 3])},
        {"client_optimizer": sgd(0.1), "alpha": 0.6, "weights": "sample"},
    ],
    "ditto": [{"client_optimizer": sgd(0.1, momentum=0.5), "lam": 0.7, "personal_steps": 2}],
    "apfl": [{"client_optimizer": sgd(0.1), "alpha": 0.4, "adaptive": True}],
    "perfedavg": [
        {"client_optimizer": sgd(0.1), "alpha": 0.05, "form": "hessian_free", "delta": 0.1, "inert": ("delta",)},
        {"client_optimizer": sgd(0.1), "alpha": 0.05, "form": "first_order", "inert": ("delta",)},
    ],
    "qfedavg": [{"client_optimizer": sgd(0.1), "q": 1.5, "lipschitz": 8.0}],
    "aware": [{"base": ("fednova", 2), "alpha": 0.6}],
    "reweighted": [
        {"base": ("scaffold", 1), "logits": LOGITS},
        {"base": ("feddane", 0), "logits": LOGITS},
        {"base": ("fedavg", 3), "logits": LOGITS},
    ],
    "robust": [
        {"base": ("fedavg", 0), "rule": fjs.aggregators.trimmed_mean(0.3)},
        {"base": ("fednova", 0), "rule": fjs.aggregators.geometric_median(0.01, iterations=2), "inert": ("nu",)},
        {"base": ("scaffold", 0), "rule": fjs.aggregators.multi_krum()},
        {"base": ("fedavg", 0), "rule": fjs.aggregators.centered_clipping(0.3)},
    ],
    "attacked": [
        {"base": ("fedavg", 0), "clients": np.array([0, 3]), "attack": fjs.attacks.little_is_enough(0.3)},
        {"base": ("scaffold", 1), "clients": np.array([0]), "attack": fjs.attacks.inner_product(0.2)},
        {"base": ("fedavg", 0), "clients": np.array([2]), "attack": fjs.attacks.gaussian(0.1, keep=0.5)},
    ],
    "clipped": [{"base": ("scaffold", 0), "norm": 0.4}],
    "adaptively_clipped": [
        {"base": ("fednova", 2), "initial": 0.3, "quantile": 0.6, "rate": 0.4},
        {"base": ("feddyn", 0), "initial": 0.4},
    ],
    "dp": [
        {
            "base": ("fedadam", 0),
            "norm": 0.5,
            "noise_multiplier": 0.3,
            "quantile": 0.6,
            "count_noise": 0.4,
        }
    ],
    "quantised": [{"base": ("scaffold", 0), "bits": 46, "scale": "max"}],
    "top_k": [
        {"base": ("scaffold", 0), "fraction": 0.3},
        {"base": ("vrl_sgd", 0), "fraction": 0.3},
        {"base": ("fedavg", 0), "fraction": 0.3, "feedback": False},
    ],
    "random_k": [{"base": ("fednova", 2), "fraction": 0.5, "feedback": True}],
}


def _first(name, case):
    """The case of a record in full."""
    make = getattr(fjs, name)
    if "base" in inspect.signature(make).parameters:
        return {**case, "base": (case.get("base", "fedavg"), 0)}
    return {"client_optimizer": sgd(0.1), **case}


assert fjs.algorithms  # importing it registers them
RECORDED = {name.partition(".")[2]: record.case for name, record in RECORDS.items()}
# Without a case are those whose parameters have names, which are in tests/algorithms/test_partial.py, and those that
# ask for classes or features, in test_own_losses.py.
CASES = {name: [_first(name, case), *MORE.get(name, [])] for name, case in RECORDED.items() if case is not None}
VARIANTS = [(name, number) for name, variants in CASES.items() for number in range(len(variants))]
FAST = ("fedavg",)
# Identical clients with equal tau are one client that goes on by itself.
CENTRALISED = {"fedavg", "fedvarp", "local_sgd", "fednova", "scaffnew", "scaffold", "vrl_sgd"}
# One full-gradient step of everybody is a step of gradient descent.
DESCENT = CENTRALISED | {"large_batch_sgd", "fedprox", "feddane"}
# Copies of a client draw places of their own; the noise of a mean depends on how many there are.
DRAWING = {"random_k", "dp"}


def parameters(variants, nightly=lambda name, number: False):
    """Each with its name; all tests of one algorithm on one worker, which compiles each program once.

    ``nightly`` says which are too many for every day.
    """

    def marks(name, number):
        if nightly(name, number):
            return [pytest.mark.nightly]
        return [] if name in FAST and not number else [pytest.mark.slow]

    return [
        pytest.param(name, number, id=f"{name}-{number}", marks=[pytest.mark.xdist_group(name), *marks(name, number)])
        for name, number in variants
    ]


# One of each kind, which every test sees every day; the others wait for the night where a test has no surprises left.
DAILY = {
    "dp", "fedadam", "fedavg", "fedaware", "feddyn", "fednova", "fedprox", "reweighted", "scaffold", "top_k", "vrl_sgd",
}  # fmt: skip
# Of methods around methods those of DAILY.
first_variants = pytest.mark.parametrize(
    ("name", "number"),
    parameters(VARIANTS, lambda name, number: number > 0 or ("base" in CASES[name][0] and name not in DAILY)),
)
differentiated = pytest.mark.parametrize(
    ("name", "number"), parameters(VARIANTS, lambda name, number: number > 0 or name not in DAILY)
)
every_algorithm = pytest.mark.parametrize(
    ("name", "number"), parameters([(name, 0) for name in CASES], lambda name, number: name not in DAILY)
)
few_daily = pytest.mark.parametrize(
    ("name", "number"),
    parameters([(name, 0) for name in CASES], lambda name, number: name not in ("fedavg", "fednova", "scaffold")),
)
SOME = [("fedavg", 0), ("scaffold", 0), ("fedaware", 0)]
some_algorithms = pytest.mark.parametrize(("name", "number"), parameters(SOME))


def make(name, number=0):
    """``(algorithm, average)``; the hyper-parameters are arrays, as derivatives need them."""
    options = {key: value for key, value in CASES[name][number].items() if key != "inert"}
    average = options.pop("average", None)
    if "base" in options:
        options["base"], average = make(*options["base"])
    return arrays(getattr(fjs, name)(**options)), average


def fitted(algorithm, num_clients):
    """With as many logits as there are clients, and either all or none of them attackers."""
    if hasattr(algorithm, "clients"):
        return algorithm.replace(clients=jnp.arange(num_clients, dtype=jnp.int32))
    return algorithm.replace(logits=algorithm.logits[:num_clients]) if hasattr(algorithm, "logits") else algorithm


def arrays(algorithm):
    def as_float(leaf):
        return leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.integer) else jnp.asarray(leaf, jnp.float64)

    return jax.tree.map(as_float, algorithm)


def cohorts_of(algorithm, cohorts=COHORTS):
    """Ids; everybody for a method that needs everybody (two are dropped by TAU all the same)."""
    everyone = algorithm is not None and algorithm.requires.everyone
    return np.tile(IDS[[2, 0, 5, 1, 3, 4]], (ROUNDS, 1)) if everyone else cohorts


def batches_of(algorithm, batches):
    return fjs.local.full_batch(4) if algorithm.requires.full_gradients else batches


def pieces_of(algorithm):
    """Rows of a piece of a full gradient: fewer than the largest client has, where a method allows it."""
    requires = algorithm.requires
    return max(SIZES) if requires.whole_batches or requires.other_batch or requires.hold > 1 else 4


def sizes_of(algorithm):
    """How many take part in each round."""
    indices = np.argsort(np.argsort(IDS))
    index_of = dict(zip(IDS.tolist(), indices.tolist(), strict=True))
    drops = algorithm.requires.steps
    return [
        sum(1 for id_ in row if id_ >= 0 and (TAU[t, index_of[int(id_)]] > 0 or not drops))
        for t, row in enumerate(cohorts_of(algorithm))
    ]


def examples_of(seed, sizes, spread=1.0):
    """For each client examples (H, e, c), positive definite and all different."""
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        root = rng.standard_normal((n, DIM, DIM)) + rng.standard_normal((DIM, DIM))
        e = rng.standard_normal((n, DIM)) + spread * rng.standard_normal(DIM)
        # the constant keeps every F_i positive, which q-FedAvg asks for
        clients.append({"H": root @ root.swapaxes(1, 2) / DIM + 0.3 * np.eye(DIM), "e": e, "c": np.full(n, 9.0)})
    return clients


def problem():
    data = fjs.datasets.from_clients(examples_of(3, SIZES), client_ids=IDS)
    return data.with_example_weights(np.random.default_rng(5).uniform(0.5, 1.5, sum(SIZES)))


def start():
    return jnp.array([0.7, -1.1, 0.4, 1.3, -0.6, 0.9, -0.2])


def given(layout, average, batches=SHUFFLED):
    """``run(algorithm, dataset, x0, cohorts, tau)``: everything that is data is an argument."""

    def run(algorithm, dataset, x0, cohorts, tau):
        train = fjs.make_train(
            task=fjs.quadratic(), rounds=ROUNDS, batches=batches, layout=layout,
            cohort=fjs.cohort.given(cohorts, average=average), work=fjs.local.given_steps(tau, most=MOST),
        )  # fmt: skip
        return train(algorithm, dataset, jax.random.key(1), initial_params=x0)

    return run


@functools.cache
def compiled(layout, average, batches=SHUFFLED):
    return jax.jit(given(layout, average, batches))


def arguments(algorithm, cohorts=COHORTS, tau=TAU):
    cohorts = cohorts_of(algorithm, cohorts)
    return start(), jnp.asarray(cohorts, jnp.int32), jnp.asarray(tau, jnp.int32)


def assert_close(actual, expected, what="", tolerance=1e-10):
    def compare(a, b):
        if jnp.issubdtype(jnp.result_type(a), jnp.inexact):  # a solver may take a step more or less
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)

    jax.tree.map(compare, actual, expected)


def assert_same_run(actual, expected, what):
    """The same up to round-off, but for what the layout wasted."""
    assert_close(actual._replace(rounds=()), expected._replace(rounds=()), what)
    for name in ("cohort_size", "useful_steps"):
        np.testing.assert_array_equal(actual.rounds[name], expected.rounds[name], err_msg=what)
    assert (actual.rounds["computed_steps"] >= actual.rounds["useful_steps"]).all()


def test_every_registered_algorithm_is_swept():
    assert fjs.algorithms  # importing it registers them
    ours = [
        name.partition(".")[2]
        for name in descriptions.registered("algorithm")
        if descriptions._FACTORIES[name].__module__.startswith("fedjax_sim.")  # other tests may register their own
    ]
    assert sorted(RECORDED) == ours
    for name, number in VARIANTS:
        algorithm, _ = make(name, number)
        assert fjs.build(fjs.describe(algorithm)) is not None


@pytest.mark.slow
@first_variants
def test_no_order_changes_anything(name, number):
    """Layouts, slots within a cohort, and the order in which clients are stored."""
    algorithm, average = make(name, number)
    data, batches = problem(), batches_of(algorithm, SHUFFLED)
    program = compiled(TURNS, average, batches)
    expected = program(algorithm, data, *arguments(algorithm))
    assert np.isfinite(expected.metrics["loss"]).all()
    assert len(np.unique(expected.metrics["loss"])) == ROUNDS + 1
    assert expected.rounds["cohort_size"].tolist() == sizes_of(algorithm)
    np.testing.assert_array_equal(expected.rounds["useful_steps"], expected.rounds["computed_steps"])
    turned = np.array(
        [row[order] for row, order in zip(COHORTS, [[3, 1, 0, 2], [1, 3, 2, 0], [2, 3, 1, 0]], strict=True)]
    )
    if not algorithm.requires.everyone:
        again = program(algorithm, data, *arguments(algorithm, turned))
        assert_same_run(again, expected, "clients in other slots")
    if number == 0:
        stored = program(algorithm, data.subset([4, 0, 5, 2, 1, 3]), *arguments(algorithm))
        assert_same_run(stored, expected, "clients stored in another order")
    for layout in OTHERS[:2] if name != "fedavg" else OTHERS[1:] if number == 0 else OTHERS:
        other = compiled(layout, average, batches)(algorithm, data, *arguments(algorithm))
        assert_same_run(other, expected, type(layout).__name__)


def drawing(algorithm, average, rounds, cohort_size, work):
    """A run that draws everything itself."""
    cohort = fjs.cohort.full() if algorithm.requires.everyone else fjs.cohort.uniform(cohort_size)
    return fjs.make_train(
        task=fjs.quadratic(), rounds=rounds, cohort=cohort.replace(average=average), work=work, layout=TURNS,
        batches=batches_of(algorithm, SHUFFLED),
    )  # fmt: skip


@pytest.mark.slow
@few_daily
def test_random_draws_know_neither_storage_nor_vmap(name, number):
    algorithm, average = make(name, number)
    train = drawing(algorithm, average, ROUNDS, 3, fjs.local.random_epochs(1, 2))
    data, keys = problem(), jax.random.split(jax.random.key(2), 2)
    both = jax.jit(jax.vmap(functools.partial(train, initial_params=start()), (None, None, 0)))(algorithm, data, keys)
    one = jax.jit(functools.partial(train, initial_params=start()))
    runs = [one(algorithm, data, key) for key in keys]
    assert np.abs(runs[0].params - runs[1].params).max() > 1e-3  # the keys do matter
    stored = one(algorithm, data.subset([4, 0, 5, 2, 1, 3]), keys[0])
    assert_same_run(stored, runs[0], "clients stored in another order")
    for i, run in enumerate(runs):
        assert_same_run(jax.tree.map(lambda leaf, i=i: leaf[i], both), run, f"vmap over keys, {i}")


@pytest.mark.slow
@pytest.mark.parametrize("layout", OTHERS[:2], ids=["stacked", "lanes"])
def test_random_draws_do_not_know_the_layout(layout):
    algorithm, _ = make("fedavg")

    def run(layout):
        train = fjs.make_train(
            task=fjs.quadratic(), rounds=ROUNDS, cohort=fjs.cohort.with_replacement(4),
            work=fjs.local.stragglers(0.5, 3), batches=fjs.local.with_replacement(4), layout=layout,
        )  # fmt: skip
        return jax.jit(train)(algorithm, problem(), jax.random.key(3), initial_params=start())

    assert_same_run(run(layout), run(TURNS), type(layout).__name__)


@pytest.mark.slow
@few_daily
def test_without_jit(name, number):
    algorithm, average = make(name, number)
    algorithm = fitted(algorithm, 2)
    clients = examples_of(7, (3, 5))
    data = fjs.datasets.from_clients(clients, client_ids=np.array([4, 1]))
    train = drawing(algorithm, average, 1, 2, fjs.local.steps(2))
    compiled_ = jax.jit(train)(algorithm, data, jax.random.key(4), initial_params=start())
    with jax.disable_jit():
        eager = train(algorithm, data, jax.random.key(4), initial_params=start())
    assert_same_run(eager, compiled_, "without jit")


@pytest.mark.slow
@every_algorithm
def test_padding_changes_nothing(name, number):
    """A step on all of a client's examples, accumulated over padded pieces of any size."""
    algorithm, average = make(name, number)
    rows = pieces_of(algorithm)
    small, large = [
        compiled(TURNS, average, fjs.local.full_batch(rows))(algorithm, problem(), *arguments(algorithm))
        for rows in (rows, 100)
    ]
    assert_close((small.params, small.state, small.metrics), (large.params, large.state, large.metrics))
    more = np.greater if rows < max(SIZES) else np.equal
    assert more(small.rounds["useful_steps"], large.rounds["useful_steps"]).all()


@pytest.mark.slow
@every_algorithm
def test_one_client_and_identical_clients(name, number):
    if name in DRAWING:
        pytest.skip("copies of a client are not one client: they draw for themselves")
    algorithm, average = make(name, number)
    count, full = 4, fjs.local.full_batch(pieces_of(algorithm))
    clients = examples_of(6, [3] * count)
    base = algorithm.base if hasattr(algorithm, "base") else algorithm
    x, eta, eta_g = np.asarray(start()), float(base.client_optimizer.learning_rate), float(base.server_learning_rate)
    everyone = np.tile(np.arange(count), (ROUNDS, 1))

    def path(clients, tau):
        data, n = fjs.datasets.from_clients(clients), len(clients)
        given = jnp.asarray(everyone[:, :n], jnp.int32), jnp.full((ROUNDS, n), tau, jnp.int32)
        return compiled(TURNS, average, full)(fitted(algorithm, n), data, start(), *given)

    # copies of one client, of different sizes
    first = clients[0]
    copies = [jax.tree.map(lambda leaf, k=k: np.tile(leaf, (k, *[1] * (leaf.ndim - 1))), first) for k in (1, 2, 1, 3)]
    together, alone = path(copies, 3), path([first], 3)
    assert_close((together.metrics, together.params), (alone.metrics, alone.params), "copies of a client against one")
    H, e = first["H"].mean(axis=0), first["e"].mean(axis=0)
    if name in CENTRALISED:
        y = x
        for _ in range(3 * ROUNDS):
            y = y - eta * (H @ y - e)
        assert_close(alone.params, y, "one client against gradient descent")
    if name in DESCENT:
        # different clients of one size: sum p_i F_i and (1/N) sum F_i are the same
        H = np.mean([client["H"].mean(axis=0) for client in clients], axis=0)
        e = np.mean([client["e"].mean(axis=0) for client in clients], axis=0)
        y = x
        for _ in range(ROUNDS):
            y = y - eta_g * eta * (H @ y - e)
        assert_close(path(clients, 1).params, y, "one step each against gradient descent")


# Derivatives.


def objective(layout, name, number, batches=IN_ORDER):
    """A scalar to which everything in the final state contributes, as a function of all that is real."""
    algorithm, average = make(name, number)
    leaves, structure = jax.tree.flatten(algorithm)
    given_ = given(layout, average, batches_of(algorithm, batches))

    def value(theta):
        reals, weights, x0 = theta
        reals = iter(reals)
        filled = [next(reals) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf for leaf in leaves]
        dataset = problem().replace(example_weights=weights)
        result = given_(jax.tree.unflatten(structure, filled), dataset, x0, *arguments(algorithm)[1:])
        # not the report of a solver, whose gap is round-off
        state = [leaf for leaf in jax.tree.leaves(result.state) if leaf.dtype == x0.dtype and leaf.ndim]
        flat = ravel_pytree(state)[0]
        return jnp.sum(result.metrics["loss"]) + flat @ jnp.cos(jnp.arange(flat.size, dtype=flat.dtype))

    return value


def point(name, number=0):
    algorithm, _ = make(name, number)
    reals = [leaf for leaf in jax.tree.leaves(algorithm) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return reals, problem().example_weights, start()


def names_of(algorithm):
    """The names of the real hyper-parameters."""
    flat, _ = jax.tree_util.tree_flatten_with_path(algorithm)
    return [jax.tree_util.keystr(path) for path, leaf in flat if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]


def directional(value, theta, individually):
    """Directions [M, P] in the flattened theta, fourth-order central differences of ``value`` along them, its gradient.

    One direction for each of the first ``individually`` coordinates and for the last two, one for all others. Of a
    coordinate that is 0, third-order differences upwards: below may be no hyper-parameter, and the run is NaN.
    """
    flat, unravel = ravel_pytree(theta)
    rest = np.zeros(flat.size)
    rest[individually:-2] = np.random.default_rng(8).standard_normal(flat.size - individually - 2)
    rows = np.eye(flat.size)
    directions = np.stack([*rows[:individually], rest, *rows[-2:]])
    scales = np.abs(directions * np.asarray(flat)).max(axis=1)
    steps = 1e-3 * np.where(scales == 0, 1.0, np.minimum(scales, 1.0))
    at_zero = (scales == 0)[:, None]
    offsets = np.where(at_zero, [0.0, 1.0, 2.0, 3.0], [-2.0, -1.0, 1.0, 2.0])
    weights = np.where(at_zero, [-22.0, 36.0, -18.0, 4.0], [1.0, -8.0, 8.0, -1.0])
    points = np.asarray(flat) + (offsets[:, :, None] * steps[:, None, None]) * directions[:, None, :]
    slope = jax.jit(jax.value_and_grad(lambda point: value(unravel(point))))  # one program for values and the gradient
    values = np.array([slope(point)[0] for point in points.reshape(-1, flat.size)]).reshape(-1, 4)
    differences = np.sum((values - values[:, :1]) * weights, axis=1) / (12 * steps)
    return directions, differences, slope(flat)[1]


@pytest.mark.slow
@differentiated
def test_gradient_is_that_of_finite_differences(name, number):
    """With respect to every hyper-parameter, the example weights and the initial parameters; mostly in two layouts."""
    algorithm, _ = make(name, number)
    theta = point(name, number)
    value = objective(OTHERS[0] if number == 0 and name in FAST else TURNS, name, number)
    count = len(ravel_pytree(theta[0])[0])
    directions, expected, gradient = directional(value, theta, count)
    # not a comparison of zeros, but for hyper-parameters that this variant has no use for
    names = [one for one, leaf in zip(names_of(algorithm), theta[0], strict=True) for _ in range(leaf.size)]
    useless = tuple(f".{one}" for one in CASES[name][number].get("inert", ()))
    useful = np.array([not one.endswith(useless) if useless else True for one in names] + [True] * 3)
    assert (np.abs(expected[useful]) > 1e-6).all()
    np.testing.assert_array_equal(expected[~useful], 0)
    np.testing.assert_allclose(directions @ np.asarray(gradient), expected, rtol=5e-6, atol=1e-8)
    if number == 0 and name not in FAST:
        stacked = ravel_pytree(jax.jit(jax.grad(objective(OTHERS[0], name, number)))(theta))[0]
        assert_close(stacked, gradient, "stacked", 1e-9)


@pytest.mark.slow
@some_algorithms
def test_forward_and_mapped_derivatives(name, number):
    reals, weights, x0 = point(name, number)

    def value(reals):
        return objective(TURNS, name, number)((reals, weights, x0))

    gradient = jax.jit(jax.grad(value))
    expected = gradient(reals)
    assert_close(jax.jit(jax.jacfwd(value))(reals), expected, "jacfwd", 1e-9)
    lanes = jax.jit(jax.grad(lambda reals: objective(OTHERS[1], name, number)((reals, weights, x0))))(reals)
    assert_close(lanes, expected, "lanes", 1e-9)
    other = jax.tree.map(lambda leaf: 0.8 * leaf, reals)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), reals, other)
    mapped = jax.jit(jax.vmap(jax.grad(value)))(both)
    for i, one in enumerate((expected, gradient(other))):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], mapped), one, "vmap(grad)", 1e-9)


@pytest.mark.slow
def test_gradient_in_the_task_s_weight_decay():
    rng = np.random.default_rng(9)
    clients = [(rng.standard_normal((n, DIM)), rng.integers(0, 3, n)) for n in SIZES]
    data = fjs.datasets.from_clients(clients, client_ids=IDS, num_classes=3)
    algorithm, _ = make("fedavg")
    model = fjs.models.LogisticRegression(3, param_dtype=jnp.float64)

    def final_loss(weight_decay):
        train = fjs.make_train(
            task=fjs.classification(model, weight_decay=weight_decay), rounds=ROUNDS, batches=fjs.local.in_order(4),
            cohort=fjs.cohort.given(COHORTS), work=fjs.local.given_steps(TAU), eval_every=ROUNDS, layout=TURNS,
        )  # fmt: skip
        return train(algorithm, data, jax.random.key(5)).metrics["loss"][-1]

    h = 1e-4
    around = jax.jit(lambda at: jax.lax.map(final_loss, at))(0.3 + h * np.array([-2.0, -1.0, 1.0, 2.0]))
    expected = np.asarray(around) @ np.array([1.0, -8.0, 8.0, -1.0]) / (12 * h)
    assert expected > 1e-3
    np.testing.assert_allclose(jax.jit(jax.grad(final_loss))(jnp.array(0.3)), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_learning_rate_inside_a_bare_optax_object():
    """Closed over by optax, where no derivative of ours can see it, unless it is made explicit."""
    data, x0 = problem(), start()

    def value(rates, algorithm_of):
        result = given(TURNS, None)(algorithm_of(*rates), data, x0, *arguments(None)[1:])
        return jnp.sum(result.metrics["loss"])

    def bare(rate, server_rate):
        return fjs.fedavg(client_optimizer=optax.sgd(rate), server_optimizer=optax.sgd(server_rate, momentum=0.5))

    def described(rate, server_rate):
        return fjs.fedavg(client_optimizer=sgd(rate), server_optimizer=sgd(server_rate, momentum=0.5))

    rates = [(jnp.array(0.1), jnp.array(0.9)), (jnp.array(0.07), jnp.array(1.2))]
    gradient = jax.jit(jax.grad(functools.partial(value, algorithm_of=described)))
    expected = [gradient(pair) for pair in rates]
    of_bare = functools.partial(value, algorithm_of=bare)
    assert_close(jax.jit(jax.grad(of_bare))(rates[0]), expected[0], "jax.jit(grad)")
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rates)
    mapped = jax.jit(jax.vmap(jax.grad(of_bare)))(both)
    for i in range(2):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], mapped), expected[i], "vmap(grad)")


@pytest.mark.slow
def test_a_learning_rate_inside_a_bare_optax_object_without_jit():
    data, x0 = problem(), start()

    def value(rate, optimizer):
        algorithm = fjs.fedavg(client_optimizer=optimizer(rate))
        return given(TURNS, None)(algorithm, data, x0, *arguments(None)[1:]).metrics["loss"][-1]

    expected = jax.jit(jax.grad(functools.partial(value, optimizer=sgd)))(jnp.array(0.1))
    assert_close(jax.grad(functools.partial(value, optimizer=optax.sgd))(jnp.array(0.1)), expected, "grad")
    in_parallel = jax.jit(jax.vmap(functools.partial(value, optimizer=optax.sgd)))(jnp.array([0.1, 0.2]))
    assert in_parallel[0] != in_parallel[1]


@pytest.mark.slow
def test_adam_s_gradient_is_finite_where_a_gradient_is_zero():
    """The root in Adam's denominator has no derivative at zero; its default ``eps_root`` moves it away from there."""
    clients = examples_of(3, SIZES)
    for client in clients:  # nothing depends on the second coordinate
        client["H"][:, 1, :], client["H"][:, :, 1], client["e"][:, 1] = 0.0, 0.0, 0.0
    data = fjs.datasets.from_clients(clients, client_ids=IDS)

    def value(algorithm):
        result = given(TURNS, None)(algorithm, data, start(), *arguments(None)[1:])
        return jnp.sum(result.params) + jnp.sum(result.metrics["loss"])

    algorithm = arrays(fjs.fedavg(client_optimizer=adam(0.05), server_optimizer=adam(0.1)))
    gradient = jax.jit(jax.grad(value))(algorithm)
    leaves = np.array(jax.tree.leaves(gradient))
    assert np.isfinite(leaves).all()
    assert np.abs(gradient.client_optimizer.learning_rate) > 1e-6
    result = compiled(TURNS, None)(algorithm, data, *arguments(None))
    assert float(result.params[1]) == float(start()[1])
