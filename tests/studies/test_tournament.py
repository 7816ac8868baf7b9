"""Tournaments: the rungs against runs made by hand, candidates of every kind, what fails, and calling again."""

import json

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.files import Lock
from fedjax_sim.studies.tournament import Entry, Tournament

pytestmark = pytest.mark.xdist_group("tournament")  # one worker compiles what they share

sgd = fjs.optim.sgd
DATA = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
RUN = {
    "task": fjs.quadratic(start=1.0), "rounds": 8, "eval_every": 2, "batches": fjs.local.full_batch(),
    "cohort": fjs.cohort.full(), "work": fjs.local.steps(2), "seeds": [0, 1],
}  # fmt: skip
RATES = {"slow": 1e-4, "middling": 0.01, "good": 0.1, "better": 0.3}


def method(rate):
    return fjs.fedavg(client_optimizer=sgd(rate))


CANDIDATES = {name: method(rate) for name, rate in RATES.items()}


def play(folder, candidates=CANDIDATES, **changed):
    return fjs.tournament(candidates, DATA, folder=folder, **{"metric": "loss", "rungs": 3, "eta": 2} | RUN | changed)


def test_the_best_go_on_and_have_the_scores_of_ordinary_runs(tmp_path):
    said = []
    found = play(tmp_path, show=said.append)
    assert [(entry.name, entry.rounds, entry.rung) for entry in found.entries] == [
        ("better", 8, 2), ("good", 4, 1), ("middling", 2, 0), ("slow", 2, 0)
    ]  # fmt: skip
    assert (found.rungs, found.spent, found.complete, found.best.name) == ([2, 4, 8], 8 + 4 + 2 + 2, True, "better")
    history = fjs.simulate(method(RATES["good"]), DATA, **RUN | {"rounds": 4})
    np.testing.assert_array_equal(found.entries[1].by_seed, history.final("loss"))
    assert found.entries[1].score == pytest.approx(history.final("loss").mean())
    assert fjs.build(found.best.algorithm).client_optimizer.learning_rate == pytest.approx(0.3)
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert ledger == json.loads(json.dumps(found.as_json()))
    assert len(said) == 4 + 2 + 1
    assert said[0].startswith("rung 0, slow: loss ")
    assert str(found).splitlines()[2].split()[:2] == ["better", "8"]
    assert "16 rounds spent" in str(found)


def test_the_ledger_has_methods_with_an_infinite_hyper_parameter(tmp_path):
    class Bounded(fjs.algorithms.FedAvg):
        bound: float = float("inf")

    found = play(tmp_path, {"plain": method(0.1), "bounded": lambda: Bounded(client_optimizer=sgd(0.3))}, rungs=1)
    assert found.best.name == "bounded"
    entries = json.loads((tmp_path / "ledger.json").read_text(), parse_constant=pytest.fail)["entries"]  # strict JSON
    assert [entry["name"] for entry in entries] == ["bounded", "plain"]


def test_the_table_says_what_its_spread_is_and_one_seed_has_none():
    def table(*by_seed):
        entry = Entry("a", 0, 4, float(np.mean(by_seed)), list(by_seed), 1.0, "", None)
        return str(Tournament([entry], "loss", list(range(len(by_seed))), [4], 4, True))

    assert "2 ± 1.4" in table(1.0, 3.0)
    assert table(1.0, 3.0).endswith("rungs of 4 rounds; mean ± standard deviation over 2 seeds; 4 rounds spent")
    assert "±" not in table(1.0)
    assert table(1.0).endswith("rungs of 4 rounds; one seed; 4 rounds spent")


@pytest.mark.slow
def test_the_same_call_reads_and_a_call_with_more_plays_only_what_is_new(tmp_path, monkeypatch):
    first = play(tmp_path)
    (tmp_path / "ledger.json").unlink()  # the checkpoints are the memory
    asked = []
    ordinary = fjs.simulate

    def counted(algorithm, *args, **kwargs):
        history = ordinary(algorithm, *args, **kwargs)
        asked.append((float(algorithm.client_optimizer.learning_rate), kwargs["rounds"], kwargs["checkpoint"].name))
        return history

    monkeypatch.setattr("fedjax_sim.studies.tournament.simulate", counted)
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*.safetensors")}
    again = play(tmp_path)
    assert [entry[:5] for entry in again.entries] == [entry[:5] for entry in first.entries]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/*.safetensors")} == written, "nothing was run"
    more = play(tmp_path, {**CANDIDATES, "best": method(0.5)})
    assert [entry.name for entry in more.entries][:2] == ["best", "better"]
    assert (more.best.rounds, more.spent) == (8, 16 + 8)
    assert ("best", 8) in {(name, rounds) for _, rounds, name in asked}


def test_one_process_plays_in_a_folder(tmp_path):
    """Of two, each would enter as failures what the other is just running, and the ledger would be the last one's."""
    with Lock(tmp_path, "a tournament"), pytest.raises(BlockingIOError, match="another run writes a tournament"):
        play(tmp_path)
    assert not (tmp_path / "ledger.json").exists()
    assert play(tmp_path, rungs=1, rounds=2).complete


def test_a_method_may_be_made_described_or_named(tmp_path, monkeypatch):
    (tmp_path / "of_ours.py").write_text(
        "import fedjax_sim as fjs\ndef better():\n    return fjs.fedavg(client_optimizer=fjs.optim.sgd(0.3))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    candidates = {
        "made": lambda: method(0.3), "described": fjs.describe(method(0.3)), "named": "of_ours:better",
        "given": method(0.3),
    }  # fmt: skip
    found = play(tmp_path / "folder", candidates, rungs=1)
    assert len({entry.score for entry in found.entries}) == 1
    assert {entry.name for entry in found.entries} == set(candidates)


def test_what_fails_is_entered_and_the_others_go_on(tmp_path):
    def broken():
        raise RuntimeError("a bug\nwith two lines")

    candidates = {
        "broken": broken, "wild": method(1e20), "none": lambda: 3, "absent": "no_such_module:method",
        "good": method(0.1),
    }  # fmt: skip
    found = play(tmp_path, candidates, rungs=2)
    assert (found.best.name, found.best.rounds) == ("good", 8)
    errors = {entry.name: entry.error for entry in found.entries}
    assert errors["broken"] == "RuntimeError: a bug"
    assert "3: it must be a method" in errors["none"]
    assert "there is no no_such_module.py" in errors["absent"]
    assert "diverged" in errors["wild"]
    assert found.spent == 4 + 8  # of wild's rung and good's two
    assert np.isnan(found.entries[-1].score)
    with pytest.raises(ValueError, match=r"no candidate could be judged by 'loss': good: ValueError: .*another run"):
        play(tmp_path, {"good": method(0.2), "wild": method(0.1)}, rungs=2)  # others under their names
    mended = play(tmp_path, {"broken": method(0.2), "good": method(0.1)}, rungs=2)
    assert mended.best.name == "broken"


@pytest.mark.slow
def test_a_budget_ends_it_before_what_would_exceed_it(tmp_path):
    found = play(tmp_path, budget=9)
    assert (found.spent, found.complete) == (8, False)
    assert {entry.rounds for entry in found.entries} == {2}
    assert "the budget ended it" in str(found)
    assert json.loads((tmp_path / "ledger.json").read_text()) == json.loads(json.dumps(found.as_json()))
    whole = play(tmp_path, budget=16)
    assert whole.complete
    assert play(tmp_path, budget=1).complete, "what is there is read"
    again = play(tmp_path, {"new": method(0.2), **CANDIDATES}, budget=16)
    assert ([one[:4] for one in again.entries], again.complete) == ([one[:4] for one in whole.entries], False)
    assert not play(tmp_path / "another", budget=15).complete


@pytest.mark.slow
def test_accuracies_are_better_when_larger(tmp_path):
    data = fjs.datasets.digits(3, test_fraction=0.4)
    run = RUN | {"task": fjs.classification(fjs.models.LogisticRegression(10)), "batches": None, "batch_size": 20}
    found = fjs.tournament(
        {name: method(rate) for name, rate in (("zero", 1e-9), ("good", 0.05))},
        fjs.datasets.with_validation(data, 0.5), folder=tmp_path, metric="validation_accuracy", rungs=1, **run,
    )  # fmt: skip
    assert [entry.name for entry in found.entries] == ["good", "zero"]
    assert found.entries[0].score > found.entries[1].score


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"candidates": {}}, "give a dict of methods by name"),
        ({"candidates": {"a/b": method(0.1)}}, "a name is a folder's"),
        ({"candidates": {"A": method(0.1), "a": method(0.2)}}, "upper and lower case"),
        ({"rungs": 0}, r"rungs=\.\.\."),
        ({"eta": 1}, r"eta=\.\.\."),
        ({"budget": 0}, r"budget=\.\.\."),
        ({"budget": 1}, "below the rounds of the first rung"),
        ({"rungs": 4, "eta": 3}, "the rungs would end after"),
        (
            {"metric": "validation_loss", "rungs": 1},
            "no candidate could be judged by 'validation_loss'.*with_validation",
        ),
    ],
)
def test_bad_input(changed, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        play(tmp_path, **changed)
