"""Devices in virtual time: durations, policies and what they leave of a cohort, against closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import systems
from fedjax_sim.clients.systems.base import Cost, Visit, close_exchange
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.draw import draw, exchange_cost
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state

KEY = jax.random.key(5)
N, DIM, SIZES = 6, 3, [4, 2, 6, 3, 5, 8]
sgd = fjs.optim.sgd


def data():
    return _data(jnp.result_type(float))


@functools.cache
def _data(dtype):
    with jax.ensure_compile_time_eval():
        return fjs.datasets.quadratics(num_clients=N, dim=DIM, seed=1, sizes=SIZES)


def settings(**more):
    return {
        "task": fjs.quadratic(), "rounds": 4, "eval_every": 2, "batch_size": 2, "cohort": fjs.cohort.full(),
        "work": fjs.local.epochs(2), **more,
    }  # fmt: skip


def run(algorithm=None, seed=0, dataset=None, **more):
    algorithm = algorithm or fjs.fedavg(client_optimizer=sgd(0.05))
    return jax.jit(fjs.make_train(**settings(**more)))(algorithm, dataset or data(), jax.random.key(seed))


def made(name):
    return getattr(fjs, name)(client_optimizer=sgd(0.1))


def numpy_steps(sizes, batch, epochs):
    return epochs * -(-np.asarray(sizes) // batch)


@pytest.fixture(scope="module")
def clocked():
    """A run with all that a system has, and everything it is compared with."""
    each = np.array([0.5, 0.1, 0.2, 1.0, 0.3, 0.15])
    system = systems.devices(seconds_per_step=each, download=100.0, upload=50.0, latency=0.1)
    return each, system


@pytest.mark.slow
def test_a_run_that_waits(x64, clocked):
    each, system = clocked
    in_order = {"batch_size": None, "batches": fjs.local.in_order(2), "layout": fjs.layout.stacked()}
    result = run(system=system, **in_order)
    model = 8 * DIM
    seconds = 0.2 + model / 100 + model / 50 + numpy_steps(SIZES, 2, 2) * each
    np.testing.assert_allclose(result.rounds["duration"], np.full(4, seconds.max()), rtol=1e-12)
    np.testing.assert_array_equal(result.rounds["bytes_down"], [N * model] * 4)
    np.testing.assert_array_equal(result.rounds["bytes_up"], [N * model] * 4)
    np.testing.assert_array_equal(result.rounds["reported"], [N] * 4)
    np.testing.assert_array_equal(result.rounds["dropped_late"] + result.rounds["failed"], [0] * 4)
    # The clock changes nothing in the model, and without one nothing is recorded.
    plain = run(**in_order)
    np.testing.assert_array_equal(result.params, plain.params)
    assert set(result.rounds) - set(plain.rounds) == {
        "duration", "bytes_down", "bytes_up", "reported", "dropped_late", "failed",
    }  # fmt: skip


def drawn(algorithm=None, t=0, **more):
    """The draws of a round's exchanges; nothing is trained."""
    given = settings(**more)
    batches = given.get("batches") or fjs.local.shuffled(given["batch_size"])
    asked = Plan(
        given["task"], given["cohort"], given["work"], batches, system=given.get("system"),
        algorithm=algorithm or made("fedavg"), dataset=data(), key=KEY,
    )  # fmt: skip
    plan = resolve(asked, given["rounds"])

    def draws(t):
        state, found = init_state(plan), []
        for phase in plan.phases():
            sent = phase.method.send(state.server)
            cost = None if plan.system is None else exchange_cost(plan, phase, sent, t, state)
            one = draw(plan, phase, sent, t, cost)
            found.append((one.slots.client.steps, one.cohort, one.clock))
        return found

    return jax.jit(jax.vmap(draws))(jnp.asarray(t, jnp.int32)) if np.ndim(t) else jax.jit(draws)(jnp.int32(t))


def left(system, fits, **more):
    """What a system leaves of a cohort is what the same steps by hand are: steps, weights, cohort."""
    ((steps, cohort, clock),) = drawn(system=system, **more)
    ((by_hand, expected, _),) = drawn(work=fjs.local.given_steps(np.tile(fits, (4, 1))))
    np.testing.assert_array_equal(steps, fits)
    np.testing.assert_array_equal(by_hand, fits)
    for name in ("indices", "valid", "weights", "size", "mass"):
        np.testing.assert_array_equal(getattr(cohort, name), getattr(expected, name), err_msg=name)
    return clock


def test_dropped_clients(x64, clocked):
    """Who is late counts like a straggler without steps."""
    each, system = clocked
    tau = numpy_steps(SIZES, 2, 2)
    seconds = 0.2 + 8 * DIM / 100 + 8 * DIM / 50 + tau * each
    limit = 2.2
    clock = left(system.replace(policy=systems.deadline(limit)), np.where(seconds <= limit, tau, 0))
    late = int((seconds > limit).sum())
    assert 0 < late < N
    assert (clock.dropped_late, clock.reported, clock.failed) == (late, N - late, 0)
    assert clock.duration == pytest.approx(limit)
    assert (clock.bytes_down, clock.bytes_up) == (N * 8 * DIM, (N - late) * 8 * DIM)

    room = limit - (seconds - tau * each)
    partial = np.minimum(np.floor(room / each + 1e-9), tau).astype(int)
    assert (partial < tau).any()
    left(system.replace(policy=systems.deadline(limit, keep=True)), partial)

    fastest = np.argsort(seconds)[:4]
    clock = left(system.replace(policy=systems.first(4)), np.where(np.isin(np.arange(N), fastest), tau, 0))
    assert clock.duration == pytest.approx(np.sort(seconds)[3])


@pytest.mark.slow
def test_a_run_that_drops_clients(x64, clocked):
    """The same model to the last bit as with the steps by hand."""
    _, system = clocked
    system = system.replace(policy=systems.deadline(2.2, keep=True))
    ((fits, _, _),) = drawn(system=system)
    assert len(set(fits.tolist())) > 3
    late = run(system=system)
    by_hand = run(work=fjs.local.given_steps(np.tile(fits, (4, 1))))
    np.testing.assert_array_equal(late.params, by_hand.params)
    np.testing.assert_array_equal(late.rounds["useful_steps"], by_hand.rounds["useful_steps"])
    np.testing.assert_array_equal(late.rounds["cohort_size"], late.rounds["reported"])


@pytest.mark.slow
def test_a_round_without_anyone(x64, clocked):
    """The server waits in vain: model, momentum and control variates stay."""
    _, system = clocked
    algorithm = fjs.scaffold(client_optimizer=sgd(0.05), server_optimizer=sgd(1.0, momentum=0.9))
    late = run(algorithm, system=system.replace(policy=systems.deadline(0.3)))
    assert late.metrics["loss"][0] == late.metrics["loss"][-1]
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves((late.state.clients, late.state.server.extra)))
    np.testing.assert_allclose(late.rounds["duration"], [0.3] * 4)
    assert not late.rounds["useful_steps"].any()


def test_window_of_time(x64):
    """tau_i = floor(T / seconds a step), whatever the client holds."""
    each = np.array([0.5, 0.1, 0.2, 3.0, 0.3, 0.015])
    tau = np.minimum(np.floor(2 / each + 1e-9), 25).astype(int)
    np.testing.assert_array_equal(tau, [4, 20, 10, 0, 6, 25])
    clock = left(systems.devices(seconds_per_step=each), tau, work=fjs.local.window(2.0, 25))
    assert clock.duration == pytest.approx(2.0)
    with pytest.raises(ValueError, match="give the run system"):
        run(work=fjs.local.window(2.0, 25))


@pytest.mark.slow
def test_operations_slow_clients_down_by_their_batches(x64):
    """Client i's step is a gradient on its own examples: n_i over its batches in an epoch."""
    speed = 100.0
    system = systems.devices(flops_per_second=speed)
    full = systems.gradient_flops(fjs.quadratic(), jnp.zeros(DIM), data(), 4)
    more = {"batch_size": 4, "system": system, "work": fjs.local.epochs(1)}
    ((_, _, clock),) = drawn(**more)
    assert clock.duration == pytest.approx(full * max(SIZES) / 4 / speed)
    # A pass over all local data, and such a pass and the local steps: FedDANE's two exchanges.
    first, second = drawn(fjs.feddane(client_optimizer=sgd(0.05), same_cohort=True), **more)
    assert first[2].duration == pytest.approx(float(clock.duration))
    assert second[2].duration == pytest.approx(2 * float(clock.duration))


@pytest.mark.slow
def test_common_random_numbers(x64):
    """Methods, layouts and storage orders with one seed see the same devices, jitter and failures."""
    system = systems.devices(
        seconds_per_step=systems.lognormal(1.0, 1.0), jitter=systems.lognormal(1.0, 0.5), dropout=0.2,
        policy=systems.first(3),
    )  # fmt: skip
    more = {"system": system, "cohort": fjs.cohort.uniform(5), "rounds": 3}
    base = run(**more)
    assert base.rounds["failed"].any()
    other = run(made("fednova"), layout=fjs.layout.lanes(2), **more)
    for name in ("duration", "cohort_size", "dropped_late", "failed", "useful_steps"):
        np.testing.assert_array_equal(other.rounds[name], base.rounds[name], err_msg=name)
    assert np.unique(base.rounds["duration"]).size == 3


def test_a_lot_decides_among_the_equally_fast():
    # Of six equal clients five are drawn and the first two take part: everyone in a third of the rounds. Three of five
    # do U{1..10} steps, the others 10; it is another lot that chose them, and steps take no time.
    ((steps, cohort, _),) = drawn(
        t=np.arange(300), cohort=fjs.cohort.uniform(5), work=fjs.local.stragglers(0.6, 10),
        batches=fjs.local.full_batch(), system=systems.devices(0.0, latency=1.0, policy=systems.first(2)),
    )  # fmt: skip
    assert np.mean(steps[cohort.valid] == 10) == pytest.approx(0.46, abs=0.08)
    times = np.bincount(np.asarray(cohort.indices).ravel(), minlength=N + 1)[:N]
    np.testing.assert_allclose(times, 100, atol=33)  # four standard deviations


@pytest.mark.slow
def test_availability_composes(x64):
    """Who is not there is sent nothing and nobody waits for it."""
    there = np.array([[True] * 5 + [False], [False] * N, [True, False] * 3, [True] * N])
    each = np.arange(1.0, N + 1)
    ((_, _, clock),) = drawn(
        t=np.arange(4), cohort=fjs.cohort.available(fjs.cohort.full(), fjs.cohort.trace(there)),
        work=fjs.local.steps(1), system=systems.devices(seconds_per_step=each, policy=systems.first(3)),
    )  # fmt: skip
    np.testing.assert_array_equal(clock.reported, [3, 0, 3, 3])
    np.testing.assert_array_equal(clock.dropped_late, [2, 0, 0, 3])
    np.testing.assert_array_equal(clock.bytes_down, 8 * DIM * there.sum(axis=1))
    np.testing.assert_allclose(clock.duration, [3, 0, 5, 3])


@pytest.mark.slow
def test_derivatives_and_vmap(x64):
    """Of a run's seconds in a bandwidth, and of its loss, with clients dropped, in a learning rate."""
    system = systems.devices(
        seconds_per_step=0.2, upload=np.linspace(5.0, 60.0, N), policy=systems.deadline(3.0, keep=True),
        dropout=0.1,
    )  # fmt: skip
    algorithm = fjs.fedavg(client_optimizer=sgd(0.05))

    def both(upload, rate):
        timed = fjs.make_train(
            **settings(rounds=2, system=system.replace(upload=upload, policy=systems.wait_for_all()))
        )
        late = fjs.make_train(**settings(rounds=2, system=system.replace(upload=upload)))
        seconds = jnp.sum(timed(algorithm, data(), KEY).rounds["duration"])
        loss = late(algorithm.replace(client_optimizer=sgd(rate)), data(), KEY).metrics["loss"][-1]
        return seconds, loss

    uploads = jnp.asarray(np.linspace(5.0, 60.0, N))
    jacobian = jax.jit(jax.jacrev(both, argnums=(0, 1)))(uploads, 0.05)
    tau = numpy_steps(SIZES, 2, 2)
    slowest = int(np.argmax(tau * 0.2 + 8 * DIM / np.asarray(uploads)))
    expected = np.zeros(N)
    expected[slowest] = -2 * 8 * DIM / float(uploads[slowest]) ** 2
    np.testing.assert_allclose(jacobian[0][0], expected, rtol=1e-10)
    many = jax.jit(jax.vmap(both, (0, None)))(jnp.stack([uploads, 2 * uploads]), 0.05)
    assert many[0][0] > many[0][1]
    nearby = jax.jit(jax.vmap(lambda rate: both(uploads, rate)[1]))(0.05 + 1e-5 * jnp.asarray([1.0, -1.0]))
    assert jacobian[1][1] == pytest.approx(float(nearby[0] - nearby[1]) / 2e-5, rel=1e-6)


def test_messages_of_runs():
    algorithm, train = made("fedavg"), fjs.make_train
    with pytest.raises(TypeError, match="system is 3: it must be a System"):
        train(**settings(system=3))
    with pytest.raises(ValueError, match="2 values for 6 clients: give one a client"):
        train(**settings(system=systems.devices([1.0, 2.0])))(algorithm, data(), KEY)
    with pytest.raises(ValueError, match=r"first\(9\) waits for 9 clients in cohorts of 6"):
        train(**settings(system=systems.devices(1.0, policy=systems.first(9))))(algorithm, data(), KEY)

    class Own(fjs.diagnostics.Diagnostic):
        def names(self):
            return ("duration",)

    with pytest.raises(ValueError, match="records 'duration', which a run with a system records itself"):
        train(**settings(system=systems.devices(1.0), diagnostics=Own()))
    with pytest.raises(ValueError, match="give the run system"):
        train(**settings(work=fjs.local.window(1.0, 3)))
    fixed = settings(batch_size=None, batches=fjs.local.full_batch(), work=fjs.local.steps(2))
    shaky = systems.devices(1.0, jitter=systems.uniform(0.5, 1.5), policy=systems.first(3))
    with pytest.raises(ValueError, match=r"needs every round to be the same function, and system is"):
        train(**fixed, system=shaky, adjoint=fjs.adjoints.implicit())(algorithm, data(), KEY)


@pytest.mark.slow
def test_a_system_in_every_driver():
    """Described, swept, streamed from the host; communication() beside it changes nothing."""
    from fedjax_sim.studies.hyper import final

    system = systems.devices(
        seconds_per_step=systems.lognormal(1.0, 1.0), upload=100.0, jitter=systems.uniform(0.5, 1.5), dropout=0.1,
        policy=systems.deadline(6.0, keep=True),
    )  # fmt: skip
    algorithm = made("fedavg")
    kept = fjs.simulate(
        algorithm, data(), **settings(system=system, diagnostics=["communication", "virtual_time"]), seeds=range(2)
    )
    assert system.fleet(data()).seconds_per_step.shape == (N,)
    again = fjs.build(kept.description["run"]["system"])
    assert again == system
    host = fjs.simulate(algorithm, fjs.datasets.on_host(data()), **settings(system=again), seeds=range(2))
    np.testing.assert_array_equal(kept.params, host.params)
    for name in ("duration", "bytes_down", "reported"):
        np.testing.assert_array_equal(kept[name], host[name])
    assert (np.diff(kept.virtual_time, axis=1) > 0).all()
    space = fjs.sweeps.grid({"system.policy.seconds": [1.0, 6.0], "system.upload": [100.0, 10.0]})
    swept = fjs.sweep(algorithm, data(), space, **settings(system=system), seeds=range(2))
    np.testing.assert_allclose(swept["loss"][1, 0], kept["loss"], rtol=1e-6)
    assert (swept["reported"].sum(axis=-1)[0] <= swept["reported"].sum(axis=-1)[1]).all()
    tuned = fjs.tune(
        algorithm, data(), over=["client_optimizer.learning_rate"], objective=final("loss"), steps=2,
        **settings(system=system),
    )  # fmt: skip
    assert tuned.value <= tuned.values[0, 0]
    # The bound of the schedule knows who drops out.
    run_of = settings(system=system.replace(policy=systems.deadline(1.0)))
    bound = fjs.adjoints.reverse_bound(algorithm, data(), jax.random.key(0), **run_of)
    late = fjs.simulate(algorithm, data(), **run_of)
    assert bound.per_cohort == max(int(late["useful_steps"].max()), 1)


def test_a_system_of_ones_own_says_what_it_has():
    """Times alone, where nobody fails; what says who fails may leave a round without anyone."""

    class Even(systems.System):
        def times(self, client_index, ids, steps, key, round_, cost):
            seconds = steps.astype(jnp.result_type(float))
            return systems.Times(seconds, seconds, seconds)

    class Broken(Even):
        def failed(self, client_index, ids, key, round_):
            return jnp.ones(ids.shape, bool)

    assert not Even().may_be_empty
    assert Broken().may_be_empty
    who = jnp.arange(N, dtype=jnp.int32)
    visit = Visit(who, who, who >= 0, who, jnp.ones_like(who), jnp.zeros_like(who), jnp.zeros_like(who, jnp.uint32))
    for system, there in ((Even(), True), (Broken(), False)):
        closed, _ = jax.jit(
            lambda key, system=system: close_exchange(system, visit, key, jnp.int32(0), Cost(8.0, 8.0))
        )(KEY)
        np.testing.assert_array_equal(closed.reported, np.full(N, there))


@pytest.mark.slow
def test_over_commitment_is_faster_than_waiting():
    """Among devices that are slow now and then, the first ten of thirteen make a round in a fraction of the time."""
    dataset = fjs.datasets.synthetic(0.5, 0.5, num_clients=30, max_size=200, seed=0)
    common = {
        "task": fjs.classification(fjs.models.LogisticRegression(10)), "rounds": 40, "eval_every": 2,
        "batch_size": 20, "work": fjs.local.steps(5), "seeds": range(3),
    }  # fmt: skip
    system = systems.devices(seconds_per_step=0.1, jitter=systems.lognormal(1.0, 1.0))
    waits = fjs.simulate(made("fedavg"), dataset, **common, cohort=fjs.cohort.uniform(10), system=system)
    overcommitted = system.replace(policy=systems.first(10))
    first = fjs.simulate(made("fedavg"), dataset, **common, cohort=fjs.cohort.uniform(13), system=overcommitted)
    assert (first["cohort_size"] == 10).all()
    target = float(max(waits["loss"][:, -3:].max(), first["loss"][:, -3:].max()))
    assert (first.time_to("loss", target) < 0.6 * waits.time_to("loss", target)).all()
    np.testing.assert_allclose(first.rounds["bytes_down"], 1.3 * waits.rounds["bytes_down"])  # what it costs
