"""Runs that diverge: what is recorded, who is left out, what stops; and the rules that stop a run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import stopping
from fedjax_sim.reporting.divergence import Divergence, DivergenceError, divergences
from fedjax_sim.reporting.recorded import first_reached
from fedjax_sim.run.recording import Recording
from fedjax_sim.run.records import Stop

pytestmark = pytest.mark.xdist_group("divergence")  # one worker compiles what they share

sgd = fjs.optim.sgd
N, ROUNDS, BAD = 6, 4, 4
RATES = np.ones(N)
RATES[BAD] = 1e200  # two steps of this client overflow
TAU = np.array([[2, 3, 2, 2, 2, 3], [3, 2, 2, 4, 3, 2], [2, 2, 3, 2, 2, 2], [2, 3, 2, 2, 4, 2]])
DROPPED = np.where(np.arange(N) == BAD, 0, TAU)
METHODS = {
    "fedavg": lambda rate: fjs.fedavg(client_optimizer=sgd(0.1), client_learning_rate=rate),
    "fednova": lambda rate: fjs.fednova(client_optimizer=sgd(0.1), client_learning_rate=rate),
    "scaffold": lambda rate: fjs.scaffold(client_optimizer=sgd(0.1), client_learning_rate=rate),
    "feddane": lambda rate: fjs.feddane(client_optimizer=sgd(0.1), client_learning_rate=rate, same_cohort=True),
    "fedaware": lambda rate: fjs.fedaware(client_optimizer=sgd(0.1), client_learning_rate=rate),
    "qfedavg": lambda rate: fjs.qfedavg(client_optimizer=sgd(0.1), client_learning_rate=rate),
}


@pytest.fixture
def data(x64):
    return quadratics()


@functools.cache
def quadratics():
    return fjs.datasets.quadratics(num_clients=N, dim=8, seed=0)


def settings(**changes):
    given = {
        "task": fjs.quadratic(),
        "rounds": ROUNDS,
        "cohort": fjs.cohort.uniform(3),
        "work": fjs.local.given_steps(TAU),
        "batches": fjs.local.full_batch(),
    }
    return given | changes


@functools.cache
def takes_part():
    """Whether the client that overflows takes part, [seeds, rounds]."""

    def of(seed, t):
        drawn = settings()["cohort"].draw(quadratics(), jax.random.key(seed), t)
        return jnp.any((drawn.ids == BAD) & drawn.mask)

    return np.asarray(jax.jit(jax.vmap(jax.vmap(of, (None, 0)), (0, None)))(np.arange(20), np.arange(ROUNDS)))


def bad_rounds(seed):
    return np.flatnonzero(takes_part()[seed]).tolist()


def seeds_with(spared):
    """A seed in whose first rounds everything is well, then not, and one that never draws the client."""
    hit = next(s for s in range(20) if (found := bad_rounds(s)) and found[0] > 0)
    free = next(s for s in range(20) if not bad_rounds(s)) if spared else None
    return [hit, free] if spared else [hit]


def run(data, name="fedavg", rates=RATES, **changes):
    algorithm = METHODS[name](fjs.rates.over_clients(rates))
    return fjs.simulate(algorithm, data, **settings(**changes))


def test_what_is_recorded(data):
    seeds = seeds_with(spared=True)
    history = run(data, seeds=seeds)
    first = bad_rounds(seeds[0])[0]
    assert history.divergences == [Divergence(seeds[0], first + 1, "clients", (BAD,), "FedAvg")]
    assert str(history.divergences[0]) == (
        f"FedAvg, seed {seeds[0]}, round {first + 1}: updates of the clients {BAD} are not finite"
    )
    # the round's model is not finite from then on; after it every client is not, for it starts there
    assert history.rounds["diverged"][0].tolist() == [t >= first for t in range(ROUNDS)]
    counts = history.rounds["nonfinite_clients"][0]
    assert counts[first] == 1
    assert (counts[first + 1 :] == 3).all()
    # the other seed goes on as if nothing had been: test_the_compiled_run_has_it_too
    assert not history.rounds["nonfinite_clients"][1].any()
    assert np.isfinite(history["loss"][1]).all()
    assert history.stops == {}


def test_it_is_saved(data, tmp_path):
    history = run(data, seeds=seeds_with(spared=True), on_divergence="stop")
    assert history.divergences
    assert history.stops
    history.save(tmp_path / "run.npz")
    read = fjs.History.load(tmp_path / "run.npz")
    assert read.divergences == history.divergences
    assert read.stops == history.stops


def test_raise(data):
    seeds = seeds_with(spared=True)
    with pytest.raises(
        DivergenceError, match=rf"FedAvg, seed {seeds[0]}, round \d: updates of the clients 4"
    ) as caught:
        run(data, seeds=seeds, on_divergence="raise")
    assert caught.value.divergences[0].clients == (BAD,)


def test_stop(data):
    seeds = seeds_with(spared=True)
    history = run(data, seeds=seeds, on_divergence="stop")
    first = bad_rounds(seeds[0])[0]
    assert list(history.stops) == [seeds[0]]
    assert history.stops[seeds[0]].round == first + 1
    assert history.rounds["cohort_size"][0].tolist() == [3] * (first + 1) + [0] * (ROUNDS - first - 1)
    going_on = run(data, seeds=seeds)
    np.testing.assert_array_equal(history["loss"][1], going_on["loss"][1])
    np.testing.assert_array_equal(history.rounds["cohort_size"][1], going_on.rounds["cohort_size"][1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "fedavg" else pytest.mark.slow) for name in METHODS]
)
def test_a_skipped_client_is_one_that_drops_out(data, name):
    everybody = fjs.cohort.full()
    skipped = run(data, name, skip_nonfinite=True, cohort=everybody)
    dropped = run(data, name, RATES * 0 + 1, work=fjs.local.given_steps(DROPPED), cohort=everybody)
    assert skipped.divergences == []
    assert skipped.rounds["nonfinite_clients"].tolist() == [[1] * ROUNDS]
    np.testing.assert_allclose(skipped["loss"], dropped["loss"], rtol=1e-12)
    np.testing.assert_allclose(skipped.params, dropped.params, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(skipped.rounds["cohort_size"], dropped.rounds["cohort_size"])


@pytest.mark.slow
@pytest.mark.parametrize("average", ["sample", "plain", "original", "scheme_ii"])
@pytest.mark.parametrize("layout", [fjs.layout.stacked(), fjs.layout.lanes(2)], ids=["stacked", "lanes"])
def test_skipping_in_every_average_and_layout(data, average, layout):
    seeds = seeds_with(spared=False)
    cohort = fjs.cohort.uniform(3, average=average)
    skipped = run(data, skip_nonfinite=True, seeds=seeds, cohort=cohort, layout=layout)
    dropped = run(data, "fedavg", RATES * 0 + 1, work=fjs.local.given_steps(DROPPED), seeds=seeds, cohort=cohort)
    np.testing.assert_allclose(skipped.params, dropped.params, rtol=1e-9, atol=1e-12)


def test_everybody_is_skipped(data):
    history = run(data, rates=RATES * 0 + 1e200, skip_nonfinite=True, cohort=fjs.cohort.full())
    assert (history.rounds["cohort_size"] == 0).all()
    assert (history["loss"] == history["loss"][:, :1]).all()


@pytest.mark.slow
@pytest.mark.cpu
def test_the_compiled_run_has_it_too(data):
    seeds = seeds_with(spared=True)
    algorithm = METHODS["fedavg"](fjs.rates.over_clients(RATES))
    train = jax.jit(fjs.make_train(**settings()))
    result, spared = (train(algorithm, data, jax.random.key(seed)) for seed in seeds)
    first = bad_rounds(seeds[0])[0]
    assert result.rounds["nonfinite_ids"][first].tolist() == [BAD, -1, -1]
    assert result.rounds["nonfinite_ids"][0].tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(run(data, seeds=seeds)["loss"][1], spared.metrics["loss"])


@pytest.mark.slow
def test_a_server_that_overflows(data):
    rates = fjs.rates.over_rounds(np.array([1.0, 1e300, 1e300, 1.0]))
    algorithm = fjs.fedavg(client_optimizer=sgd(0.1), server_learning_rate=rates)
    history = fjs.simulate(algorithm, data, **settings(eval_every=4, cohort=fjs.cohort.full()))
    (found,) = history.divergences
    assert (found.what, found.clients) in {("model", ()), ("clients", found.clients)}
    assert found.round == int(history.rounds["diverged"][0].argmax()) + 1


@pytest.mark.slow
def test_a_loss_that_explodes(data):
    history = fjs.simulate(
        fjs.fedavg(client_optimizer=sgd(3.0)),
        data,
        **settings(work=fjs.local.steps(6), eval_every=2, cohort=fjs.cohort.full()),
    )
    assert [(one.what, one.round) for one in history.divergences] == [("loss", 2)]
    assert str(history.divergences[0]) == (
        "FedAvg, seed 0, round 2: the loss is more than 10 times what it was at first"
    )


def found(losses, factor=10.0):
    """The rounds at which losses of one seed, evaluated every second round, count as diverged, and why."""
    metrics = {"loss": np.array([losses])}
    evaluated = 2 * np.arange(len(losses))
    signs = divergences("FedAvg", [3], evaluated, metrics, {}, skipped=False, factor=factor)
    return [(sign.round, sign.what, sign.factor) for sign in signs]


def test_when_a_loss_has_exploded():
    assert found([2.3, 22.9, 23.0, 23.1, 1.0]) == [(6, "loss", 10.0)]
    assert found([2.3, 54.0]) == [(2, "loss", 10.0)]
    assert found([2.3, 54.0], 100.0) == found([2.3, 54.0], None) == []
    assert found([2.3, 2.4], 1.0) == [(2, "loss", 1.0)]
    assert found([-2.0, 19.0, 21.0]) == [(4, "loss", 10.0)]  # by |F(x_0)|
    assert found([-2.0, -1e30]) == []
    assert found([0.0, 10.0, 10.1]) == [(4, "loss", 10.0)]
    assert found([1e-6, 1e-4]) == [(2, "loss", 10.0)]
    for bad in (np.nan, np.inf, -np.inf):
        assert found([2.3, bad]) == found([2.3, bad], None) == [(2, "loss", None)]
        assert found([bad, 1.0]) == [(0, "loss", None)]
    assert found([1e-300, 1e308], 1e300) == [(2, "loss", 1e300)]


def growing(start=1.0, **changes):
    """Full gradient steps on clients who agree: every round multiplies the loss by 9."""
    alike = np.tile(np.eye(2), (2, 1, 1))
    data = fjs.datasets.quadratics(num_clients=2, dim=2, hessians=alike, scale=0.0)
    return {
        "algorithm": fjs.fedavg(client_optimizer=sgd(4.0)), "dataset": data, "task": fjs.quadratic(start=start),
        "rounds": 6, "batches": fjs.local.full_batch(), "cohort": fjs.cohort.full(), "work": fjs.local.steps(1),
    } | changes  # fmt: skip


@pytest.mark.slow
def test_the_factor_is_the_run_s(tmp_path):
    recorded = fjs.simulate(**growing())
    np.testing.assert_allclose(recorded["loss"][0], 9.0 ** np.arange(7), rtol=1e-12)
    assert recorded.divergences == [Divergence(0, 2, "loss", (), "FedAvg", 10.0)]  # 9 is not, 81 is
    assert fjs.simulate(**growing(divergence_factor=None)).divergences == []
    assert fjs.simulate(**growing(divergence_factor=9.0)).divergences[0].round == 2
    with pytest.raises(DivergenceError, match="round 3: the loss is more than 100 times what it was at first"):
        fjs.simulate(**growing(on_divergence="raise", divergence_factor=100))
    ending = {"on_divergence": "stop", "divergence_factor": 100.0}
    stopped = fjs.simulate(**growing(**ending))
    assert list(stopped.stops) == [0]
    assert stopped.stops[0].round == stopped.evaluated[-1] == 3
    assert "more than 100 times" in stopped.stops[0].reason
    assert stopped.description["run"]["divergence_factor"] == 100.0
    # off the device, resumed, and run again from its description
    there = growing(**ending)
    streamed = fjs.simulate(**there | {"dataset": fjs.datasets.on_host(there["dataset"])})
    fjs.simulate(**growing(**ending, rounds=2), checkpoint=tmp_path / "saved")
    resumed = fjs.simulate(**growing(**ending), checkpoint=tmp_path / "saved")
    for other in (streamed, resumed):
        assert (other.stops, other.divergences) == (stopped.stops, stopped.divergences)
        np.testing.assert_allclose(other["loss"], stopped["loss"], rtol=1e-12)
    with pytest.raises(ValueError, match=r"run\.divergence_factor: 100\.0 in the checkpoint, 10\.0 now"):
        fjs.simulate(**growing(on_divergence="stop"), checkpoint=tmp_path / "saved")
    assert fjs.verify(stopped).passed
    stopped.save(tmp_path / "run.npz")
    assert fjs.History.load(tmp_path / "run.npz").divergences == stopped.divergences


def test_rules():
    evaluated = np.array([0, 5, 10, 15])
    metrics = {"loss": np.array([3.0, 1.0, 2.5, 2.50001]), "test_accuracy": np.array([0.1, 0.5, 0.6, 0.6])}
    early = {name: values[:3] for name, values in metrics.items()}
    converged, rising = stopping.converged(1e-4), stopping.rising(1.0, over=10)
    assert converged.reason(evaluated, metrics) == "loss changed by less than 0.0001"
    assert converged.reason(evaluated[:3], early) is None
    assert rising.reason(evaluated, metrics) == "loss rose by more than 1 in 10 rounds"  # 2.50001 - 1.0 at round 5
    assert rising.reason(evaluated[:3], early) is None  # 2.5 - 3.0
    assert stopping.reached("test_accuracy", 0.6).reason(evaluated[:3], early) == "test_accuracy reached 0.6"
    assert stopping.reached("loss", 1.0).reason(evaluated[:2], {"loss": metrics["loss"][:2]}) == "loss reached 1"
    assert stopping.reached("loss", 0.5).reason(evaluated, metrics) is None
    assert stopping.fedprox() == stopping.any_of([converged, rising])
    assert stopping.fedprox().reason(evaluated, metrics) == "loss changed by less than 0.0001"
    assert converged.reason(evaluated[:1], {"loss": metrics["loss"][:1]}) is None
    with pytest.raises(ValueError, match=r"stop asks for 'los', .*did you mean 'loss'"):
        stopping.converged(metric="los").reason(evaluated, metrics)
    with pytest.raises(ValueError, match="an array of shape"):
        stopping.reached("x", 1.0).reason(evaluated, {"x": np.ones((4, 2))})


@pytest.mark.parametrize(
    "rule",
    [
        stopping.reached("test_accuracy", 0.9),
        pytest.param(stopping.any_of([stopping.patience("los")]), marks=pytest.mark.slow),
        stopping.reached("bytes", 1e6),
        pytest.param(stopping.converged(metric="virtual_time"), marks=pytest.mark.slow),
    ],
)
def test_a_rule_for_what_is_not_recorded_is_refused_before_the_first_round(rule):
    begun = []

    class Told(fjs.callbacks.Callback):
        def report(self, reported):
            begun.append(reported.round)

    with pytest.raises(ValueError, match=r"stop asks for '(test_accuracy|los|bytes|virtual_time)', which this run"):
        fjs.simulate(**growing(stop=rule, callbacks=[Told()]))
    assert not begun


def test_a_method_may_report_a_clock_of_its_own():
    class Timed(fjs.algorithms.FedAvg):
        def report(self, server):
            return {"virtual_time": jnp.float32(1.0)}

    history = fjs.simulate(
        **growing(stop=stopping.reached("virtual_time", 2.0), algorithm=Timed(client_optimizer=sgd(0.1)))
    )
    assert history.stops


def test_a_metric_is_not_called_as_a_clock_is():
    """A rule would take it for the clock, or the clock for it."""
    with pytest.raises(ValueError, match="the metric 'bytes': a name of a run's clock: choose another"):
        fjs.simulate(**growing(evaluate=lambda params, dataset: {"bytes": jnp.float32(1.0)}))


class Worst(stopping.Stopping):
    metric: str = "of_clients"

    def reason(self, evaluated, metrics):
        return "the worst" if metrics.get(self.metric, np.zeros((1, 1)))[-1].max() > 0 else None


def test_a_rule_of_ones_own_reads_what_it_likes():
    for evaluate in (None, lambda params, dataset: {"of_clients": jnp.ones(3)}):
        found = fjs.simulate(**growing(stop=Worst(), evaluate=evaluate))
        assert list(found.stops) == ([] if evaluate is None else [0])


def test_a_target_is_reached_in_the_precision_of_the_metric():
    """float32 rounds 0.9 down, and 90 of 100 are 0.9 all the same; so says ``rounds_to``, also of numpy's 0.9."""
    evaluated, values = np.array([0, 5]), np.array([0.5, 0.9], np.float32)
    assert stopping.reached("test_accuracy", 0.9).reason(evaluated, {"test_accuracy": values})
    assert first_reached(values[None], evaluated, np.float64(0.9), falling=False) == [5]


def test_accuracies_of_a_model_that_diverged_stop_nothing():
    evaluated, nan = np.array([0, 5, 10]), np.nan
    metrics = {"loss": np.array([2.0, nan, nan]), "test_accuracy": np.array([0.1, 0.2, 0.2])}  # NaN is class 0
    for rule in (stopping.reached("test_accuracy", 0.2), stopping.converged(metric="test_accuracy")):
        assert rule.reason(evaluated, metrics) is None
    assert "after round 0 " in stopping.patience("test_accuracy", 2).reason(evaluated, metrics)


@pytest.mark.parametrize(
    ("metric", "values", "options", "stops"),
    [
        ("test_loss", [3, 2, 2, 2, 1], {"evaluations": 2}, [False, False, False, True, False]),  # equal is not better
        ("test_accuracy", [0.1, 0.3, 0.2, 0.3, 0.4], {"evaluations": 2}, [False, False, False, True, False]),
        ("loss", [3, 2.5, 2.1, 1.5], {"evaluations": 2, "change": 1.0}, [False, False, True, False]),
        ("loss", [3, np.nan, np.nan, 2], {"evaluations": 2}, [False, False, True, False]),
        ("loss", [np.nan, np.nan], {"evaluations": 1}, [False, True]),
    ],
)
def test_patience(metric, values, options, stops):
    """Stopped or not, as it would be after each evaluation."""
    rule, evaluated = stopping.patience(metric, **options), 5 * np.arange(len(values))
    said = [rule.reason(evaluated[:e], {metric: np.array(values[:e], float)}) for e in range(1, len(values) + 1)]
    assert [one is not None for one in said] == stops
    assert all("was not better than after round" in one for one in said if one)


def test_at_best(data):
    history = run(data, rates=np.ones(N), seeds=[3, 5])
    evaluations = len(history.evaluated)
    accuracy = np.tile(np.array([0.1, 0.5, 0.5, 0.2] + [0.0] * evaluations)[:evaluations], (2, 1))
    accuracy[1, :2] = np.nan
    x = np.arange(2 * evaluations * 3).reshape(2, evaluations, 3)
    history = dataclasses.replace(history, metrics=history.metrics | {"test_accuracy": accuracy, "client_x": x})
    assert history.at_best("round", "test_accuracy").tolist() == history.evaluated[[1, 2]].tolist()
    assert history.at_best("client_x", "test_accuracy").tolist() == [x[0, 1].tolist(), x[1, 2].tolist()]
    assert history.at_best("loss", "loss").tolist() == history["loss"].min(axis=1).tolist()
    accuracy[1] = np.nan
    assert np.isnan(history.at_best("client_x", "test_accuracy")).tolist() == [[False] * 3, [True] * 3]
    with pytest.raises(ValueError, match=r"at_best\(metric='client_x'\): its values have the shape"):
        history.at_best("loss", "client_x")
    with pytest.raises(KeyError, match="no metric has this name"):
        history.at_best("cohort_size", "loss")


def test_a_rule_stops_each_seed_by_itself(data):
    ones, seeds = np.ones(N), [3, 5]
    whole = run(data, rates=ones, seeds=seeds)
    target = float(whole["loss"][0, 3])
    history = run(data, rates=ones, seeds=seeds, stop=stopping.reached("loss", target))
    reached = whole["loss"] <= target
    assert reached.any(axis=1).tolist() == [True, False]
    for row, seed in enumerate(seeds):
        if reached[row].any():
            first = int(reached[row].argmax())
            assert history.stops[seed] == Stop(first, f"loss reached {target:g}")
            np.testing.assert_array_equal(history["loss"][row, : first + 1], whole["loss"][row, : first + 1])
            assert (history["loss"][row, first:] == whole["loss"][row, first]).all()
        else:
            assert seed not in history.stops
            np.testing.assert_array_equal(history["loss"][row], whole["loss"][row])
    assert list(history.stops) == [3]


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["virtual_time", "bytes"])
def test_a_budget_stops_each_seed_where_its_own_clock_has_passed_it(data, axis):
    """In a run whose model diverges too: its clock goes on."""
    devices = fjs.systems.devices(seconds_per_step=np.array([1.0, 2.0, 4.0, 8.0, 3.0, 5.0]))
    given = {"seeds": seeds_with(spared=True), "system": devices}
    clock = getattr(run(data, **given), axis)
    budget = float(clock[:, 2].max())
    history = run(data, stop=stopping.reached(axis, budget), **given)
    for row, seed in enumerate(history.seeds):
        first = int((clock[row] >= budget).argmax())
        assert history.stops[seed] == Stop(first, f"{axis} reached {budget:g}")
        np.testing.assert_array_equal(getattr(history, axis)[row, : first + 1], clock[row, : first + 1])


def test_a_run_ends_when_all_have_stopped(data):
    algorithm = fjs.fedavg(client_optimizer=sgd(0.1))
    common = settings(rounds=400, eval_every=2, work=fjs.local.steps(2), cohort=fjs.cohort.full())
    history = fjs.simulate(algorithm, data, **common, seeds=range(2), stop=stopping.converged(10.0))
    assert history.evaluated.tolist() == [0, 2]
    assert history.rounds["cohort_size"].shape == (2, 2)
    assert history.stops == {seed: Stop(2, "loss changed by less than 10") for seed in range(2)}


def test_errors(data):
    algorithm = fjs.fedavg(client_optimizer=sgd(0.1))
    with pytest.raises(TypeError, match=r"stop is 0\.1: give a rule, .* or None"):
        fjs.simulate(algorithm, data, **settings(), stop=0.1)
    with pytest.raises(ValueError, match=r"on_divergence is 'skip': .*known: record, stop, raise"):
        fjs.simulate(algorithm, data, **settings(), on_divergence="skip")
    for wrong in ("much", True, [10.0], np.ones(2)):
        with pytest.raises(TypeError, match=r"divergence_factor is"):
            fjs.simulate(algorithm, data, **settings(), divergence_factor=wrong)
    for wrong in (0.5, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"divergence_factor is .*\[1, inf\)"):
            fjs.simulate(algorithm, data, **settings(), divergence_factor=wrong)
    with pytest.raises(TypeError, match="skip_nonfinite"):
        fjs.simulate(algorithm, data, **settings(), skip_nonfinite="yes")
    with pytest.raises(ValueError, match=r"any_of\(\[\]\): .*at least one"):
        stopping.any_of([])
    with pytest.raises(TypeError, match=r"any_of.*'converged'"):
        stopping.any_of(["converged"])
    with pytest.raises(ValueError, match="converged"):
        stopping.converged(0.0)


def test_a_recording_that_grows():
    recording = Recording("FedAvg", [0, 1], skipped=False, factor=10.0)
    for number in range(700):  # more than wait on the device
        count = int(number > 0)
        rounds = {"nonfinite_clients": np.full((2, count), number), "nonfinite_ids": np.zeros((2, count, 3), int)}
        recording.add(rounds if count else {}, {"loss": np.array([number, -number], float)}, count)
    assert recording.finished == 699
    assert recording.metrics()["loss"].tolist() == [list(range(700)), [-float(n) for n in range(700)]]
    assert recording.rounds()["nonfinite_clients"][1].tolist() == list(range(1, 700))
    other = Recording("FedAvg", [0, 1], skipped=False, factor=10.0)
    other.restore(recording.arrays(), {1: Stop(3, "why")})
    assert other.running.tolist() == [True, False]
    for name, values in recording.arrays().items():
        np.testing.assert_array_equal(other.arrays()[name], values)


def test_what_is_recorded_stays_of_one_kind():
    """A dtype, shape or name that changes would be cut or lost without a word."""
    for first, then, message in [
        ({"x": np.zeros(1, np.int32)}, {"x": np.full(1, 0.5)}, "'x' was int32"),
        ({}, {"x": np.zeros(1)}, "'x' was nothing at first"),
        ({"x": np.zeros((1, 2))}, {"x": np.zeros((1, 1))}, r"float64\[2\]"),
    ]:
        recording = Recording("FedAvg", [0], skipped=False, factor=10.0)
        recording.add({}, {"loss": np.zeros(1)} | first, 0)
        with pytest.raises(ValueError, match=message):
            recording.add({"cohort_size": np.ones((1, 1), int)}, {"loss": np.zeros(1)} | then, 1)


def test_a_reason_to_stop_is_in_words():
    class Wordless(stopping.Stopping):
        def reason(self, evaluated, metrics):
            return False  # no: that is None

    recording = Recording("FedAvg", [0], skipped=False, factor=10.0)
    recording.add({}, {"loss": np.ones(1)}, 0)
    with pytest.raises(TypeError, match=r"Wordless\.reason\(\.\.\.\) returned False: .*or None to go on"):
        recording.judge(Wordless(), diverged=False)


def test_a_rule_does_not_write_into_the_record():
    class Falling(stopping.Stopping):
        def reason(self, evaluated, metrics):
            metrics["loss"][np.isnan(metrics["loss"])] = np.inf

    recording = Recording("FedAvg", [0], skipped=False, factor=None)
    recording.add({}, {"loss": np.array([np.nan])}, 0)
    with pytest.raises(ValueError, match="read-only"):
        recording.judge(Falling(), diverged=False)
    assert np.isnan(recording.metrics()["loss"]).all()


def test_the_ids_of_a_seed_that_stopped_are_nobody_s():
    recording = Recording("FedAvg", [0, 1], skipped=False, factor=10.0)
    rounds = {"cohort_size": np.ones((2, 3), int), "nonfinite_ids": np.zeros((2, 3, 1), int)}
    recording.add(rounds, {"loss": np.ones(2)}, 3)
    recording.stops[1] = Stop(2, "why")
    assert recording.public_rounds()["nonfinite_ids"][..., 0].tolist() == [[0, 0, 0], [0, 0, -1]]
    assert recording.rounds()["nonfinite_ids"].max() == 0
