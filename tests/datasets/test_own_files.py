"""Own data by the names of files: in configurations, on the command line, and known again by their checksums."""

import hashlib
import json

import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import main as cli
from fedjax_sim.core.descriptions import build, describe, opaque_parts
from fedjax_sim.run.configuration import read, written

RUN = """
cohort = "full"
[algorithm]
name = "fedavg"
client_optimizer = { name = "optim.sgd", learning_rate = 0.1 }
[dataset]
name = "from_directory"
folder = "clinics"
[task]
name = "classification"
model = { name = "LogisticRegression", num_classes = 2 }
[work]
name = "steps"
num_steps = 2
[run]
rounds = 2
batch_size = 4
"""
USERS = {"ann": {"x": [[0.5], [1.5]], "y": [0, 1]}, "rob": {"x": [[2.5]], "y": [1]}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory of each kind of file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clinics").mkdir()
    for name, count in (("north", 6), ("south", 9)):
        x = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
        np.savez(tmp_path / "clinics" / f"{name}.npz", x=x, y=np.arange(count) % 2)
    (tmp_path / "users.json").write_text(json.dumps({"users": list(USERS), "num_samples": [2, 1], "user_data": USERS}))
    (tmp_path / "visits.csv").write_text("site,age,dose,ill\nb,40,0.5,0\na,51,1.0,1\nb,62,1.5,1\n")
    (tmp_path / "own.toml").write_text(RUN)
    return tmp_path


def described(name, **arguments):
    return {"name": f"dataset.{name}", "arguments": arguments}


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_they_are_the_library_s_sets(folder):
    assert_same(build(described("from_directory", folder="clinics")), fjs.datasets.from_directory("clinics"))
    made = build(described("from_leaf", train="users.json", num_classes=2))
    assert_same(made, fjs.datasets.from_leaf("users.json", num_classes=2))
    assert fjs.datasets.client_names(made) == ("ann", "rob")
    pytest.importorskip("pyarrow")
    table = described("from_table", table="visits.csv", client="site", y="ill", x=["age", "dose"])
    assert_same(build(table), fjs.datasets.from_table("visits.csv", client="site", y="ill", x=["age", "dose"]))


@pytest.mark.parametrize(
    "description",
    [
        described("from_directory", folder="clinics", test_fraction=0.4),
        described("from_leaf", train=["users.json"], test="users.json"),
        described("from_table", table="visits.csv", client="site", y="ill"),
    ],
)
def test_a_description_knows_its_files_again(folder, description):
    if description["name"] == "dataset.from_table":
        pytest.importorskip("pyarrow")
    made = build(description)
    told = json.loads(json.dumps(describe(made)))
    assert opaque_parts(told) == []
    assert len(told["arguments"]["sha256"]) == 64
    assert_same(build(told), made)
    assert describe(build(told)) == told
    for path in ("users.json", "visits.csv"):  # as other data, of the same form
        text = (folder / path).read_text()
        (folder / path).write_text(text.replace("1.5", "1.7"))
    np.savez(folder / "clinics" / "north.npz", x=np.zeros((6, 3), np.float32), y=np.zeros(6, int))
    with pytest.raises(ValueError, match=r"the content has the SHA-256 .*leave sha256 out"):
        build(told)
    del told["arguments"]["sha256"]
    build(told)


def test_the_checksum_of_one_file_is_sha256sum_s(folder):
    told = describe(build(described("from_leaf", train="users.json")))
    assert told["arguments"]["sha256"] == hashlib.sha256((folder / "users.json").read_bytes()).hexdigest()


def test_another_name_of_a_file_is_another_set(folder):
    first = describe(build(described("from_directory", folder="clinics")))["arguments"]["sha256"]
    (folder / "clinics" / "south.npz").rename(folder / "clinics" / "west.npz")
    assert describe(build(described("from_directory", folder="clinics")))["arguments"]["sha256"] != first


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_every_part_of_a_folder_is_in_its_checksum(folder, part):
    for name, value in (("train", 0.0), ("validation", 1.0), ("test", 2.0)):
        (folder / "split" / name).mkdir(parents=True)
        np.savez(folder / "split" / name / "north.npz", x=np.full((3, 2), value, np.float32))
    told = describe(build(described("from_directory", folder="split")))
    assert_same(build(told), fjs.datasets.from_directory("split"))
    np.savez(folder / "split" / part / "north.npz", x=np.full((3, 2), 9.0, np.float32))
    with pytest.raises(ValueError, match="the content has the SHA-256"):
        build(told)


@pytest.mark.parametrize(
    ("description", "error", "said"),
    [
        (described("from_table", table={"mapping": {}}, client="site"), TypeError, "a configuration names files"),
        (described("from_leaf", train=[5]), TypeError, "a configuration names files"),
        (described("from_directory", folder="nothing"), FileNotFoundError, "nothing"),
        (described("from_directory", folder="."), FileNotFoundError, r"\*\.npz"),
        (described("from_table", table="nothing.csv", client="site"), FileNotFoundError, "nothing.csv"),
        (described("from_directory", folder="clinics", sha256="0" * 64), ValueError, "sha256 = '0000"),
    ],
)
def test_what_is_wrong_with_them(folder, description, error, said):
    with pytest.raises(error, match=said):
        build(description)


@pytest.mark.slow
def test_a_run_of_own_files_has_a_configuration_and_is_verified(folder, capsys):
    history = fjs.simulate(**read("own.toml"))
    (folder / "again.toml").write_text(written(history))
    np.testing.assert_array_equal(fjs.simulate(**read("again.toml"))["loss"], history["loss"])
    assert fjs.verify(history).passed
    assert cli.main(["data", "describe", "own.toml", "test_fraction=0.4"]) == 0
    assert "clients              2" in capsys.readouterr().out
    assert cli.main(["data", "describe", "from_directory", "folder=./clinics"]) == 0
    np.savez(folder / "clinics" / "north.npz", x=np.zeros((6, 3), np.float32), y=np.zeros(6, int))
    with pytest.raises(ValueError, match="SHA-256"):
        fjs.verify(history)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("clinics", "describe from_directory folder=clinics"),
        ("users.json", "describe from_leaf train=users.json"),
        ("visits.csv", "describe from_table table=visits.csv client=COLUMN"),
        ("clinic", "no data set is called 'clinic'"),
    ],
)
def test_files_are_no_names_of_data_sets(folder, capsys, what, said):
    assert cli.main(["data", "describe", what]) == 2
    assert said in capsys.readouterr().err


def test_what_is_missing_is_named(folder, capsys):
    assert cli.main(["data", "describe", "from_table", "table=visits.csv"]) == 2
    assert "dataset.from_table needs client: add it" in capsys.readouterr().err
