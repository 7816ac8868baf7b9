"""``fedjax-sim data``, ``algorithms`` and ``doctor``: what they say of a machine that has little or nothing."""

import functools
import json
import sys

import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import doctor
from fedjax_sim.cli import list_names as names
from fedjax_sim.cli import main as cli
from fedjax_sim.core.descriptions import registered_factory
from fedjax_sim.datasets.sources.record import sources
from tests.processes import printed

OWN = {"from_directory", "from_leaf", "from_table"}
DERIVED = {"flip_labels", "from_tfds", "on_host", "random_labels", "with_validation"} | OWN  # made of other data


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """A data directory that is not there."""
    monkeypatch.setenv("FEDJAX_SIM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@functools.cache
def short_names(kind):
    return {one.short: one for one in names.registered_names() if one.name.startswith(f"{kind}.")}


def test_every_set_is_known_and_what_it_wants_is_what_its_source_wants(nothing):
    found = sources()
    assert set(found) | DERIVED == set(short_names("dataset"))
    for name, source in found.items():
        if not source.files:
            continue
        assert len(source.missing()) == len(source.files)
        with pytest.raises(FileNotFoundError) as caught:
            registered_factory(f"dataset.{name}")()
        wanted = [word for one in source.files for word in (*one.names, one.instead) if word]
        assert any(word in str(caught.value) for word in wanted), name
        folders = {one.folder for one in source.files}
        assert any(str(nothing / folder) in str(caught.value) for folder in folders), name
        # and how to come by it: the same words, as they are written once (CIFAR's are a sentence of their own)
        assert any(one.get in str(caught.value) or one.instead for one in source.files), name


def test_the_list_says_what_is_there(nothing, capsys):
    assert cli.main(["data", "list", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    ready = {one["name"] for one in about["sets"] if one["ready"]}
    assert {"synthetic", "quadratics"} <= ready <= {"synthetic", "quadratics", "digits"}
    assert set(about["others"]) == DERIVED
    folder = nothing / "mushrooms"
    folder.mkdir(parents=True)
    (folder / "mushrooms").write_text("")
    assert cli.main(["data", "list"]) == 0
    said = {line.partition(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "file missing" not in said["mushrooms"]
    assert "4 of 4 files missing" in said["mnist"]
    assert str(nothing) in said["files"]


@pytest.mark.slow
def test_a_set_is_described(nothing, capsys):
    pytest.importorskip("matplotlib")
    arguments = ["synthetic", "alpha=1.0", "beta=0.5", "num_clients=4", "max_size=30"]
    data = fjs.datasets.synthetic(1.0, 0.5, num_clients=4, max_size=30)
    assert cli.main(["data", "describe", *arguments, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["clients"], about["examples"], about["classes"]) == (4, data.num_examples, 10)
    assert sum(about["examples_per_class"]) == data.num_examples
    assert about["arrays"] == {"x": f"float32[{data.num_examples}, 60]", "y": f"int32[{data.num_examples}]"}
    assert cli.main(["data", "describe", *arguments, "--plot", "map.png"]) == 0
    said = capsys.readouterr().out
    assert str(data.statistics()) in said
    assert "wrote map.png" in said
    assert (nothing.parent / "map.png").stat().st_size > 1000
    # Of a configuration, without labels
    (nothing.parent / "run.toml").write_text("[dataset]\nname = 'quadratics'\nnum_clients = 3\n")
    assert cli.main(["data", "describe", "run.toml", "dim=2", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["arrays"] == {"H": "float32[3, 2, 2]", "e": "float32[3, 2]"}
    assert about["examples_per_class"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["describe", "synthetc"], 2, "did you mean 'synthetic'?"),
        (["describe", "synthetic", "alpa=1"], 2, "did you mean 'alpha'?"),
        (["describe", "synthetic", "alpha"], 2, "write KEY=VALUE"),
        (["describe", "synthetic", "alpha=1", "beta=1", "num_clients=0"], 2, "num_clients"),
        (["describe", "mnist"], 1, "train-images-idx3-ubyte.gz"),
        (["describe", "none.toml"], 1, "none.toml"),
        (["prepare"], 2, "give names or --all"),
        (["prepare", "mushroms"], 2, "did you mean 'mushrooms'?"),
    ],
)
def test_how_it_fails(nothing, capsys, arguments, status, said):
    assert cli.main(["data", *arguments]) == status
    out, err = capsys.readouterr()
    assert err.startswith("fedjax-sim data")
    assert said in err
    assert out == ""


def test_prepare_says_what_to_get_and_reads_what_is_there(nothing, capsys):
    assert cli.main(["data", "prepare", "parkinsons", "quadratics"]) == 1
    said = capsys.readouterr().out
    assert f"{nothing / 'parkinsons_telemonitoring' / 'parkinsons_updrs.data'} is missing" in said
    assert "https://archive.ics.uci.edu" in said
    assert "quadratics: ready" in said
    assert (nothing / "parkinsons_telemonitoring").is_dir()
    # A file that is not the published one
    (nothing / "parkinsons_telemonitoring" / "parkinsons_updrs.data").write_text("something else")
    assert cli.main(["data", "prepare", "parkinsons", "--json"]) == 1
    about = json.loads(capsys.readouterr().out)["sets"]["parkinsons"]
    assert not about["ready"]
    assert "SHA-256" in about["why"]
    assert cli.main(["data", "prepare", "quadratics", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_the_methods_say_what_they_keep_and_send(capsys):
    assert cli.main(["algorithms", "--json"]) == 0
    methods = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert set(methods) == set(short_names("algorithm"))
    assert methods["scaffold"] == {
        "name": "scaffold",
        "what": "SCAFFOLD: control variates c_i, c correct the drift of every local step (Karimireddy et al. 2020).",
        "paper": "Karimireddy et al. 2020",
        "keeps": "one model",
        "sends": "Two models down, two up",
    }
    assert methods["clipped"]["sends"] == "as the base"
    assert sum(bool(one["paper"]) for one in methods.values()) > 0.8 * len(methods)
    assert all(one["what"] for one in methods.values())
    assert cli.main(["algorithms"]) == 0
    said = capsys.readouterr().out
    assert "a client keeps one model; two models down, two up" in said
    assert "``" not in said
    assert cli.main(["algorithms", "fedprox"]) == 0
    assert "    mu = 1.0\n" in capsys.readouterr().out
    assert cli.main(["algorithms", "fedprocks"]) == 2
    assert "did you mean 'fedprox'?" in capsys.readouterr().err


def test_a_method_that_says_nothing():
    assert names.about(names.Named("algorithm.mine", "Mine.")) == {
        "name": "mine", "what": "Mine.", "paper": "", "keeps": "", "sends": "",
    }  # fmt: skip


# doctor


def healthy(monkeypatch, tmp_path, jax=True):
    """A machine on which nothing is wrong; JAX is not started."""
    answer = {
        "backend": "cpu",
        "devices": ["cpu 0"],
        "cores": 2,
        "chosen": "1 CPU device",
        "computes": True,
    }
    monkeypatch.setattr(doctor, "_jax", lambda problems: answer if jax else None)
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "cache"))


def test_nothing_is_wrong(nothing, tmp_path, monkeypatch, capsys):
    healthy(monkeypatch, tmp_path)
    nothing.mkdir()
    status = cli.main(["doctor", "--json"])
    about = json.loads(capsys.readouterr().out)
    if about["packages"]:  # else the package is imported from a folder, which is told of
        assert (status, about["problems"]) == (0, [])
        assert about["packages"].keys() >= {"jax", "numpy", "flax", "optax"}
        assert "matplotlib" in about["extras"]["plot"]
        assert "bench" not in about["extras"]
    assert "synthetic" in about["data"]["ready"]
    assert "mnist" in about["data"]["incomplete"]
    assert about["data"]["directory"] == str(fjs.datasets.data_dir())
    cli.main(["doctor"])
    said = capsys.readouterr().out
    assert f"data       {nothing}: " in said


def test_what_is_wrong_is_named_with_what_to_do(nothing, tmp_path, monkeypatch, capsys):
    healthy(monkeypatch, tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDJAX_SIM_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: [
        "jax>=99.1", "no-such-thing>=1", "numpy>=1.26.4", "shtab>=1.0; extra == 'completion'",
        "no-such-thing; extra == 'plot'", "fedjax_sim[plot]; extra == 'demo'",
    ])  # fmt: skip
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    for words in (
        "no-such-thing is not installed\n  mend: pip install 'no-such-thing>=1'", "and >=99.1 is needed",
        f"FEDJAX_SIM_DATA names {nothing}, which is no folder", "compiled programs cannot be kept",
        "not there: no-such-thing (pip install 'fedjax_sim[plot]')",
    ):  # fmt: skip
        assert words in said
    assert "numpy is" not in said


def test_a_cache_that_is_off_is_not_wrong(nothing, tmp_path, monkeypatch, capsys):
    healthy(monkeypatch, tmp_path)
    monkeypatch.setenv("FEDJAX_SIM_CACHE", "off")
    problems = {}
    assert doctor._cache(problems) == {"directory": None, "bytes": 0, "programs": 0}
    assert problems == {}
    cli.main(["doctor"])
    assert "\ncache      none\n" in capsys.readouterr().out


def test_versions_are_compared_by_their_numbers():
    assert doctor._reaches("1.10.0", ">=1.9")
    assert doctor._reaches("1.9", ">=1.9.0")
    assert doctor._reaches("2.0.dev1+g1", ">=1.9,<3")
    assert not doctor._reaches("1.8.9", ">=1.9")
    assert doctor._reaches("1", "")


def test_a_cache_that_others_may_write(nothing, tmp_path, monkeypatch, capsys):
    healthy(monkeypatch, tmp_path)
    nothing.mkdir()
    programs = tmp_path / "cache" / "programs-0"
    programs.mkdir(parents=True)
    (programs / "one").write_bytes(b"x" * 2**20)
    programs.chmod(0o777)
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "1 files of compiled programs, 1.0 MiB" in said
    assert f"chmod go-w '{programs}'" in said


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("raise ImportError('no jaxlib')", "JAX does not start: ImportError: no jaxlib"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with status -9"),
        ("import time; time.sleep(60)", "did not start within"),
        ("import json; print(json.dumps({'computes': False, 'backend': 'gpu'}))", "wrong sums"),
    ],
)
def test_a_broken_jax_is_no_end_of_the_doctor(monkeypatch, probe, said):
    monkeypatch.setattr(doctor, "_PROBE", probe)
    monkeypatch.setattr(doctor, "_PATIENCE", 0.5 if "sleep" in probe else 60.0)
    problems = {}
    doctor._jax(problems)
    (wrong,) = problems
    assert said in wrong


def test_without_jax_it_is_said_where_data_would_be(nothing, tmp_path, monkeypatch, capsys):
    healthy(monkeypatch, tmp_path, jax=False)
    nothing.mkdir()
    monkeypatch.setitem(sys.modules, "fedjax_sim.datasets.sources.record", None)  # it cannot be imported
    cli.main(["doctor", "--json"])
    about = json.loads(capsys.readouterr().out)
    assert about["jax"] is None
    assert about["data"] == {"directory": str(nothing), "exists": True, "ready": None, "incomplete": None}
    monkeypatch.delenv("FEDJAX_SIM_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert doctor.data_directory() == fjs.datasets.data_dir()


@pytest.mark.slow
def test_the_probe_finds_this_jax():
    assert json.loads(printed("-c", doctor._PROBE))["computes"]
