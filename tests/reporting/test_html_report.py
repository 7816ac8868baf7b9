"""The HTML report: its structure, what it escapes, what it draws, its colours; and the page in a real browser."""

import base64
import hashlib
import html
import html.parser
import itertools
import json
import os
import re
import shutil
import subprocess
from importlib import resources

import numpy as np
import pytest

from fedjax_sim.cli import main as cli
from fedjax_sim.cli.results import files_of, named
from fedjax_sim.reporting import report
from fedjax_sim.reporting.divergence import Divergence
from fedjax_sim.reporting.html import page
from fedjax_sim.reporting.html.curves import Record, curve, records, spreads, thinned
from fedjax_sim.reporting.html.drawing import DASHES, LINES, classes
from fedjax_sim.reporting.html.settings import differing, settings
from fedjax_sim.reporting.personal import cells_of, rows_of
from fedjax_sim.reporting.recorded import MODELS
from fedjax_sim.run.history import History
from fedjax_sim.run.records import Stop

HOSTILE = (
    "</script><script>document.documentElement.dataset.hacked=1</script><img src=x onerror=alert(1)>\"'&amp;\0<!--"
)


def made(rounds=20, *, every=5, seeds=2, clients=0, system=False, algorithm="fedavg", **more):
    """A history of numbers that are easy to predict."""
    evaluated = np.arange(0, rounds + 1, every)
    loss = 2.0 / (1 + evaluated) + 0.1 * np.arange(seeds)[:, None]
    metrics = {"loss": loss.astype(np.float32), "test_accuracy": (1 - loss / 4).astype(np.float32)}
    if clients:
        metrics["test_client_accuracy"] = np.tile(np.linspace(0, 1, clients), (seeds, len(evaluated), 1))
    each = np.ones((seeds, rounds), np.int32)
    recorded = {"cohort_size": 10 * each, "useful_steps": each, "computed_steps": 2 * each,
                "e_lud": np.cumsum(each, axis=1).astype(float)}  # fmt: skip
    if system:
        recorded |= {"bytes_down": 3e6 * each, "bytes_up": 1e6 * each, "duration": 0.5 * each}
    description = {
        "algorithm": {"name": f"algorithm.{algorithm}", "arguments": {"mu": more.pop("mu", 0.1)}},
        "dataset": {"name": "dataset.synthetic", "arguments": {"alpha": 1.0}},
        "run": {"rounds": rounds, "work": {"name": "work.steps", "arguments": {"num_steps": 3}}},
        "environment": {"fedjax_sim": "0.1.0", "jax": "0.10.2", "python": "3.11.7", "device": "1 x cpu"},
    }
    fields = {"evaluated": evaluated, "metrics": metrics, "rounds": recorded, "params": {}, "seeds": list(range(seeds)),
              "seconds": 1.5, "compile_seconds": 0.5, "description": description}  # fmt: skip
    return History(**(fields | more))


def diverged():
    history = made(seeds=2, algorithm="fedprox", divergences=[Divergence(1, 7, "model", (), "FedProx")])
    history.metrics["loss"][1, 2:] = np.nan
    history.metrics["loss"][0, 3] = np.inf
    return history


def personal(of_models=("shared", "tuned", "personal"), seeds=2, clients=4, **more):
    """A history of models of clients: client j has 0.1 j with the shared one; the last has no test examples."""
    history = made(seeds=seeds, **more)
    shape = (seeds, len(history.evaluated))
    for number, model in enumerate(of_models):
        values = (
            np.tile(0.1 * np.arange(clients)[::-1] + 0.2 * number, (*shape, 1)) + np.arange(seeds)[:, None, None] / 8
        )
        values[..., -1] = np.nan
        history.metrics["test_client_accuracy" if model == "shared" else f"{model}_client_accuracy"] = values
        for end in ("", "_by_examples", "_worst"):
            history.metrics[f"{model}_accuracy{end}"] = np.nanmean(values, axis=-1)
        for end in ("_losing", "_losing_to_tuned")[: number if model != "shared" else 0]:
            history.metrics[f"{model}_accuracy{end}"] = np.full(shape, 0.25)
    return history


METHODS = {"FedAvg": personal(("shared", "tuned")), HOSTILE: personal(algorithm="ditto"), "plain": made()}

SEVERAL = {
    "fedavg": made(system=True, clients=8),
    "scaffold": made(40, seeds=1, algorithm="scaffold", stops={0: Stop(30, "good enough")}),
    "diverged": diverged(),
    HOSTILE: made(5, seeds=3, every=1, algorithm=HOSTILE, mu={HOSTILE: HOSTILE}),
}


class Elements(html.parser.HTMLParser):
    """The elements of a page in order, each with its attributes, its text and its open parents."""

    VOID = frozenset({"meta", "link", "input", "wbr", "br"})

    def __init__(self, source):
        super().__init__()
        self.found, self.open, self.unbalanced = [], [], []
        self.feed(source)
        self.close()
        self.unbalanced += self.open

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", "in": [one["tag"] for one in self.open], **dict(attributes)}
        self.found.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.found.append({"tag": tag, "text": "", "in": [one["tag"] for one in self.open], **dict(attributes)})

    def handle_endtag(self, tag):
        if not self.open or self.open[-1]["tag"] != tag:
            self.unbalanced.append(tag)
        else:
            self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, *tags):
        return [one for one in self.found if one["tag"] in tags]


@pytest.fixture(scope="module")
def source():
    return page(SEVERAL, title="A <title> & more")


@pytest.fixture(scope="module")
def elements(source):
    return Elements(source)


def data_of(source):
    return json.loads(next(one["text"] for one in Elements(source).all("script") if one.get("id") == "data"))


class TestStructure:
    def test_elements_are_balanced_and_ids_are_unique(self, elements):
        assert elements.unbalanced == []
        ids = [one["id"] for one in elements.found if "id" in one]
        assert len(ids) == len(set(ids))
        for one in elements.found:
            for name in ("aria-labelledby", "for"):
                assert one.get(name, ids[0]) in ids
            if one.get("href", "").startswith("#"):
                assert one["href"][1:] in ids

    def test_landmarks_language_and_headings(self, elements):
        for tag in ("header", "nav", "main", "footer", "h1", "title"):
            assert len(elements.all(tag)) == 1, tag
        assert elements.all("html")[0]["lang"] == "en"
        assert (
            "width=device-width"
            in next(one for one in elements.all("meta") if one.get("name") == "viewport")["content"]
        )
        levels = [int(one["tag"][1]) for one in elements.all("h1", "h2", "h3", "h4")]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
        wanted = ["Final values", "Curves", "Clients", "What differs", "Runs"]
        assert [one["text"] for one in elements.all("h2")] == wanted
        assert elements.all("h1")[0]["text"] == elements.all("title")[0]["text"] == "A <title> & more"

    def test_tables_have_captions_and_scopes(self, elements):
        assert len(elements.all("table")) == len(elements.all("caption")) >= 3 + len(SEVERAL)
        assert {one.get("scope") for one in elements.all("th")} == {"row", "col"}
        regions = [one for one in elements.found if one.get("class") == "scroll"]
        assert all(one["tabindex"] == "0" and one["role"] == "region" and one["aria-label"] for one in regions)
        landmarks = [one["aria-label"] for one in regions] + [one["text"] for one in elements.all("h2")]
        assert len(landmarks) == len(set(landmarks))  # a list of landmarks says each once

    def test_controls_have_labels_and_swatches_are_hidden(self, elements):
        controls = elements.all("input", "select")
        assert len(controls) > 5
        assert all("label" in one["in"] for one in controls)
        assert all(one["aria-hidden"] == "true" for one in elements.all("svg"))

    def test_nothing_is_asked_for_from_anywhere(self, source, elements):
        assert not [one for one in elements.found if {"src", "srcset", "action", "data", "poster"} & one.keys()]
        links = {one["href"] for one in elements.found if "href" in one}
        assert all(link.startswith("#") or link == "data:," for link in links)
        assert set(re.findall(r"https?://[^\"'<\s]*", source)) == {"http://www.w3.org/2000/svg"}
        style = elements.all("style")[0]["text"]
        assert "url(" not in style
        assert "@import" not in style
        policy = next(one for one in elements.all("meta") if "http-equiv" in one)["content"]
        assert policy.startswith("default-src 'none';")
        script = next(one for one in elements.all("script") if "type" not in one)["text"]
        for content in (style, script):
            assert f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in policy
        assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|sendBeacon|import\()", script)
        assert not [one for one in elements.found if "style" in one or any(name.startswith("on") for name in one)]

    def test_without_a_script_it_says_so_and_has_no_dead_buttons(self, elements):
        assert ["curves" in one["text"] for one in elements.all("noscript")] == [True]
        assert [one["id"] for one in elements.all("button")] == ["theme"]
        assert all("hidden" in one for one in elements.all("button", "form"))


class TestContent:
    def test_hostile_names_stay_text(self, source, elements):
        assert len(elements.all("script")) == 2
        assert not elements.all("img")
        shown = HOSTILE.replace("\0", "\ufffd")
        assert any(one["text"].strip() == shown for one in elements.all("th"))
        assert any(one["text"] == shown for one in elements.all("h3"))
        assert data_of(source)["runs"][3]["name"] == shown
        inside = source.partition('id="data">')[2].partition("</script>")[0]
        assert not set("<>&") & set(inside)

    def test_final_values(self, elements):
        table = Elements(page({"a": made(system=True), "d": diverged()}))
        cells = [one["text"] for one in table.all("td") if one.get("class", "").startswith("number")]
        assert cells[:2] == ["0.1452 ± 0.0707", "0.9637 ± 0.0177"]
        assert cells[2:7] == ["0", "1.50", "80 MB", "10", "50.0%"]
        assert cells[7:10] == ["diverged (1 of 2)", "diverged (1 of 2)", "1"]
        assert "2 seeds, 20 rounds each." in table.all("caption")[0]["text"]  # a column where runs differ in it
        heads = [one["text"] for one in Elements(page(SEVERAL)).all("th") if one.get("scope") == "col"]
        assert {"seeds", "rounds"} <= set(heads)
        assert any("fedprox" in one["text"] for one in elements.all("p"))

    def test_a_loss_with_a_penalty_and_without(self):
        decay, plain = made(), made(algorithm="fedprox")
        decay.metrics["data_loss"] = decay.metrics["loss"] - 0.0625
        found = page({"decay": decay, "plain": plain})
        table = Elements(found)
        heads = [one["text"] for one in table.all("th") if one.get("scope") == "col"]
        assert heads[1:3] == ["training loss without penalty", "training loss with penalty"]
        cells = [one["text"] for one in table.all("td") if one.get("class", "").startswith("number")]
        assert cells[:2] == ["0.0827 ± 0.0707", "0.1452 ± 0.0707"]
        assert cells[5:7] == ["0.1452 ± 0.0707"] * 2
        assert "Without penalty: the mean loss of the data" in table.all("caption")[0]["text"]
        checked = [one["value"] for one in table.all("input") if "checked" in one and one["name"] == "curve"]
        drawn = [data_of(found)["records"][int(number)]["label"] for number in checked]
        assert drawn == ["training loss without penalty", "test accuracy"]
        for run in (decay, plain):
            run.metrics["client_loss"] = np.ones((2, 5, 3))
        decay.metrics["client_data_loss"] = np.zeros((2, 5, 3))
        spread = spreads({"decay": decay, "plain": plain})["client_data_loss"]
        assert {name: one.values.mean() for name, one in spread.items()} == {"decay": 0, "plain": 1}
        first = data_of(found)["records"][0]
        assert (first["name"], first["label"]) == ("data_loss", "training loss without penalty")
        assert all(one is not None for one in first["curves"]["round"])
        assert "penalty" not in page({"plain": plain}).partition("<footer>")[0].partition("<main")[2]

    def test_data_are_the_history_s(self):
        history = made(system=True)
        data = data_of(page({"a": history}))
        names = [one["name"] for one in data["records"]]
        assert names[:2] == ["loss", "test_accuracy"]
        assert set(names) == {*history.metrics, *history.rounds}
        loss = data["records"][0]["curves"]["round"][0]
        assert data["places"][loss["x"]] == history.evaluated.tolist()
        np.testing.assert_allclose(loss["y"], history["loss"].mean(0), rtol=1e-5)
        np.testing.assert_allclose(loss["low"], history["loss"].min(0), rtol=1e-5)
        np.testing.assert_allclose(loss["high"], history["loss"].max(0), rtol=1e-5)
        assert [axis["id"] for axis in data["axes"]] == ["round", "virtual_time", "bytes"]
        volume = data["records"][0]["curves"]["bytes"][0]
        assert data["places"][volume["x"]] == history.bytes[0].tolist()
        assert volume["stepped"]

    def test_what_is_not_finite_is_a_gap_and_then_lost(self):
        run = diverged()
        found = curve(run, Record("loss", True, False), "round", 500)
        assert np.isfinite(found.y).tolist() == [True, True, False, False, False]
        assert found.lost == 10
        assert found.as_json()["y"][2:] == [None] * 3
        run.metrics["loss"][:, 4] = 1.0
        assert curve(run, Record("loss", True, False), "round", 500).lost is None
        run.metrics["loss"][:] = np.nan
        assert curve(run, Record("loss", True, False), "round", 500).lost == 0
        assert "diverged" in page({"all": run})

    def test_infinite_differences_and_a_start_without_rounds(self):
        run = made(5, every=5, seeds=1)
        run.rounds["e_lud"][:] = [[1e308, -1e308, 1.0, 2.0, 3.0]]
        found = curve(run, Record("e_lud", False, False), "round", 500)
        assert np.isfinite(found.y).tolist() == [False, False, True, True, True]
        start = made(0)
        start.rounds.clear()
        start.rounds.update(
            useful_steps=np.zeros((2, 0)), computed_steps=np.zeros((2, 0)), cohort_size=np.zeros((2, 0))
        )
        assert len(data_of(page({"start": start}))["records"]) == 2

    def test_quantiles_are_bands_and_matrices_are_named(self):
        run = made()
        run.rounds["update_norms"] = np.sort(np.random.default_rng(0).random((2, 20, 5)), axis=-1)
        run.rounds["cosine_matrix"] = np.zeros((2, 20, 3, 3))
        known, left = records({"a": run})
        assert left == ["cosine_matrix"]
        norms = next(one for one in known if one.name == "update_norms")
        assert norms.quantiles
        found = curve(run, norms, "round", 500)
        np.testing.assert_allclose(found.low, run.rounds["update_norms"].mean(0)[:, 1])
        assert "not drawn here: cosine_matrix" in page({"a": run})

    def test_clients_are_quantiles_and_steps(self):
        run = made(clients=11)
        run.metrics["test_client_accuracy"][0, -1, :3] = np.nan
        found = spreads({"a": run})["test_client_accuracy"]["a"]
        assert (found.clients, found.missing, found.values.size) == (11, 3, 19)
        x, share = found.curve()[:2]
        assert (share[0], share[-1]) == (0, 1)
        assert share[1:][x[1:] == 0.1] == np.mean(found.values <= 0.1)
        run.metrics["test_client_accuracy"][:] = np.nan
        assert "test client accuracy" in page({"a": run})

    def test_personal_models_of_several_methods(self):
        source = page(METHODS)
        found, name = Elements(source), HOSTILE.replace("\0", "\ufffd")
        assert (found.unbalanced, len(found.all("img")), len(found.all("script"))) == ([], 0, 2)
        assert "Personal models" in [one["text"] for one in found.all("h2")]
        table = next(one for one in found.all("div") if one.get("aria-label") == "Models by test accuracy")
        rows = [one["text"] for one in found.all("th") if one["scope"] == "row" and one["text"].split(", ")[-1] in
                MODELS.values()]  # fmt: skip
        assert rows == [f"{one}, {model}" for one, models in (("FedAvg", 2), (name, 3))
                        for model in list(MODELS.values())[:models]]  # fmt: skip
        for row in rows_of(METHODS, "accuracy"):  # the text table's numbers
            assert all(cell in table["text"] for cell in cells_of(row))
        assert "95 % t-interval over 2 seeds" in table["text"]
        said = [one["text"] for one in found.all("p")]
        assert any("row of the tables is one of these models of one run. Clients that a method" in one for one in said)
        assert "No models of clients are compared by 'accuracy' in plain" in said
        legend = next(one for one in found.all("ul") if one.get("aria-label") == "What is drawn")
        assert legend["text"] == f"FedAvg, fine-tuned{name}, personal"
        own = data_of(source)["personal"]
        assert own["ofRuns"]
        assert [one["name"] for one in own["lines"]] == ["FedAvg, fine-tuned", f"{name}, personal"]
        assert own["lines"][1]["style"] == data_of(source)["runs"][1]["style"]
        (panel,) = own["panels"]
        tuned, x = panel["curves"][0], data_of(source)["places"][panel["curves"][0]["x"]]
        values = METHODS["FedAvg"]["tuned_client_accuracy"][:, -1, :-1]
        for place, share, low, high in zip(x, tuned["y"], tuned["low"], tuned["high"], strict=True):
            of_seeds = (values <= place + 1e-6).mean(axis=1)
            np.testing.assert_allclose([share, low, high], [of_seeds.mean(), of_seeds.min(), of_seeds.max()], rtol=1e-5)
        heads = [one["text"] for one in found.all("th") if one.get("scope") == "col"]
        assert "personal accuracy" not in heads  # not once more, with another ±
        assert "tuned client accuracy" in {one["label"] for one in data_of(source)["spreads"]}

    def test_personal_models_of_one_run_client_by_client(self):
        visited = np.ones((2, 5, 4), bool)
        visited[:, -1, 0] = False
        run = personal()
        run.metrics.update(client_visited=visited, unvisited=np.ones((2, 5)))
        source = page({"Ditto": run})
        own, places = data_of(source)["personal"], data_of(source)["places"]
        assert not own["ofRuns"]
        assert [one["name"] for one in own["lines"]] == list(MODELS.values())
        (panel,) = own["panels"]
        for drawn, model in zip(panel["curves"], ("test", "tuned", "personal"), strict=True):
            values = run[f"{model}_client_accuracy"][:, -1, [2, 1]]
            assert places[drawn["x"]] == [1, 2]
            recorded = [values.mean(axis=0), values.min(axis=0), values.max(axis=0)]
            np.testing.assert_allclose([drawn["y"], drawn["low"], drawn["high"]], recorded, rtol=1e-5)
        assert [drawn["shift"] for drawn in panel["curves"]] == [-0.22, 0, 0.22]
        assert "1 clients of Ditto were never visited, and are not in its numbers" in source
        gain = spreads({"a": run})["personal_client_accuracy"]["a"]
        assert (gain.values.size, gain.missing) == (4, 4)
        assert "client_visited" not in spreads({"a": run})
        beside = data_of(page({"plain": made(), "Ditto": run}))["personal"]
        assert (beside["ofRuns"], beside["panels"][0]["label"]) == (False, "test accuracy")
        many = data_of(page({"Ditto": personal(clients=1001)}))
        (shares,) = many["personal"]["panels"]
        assert shares["what"] == "share of the clients"
        assert len(many["places"][shares["curves"][0]["x"]]) == 300

    def test_without_models_to_compare_there_is_no_word_of_them(self):
        for run in (made(clients=4), personal(("personal",)), personal(("shared",))):
            source = page({"a": run})
            assert "Personal models" not in source
            assert "personal" not in data_of(source)
        lost = personal()
        lost.metrics["loss"][:] = np.nan
        source = page({"lost": lost, "too": lost})
        assert data_of(source)["personal"]["panels"] == []
        assert Elements(source).unbalanced == []

    def test_what_differs(self):
        first, second = settings(made(mu=0.1)), settings(made(mu=0.5, seeds=3))
        assert differing([first, second]) == {"algorithm.mu": ["0.1", "0.5"], "run.seeds": ["[0, 1]", "[0, 1, 2]"]}
        some = [{"a": "x"}, {"a": "y", "a.p": "1", "a.q": "2"}, {"a": "z", "a.p": "1", "a.q": "3", "b": "4"}]
        assert list(differing(some)) == ["a", "a.q", "b"]
        bounded = made(mu=0.1)
        bounded.description["bounds"] = {"per_client": 3}
        assert settings(bounded) == first  # nobody chose them
        assert first["work"] == "steps"
        assert first["work.num_steps"] == "3"
        assert "all runs have the same settings" in page({"a": made(), "b": made()})

    def test_descriptions_may_hold_anything(self):
        deep = [{"name": 3, "arguments": {}}]
        for _ in range(80):
            deep = {"name": "x", "arguments": {"inner": deep}}
        strange = (
            {},
            {"run": 3, "environment": [1]},
            {"algorithm": {"opaque": "f"}, "run": {"task": deep}},
            {"dataset": {"array": list(range(9999))}},
            {"run": {"x": {"mapping": {"a": [{}]}}}},
        )
        for description in strange:
            assert Elements(page({"a": made(description=description)})).unbalanced == []

    def test_bad_input(self, tmp_path):
        with pytest.raises(ValueError, match="no histories"):
            page({})
        with pytest.raises(ValueError, match="'a' has no metrics"):
            report({"a": made(metrics={})}, tmp_path / "a.html")
        assert not list(tmp_path.iterdir())


class TestSize:
    def test_thinning_keeps_extremes_ends_and_gaps(self):
        values = np.random.default_rng(0).standard_normal(10_000)
        values[4_000:4_100] = np.nan
        kept = thinned(values, values, 500)
        assert len(kept) <= 500
        assert {0, 3_999, 4_000, 4_099, 4_100, 9_999, np.nanargmin(values), np.nanargmax(values)} <= set(kept.tolist())
        assert (np.diff(kept) > 0).all()
        assert thinned(values[:500], values[:500], 500).tolist() == list(range(500))

    @pytest.mark.slow
    def test_pages_stay_small(self):
        assert len(page({"a": made()})) < 60_000
        many = {f"run {number}": made(2_000, every=1, system=True) for number in range(20)}
        source = page(many)
        assert len(source) < 2_500_000
        assert "are thinned" in source


class TestColours:
    @staticmethod
    def themes(elements):
        style = elements.all("style")[0]["text"]
        blocks = re.findall(r"([^{}]*)\{(color-scheme:[^}]*)\}", style)
        assert [selector.strip().split("{")[-1] for selector, _ in blocks] == [
            ":root", ":root:not([data-theme=light])", ":root[data-theme=dark]"]  # fmt: skip
        light, by_system, by_button = (dict(re.findall(r"--([\w-]+):(#\w{6})", block)) for _, block in blocks)
        assert by_system == by_button
        assert set(light) == set(by_button)
        return light, by_button

    def test_contrast(self, elements):
        for theme in self.themes(elements):
            for behind in ("page", "card"):
                for name in ("text", "soft", "link", "alarm"):
                    assert contrast(theme[name], theme[behind]) >= 4.5, (name, behind)
                for name in (name for name in theme if name.startswith("line-")):
                    assert contrast(theme[name], theme[behind]) >= 3, (name, behind)

    def test_runs_of_one_colour_have_dashes_that_are_not_neighbours(self):
        count = LINES
        of = [int(classes(number).rpartition("-")[2]) for number in range(3 * count)]
        for number in range(2 * count):
            apart = abs(of[number] - of[number + count]) % len(DASHES)
            assert min(apart, len(DASHES) - apart) > 1

    @pytest.mark.parametrize("sight", ["normal", "protanopia", "deuteranopia", "tritanopia"])
    def test_lines_differ_for_colour_blind_readers(self, elements, sight):
        for theme in self.themes(elements):
            seen = [lab(SIGHTS[sight] @ linear(theme[name])) for name in theme if name.startswith("line-")]
            assert len(seen) == 7
            assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 24


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}


def linear(colour):
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG's ratio."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


class TestCommand:
    def test_folders_and_files_become_a_page(self, tmp_path, capsys):
        for name in ("a", "b"):
            made(algorithm=name).save(tmp_path / name / "history.npz")
        out = tmp_path / "out" / "page.html"
        given = [str(tmp_path / "a"), str(tmp_path / "b" / "history.npz")]
        assert cli.main(["report", *given, "--out", str(out), "--title", "Two"]) == 0
        assert f"wrote {out} (" in capsys.readouterr().out
        elements = Elements(out.read_text(encoding="utf-8"))
        assert elements.all("h1")[0]["text"] == "Two"
        assert [one["text"].strip() for one in elements.all("h3")][-2:] == ["a", "b"]

    def test_names_are_short_and_differ(self, tmp_path):
        for path in ("x/a/history.npz", "y/a/history.npz", "y/b.npz", "y/b/history.npz"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        one, other, third, fourth = tmp_path / "x/a", tmp_path / "y/a", tmp_path / "y/b.npz", tmp_path / "y/b"

        def names(*results):
            return list(named(files_of(list(map(str, results)))[0]))

        assert names(one, third) == ["a", "b"]
        assert names(one, other / "history.npz") == ["x/a", "y/a"]
        assert len(names(one, other, third, fourth)) == 4
        with pytest.raises(ValueError, match="given twice"):
            names(one, one / "history.npz")

    def test_exit_status_of_what_is_no_result(self, tmp_path, capsys):
        (tmp_path / "history.npz").write_bytes(b"no")
        assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 1
        assert "is not a result of fedjax_sim" in capsys.readouterr().err
        assert not (tmp_path / "page.html").exists()

    def test_the_files_of_the_page_are_in_the_package(self):
        files = {file.name for file in resources.files("fedjax_sim.reporting.html").iterdir()}
        assert {"page.html", "page.css", "scales.js", "chart.js", "panels.js", "page.js"} <= files


CHROME = os.environ.get("CHROME") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# Each page in a frame of its own, so that its policy for scripts holds; what happened is written into the outer page.
FRAMES = """<!DOCTYPE html><style>iframe { border: 0 }</style><body><script>
const said = {};
const key = (node, name) => node.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
document.addEventListener("load", ({ target: frame }) => { // of every frame, as soon as it is there
  if (frame.tagName !== "IFRAME") return;
  const page = frame.contentDocument;
  const all = (selector) => [...page.querySelectorAll(selector)];
  const lines = () => all("#curves .lines .curve").length;
  const order = () => all("table.sortable tbody th").map((head) => head.textContent.trim());
  const found = { drawn: page.documentElement.dataset.drawn, hacked: page.documentElement.dataset.hacked ?? null,
    trouble: page.getElementById("trouble").textContent, images: all("img").length,
    inside: [page.documentElement.clientWidth, page.documentElement.scrollWidth] };
  found.panels = all("#curves .plot").length;
  found.lines = lines();
  found.bad = all("path").filter((path) => /NaN|Infinity|undefined/.test(path.getAttribute("d"))).length;
  found.crosses = all("#curves .lost").length;
  found.spreads = all("#spreads .curve").length;
  const plot = page.querySelector(".plot");
  key(plot, "Home");
  found.first = plot.getAttribute("aria-valuetext");
  key(plot, "ArrowRight");
  found.second = plot.getAttribute("aria-valuetext");
  const { left, right, top } = plot.querySelector("svg").getBoundingClientRect();
  const point = (share) => plot.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove",
    { clientX: left + share * (right - left), clientY: top + 50, bubbles: true }));
  point(1);
  found.last = plot.getAttribute("aria-valuetext");
  point(0.5);
  found.tip = all(".tip:not([hidden]) tr").length;
  const own = page.querySelector("#own .plot");
  const ownLines = () => all("#own .lines .curve").length;
  if (own) key(own, "Home");
  const marks = () => [all("#own .lines .mark").length, all("#own .bar").length];
  found.own = own && [own.getAttribute("aria-valuetext"), ownLines(), ...marks()];
  const legend = page.querySelector("#legend button");
  legend.click();
  found.ownFewer = ownLines();
  found.pressed = legend.getAttribute("aria-pressed");
  found.fewer = lines();
  legend.click();
  const sort = all("table.sortable thead button")[1];
  sort.click();
  found.falling = order();
  sort.click();
  found.rising = order();
  found.sorted = page.querySelectorAll("thead th")[1].getAttribute("aria-sort");
  const form = page.getElementById("controls");
  form.elements.scale.value = "log";
  for (const box of form.elements.curve) box.checked = true;
  form.dispatchEvent(new frame.contentWindow.Event("change"));
  found.everything = [all("#curves .plot").length, form.elements.curve.length];
  found.badThen = all("path").filter((path) => /NaN|Infinity|undefined/.test(path.getAttribute("d"))).length;
  const colour = () => frame.contentWindow.getComputedStyle(page.body).color;
  const before = colour();
  const button = page.getElementById("theme");
  found.offers = [button.textContent];
  button.click();
  found.themes = [before, colour()];
  found.offers.push(button.textContent);
  const wide = all(".scroll")[0];
  const more = () => page.defaultView.getComputedStyle(wide.querySelector(".more")).display !== "none";
  found.more = [more(), wide.scrollWidth > wide.clientWidth + 3];
  for (const fold of all("details")) fold.open = true;
  found.opened = [page.documentElement.clientWidth, page.documentElement.scrollWidth];
  said[frame.id] = found;
  for (const fold of all("details")) fold.open = false;
  wide.scrollLeft = 0;
  frame.width = 0.7 * frame.width;
  setTimeout(() => {
    found.narrowed = page.getElementById("trouble").textContent;
    document.documentElement.dataset.said = JSON.stringify(said);
  }, 1000);
}, true);
</script>%s</body>"""


def browse(path, tmp_path, query=""):
    """The page's elements after its scripts ran, and what the console said."""
    done = subprocess.run(
        [CHROME, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
         f"{path.as_uri()}{query}"],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return Elements(done.stdout), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROME is None, reason="no browser: install chromium, or name one by CHROME")
class TestBrowser:
    def test_a_file_is_drawn_as_its_address_asks(self, tmp_path):
        report(SEVERAL, tmp_path / "page.html")
        elements, console = browse(
            tmp_path / "page.html", tmp_path, "?theme=dark&axis=virtual_time&scale=log&curves=loss,e_lud,none"
        )
        assert console == []
        root = elements.all("html")[0]
        assert (root["data-drawn"], root["data-theme"]) == ("true", "dark")
        plots = [one for one in elements.found if one.get("role") == "slider"]
        assert [one["aria-label"].partition(":")[0] for one in plots] == [
            "training loss against virtual time (s)", "e-LUD against virtual time (s)",
            "share of the clients against test client accuracy"]  # fmt: skip

    def test_reading_sorting_hiding_and_a_phone(self, tmp_path):
        small = page({"one": made(1, every=1, seeds=1)})
        many = page({f"a rather long name of run {n}": made(30, algorithm=f"a{n}") for n in range(20)})
        frames = {
            "desktop": (1200, page(SEVERAL)),
            "phone": (360, page(SEVERAL)),
            "small": (360, small),
            "many": (360, many),
            "methods": (360, page(METHODS)),
            "ditto": (1200, page({"Ditto": personal()})),
        }
        inner = "".join(
            f'<iframe id="{name}" width="{width}" height="800" srcdoc="{html.escape(source)}"></iframe>'
            for name, (width, source) in frames.items()
        )
        (tmp_path / "frames.html").write_text(FRAMES % inner, encoding="utf-8")
        elements, console = browse(tmp_path / "frames.html", tmp_path)
        assert console == []
        said = json.loads(elements.all("html")[0]["data-said"])
        assert sorted(said) == sorted(frames)
        for name, found in said.items():
            assert (found["drawn"], found["trouble"], found["hacked"], found["images"]) == ("true", "", None, 0), name
            assert (found["bad"], found["badThen"]) == (0, 0), name
            for shown, needed in (found["inside"], found["opened"]):
                assert needed <= shown <= frames[name][0], name
            assert found["everything"][0] == found["everything"][1] > 2
            assert found["themes"][0] != found["themes"][1]
            assert sorted(found["offers"]) == ["Dark colours", "Light colours"]  # the other ones, each time
            assert found["more"][0] == found["more"][1], name
            assert found["tip"] > 0
            assert (found["pressed"], found["sorted"]) == ("false", "ascending")
            assert found["panels"] == 2
            assert found["narrowed"] == "", name
            assert found["fewer"] == found["lines"] - 2
        desktop = said["desktop"]
        assert said["phone"]["more"] == [True, True]
        assert (desktop["lines"], desktop["crosses"], desktop["spreads"]) == (8, 2, 1)
        assert desktop["first"].startswith("round 0: ")
        assert "diverged 2.05" in desktop["first"]
        assert desktop["second"].startswith("round 1: ")
        assert desktop["last"].startswith("round 40: scaffold ")
        assert [found["own"] for name, found in said.items() if name in ("desktop", "many")] == [None, None]
        text, lines, _, bars = said["methods"]["own"]
        assert text.startswith("test accuracy ")
        assert "FedAvg, fine-tuned 0" in text
        assert (lines, said["methods"]["ownFewer"], bars) == (2, 1, 0)
        text, lines, marks, bars = said["ditto"]["own"]
        assert text == "client 1: personal 0.5625; fine-tuned 0.3625; shared 0.1625"
        assert (lines, marks, bars) == (0, 9, 3)
        assert said["small"]["last"].startswith("round 1: one 1")
        assert said["many"]["lines"] == 40
        order = [HOSTILE.replace("\0", "\ufffd"), "fedavg", "scaffold", "diverged"]
        assert desktop["falling"] == order
        assert desktop["rising"] == [*order[2::-1], "diverged"]


def test_ids_of_clients_are_no_quantiles():
    ids = np.tile(np.arange(5), (2, 20, 1))  # five numbers in rising order
    run = made(seeds=2)
    run.rounds.update(client_ids=ids, nonfinite_ids=np.full((2, 20, 4), -1))
    known, left = records({"a": run})
    assert "client_ids" not in {record.name for record in known}
    assert left == ["client_ids"]
