"""The page for those who come from other simulators: what its Python code computes, and what would be told from it."""

import numpy as np
import pytest

from benchmarks.migration import __main__ as harness
from fedjax_sim.core import descriptions


def fedavg(problem, shortest, weights=None):
    """Five rounds over all clients in float64 numpy: epochs in stored order, batches of 10, rate 0.05, a short step."""
    w, b = np.zeros((60, 10)), np.zeros(10)
    clients = [(np.asarray(problem[f"x{c}"], np.float64), problem[f"y{c}"]) for c in range(problem["clients"])]
    shares = np.array(weights or [len(x) for x, _ in clients], np.float64)
    for _ in range(5):
        change = np.zeros((61, 10))
        for share, (x, y) in zip(shares / shares.sum(), clients, strict=True):
            v = np.vstack([w, b])
            for k in range(0, len(x), 10):
                rows = np.hstack([x[k : k + 10], np.ones((len(x[k : k + 10]), 1))])
                p = np.exp(rows @ v)
                v = v - 0.05 * rows.T @ (p / p.sum(1, keepdims=True) - np.eye(10)[y[k : k + 10]]) / len(rows)
            change += share * (v - np.vstack([w, b]))
        change *= min(1.0, shortest / np.linalg.norm(change))
        w, b = w + change[:60], b + change[60]
    return {"kernel": w, "bias": b}


@pytest.mark.docs
def test_the_page_computes_what_others_are_held_against(monkeypatch):
    """And a mean without weights, or a server that goes as far as it likes, is told from it."""
    descriptions.all_registered()  # what the page registers is forgotten with it
    monkeypatch.setattr(descriptions, "_FACTORIES", dict(descriptions._FACTORIES))
    problem, found = harness.ours()
    short = {key.removeprefix("short_"): value for key, value in found.items() if key.startswith("short_")}
    assert harness.distance(found, fedavg(problem, np.inf), "") < harness.ROUND_OFF / 10
    assert harness.distance(short, fedavg(problem, 0.1), "") < harness.ROUND_OFF / 10
    assert harness.distance(found, fedavg(problem, np.inf, weights=[1, 1, 1, 1]), "") > 0.01
    assert harness.distance(short, fedavg(problem, np.inf), "") > 0.01
    x, y = (np.concatenate([problem[f"test_{part}{c}"] for c in range(4)]) for part in "xy")
    assert found["accuracy"] == pytest.approx(np.mean(np.argmax(x @ found["kernel"] + found["bias"], 1) == y))


def test_every_simulator_has_its_script():
    assert {path.stem for path in harness.HERE.glob("from_*.py")} == {f"from_{name}" for name in harness.SOURCES}
