"""The board's verdicts and figures, and what becomes of a claim."""

import dataclasses
import io
import math
import pathlib

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from benchmarks.experiments import __main__ as experiments
from benchmarks.experiments.figures import forest, heat_map
from fedjax_sim.papers import overview, writing
from fedjax_sim.papers.bench import Claim, Effect, Scale
from fedjax_sim.papers.overview import Line
from fedjax_sim.papers.writing import Report
from fedjax_sim.reporting import Panel, panels
from fedjax_sim.reporting.plots import COLOURS
from tests.reporting.test_reporting import run


def claim(held, **about):
    return Claim("a statement", held, {}, **{"seeds": 5, "quote": "said", **about})


def line(name, *claims, effects=(), see=""):
    report = Report(name, "what", "somebody", "cpu", 5, "0", 1.0, 1.0, "here", [], [], list(claims), [], list(effects),
                    see=see)  # fmt: skip
    return Line(name, report, "")


def test_what_becomes_of_a_claim():
    assert claim(True).standing == "held"
    assert claim(True, seeds=4).standing == "held on few seeds"
    assert claim(True, seeds=0).standing == "held", "nothing is random"
    assert claim(False, why="other data").standing == "other data"
    assert claim(None, why="other data").standing == "not testable"


def test_verdicts():
    lines = [
        line(
            "fednova-fig2",
            claim(True, central=True),
            claim(False, why="too small"),
            claim(False, own=True),
            claim(True, identity=True),
        ),
        line("fednova-fig4", see="fednova-fig2"),
        line("liconv-fig1", claim(True, central=True), claim(False, central=True)),
        line("liconv-fig3", claim(True, quote="")),
        line("scaffold-fig3", claim(False, central=True, scale=Scale(0.05), seeds=0), claim(None)),
        line("fedaware-fig1", claim(None, central=True)),
        line("fedprox-fig1", claim(True, quote="", seeds=2)),
        Line("fedprox-fig2", None, "RuntimeError: it broke"),
    ]
    found = overview.verdicts(lines)
    assert found[0] == (
        "- **Wang et al. 2020 (FedNova): holds.** 1 central claim, at the paper's size: 1 held; "
        "all 2: 1 held, 1 did not hold: too small."
    )
    assert ": holds in part so far: 1 of 2 experiments were judged.** 2 central claims" in found[1]
    assert (
        ": does not hold.** 1 central claim, at examples 5 %, rounds 100 %: 1 did not hold: unexplained; "
        "all 2: 1 did not hold: unexplained, 1 not testable." in found[2]
    )
    assert ": not told: not testable at this size.** 1 central" in found[3]
    assert ": not judged yet.** 0 central claims; all 1: 1 held on few seeds." in found[4]
    assert found[5:] == ["", "Of the 5 central claims 4 rest on 5 seeds, in 1 nothing is random."]
    board = overview.board(lines)
    assert "| fednova-fig2 | cpu | all | 1 | 1 | 0 | 1 of 2 | 5 | 1 |" in board
    assert "| scaffold-fig3 | cpu | examples 5 to 100 %, rounds 100 % | 0 | 1 | 1 |" in board
    assert "| fednova-fig4 | cpu | all | see fednova-fig2 | |  |  | 5 | 1 |" in board
    assert "| fedprox-fig2 | error: RuntimeError: it broke | | | | | | | |" in board


def test_a_smoke_is_no_share_of_the_paper_and_has_no_verdict():
    smoke = dataclasses.replace(line("fednova-fig2", claim(False, central=True)).report, size="smoke", seeds=1)
    assert writing.in_short(smoke) == "Size `smoke`, 1 seed"
    board = overview.board([Line("fednova-fig2", smoke, "")])
    assert "mean nothing at this size" in board
    assert "Wang et al." not in board
    assert "| fednova-fig2 | smoke |  | 0 | 1 | 0 |" in board


@pytest.mark.parametrize(
    ("reasons", "word"),
    [
        (["few seeds", "few seeds", "too small"], "not told: few seeds"),
        (["few seeds", "too small", "other data"], "does not hold"),
        (["few seeds", "too small"], "does not hold"),
        ([None, None, "few seeds", "fragile"], "not told: not testable at this size"),
        (["few seeds", "held"], "holds in part"),
        ([None, "held"], "holds in part"),
        (["held", "held"], "holds"),
    ],
)
def test_the_word_of_a_verdict(reasons, word):
    held = {None: None, "held": True}
    claims = [claim(held.get(why, False), central=True, why=why) for why in reasons]
    [verdict, *_] = overview.verdicts([line("fednova-fig2", *claims)])
    assert f": {word}.**" in verdict
    assert word.partition(":")[0] in overview.VERDICTS


def test_the_words_of_verdicts_are_those_of_the_page():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "reproductions.md").read_text(encoding="utf-8")
    for word, meaning in overview.VERDICTS.items():
        assert f"| {word} | {meaning} |" in page


def test_shares_of_the_paper_s_size():
    assert writing.share([Scale(), Scale()]) == "all"
    assert writing.share([Scale(0.048077), Scale(0.008597)]) == "examples 0.9 to 4.8 %, rounds 100 %"
    some = [Scale(0.2, 0.004, "an MLP"), Scale()]
    assert writing.share(some) == "examples 20 to 100 %, rounds 0.4 to 100 %; an MLP or its model"
    assert writing.share(some, short=True) == "examples 20 to 100 %, rounds 0.4 to 100 %, partly a smaller model"


def test_intervals_of_effects():
    middle, low, high = overview.interval(Effect("a", "points", 1.0, [1.0, 3.0]))
    assert (middle, low, high) == pytest.approx((2, 2 - 12.7062, 2 + 12.7062), rel=1e-5)
    middle, low, high = overview.interval(Effect("a", "ratio", 1.0, [1.0, 4.0]))
    assert middle == pytest.approx(2)
    assert low * high == pytest.approx(4), "symmetric on the log scale"
    assert math.isnan(overview.interval(Effect("a", "points", None, [1.0]))[1])


def test_the_figures_show_every_claim_and_effect():
    lines = [
        line("fednova-fig2", claim(True, central=True), claim(None), claim(True, own=True),
             effects=[Effect("gap", "points", 6.0, [5.0, 7.0]), Effect("speed", "ratio", None, [2.0])]),
        line("liconv-fig1", claim(False, why="few seeds")),
    ]  # fmt: skip
    [ax] = heat_map(lines).axes
    assert len(ax.patches) == 3, "our own checks are no claims of the paper"
    assert [text.get_text() for text in ax.get_yticklabels()] == ["fednova-fig2", "liconv-fig1"]
    points, ratios = forest(lines).axes
    assert [text.get_text() for text in points.get_yticklabels()] == ["fednova-fig2", "   gap (2)"]
    assert ratios.get_xscale() == "log"
    drawn = [curve.get_xdata() for curve in points.lines]
    assert any(np.allclose(xs, [6.0]) for xs in drawn), "the paper's"
    assert any(np.allclose(xs, [6 - 12.7062, 6 + 12.7062], rtol=1e-4) for xs in drawn), "our interval"


@pytest.mark.slow
def test_a_kept_figure_has_the_colours_of_its_lines(tmp_path):
    """One of nine panels has lines that the others do not."""
    from PIL import Image

    curves = {name: run(np.geomspace(2, 0.1 + number / 10, 40)[None] + [[0.0], [0.1]])
              for number, name in enumerate(map(str, range(len(COLOURS))))}  # fmt: skip
    two = Panel({name: curves[name] for name in "01"})
    panels([[two] * 3, [two] * 3, [two, two, Panel(curves)]]).savefig(tmp_path / "figure.png", dpi=150)
    drawn = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB")).astype(int)
    kept = np.asarray(Image.open(io.BytesIO(experiments._fewer_colours(tmp_path / "figure.png"))).convert("RGB"))
    for colour in COLOURS:
        exact = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        assert abs(kept[(drawn == exact).all(axis=-1)] - exact).max() <= 3, colour
