"""What the layouts promise besides their result: how full the lanes are, memory in place, one call a chunk.

That all layouts agree, in both modes of differentiation, is in ``test_sweep.py`` and ``test_hypergradients.py``.
"""

import functools
import itertools
import json
import pathlib
import re
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.drivers import resident
from fedjax_sim.layout import makespan
from fedjax_sim.setting import TrainState

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


TAU = np.array([[7, 0, 2, 9, 1, 3, 3], [1, 1, 1, 1, 1, 1, 30], [0, 0, 0, 5, 0, 0, 0], [4, 4, 4, 4, 4, 4, 4]])


def setting(layout, **changes):
    return {
        "task": fjs.quadratic(), "rounds": len(TAU), "eval_every": 2, "cohort": fjs.cohort.full(),
        "work": fjs.local.given_steps(TAU), "batches": fjs.local.full_batch(), "layout": layout, **changes,
    }  # fmt: skip


@functools.cache
def data(dim=3):
    return fjs.datasets.quadratics(num_clients=TAU.shape[1], dim=dim, seed=0)


@pytest.mark.parametrize("num_lanes", [3, 50])
def test_the_program_takes_as_many_iterations(num_lanes):
    train = jax.jit(fjs.make_train(**setting(fjs.layout.lanes(num_lanes))))
    rounds = train(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data(), jax.random.key(0)).rounds
    lanes = min(num_lanes, TAU.shape[1])
    expected = [lanes * makespan(taus, num_lanes).iterations for taus in TAU]
    assert rounds["computed_steps"].tolist() == expected
    assert rounds["useful_steps"].tolist() == TAU.sum(axis=1).tolist()


def scaffold():
    return fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1))


def state_of(values):
    return jax.tree.leaves(next(value for value in values if isinstance(value, TrainState)))


@pytest.mark.parametrize("name", ["turns", pytest.param("stacked", marks=pytest.mark.slow), "lanes"])
def test_states_stay_where_they_are_and_nothing_leaves_the_device_within_a_chunk(name, monkeypatch):
    calls, texts, advance = [], [], resident._advance

    def noted(*args, **kwargs):
        if not texts:
            texts.append(advance.lower(*args, **kwargs).compile().as_text())
        before = state_of(args)
        largest = max(range(len(before)), key=lambda at: before[at].nbytes)
        size, address = before[largest].nbytes, before[largest].unsafe_buffer_pointer()
        result = advance(*args, **kwargs)
        deleted = all(leaf.is_deleted() for leaf in before)
        calls.append((size, deleted, state_of(result)[largest].unsafe_buffer_pointer() == address))
        return result

    monkeypatch.setattr(resident, "_advance", noted)
    scaffold = fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1))
    fjs.simulate(scaffold, data(500), **setting(LAYOUTS[name]))
    # the start, then two chunks of two rounds: the clients' states are written where they were
    assert calls == [(4 * TAU.shape[1] * 500, True, True)] * 3
    assert "input_output_alias" in texts[0]
    assert not re.search(r"infeed|outfeed|\b(send|recv)(-done)?\(|callback", texts[0])


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
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed.layouts",
        *given.split(),
        str(tmp_path / "deep" / "layouts.json"),
    ]
    root = pathlib.Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "deep" / "layouts.json").read_text())["layouts"]
    names = ["turns()", "lanes(2)", "lanes(4)", "stacked()", "mesh(2, inner=turns())", "mesh(2, inner=lanes(2))"]
    assert [row["layout"] for row in rows] == names
    assert [line.split("  ")[0].strip() for line in done.stdout.splitlines()[2:]] == names
    assert all(row["ms"] > 0 for row in rows)
    assert rows[0]["program"] == 1 < rows[2]["program"] == pytest.approx(rows[2]["queue"])
