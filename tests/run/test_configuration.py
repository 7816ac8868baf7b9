"""Configurations: every registered thing can be written as TOML and read again, and what is wrong is named."""

import dataclasses
import inspect
import json
import pathlib
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.descriptions import all_registered, describe, opaque_parts, registered_factory
from fedjax_sim.run.configuration import ConfigurationError, building, read, tables, writing, written
from tests.core.test_descriptions import MADE

EXAMPLE = (pathlib.Path(fjs.__file__).parent / "cli" / "example.toml").read_text()
# Of data sets, those that need no files.
GENERATED = ("synthetic", "quadratics", "on_host", "flip_labels", "random_labels")
SMALL = """
[algorithm]
name = "fedavg"
[algorithm.client_optimizer]
name = "optim.sgd"
learning_rate = 0.1
[dataset]
name = "quadratics"
num_clients = 3
dim = 2
[task]
name = "quadratic"
[cohort]
name = "uniform"
num_sampled = 2
[work]
name = "steps"
num_steps = 2
[batches]
name = "full_batch"
[run]
rounds = 2
"""


@pytest.fixture
def file(tmp_path):
    def make(text):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return make


def refused(path, changes=()):
    with pytest.raises(ConfigurationError) as caught:
        read(path, changes)
    return str(caught.value)


def again(description):
    """A description written as TOML and built from what is read."""
    text = writing.text({"thing": writing.plain(description)})
    return building.value_of(tomllib.loads(text)["thing"], tables.Place("a file", ("thing",)))


def test_everything_registered_is_written_and_read():
    left = set(MADE)
    for name, make in MADE.items():
        if name.startswith("dataset.") and name.partition(".")[2] not in GENERATED:
            continue
        description = describe(make())
        if not opaque_parts(description):
            assert describe(again(description)) == description, name
            left.discard(name)
    # The others are data sets in files, and a task of bare functions: their tables are understood all the same.
    assert {name.partition(".")[0] for name in left} <= {"dataset", "task"}
    for name in left:
        with pytest.raises(ConfigurationError, match=rf"{name} has no argument 'nonsense'.*known: \w+"):
            building.value_of({"name": name, "nonsense": 1}, tables.Place("a file"))


@pytest.mark.parametrize(
    "value",
    [0.1, 1e-300, -1e16, float("inf"), 3, -(2**63), True, "", 'a "quoted"\\ line\nbreak\ttab \x00\x1b\x7f é 🙂', [],
     [[1, 2.0], "x"], {}, {"a.b c": 1, "é": {"": 2}}, {"k": [{"l": True}]}],
)  # fmt: skip
def test_values_survive(value):
    table = tomllib.loads(writing.text({"top": {"value": value, "next": 1}}))["top"]
    assert table == {"value": value, "next": 1}
    assert json.dumps(table["value"]) == json.dumps(value)  # with their types


def test_what_toml_has_no_word_for():
    place = tables.Place("a file")
    assert building.value_of({"none": True}, place) is None
    assert building.value_of({"a": [{"none": True}, 1]}, place) == {"a": (None, 1)}
    assert building.value_of({"mapping": {"name": 1, "none": 2}}, place) == {"name": 1, "none": 2}
    assert writing.plain({"mapping": {"name": 1}}) == {"mapping": {"name": 1}}
    assert building.value_of({"dtype": "bfloat16"}, place) == jnp.bfloat16
    array = building.value_of({"array": [1, 2], "dtype": "int8"}, place)
    assert array.dtype == np.int8
    assert array.tolist() == [1, 2]
    rates = {"learning_rate": 0.1, "b1": 0.5}
    adam = building.value_of({"name": "from_optax", "arguments": {"name": "adam", "arguments": rates}}, place)
    assert describe(adam) == describe(fjs.optim.from_optax("adam", **rates))
    # None where it is not the default must be written, else the default would come back.
    roles = {"name": "dataset.shakespeare_roles", "arguments": {"num_roles": None, "max_windows": None}}
    assert writing.plain(roles) == {"name": "dataset.shakespeare_roles", "num_roles": {"none": True}}


def test_the_example_is_the_run_that_it_looks_like(file):
    run = read(file(EXAMPLE))
    same = {
        "algorithm": fjs.fedprox(client_optimizer=fjs.optim.sgd(0.02), mu=0.1),
        "dataset": fjs.datasets.synthetic(1.0, 1.0, num_clients=30, seed=0),
        "task": fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-4),
        "cohort": fjs.cohort.uniform(10),
        "work": fjs.local.random_epochs(1, 5),
    }
    assert {name: describe(run[name]) for name in same} == {name: describe(part) for name, part in same.items()}
    assert {name: value for name, value in run.items() if name not in same} == {
        "rounds": 50, "eval_every": 5, "batch_size": 20, "seeds": (0, 1, 2),
    }  # fmt: skip
    # What is commented out is right too.
    lines = [line.partition("# ")[2] for line in EXAMPLE.splitlines()]
    optional = lines[lines.index("[stop]") : lines.index("[stop]") + 4]
    more = read(file(EXAMPLE + "\n".join(["", *optional, "[environment]", 'float = "float32"'])))
    assert more["stop"] == fjs.stopping.reached("test_accuracy", 0.8)


def test_every_argument_of_simulate_has_a_place():
    hints = {name: one.annotation for name, one in inspect.signature(fjs.simulate).parameters.items()}
    plain = {name for name in hints if name not in (*building.PARTS, "progress")}
    objects = {"Method", "Task", "Participation", "Work", "Batches", "System", "Layout", "ClientStates", "Stopping"}
    for name in plain:  # an argument that is an object of ours needs a table
        assert not objects & set(hints[name].replace("|", " ").split()), name
    for name, kind in building.PARTS.items():
        assert name in hints
        assert any(one.startswith(f"{kind}.") for one in all_registered()), kind


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("algorithm.client_optimizer.learnig_rate=0.5",
         ["[algorithm.client_optimizer]", "'learnig_rate'", "(it is 0.5)", "did you mean 'learning_rate'", "momentum"]),
        ("work=epochs", ["[work]", "name = \"random_epochs\" with low = E and high = E"]),
        ("algorithm.learning_rate=1", ["did you mean 'client_optimizer.learning_rate'"]),
        ("algorithm.name=fedvag", ["[algorithm]", "'fedvag'", "did you mean 'fedavg'", "scaffold"]),
        ("cohort.name=digits", ["[cohort]", "'dataset.digits', which is no cohort", "uniform"]),
        ("algorithm.client_optimizer.name=optim.sdg", ["did you mean 'optim.sgd'", "optim.adam"]),
        ("algorithm.client_optimizer.name=optims.sgd", ["did you mean 'optim.sgd'"]),
        ("algorithm.server_optimizer={name='fedadam'}",
         ["[algorithm.server_optimizer]", "'algorithm.fedadam' or 'optim.fedadam'"]),
        ("algorithm.client_optimizer.name=3", ["name is 3", "must be text"]),
        ("work.num_steps=0", ["[work]", "steps(num_steps=...) is 0", "at least 1"]),
        ("work={name='steps'}", ["[work]", "work.steps needs num_steps"]),
        ("work=3", ["[work]", "it is 3", "must be a table"]),
        ("work={num_steps=3}", ["[work]", "there is no name", "random_epochs"]),
        ("layout=tun", ["[layout]", "'tun'", "turns"]),
        ("run.rouns=3", ["[run]", "'rouns'", "(it is 3)", "did you mean 'rounds'", "seeds"]),
        ("run.progress=true", ["[run]", "'progress'"]),
        ("run.cohort={name='full'}", ["[run]", "[cohort]"]),
        ("run.cohort=full", ["[run]", "cohort", "give one of them"]),
        ("runs.rounds=3", ["[runs]", "did you mean 'run'"]),
        ("rounds=3", ["'rounds'", "belongs into [run]"]),
        ("environment.float=float16", ["[environment]", "'float16'", "'float32' or 'float64'"]),
        ("environment.float=float64", ["JAX_ENABLE_X64=1"]),
        ("environment.floats=float64", ["'floats'", "did you mean 'float'"]),
        ("environment.generator.jax_default_prng_impl=rbg", ["'threefry2x32'", "set JAX_DEFAULT_PRNG_IMPL=rbg"]),
        ("environment.generator.jax_threefry_partitionable=false", ["set JAX_THREEFRY_PARTITIONABLE=0"]),
        ("environment.generator.jax_random_seed_offset=true", ["[environment.generator]", "is True", "like 0"]),
        ("environment.generator.jax_enable_x64=true", ["[environment.generator]", "'jax_enable_x64'"]),
        ("run.seeds=2026-01-01", ["[run.seeds]", "2026-01-01"]),
        ("algorithm.client_learning_rate={array=[1.0], dtypes='x'}", ["'dtypes'", "array and dtype"]),
        ("algorithm.client_learning_rate={array=['x'], dtype='float32'}", ["[algorithm.client_learning_rate]", "'x'"]),
        ("algorithm.client_learning_rate={none=false}", ["none is False", "{ none = true }"]),
        ("algorithm.client_learning_rate={opaque='f'}", ["'f'", "bare object"]),
        ("algorithm.arguments={}", ["'client_optimizer'", "beside 'arguments'"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(file, change, parts):
    path = file(SMALL)
    message = refused(path, [change])
    for part in [str(path), *parts]:
        assert part in message, message


def test_a_change_is_named_where_it_is_to_blame(file):
    assert "(--set algorithm.mo=0.3)" in refused(file(SMALL), ["algorithm.mo=0.3"])
    assert "--set" not in refused(file(SMALL.replace("num_steps", "num_stesp")), ["run.rounds=3"])


@pytest.mark.parametrize("part", ["algorithm", "dataset", "task", "cohort", "work"])
def test_a_part_that_is_missing_is_named(file, part):
    lines, kept, skip = SMALL.splitlines(), [], False
    for line in lines:
        skip = line.startswith(f"[{part}") if line.startswith("[") else skip
        kept += [] if skip else [line]
    message = refused(file("\n".join(kept)))
    assert f"there is no table [{part}]" in message
    assert "one of: " in message


def test_rounds_and_batches_must_be_given(file):
    assert "there is no rounds" in refused(file(SMALL.replace("rounds = 2", "")))
    assert "batch_size" in refused(file(SMALL.replace('[batches]\nname = "full_batch"', "")))


def test_changes(file):
    path = file(SMALL)
    run = read(path, [
        "algorithm.client_optimizer.learning_rate = 1", "run.seeds=[3, 4]", "layout = stacked", "cohort='full'",
        'run."eval_every"=2', "run.on_divergence=stop", "algorithm.client_learning_rate={a=0.5}", "run.rounds=7",
        "run.rounds=8",
    ])  # fmt: skip
    assert run["algorithm"].client_optimizer.learning_rate == 1.0
    assert run["algorithm"].client_learning_rate == {"a": 0.5}
    assert (run["seeds"], run["rounds"], run["eval_every"], run["on_divergence"]) == ((3, 4), 8, 2, "stop")
    assert (run["layout"], run["cohort"]) == (fjs.layout.stacked(), fjs.cohort.full())
    # A word that `simulate` itself knows
    assert read(path, ["layout=tune"])["layout"] == read(path, ["run.layout=tune"])["layout"] == "tune"


@pytest.mark.parametrize(
    "change",
    ["", "x", "=3", "a b=3", "a=1\nb=2", "a=", "a=[1", "a=1 2", "a='", "a = {b = 1", "[a]=1", f"{'a.' * 40}a=1",
     f"a={'[' * 5000}", "run.rounds.x=1", "a=\x00"],
)  # fmt: skip
def test_changes_that_are_none(file, change):
    assert "--set" in refused(file(SMALL), [change])


@pytest.mark.parametrize("word", ["True", "False"])
def test_truth_values_of_python_are_no_texts(file, word):
    change = f"algorithm.client_optimizer.nesterov={word}"
    assert f"--set {change}: {word} is Python's: write {word.lower()}" in refused(file(SMALL), [change])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"rounds = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"x = " + b"9" * 5000, "is not TOML"),
        (b"x = " + b"9" * 400, "an integer of more than 300 digits"),
        (b"x = " + b"[" * 100_000, "is not TOML"),
        (b"x = " + b"{a=" * 40 + b"1" + b"}" * 40, "nested more than"),
        (b"a" + b".a" * 100_000 + b" = 1", "parts"),
        (b"a" + b" . 'a'" * 100_000 + b" = 1", "parts"),
        (b"#" * (4 * 2**20 + 1), "larger than 4 MiB"),
        (b"x = 1\nx = 2", "is not TOML"),
        (b"", "no table [algorithm]"),
    ],
    ids=lambda value: repr(value[:16]),
)
def test_files_that_are_no_configuration(tmp_path, content, said):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    message = refused(path)
    assert said in message
    assert str(path) in message
    assert len(message) < 2000


def test_only_files_are_opened(tmp_path):
    with pytest.raises(FileNotFoundError, match="a directory"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none\.toml"):
        read(tmp_path / "none.toml")


def test_the_resolved_configuration_is_the_same_run(file):
    changes = ["run.seeds=[5, 6]", "run.diagnostics=['drift', {name='client_losses', worst=0.5}]"]
    run = read(file(SMALL), [*changes, "run.divergence_factor={none=true}"])
    history = fjs.simulate(**run)
    assert history.description["run"]["divergence_factor"] is None  # what is None stays so where that says something
    more = {"checkpoint": "somewhere", "rounds": 99, "layout": "tune", "batch_size": 3, "seeds": 9}
    resolved = tomllib.loads(written(history, more))
    assert (resolved["run"]["rounds"], resolved["run"]["seeds"]) == (run["rounds"], [5, 6])
    assert resolved["run"].pop("checkpoint") == "somewhere"
    assert resolved["layout"]["name"].startswith("layout.")
    assert resolved["algorithm"]["server_learning_rate"] == 1.0  # a default
    again = fjs.simulate(**read(file(written(history))))
    assert again.description == history.description
    assert again.seeds == [5, 6]
    for name in history.metrics:
        np.testing.assert_array_equal(again[name], history[name])


@pytest.mark.slow
def test_a_configuration_says_which_random_generator_is_not_the_usual_one(file):
    history = fjs.simulate(**read(file(SMALL), ["run.rounds=1"]))
    assert tomllib.loads(written(history))["environment"] == {"float": "float32"}
    environment = history.description["environment"]
    drawn = environment | {"generator": environment["generator"] | {"jax_default_prng_impl": "rbg"}}
    text = written(dataclasses.replace(history, description=history.description | {"environment": drawn}))
    assert tomllib.loads(text)["environment"]["generator"] == {"jax_default_prng_impl": "rbg"}
    assert "set JAX_DEFAULT_PRNG_IMPL=rbg" in refused(file(text))
    with jax.default_prng_impl("rbg"):
        assert list(read(file(text))["seeds"]) == history.seeds


def test_a_run_of_bare_objects_has_no_configuration():
    history = fjs.History(
        evaluated=np.zeros(1, int), metrics={}, rounds={}, params={}, seeds=[0], seconds=0.0, compile_seconds=0.0,
        description={"algorithm": {"opaque": "mine.method"}, "dataset": {"name": "dataset.digits", "arguments": {}},
                     "run": {}, "environment": {}},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"mine\.method"):
        written(history)
    digits = {"algorithm": history.description["dataset"], "run": {"initial_state": "295802d2dbe1786f"}}
    with pytest.raises(ValueError, match="initial_state: the state of another run cannot be made"):
        written(dataclasses.replace(history, description=history.description | digits))


def test_names_without_their_kind_are_understood_where_one_thing_is_meant():
    names = all_registered()
    for name in names:
        short = name.partition(".")[2]
        same = [one for one in names if one.partition(".")[2] == short]
        if len(same) == 1:
            assert building._full_name(short, None, tables.Place("")) == name
        assert building._full_name(short, name.partition(".")[0], tables.Place("")) == name
        assert callable(registered_factory(name))
