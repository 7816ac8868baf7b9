"""Asynchronous aggregation: the compiled event queue against a heap in Python, and what must hold of any queue."""

import functools
import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import asynchronous, systems
from fedjax_sim.core.keys import Purpose, cohort_key, purpose_key
from fedjax_sim.engine.arguments import asked_of
from tests import reference
from tests.algorithms.test_golden import follow

KEY = jax.random.key(5)
N, M, DIM, SIZES = 6, 3, 4, [1, 2, 5, 3, 1, 4]
ETA, MU = 0.1, 0.4
SECONDS = np.array([0.31, 0.17, 1.07, 0.53, 0.23, 0.71])  # a local step
LATENCY = np.array([0.013, 0.11, 0.047, 0.019, 0.29, 0.083])
ROUNDS = 9
TAU = np.random.default_rng(3).integers(0, 4, (ROUNDS, N))
BROKEN = np.arange(N) == 1  # whose local work diverges in a second step, in a run that skips it
TAU[:, BROKEN] = 2 * (TAU[:, BROKEN] > 0)
RATES = np.random.default_rng(6).uniform(0.5, 1.5, (ROUNDS, N))  # of rounds and of clients

every_layout = pytest.mark.parametrize(
    "layout", [fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2)], ids=["turns", "stacked", "lanes"]
)


@functools.cache
def problem():
    rng = np.random.default_rng(4)
    root = rng.standard_normal((N, DIM, DIM))
    H = root @ root.swapaxes(1, 2) / DIM + 0.3 * np.eye(DIM)
    return H, rng.standard_normal((N, DIM)), rng.standard_normal(DIM)


def quadratics():
    H, e, _ = problem()
    return fjs.datasets.quadratics_from(H, e, sizes=SIZES)


def fleet(**more):
    return systems.devices(seconds_per_step=jnp.asarray(SECONDS), latency=jnp.asarray(LATENCY), **more)


def arguments(scheme, **changes):
    run = {
        "task": fjs.quadratic(),
        "rounds": ROUNDS,
        "cohort": fjs.cohort.uniform(M),
        "work": fjs.local.steps(3),
        "batches": fjs.local.full_batch(),
        "system": fleet(),
        "asynchronous": scheme,
        "evaluate": lambda x, _: {"x": x},
    }
    return run | changes


def train(algorithm, scheme, **changes):
    _, _, x0 = problem()
    return follow_run(arguments(scheme, **changes), algorithm, quadratics(), jnp.asarray(x0))


def follow_run(run, algorithm, data, params=None):
    asked, rounds = asked_of(run)
    return follow(asked, algorithm, data, params, rounds, KEY)


def sgd():
    return fjs.optim.sgd(ETA)


def event_by_event(*, messages, tau, weigh, mix=False, mu=0.0, eta_g=lambda t: 1.0, rate=lambda t, i: 1.0):
    """The same run with a heap, in absolute time, one client at a time.

    Args:
      messages: K.
      tau: ``tau(version, client)``, 0 for a client that fails.
      weigh: ``weigh(clients, staleness)``: weights of the K messages.
      mix: whether the server takes y - x and not the client's own change.
      mu: of the proximal term.
      eta_g: server learning rate of a round.
      rate: ``rate(version, client)``, what multiplies the local learning rate.
    """
    H, e, x = problem()
    clients = [reference.QuadraticClient(*client) for client in zip(H, e, SIZES, strict=True)]
    scheme, data = fjs.cohort.uniform(M), quadratics()
    further = purpose_key(KEY, Purpose.REDRAW)
    lists = []
    for t in range(ROUNDS + 1):
        order = np.argsort(jax.random.bits(cohort_key(further, jnp.int32(t)), (M,), jnp.uint32))
        lists.append(np.asarray(scheme.draw(data, KEY, t).ids)[order].tolist())
    heap, buffer, record, now, last, version, redraws = [], [], [], 0.0, 0.0, 0, 0
    while version < ROUNDS:
        busy = {client for _, client, _, _ in heap}
        while len(busy) < M:
            while lists[version] and lists[version][0] in busy:
                del lists[version][0]
            if lists[version]:
                client = lists[version].pop(0)
            else:
                redraws += 1
                own = jax.random.fold_in(further, redraws)
                word = int(jax.random.bits(cohort_key(own, jnp.int32(version)), (), jnp.uint32))
                idle = sorted(set(range(N)) - busy)
                client = idle[word * len(idle) >> 32]
            busy.add(client)
            arrival = now + 2 * LATENCY[client] + tau(version, client) * SECONDS[client]
            heapq.heappush(heap, (arrival, client, version, x))
        now, client, began, start = heapq.heappop(heap)
        steps = tau(began, client)
        if steps == 0:
            continue
        y, _ = reference.solve(clients[client], start, steps, ETA * rate(began, client), mu=mu)
        buffer.append((client, version - began, y, start))
        if len(buffer) == messages:
            who, staleness, ys, starts = (list(part) for part in zip(*buffer, strict=True))
            weights = weigh(np.array(who), np.array(staleness, float))
            changes = np.array(ys) - (x if mix else np.array(starts))
            x = x + eta_g(version) * weights @ changes
            record.append((who, staleness, now - last, x))
            buffer, last, version, redraws = [], now, version + 1, 0
    return [np.array(part) for part in zip(*record, strict=True)]


def sample(clients):
    """Shares of those who are not skipped, whatever their staleness."""
    sizes = np.where(BROKEN, 0, np.array(SIZES, float))[clients]
    return sizes / max(sizes.sum(), 1)


CASES = {
    "fedbuff with lost messages and a client that is skipped": (
        lambda: {
            "algorithm": fjs.fedavg(
                client_optimizer=sgd(),
                client_learning_rate=fjs.rates.over_clients(np.where(BROKEN, 1e308, RATES[0])),
                server_learning_rate=fjs.rates.over_rounds(RATES[:, 0]),
            ),
            "scheme": asynchronous.fedbuff(2, staleness=asynchronous.hinge(2.0, 1.0)),
            "work": fjs.local.given_steps(TAU),
            "layout": fjs.layout.turns(),
            "skip_nonfinite": True,
        },
        {
            "messages": 2,
            "tau": lambda t, i: int(TAU[min(t, ROUNDS - 1), i]),
            "weigh": lambda who, s: sample(who) / (2.0 * np.maximum(s - 1, 0) + 1),
            "rate": lambda t, i: RATES[0, i],
            "eta_g": lambda t: RATES[t, 0],
        },
    ),
    "fedbuff of more messages than slots": (
        lambda: {
            "algorithm": fjs.fedavg(
                client_optimizer=sgd(),
                server_learning_rate=0.7,
                client_learning_rate=fjs.rates.over_rounds(RATES[:, 0]),
            ),
            "scheme": asynchronous.fedbuff(5),
            "cohort": fjs.cohort.uniform(M, average="plain"),
            "layout": fjs.layout.stacked(),
        },
        {
            "messages": 5,
            "tau": lambda t, i: 3,
            "weigh": lambda who, s: 1 / np.sqrt(1 + s) / 5,
            "rate": lambda t, i: RATES[t, 0],  # of the round that a client began in, however late it is
            "eta_g": lambda t: 0.7,
        },
    ),
    "fedasync": (
        lambda: {
            "algorithm": fjs.fedprox(client_optimizer=sgd(), mu=MU),
            "scheme": asynchronous.fedasync(0.6, staleness=asynchronous.polynomial(0.3)),
            "layout": fjs.layout.lanes(2),
        },
        {"messages": 1, "tau": lambda t, i: 3, "weigh": lambda who, s: 0.6 * (1 + s) ** -0.3, "mix": True, "mu": MU},
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if "skipped" in case else pytest.mark.slow) for case in CASES]
)
def test_the_queue_is_that_of_a_heap(x64, case):
    ours, theirs = CASES[case]
    result = train(**ours())
    who, staleness, durations, xs = event_by_event(**theirs)
    np.testing.assert_array_equal(result.rounds["client_ids"], who)
    np.testing.assert_array_equal(result.rounds["client_staleness"], staleness)
    np.testing.assert_allclose(result.rounds["duration"], durations, rtol=1e-9)
    np.testing.assert_allclose(result.x[1:], xs, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(result.rounds["staleness_max"], staleness.max(axis=1))
    np.testing.assert_allclose(result.rounds["staleness_mean"], staleness.mean(axis=1))
    levels = np.quantile(staleness, [0, 0.25, 0.5, 0.75, 1], axis=1).T
    np.testing.assert_allclose(result.rounds["staleness"], levels)
    assert staleness.max() >= 1


def random_run(scheme, **changes):
    """A run with random work and batches, for comparisons of draws."""
    run = {
        "task": fjs.quadratic(),
        "rounds": 3,
        "work": fjs.local.random_epochs(1, 3),
        "batch_size": 4,
        "asynchronous": scheme,
        "system": None if scheme is None else systems.devices(seconds_per_step=0.0, latency=0.5),
    }
    H, e, _ = problem()
    shifts = np.random.default_rng(7).standard_normal((N, 20, DIM))
    examples = [{"H": np.broadcast_to(H[i], (20, DIM, DIM)), "e": e[i] + shifts[i]} for i in range(N)]
    data = fjs.datasets.from_clients(examples)
    method = fjs.fedavgm(client_optimizer=fjs.optim.sgd(0.02))
    return follow_run(run | changes, method, data)


SYNCHRONOUS = [
    pytest.param(cohort, layout, id=f"{name} {type(layout).__name__}")
    for name, cohort in (("uniform", fjs.cohort.uniform(4)), ("full", fjs.cohort.full()))
    for layout in (fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2))
]


@pytest.mark.slow
@pytest.mark.parametrize(("cohort", "layout"), SYNCHRONOUS)
def test_equally_fast_clients_make_it_synchronous(x64, cohort, layout):
    of_all = {"cohort": cohort, "layout": layout}
    expected = random_run(None, **of_all)
    found = random_run(asynchronous.fedbuff(cohort.size(N)), **of_all)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-12, atol=1e-15)
    for name in ("cohort_size", "useful_steps"):
        np.testing.assert_array_equal(found.rounds[name], expected.rounds[name])
    np.testing.assert_array_equal(found.rounds["client_staleness"], 0)
    np.testing.assert_allclose(found.rounds["duration"], 1.0)


@pytest.mark.slow
def test_arrivals_go_before_departures():
    # Client 0 takes 10 s, the others 1 s: every second three messages, and at 10 s four. Three of them (the first ones
    # in the order of the slots) make the update; the fourth was sent off before it, and is one update old. From then on
    # four messages are there every second, one of which waits for the next update.
    speeds = jnp.asarray([10.0, 1.0, 1.0, 1.0])
    data = fjs.datasets.quadratics(num_clients=4, dim=2, seed=0)
    run = arguments(asynchronous.fedbuff(3), cohort=fjs.cohort.full(), work=fjs.local.steps(1), rounds=12)
    run["system"] = systems.devices(seconds_per_step=speeds)
    result = follow_run(run, fjs.fedavg(client_optimizer=sgd()), data)
    np.testing.assert_array_equal(result.rounds["duration"], 1.0)
    ids = result.rounds["client_ids"]
    np.testing.assert_array_equal(np.sort(ids[:9]), [[1, 2, 3]] * 9)
    (waits,) = {0, 1, 2, 3} - set(ids[9].tolist())
    assert ids[10, 0] == waits
    expected = np.zeros((12, 3), int)
    expected[9, ids[9] == 0], expected[10:, 0] = 9, [10 if waits == 0 else 1, 1]
    np.testing.assert_array_equal(result.rounds["client_staleness"], expected)


def test_round_off_does_not_part_an_instant(x64):
    # Three times 0.1 s are 0.3 s: both clients are there, and both are sent off with the newest model. Of four messages
    # one has missed three, or one two and one one.
    data = fjs.datasets.quadratics(num_clients=2, dim=1, seed=0)
    run = arguments(asynchronous.fedasync(), cohort=fjs.cohort.full(), work=fjs.local.steps(1), rounds=12)
    run["system"] = systems.devices(seconds_per_step=jnp.asarray([0.1, 0.3]))
    record = follow_run(run, fjs.fedavg(client_optimizer=sgd()), data).rounds
    np.testing.assert_array_equal(record["client_staleness"].reshape(3, 4).sum(axis=1), 3)


@pytest.mark.slow
def test_what_is_left_of_a_long_time_is_rounded_many_times():
    # In single precision, of a hundred rounds: the slow client arrives with a fast one's hundredth message.
    data = fjs.datasets.quadratics(num_clients=2, dim=1, seed=0)

    def staleness(unit):
        run = arguments(asynchronous.fedasync(), cohort=fjs.cohort.full(), work=fjs.local.steps(1), rounds=303)
        run["system"] = systems.devices(seconds_per_step=unit * jnp.asarray([1.0, 100.0]))
        late = follow_run(run, fjs.fedavg(client_optimizer=sgd()), data).rounds["client_staleness"]
        return late.reshape(3, 101).sum(axis=1)

    np.testing.assert_array_equal(staleness(0.1), staleness(1.0))


@pytest.mark.slow
def test_equal_clients_are_late_as_often(x64):
    # All six are there at one instant, and three make an update: the other three are one update old.
    data = fjs.datasets.quadratics(num_clients=6, dim=1, seed=0)
    run = arguments(asynchronous.fedbuff(3), cohort=fjs.cohort.full(), work=fjs.local.steps(1), rounds=40)
    run["system"] = systems.devices(seconds_per_step=1.0)
    record = follow_run(run, fjs.fedavg(client_optimizer=sgd()), data).rounds
    late = np.bincount(record["client_ids"].ravel(), record["client_staleness"].ravel(), minlength=6)
    np.testing.assert_allclose(late, 10, atol=7)  # in each of 20 seconds half of them


def test_every_client_is_sent_off_as_often():
    # Of equal clients none reports more often, however few messages make an update.
    data = fjs.datasets.quadratics(num_clients=8, dim=1, seed=0)
    run = arguments(asynchronous.fedasync(), cohort=fjs.cohort.uniform(4), work=fjs.local.steps(1), rounds=400)
    run |= {"system": systems.devices(seconds_per_step=1.0, jitter=systems.exponential(1.0)), "evaluate": None}
    train = jax.jit(fjs.make_train(**run, eval_every=400))
    reports = np.bincount(train(fjs.fedavg(client_optimizer=sgd()), data, KEY).rounds["client_ids"][:, 0], minlength=8)
    np.testing.assert_allclose(reports, 50, atol=25)  # 4 standard deviations of independent draws


@pytest.mark.slow
def test_the_queue_never_stalls():
    # More messages than clients, all of whom are always in flight, and most or all of them fail.
    H, e, x0 = problem()
    data = fjs.datasets.quadratics_from(H[:2], e[:2], sizes=SIZES[:2])

    def result(dropout):
        run = arguments(asynchronous.fedbuff(4), cohort=fjs.cohort.full(), rounds=5)
        run["system"] = systems.devices(seconds_per_step=jnp.asarray([1.0, 0.3]), dropout=dropout)
        return follow_run(run, fjs.fedavg(client_optimizer=sgd()), data, jnp.asarray(x0, jnp.float32))

    def loss(x):
        return np.average([x @ H[i] @ x / 2 - e[i] @ x for i in range(2)], weights=SIZES[:2])

    most, all_ = result(0.6), result(1.0)
    np.testing.assert_array_equal(most.rounds["reported"], 4)
    assert most.rounds["failed"].sum() > 5
    assert loss(most.x[-1]) < loss(most.x[0])
    np.testing.assert_array_equal(all_.rounds["reported"], 0)
    np.testing.assert_array_equal(all_.x, np.broadcast_to(np.float32(x0), (6, DIM)))
    assert (all_.rounds["duration"] > 0).all()


def in_values(key, a, rate, scale):
    """Final loss and clock as a function of the staleness exponent, the learning rate and the devices' slowness."""
    _, _, x0 = problem()
    scheme = asynchronous.fedbuff(2, staleness=asynchronous.polynomial(a))
    system = systems.devices(seconds_per_step=scale * jnp.asarray(SECONDS))
    function = fjs.make_train(**arguments(scheme, rounds=4, eval_every=4, layout=fjs.layout.lanes(2), system=system))
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(rate))
    result = function(algorithm, quadratics(), key, initial_params=jnp.asarray(x0))
    return result.metrics["loss"][-1], jnp.sum(result.rounds["duration"])


VALUES = (jnp.asarray([0.3, 1.2, 0.8]), jnp.asarray([0.1, 0.05, 0.2]), jnp.asarray([1.0, 2.0, 0.5]))


@pytest.mark.slow
def test_seeds_and_values_side_by_side(x64):
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    values = [value.astype(float) for value in VALUES]
    found = jax.jit(jax.vmap(in_values))(keys, *values)
    one = jax.jit(in_values)
    expected = [one(keys[i], *(value[i] for value in values)) for i in range(3)]
    np.testing.assert_allclose(np.array(found).T, np.array(expected), rtol=1e-10)
    assert len(set(np.asarray(found[1]).round(6))) == 3


@pytest.mark.slow
def test_derivatives_against_differences(x64):
    point = [jnp.asarray(value, float) for value in (0.7, 0.1, 1.0)]
    both = jax.jit(in_values)
    gradient = jax.jit(jax.jacrev(in_values, (1, 2, 3)))(KEY, *point)
    forward = jax.jit(jax.jacfwd(in_values, (1, 2, 3)))(KEY, *point)
    np.testing.assert_allclose(np.array(gradient), np.array(forward), rtol=1e-9, atol=1e-12)
    step = 1e-6
    for i in range(3):
        up, down = list(point), list(point)
        up[i], down[i] = point[i] + step, point[i] - step
        difference = (np.array(both(KEY, *up)) - np.array(both(KEY, *down))) / (2 * step)
        np.testing.assert_allclose(np.array(gradient)[:, i], difference, rtol=1e-5, atol=1e-7)
    # Without latencies all times are proportional to the slowness; the order of events, and so the loss, is not.
    np.testing.assert_allclose(gradient[1][2], both(KEY, *point)[1], rtol=1e-9)
    assert gradient[0][2] == 0
    assert abs(gradient[0][0]) > 1e-4
    assert abs(gradient[0][1]) > 1e-4


def test_weights_of_staleness(x64):
    tau = jnp.arange(7.0)
    np.testing.assert_allclose(asynchronous.constant().weight(tau), np.ones(7))
    np.testing.assert_allclose(asynchronous.polynomial(0.5).weight(tau), 1 / np.sqrt(1 + np.arange(7)))
    np.testing.assert_allclose(asynchronous.hinge(10.0, 4.0).weight(tau), [1, 1, 1, 1, 1, 1 / 11, 1 / 21])
    np.testing.assert_allclose(asynchronous.fedbuff().factor(tau), 1 / np.sqrt(1 + np.arange(7)))
    np.testing.assert_allclose(asynchronous.fedasync(0.6, asynchronous.constant()).factor(tau), np.full(7, 0.6))


@pytest.mark.slow
def test_a_history_has_clock_traffic_and_staleness():
    scheme = asynchronous.fedbuff(2)
    run = arguments(scheme, rounds=4, eval_every=2) | {"evaluate": None, "seeds": [3, 5]}
    history = fjs.simulate(fjs.fedavg(client_optimizer=sgd()), quadratics(), **run)
    clock = np.cumsum(history.rounds["duration"], axis=1)
    np.testing.assert_allclose(history.virtual_time, np.column_stack([[0, 0], clock[:, 1], clock[:, 3]]), rtol=1e-6)
    # One model goes down for each of the M slots and for each message but the very last; each has DIM floats.
    np.testing.assert_array_equal(history.rounds["bytes_up"], 2 * 4 * DIM)
    np.testing.assert_array_equal(history.rounds["bytes_down"].sum(axis=1), (M + 4 * 2 - 1) * 4 * DIM)
    assert history.rounds["client_ids"].shape == (2, 4, 2)
    assert not np.array_equal(history.rounds["client_ids"][0], history.rounds["client_ids"][1])
    assert fjs.build(history.description["run"]["asynchronous"]) == scheme
    del run["seeds"]
    shapes = jax.eval_shape(fjs.make_train(**run), fjs.fedavg(client_optimizer=sgd()), quadratics(), KEY)
    assert {name: values.shape[1:] for name, values in history.rounds.items()} == {
        name: shape.shape for name, shape in shapes.rounds.items()
    }
    assert set(history.metrics) == set(shapes.metrics) - {"round"}


@pytest.mark.slow
def test_traced_steps_that_cannot_be_meant_are_lost_and_counted(x64):
    tau = np.full((ROUNDS, N), 2)
    tau[:, 1], tau[:, 3] = -1, 9  # their devices are fast, so both are often sent off

    def run(tau):
        work = fjs.local.given_steps(tau, most=2)
        function = fjs.make_train(**arguments(asynchronous.fedbuff(2), work=work, evaluate=None, eval_every=ROUNDS))
        return function(fjs.fedavg(client_optimizer=sgd()), quadratics(), KEY)

    jitted = jax.jit(run)
    ours, theirs = jitted(tau), jitted(np.where((tau < 0) | (tau > 2), 0, tau))
    assert int(ours.rounds["refused_slots"].sum()) == int(ours.rounds["failed"].sum()) > 0
    assert int(theirs.rounds["refused_slots"].sum()) == 0
    assert not np.isin(ours.rounds["client_ids"], [1, 3]).any()
    jax.tree.map(np.testing.assert_array_equal, ours.metrics, theirs.metrics)


BAD = {
    "asynchronous is 3: it must be an Asynchronous": lambda: {"asynchronous": 3},
    "asynchronous=... without system=...": lambda: {"system": None},
    "a policy says when a synchronous round is closed": lambda: {
        "system": fleet(policy=systems.first(2)),
        "cohort": fjs.cohort.uniform(3),
    },
    "all equally likely and none twice": lambda: {"cohort": fjs.cohort.with_replacement(3)},
    "the scheme must draw a fixed number of clients": lambda: {
        "cohort": fjs.cohort.available(fjs.cohort.uniform(3), fjs.cohort.bernoulli(0.5))
    },
    "a share of a cohort, or one draw for all of it, has no meaning": lambda: {"work": fjs.local.stragglers(0.5, 2)},
    "work=Geometric": lambda: {"work": fjs.local.geometric(0.5)},
    "FedExp cannot be asynchronous: its formulas ask for weights that sum to one": lambda: {
        "algorithm": fjs.fedexp(client_optimizer=sgd())
    },
    "Ema cannot be asynchronous: its formulas ask for weights that sum to one": lambda: {
        "algorithm": fjs.ema(fjs.mime_lite(client_optimizer=sgd())),
        "asynchronous": asynchronous.fedasync(staleness=asynchronous.constant()),
    },
    "it averages by 'inverse'": lambda: {"cohort": fjs.cohort.uniform(3, average="inverse")},
    "adjoint=implicit": lambda: {"cohort": fjs.cohort.full(), "adjoint": fjs.adjoints.implicit()},
    "Scaffold cannot be asynchronous: its clients keep state": lambda: {
        "algorithm": fjs.scaffold(client_optimizer=sgd())
    },
    "FedNova cannot be asynchronous: it counts on the 'slope'": lambda: {
        "algorithm": fjs.fednova(client_optimizer=sgd())
    },
    "FedDane cannot be asynchronous: a round of it has several": lambda: {
        "algorithm": fjs.feddane(client_optimizer=sgd())
    },
    "LocalSgd cannot be asynchronous: it needs everybody": lambda: {
        "algorithm": fjs.local_sgd(client_optimizer=sgd()),
        "cohort": fjs.cohort.full(),
    },
    "FedAware cannot be asynchronous: it reads single messages": lambda: {
        "algorithm": fjs.fedaware(client_optimizer=sgd())
    },
    "Reweighted cannot be asynchronous: its clients' changes": lambda: {
        "algorithm": fjs.reweighted(fjs.fedavg(client_optimizer=sgd()), [0.0] * N)
    },
}


@pytest.mark.parametrize("message", BAD)
def test_what_has_no_meaning_is_refused_by_name(message):
    run = arguments(asynchronous.fedbuff(2)) | BAD[message]()
    algorithm = run.pop("algorithm", fjs.fedavg(client_optimizer=sgd()))
    with pytest.raises((TypeError, ValueError), match=message.replace("(", r"\(")):
        fjs.make_train(**run)(algorithm, quadratics(), KEY)


def test_the_buffer_s_plain_average_serves_fedexp():
    run = arguments(asynchronous.fedbuff(2, staleness=asynchronous.constant()))
    jax.eval_shape(fjs.make_train(**run), fjs.fedexp(client_optimizer=sgd()), quadratics(), KEY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: asynchronous.fedbuff(0), r"fedbuff\(buffer=...\) is 0: it must be at least 1"),
        (lambda: asynchronous.fedbuff(2, staleness=0.5), r"fedbuff\(staleness=...\) is 0.5: it must be a Staleness"),
        (lambda: asynchronous.fedasync(1.5), r"fedasync\(alpha=...\) is 1.5: it must be in \(0, 1\]"),
        (lambda: asynchronous.polynomial(-1), r"polynomial\(a=...\) is -1.0"),
        (lambda: asynchronous.hinge(b=-1), r"hinge\(b=...\) is -1.0"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_there_is_no_reverse_bound():
    run = arguments(asynchronous.fedbuff(2))
    with pytest.raises(ValueError, match="reverse_bound counts the steps of cohorts"):
        fjs.adjoints.reverse_bound(fjs.fedavg(client_optimizer=sgd()), quadratics(), KEY, **run)


def test_data_on_the_host_are_refused():
    data = fjs.datasets.on_host(quadratics())
    with pytest.raises(ValueError, match="with a HostDataset"):
        fjs.simulate(fjs.fedavg(client_optimizer=sgd()), data, **arguments(asynchronous.fedbuff(2)))


@pytest.mark.slow
def test_a_run_that_goes_on_and_a_sweep(tmp_path):
    slow = systems.lognormal(1e3, 1.0)
    run = arguments(asynchronous.fedbuff(2), eval_every=2) | {"evaluate": None, "seeds": [0, 1]}
    del run["rounds"]
    run["system"] = systems.devices(flops_per_second=slow, jitter=systems.lognormal(1.0, 0.2), dropout=0.1)
    method = fjs.clipped(fjs.fedadam(client_optimizer=sgd()), 1.0)
    whole = fjs.simulate(method, quadratics(), rounds=6, **run)
    fjs.simulate(method, quadratics(), rounds=4, checkpoint=tmp_path, every=2, **run)
    again = fjs.simulate(method, quadratics(), rounds=6, checkpoint=tmp_path, every=2, **run)
    for name in [*whole.metrics, *whole.rounds]:
        np.testing.assert_array_equal(again[name], whole[name])
    run["asynchronous"] = asynchronous.fedasync()
    space = fjs.sweeps.grid({"asynchronous.alpha": [0.2, 0.6], "asynchronous.staleness.a": [0.0, 0.5]})
    swept = fjs.sweep(fjs.fedavg(client_optimizer=sgd()), quadratics(), space, rounds=4, **run)
    run["asynchronous"] = asynchronous.fedasync(0.2, asynchronous.polynomial(0.5))
    one = fjs.simulate(fjs.fedavg(client_optimizer=sgd()), quadratics(), rounds=4, **run)
    np.testing.assert_allclose(swept["loss"][0, 1], one["loss"], rtol=1e-6)
    assert len(set(swept["loss"][:, :, 0, -1].ravel().tolist())) == 4
