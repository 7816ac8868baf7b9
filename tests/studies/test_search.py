"""Searches: against the population and the rungs played by hand, against sweeps and ordinary runs; resuming, errors."""

import itertools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import hyper, sweeps
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.core.fields import real
from fedjax_sim.core.keys import Purpose
from fedjax_sim.studies.search import program, running
from fedjax_sim.studies.search.program import score
from tests.worked_studies import at_smoke_size

pytestmark = pytest.mark.xdist_group("search")  # one worker compiles what they share

sgd = fjs.optim.sgd
RATE, GLOBAL, CHANCE = "client_optimizer.learning_rate", "server_learning_rate", "cohort.probability"
WIDE = {RATE: sweeps.log_uniform(0.01, 0.3), GLOBAL: sweeps.log_uniform(0.2, 1.2)}
FULL = {"task": fjs.quadratic(start=1.0), "batches": fjs.local.full_batch(), "cohort": fjs.cohort.full()}


def quadratics(dim=3):
    rng = np.random.default_rng(3)
    H = np.stack([np.diag(rng.uniform(0.5, 3.0, dim)) for _ in range(3)])
    return H, rng.normal(size=(3, dim)), np.array([1, 2, 3])


# A population by hand.


class ByHand:
    """SCAFFOLD on quadratics, everybody takes part in full steps: a member whose whole state is (x, c, c_i)."""

    def __init__(self, H, e, sizes, steps):
        self.H, self.e, self.p, self.steps = H, e, sizes / sizes.sum(), steps
        self.state = np.ones(H.shape[1]), np.zeros(H.shape[1]), np.zeros(e.shape)

    def round(self, rate, rate_of_server):
        x, c, own = self.state
        after = []
        for H, e, c_i in zip(self.H, self.e, own, strict=True):
            y = x
            for _ in range(self.steps):
                y = y - rate * (H @ y - e - c_i + c)
            after.append((y - x, c_i - c + (x - y) / (self.steps * rate)))
        new = np.array([c_i for _, c_i in after])
        x = x + rate_of_server * np.mean([delta for delta, _ in after], axis=0)
        self.state = x, c + np.mean(new - own, axis=0), new

    def loss(self):
        x = self.state[0]
        return sum(p * (x @ H @ x / 2 - e @ x) for p, H, e in zip(self.p, self.H, self.e, strict=True))


def words(seed, evaluation, member, number):
    """What a member draws after an evaluation, as the docstring of ``population`` says."""
    key = jax.random.fold_in(jax.random.key(seed), np.uint32(Purpose.SEARCH))
    key = jax.random.fold_in(jax.random.fold_in(key, evaluation), member)
    return np.asarray(jax.random.bits(key, (number,), jnp.uint32)).tolist()


@pytest.mark.parametrize("how", ["in turn", pytest.param("side by side", marks=pytest.mark.slow)])
def test_a_population_is_what_one_plays_by_hand(how, x64, monkeypatch):
    """P = 6 and q = 2: who copies whom, states copied whole, factors, values drawn anew, rounds in between."""
    if how == "side by side":  # as on an accelerator
        monkeypatch.setattr(program, "over_leading_axis", lambda function, xs: jax.vmap(function)(xs))
    program.advance.clear_cache()
    H, e, sizes = quadratics()
    data = fjs.datasets.quadratics_from(H, e, sizes=sizes)
    space, factor, resample = sweeps.random(WIDE, 6, seed=1), 1.4, 0.3
    method = fjs.scaffold(client_optimizer=sgd(0.1), server_learning_rate=1.0)
    found = fjs.search(
        method, data, space, hyper.population(0.4, factor=factor, resample=resample), seeds=5,
        objective=hyper.final("loss"), rounds=9, eval_every=2, work=fjs.local.steps(2), **FULL,
    )  # fmt: skip
    assert found.evaluated.tolist() == [0, 2, 4, 6, 8, 9]

    drawn = sweeps.random(WIDE, 6 * 6, seed=1).points()  # what evaluation e gives member m is point e P + m
    members = [ByHand(H, e, sizes, 2) for _ in range(6)]
    values = [{name: drawn[name][m] for name in WIDE} for m in range(6)]
    anew = copies = 0
    for t, rounds in enumerate(np.diff(found.evaluated, prepend=0)):
        for member, at in zip(members, values, strict=True):
            for _ in range(rounds):
                member.round(at[RATE], at[GLOBAL])
        losses = np.array([member.loss() for member in members])
        np.testing.assert_allclose(found.scores[:, t], losses, rtol=1e-11)
        np.testing.assert_allclose(found.metrics["loss"][:, 0, t], losses, rtol=1e-11)
        for name in WIDE:
            np.testing.assert_allclose(found.values[name][:, t], [at[name] for at in values], rtol=1e-12)
        source = list(range(6))
        if 0 < t < 5:
            ranked = sorted(range(6), key=lambda m: losses[m])
            states, before = [member.state for member in members], [dict(at) for at in values]
            for m in ranked[4:]:
                # a word for the source, then two a name: drawn anew, and the direction
                own = words(5, t, m, 5)
                source[m] = ranked[own[0] * 2 >> 32]
                members[m].state = states[source[m]]
                for place, name in enumerate(sorted(WIDE)):
                    again, up = own[1 + 2 * place] < resample * 2**32, own[2 + 2 * place] >> 31
                    moved = before[source[m]][name] * (factor if up else 1 / factor)
                    values[m][name] = drawn[name][6 * t + m] if again else moved
                    anew, copies = anew + again, copies + 1
        assert found.source[:, t].tolist() == source
    assert 0 < anew < copies  # both happened
    best = int(np.argmin(losses))
    assert found.best == best
    np.testing.assert_allclose(found.params[0], members[best].state[0], rtol=1e-11)
    for member in range(6):  # copies of copies too
        path = found.lineage(member)
        assert path[-1] == member
        assert all(found.source[after, e] == before for e, (before, after) in enumerate(itertools.pairwise(path)))
    assert found.member_rounds == 6 * 9
    program.advance.clear_cache()


@pytest.mark.slow
def test_coordinates_decide_what_a_factor_is(x64):
    """A rate times the factor, a momentum's odds times it, each entry of an array by itself; others stay to the bit."""
    strategy = hyper.population(factor=1.5)
    values = {"m": np.array([0.9, 0.1, 0.5, 0.3]), "r": np.array([[0.1, 1.0, 3.0]] * 4) * np.arange(1.0, 5)[:, None]}
    transforms = {"m": hyper.unit_interval(), "r": hyper.positive()}
    key = jax.random.key(7)
    decide = jax.jit(lambda key, scores, values: strategy.decide(key, scores, values, {}, transforms))
    decision = decide(key, jnp.array([0.3, 0.1, 0.2, 0.4]), jax.tree.map(jnp.asarray, values))
    assert decision.source.tolist() == [0, 1, 2, 1]
    drawn = np.asarray(jax.random.bits(jax.random.fold_in(key, 3), (7,), jnp.uint32))
    up = np.where(drawn >> 31, 1.5, 1 / 1.5)  # words: source, m anew, m's entry, r anew, r's three entries
    odds = values["m"][1] / (1 - values["m"][1]) * up[2]
    np.testing.assert_allclose(decision.values["m"][3], odds / (1 + odds), rtol=1e-12)
    np.testing.assert_allclose(decision.values["r"][3], values["r"][1] * up[4:], rtol=1e-12)
    assert len({*up[4:]}) == 2
    for name, leaf in values.items():
        np.testing.assert_array_equal(decision.values[name][:3], leaf[:3])


def test_who_diverged_is_last_and_of_equals_the_first_is_better():
    @jax.jit
    def decided(key, scores):
        nothing = {"m": jnp.ones(8)}, {}, {"m": hyper.positive()}
        return [strategy.decide(key, scores, *nothing) for strategy in (hyper.halving(), hyper.population())]

    halved, copied = decided(jax.random.key(0), jnp.array([jnp.inf, 1.0, 0.5, 0.5, jnp.inf, 2.0, 1.0, 0.5]))
    assert halved.order.tolist() == [2, 3, 7, 1, 6, 5, 0, 4]
    source = copied.source.tolist()
    assert [source[m] for m in (1, 2, 3, 5, 6, 7)] == [1, 2, 3, 5, 6, 7]
    assert {source[0], source[4]} <= {2, 3}


@pytest.mark.parametrize(("sound", "copied"), [([5], {5}), ([], {0}), ([1, 5], {1, 5})])
def test_a_population_copies_nobody_who_diverged(sound, copied):
    """Of eight the two worst take one of the two best: where seven diverged, every other copy was of one of these."""
    scores = jnp.full(8, jnp.inf).at[jnp.array(sound, int)].set(1.0)
    values, transforms = {"m": jnp.ones(8)}, {"m": hyper.positive()}

    @jax.jit
    @jax.vmap
    def sources(key):
        return hyper.population().decide(key, scores, values, {}, transforms).source

    found = np.asarray(sources(jax.random.split(jax.random.key(0), 16)))
    worst = [m for m in range(8) if m not in sound][-2:]
    assert set(found[:, worst].ravel().tolist()) == copied


def test_scores_are_means_over_seeds_and_infinite_where_anything_is_not_finite():
    accuracy = jnp.array([[0.5, 0.7], [0.9, 0.9], [0.2, 0.2]])
    metrics = {
        "test_accuracy": accuracy,
        "loss": jnp.array([[1.0, 2.0], [jnp.nan, 1.0], [3.0, 3.0]]),  # a model of NaN has an accuracy too
        "per_client_loss": jnp.full((3, 2, 4), jnp.nan),  # of clients without examples
        "test_roc_auc": jnp.full((3, 2), jnp.nan),  # of examples of one class
    }
    np.testing.assert_allclose(score(hyper.final("test_accuracy"), metrics), [-0.6, jnp.inf, -0.2], rtol=1e-6)
    assert score(hyper.final("loss"), metrics).tolist() == [1.5, jnp.inf, 3.0]
    with pytest.raises(ValueError, match="compared by one number"):
        score(hyper.final("per_client_loss"), metrics)


# Beside ordinary runs, with cohorts and batches that are drawn.


@pytest.fixture
def drawn(x64):
    """A method that keeps state for server and clients, data with test examples, and a run's arguments."""
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=5, max_size=20, test_fraction=0.3, seed=0)
    task = fjs.classification(fjs.models.LogisticRegression(10, param_dtype=jnp.float64))
    run = {
        "task": task, "rounds": 8, "eval_every": 2, "batch_size": 5, "cohort": fjs.cohort.uniform(2),
        "work": fjs.local.steps(2),
    }  # fmt: skip
    method = fjs.scaffold(client_optimizer=sgd(0.1), server_learning_rate=1.0)
    return method, data, sweeps.random(WIDE, 5, seed=2), run


@pytest.fixture
def drawn_quadratics(drawn):
    """The same with a model that compiles in two thirds of the time."""
    method, _, space, run = drawn
    data = fjs.datasets.quadratics(num_clients=5, dim=3, sizes=[4, 1, 5, 2, 3], seed=0)
    return method, data, space, run | {"task": fjs.quadratic(start=1.0), "batch_size": 2}


@pytest.mark.slow
def test_a_member_that_is_never_replaced_is_an_ordinary_run(drawn):
    method, data, space, run = drawn
    found = fjs.search(method, data, space, hyper.population(), seeds=(4, 9), **run)
    own = [m for m in range(5) if (found.source[m] == m).all()]
    replaced = [m for m in range(5) if m not in own]
    assert own
    assert replaced
    for m in own[:1]:
        point = space.point(m)
        history = fjs.simulate(fjs.paths.replace(method, point), data, seeds=(4, 9), **run)
        for name, leaf in history.metrics.items():
            np.testing.assert_allclose(found.metrics[name][m], leaf, rtol=1e-12)
            np.testing.assert_allclose(found.history(m)[name], leaf.T, rtol=1e-12)
        np.testing.assert_allclose(found.scores[m], history["test_loss"].mean(axis=0), rtol=1e-12)
    member = replaced[0]
    path = found.lineage(member)
    assert path[-1] == member
    assert all(found.source[after, e] == before for e, (before, after) in enumerate(itertools.pairwise(path)))
    schedule = found.schedule(member)[RATE]
    assert schedule.shape == (8,)
    assert schedule[::2].tolist() == [found.values[RATE][path[e], e] for e in range(1, 5)]
    assert found.member_rounds == 5 * 2 * 8
    assert f"{found.found[RATE]:.6g}</td>" in found._repr_html_()
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert written["source"] == found.source.tolist()
    assert written["description"]["strategy"]["name"] == "search.population"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rungs", "sizes"),  # of three, which end after 2, 4 and 8 rounds
    [
        (1, (5, 5, 5, 5, 5)),
        (2, (5, 5, 5, 2, 2)),
        (3, (5, 5, 2, 1, 1)),
    ],
)
def test_halving_is_a_sweep_of_which_the_worse_half_ends_early(rungs, sizes, drawn_quadratics):
    """Survivors go on from where they are: their runs are those of the sweep."""
    method, data, space, run = drawn_quadratics
    swept = fjs.sweep(method, data, space, seeds=(4, 9), **run)
    read = hyper.final("loss")
    found = fjs.search(method, data, space, hyper.halving(rungs=rungs), seeds=(4, 9), objective=read, **run)
    losses = swept["loss"].mean(axis=1)
    left = np.arange(5)
    for t, size in enumerate(sizes):
        at_work = ~np.isnan(found.scores[:, t])
        if t > 1 and size < len(left):
            left = np.array(sorted(left, key=lambda m, t=t: losses[m, t - 1])[:size])
        assert np.flatnonzero(at_work).tolist() == sorted(left)
        for name, leaf in swept.metrics.items():
            np.testing.assert_allclose(found.metrics[name][at_work, :, t], leaf[at_work, :, t], rtol=1e-12)
            assert np.isnan(found.metrics[name][~at_work, :, t]).all()
    assert found.best == min(left, key=lambda m: losses[m, -1])
    assert (rungs == 1) == (left.tolist() == [0, 1, 2, 3, 4])
    assert found.member_rounds == 2 * 2 * sum(sizes[1:])
    assert found.schedule()[RATE].tolist() == [space.points()[RATE][found.best]] * 8


@pytest.mark.slow
def test_seeds_of_xlas_generators_start_in_their_own_models():
    """Under vmap they draw for all keys from the first: every seed started in the first one's model."""
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=4, max_size=20, seed=0)
    run = {
        "task": fjs.classification(fjs.models.MLP(10, hidden=(4,))), "rounds": 2, "eval_every": 1, "batch_size": 5,
        "cohort": fjs.cohort.uniform(2), "work": fjs.local.steps(1),
    }  # fmt: skip
    space, method = sweeps.grid({RATE: [0.1, 0.01]}), fjs.fedavg(client_optimizer=sgd(0.1))
    with jax.default_prng_impl("rbg"):
        found = fjs.search(
            method, data, space, hyper.halving(rungs=1), seeds=(0, 3), objective=hyper.final("loss"), **run
        )
        alone = fjs.simulate(method, data, seeds=[3], **run)
    np.testing.assert_allclose(found.metrics["loss"][0, 1], alone["loss"][0], rtol=1e-5)


@pytest.mark.slow
def test_more_of_an_accuracy_is_better_and_a_diverged_member_is_not_copied(drawn):
    method, data, _, run = drawn
    space = sweeps.points([{RATE: rate} for rate in (1e-6, 0.1, 1e308)])
    found = fjs.search(method, data, space, hyper.population(), objective=hyper.final("test_accuracy"), **run)
    assert found.scores[2, 1] == np.inf
    # After two rounds the others are equal, and after four the larger rate is better.
    assert found.source[:, 1:3].T.tolist() == [[0, 1, 0], [0, 1, 1]]
    assert found.scores[found.best, -1] == -found.metrics["test_accuracy"][found.best, 0, -1]
    assert np.isfinite(found.scores[:, -1]).all()  # what was copied has nothing of what diverged


class AtLeastOne(FedAvg):
    """FedAvg with a hyper-parameter whose range no transform has."""

    scale: Any = real(low=1.0, default=1.0)


def test_values_that_a_factory_would_refuse_rank_last():
    space = sweeps.points([{"scale": 1.0 + place / 10, RATE: 0.1 / (1 + place)} for place in range(4)])
    found = fjs.search(
        AtLeastOne(client_optimizer=sgd(0.1)), fjs.datasets.quadratics(num_clients=2, dim=2, seed=0), space,
        hyper.population(0.4, factor=2.0), objective=hyper.final("loss"), rounds=6, work=fjs.local.steps(1), **FULL,
    )  # fmt: skip
    refused = found.values["scale"] < 1
    assert 0 < refused.sum() < refused.size
    np.testing.assert_array_equal(np.isinf(found.scores), refused)


# Interrupted searches.


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(hyper.population(resample=0.5), marks=pytest.mark.slow), hyper.halving(rungs=2)],
    ids=["pbt", "halving"],
)
def test_a_search_that_was_stopped_goes_on_to_the_bit(strategy, drawn_quadratics, tmp_path, monkeypatch):
    method, data, space, run = drawn_quadratics
    run |= {"seeds": (4, 9), "objective": hyper.final("loss")}  # as above: the same programs
    whole = fjs.search(method, data, space, strategy, **run)
    if isinstance(strategy, type(hyper.halving())):  # of five the two that are best at the rung go on
        left = np.flatnonzero(~np.isnan(whole.scores[:, 3]))
        assert left.tolist() == np.sort(np.argsort(whole.scores[:, 2])[:2]).tolist() != [0, 1]
    save, calls = running.Store.save, []

    def stopped(*args):
        save(*args)
        calls.append(args[1])
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(running.Store, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        fjs.search(method, data, space, strategy, checkpoint=tmp_path, **run)
    again = fjs.search(method, data, space, strategy, checkpoint=tmp_path, **run)
    assert calls == [0, 2, 4, 6, 8]
    for name in ("metrics", "values", "scores", "source", "params"):
        jax.tree.map(np.testing.assert_array_equal, getattr(again, name), getattr(whole, name))
    finished = fjs.search(method, data, space, strategy, checkpoint=tmp_path, **run)
    saved = running.Store(tmp_path, writes=False).newest().about["seconds"]
    assert again.seconds >= saved > 0
    assert finished.seconds >= saved  # of all parts
    np.testing.assert_array_equal(finished.scores, whole.scores)
    jax.tree.map(np.testing.assert_array_equal, finished.params, whole.params)
    with pytest.raises(ValueError, match=r"of another search .*seeds"):
        fjs.search(method, data, space, strategy, checkpoint=tmp_path, **run | {"seeds": 1})


# Errors, and suggestions of others.

BAD = {
    "one member": ({"space": sweeps.random(WIDE, 1)}, "nobody to copy"),
    "a list has no draws": (
        {"space": sweeps.points([{RATE: 0.1}, {RATE: 0.2}]), "strategy": hyper.population(resample=0.1)},
        "has no distributions",
    ),
    "no factors of 0": ({"space": sweeps.points([{RATE: 0.1}, {RATE: 0.0}])}, "point 1, 'client_optimizer"),
    "rungs": ({"strategy": hyper.halving(rungs=2), "rounds": 6, "eval_every": 2}, "would end after 3 rounds"),
    "few members": ({"strategy": hyper.halving(rungs=4), "rounds": 16}, "the last have 0.5 members"),
    "objective": ({"objective": hyper.mean("loss")}, "hyper.final"),
    "nothing of that name": ({"objective": hyper.final("test_loss")}, "no test examples"),
    "strategy": ({"strategy": "population"}, "hyper.population"),
    "no such name": ({"space": sweeps.random({"mu": sweeps.uniform(0.0, 1.0)}, 4)}, "mu"),
    "layout": ({"layout": fjs.layout.mesh()}, "search gives every device"),
    "slots of other values": (
        {"space": sweeps.points([{CHANCE: 0.1}, {CHANCE: 0.2}]), "cohort": fjs.cohort.independent(0.1)},
        r"population\(\) changes values on the way: .* give cap",
    ),
    "steps of other values": (
        {"space": sweeps.points([{"work.p": 0.5}, {"work.p": 0.6}]), "work": fjs.local.geometric(0.5)},
        r"population\(\) changes values on the way: .* needs most",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_before_anything_compiles(name, monkeypatch):
    change, message = BAD[name]
    given = {
        "space": sweeps.random(WIDE, 4), "strategy": hyper.population(), "objective": hyper.final("loss"), "rounds": 4,
        "work": fjs.local.steps(1), **FULL,
    } | change  # fmt: skip
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: pytest.fail("it compiled"))
    method = fjs.fedavg(client_optimizer=sgd(0.1), server_learning_rate=1.0)
    data = fjs.datasets.quadratics(num_clients=2, dim=2, seed=0)
    with pytest.raises((TypeError, ValueError), match=message):
        fjs.search(method, data, given.pop("space"), given.pop("strategy"), **given)


@pytest.fixture(scope="module")
def evaluate():
    return hyper.evaluator(
        fjs.fedavg(client_optimizer=sgd(0.1), server_learning_rate=1.0),
        fjs.datasets.quadratics(num_clients=2, dim=2, seed=0), objective=hyper.final("loss"), rounds=2, eval_every=2,
        work=fjs.local.steps(1), **FULL,
    )  # fmt: skip


@pytest.mark.slow
def test_an_evaluator_gives_the_losses_of_whole_runs(evaluate):
    losses = evaluate([{RATE: 0.1}, {RATE: 1e30}, {RATE: 0.4}])
    history = fjs.simulate(
        fjs.fedavg(client_optimizer=sgd(0.4), server_learning_rate=1.0),
        fjs.datasets.quadratics(num_clients=2, dim=2, seed=0), rounds=2, work=fjs.local.steps(1), **FULL,
    )  # fmt: skip
    assert losses[2] == history.final("loss")[0] < losses[0] < losses[1] == np.inf


@pytest.mark.slow
def test_optuna_is_told_the_losses_of_what_it_suggests(evaluate):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    hyper.ask_optuna(study, evaluate, WIDE, batch=3, batches=2)
    assert len(study.trials) == 6
    for trial in study.trials:
        assert all(one.low <= trial.params[name] <= one.high for name, one in WIDE.items())
    np.testing.assert_allclose(
        [trial.value for trial in study.trials[3:]], evaluate([t.params for t in study.trials[3:]])
    )
    logarithmic = study.trials[0].distributions[RATE]
    assert (logarithmic.low, logarithmic.high, logarithmic.log) == (0.01, 0.3, True)
    with pytest.raises(ValueError, match="must minimise"):
        hyper.ask_optuna(optuna.create_study(direction="maximize"), evaluate, WIDE)


@pytest.mark.slow
def test_evosax_moves_in_quantiles(evaluate):
    algorithms = pytest.importorskip("evosax.algorithms")
    tried, losses = hyper.ask_evosax(algorithms.CMA_ES, evaluate, WIDE, batch=6, batches=4)
    assert losses.shape == tried[RATE].shape == (4, 6)
    np.testing.assert_allclose(losses[1], evaluate([{name: tried[name][1, k] for name in WIDE} for k in range(6)]))
    assert all(((tried[name] > one.low) & (tried[name] < one.high)).all() for name, one in WIDE.items())
    assert losses[-1].mean() < losses[0].mean()


# The study.


def test_the_committed_study_compares_at_equal_cost():
    file = pathlib.Path(__file__).parents[2] / "benchmarks" / "studies" / "results" / "populations.json"
    result = json.loads(file.read_text())
    assert result["environment"]["size"] == "cpu"
    runs = result["members"]
    for problem in result["problems"].values():
        assert (problem["steps"] + 1) * problem["derivative_costs"] <= runs
        rows = problem["rows"]
        for name in ("random search", "population", "halving"):
            assert {row["rounds"] for row in rows[name]} == {runs * result["rounds"]}
        test = {name: np.mean([row["test"] for row in of]) for name, of in rows.items()}
        assert test["population"] < test["random search"]


@pytest.mark.nightly
def test_the_study_runs(tmp_path):
    result = at_smoke_size("populations", tmp_path, largest=200_000)
    assert {*result["problems"]} == {"FedProx, stragglers", "FedAdam, digits", "FedAvg, 2 of 20"}
    assert (tmp_path / "populations.png").stat().st_size > 0
