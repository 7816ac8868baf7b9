"""The comparison with other projects: what is trained, who agrees, what is written. No other project is needed."""

import copy
import dataclasses
import itertools
import json
import pathlib
import sys

import jax
import numpy as np
import pytest

from benchmarks.speed import workloads
from benchmarks.speed.peers import __main__ as harness
from benchmarks.speed.peers import contract, environments, jax_models, naive_jax, ours, tables
from benchmarks.speed.peers.compare import best_framework, check, rows
from benchmarks.speed.workloads import BATCH, RATE
from tests.processes import printed


@pytest.fixture(scope="module")
def tiny():
    """W1 with 20 clients, two of them a round."""
    return workloads.make("W1", 3, 0.02)


def fedavg(work, last):
    """Federated averaging of a linear model in float64 numpy, from the formulas."""
    (w, b), offsets = [np.asarray(leaf, np.float64) for leaf in work.start[0]], work.offsets
    for cohort in work.cohorts[:last]:
        mass, mean = work.sizes[cohort].sum(), [np.zeros_like(w), np.zeros_like(b)]
        for c in cohort:
            local = [w.copy(), b.copy()]
            for k in range(0, work.sizes[c], BATCH):
                rows = slice(offsets[c] + k, offsets[c] + min(k + BATCH, work.sizes[c]))
                x, y = work.x[rows].astype(np.float64), np.eye(b.size)[work.y[rows]]
                p = np.exp(x @ local[0] + local[1])
                residual = (p / p.sum(axis=1, keepdims=True) - y) / len(x)
                local = [local[0] - RATE * x.T @ residual, local[1] - RATE * residual.sum(axis=0)]
            for total, leaf in zip(mean, local, strict=True):
                total += work.sizes[c] / mass * leaf
        w, b = mean
    return [(w, b)]


@pytest.mark.parametrize(
    ("name", "clients", "sampled", "classes", "most"),
    [
        ("W1", 50, 5, 10, 5000),
        ("W2", 50, 2, 10, 1000),
        ("W3", 10, 2, 62, 500),
        pytest.param("W4", 5000, 50, 10, 20, marks=pytest.mark.slow),
    ],
)
def test_workloads_are_what_they_say(name, clients, sampled, classes, most):
    work = workloads.make(name, 2, 0.05)
    assert (len(work.sizes), work.cohorts.shape, work.sizes.max() <= most) == (clients, (2, sampled), True)
    assert len(work.x) == len(work.y) == work.sizes.sum()
    assert work.start[-1][1].size == classes > work.y.max()
    assert all(len(set(cohort)) == sampled for cohort in work.cohorts.tolist())
    assert {leaf.dtype for pair in work.start for leaf in pair} == {work.x.dtype} == {np.dtype(np.float32)}
    expected = np.mean([sum(int(np.ceil(work.sizes[c] / BATCH)) for c in cohort) for cohort in work.cohorts])
    assert work.steps() == expected
    again = workloads.make(name, 2, 0.05)
    np.testing.assert_array_equal(work.x, again.x)
    np.testing.assert_array_equal(work.cohorts, again.cohorts)


def test_a_workload_survives_its_files(tiny, tmp_path):
    tiny.save(tmp_path)
    loaded = workloads.load(tmp_path)
    for name in ("x", "y", "sizes", "cohorts"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(tiny, name))
    assert loaded.name == tiny.name
    np.testing.assert_array_equal(loaded.start[0][0], tiny.start[0][0])


@pytest.mark.parametrize("bad", [("W5", 2, 1.0), ("W1", 0, 1.0), ("W1", 2, 0.0), ("W1", 2, 1.5)])
def test_other_workloads_are_refused(bad):
    with pytest.raises(ValueError, match=r"choose from W1, W2, W3, W4|at least one round"):
        workloads.make(*bad)


def test_the_loss_is_the_mean_cross_entropy(tiny):
    assert tiny.loss(tiny.start) == pytest.approx(np.log(10), abs=1e-12)  # all logits are zero
    rng = np.random.default_rng(1)
    w, b = rng.normal(size=(60, 10)), rng.normal(size=10)
    logits = tiny.x @ w + b
    expected = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), tiny.y])
    assert tiny.loss([(w, b)]) == pytest.approx(expected, rel=1e-12)


def test_convolutions_in_numpy_are_those_of_jax():
    rng = np.random.default_rng(2)
    shapes = ((3, 3, 1, 2), (3, 3, 2, 4), (2 * 2 * 4, 5), (5, 3))
    weights = [(rng.normal(size=s).astype(np.float32), rng.normal(size=s[-1]).astype(np.float32)) for s in shapes]
    x, y = rng.normal(size=(3, 8, 8, 1)).astype(np.float32), np.array([0, 2, 1])
    with jax.numpy_rank_promotion("allow"):
        logits = np.asarray(jax_models.logits(weights, x), np.float64)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(3), y]
    exact = [(w.astype(np.float64), b.astype(np.float64)) for w, b in weights]
    np.testing.assert_allclose(workloads.cross_entropy(exact, x, y), expected, rtol=1e-5)


@pytest.mark.slow
def test_ours_and_naive_jax_train_what_the_formulas_say(tiny):
    (w, b), *_ = fedavg(tiny, 3)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        naive = naive_jax.make(tiny)(tiny.start, 0, 3)
    program = ours.make(tiny)
    mine = program(program(tiny.start, 0, 1), 1, 3)  # in two pieces, as it is timed
    for trained in (naive, mine):
        np.testing.assert_allclose(trained[0][0], w, atol=2e-6)
        np.testing.assert_allclose(trained[0][1], b, atol=2e-6)
    found = check(tiny, {"ours": mine, "naive-jax": naive}, peers("ours", "naive-jax"))
    assert [finding.error for finding in found.values()] == [None, None]


def peers(*names):
    return {name: contract.describe(name) for name in names}


def moved(work, by, seed=0):
    """The start plus a direction of this length, or a number for each leaf."""
    noise = np.random.default_rng(seed)
    return [(w + by * noise.normal(size=w.shape), b + by * noise.normal(size=b.shape)) for w, b in work.start]


def test_who_trained_something_else_is_found(tiny):
    same, other = moved(tiny, 0.1), moved(tiny, 0.1, seed=1)
    found = check(tiny, {"ours": other, "fedjax": same, "pfl": same}, peers("ours", "fedjax", "pfl"))
    assert found["fedjax"].error is None
    assert found["pfl"].error is None
    assert "fedjax has" in found["ours"].error
    assert found["ours"].distance > 1


def test_the_same_loss_with_other_weights_is_found(tiny):
    same = moved(tiny, 0.1)
    w, b = same[0]
    other = [(w, b + 1.0)]  # a constant added to all logits
    found = check(tiny, {"ours": other, "fedjax": same, "pfl": same}, peers("ours", "fedjax", "pfl"))
    assert found["ours"].loss == pytest.approx(found["pfl"].loss, abs=1e-12)
    assert "of the way" in found["ours"].error


def test_nobody_is_right_when_all_differ(tiny):
    ends = {name: moved(tiny, 0.1, seed) for seed, name in enumerate(("ours", "fedjax", "pfl"))}
    assert all(finding.error is not None for finding in check(tiny, ends, peers(*ends)).values())


@pytest.mark.parametrize("broken", ["start", "nan"])
def test_a_model_that_did_not_train_is_no_result(tiny, broken):
    end = tiny.start if broken == "start" else moved(tiny, float("nan"))
    found = check(tiny, {"ours": end, "pfl": end}, peers("ours", "pfl"))
    assert {finding.error for finding in found.values()} == {"the model did not move"}


def test_not_a_number_is_not_the_reference(tiny):
    same = moved(tiny, 0.1)
    found = check(
        tiny, {"ours": moved(tiny, float("nan")), "fedjax": same, "pfl": same}, peers("ours", "fedjax", "pfl")
    )
    assert [finding.error is None for finding in found.values()] == [False, True, True]


def test_weights_of_another_model_are_refused(tiny):
    with pytest.raises(ValueError, match=r"pfl returned 6 numbers, the model has 610"):
        check(tiny, {"pfl": [(np.zeros((2, 2)), np.zeros(2))]}, peers("pfl"))


def test_the_clock_leaves_out_the_first_round(monkeypatch):
    now = iter([16.0, 18.0, 21.0, 27.0])
    monkeypatch.setattr(contract.time, "monotonic", lambda: next(now))
    clock = contract.Clock(10.0)
    for rounds in (1, 2, 1, 1):
        clock(rounds)
    summary = clock.summary()
    assert summary == {
        "round_s": 3.0,  # the median of 2 s for two rounds, 3 s and 6 s for one
        "set_up_s": 3.0,  # until 16, less a round
        "per_round_s": [1.0, 3.0, 6.0],
        "pieces": [1, 2, 1, 1],
    }


@pytest.mark.parametrize("pieces", [[], [1], [2, 1]])
def test_the_clock_wants_a_first_round_and_more(pieces):
    clock = contract.Clock(0.0)
    for rounds in pieces:
        clock(rounds)
    with pytest.raises(ValueError, match=r"the first round is one piece"):
        clock.summary()


def run(round_s):
    return {"round_s": round_s, "set_up_s": 2.0, "peak_mb": 1234.0}


REPORT = {
    "peers": {
        "ours": {"title": "fedjax_sim", "framework": False},
        "fedjax": {"title": "fedjax", "framework": True},
        "pfl": {"title": "pfl", "framework": True},
        "torch-loop": {"title": "PyTorch loop", "framework": False},
    },
    "workloads": {
        "W1": {
            "steps": 1450.2,
            "start_loss": 2.3026,
            "peers": {
                "ours": {
                    "runs": [run(0.01), run(0.02), run(0.01)], "error": None, "loss": 2.1, "distance": 0.0,
                    "versions": {"fedjax_sim": "0.1.0", "jax": "0.10.2"},
                },
                "fedjax": {
                    "runs": [run(0.3), run(0.4), run(0.2)], "error": None, "loss": 2.1, "distance": 3e-7,
                    "versions": {"fedjax": "0.0.17", "jax": "0.5.3"},
                },
                "pfl": {"runs": [], "error": "no environment: a | b\nc"},
                "torch-loop": {
                    "runs": [run(0.1), run(0.1), run(0.1)], "error": None, "loss": 2.1, "distance": 1e-7,
                    "versions": {"torch": "2.13.0"},
                },
            },
        }
    },
}  # fmt: skip


def test_ratios_are_taken_within_repeats():
    found = {row.name: row for row in rows(REPORT, "W1")}
    assert found["fedjax"].ratio == pytest.approx(20.0)  # of 30, 20, 20; the ratio of the medians would be 30
    assert found["fedjax"].round_ms == pytest.approx(300.0)
    assert found["pfl"].round_ms is None
    assert best_framework(list(found.values())).name == "fedjax"  # the faster PyTorch loop is no framework


def test_ratios_need_ours():
    report = copy.deepcopy(REPORT)
    report["workloads"]["W1"]["peers"]["ours"].update(error="not done after 300 s")
    assert {row.ratio for row in rows(report, "W1")} == {None}
    assert "best framework" not in tables.summary(report)


def test_the_summary_table():
    assert tables.summary(REPORT).splitlines() == [
        "| ms a round (times ours) | W1 |",
        "|---|---:|",
        "| fedjax_sim | 10.0 |",
        "| fedjax 0.0.17 | 300 (20.0×) |",
        "| pfl | – |",
        "| PyTorch loop | 100 (10.0×) |",
        "| best framework over ours | **20.0×** |",
    ]


def test_the_details_say_what_failed():
    lines = tables.details(REPORT).splitlines()
    assert lines[0] == "**W1**, 1450 steps a round, loss at the start 2.3026:"
    assert "| fedjax | 300.00 | 20.00 | 2.0 | 1,234 | 2.10000 | 3e-07 |" in lines
    assert lines[-1] == "No figure: pfl: no environment: a / b c."


def test_tables_replace_what_stands_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers -->\nold\n<!-- /peers -->\nafter\n", encoding="utf-8")
    for _ in range(2):  # the second time finds its own table
        assert tables.write(page, REPORT) == ["peers"]
        expected = f"before\n<!-- peers -->\n{tables.summary(REPORT)}\n<!-- /peers -->\nafter\n"
        assert page.read_text(encoding="utf-8") == expected


@pytest.mark.parametrize("text", ["nothing\n", "<!-- peers -->\n", "<!-- /peers -->\n<!-- peers -->\n"])
def test_a_page_without_a_place_is_left_alone(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md: (no place for a table|one <!-- peers -->)"):
        tables.write(page, REPORT)
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", list(contract.PEERS))
def test_every_peer_says_what_it_needs_without_being_installed(name):
    peer = contract.describe(name)
    assert peer.title
    assert peer.configuration
    assert all("==" in requirement for requirement in peer.requirements)  # a measured number belongs to one version
    assert callable(contract.program(name))


def test_who_shares_an_environment_needs_the_same():
    for name in contract.PEERS:
        peer = contract.describe(name)
        if peer.environment is not None:
            owner = contract.describe(peer.environment)
            assert environments.stamp_of(peer) == environments.stamp_of(owner)
    other = dataclasses.replace(contract.describe("blazefl"), requirements=("blazefl==2.0.2",))
    assert environments.stamp_of(other) != environments.stamp_of(contract.describe("blazefl"))


def test_titles_are_different():
    titles = [contract.describe(name).title for name in contract.PEERS]
    assert all(a != b for a, b in itertools.combinations(titles, 2))


def test_a_missing_python_is_named():
    with pytest.raises(environments.EnvironmentFailed, match=r"needs Python 2\.0, and there is no python2\.0"):
        environments.find_python("2.0")


def test_folders_that_are_no_environments_are_left_alone(tmp_path):
    keep = tmp_path / "fedjax" / "notes.txt"
    keep.parent.mkdir()
    keep.write_text("mine", encoding="utf-8")
    with pytest.raises(environments.EnvironmentFailed, match=r"is no virtual environment"):
        environments.ensure("fedjax", contract.describe("fedjax"), tmp_path)
    assert keep.read_text(encoding="utf-8") == "mine"


def test_a_run_that_fails_gives_its_last_line(tiny, tmp_path):
    arrays = tmp_path / "arrays"
    tiny.save(arrays)
    error = harness.run_once("drjax", pathlib.Path(sys.executable), arrays, tmp_path / "out", limit=60)
    assert error == "ModuleNotFoundError: No module named 'drjax'"
    assert "not done after 0 s" in harness.run_once(
        "ours", pathlib.Path(sys.executable), arrays, tmp_path / "other", limit=0.05
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peers", "tff"], "tff: choose from ours"),
        (["--workloads", ","], "nothing: choose from W1"),
        (["--rounds", "1"], "two rounds and one repeat at least"),
    ],
)
def test_bad_arguments_are_named(monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    with pytest.raises(SystemExit):
        harness.parse()
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_harness_from_end_to_end(tmp_path):
    """Two peers that need nothing but this environment."""
    page, out = tmp_path / "page.md", tmp_path / "report.json"
    page.write_text("<!-- peers -->\n<!-- /peers -->\n", encoding="utf-8")
    printed(
        "-m", "benchmarks.speed.peers", "--peers", "ours,naive-jax", "--workloads", "W4",
        "--rounds", "2", "--repeats", "2", "--fraction", "0.001", "--out", str(out), "--markdown", str(page),
    )  # fmt: skip
    report = json.loads(out.read_text(encoding="utf-8"))
    measured = report["workloads"]["W4"]["peers"]
    assert [(len(one["runs"]), one["error"]) for one in measured.values()] == [(2, None), (2, None)]
    assert abs(measured["ours"]["loss"] - measured["naive-jax"]["loss"]) < 1e-6
    assert page.read_text(encoding="utf-8").count("| naive JAX |") == 1
