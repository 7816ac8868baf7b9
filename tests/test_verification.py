"""``verify``: a saved result is run again from its own description and compared."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim import cli, stopping
from fedjax_sim.verification import Difference, Verification, verify

SETTINGS = {
    "task": fjs.quadratic(),
    "rounds": 5,
    "eval_every": 2,
    "cohort": fjs.cohort.uniform(3),
    "work": fjs.local.random_epochs(1, 3),
    "batches": fjs.local.full_batch(),
}


@pytest.fixture(scope="module")
def history():
    data = fjs.datasets.quadratics(num_clients=6, dim=4, seed=0)
    return fjs.simulate(
        fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1, momentum=0.5)), data, **SETTINGS, seeds=[3, 1],
        diagnostics=["e_lud"], stop=stopping.converged(1e-9), skip_nonfinite=True,
        initial_params=np.linspace(-1, 1, 4).astype(np.float32), evaluate=fjs.per_client(fjs.quadratic()),
    )  # fmt: skip


def test_to_the_last_bit_through_a_file(history, tmp_path):
    history.save(tmp_path / "run.npz")
    found = verify(fjs.History.load(tmp_path / "run.npz"))
    assert found.passed
    assert found.tolerance == 0
    assert all(one.equal for one in found.differences)
    assert {"metrics/loss", "rounds/e_lud", "evaluated"} <= {one.name for one in found.differences}
    assert any(one.name.startswith("params") for one in found.differences)
    assert str(found).endswith("verified (to the last bit)")


def test_what_differs_is_named(history):
    changed = history.metrics | {"loss": history["loss"] * np.float32(1.01)}
    found = verify(dataclasses.replace(history, metrics=changed))
    assert not found.passed
    assert [one.name for one in found.failed] == ["metrics/loss"]
    assert found.failed[0].distance == pytest.approx(0.01, rel=0.02)
    assert "differs: metrics/loss, by 0.0099" in str(found)
    assert verify(dataclasses.replace(history, metrics=changed), tolerance=0.02).passed
    fewer = {name: values for name, values in history.metrics.items() if name != "loss"}
    assert verify(dataclasses.replace(history, metrics=fewer)).failed == [Difference("metrics/loss", False, np.inf)]


def test_elsewhere_round_off_is_allowed(history):
    description = json.loads(json.dumps(history.description))
    description["environment"]["jax"] = "0.6.0"
    nearly = history.metrics | {"loss": history["loss"] * np.float32(1 + 1e-6)}
    found = verify(dataclasses.replace(history, description=description, metrics=nearly))
    assert found.passed
    assert found.tolerance == 1e-3
    assert f"computed elsewhere: jax: 0.6.0 in the result, {jax.__version__} now" in str(found)


def test_nan_is_equal_to_itself_only(history):
    broken = history["loss"].copy()
    broken[0, 1] = np.nan
    found = verify(dataclasses.replace(history, metrics=history.metrics | {"loss": broken}), tolerance=10.0)
    assert found.failed == [Difference("metrics/loss", False, np.inf)]


def test_opaque_parts_are_refused_by_name(history):
    data = fjs.datasets.quadratics(num_clients=6, dim=4, seed=0)
    bare = fjs.simulate(fjs.fedavg(client_optimizer=optax.sgd(0.1)), data, **SETTINGS)
    with pytest.raises(ValueError, match=r"cannot be run again: algorithm\.client_optimizer: .* was given as"):
        verify(bare)
    copied = fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data.replace(), **SETTINGS)
    with pytest.raises(ValueError, match=r"dataset: .*FederatedDataset was given"):
        verify(copied)
    given = fjs.simulate(
        fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, **SETTINGS, evaluate=lambda params, data: {}
    )
    with pytest.raises(ValueError, match=r"run\.evaluate: .*<lambda> was given"):
        verify(given)


def test_errors(history):
    with pytest.raises(TypeError, match=r"verify was given 'run\.npz': give a History"):
        verify("run.npz")
    with pytest.raises(ValueError, match="no description of its algorithm"):
        verify(dataclasses.replace(history, description={}))
    description = json.loads(json.dumps(history.description))
    description["environment"]["float"] = "float64"
    with pytest.raises(ValueError, match="computed in float64: set JAX_ENABLE_X64=1"):
        verify(dataclasses.replace(history, description=description))


def test_the_command(history, tmp_path, capsys):
    history.save(tmp_path / "run.npz")
    assert cli.main(["verify", str(tmp_path / "run.npz")]) == 0
    assert "verified (to the last bit)" in capsys.readouterr().out
    dataclasses.replace(history, metrics=history.metrics | {"loss": history["loss"] + 1}).save(tmp_path / "other.npz")
    assert cli.main(["verify", str(tmp_path / "other.npz")]) == 1
    assert "NOT verified" in capsys.readouterr().out
    assert cli.main(["verify", str(tmp_path / "none.npz")]) == 1


def test_the_text_of_a_long_list():
    many = Verification([Difference(f"metrics/{i}", False, float(i)) for i in range(20)], 0.5, None)
    assert len(many.failed) == 19
    assert str(many).count("differs:") == 10


def test_chunks_change_nothing():
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=6, max_size=30, seed=0)
    common = SETTINGS | {
        "task": fjs.classification(fjs.models.LogisticRegression(10)),
        "batches": fjs.local.shuffled(8),
    }
    runs = [
        fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, **common | {"eval_every": every})
        for every in (1, 2, 5)
    ]
    for other in runs[1:]:
        for name, values in runs[0].rounds.items():
            np.testing.assert_array_equal(other.rounds[name], values)
        jax.tree.map(np.testing.assert_array_equal, other.params, runs[0].params)
        assert other.final("loss") == runs[0].final("loss")
