"""The benchmarks of limits and of one accelerator: that they run, and that their checks fail when they must."""

import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.speed import ahead, buckets, evaluation, gpu, gpu_sections, limit, machine
from benchmarks.speed.workloads import make

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def subject():
    return limit.Subject(make("W1", 2, 0.01))


@pytest.fixture(scope="module")
def programs(subject):
    return {"ours": limit.ours(subject), "hand-written": limit.hand_written(subject)}


@pytest.mark.slow
def test_operations_and_products_of_a_step(subject):
    """Logistic regression, 20 x 60 -> 10: one product forward, one for the kernel's derivative."""
    found = machine.products(subject.gradient, subject.params, subject.batch())
    assert [product.flops() for product in found.elements()] == [2 * 20 * 60 * 10] * 2
    result = limit.floors(subject, steps=100.0, peak=1e9, memory=1e9, repeats=1)
    batch, parameters = 20 * 60 * 4 + 20 * 4, 610 * 4
    assert result["bytes_per_step"] == batch + 3 * parameters
    assert 48_000 < result["flops_per_step"] < 1.2 * 48_000
    assert result["flops_per_step"] == pytest.approx(result["xla_flops_per_step"], rel=0.1)
    assert result["floor_flops_ms"] == pytest.approx(1e3 * 100 * result["flops_per_step"] / 1e9)
    assert result["floor_bytes_ms"] >= 1e3 * 100 * batch / 1e9
    assert result["floor_ms"] == max(result["floor_flops_ms"], result["floor_bytes_ms"])


@pytest.mark.slow
def test_a_step_has_as_few_kernels_as_a_hand_written_one(programs):
    counts = {name: limit.kernels_of_a_step(program.text) for name, program in programs.items()}
    assert all(counts.values())
    ours, by_hand = (sum(counts[name].values()) for name in ("ours", "hand-written"))
    # A place in the epoch, and the choice between a slice and the rows of a batch with padding, to which three belong.
    assert by_hand <= ours <= by_hand + 4


def test_kernels_are_those_of_the_loop_with_the_products():
    def program(w, x):
        def step(_, w):
            return w - 0.1 * (x.T @ jnp.tanh(x @ w))

        return lax.fori_loop(0, 5, lambda k, w: jnp.sin(lax.fori_loop(0, k, step, w)), w)

    arrays = jnp.ones((30, 4), jnp.float32), jnp.ones((6, 30), jnp.float32)
    inner = limit.kernels_of_a_step(jax.jit(program).lower(*arrays).compile().as_text())
    assert 3 <= sum(inner.values()) <= 10
    assert limit.kernels_of_a_step(jax.jit(lambda w, x: x @ w).lower(*arrays).compile().as_text()) is None


@pytest.mark.slow
def test_programs_that_differ_are_not_timed(programs):
    models = {name: program.run() for name, program in programs.items()}
    limit.check_agreement(models)
    for wrong in (1.001, float("nan")):
        models["hand-written"] = jax.tree.map(lambda leaf, wrong=wrong: leaf * wrong, models["ours"])
        with pytest.raises(SystemExit, match="'ours' and 'hand-written' differ by"):
            limit.check_agreement(models)


@pytest.mark.slow
def test_computed_steps_are_the_useful_ones(subject, programs):
    useful, computed = programs["ours"].steps
    assert useful == computed == subject.work.steps()


@pytest.mark.slow
def test_evaluations_that_are_compared_are_the_same(subject):
    found = {name: run() for name, run in evaluation.variants(subject).items()}
    for ours, others in (("now", "plain"), ("one", "two")):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found[ours], found[others])


def test_a_difference_from_float64_is_found():
    reference = [np.array([1.0, -4.0]), np.array([[0.5]])]
    found = [np.array([1.0, -4.0], np.float32), np.array([[0.5]], np.float32)]
    assert gpu_sections.difference(found, reference) == 0
    found[1] = found[1] + np.float32(0.02)
    assert gpu_sections.difference(found, reference) == pytest.approx(0.02 / 4, rel=1e-5)
    found[1] = found[1] * np.float32(np.nan)
    assert gpu_sections.difference(found, reference) == float("inf")
    rows = [{"layout": "turns", "difference": value} for value in (0.0, gpu.TOLERANCE, 0.01, float("inf"))]
    assert len(gpu.disagreements([*rows, {"layout": "stacked", "ended": "out of time"}])) == 2


def test_memory_and_time_that_run_out_are_results():
    clock = gpu_sections.Clock(1000.0)

    def too_large():
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes")

    def wrong():
        raise RuntimeError("INTERNAL: something else")

    assert clock.measured({"clients": 8}, too_large) == {"clients": 8, "ended": "out of memory"}
    assert clock.measured({"clients": 4}, lambda: {"ms": 1.0}) == {"clients": 4, "ms": 1.0}
    with pytest.raises(RuntimeError, match="something else"):
        clock.measured({}, wrong)
    assert gpu_sections.Clock(1.0).measured({"clients": 4}, wrong) == {"clients": 4, "ended": "out of time"}


def test_time_is_shared_out_and_all_of_it():
    names, left = list(gpu.SHARES), 100.0
    assert set(names) == set(gpu.SECTIONS)
    for i, name in enumerate(names):
        left -= gpu.share(name, names[i:], left)
    assert left == pytest.approx(0.0, abs=1e-9)


def test_the_rule_s_choice_stands_beside_the_best_layout():
    case = {"model": "mlp", "steps": "equal", "rule": "stacked"}
    rows = [case | {"layout": "stacked", "ms": 3.0}, case | {"layout": "turns", "ms": 2.0}]
    assert gpu.verdict(rows) == ["mlp, equal steps: best turns 2.000 ms; the rule takes stacked: 1.50 times its time"]
    rows[0] = case | {"layout": "stacked", "ended": "out of memory"}
    assert gpu.verdict(rows) == ["mlp, equal steps: best turns 2.000 ms; the rule takes stacked: not measured"]


@pytest.mark.slow
def test_limit_runs(tmp_path):
    out = tmp_path / "limit.json"
    sizes = ["--rounds", "1", "--repeats", "1", "--fraction", "0.01", "--gemm", "64", "--megabytes", "1"]
    limit.main(["--workloads", "W1", *sizes, "--out", str(out)])
    written = json.loads(out.read_text())
    assert written["W1"]["kernels"]["ours"]
    assert written["overhead_per_step_us"] != 0
    assert written["W1"]["floor_ms"] > 0


def run_gpu(tmp_path, *options, budget):
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(ROOT / "benchmarks/speed/gpu.py"), "--tiny", "--budget-s", str(budget)]
    done = subprocess.run([*command, *options, "--out", str(out)], capture_output=True, text=True, cwd=tmp_path)
    return done, json.loads(out.read_text())


@pytest.mark.slow
def test_gpu_runs_a_section_anywhere_and_ends_in_time(tmp_path):
    done, written = run_gpu(tmp_path, "--sections", "machine", budget=120)
    assert done.returncode == 0, done.stderr
    rows = written["sections"]["machine"]["rows"]
    assert [row["tflops"] > 0 for row in rows if "tflops" in row] == [True, True]
    done, written = run_gpu(tmp_path, "--sections", "scale", budget=5.1)  # 0.1 s for it: Python has not started
    assert done.returncode == 0, done.stderr
    assert written["sections"]["scale"] == {"outcome": "out of time", "rows": []}


@pytest.mark.nightly
def test_gpu_agrees_with_float64(tmp_path):
    done, written = run_gpu(tmp_path, "--sections", "agreement", budget=400)
    assert done.returncode == 0, done.stderr
    differences = [row["difference"] for row in written["sections"]["agreement"]["rows"]]
    assert len(differences) == 12
    assert max(differences) < 1e-5


@pytest.mark.slow
def test_gpu_takes_the_choices_in_their_order(tmp_path):
    done, written = run_gpu(tmp_path, "--sections", "choices", "aims", "graphs", budget=400)
    assert done.returncode == 0, done.stderr
    rows = {name: section["rows"] for name, section in written["sections"].items()}
    assert [row["choice"][0] for row in rows["choices"]] == [*"011233", *"a" * 5]
    assert [row["layout"] for row in rows["choices"]][:3] == ["lanes(8)", "stacked", "buckets(3)"]
    compared = [*rows["choices"], *rows["graphs"]]
    assert max(row["difference"] for row in compared) < 1e-5
    assert all("+WHILE" in row["flags"] for row in rows["graphs"])
    assert all(row["ms"] > 0 and row["useful"] <= row["computed"] for row in [*compared, *rows["aims"]])
    narrow, wide = (next(row for row in compared if row["layout"] == name) for name in ("buckets(3)", "stacked"))
    assert narrow["computed"] < wide["computed"]


def test_steps_are_counted_for_every_layout():
    sizes = np.array([100, 10, 9, 8, 1])
    found = ["14", "50 (10)", "32 (10.0)", "23 (10.0)", "14 (10.0)", "50 (10.0)", "50 (10.0)"]
    assert buckets.counts(sizes, 5, 10, 1) == found
    assert buckets.narrowing(np.array([100, 1, 40, 7]), 2, 8) == (4 + 8 * 4 + 12 * 8 * 2, 105)


@pytest.mark.slow
def test_programs_are_compiled_ahead_of_a_device():
    """Here for the CPU, which is there; every section names its rows before it makes them."""
    assert {"fedavg", "reweighted", "attacked"} <= dict(ahead.methods()).keys()
    for section, name in {"methods": "reweighted", "layouts": "Stacked()", "uses": "8 seeds"}.items():
        row = ahead.compiled(dict(ahead.SECTIONS[section]())[name], jax.devices()[:1], "cpu")
        assert row["temp_kb"] > 0
