"""``verify``: a saved result is run again from its own description and compared."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim import stopping
from fedjax_sim.cli import main as cli
from fedjax_sim.core.keys import GENERATOR, generator, use_generator
from fedjax_sim.reporting.divergence import Divergence
from fedjax_sim.run.records import Stop
from fedjax_sim.run.verification import Difference, Verification, _compared, _distance, verify

pytestmark = pytest.mark.xdist_group("verification")  # one worker compiles what they share

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
        initial_params=[np.linspace(-1, 1, 4).astype(np.float32), np.ones(4, np.float32)],
        evaluate=fjs.per_client(fjs.quadratic()),
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


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_places_that_are_not_finite_are_as_far_as_can_be(odd):
    """In either of the two: a distance of NaN would be neither within a tolerance nor beyond it."""
    sound, other = np.array([1.0, 2.0]), np.array([1.0, odd])
    assert _distance(sound, other) == _distance(other, sound) == np.inf
    assert _distance(other, -other) == (2.0 if np.isnan(odd) else np.inf)
    assert _distance(other, other) == 0


def test_what_is_no_array_counts_too(history):
    assert history.divergences == []
    invented = Divergence(3, 2, "clients", (4, 5), "Scaffold")
    found = verify(dataclasses.replace(history, divergences=[invented]), tolerance=1.0)
    assert not found.passed
    assert found.failed == []
    assert "differs: divergences.seed 3: Scaffold, round 2, clients, clients 4, 5 in the result, nothing now" in str(
        found
    )
    assert str(found).endswith("NOT verified (to the last bit or within 1)")

    found = verify(dataclasses.replace(history, stops={1: Stop(4, "loss reached 0")}))
    assert found.said == ("stops.seed 1: round 4, loss reached 0 in the result, nothing now",)
    assert not found.passed

    about = history.description
    claimed = about | {"average": "weighted", "bounds": about["bounds"] | {"per_client": 1}, "epsilon": 0.1}
    found = verify(dataclasses.replace(history, description=claimed))
    names = ["description.average", "description.bounds.per_client", "description.epsilon"]
    assert [line.partition(":")[0] for line in found.said] == names
    older = {name: part for name, part in about.items() if name not in ("average", "bounds")}
    assert verify(dataclasses.replace(history, description=older)).passed


def test_to_the_last_bit_is_meant_so(history):
    zeros = {"zero": np.zeros_like(history["loss"])}
    found = _compared(
        dataclasses.replace(history, metrics=zeros), dataclasses.replace(history, metrics={"zero": -zeros["zero"]})
    )
    assert not Verification(found, 0.0, None).passed
    assert Verification(found, 1e-9, None).passed
    assert not Verification(found, 0.0, None)  # a tuple of entries would be true: assert verify(result) says something
    assert Verification(found, 1e-9, None)
    wide = history.metrics | {"loss": history["loss"].astype(np.float64)}
    assert verify(dataclasses.replace(history, metrics=wide)).failed == [Difference("metrics/loss", False, 0.0)]
    whole = history.rounds | {"cohort_size": history["cohort_size"].astype(np.float32)}
    found = verify(dataclasses.replace(history, rounds=whole), tolerance=0.1)
    assert found.failed == [Difference("rounds/cohort_size", False, np.inf)]
    turned = [dataclasses.replace(history, metrics={"z": np.full((2, 4), 1 + phase)}) for phase in (1j, 2j)]
    assert [one.distance > 0.1 for one in _compared(*turned) if one.name == "metrics/z"] == [True]


def test_models_that_were_not_kept_are_not_compared(history):
    found = verify(dataclasses.replace(history, params={}))
    assert found.passed
    assert "final models were not kept" in str(found)


@pytest.mark.slow
def test_another_random_generator_is_named(history):
    with jax.default_prng_impl("rbg"):
        other = fjs.simulate(
            fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), fjs.datasets.quadratics(num_clients=6, dim=4),
            **SETTINGS | {"cohort": fjs.cohort.full()},
        )  # fmt: skip
        assert verify(other).passed
        with pytest.raises(ValueError, match=r"set JAX_DEFAULT_PRNG_IMPL=threefry2x32 in the environment and verify"):
            verify(history)
    said = r"drawn by another random generator \(generator\.jax_default_prng_impl: rbg in the result, threefry2x32 now"
    with pytest.raises(
        ValueError, match=rf"{said}.*\): set JAX_DEFAULT_PRNG_IMPL=rbg in the environment and verify again"
    ):
        verify(other)
    environment = dict(history.description["environment"])
    drawn = environment.pop("generator")
    offset = history.description | {
        "environment": environment
        | {"generator": drawn | {"jax_random_seed_offset": 2, "jax_threefry_partitionable": False}}
    }
    with pytest.raises(ValueError, match=r": set JAX_THREEFRY_PARTITIONABLE=0 JAX_RANDOM_SEED_OFFSET=2 in the env"):
        verify(dataclasses.replace(history, description=offset))
    # An older file does not say: it is compared, and where that fails it is said what may be the cause.
    older = dataclasses.replace(history, description=history.description | {"environment": environment})
    assert "does not say" not in str(verify(older))
    elsewhere = history.description | {"environment": environment | {"fedjax_sim": "0.1.0"}}
    older = dataclasses.replace(history, description=elsewhere)
    less = dataclasses.replace(older, rounds={k: v for k, v in older.rounds.items() if k != "nonfinite_ids"})
    assert verify(less).passed
    assert "so not compared: rounds/nonfinite_ids" in str(verify(less))
    with_entry = dataclasses.replace(less, description=history.description)
    assert [one.name for one in verify(with_entry).failed] == ["rounds/nonfinite_ids"]
    lost = older.metrics | {"loss": history["loss"] + 1}
    assert "the result does not say its generator" in str(verify(dataclasses.replace(older, metrics=lost)))


def test_a_generator_can_be_taken_over():
    before = generator()
    try:
        use_generator(
            before | {"jax_random_seed_offset": 3, "jax_threefry_partitionable": "no", "jax_enable_x64": True}
        )
        assert generator() == before | {"jax_random_seed_offset": 3}
        assert jax.config.jax_enable_x64 is False
        with pytest.raises(ValueError, match="dice"):
            use_generator({"jax_default_prng_impl": "dice"})
    finally:
        use_generator(before)
    assert generator() == before == GENERATOR


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


@pytest.mark.slow
def test_opaque_parts_are_refused_by_name():
    data = fjs.datasets.quadratics(num_clients=6, dim=4, seed=0)
    small = SETTINGS | {"rounds": 1, "eval_every": 1, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1)}
    algorithm = fjs.fedavg(client_optimizer=optax.sgd(0.1))
    given = fjs.simulate(algorithm, data.replace(), **small, evaluate=lambda params, data: {})
    known = fjs.describe(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)))
    about = given.description
    for parts, message in (
        ({"dataset": fjs.describe(data), "run": about["run"] | {"evaluate": None}}, r"algorithm\.client_optimizer: .*"),
        ({"algorithm": known, "run": about["run"] | {"evaluate": None}}, r"dataset: .*FederatedDataset"),
        ({"algorithm": known, "dataset": fjs.describe(data)}, r"run\.evaluate: .*<lambda>"),
    ):
        with pytest.raises(ValueError, match=rf"cannot be run again: {message} was given"):
            verify(dataclasses.replace(given, description=about | parts))


@pytest.mark.slow
def test_data_of_other_sizes_are_not_those_of_the_result():
    data = fjs.datasets.quadratics(num_clients=6, dim=4, sizes=[3, 9, 2, 5, 8, 4], seed=0)
    bare = data.replace(test=data.subset(range(6)))
    small = SETTINGS | {"rounds": 1, "eval_every": 1, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1)}
    given = fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), bare, **small)
    sizes = {"clients": 6, "examples": 31, "max_size": 9, "classes": None, "test": 31}
    assert given.description["dataset"] == {"opaque": "fedjax_sim.datasets.federated.FederatedDataset", "sizes": sizes}
    for same in (bare, fjs.datasets.on_host(bare)):
        assert verify(given, parts={"dataset": same}, tolerance=1e-5).passed
    told = (
        r"dataset.clients: 6 in the result, 5 now; dataset.examples: 31 in the .*, 27 now; dataset.test: 31 .* 27 now$"
    )
    with pytest.raises(ValueError, match=told):
        verify(given, parts={"dataset": bare.subset(range(5))})
    with pytest.raises(ValueError, match=r"dataset.test: 31 in the result, nothing now$"):
        verify(given, parts={"dataset": data})
    assert not verify(given, parts={"dataset": bare.replace(examples=jax.tree.map(np.negative, bare.examples))}).passed


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
    description = json.loads(json.dumps(history.description))
    description["environment"]["float"] = "float64"
    dataclasses.replace(history, description=description).save(tmp_path / "double.npz")
    assert cli.main(["verify", str(tmp_path / "double.npz")]) == 1  # it leaves the settings of who called it alone
    assert "set JAX_ENABLE_X64=1" in capsys.readouterr().err
    assert not jax.config.jax_enable_x64


def test_the_text_of_a_long_list():
    many = Verification([Difference(f"metrics/{i}", False, float(i)) for i in range(20)], 0.5, None)
    assert len(many.failed) == 19
    assert str(many).count("differs:") == 10


@pytest.mark.slow
def test_chunks_change_nothing():
    data = fjs.datasets.quadratics(num_clients=6, dim=2, sizes=[3, 9, 2, 5, 8, 4], seed=0)
    common = SETTINGS | {"batches": fjs.local.shuffled(3)}
    runs = [
        fjs.simulate(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, **common | {"eval_every": every})
        for every in (2, 5)
    ]
    pieces, whole = runs
    for name, values in whole.rounds.items():
        np.testing.assert_array_equal(pieces.rounds[name], values)
    np.testing.assert_array_equal(pieces.params, whole.params)
    assert pieces.final("loss") == whole.final("loss")
