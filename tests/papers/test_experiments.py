"""The experiments' frame: stored runs, what is written, the board; and every experiment at its smoke size."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.cli import main as cli
from fedjax_sim.core.devices import double_precision
from fedjax_sim.papers import catalogue, reproducing, writing
from fedjax_sim.papers.bench import (
    SIZES,
    Bench,
    Claim,
    Effect,
    Outcome,
    Scale,
    Setting,
    Table,
    rounds_in_words,
)

pytestmark = pytest.mark.xdist_group("experiments")  # one worker compiles what they share

matplotlib = pytest.importorskip("matplotlib")

ROOT = pathlib.Path(fjs.__file__).parent / "papers"
RUN: dict[str, Any] = {
    "task": fjs.quadratic(), "rounds": 2, "cohort": fjs.cohort.full(), "work": fjs.local.steps(2),
    "batches": fjs.local.full_batch(),
}  # fmt: skip


def algorithm(rate: float = 0.1) -> fjs.Algorithm:
    return fjs.fedprox(client_optimizer=fjs.optim.sgd(rate), mu=0.5)


def data(seed: int = 0) -> fjs.FederatedDataset:
    return fjs.datasets.quadratics(num_clients=3, dim=2, seed=seed)


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> Bench:
    return Bench("cpu", 2, tmp_path / "runs", show=lambda line: None)


def again(bench: Bench) -> Bench:
    """Another experiment with the same stored runs."""
    return Bench(bench.size, len(bench.seeds), bench._runs, show=lambda line: None)


class TestBench:
    @pytest.mark.slow
    def test_runs_are_what_simulate_and_sweep_return(self, bench: Bench) -> None:
        history = bench.simulate("a", algorithm(), data(), **RUN)
        np.testing.assert_array_equal(history["loss"], fjs.simulate(algorithm(), data(), **RUN, seeds=[0, 1])["loss"])
        space = fjs.sweeps.grid({"mu": [0.0, 0.5]})
        swept = bench.sweep("b", algorithm(), data(), space, **RUN)
        np.testing.assert_allclose(swept.at(1)["loss"], history["loss"], rtol=1e-6)
        assert history.params == {}
        assert bench.recorded == {"a": history, "b": swept}
        [alone] = bench.runs("c", algorithm(), data(), **RUN)
        np.testing.assert_allclose(alone["loss"], history["loss"], rtol=1e-6)
        stored = sorted(bench._runs.iterdir())
        shared = again(bench).sweep("of another figure", algorithm(), data(), space, **RUN)
        np.testing.assert_array_equal(shared["loss"], swept["loss"])
        assert sorted(bench._runs.iterdir()) == stored

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["simulate", pytest.param("sweep", marks=pytest.mark.slow)])
    def test_a_stored_run_is_read_and_another_one_is_not(self, bench: Bench, how: str, monkeypatch: Any) -> None:
        def run(bench: Bench, label: str, rate: float = 0.1, seed: int = 0, **changed: Any) -> np.ndarray:
            if how == "simulate":
                return bench.simulate(label, algorithm(rate), data(seed), **RUN | changed)["loss"]
            space = fjs.sweeps.grid({"mu": [0.0, 0.5]})
            return bench.sweep(label, algorithm(rate), data(seed), space, **RUN | changed)["loss"]

        first = run(bench, "first")
        stored = sorted(bench._runs.iterdir())
        np.testing.assert_array_equal(run(again(bench), "of another figure"), first)
        assert sorted(bench._runs.iterdir()) == stored, "the same run, whatever it is called, is stored once"
        others = [
            lambda: run(again(bench), "x", rate=0.2),
            lambda: run(again(bench), "x", seed=1),
            lambda: run(again(bench), "x", rounds=3),
            lambda: run(again(bench), "x", task=fjs.quadratic(start=0.5)),
            lambda: run(again(bench), "x", seeds=[1, 0]),
            lambda: run(again(bench), "x", initial_params=np.ones(2, np.float32)),
            lambda: run(again(bench), "x", keep_params=True),
        ]
        for count, other in enumerate(others, start=1):
            other()
            assert len(list(bench._runs.iterdir())) == len(stored) + count
        monkeypatch.setattr("fedjax_sim.papers.bench.__version__", "99")
        run(again(bench), "x")
        assert len(list(bench._runs.iterdir())) == len(stored) + len(others) + 1
        monkeypatch.setattr("fedjax_sim.papers.bench.generator", lambda: {"jax_random_seed_offset": 1})
        run(again(bench), "x")
        assert len(list(bench._runs.iterdir())) == len(stored) + len(others) + 2

    @pytest.mark.slow
    def test_runs_with_functions_are_not_shared_between_labels(self, bench: Bench) -> None:
        def measure(scale: float) -> Callable[..., dict[str, Any]]:
            return lambda params, dataset: {"size": scale * (params**2).sum()}

        whole = measure(1.0)
        one = bench.simulate("scale=1.0", algorithm(), data(), **RUN, evaluate=whole)
        two = bench.simulate("scale=1.5", algorithm(), data(), **RUN, evaluate=measure(1.5))
        np.testing.assert_allclose(two["size"], 1.5 * one["size"], rtol=1e-6)
        other = again(bench).simulate("scale=1.0", algorithm(0.2), data(), **RUN, evaluate=whole)
        assert (other["size"] != one["size"]).any()

    def test_a_label_is_used_once(self, bench: Bench) -> None:
        bench.simulate("a", algorithm(), data(), **RUN)
        with pytest.raises(ValueError, match="label 'a'"):
            bench.simulate("a", algorithm(0.2), data(), **RUN)

    def test_a_smoke_size_is_small(self, tmp_path: pathlib.Path) -> None:
        smoke = Bench("smoke", 1, tmp_path, show=lambda line: None)
        with pytest.raises(ValueError, match="at most 3 rounds and 8 clients, not 4 and 3"):
            smoke.simulate("a", algorithm(), data(), **RUN | {"rounds": 4})
        with pytest.raises(ValueError, match="not 2 and 9"):
            smoke.simulate("a", algorithm(), fjs.datasets.quadratics(num_clients=9, dim=2, seed=0), **RUN)

    def test_real_data_or_the_nearest(self, tmp_path: pathlib.Path) -> None:
        def missing() -> fjs.FederatedDataset:
            raise FileNotFoundError("mnist: not in /data")

        said: list[str] = []
        loads = {size: Bench(size, 1, tmp_path, show=said.append) for size in reproducing.SIZES}
        real, nearest = data(1), data(2)
        for size, expected in {"smoke": nearest, "cpu": real, "paper": real}.items():
            assert loads[size].load("MNIST", lambda: real, lambda: nearest, "digits") is expected  # type: ignore[index]
        assert loads["cpu"].load("EMNIST", missing, lambda: nearest, "digits") is nearest
        assert loads["cpu"].data == ["MNIST (real)", "digits in place of EMNIST: mnist: not in /data"]
        with pytest.raises(FileNotFoundError, match="not in /data"):
            loads["paper"].load("EMNIST", missing, lambda: nearest, "digits")
        assert said[0] == "data: digits in place of MNIST: the smoke size reads no files"

    def test_a_model_at_the_smoke_size_is_an_mlp(self, bench: Bench, tmp_path: pathlib.Path) -> None:
        real = fjs.models.CifarCNN(10)
        assert bench.model(real, 10) is real
        assert isinstance(Bench("smoke", 1, tmp_path).model(real, 10), fjs.models.MLP)

    @pytest.mark.parametrize(
        ("size", "here"), [("smoke", ("2", "5", "100")), ("cpu", ("7", "100", "100")), ("paper", ("7", "100", "100"))]
    )
    def test_a_setting_is_the_paper_s_but_for_what_is_said(
        self, size: Any, here: tuple[str, ...], tmp_path: pathlib.Path
    ) -> None:
        row = Bench(size, 1, tmp_path).setting
        rows = row("rounds", "9", 7, smoke=2), row("clients", "100", smoke=5), row("images", "100")
        assert tuple(one.here for one in rows) == here
        assert row("clients", "100", cpu=0).here == ("0" if size == "cpu" else "100")

    def test_double_precision(self) -> None:
        with double_precision():
            assert fjs.datasets.quadratics(num_clients=2, dim=2, seed=0).examples["e"].dtype == np.float64
        assert fjs.datasets.quadratics(num_clients=2, dim=2, seed=0).examples["e"].dtype == np.float32

    def test_rounds_in_words(self) -> None:
        assert (rounds_in_words(77.0, 1000), rounds_in_words(math.inf, 1000)) == ("77", "1000+")


def perform(bench: Bench) -> Outcome:
    """A small experiment with everything that an experiment may have, but for a sweep at the size smoke."""
    from matplotlib.figure import Figure

    history = bench.simulate("fedprox", algorithm(), data(), **RUN)
    if bench.size != "smoke":
        bench.sweep("mu", algorithm(), data(), fjs.sweeps.grid({"mu": [0.0, 1.0]}), **RUN)
    figure = Figure()
    figure.subplots().plot([1, 2])
    loss = float(history.final("loss").mean())
    return Outcome(
        [Setting("clients", "30", "3"), Setting("rounds", "2", "2")],
        [Claim("it falls", bool(loss < 1), {"loss": loss}),
         Claim("it rises", np.False_, {"ratio": np.float64(np.nan)}),  # type: ignore[arg-type]
         Claim("it flies", None, {}, note="no wings"), Claim("it adds up", True, {}, own=True, seeds=0)],
        {"figure9": figure},
        [Table("Losses", ("method", "paper", "ours"), [("a|b", None, 1234.5), ("b", 0.1234, math.inf)], "Note.")],
        {"closed form": np.arange(3.0)},
        [Effect("fall", "points", 3.0, [1.0, 2.0]), Effect("rise", "ratio", None, [1.0, math.inf])],
        Scale(0.5, 0.2, "a parabola"),
    )  # fmt: skip


def fail(bench: Bench) -> Outcome:
    raise RuntimeError("it broke")


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of two experiments, of which one fails."""
    monkeypatch.setattr(
        reproducing,
        "CATALOGUE",
        {"good": catalogue.Entry("", 2, 3, "works"), "bad": catalogue.Entry("", 2, 3, "x")},
    )
    monkeypatch.setattr(catalogue, "CATALOGUE", reproducing.CATALOGUE)
    monkeypatch.setattr(reproducing, "load", {"good": perform, "bad": fail}.__getitem__)
    monkeypatch.setattr(reproducing, "source", {"good": "Paper 2020, Figure 9", "bad": "Paper 2020"}.__getitem__)


@pytest.mark.usefixtures("toys")
class TestReproduce:
    @pytest.mark.slow
    def test_what_is_written(self, tmp_path: pathlib.Path) -> None:
        said: list[str] = []
        report = reproducing.reproduce("good", size="cpu", out=tmp_path, show=said.append)
        folder = tmp_path / "cpu" / "good"
        names = {"claims.json", "results.json", "tables.md", "figure9.png", "figure9.svg"}
        assert {file.name for file in folder.iterdir()} == names
        assert writing.read(folder) == report
        assert (report.seeds, report.counts()) == (2, (1, 1, 1))
        claims = json.loads((folder / "claims.json").read_text())
        assert [(claim["statement"], claim["held"], claim["seeds"]) for claim in claims["claims"]] == [
            ("it falls", True, 2), ("it rises", False, 2), ("it flies", None, 2), ("it adds up", True, 0)
        ]  # fmt: skip
        assert claims["claims"][1]["numbers"] == {"ratio": "nan"}
        assert [effect.what for effect in report.effects] == ["fall"], "an effect that is not finite is left out"
        raw = json.loads((folder / "results.json").read_text())
        assert np.shape(raw["runs"]["fedprox"]["metrics"]["loss"]) == (2, 3)
        assert raw["runs"]["mu"]["axes"] == ["mu", "seed"]
        assert np.shape(raw["runs"]["mu"]["metrics"]["loss"]) == (2, 2, 3)
        assert raw["numbers"] == {"closed form": [0.0, 1.0, 2.0]}
        text = (folder / "tables.md").read_text()
        for line in (
            "| clients | 30 | 3 |", "| a\\|b |  | 1,234 |", "| b | 0.123 | inf |", "| method | paper | ours |",
            "| it flies (no wings) | not testable |  |",
            "| it rises | **did not hold**: unexplained |", "![figure9](figure9.png)", "Note.",
        ):  # fmt: skip
            assert line in text
        assert "Figure 9. Size `cpu` (examples 50 %, rounds 20 %; a parabola), 2 seeds; fedjax_sim" in text
        writing.redraw(folder)
        assert (folder / "tables.md").read_text() == text, "its parts are the same"
        assert "  clients  3; the paper: 30" in said
        assert "  did NOT hold  it rises" in said

    @pytest.mark.slow
    def test_where_is_where_the_runs_were_computed_not_where_they_are_read(self, tmp_path: pathlib.Path) -> None:
        here = reproducing.reproduce("good", out=tmp_path, show=str).where
        version, jax_version, device = here.split(", ")
        [stored] = (tmp_path / "cpu" / "runs").glob("run-*.npz")
        history = fjs.History.load(stored)
        there = history.description["environment"] | {"device": "8 x TPU v5"}
        dataclasses.replace(history, description=history.description | {"environment": there}).save(stored)
        where = reproducing.reproduce("good", out=tmp_path, show=str).where
        assert where == f"{version}, {jax_version}, 8 x TPU v5: 1 run; {jax_version}, {device}: 1 run"

    def test_all_goes_on_where_it_was_and_ends_well_whatever_the_claims(self, tmp_path: pathlib.Path) -> None:
        said: list[str] = []

        def run(**changed: Any) -> list[str]:
            said.clear()
            lines = reproducing.reproduce_all(
                ["good", "bad"], **{"size": "smoke", "out": tmp_path, "show": said.append} | changed
            )
            assert [(line.name, line.report is None, line.error) for line in lines] == [
                ("good", False, ""), ("bad", True, "RuntimeError: it broke")
            ]  # fmt: skip
            return said

        assert "good: complete already" not in run()
        assert any("Traceback" in line for line in said)
        board = (tmp_path / "smoke" / "board.md").read_text()
        assert "| good | smoke |  | 1 | 1 | 1 | 1 of 1 | 1 |" in board
        assert "| bad | error: RuntimeError: it broke | | | | | | | |" in board
        assert "- did NOT hold  it rises" in board
        assert "good: complete already" in run()
        assert "good: complete already" not in run(seeds=2)
        assert "good: complete already" not in run(fresh=True)
        assert "good: complete already" in run()
        (tmp_path / "smoke" / "runs").rename(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "run-1.npz").write_bytes(b"")
        (tmp_path / "smoke" / "runs").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "smoke" / "good" / ".fedjax_sim-0123456789abcdef.tmp").write_bytes(b"hal")
        assert "good: complete already" not in run(fresh=True)
        assert not (tmp_path / "elsewhere" / "run-1.npz").exists()  # runs that are linked to are forgotten too
        assert not list((tmp_path / "smoke" / "good").glob(".*"))
        (tmp_path / "smoke" / "good" / "claims.json").write_text("{")
        assert "good: complete already" not in run()

    @pytest.mark.slow
    def test_what_other_data_took_the_place_of_is_done_again(self, tmp_path: pathlib.Path) -> None:
        """The files may be there by now; runs that are the same are stored."""
        said: list[str] = []
        head = tmp_path / "cpu" / "good" / "claims.json"
        left_out = ["MNIST (real)", "Sent140 left out: its files are not here"]
        for data, again in ((left_out, False), (["MNIST (real)", "digits in place of EMNIST: no files"], True)):
            reproducing.reproduce("good", out=tmp_path, show=str)
            head.write_text(json.dumps(json.loads(head.read_text()) | {"data": data}))
            said.clear()
            reproducing.reproduce_all(["good"], out=tmp_path, show=said.append)
            assert again != any(line.startswith("good: complete already") for line in said)

    def test_bad_input(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(ValueError, match="no experiment is called 'gold': did you mean 'good'"):
            reproducing.reproduce("gold", out=tmp_path)
        with pytest.raises(ValueError, match="size='large': it must be one of 'smoke', 'cpu', 'paper'"):
            reproducing.reproduce("good", size="large", out=tmp_path)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seeds"):
            reproducing.reproduce("good", seeds=0, out=tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_the_command(self, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = ["--size", "smoke", "--out", str(tmp_path)]
        assert cli.main(["reproduce", "good", *out]) == 0
        assert cli.main(["reproduce", "--all", *out]) == 1
        printed = capsys.readouterr()
        assert "| **all** | | | 1 | 1 | 1 | 1 of 1 | |" in printed.out
        assert "ended with an error: bad" in printed.err
        assert cli.main(["reproduce", "good", "gold", *out]) == 2
        assert "did you mean 'good'" in capsys.readouterr().err
        assert cli.main(["reproduce", *out]) == 2
        assert cli.main(["reproduce", "good", "--seeds", "0", *out]) == 2
        capsys.readouterr()
        assert cli.main(["reproduce", "--list"]) == 0
        assert capsys.readouterr().out == "good  works\nbad   x\n"


def test_the_hours_are_said_before_a_run() -> None:
    said = reproducing.cost(["liconv-fig3", "fednova-fig2"], "cpu")
    minutes = catalogue.CATALOGUE["liconv-fig3"].minutes + catalogue.CATALOGUE["fednova-fig2"].minutes
    where = "on a core or two beside other work, shared runs counted once"
    assert said == f"2 experiments at size cpu: {minutes / 60:.1f} hours {where}"
    alone, both = (reproducing.cost(names, "cpu") for names in (["fedprox-fig2"], ["fedprox-fig2", "fedprox-fig6"]))
    assert alone.split()[5] == both.split()[5], "they are drawn from the same runs"
    assert {entry.of for entry in catalogue.CATALOGUE.values()} - {""} < catalogue.CATALOGUE.keys()
    said = reproducing.cost(["liconv-fig3", "fedaware-table2"], "paper")
    assert said.endswith("for 1 of them, shared runs counted once; not measured, for most want a GPU: fedaware-table2")


class TestCatalogue:
    def test_every_experiment_is_where_it_says(self) -> None:
        for name, entry in catalogue.CATALOGUE.items():
            assert callable(catalogue.load(name))
            assert all(entry.seeds(size) > 0 for size in SIZES), name
            assert catalogue.source(name).startswith(catalogue.SOURCES[name.partition("-")[0]])
            assert entry.title
        found = set()
        for file in ROOT.glob("*/*.py"):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(file.read_text()).body:
                name = node.name if isinstance(node, ast.FunctionDef) else ""
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    name = node.targets[0].id
                if name.startswith("perform"):
                    found.add((module, name))
        performs = [catalogue.load(name) for name in catalogue.CATALOGUE]
        assert len(set(performs)) == len(performs) == len(found)
        assert {module for module, _ in found} == {entry.module for entry in catalogue.CATALOGUE.values()}


@pytest.fixture(scope="session")
def smoke_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Shared, so that figures which are drawn from the same runs share them."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.smoke
@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_every_experiment_works(name: str, smoke_folder: pathlib.Path) -> None:
    report = reproducing.reproduce(name, size="smoke", out=smoke_folder)
    folder = smoke_folder / "smoke" / name
    assert report.claims or report.see in catalogue.CATALOGUE
    assert report.settings
    assert all(claim.held in (True, False, None) and claim.statement for claim in report.claims)
    assert all(type(claim.held) in (bool, type(None)) for claim in report.claims), "numpy's bool is no JSON"
    assert report.figures or "table" in name
    for figure in report.figures:
        assert (folder / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (folder / f"{figure}.svg").read_bytes()[:1000]
    assert writing.read(folder) == report
    assert json.loads((folder / "results.json").read_text())["runs"] or "thm" in name or name == "fednova-fig4"
    text = (folder / "tables.md").read_text()
    for claim in report.claims:
        assert claim.statement.replace("|", "\\|") in text


def test_what_is_forgotten_is_not_what_a_link_leads_to(tmp_path: pathlib.Path) -> None:
    elsewhere, runs = tmp_path / "disk", tmp_path / "runs"
    for folder in (elsewhere, runs / "one"):
        folder.mkdir(parents=True)
        (folder / "history.npz").write_bytes(b"1")
    (runs / "linked").symlink_to(elsewhere)
    reproducing._forget(tmp_path)
    assert list(runs.iterdir()) == []
    assert (elsewhere / "history.npz").exists()
