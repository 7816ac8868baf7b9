"""What is cited agrees with the docstrings, with CITATION.cff and with what a run was made of."""

import inspect
import pathlib
import re
import unicodedata

import pytest

import fedjax_sim as fjs
from fedjax_sim.core import descriptions, records
from fedjax_sim.reporting import citations

ROOT = pathlib.Path(__file__).parents[2]
PAPERS = citations.papers()
NO_PAPER = {"aggregator.mean", "algorithm.attacked", "algorithm.robust"}


def keys(text):
    return re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)


def field(entry, name):
    return re.search(rf"^  {name} = \{{(.+)\}},$", entry, re.MULTILINE)[1]


def first_author(entry):
    text = re.sub(r"\{\\.\{?(\w)\}?\}", r"\1", field(entry, "author"))
    return re.sub(r"[{}]", "", text).partition(",")[0].split()[-1]


def plain(text):
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def test_every_method_rule_and_server_has_its_paper():
    descriptions.all_registered()
    for kind in ("algorithm", "aggregator", "asynchronous"):
        makers = {name: descriptions._FACTORIES[name] for name in descriptions.registered(kind)}
        ours = {name for name, maker in makers.items() if maker.__module__.startswith("fedjax_sim.")}
        assert ours - NO_PAPER == {name for name in PAPERS if name.startswith(kind + ".")}


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_is_the_one_that_the_docstring_names(name):
    descriptions.all_registered()
    maker = descriptions._FACTORIES[name]
    words = " ".join([inspect.getdoc(maker) or "", inspect.getmodule(inspect.unwrap(maker)).__doc__ or ""])
    source = inspect.getsource(inspect.getmodule(inspect.unwrap(maker)))
    for key in PAPERS[name]:
        entry = records.entries()[key]
        assert first_author(entry) in plain(words + source), (name, key)
        assert field(entry, "year") in words + source, (name, key)


def test_every_entry_is_whole_and_used():
    entries = records.entries()
    assert {key for papers in PAPERS.values() for key in papers} == set(entries)
    for key, entry in entries.items():
        assert entry.count("{") == entry.count("}"), key
        assert field(entry, "title")
        assert re.fullmatch(first_author(entry).lower() + field(entry, "year") + r"[a-z]+", key), key


def test_names_objects_and_order():
    assert keys(fjs.cite()) == ["fedjax_sim"]
    assert keys(fjs.cite("scaffold", "algorithm.fedavg", "scaffold")) == [
        "fedjax_sim", "karimireddy2020scaffold", "mcmahan2017communication",
    ]  # fmt: skip
    algorithm = fjs.aware(fjs.fednova(client_optimizer=fjs.optim.sgd(0.1), server_optimizer=fjs.optim.fedyogi()))
    assert set(keys(fjs.cite(algorithm))) == {"fedjax_sim", "zeng2025power", "wang2020tackling", "reddi2021adaptive"}
    assert keys(fjs.cite(fjs.optim.sgd(0.1))) == ["fedjax_sim"]
    with pytest.raises(ValueError, match="did you mean 'scaffold'"):
        fjs.cite("scafold")


@pytest.mark.slow
def test_a_run_is_cited_with_all_its_parts(tmp_path):
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=4, max_size=40, seed=0)
    history = fjs.simulate(
        fjs.scaffold(client_optimizer=fjs.optim.sgd(0.1)), data, rounds=1, batches=fjs.local.full_batch(),
        task=fjs.classification(fjs.models.LogisticRegression(10)), cohort=fjs.cohort.full(), work=fjs.local.steps(1),
    )  # fmt: skip
    found = keys(fjs.cite(history))
    assert found[0] == "fedjax_sim"
    assert set(found) == {"fedjax_sim", "karimireddy2020scaffold", "li2020federated"}
    history.save(tmp_path / "run.npz")
    assert fjs.cite(fjs.History.load(tmp_path / "run.npz")) == fjs.cite(history)


def test_the_package_s_entry_agrees_with_citation_cff():
    cff = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    title = field(fjs.cite(), "title").replace("{", "").replace("}", "")
    assert f'title: "{title}"' in cff
    assert re.search(r"^version: (.+)$", cff, re.MULTILINE)[1] == field(fjs.cite(), "version") == fjs.__version__
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert ("url = " in fjs.cite()) <= ("Repository" in pyproject)  # no address that the project does not name
