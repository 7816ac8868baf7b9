"""What must hold for every registered algorithm: each is listed in ``CASES`` and goes through the same checks.

The order in which clients are stored, drawn and brought to the hardware changes nothing; identical clients are one
client; derivatives are those of finite differences. In double precision, and compiled without optimisation: the
programs are many and tiny.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim import descriptions

pytestmark = pytest.mark.usefixtures("x64")

sgd, adam = fjs.optim.sgd, fjs.optim.adam
SIZES = (3, 7, 9, 5, 1, 8)
N, DIM, ROUNDS = len(SIZES), 2, 3
IDS = np.array([10, 3, 7, 0, 21, 5])  # neither sorted nor consecutive
COHORTS = np.array([[0, 7, 3, 21], [10, -1, 5, 0], [5, 21, 3, 10]])  # ids; one void slot
TAU = np.array([[3, 2, 1, 5, 2, 4], [4, 1, 0, 2, 3, 3], [1, 0, 2, 2, 3, 5]])  # by client index; two are dropped
MOST = 6
SHUFFLED, IN_ORDER = fjs.local.shuffled(4), fjs.local.in_order(4)
TURNS = fjs.layout.turns()
OTHERS = (fjs.layout.stacked(), fjs.layout.lanes(2), fjs.layout.static_schedule(2))
CLIENT_RATES = np.array([0.5, 1.0, 0.7, 0.9, 0.6, 0.8])

# Constructor arguments of every algorithm, the default first; "average" goes to the cohort.
CASES = {
    "algorithm.fedavg": [
        {"client_optimizer": sgd(0.1)},
        {
            "client_optimizer": sgd(0.08, momentum=0.6, nesterov=True),
            "client_learning_rate": fjs.rates.over_clients(CLIENT_RATES),
            "server_optimizer": sgd(0.9, momentum=0.5),
            "server_learning_rate": fjs.rates.over_rounds(np.array([1.0, 0.8, 1.1])),
            "average": "plain",
        },
        {
            "client_optimizer": adam(0.05, eps=0.02, eps_root=1e-3),
            "client_learning_rate": fjs.rates.inverse_time(1.2, decay=0.4),
            "server_optimizer": adam(0.1, b2=0.9, eps=0.03, eps_root=2e-3),
        },
    ],
    "algorithm.fednova": [
        {"client_optimizer": sgd(0.1)},
        {
            "client_optimizer": sgd(0.1, momentum=0.7),
            "client_learning_rate": fjs.rates.over_clients(CLIENT_RATES),
            "server_optimizer": sgd(1.0, momentum=0.4),
            "server_learning_rate": 0.7,
        },
    ],
    "algorithm.fedprox": [
        {"client_optimizer": sgd(0.1), "mu": 0.8},
        {
            "client_optimizer": sgd(0.1, momentum=0.5),
            "mu": 0.0,
            "client_learning_rate": fjs.rates.piecewise(1.1, (1, 2), 0.6),
        },
    ],
    "algorithm.scaffold": [
        {"client_optimizer": sgd(0.1)},
        {"client_optimizer": sgd(0.08, momentum=0.4), "server_learning_rate": 0.8, "average": "sample"},
        {"client_optimizer": sgd(0.1), "option": "I", "server_learning_rate": 1.1},
    ],
}
VARIANTS = [(name, number) for name, variants in CASES.items() for number in range(len(variants))]
FAST = ("algorithm.fedavg", "algorithm.scaffold")
every_variant = pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(
            name,
            number,
            id=f"{name.partition('.')[2]}-{number}",
            marks=[] if (name in FAST and not number) else [pytest.mark.slow],
        )
        for name, number in VARIANTS
    ],
)
some_slowly = pytest.mark.parametrize(  # where a test of one method with and one without client state is a good sample
    "name",
    [
        pytest.param(name, id=name.partition(".")[2], marks=[pytest.mark.slow] if name not in FAST else [])
        for name in CASES
    ],
)
every_algorithm = pytest.mark.parametrize("name", CASES, ids=[name.partition(".")[2] for name in CASES])


def make(name, number=0):
    """``(algorithm, average)``; the hyper-parameters are arrays, as derivatives need them."""
    arguments = dict(CASES[name][number])
    average = arguments.pop("average", None)
    module = getattr(fjs, name.partition(".")[2])
    return arrays(module(**arguments)), average


def arrays(algorithm):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), algorithm)


def jit(function):
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def examples_of(seed, sizes, spread=1.0):
    """For each client examples (H, e), positive definite and all different."""
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        root = rng.standard_normal((n, DIM, DIM)) + rng.standard_normal((DIM, DIM))
        e = rng.standard_normal((n, DIM)) + spread * rng.standard_normal(DIM)
        clients.append({"H": root @ root.swapaxes(1, 2) / DIM + 0.3 * np.eye(DIM), "e": e})
    return clients


def problem():
    data = fjs.datasets.from_clients(examples_of(3, SIZES), client_ids=IDS)
    return data.with_example_weights(np.random.default_rng(5).uniform(0.5, 1.5, sum(SIZES)))


def start():
    return jnp.array([0.7, -1.1])


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
    return jit(given(layout, average, batches))


def arguments(cohorts=COHORTS, tau=TAU):
    return start(), jnp.asarray(cohorts, jnp.int32), jnp.asarray(tau, jnp.int32)


def assert_close(actual, expected, what="", tolerance=1e-10):
    def compare(a, b):
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
        name
        for name in descriptions.registered("algorithm")
        if descriptions._FACTORIES[name].__module__.startswith("fedjax_sim.")  # other tests may register their own
    ]
    assert sorted(CASES) == ours
    for name, number in VARIANTS:
        algorithm, _ = make(name, number)
        assert fjs.build(fjs.describe(algorithm)) is not None
        assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(algorithm))


@every_variant
def test_no_order_changes_anything(name, number):
    """Layouts, slots within a cohort, and the order in which clients are stored."""
    algorithm, average = make(name, number)
    data = problem()
    expected = compiled(TURNS, average)(algorithm, data, *arguments())
    assert np.isfinite(expected.metrics["loss"]).all()
    assert len(np.unique(expected.metrics["loss"])) == ROUNDS + 1
    assert expected.rounds["cohort_size"].tolist() == [4, 2, 3]
    np.testing.assert_array_equal(expected.rounds["useful_steps"], expected.rounds["computed_steps"])
    for layout in OTHERS[:2] if number == 0 else OTHERS:
        assert_same_run(compiled(layout, average)(algorithm, data, *arguments()), expected, type(layout).__name__)
    turned = np.array(
        [row[order] for row, order in zip(COHORTS, [[3, 1, 0, 2], [1, 3, 2, 0], [2, 3, 1, 0]], strict=True)]
    )
    again = compiled(TURNS, average)(algorithm, data, *arguments(turned))
    assert_same_run(again, expected, "clients in other slots")
    stored = compiled(TURNS, average)(algorithm, data.reordered([4, 0, 5, 2, 1, 3]), *arguments())
    assert_same_run(stored, expected, "clients stored in another order")


@some_slowly
def test_random_draws_know_neither_storage_nor_vmap(name):
    algorithm, average = make(name)
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=ROUNDS, cohort=fjs.cohort.uniform(3, average=average),
        work=fjs.local.random_epochs(1, 2), batch_size=4, layout=TURNS,
    )  # fmt: skip
    data, keys = problem(), jax.random.split(jax.random.key(2), 2)
    one = jit(functools.partial(train, initial_params=start()))
    runs = [one(algorithm, data, key) for key in keys]
    assert np.abs(runs[0].params - runs[1].params).max() > 1e-3  # the keys do matter
    stored = one(algorithm, data.reordered([4, 0, 5, 2, 1, 3]), keys[0])
    assert_same_run(stored, runs[0], "clients stored in another order")
    both = jit(jax.vmap(functools.partial(train, initial_params=start()), (None, None, 0)))(algorithm, data, keys)
    for i, run in enumerate(runs):
        assert_same_run(jax.tree.map(lambda leaf, i=i: leaf[i], both), run, f"vmap over keys, {i}")


@pytest.mark.slow
@pytest.mark.parametrize("layout", OTHERS[:2], ids=["stacked", "lanes"])
def test_random_draws_do_not_know_the_layout(layout):
    algorithm, _ = make("algorithm.fedavg")

    def run(layout):
        train = fjs.make_train(
            task=fjs.quadratic(), rounds=ROUNDS, cohort=fjs.cohort.with_replacement(4),
            work=fjs.local.stragglers(0.5, 3), batches=fjs.local.with_replacement(4), layout=layout,
        )  # fmt: skip
        return jit(train)(algorithm, problem(), jax.random.key(3), initial_params=start())

    assert_same_run(run(layout), run(TURNS), type(layout).__name__)


@pytest.mark.slow
@every_algorithm
def test_without_jit(name):
    algorithm, average = make(name)
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, cohort=fjs.cohort.uniform(2, average=average), work=fjs.local.steps(2),
        batch_size=4, layout=TURNS,
    )  # fmt: skip
    compiled_ = jit(train)(algorithm, problem(), jax.random.key(4), initial_params=start())
    with jax.disable_jit():
        eager = train(algorithm, problem(), jax.random.key(4), initial_params=start())
    assert_same_run(eager, compiled_, "without jit")


@some_slowly
def test_padding_changes_nothing(name):
    """A step on all of a client's examples: in pieces of any size, or as one batch larger than every client."""
    algorithm, average = make(name)
    runs = [
        compiled(TURNS, average, batches)(algorithm, problem(), *arguments())
        for batches in (fjs.local.full_batch(1), fjs.local.full_batch(4), fjs.local.in_order(100))
    ]
    for run in runs[1:]:
        assert_close((run.params, run.state, run.metrics), (runs[0].params, runs[0].state, runs[0].metrics))
    assert (runs[0].rounds["useful_steps"] > runs[2].rounds["useful_steps"]).all()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("algorithm.fedavg", 0),
        ("algorithm.scaffold", 0),
        *[
            pytest.param(name, number, marks=pytest.mark.slow)
            for name, number in VARIANTS
            if (name, number) == ("algorithm.scaffold", 2) or (number == 0 and name not in FAST)
        ],
    ],
)
def test_equal_clients_are_one_and_one_step_each_is_gradient_descent(name, number):
    algorithm, average = make(name, number)
    count, full = 4, fjs.local.full_batch(4)
    clients = examples_of(6, [3] * count)
    x, eta = np.asarray(start()), float(algorithm.client_optimizer.learning_rate)
    eta_g = float(algorithm.server_learning_rate)
    everyone = np.tile(np.arange(count), (ROUNDS, 1))

    def path(clients, tau):
        data = fjs.datasets.from_clients(clients)
        n = len(clients)
        return compiled(TURNS, average, full)(algorithm, data, *arguments(everyone[:, :n], np.full((ROUNDS, n), tau)))

    # copies of one client, of different sizes
    pair = clients[0]
    copies = [jax.tree.map(lambda leaf, k=k: np.tile(leaf, (k, *[1] * (leaf.ndim - 1))), pair) for k in (1, 2, 1, 3)]
    together, alone = path(copies, 3), path([pair], 3)
    assert_close(together.metrics, alone.metrics, "copies of a client against one")
    assert_close(together.params, alone.params, "copies of a client against one")
    H, e = pair["H"].mean(axis=0), pair["e"].mean(axis=0)
    if name != "algorithm.fedprox" and eta_g == 1:  # whose proximal term keeps even one client near x
        y = x
        for _ in range(3 * ROUNDS):
            y = y - eta * (H @ y - e)
        assert_close(alone.params, y, "one client against gradient descent")

    # different clients of one size: sum p_i F_i and (1/N) sum F_i are the same
    H = np.mean([client["H"].mean(axis=0) for client in clients], axis=0)
    e = np.mean([client["e"].mean(axis=0) for client in clients], axis=0)
    y = x
    for _ in range(ROUNDS):
        y = y - eta_g * eta * (H @ y - e)
    assert_close(path(clients, 1).params, y, "one step each against gradient descent")


# Derivatives.


def objective(layout, average, batches=IN_ORDER):
    """A scalar to which everything in the final state contributes, as a function of all that is real."""

    def value(theta):
        algorithm, weights, x0 = theta
        dataset = problem().replace(example_weights=weights)
        result = given(layout, average, batches)(algorithm, dataset, x0, *arguments()[1:])
        state = ravel_pytree([leaf for leaf in jax.tree.leaves(result.state) if leaf.dtype == x0.dtype])[0]
        return jnp.sum(result.metrics["loss"]) + state @ jnp.cos(jnp.arange(state.size, dtype=state.dtype))

    return value


def point(name, number=0):
    algorithm, average = make(name, number)
    return (algorithm, problem().example_weights, start()), average


def standard_promotion(algorithm):
    """Under strict promotion jax cannot differentiate b ** k in a real b for an integer k, which is in optax's Adam."""
    has_adam = "Adam(" in repr(algorithm)
    return jax.numpy_dtype_promotion("standard") if has_adam else contextlib.nullcontext()


def directional(value, theta, individually):
    """Directions [M, P] in the flattened theta, and fourth-order central differences of ``value`` along them.

    One direction for each of the first ``individually`` coordinates and for the last two, one for all others.
    """
    flat, unravel = ravel_pytree(theta)
    rest = np.zeros(flat.size)
    rest[individually:-2] = np.random.default_rng(8).standard_normal(flat.size - individually - 2)
    rows = np.eye(flat.size)
    directions = np.stack([*rows[:individually], rest, *rows[-2:]])
    scales = np.abs(directions * np.asarray(flat)).max(axis=1)
    steps = 1e-3 * np.where(scales == 0, 1.0, np.minimum(scales, 1.0))
    offsets = np.array([-2.0, -1.0, 1.0, 2.0])
    points = np.asarray(flat) + (offsets[None, :, None] * steps[:, None, None]) * directions[:, None, :]
    values = jit(lambda points: jax.lax.map(lambda p: value(unravel(p)), points))(points.reshape(-1, flat.size))
    return directions, values.reshape(-1, 4) @ np.array([1.0, -8.0, 8.0, -1.0]) / (12 * steps)


@every_variant
def test_gradient_is_that_of_finite_differences(name, number):
    """With respect to every hyper-parameter, the example weights and the initial parameters."""
    theta, average = point(name, number)
    value = objective(TURNS, average)
    with standard_promotion(theta):
        directions, expected = directional(value, theta, ravel_pytree(theta[0])[0].size)
        assert (np.abs(expected) > 1e-6).all()  # not a comparison of zeros
        actual = directions @ np.asarray(ravel_pytree(jit(jax.grad(value))(theta))[0])
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@every_algorithm
def test_every_layout_has_one_gradient(name):
    theta, average = point(name)
    batches = SHUFFLED if name == "algorithm.fedavg" else IN_ORDER
    expected = jit(jax.grad(objective(TURNS, average, batches)))(theta)
    for layout in OTHERS[:2]:
        gradient = jit(jax.grad(objective(layout, average, batches)))(theta)
        assert_close(gradient, expected, type(layout).__name__, 1e-9)


@pytest.mark.slow
@every_algorithm
def test_forward_and_mapped_derivatives(name):
    (algorithm, weights, x0), average = point(name)

    def value(algorithm):
        return objective(TURNS, average)((algorithm, weights, x0))

    gradient = jit(jax.grad(value))
    expected = gradient(algorithm)
    assert_close(jit(jax.jacfwd(value))(algorithm), expected, "jacfwd", 1e-9)
    other = jax.tree.map(lambda leaf: 0.8 * leaf, algorithm)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), algorithm, other)
    mapped = jit(jax.vmap(jax.grad(value)))(both)
    for i, one in enumerate((expected, gradient(other))):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], mapped), one, "vmap(grad)", 1e-9)


@pytest.mark.slow
def test_gradient_in_the_task_s_weight_decay():
    rng = np.random.default_rng(9)
    clients = [(rng.standard_normal((n, DIM)), rng.integers(0, 3, n)) for n in SIZES]
    data = fjs.datasets.from_clients(clients, client_ids=IDS, num_classes=3)
    algorithm, _ = make("algorithm.fedavg")
    model = fjs.models.LogisticRegression(3, param_dtype=jnp.float64)

    def final_loss(weight_decay):
        train = fjs.make_train(
            task=fjs.classification(model, weight_decay=weight_decay), rounds=ROUNDS, batches=fjs.local.in_order(4),
            cohort=fjs.cohort.given(COHORTS), work=fjs.local.given_steps(TAU), eval_every=ROUNDS, layout=TURNS,
        )  # fmt: skip
        return train(algorithm, data, jax.random.key(5)).metrics["loss"][-1]

    h = 1e-4
    around = jit(lambda at: jax.lax.map(final_loss, at))(0.3 + h * np.array([-2.0, -1.0, 1.0, 2.0]))
    expected = np.asarray(around) @ np.array([1.0, -8.0, 8.0, -1.0]) / (12 * h)
    assert expected > 1e-3
    np.testing.assert_allclose(jit(jax.grad(final_loss))(jnp.array(0.3)), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_learning_rate_inside_a_bare_optax_object():
    """Closed over by optax, where no derivative of ours can see it, unless it is made explicit."""
    data, x0 = problem(), start()

    def value(rates, algorithm_of):
        result = given(TURNS, None)(algorithm_of(*rates), data, x0, *arguments()[1:])
        return jnp.sum(result.metrics["loss"])

    def bare(rate, server_rate):
        return fjs.fedavg(client_optimizer=optax.sgd(rate), server_optimizer=optax.sgd(server_rate, momentum=0.5))

    def described(rate, server_rate):
        return fjs.fedavg(client_optimizer=sgd(rate), server_optimizer=sgd(server_rate, momentum=0.5))

    rates = [(jnp.array(0.1), jnp.array(0.9)), (jnp.array(0.07), jnp.array(1.2))]
    gradient = jit(jax.grad(functools.partial(value, algorithm_of=described)))
    expected = [gradient(pair) for pair in rates]
    of_bare = functools.partial(value, algorithm_of=bare)
    assert_close(jit(jax.grad(of_bare))(rates[0]), expected[0], "jit(grad)")
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rates)
    mapped = jit(jax.vmap(jax.grad(of_bare)))(both)
    for i in range(2):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], mapped), expected[i], "vmap(grad)")


@pytest.mark.slow
def test_a_learning_rate_inside_a_bare_optax_object_without_jit():
    data, x0 = problem(), start()

    def value(rate, optimizer):
        algorithm = fjs.fedavg(client_optimizer=optimizer(rate))
        return given(TURNS, None)(algorithm, data, x0, *arguments()[1:]).metrics["loss"][-1]

    expected = jit(jax.grad(functools.partial(value, optimizer=sgd)))(jnp.array(0.1))
    assert_close(jax.grad(functools.partial(value, optimizer=optax.sgd))(jnp.array(0.1)), expected, "grad")
    in_parallel = jit(jax.vmap(functools.partial(value, optimizer=optax.sgd)))(jnp.array([0.1, 0.2]))
    assert in_parallel[0] != in_parallel[1]


@pytest.mark.slow
def test_adam_s_gradient_is_finite_where_a_gradient_is_zero():
    """The root in Adam's denominator has no derivative at zero; its default ``eps_root`` moves it away from there."""
    clients = examples_of(3, SIZES)
    for client in clients:  # nothing depends on the second coordinate
        client["H"][:, 1, :], client["H"][:, :, 1], client["e"][:, 1] = 0.0, 0.0, 0.0
    data = fjs.datasets.from_clients(clients, client_ids=IDS)

    def value(algorithm):
        result = given(TURNS, None)(algorithm, data, start(), *arguments()[1:])
        return jnp.sum(result.params) + jnp.sum(result.metrics["loss"])

    algorithm = arrays(fjs.fedavg(client_optimizer=adam(0.05), server_optimizer=adam(0.1)))
    with standard_promotion(algorithm):
        gradient = jit(jax.grad(value))(algorithm)
    leaves = np.array(jax.tree.leaves(gradient))
    assert np.isfinite(leaves).all()
    assert np.abs(gradient.client_optimizer.learning_rate) > 1e-6
    result = compiled(TURNS, None)(algorithm, data, *arguments())
    assert float(result.params[1]) == float(start()[1])
