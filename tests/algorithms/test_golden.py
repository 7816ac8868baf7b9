"""Golden trajectories: whole runs of the package against the plain numpy of ``reference.py``, in double precision.

Six clients of unequal size, given cohorts with void slots, steps that differ by client and round, clients dropped by
zero steps, a round in which everybody is dropped and one in which nobody is drawn.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim.algorithms import FedNova
from fedjax_sim.clients.local.work import Turn
from fedjax_sim.core.keys import client_draws
from fedjax_sim.core.trees import square, subtract
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.plan import Plan, TrainState
from fedjax_sim.engine.rounds import init_state, run_round
from fedjax_sim.run.training import TrainResult
from tests import reference

N, ROUNDS = 6, 5
COHORTS = np.array([[0, 2, 3, 5], [4, -1, 1, 0], [1, 3, -1, 5], [-1, -1, -1, -1], [5, 4, 1, 2]])  # by client index
TAU = np.array([[1, 2, 3, 4, 5, 2], [3, 5, 1, 1, 4, 2], [2, 0, 3, 0, 1, 0], [1, 1, 1, 1, 1, 1], [4, 1, 6, 2, 0, 3]])
CLIENT_RATES = np.array([0.02, 0.05, 0.04, 0.03, 0.06, 0.01])
ROUND_RATES = np.array([0.06, 0.05, 0.04, 0.03, 0.02])
SERVER_RATES = np.array([1.0, 0.7, 1.0, 1.0, 1.4])
KEY = jax.random.key(7)
slow = pytest.mark.slow


class QuadraticProblem:
    """F_i = 1/2 x^T H_i x - e_i^T x, of n_i equal examples each."""

    task = fjs.quadratic()
    ids = np.arange(N)

    def __init__(self, batches):
        rng = np.random.default_rng(1)
        root = rng.standard_normal((N, 4, 4))
        H, e, sizes = root @ root.swapaxes(1, 2) / 4 + 0.5 * np.eye(4), rng.standard_normal((N, 4)), [1, 2, 5, 3, 1, 4]
        self.batches = batches
        self.dataset = fjs.datasets.quadratics_from(H, e, sizes=sizes)
        self.clients = [reference.QuadraticClient(*client) for client in zip(H, e, sizes, strict=True)]
        self.x0 = rng.standard_normal(4)

    def initial_params(self):
        return jnp.asarray(self.x0)


class LogisticProblem:
    """Three classes, four features, penalty 0.05 |w|^2; ids that are neither sorted nor consecutive."""

    task = fjs.classification(fjs.models.LogisticRegression(3, param_dtype=jnp.float64), weight_decay=0.05)

    def __init__(self, batches, batch_size):
        rng = np.random.default_rng(2)
        data = [
            (rng.standard_normal((n, 4)) + rng.standard_normal(4), rng.integers(0, 3, n)) for n in (3, 7, 10, 5, 1, 8)
        ]
        ids = np.array([10, 3, 7, 0, 21, 5])
        self.batches = batches
        self.dataset = fjs.datasets.from_clients(data, client_ids=ids, num_classes=3)
        self.ids = np.sort(ids)
        in_order = [data[position] for position in np.argsort(ids)]
        self.clients = [reference.LogisticClient(x, y, 3, 0.05, batch_size) for x, y in in_order]
        self.x0 = rng.standard_normal(15)

    def initial_params(self):
        zeros = {"bias": jnp.zeros(3), "kernel": jnp.zeros((4, 3))}
        return ravel_pytree({"params": {"Dense_0": zeros}})[1](jnp.asarray(self.x0))


PROBLEMS = {
    "whole": lambda: QuadraticProblem(fjs.local.full_batch()),
    # every client of more than two examples needs several pieces for one gradient
    "quadratic": lambda: QuadraticProblem(fjs.local.full_batch(piece_size=2)),
    # batches of 4, the last of an epoch partial for 5 of 6 clients
    "logistic": lambda: LogisticProblem(fjs.local.in_order(4), 4),
    "logistic-full": lambda: LogisticProblem(fjs.local.full_batch(piece_size=4), None),
}


@functools.lru_cache
def compiled(batches, average, layout):
    """One program for each structure: cohorts, steps and hyper-parameters are arguments."""

    @functools.partial(jax.jit, static_argnums=0)
    def run(problem_task, algorithm, dataset, cohorts, tau, x0) -> TrainResult:
        train = fjs.make_train(
            task=problem_task, rounds=cohorts.shape[0], batches=batches, layout=layout,
            cohort=fjs.cohort.given(cohorts, average=average), work=fjs.local.given_steps(tau, most=6),
            evaluate=lambda params, _: {"x": ravel_pytree(params)[0]},
        )  # fmt: skip
        return train(algorithm, dataset, KEY, initial_params=x0)

    return run


def whole_run(problem, algorithm, *, cohorts=COHORTS, tau=TAU, average=None, layout=None) -> TrainResult:
    ids = np.where(cohorts < 0, -1, problem.ids[cohorts])
    arrays = jnp.asarray(ids, jnp.int32), jnp.asarray(tau, jnp.int32)
    program = compiled(problem.batches, average, layout)
    return program(problem.task, algorithm, problem.dataset, *arrays, problem.initial_params())


class Followed(NamedTuple):
    """A run round by round.

    Attributes:
      x: evaluated models x_0 .. x_T, [T + 1, d].
      params: the last of them.
      state: the last one.
      rounds: what each recorded, leading axis rounds.
    """

    x: np.ndarray
    params: object
    state: TrainState
    rounds: dict[str, np.ndarray]


@jax.jit
def one_round(plan, state, t):
    state, record = run_round(plan, state, t)
    return state, record, plan.algorithm.evaluated(state.server)


def follow(asked, algorithm, dataset, params, rounds, key=KEY) -> Followed:
    """The rounds one after another: the program of one takes half as long to compile as that of a whole run."""
    plan = resolve(asked._replace(algorithm=algorithm, dataset=dataset, key=key), rounds, params)
    state = init_state(plan, params)
    models, records = [plan.algorithm.evaluated(state.server)], []
    for t in range(rounds):
        state, record, params = one_round(plan, state, jnp.int32(t))
        models.append(params)
        records.append(record)
    x = np.stack([np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model)]) for model in models])
    return Followed(x, params, state, {name: np.stack([record[name] for record in records]) for name in records[0]})


def run(problem, algorithm, *, cohorts=COHORTS, tau=TAU, average=None, layout=None) -> Followed:
    ids = np.where(cohorts < 0, -1, problem.ids[cohorts])
    asked = Plan(
        task=problem.task, cohort=fjs.cohort.given(ids, average=average), work=fjs.local.given_steps(tau, most=6),
        batches=problem.batches, layout=layout,
    )  # fmt: skip
    return follow(asked, algorithm, problem.dataset, problem.initial_params(), len(tau))


def drawn(cohort, dataset, rounds):
    """The cohorts that a run with KEY draws, on the host."""
    all_ = jax.jit(jax.vmap(lambda t: cohort.draw(dataset, KEY, t)))(jnp.arange(rounds, dtype=jnp.int32))
    return [jax.tree.map(lambda leaf, t=t: np.asarray(leaf[t]), all_) for t in range(rounds)]


def assert_equal(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def objective(clients, x):
    """F = sum p_i F_i."""
    return sum(client.size * client.loss(x) for client in clients) / sum(client.size for client in clients)


def by_client(t, i):
    return CLIENT_RATES[i]


def by_round(t, i):
    return ROUND_RATES[t]


def server(t):
    return SERVER_RATES[t]


def over_clients():
    return fjs.rates.over_clients(CLIENT_RATES)


def over_rounds():
    return fjs.rates.over_rounds(ROUND_RATES)


@pytest.mark.parametrize(
    ("kind", "average"),
    [
        pytest.param("quadratic", "sample", marks=slow),
        pytest.param("logistic", "plain", marks=slow),
        ("logistic-full", "sample"),
    ],
)
def test_fedavg(x64, kind, average):
    problem = PROBLEMS[kind]()
    algorithm = fjs.fedavg(
        client_optimizer=fjs.optim.sgd(1.0),
        client_learning_rate=over_clients(),
        server_learning_rate=fjs.rates.over_rounds(SERVER_RATES),
    )
    result = whole_run(problem, algorithm, average=average)
    expected = reference.fedavg(problem.clients, problem.x0, COHORTS, TAU, by_client, eta_g=server, average=average)
    assert result.metrics["x"].dtype == jnp.float64
    assert_equal(result.metrics["x"], expected)
    assert_equal(result.metrics["loss"], [objective(problem.clients, x) for x in expected])
    np.testing.assert_array_equal(result.metrics["x"][-2], result.metrics["x"][-3])  # nobody was drawn
    assert_equal(ravel_pytree(result.params)[0], expected[-1])
    assert result.rounds["cohort_size"].tolist() == [4, 3, 0, 0, 3]
    pieces = [-(-client.size // 4) if kind == "logistic-full" else 1 for client in problem.clients]
    if kind != "quadratic":
        useful = [sum(TAU[t, i] * pieces[i] for i in reference.members(COHORTS[t], TAU[t])) for t in range(ROUNDS)]
        assert result.rounds["useful_steps"].tolist() == useful


def test_fedavg_with_momentum_on_both_sides(x64):
    # FedAvgM: m <- beta m + Delta, x <- x + eta_g m; neither moves in a round without clients
    problem = PROBLEMS["quadratic"]()
    algorithm = fjs.fedavg(
        client_optimizer=fjs.optim.sgd(0.5, momentum=0.8),
        client_learning_rate=over_rounds(),
        server_optimizer=fjs.optim.sgd(1.0, momentum=0.6),
        server_learning_rate=0.9,
    )
    result = run(problem, algorithm)
    expected = reference.fedavg(
        problem.clients,
        problem.x0,
        COHORTS,
        TAU,
        lambda t, i: 0.5 * by_round(t, i),
        eta_g=lambda t: 0.9,
        rho=0.8,
        beta=0.6,
    )
    assert_equal(result.x, expected)


@pytest.mark.parametrize("kind", ["quadratic", pytest.param("logistic-full", marks=slow)])
def test_fedprox_through_the_momentum_buffer(x64, kind):
    problem = PROBLEMS[kind]()
    for mu, rho in [(0.7, 0.8), (3.0, 0.0), (0.0, 0.5)]:
        algorithm = fjs.fedprox(
            mu=mu, client_optimizer=fjs.optim.sgd(1.0, momentum=rho), client_learning_rate=over_rounds()
        )
        expected = reference.fedavg(problem.clients, problem.x0, COHORTS, TAU, by_round, mu=mu, rho=rho)
        assert_equal(run(problem, algorithm).x, expected)


@pytest.mark.parametrize(
    ("kind", "rate", "eta"),
    [("logistic", over_clients, by_client), pytest.param("logistic-full", over_rounds, by_round, marks=slow)],
)
def test_fednova(x64, kind, rate, eta):
    problem = PROBLEMS[kind]()
    for rho in (0.0, 0.9):
        algorithm = fjs.fednova(
            client_optimizer=fjs.optim.sgd(0.8, momentum=rho),
            client_learning_rate=rate(),
            server_learning_rate=fjs.rates.over_rounds(SERVER_RATES),
        )
        expected = reference.fednova(
            problem.clients, problem.x0, COHORTS, TAU, lambda t, i: 0.8 * eta(t, i), eta_g=server, rho=rho
        )
        assert_equal(run(problem, algorithm).x, expected)


class FedNovaProx(FedNova):
    """FedNova whose local solver has a proximal term: the slope is of the solver with it."""

    def objective(self, F, y, k, sent, c_i, client):
        return F(y) + 1.5 / 2 * square(subtract(y, sent.params))


def test_fednova_with_a_proximal_term(x64):
    # a of proximal SGD with momentum, from the unrolled solver; tau_eff = sum w_i ||a_i||_1
    problem = PROBLEMS["quadratic"]()
    algorithm = FedNovaProx(client_optimizer=fjs.optim.sgd(0.1, momentum=0.4), client_learning_rate=over_clients())
    expected = reference.fednova(
        problem.clients, problem.x0, COHORTS, TAU, lambda t, i: 0.1 * by_client(t, i), mu=1.5, rho=0.4
    )
    assert_equal(run(problem, algorithm).x, expected)


@pytest.mark.parametrize(
    ("kind", "option", "average"),
    [
        pytest.param("quadratic", "II", "sample", marks=slow),
        ("logistic", "II", "plain"),
        pytest.param("logistic", "I", "sample", marks=slow),
    ],
)
def test_scaffold(x64, kind, option, average):
    problem = PROBLEMS[kind]()
    algorithm = fjs.scaffold(
        option=option,
        client_optimizer=fjs.optim.sgd(0.9),
        client_learning_rate=over_clients(),
        server_learning_rate=fjs.rates.over_rounds(SERVER_RATES),
    )
    result = run(problem, algorithm, average=None if average == "plain" else average)  # plain is its default
    expected = reference.scaffold(
        problem.clients, problem.x0, COHORTS, TAU, lambda t, i: 0.9 * by_client(t, i),
        option=option, eta_g=server, average=average,
    )  # fmt: skip
    assert_equal(result.x, expected.x)
    assert_equal(ravel_pytree(result.state.server.extra)[0], expected.c[-1])
    assert_equal(jax.vmap(lambda tree: ravel_pytree(tree)[0])(result.state.clients), expected.c_i[-1])


@pytest.mark.slow
def test_scaffold_with_momentum(x64):
    # option II with the solver's slope eta s_i in the place of tau_i eta
    problem = PROBLEMS["quadratic"]()
    algorithm = fjs.scaffold(client_optimizer=fjs.optim.sgd(1.0, momentum=0.7), client_learning_rate=over_rounds())
    result = run(problem, algorithm)
    expected = reference.scaffold(problem.clients, problem.x0, COHORTS, TAU, by_round, option="II", rho=0.7)
    assert_equal(result.x, expected.x)
    assert_equal(ravel_pytree(result.state.server.extra)[0], expected.c[-1])


@slow
@pytest.mark.parametrize("make", [fjs.fednova, fjs.scaffold], ids=["fednova", "scaffold"])
def test_step_sizes_by_parameter(x64, make):
    # a pytree like the parameters: a number for the bias, an array for the kernel
    problem = PROBLEMS["logistic"]()
    kernel = 0.01 * (1 + np.arange(12.0).reshape(4, 3))
    vector = np.concatenate([np.full(3, 0.2), kernel.ravel()])
    algorithm = make(
        client_optimizer=fjs.optim.sgd(1.0, momentum=0.5),
        client_learning_rate={"params": {"Dense_0": {"bias": 0.2, "kernel": jnp.asarray(kernel)}}},
    )
    result = run(problem, algorithm)
    arguments = (problem.clients, problem.x0, COHORTS, TAU, lambda t, i: vector)
    if make is fjs.scaffold:
        expected = reference.scaffold(*arguments, option="II", rho=0.5).x
    else:
        expected = reference.fednova(*arguments, rho=0.5)
    assert_equal(result.x, expected)


@slow
@pytest.mark.parametrize(
    "layout", [fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2)], ids=["turns", "stacked", "lanes"]
)
def test_every_layout(x64, layout):
    # the hardest local work: a survey, then gradients in several pieces, with void slots and dropped clients
    problem = PROBLEMS["logistic-full"]()
    algorithm = fjs.scaffold(option="I", client_optimizer=fjs.optim.sgd(1.0), client_learning_rate=over_clients())
    result = run(problem, algorithm, layout=layout)
    expected = reference.scaffold(problem.clients, problem.x0, COHORTS, TAU, by_client, option="I")
    assert_equal(result.x, expected.x)
    assert_equal(jax.vmap(lambda tree: ravel_pytree(tree)[0])(result.state.clients), expected.c_i[-1])
    pieces = [-(-client.size // 4) for client in problem.clients]  # of a survey, and of each step
    useful = [sum((1 + TAU[t, i]) * pieces[i] for i in reference.members(COHORTS[t], TAU[t])) for t in range(ROUNDS)]
    assert result.rounds["useful_steps"].tolist() == useful


@pytest.mark.slow
def test_scheme_one_counts_duplicates(x64):
    # Scheme I: the mean over K draws with multiplicity; the compiled run trains each client once
    problem = PROBLEMS["whole"]()
    cohort = fjs.cohort.with_replacement(7)
    repeated = []
    for draw in drawn(cohort, problem.dataset, 3):
        count = np.rint(7 * np.asarray(draw.weights)).astype(int)
        assert count.sum() == 7
        assert (count[~np.asarray(draw.mask)] == 0).all()
        repeated.append(np.repeat(np.asarray(draw.ids), count))
    assert max(len(row) - len(set(row)) for row in repeated) >= 2  # these draws do repeat clients
    tau = 1 + TAU[:3]
    tau[:, 2] = 0  # who is dropped stays at x
    asked = Plan(problem.task, cohort, fjs.local.given_steps(tau), problem.batches)
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(1.0), client_learning_rate=over_clients())
    result = follow(asked, algorithm, problem.dataset, problem.initial_params(), 3)
    assert_equal(result.x, reference.scheme_one(problem.clients, problem.x0, repeated, tau, by_client))
    assert all(2 in row for row in repeated)
    assert result.rounds["cohort_size"].tolist() == [len(set(row) - {2}) for row in repeated]


def test_example_weights(x64):
    # F_i = (1/n_i) sum_j v_j loss_j + penalty: a batch divides by its number of examples, not by their weights
    problem = PROBLEMS["logistic"]()
    v = np.random.default_rng(8).uniform(0, 2, problem.dataset.num_examples)
    problem.dataset = problem.dataset.with_example_weights(v)
    for index, position in enumerate(np.asarray(problem.dataset.order)):
        first = int(problem.dataset.offsets[position])
        problem.clients[index].v = v[first : first + problem.clients[index].size]
    result = whole_run(problem, fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)))
    expected = reference.fedavg(problem.clients, problem.x0, COHORTS, TAU, lambda t, i: 0.1)
    assert_equal(result.metrics["x"], expected)
    assert_equal(result.metrics["loss"], [objective(problem.clients, x) for x in expected])


@pytest.mark.slow
def test_draws_on_the_host_are_those_of_the_run(x64):
    # A uniform cohort, random epochs, shuffled batches: cohorts read by `draw` on the host, steps and batches drawn
    # again from the run's key; replayed in numpy they give the run's own trajectory.
    problem = PROBLEMS["logistic"]()
    cohort, work, batches, rounds = fjs.cohort.uniform(3), fjs.local.random_epochs(1, 3), fjs.local.shuffled(4), 4
    train = fjs.make_train(
        task=problem.task, rounds=rounds, cohort=cohort, work=work, batches=batches,
        evaluate=lambda params, _: {"x": ravel_pytree(params)[0]},
    )  # fmt: skip
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
    result = jax.jit(train)(algorithm, problem.dataset, KEY, initial_params=problem.initial_params())

    draws = drawn(cohort, problem.dataset, rounds)
    ids = np.array([draw.ids for draw in draws])
    cohorts = np.searchsorted(problem.ids, ids)
    assert len({tuple(sorted(row)) for row in ids}) > 1  # the cohorts differ
    sizes = np.array([client.size for client in problem.clients])
    for draw, members in zip(draws, cohorts, strict=True):
        assert bool(draw.mask.all())
        assert_equal(draw.weights, sizes[members] / sizes[members].sum())

    epoch = -(-sizes // 4)
    numbers, keyed_by = jnp.arange(N, dtype=jnp.int32), jnp.asarray(problem.ids, jnp.int32)

    @jax.jit
    @jax.vmap
    def again(t):
        """tau [N], rows [N, 9, 4] and their mask in round t: at most 3 epochs of 3 batches of 4."""
        words = client_draws(KEY, t, keyed_by)
        tau = work.steps(Turn(words, t, numbers, keyed_by, jnp.ones(N, bool), jnp.asarray(epoch, jnp.int32)))
        prepared = batches.prepare(words)
        steps = jnp.arange(9, dtype=jnp.int32)
        over_steps = jax.vmap(lambda p, size, k: batches.positions(p, size, k, 4), (None, None, 0))
        return tau, jax.vmap(over_steps, (0, 0, None))(prepared, jnp.asarray(sizes, jnp.int32), steps)[:2]

    tau, (rows, mask) = jax.tree.map(np.asarray, again(jnp.arange(rounds, dtype=jnp.int32)))
    assert len(set((tau / epoch).ravel().tolist())) == 3  # all of 1, 2 and 3 epochs
    x = problem.x0
    for t, members in enumerate(cohorts):
        for i, client in enumerate(problem.clients):
            client.batches = [rows[t, i, k][mask[t, i, k]] for k in range(tau[t, i])]
            first_epoch = np.concatenate(client.batches[: epoch[i]])
            assert sorted(first_epoch) == list(range(client.size))  # every example exactly once an epoch
            if client.size > 4 and tau[t, i] > epoch[i]:
                second_epoch = np.concatenate(client.batches[epoch[i] : 2 * epoch[i]])
                assert sorted(second_epoch) == list(range(client.size))
                assert second_epoch.tolist() != first_epoch.tolist()  # in a fresh order
        x = reference.fedavg(problem.clients, x, [members], tau[t : t + 1], lambda t, i: 0.1)[-1]
        assert_equal(result.metrics["x"][t + 1], x)
    assert result.rounds["useful_steps"].tolist() == [int(tau[t, cohorts[t]].sum()) for t in range(rounds)]
