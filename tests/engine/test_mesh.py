"""Several devices: the same results as one, up to round-off, and the same bits whenever the same number of them runs.

A process has as many CPU devices as it said before JAX started, so these tests run in one of their own, with eight:
``make test`` starts it; by hand, ``JAX_NUM_CPU_DEVICES=8 pytest tests/engine/test_mesh.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.engine.layout.choose import choose_devices
from fedjax_sim.engine.layout.mesh import deal, most_of_one
from fedjax_sim.run.resident import ResidentDriver
from tests.algorithms import test_sweep as sweep
from tests.models import test_evaluation as evaluation

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices: JAX_NUM_CPU_DEVICES=8")

TURNS, MESH = fjs.layout.turns(), fjs.layout.mesh
LOGISTIC = fjs.classification(fjs.models.LogisticRegression(10))
LOCAL = fjs.optim.sgd(0.05)


@pytest.fixture(scope="module")
def data():
    """Clients of very different sizes; 13, which no number of devices here divides."""
    return fjs.datasets.synthetic(1.0, 1.0, num_clients=13, max_size=90, seed=0)


def run(algorithm, data, layout, **changes):
    given = {
        "task": LOGISTIC, "rounds": 3, "batch_size": 8, "cohort": fjs.cohort.uniform(7), "work": fjs.local.epochs(1),
        "eval_every": 2, "layout": layout, "progress": False, **changes,
    }  # fmt: skip
    return fjs.simulate(algorithm, data, **given)


def assert_alike(one, other, tolerance=2e-5):
    assert one.metrics.keys() == other.metrics.keys()
    for name, values in one.metrics.items():
        np.testing.assert_allclose(other.metrics[name], values, rtol=tolerance, atol=tolerance, err_msg=name)
    for name in one.rounds.keys() - {"computed_steps"}:
        found, expected = (np.asarray(history.rounds[name], float) for history in (other, one))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5, err_msg=name)


def assert_same_bits(one, other):
    for name in one.metrics:
        np.testing.assert_array_equal(one[name], other[name])
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


LAYOUTS = {
    "three, sharded": MESH(3, data="sharded"),
    "more devices than clients": MESH(8),
    "more devices than clients, sharded": MESH(8, data="sharded"),
    "three": MESH(3),
    "stacked": MESH(2, inner=fjs.layout.stacked()),
    "lanes, sharded": MESH(2, inner=fjs.layout.lanes(2), data="sharded"),
}


@pytest.fixture(scope="module")
def weighted(data):
    """The same with a weight for each example."""
    return data.with_example_weights(np.random.default_rng(0).uniform(0.5, 2, data.num_examples))


@pytest.fixture(scope="module")
def alone(weighted):
    return run(fjs.scaffold(client_optimizer=LOCAL), weighted, TURNS, seeds=range(2))


@pytest.mark.slow
def test_clients_in_coordinates_of_their_examples(data):
    method, work = fjs.fedprox(client_optimizer=LOCAL, mu=0.1), fjs.local.epochs(2)
    inner = fjs.layout.factored(width=40)  # there are larger clients
    assert_alike(run(method, data, TURNS, work=work), run(method, data, MESH(2, inner, data="sharded"), work=work))


@pytest.mark.slow
def test_one_gradient_on_each_device(data):
    method, work = fjs.fedprox(client_optimizer=LOCAL, mu=0.1), fjs.local.steps(1)
    inner = fjs.layout.pooled()
    assert_alike(run(method, data, TURNS, work=work), run(method, data, MESH(2, inner, data="sharded"), work=work))


def dealt_out(weighted, name="three, sharded", **changes):
    return run(fjs.scaffold(client_optimizer=LOCAL), weighted, LAYOUTS[name], seeds=range(2), **changes)


one_program = pytest.mark.xdist_group("three, sharded")  # of those with the run above


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if number else one_program) for number, name in enumerate(LAYOUTS)],
)
def test_results_are_those_of_one_device(name, weighted, alone):
    history = dealt_out(weighted, name)
    assert_alike(alone, history)
    np.testing.assert_array_equal(history.rounds["useful_steps"], alone.rounds["useful_steps"])


def test_the_loss_without_the_penalty():
    placed = MESH(2, data="sharded").placed(evaluation.lines())
    found = fjs.evaluate(evaluation.SQUARES, jnp.asarray(2.0), placed.test, worst=0.5)
    assert {name: float(value) for name, value in found.overall.items()} == {"loss": 7, "data_loss": 6}
    assert {name: float(value) for name, value in found.worst.items()} == {"loss": 9.5, "data_loss": 8.5}


@pytest.mark.slow
def test_reruns_have_the_same_bits(data):
    algorithm, layout = fjs.scaffold(client_optimizer=LOCAL), MESH(8, data="sharded")
    first = run(algorithm, data, layout)
    jax.clear_caches()
    assert_same_bits(first, run(algorithm, data, layout))


@pytest.mark.slow
def test_no_idle_step_is_computed(data):
    history = run(fjs.fedavg(client_optimizer=LOCAL), data, MESH(4))
    np.testing.assert_array_equal(history.rounds["computed_steps"], history.rounds["useful_steps"])


# One of each kind every day: sums alone, client states, stacks, phases, everybody, an objective, client states beside.
DAILY = {"fedavg", "scaffold", "fedaware", "feddane", "top_k", "robust", "fednova"}


def marks(name):
    return [pytest.mark.xdist_group(name), pytest.mark.slow if name in DAILY else pytest.mark.nightly]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in sweep.CASES])
def test_every_method(name, x64):
    """Cohorts with void slots and clients that drop out; 1e-10 in double precision."""
    algorithm, average = sweep.make(name)
    batches = sweep.batches_of(algorithm, sweep.SHUFFLED)
    arguments = sweep.arguments(algorithm)
    alone = sweep.compiled(sweep.TURNS, average, batches)(algorithm, sweep.problem(), *arguments)
    layout = MESH(3, data="sharded")
    dealt = sweep.compiled(layout, average, batches)(algorithm, layout.placed(sweep.problem()), *arguments)
    sweep.assert_same_run(dealt, alone, name)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["replicated", "sharded"])
def test_derivatives_are_those_of_one_device(data, x64):
    """Of hyper-parameters, example weights and initial parameters, through client states."""
    algorithm, average = sweep.make("scaffold")

    def gradients(layout):
        run = sweep.given(layout, average, sweep.IN_ORDER)

        def objective(algorithm, weights, x0):
            dataset = sweep.problem().with_example_weights(weights)
            return run(algorithm, dataset, x0, *sweep.arguments(algorithm)[1:]).metrics["loss"][-1]

        return jax.jit(jax.grad(objective, (0, 1, 2)))(algorithm, sweep.problem().example_weights, sweep.start())

    sweep.assert_close(gradients(MESH(3, data=data)), gradients(TURNS), "reverse mode", 1e-9)


@pytest.mark.slow
def test_forward_mode(x64):
    algorithm, average = sweep.make("fedavg")

    def slope(layout):
        def final(rate):
            changed = algorithm.replace(server_learning_rate=rate)
            run = sweep.given(layout, average)(changed, sweep.problem(), *sweep.arguments(changed))
            return run.metrics["loss"][-1]

        return jax.jit(jax.jacfwd(final))(jnp.float64(0.9))

    np.testing.assert_allclose(slope(MESH(2)), slope(TURNS), rtol=1e-10)


@pytest.mark.slow
def test_many_seeds_and_settings_side_by_side(x64):
    """vmap over keys and hyper-parameters, which lays the devices' loops side by side too."""
    algorithm, average = sweep.make("fedavg")

    def final(layout, rate):
        changed = algorithm.replace(server_learning_rate=rate)
        return sweep.given(layout, average)(changed, sweep.problem(), *sweep.arguments(changed)).metrics["loss"]

    rates = jnp.array([0.5, 0.9])
    both = jax.jit(jax.vmap(lambda rate: final(MESH(2, inner=fjs.layout.stacked()), rate)))(rates)
    np.testing.assert_allclose(both[1], jax.jit(lambda rate: final(TURNS, rate))(rates[1]), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [MESH(3), MESH(8, data="sharded")], ids=["whole", "sharded"])
def test_the_host_is_told_of_every_round_once(layout, data):
    told = []
    train = fjs.make_train(
        task=LOGISTIC, rounds=5, batch_size=8, cohort=fjs.cohort.uniform(7), work=fjs.local.epochs(1), eval_every=2,
        layout=layout, on_round=lambda done, metrics: told.append((done, metrics)),
    )  # fmt: skip
    result = jax.jit(train)(fjs.fedavg(client_optimizer=LOCAL), data, jax.random.key(0))
    jax.effects_barrier()
    assert [done for done, _ in told] == list(range(6))
    losses = [metrics["loss"] for _, metrics in told if metrics]
    np.testing.assert_array_equal(losses, result.metrics["loss"])


def test_states_of_clients_are_shared_out(data):
    """Each device has its rows of the clients' states and of the examples, and no more."""
    layout = MESH(4, data="sharded")
    placed = layout.placed(data)
    rows = -(-data.num_examples // 4)
    assert {shard.data.shape for shard in placed.examples["x"].addressable_shards} == {(rows, 60)}
    assert placed.offsets.sharding.is_fully_replicated
    states = layout.spread({"c": jnp.arange(26.0).reshape(13, 2)})
    assert {shard.data.shape for shard in states["c"].addressable_shards} == {(4, 2)}
    indices = jnp.array([12, 0, 13, 5], jnp.int32)
    taken = layout.take(states, indices)["c"]
    np.testing.assert_array_equal(np.asarray(taken)[[0, 1, 3]], [[24, 25], [0, 1], [10, 11]])
    after = layout.put(states, indices, {"c": -jnp.ones((4, 2))})["c"]
    expected = np.arange(26.0).reshape(13, 2)
    expected[[12, 0, 5]] = -1
    np.testing.assert_array_equal(np.asarray(after)[:13], expected)
    assert after.sharding.is_equivalent_to(states["c"].sharding, 2)


@pytest.mark.parametrize("devices", [8, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sharded", [pytest.param("replicated", marks=pytest.mark.slow), "sharded"])
def test_evaluation_reads_every_example_once(sharded, devices, data, weighted):
    """Also where a device has several blocks of rows, or none."""
    params = jax.jit(LOGISTIC.init)(jax.random.key(0), data)
    dataset = weighted.replace(test=None) if devices == 8 else data.test
    expected = fjs.evaluate(LOGISTIC, params, dataset)
    found = fjs.evaluate(LOGISTIC, params, MESH(devices, data=sharded).placed(dataset))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, equal_nan=True), found, expected)


@pytest.mark.slow
def test_evaluation_in_blocks(data, monkeypatch):
    from fedjax_sim.models import passes

    params = LOGISTIC.init(jax.random.key(0), data)
    expected = fjs.evaluate(LOGISTIC, params, data)
    monkeypatch.setattr(passes, "ROWS", 7)
    jax.clear_caches()
    for sharded in ("replicated", "sharded"):
        found = fjs.evaluate(LOGISTIC, params, MESH(8, data=sharded).placed(data))
        np.testing.assert_allclose(found.clients["loss"], expected.clients["loss"], rtol=2e-6)
    jax.clear_caches()


dealt = jax.jit(deal, static_argnums=(2, 3))
TOTALS = np.random.default_rng(0).lognormal(4, 2, (40, 100)).astype(np.int32) // 20 + 1


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_dealing_by_steps_is_even(parts):
    """Graham (1969): within max tau of the mean and 4/3 of the best; for power-law cohorts 1 % on average."""
    ratios = []
    for totals in TOTALS:
        valid = np.arange(100) % 7 > 0
        hands = np.asarray(dealt(totals, valid, parts, 100)).reshape(parts, 100)
        assert sorted(hands[hands < 100].tolist()) == np.flatnonzero(valid).tolist()
        loads = [int((totals[hand[hand < 100]] + 1).sum()) for hand in hands]
        work = totals[valid] + 1
        steps = [int(totals[hand[hand < 100]].sum()) for hand in hands]
        assert max(steps) <= most_of_one(int(totals[valid].sum()), int(totals[valid].max()), 100, parts)
        ratios.append(max(loads) / max(work.sum() / parts, work.max()))
    assert max(ratios) <= 4 / 3
    assert np.mean(ratios) < 1.01


def test_dealing_into_bounded_room():
    totals = jnp.array([100, 1, 1, 1, 1, 1, 1], jnp.int32)
    hands = np.asarray(dealt(totals, jnp.ones(7, bool), 2, 4)).reshape(2, 4)
    assert sorted(hands.ravel().tolist()) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (hands < 7).sum(axis=1).tolist() == [3, 4]


@one_program
def test_what_a_run_hands_out_lies_on_one_device(weighted, monkeypatch):
    """Computing from copies on devices that nobody waits for fills XLA's queues until the devices wait for ever."""
    handed = []
    advance = ResidentDriver.advance

    def watched(self, *arguments):
        handed.append(advance(self, *arguments))
        return handed[-1]

    monkeypatch.setattr(ResidentDriver, "advance", watched)
    run(fjs.scaffold(client_optimizer=LOCAL), weighted, LAYOUTS["three, sharded"])
    places = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(handed)}
    assert places == {1}


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "others"), [(2, 8), (8, 3)])
def test_a_run_goes_on_with_other_devices(devices, others, data, tmp_path):
    """A checkpoint has the states by client, whatever the number of devices."""
    algorithm = fjs.scaffold(client_optimizer=LOCAL)
    whole = run(algorithm, data, MESH(), rounds=4)
    run(algorithm, data, MESH(devices), rounds=2, checkpoint=tmp_path)
    with pytest.warns(UserWarning, match="mesh|devices|layout"):
        history = run(algorithm, data, MESH(others), rounds=4, checkpoint=tmp_path)
    assert_alike(whole, history)


@one_program
def test_a_run_that_is_resumed_has_the_same_bits(weighted, tmp_path):
    whole = dealt_out(weighted, rounds=4)
    dealt_out(weighted, rounds=2, checkpoint=tmp_path)
    assert_same_bits(whole, dealt_out(weighted, rounds=4, checkpoint=tmp_path))


@pytest.mark.slow
def test_with_data_on_the_host(data):
    """And with the clients' states there."""
    host = fjs.datasets.host.on_host(data)
    algorithm = fjs.scaffold(client_optimizer=LOCAL)
    alone = run(algorithm, data, TURNS)
    assert_alike(alone, run(algorithm, host, MESH(3)))
    kept = fjs.client_states.on_host()
    assert_alike(alone, run(algorithm, data, MESH(3, data="sharded"), client_states=kept))
    with pytest.raises(ValueError, match="on all of them"):
        run(algorithm, host, MESH(3, data="sharded"))


@pytest.mark.parametrize("where", ["replicated", "sharded"])
def test_data_on_the_host_forget_where_they_lay(where, weighted):
    """A run on another number of devices had arrays on both, and one of ``on_device()`` rows that no device shares."""
    layout = MESH(8, data=where)
    host = fjs.datasets.on_host(layout.placed(weighted))
    back = host.on_device()
    for found, expected in ((back, weighted), (back.test, weighted.test)):
        assert jax.tree.structure(found) == jax.tree.structure(expected)  # with the placement, None
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves((host.frame, host.test.frame, back))} == {1}


@pytest.mark.slow
def test_what_is_evaluated_from_the_host():
    """A task with a number of its own, and models that clients keep: examples come to one device."""
    clients = [{"x": np.full((2, 1), i, np.float32), "y": np.full(2, i)} for i in range(2)]
    data = fjs.datasets.from_clients(clients, test=clients)
    task = fjs.classification(fjs.models.LogisticRegression(2), weight_decay=0.1)
    history = run(
        fjs.ditto(client_optimizer=LOCAL, lam=0.1), fjs.datasets.on_host(data), MESH(2, TURNS), task=task, rounds=1,
        batch_size=None, batches=fjs.local.full_batch(), cohort=fjs.cohort.full(), work=fjs.local.steps(1),
        evaluate=fjs.per_client(task),
    )  # fmt: skip
    kernel, bias = (leaf[0] for leaf in (history.params["params"]["Dense_0"][name] for name in ("kernel", "bias")))
    logits = np.arange(2)[:, None] * kernel + bias  # of the client i, whose examples are i, i and whose labels are
    losses = np.log(np.exp(logits).sum(axis=1)) - np.diag(logits) + 0.1 * (np.sum(kernel**2) + np.sum(bias**2))
    np.testing.assert_allclose(history["client_loss"][0, -1], losses, rtol=1e-5)
    np.testing.assert_allclose(history["loss"][0, -1], losses.mean(), rtol=1e-5)
    assert (history["personal_client_loss"][0, -1] < history["test_client_loss"][0, 0]).all()


def test_statistics_know_of_no_padding(data):
    placed = MESH(8, data="sharded").placed(data)
    assert len(placed.examples["y"]) > data.num_examples
    assert str(placed.statistics()) == str(data.statistics())


def test_a_sweep_of_data_that_lie_on_several_devices():
    linear = np.arange(3.0)[:, None]
    data = MESH(4, data="sharded").placed(fjs.datasets.quadratics_from(np.ones((3, 1, 1)), linear))
    rates = [0.1, 0.5]
    swept = fjs.sweep(
        fjs.fedavg(client_optimizer=LOCAL), data, fjs.sweeps.grid({"client_optimizer.learning_rate": rates}),
        task=fjs.quadratic(), rounds=1, batches=fjs.local.full_batch(), cohort=fjs.cohort.full(),
        work=fjs.local.steps(1),
    )  # fmt: skip
    np.testing.assert_allclose(swept["loss"][:, 0, -1], [rate**2 / 2 - rate for rate in rates], rtol=1e-6)


def test_keys_that_clients_keep_are_shared_out():
    keys = jax.random.split(jax.random.key(0), (2, 3))
    spread = MESH(8).spread({"key": keys}, axis=1)["key"]
    assert spread.shape == (2, 8)
    assert (jax.random.key_data(spread[:, :3]) == jax.random.key_data(keys)).all()


@pytest.mark.slow
def test_asynchronous(data):
    system = fjs.systems.devices(seconds_per_step=fjs.systems.lognormal(0.1, 1.0))
    scheme = fjs.asynchronous.fedbuff(buffer=4)
    histories = [
        run(fjs.fedavg(client_optimizer=LOCAL), data, layout, system=system, asynchronous=scheme, rounds=5)
        for layout in (TURNS, MESH(3, data="sharded"))
    ]
    assert_alike(*histories)


@pytest.mark.slow
def test_diagnostics_and_personal_models(data):
    """What reads all clients' examples beside the round."""
    personal = fjs.personalise(LOGISTIC, LOCAL, fjs.local.steps(2))
    histories = [
        run(
            fjs.fedavg(client_optimizer=LOCAL), data, layout, diagnostics=("e_lud", "dissimilarity", "client_losses"),
            evaluate=personal,
        )
        for layout in (TURNS, MESH(3), MESH(3, data="sharded"))
    ]  # fmt: skip
    for other in histories[1:]:
        assert_alike(histories[0], other, 1e-4)


@pytest.mark.slow
def test_a_model_across_the_devices_of_a_group(data):
    """Two groups of four devices; each group shares the parameters' columns."""
    layout = MESH(8, model=4)
    task = fjs.classification(fjs.models.MLP(10, (32,)))
    params = task.init(jax.random.key(0), data)
    columns = jax.sharding.NamedSharding(layout.placement.mesh, jax.sharding.PartitionSpec(None, "model"))
    sharded = jax.tree.map(
        lambda leaf: jax.device_put(leaf, columns) if leaf.ndim == 2 and leaf.shape[1] % 4 == 0 else leaf, params
    )
    algorithm = fjs.fedavg(client_optimizer=LOCAL)
    alone = run(algorithm, data, TURNS, task=task, initial_params=params)
    assert_alike(alone, run(algorithm, data, layout, task=task, initial_params=sharded))
    kept = [leaf for leaf in jax.tree.leaves(layout.everywhere(sharded)) if not leaf.sharding.is_fully_replicated]
    assert [leaf.sharding.shard_shape(leaf.shape) for leaf in kept] == [(60, 8)]


@pytest.mark.slow
def test_the_rule_takes_one_device_for_small_rounds(data):
    algorithm = fjs.fedavg(client_optimizer=LOCAL)
    given = run(algorithm, data, None).description["run"]["layout"]
    assert given["name"] == "layout.turns"
    assert choose_devices(1000, lambda: 1e8) == jax.device_count() > 1 == choose_devices(1000, lambda: 1e6)


@pytest.mark.slow
def test_the_rule_takes_all_devices(data, monkeypatch):
    """Of a CPU, where several are there because somebody asked for them; and says so."""
    monkeypatch.setattr("fedjax_sim.engine.layout.choose._SMALL_ROUND", 0)
    algorithm = fjs.fedavg(client_optimizer=LOCAL)
    history = run(algorithm, data, None)
    layout = history.description["run"]["layout"]
    assert layout["name"] == "layout.mesh"
    assert layout["arguments"]["devices"] == 7  # as many as the cohort has clients
    assert_alike(run(algorithm, data, TURNS), history)


@pytest.mark.slow
def test_evaluations_of_ones_own_see_no_padding(data):
    """And a data set that lies on one mesh can be run on another, with the same checksum."""

    def square(params, dataset):
        return {"square": jnp.mean(dataset.examples["x"] ** 2), "rows": jnp.float32(len(dataset.test.examples["y"]))}

    algorithm = fjs.fedavg(client_optimizer=LOCAL)
    assert data.num_examples % 3 > 0
    alone = run(algorithm, data, TURNS, evaluate=square)
    placed = MESH(8, data="sharded").placed(data)
    dealt = run(algorithm, placed, MESH(3, data="sharded"), evaluate=square)
    assert_alike(alone, dealt)


@pytest.mark.slow
def test_large_data_is_not_copied_for_every_core(data, monkeypatch):
    from fedjax_sim.engine.layout import choose

    assert choose.choose_sharding(1 << 30, 2) == "replicated"
    assert choose.choose_sharding(1 << 30, 3) == "sharded"
    monkeypatch.setattr(choose, "_COPIES", 100)
    monkeypatch.setattr(choose, "_SMALL_ROUND", 0)
    history = run(fjs.fedavg(client_optimizer=LOCAL), data, None, rounds=1, eval_every=1)
    assert history.description["run"]["layout"]["arguments"]["data"] == "sharded"


def test_bad_input(data):
    with pytest.raises(ValueError, match="a mesh of 9 devices: there are 8"):
        run(fjs.fedavg(client_optimizer=LOCAL), data, MESH(9))
    with pytest.raises(ValueError, match="whole groups"):
        run(fjs.fedavg(client_optimizer=LOCAL), data, MESH(8, model=3))
    with pytest.raises(ValueError, match="known: replicated, sharded"):
        MESH(2, data="split")
    with pytest.raises(TypeError, match="one device"):
        MESH(2, inner=MESH(2))
    with pytest.raises(ValueError, match="devices"):
        fjs.sweeps.sweep(
            fjs.fedavg(client_optimizer=LOCAL), data, fjs.sweeps.grid({"server_learning_rate": [1.0, 0.5]}),
            task=LOGISTIC, rounds=2, batch_size=8, cohort=fjs.cohort.uniform(3), work=fjs.local.epochs(1),
            layout=MESH(2),
        )  # fmt: skip
