"""What the layouts promise besides their result: how full the lanes are, memory in place, one call a chunk.

That all layouts agree, in both modes of differentiation, is in ``test_sweep.py`` and ``test_hypergradients.py``.
"""

import functools
import importlib
import itertools
import json
import re
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.loops import Total
from fedjax_sim.engine.layout import makespan
from fedjax_sim.engine.layout.base import Bounds, LocalResult
from fedjax_sim.engine.layout.queue import queue_bound, run_queue
from fedjax_sim.engine.layout.turns import run_turns
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.solver import Left, Progress, Watch
from fedjax_sim.run import resident
from tests.processes import printed

LAYOUTS = {
    "turns": fjs.layout.turns(),
    "stacked": fjs.layout.stacked(),
    "lanes": fjs.layout.lanes(3),
}


def busy_lanes(taus, num_lanes):
    """The queue, iteration by iteration: every busy lane takes a step, a free one the longest client that is left."""
    waiting = sorted((tau for tau in taus if tau > 0), reverse=True)
    left = [waiting.pop(0) for _ in range(min(num_lanes, len(waiting)))]
    iterations = 0
    while left:
        iterations += 1
        left = [tau - 1 for tau in left]
        left = [tau if tau > 0 else waiting.pop(0) for tau in left if tau > 0 or waiting]
    return iterations


@hypothesis.given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 8))
def test_the_makespan_is_that_of_the_queue(taus, num_lanes):
    found, lanes = makespan(taus, num_lanes), min(num_lanes, len(taus))
    assert found.iterations == busy_lanes(taus, lanes)
    assert found.longest == max(taus)
    assert found.iterations <= queue_bound(Bounds(max(taus), sum(taus)), lanes)
    if sum(taus):
        assert found.share == sum(taus) / lanes
        assert found.ratio == found.iterations / found.share
        assert 1 - 1e-12 <= found.ratio <= found.bound + 1e-12
    else:
        assert (found.iterations, found.ratio, found.bound) == (0, 1, 1)


@hypothesis.given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 3))
def test_the_makespan_is_near_the_best_schedule_s(taus, num_lanes):
    ways = itertools.product(range(num_lanes), repeat=len(taus))
    best = min(max(np.bincount(way, weights=taus, minlength=num_lanes)) for way in ways)
    assert best <= makespan(taus, num_lanes).iterations <= (4 / 3 - 1 / (3 * min(num_lanes, len(taus)))) * best + 1e-9


def power_law_cohorts(size, count=200):
    """Steps of the clients of W1 (benchmarks/speed/spine.py): log-normal sizes, batches of 20."""
    rng = np.random.default_rng(0)
    steps = -(-np.minimum(rng.lognormal(4, 2, 1000).astype(int) + 50, 5000) // 20)
    return [rng.choice(steps, size, replace=False) for _ in range(count)]


@pytest.mark.parametrize("num_lanes", [4, 8, 16, 32])
def test_lanes_are_full_of_power_law_cohorts(num_lanes):
    """Within 10 % of sum tau / L where the longest client allows it, and else of the longest client."""
    found = [makespan(taus, num_lanes) for taus in power_law_cohorts(100)]
    assert max(one.iterations / max(one.share, one.longest) for one in found) < 1.1
    even = [one.ratio for one in found if one.longest <= one.share]
    assert max(even, default=1) < 1.1
    assert len(even) > 50 or num_lanes > 8


def test_bad_arguments_of_makespan():
    with pytest.raises(TypeError, match=r"makespan\(steps\) is \[1\.5\].*row of integers"):
        makespan([1.5], 2)
    with pytest.raises(TypeError, match="row of integers"):
        makespan([[1, 2], [3, 4]], 2)
    with pytest.raises(ValueError, match="entry -1: steps must be at least 0"):
        makespan([3, -1], 2)
    with pytest.raises(ValueError, match=r"makespan\(num_lanes\) is 0"):
        makespan([3], 0)


class Counted(NamedTuple):
    """A client of :class:`Counting`; what a layout asks of a slot."""

    steps: Any
    name: Any
    survey: Any = None

    def told(self, survey):
        return self._replace(survey=survey)

    @property
    def client(self):
        return self

    @property
    def offset(self):
        return self.name


class Surveying(NamedTuple):
    """What surveys for :class:`Counting`; in one to three steps."""

    surveyor = None

    def micro_steps(self, slot):
        return jnp.where(slot.steps > 0, slot.name % 3 + 1, 0)

    def begin(self, sent, c_i, slot):
        return Progress(None, None, c_i, survey=Total.zero(c_i).add(sent * 9 + c_i))

    def draw(self, slot, k):
        return slot.name + k

    def step(self, sent, slot, progress, k, *, serial=False, drawn=None):
        drawn = self.draw(slot, k) if drawn is None else drawn
        return progress._replace(survey=progress.survey.add(progress.survey.value + drawn))

    def finish(self, sent, c_i, slot, progress):
        return Left({}, {}, {Watch.SURVEY: progress.survey.value}, c_i)


class Counting(NamedTuple):
    """A solver in integers, whose client's value tells its survey, which steps it took, in which order, from where."""

    surveyor = Surveying()

    def micro_steps(self, slot):
        return slot.steps

    def all_micro_steps(self, slot):
        return slot.steps + self.surveyor.micro_steps(slot)

    def begin(self, sent, c_i, slot):
        return Progress((sent + c_i) * 8 + slot.name, None, c_i)

    def draw(self, slot, k):
        return slot.name * 5 + k

    def step(self, sent, slot, progress, k, *, serial=False, drawn=None):
        return progress._replace(y=progress.y * 3 + (self.draw(slot, k) if drawn is None else drawn))

    def finish(self, sent, c_i, slot, progress):
        there, value = slot.steps > 0, progress.y + slot.survey
        left = jnp.where(there, value, 0)
        return Left({"sum": left}, {"sum": slot.name + 1}, {"value": left}, jnp.where(there, c_i * 7 + value, c_i))

    def by_hand(self, sent, states, taus):
        """Values, new states and the weighted sum, modulo 2^32 as the integers of the program."""
        values, new = [], []
        for name, (tau, c_i) in enumerate(zip(taus.tolist(), states.tolist(), strict=True)):
            value = (sent + c_i) * 8 + name
            for k in range(tau):
                value = value * 3 + name * 5 + k
            survey = sent * 9 + c_i
            for k in range(name % 3 + 1):
                survey = survey * 2 + name + k
            value += survey
            values.append(value if tau else 0)
            new.append(c_i * 7 + value if tau else c_i)
        total = sum(value * (name + 1) for name, value in enumerate(values))
        return [np.array(part, object).astype(np.uint64).astype(np.uint32) for part in (values, new, [total])]


class WavingSurvey(NamedTuple):
    """What surveys for :class:`Waving`."""

    rate: Any
    surveyor = None

    def micro_steps(self, slot):
        return jnp.where(slot.steps > 0, slot.name % 3 + 1, 0)

    def begin(self, sent, c_i, slot):
        return Progress(None, None, c_i, survey=Total.zero(c_i).add(sent * c_i))

    def draw(self, slot, k):
        return (slot.name + k).astype(jnp.result_type(float))

    def step(self, sent, slot, progress, k, *, serial=False, drawn=None):
        drawn = self.draw(slot, k) if drawn is None else drawn
        return progress._replace(survey=progress.survey.add(jnp.sin(self.rate * progress.survey.value + drawn)))

    def finish(self, sent, c_i, slot, progress):
        return Left({}, {}, {Watch.SURVEY: progress.survey.value}, c_i)


class Waving(NamedTuple):
    """A solver in real numbers, of which each has a derivative in the rate, in what is sent and in the states."""

    rate: Any

    @property
    def surveyor(self):
        return WavingSurvey(self.rate)

    def micro_steps(self, slot):
        return slot.steps

    def all_micro_steps(self, slot):
        return slot.steps + self.surveyor.micro_steps(slot)

    def begin(self, sent, c_i, slot):
        return Progress(sent + c_i * slot.survey, None, c_i)

    def draw(self, slot, k):
        return (2 * slot.name + k).astype(jnp.result_type(float))

    def step(self, sent, slot, progress, k, *, serial=False, drawn=None):
        drawn = self.draw(slot, k) if drawn is None else drawn
        return progress._replace(y=jnp.sin(self.rate * progress.y + drawn * sent) + progress.kept * slot.survey)

    def finish(self, sent, c_i, slot, progress):
        there, value = slot.steps > 0, progress.y * slot.survey * self.rate
        left = jnp.where(there, value, 0)
        new = jnp.where(there, c_i * value + sent, c_i)
        return Left({"sum": left}, {"sum": (slot.name + 1).astype(left.dtype)}, {"value": left}, new)


def recorded(*given):
    """The layout turns as its derivative runs it."""
    program = importlib.import_module("fedjax_sim.engine.layout.turns")._Turns(BOUNDS, given)
    leaves, _ = program.recorded(jax.tree.leaves(given))
    return jax.tree.unflatten(program.result, leaves)


TAUS = np.array([[3, 0, 1, 6, 2], [1, 1, 1, 1, 1], [0, 0, 0, 6, 0], [6, 6, 6, 6, 6], [0, 0, 0, 0, 0], [2, 3, 2, 3, 6]])
PASSES = np.arange(5) % 3 + 1
BOUNDS = Bounds(6, 30, True, 3, 9)
PROGRAMS = {
    "turns": lambda *given: fjs.layout.turns().run(*given, BOUNDS),
    "recorded turns": lambda *given: recorded(*given),
    "every turn": lambda *given: run_turns(*given, skip_void=False),
    "stacked": lambda *given: fjs.layout.stacked().run(*given, BOUNDS),
}
for count in (1, 2, 3, 50):
    PROGRAMS[f"{count} lanes"] = lambda *given, count=count: fjs.layout.lanes(count).run(*given, BOUNDS)
    PROGRAMS[f"{count} static"] = lambda *given, count=count: run_queue(
        *given, lanes=min(count, 5), bound=30, survey_bound=9
    )
PROGRAMS["3 lanes, drawn ahead"] = lambda *given: run_queue(*given, lanes=3, ahead=(6, 3))


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(fjs.layout.turns(), id="turns"),
        pytest.param(fjs.layout.lanes(2), id="lanes", marks=pytest.mark.slow),
    ],
)
def test_derivatives_of_a_layout_are_those_of_its_clients(x64, layout):
    """Of steps in their order, their survey before them, what they were sent and what they keep."""

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(run, taus, *at):
        def total(rate, sent, states):
            slots = Counted(taus, jnp.arange(5, dtype=jnp.int32), jnp.zeros(5))
            left = run(Waving(rate), sent, states, slots)
            weights = jnp.linspace(1.0, 2.0, 5)
            return left.sums["sum"] + weights @ left.stacks["value"] + weights[::-1] @ left.clients

        return jax.grad(total, (0, 1, 2))(*at)

    def by_hand(solver, sent, states, slots):
        """A masked step after the other, written out."""

        def client(c_i, slot):
            for of in (solver.surveyor, solver):
                progress, total = of.begin(sent, c_i, slot), of.micro_steps(slot)
                for k in range(6):
                    progress = fjs.trees.select(k < total, of.step(sent, slot, progress, jnp.int32(k)), progress)
                if of is not solver:
                    slot = slot.told(progress.survey.value)
            return solver.finish(sent, c_i, slot, progress)

        left = jax.vmap(client)(states, slots)
        sums = {"sum": left.weights["sum"] @ left.values["sum"]}
        return LocalResult(sums, left.stacks, left.kept, jnp.int32(0))

    at = 0.7, 0.4, jnp.linspace(0.2, 1.0, 5)
    for taus in jnp.asarray(TAUS, jnp.int32):
        found = derivatives(functools.partial(layout.run, bounds=BOUNDS), taus, *at)
        expected = derivatives(by_hand, taus, *at)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), found, expected)


def assert_is_by_hand(found, states, taus):
    """Messages, new states and the sum, to the last bit."""
    values, new, total = Counting().by_hand(4, states, taus)
    np.testing.assert_array_equal(np.asarray(found.stacks["value"]).astype(np.uint32), values)
    np.testing.assert_array_equal(np.asarray(found.clients).astype(np.uint32), new)
    assert np.asarray(found.sums["sum"]).astype(np.uint32) == total


RARELY = ("1 lanes", "3 lanes", "1 static", "2 static", "50 static")  # "3 lanes" has all paths, drawn ahead


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in RARELY else ()) for name in PROGRAMS]
)
def test_every_client_takes_its_own_steps_and_leaves_what_it_made(name):
    """Exactly, with void slots, clients that end together, and lanes without clients."""
    names = jnp.arange(5, dtype=jnp.int32)
    states = names * 11 + 1
    run = jax.jit(lambda taus: PROGRAMS[name](Counting(), jnp.int32(4), states, Counted(taus, names)))
    for taus in TAUS:
        found = run(taus.astype(np.int32))
        assert_is_by_hand(found, states, taus)
        passes = PASSES * (taus > 0)
        if name.split()[0].isdigit():
            lanes = min(int(name.split()[0]), 5)
            assert found.computed == lanes * sum(makespan(all_.tolist(), lanes).iterations for all_ in (passes, taus))
        else:
            most = BOUNDS.per_client + BOUNDS.survey_per_client
            assert found.computed == (5 * most if name in ("masked turns", "stacked") else (passes + taus).sum())


def narrowing(taus, widths, turn=1):
    """Micro-steps of a stack that narrows when the clients outside have no step left, ``turn`` at a time."""
    longest = np.sort(taus)[::-1]
    k, computed = 1, widths[0]
    for width, narrower in itertools.pairwise((*widths, 0)):
        while k < longest[narrower]:
            k, computed = k + turn, computed + turn * width
    return computed


@pytest.mark.parametrize(
    ("number", "widths", "asked"),
    [
        (1, (5,), 32), (2, (5, 3), 32), (3, (5, 3, 2), 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((9, (5, 3, 2, 1), 32), (1, (5,), 2))),
    ],
)  # fmt: skip
def test_a_stack_gets_narrower_as_fast_as_its_clients_end(number, widths, asked, monkeypatch):
    """The longest clients first, whatever the order of their slots; each leaves what it made in its own.

    What is computed beyond a loop's end, where it asks only once in three steps, changes nothing.
    """
    module = importlib.import_module("fedjax_sim.engine.layout.stacked")  # of whose name the layout is too
    monkeypatch.setattr(module, "_ASKED", asked)
    turn = 1 if asked == 32 else 3
    assert module.widths_of(5, number) == widths
    names = jnp.arange(5, dtype=jnp.int32)
    states = names * 11 + 1
    layout = fjs.layout.buckets(number)
    run = jax.jit(lambda taus: layout.run(Counting(), 4, states, Counted(taus, names), BOUNDS))
    for taus in TAUS:
        found = run(taus.astype(np.int32))
        assert_is_by_hand(found, states, taus)
        passes = PASSES * (taus > 0)
        assert found.computed == narrowing(taus, widths, turn) + narrowing(passes, widths)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_cohorts_under_vmap_share_the_ends_of_their_loops(shape):
    """No choice between two stacks of models after each step: the longest of all decides, the others are masked."""
    names, taus = jnp.arange(5, dtype=jnp.int32), TAUS.reshape(*shape, 5).astype(np.int32)
    states, layout = names * 11 + 1, fjs.layout.buckets(3)

    def run(taus):
        found = layout.run(Counting(), 4, states, Counted(taus, names), BOUNDS)
        return found.stacks["value"], found.computed

    for _ in shape:
        run = jax.vmap(run)
    values, computed = jax.jit(run)(taus)
    of_each = [Counting().by_hand(4, states, row)[0] for row in TAUS]
    np.testing.assert_array_equal(np.asarray(values).reshape(6, 5).astype(np.uint32), of_each)
    assert np.unique(computed).size == 1


SIZES = np.array([1, 7, 10, 4, 13])
BATCHES = {
    "in order": (fjs.local.in_order(4), False),
    "shuffled": (fjs.local.shuffled(4), False),
    "in pieces": (fjs.local.full_batch(4), True),
}


@pytest.mark.parametrize("batches", BATCHES)
def test_no_round_takes_more_steps_than_its_bounds(batches):
    """One client's bound is what the largest takes; a cohort's holds for the largest clients together."""
    dataset = fjs.datasets.quadratics_from(np.ones((5, 1, 1)), np.ones((5, 1)), sizes=SIZES.tolist())
    scheme, whole = BATCHES[batches]
    passes = -(-SIZES // 4)
    local = fjs.optim.sgd(0.1)
    for work, tau in ((fjs.local.epochs(2), 2 if whole else 2 * passes), (fjs.local.steps(3), 3)):
        steps = tau * passes if whole else tau * np.ones(5, int)
        for algorithm, micro, survey in (
            (fjs.fedavg(client_optimizer=local), steps, 0 * passes),
            (fjs.scaffold(option="I", client_optimizer=local), steps, passes),
            (fjs.large_batch_sgd(client_optimizer=local), passes, 0 * passes),
        ):
            for slots in (1, 3, 5):
                run = Plan(fjs.quadratic(), fjs.cohort.uniform(slots), work, scheme, dataset=dataset)
                found = run.bounds(algorithm)
                assert found.distinct
                for bounds, taken in ((found, micro), (found.of_survey, survey)):
                    assert bounds.per_client == taken.max()
                    assert np.sort(taken)[-slots:].sum() <= bounds.per_cohort <= slots * taken.max()
                messages = fjs.asynchronous.fedbuff(7)  # of which one client may send all
                found = run._replace(asynchronous=messages).bounds(algorithm)
                assert found == Bounds(micro.max(), 7 * micro.max(), False, survey.max(), 7 * survey.max())


TAU = np.array([[7, 0, 2, 9, 1, 3, 3], [1, 1, 1, 1, 1, 1, 30], [0, 0, 0, 5, 0, 0, 0], [4, 4, 4, 4, 4, 4, 4]])


def setting(layout, **changes):
    return {
        "task": fjs.quadratic(), "rounds": len(TAU), "eval_every": 2, "cohort": fjs.cohort.full(),
        "work": fjs.local.given_steps(TAU), "batches": fjs.local.full_batch(), "layout": layout, **changes,
    }  # fmt: skip


@functools.cache
def data(dim=3):
    return fjs.datasets.quadratics(num_clients=TAU.shape[1], dim=dim, seed=0)


@pytest.mark.slow
def test_the_program_takes_as_many_iterations():
    train = jax.jit(fjs.make_train(**setting(fjs.layout.lanes(3))))
    rounds = train(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data(), jax.random.key(0)).rounds
    expected = [3 * makespan(taus, 3).iterations for taus in TAU]
    assert rounds["computed_steps"].tolist() == expected
    assert rounds["useful_steps"].tolist() == TAU.sum(axis=1).tolist()


def scaffold():
    return fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["turns", *(pytest.param(name, marks=pytest.mark.slow) for name in ("stacked", "lanes"))]
)
def test_states_stay_where_they_are_and_nothing_leaves_the_device_within_a_chunk(name, monkeypatch):
    calls, texts, advance = [], [], resident._advance

    def noted(*args, **kwargs):
        if not texts:
            texts.append(advance.lower(*args, **kwargs).compile().as_text())
        before = args[2]
        largest = max(range(len(before)), key=lambda at: before[at].nbytes)
        size, address = before[largest].nbytes, before[largest].unsafe_buffer_pointer()
        result = advance(*args, **kwargs)
        deleted = all(leaf.is_deleted() for leaf in before)
        calls.append((size, deleted, result[0][largest].unsafe_buffer_pointer() == address))
        return result

    monkeypatch.setattr(resident, "_advance", noted)
    scaffold = fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1))
    fjs.simulate(scaffold, data(500), **setting(LAYOUTS[name]))
    # the start, then two chunks of two rounds: the clients' states are written where they were
    assert calls == [(4 * TAU.shape[1] * 500, True, True)] * 3
    assert "input_output_alias" in texts[0]
    assert not re.search(r"infeed|outfeed|\b(send|recv)(-done)?\(|callback", texts[0])


@pytest.mark.slow
def test_auto_is_none():
    given = {name: value for name, value in setting(None).items() if name != "layout"}
    algorithm = fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1))
    texts = [
        jax.jit(fjs.make_train(**given, layout=layout)).lower(algorithm, data(), jax.random.key(0)).as_text()
        for layout in (None, "auto")
    ]
    assert texts[0] == texts[1]


@pytest.mark.nightly
def test_the_benchmark(tmp_path):
    given = "--clients 30 --cohort 6 --most 300 --lanes 2 4 --devices 2 --rounds 2 --repeats 1 --out"
    said = printed("-m", "benchmarks.speed.layouts", *given.split(), str(tmp_path / "deep" / "layouts.json"))
    rows = json.loads((tmp_path / "deep" / "layouts.json").read_text())["layouts"]
    names = ["turns()", "lanes(2)", "lanes(4)", "stacked()", "mesh(2, inner=turns())", "mesh(2, inner=lanes(2))"]
    assert [row["layout"] for row in rows] == names
    lines = [line.split("  ")[0].strip() for line in said.splitlines()]
    assert lines[lines.index("layout") + 1 :] == names
    assert all(row["ms"] > 0 for row in rows)
    assert rows[0]["program"] == 1 < rows[2]["program"] == pytest.approx(rows[2]["queue"])
