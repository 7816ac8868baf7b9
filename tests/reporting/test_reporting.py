"""Tables, figures, the progress bar and files: what a user reads of a run."""

import dataclasses
import errno
import fcntl
import io
import os
import pathlib
import stat
import sys
from typing import Any

import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import datasets, reporting
from fedjax_sim.core.files import check_replaceable, check_writable, remove_left_overs
from fedjax_sim.reporting import (
    Panel,
    comparison,
    curves,
    distributions,
    label_heatmap,
    panels,
    progress_bar,
    results_table,
    size_histogram,
    write_atomically,
)
from fedjax_sim.reporting.plots import line_style, save_figure
from fedjax_sim.reporting.recorded import measured
from tests.killing import without_permission
from tests.processes import printed

PNG = b"\x89PNG\r\n\x1a\n"


@dataclasses.dataclass
class Run:
    """A record with the members that reports read."""

    evaluated: np.ndarray
    metrics: dict[str, np.ndarray]
    seconds: float = 12.345
    useful_ratio: float = 0.975

    def __getitem__(self, name: str) -> np.ndarray:
        return self.metrics[name]

    def rounds_to(self, name: str, target: float) -> np.ndarray:
        reached = self[name] <= target if name.endswith("loss") else self[name] >= target
        return np.where(reached.any(axis=1), self.evaluated[reached.argmax(axis=1)], np.inf)


def run(loss: Any, **metrics: Any) -> Run:
    """Rows are seeds, columns evaluations every ten rounds."""
    arrays = {name: np.array(values, dtype=np.float32) for name, values in {"loss": loss, **metrics}.items()}
    return Run(10 * np.arange(arrays["loss"].shape[1]), arrays)


TWO = {
    "fedavg": run([[2.0, 0.5], [2.0, 0.7]], accuracy=[[0.1, 0.8], [0.1, 0.6]], test_accuracy=[[0.1, 0.7]] * 2),
    "scaffold": run([[2.0, 0.25], [2.0, 0.25]], accuracy=[[0.1, 0.9]] * 2, test_accuracy=[[0.1, 0.9], [0.1, 0.7]]),
}


class TestTable:
    def test_rows_are_methods_and_columns_are_aligned(self):
        lines = results_table(TWO).split("\n")
        assert lines[0].split("  ")[0] == "method"
        assert len({len(line) for line in lines[:4]}) == 1
        assert lines[2].split() == ["fedavg", "0.6000", "±", "0.1414", "0.7000", "±", "0.0000", "12.35", "97.5%"]
        assert lines[3].split() == ["scaffold", "0.2500", "±", "0.0000", "0.8000", "±", "0.1414", "12.35", "97.5%"]
        assert lines[4] == ""
        assert "over 2 seeds" in lines[-1]

    def test_rounds_to_the_target_are_a_median_or_a_dash(self):
        lines = results_table(TWO, target=0.65).split("\n")
        assert "rounds to 0.65 test accuracy" in lines[0]
        assert lines[2].split()[7] == "10"
        lines = results_table(TWO, target=0.8).split("\n")
        assert lines[2].split()[7] == lines[3].split()[7] == "–"  # no seed; one of two
        three = run([[2, 1]] * 3, test_accuracy=[[0.9, 0.9], [0.1, 0.9], [0.1, 0.1]])
        assert " 10 " in results_table({"a": three}, target=0.8).split("\n")[2]
        two = run([[2, 1, 1]] * 2, test_accuracy=[[0.1, 0.9, 0.9], [0.1, 0.1, 0.9]])
        two.evaluated = np.array([0, 2, 3])
        assert results_table({"a": two}, target=0.8).split("\n")[2].split()[7] == "2.5"  # of 2 and 3

    def test_a_target_without_accuracies_is_one_of_the_loss(self):
        table = results_table({"a": run([[2.0, 0.5]])}, target=1.0)
        assert "rounds to 1 training loss" in table
        assert table.split("\n")[2].split() == ["a", "0.5000", "10", "12.35", "97.5%"]

    def test_one_seed_has_no_deviation(self):
        table = results_table({"a": run([[2.0, 0.5]], accuracy=[[0.1, 0.8]])})
        assert "±" not in table
        assert "training accuracy" in table
        assert table.endswith("one seed; seconds: all seeds, without compilation")

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_a_loss_that_is_not_finite_is_not_averaged(self, bad):
        table = results_table({
            "some": run([[2, bad], [2, 0.5], [2, 0.7]]),
            "all": run([[2, bad]] * 2),
            "back": run([[bad, 1.0]] * 2),
        })  # fmt: skip
        lines = table.split("\n")
        assert "diverged (1 of 3)" in lines[2]
        assert lines[3].split()[:2] == ["all", "diverged"]
        assert lines[4].split()[:4] == ["back", "1.0000", "±", "0.0000"]
        assert "nan" not in table
        assert "inf" not in table
        assert "over 2 to 3 seeds" in table

    def test_a_score_that_is_not_defined_is_no_divergence(self):
        scores = {"test_roc_auc": [[np.nan] * 2] * 2}  # of examples of one class
        runs = {"sound": run([[2.0, 1.0]] * 2, **scores), "lost": run([[2.0, np.nan], [2.0, 1.0]], **scores)}
        lines = results_table(runs, metrics=["test_roc_auc"]).split("\n")
        assert lines[2].split()[:2] == ["sound", "–"]
        assert lines[3].split()[:2] == ["lost", "diverged"]

    def test_a_model_that_diverged_has_no_accuracy(self):
        argmax_of_nan = run([[2, np.nan], [2, 0.5]], test_accuracy=[[0.1, 0.9], [0.1, 0.7]])
        lines = results_table({"a": argmax_of_nan}, target=0.8).split("\n")
        assert lines[2].count("diverged (1 of 2)") == 2
        assert "–" in lines[2]  # the target was not reached by a model
        only_test = run([[2, 0.1]], test_loss=[[2, np.inf]], test_accuracy=[[0.1, 0.7]])
        assert results_table({"a": only_test}).split("\n")[2].split()[:3] == ["a", "0.1000", "diverged"]

    def test_numbers_of_a_column_have_one_form(self):
        table = results_table({"a": run([[1.0, 2e-9]]), "b": run([[1.0, 0.5]])})
        assert "2.000e-09" in table
        assert "5.000e-01" in table
        table = results_table({"a": run([[1.0, 2345.678]]), "b": run([[1.0, 0.0125]])})
        assert "2.346e+03" in table
        assert "1.250e-02" in table  # not 0.0
        table = results_table({"a": run([[1.0, 12345.678]]), "b": run([[1.0, 1.5]])})
        assert "12345.7" in table
        assert " 1.5 " in table
        table = results_table({"a": run([[1.0, 12345.678]]), "b": run([[1.0, 0.15]]), "c": run([[1.0, 0.19]])})
        assert "1.500e-01" in table  # not 0.2, as the other one
        assert "1.900e-01" in table

    def test_a_metric_that_one_method_lacks_is_a_dash(self):
        lines = results_table({"a": run([[1, 1]], accuracy=[[0, 1]]), "b": run([[1, 1]])}, target=0.5).split("\n")
        assert lines[3].split() == ["b", "1.0000", "–", "–", "12.35", "97.5%"]

    def test_other_columns_and_intervals(self):
        runs = {"a": run([[1.0, 0.3], [1.0, 0.5]], mine=[[0.0, 1.0], [0.0, 3.0]]), "b": run([[1.0, 0.4], [1.0, 0.4]])}
        header, _, a, b, *rest = results_table(runs, metrics=["mine", "loss"], band="ci95").splitlines()
        assert header.split()[:4] == ["method", "mine", "training", "loss"]
        assert a.split()[1:4] == ["2.0000", "±", "12.7062"]  # t of one degree of freedom, 12.706, times 1
        assert b.split()[1] == "–"
        assert rest[-1].startswith("mean ± half of the 95 % t-interval over 2 seeds")
        assert "2.0000 ± 1.0000" in results_table(runs, metrics=["mine"], band="sem")
        with pytest.raises(TypeError, match="give a list"):
            results_table(runs, metrics="mine")
        with pytest.raises(ValueError, match="did you mean 'ci95'"):
            results_table(runs, band="ci")
        each = run([[1.0, 0.3]], of_each=[[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]])
        with pytest.raises(ValueError, match=r"'of_each' has shape \(1, 2, 3\)"):
            results_table(runs | {"c": each}, metrics=["of_each"])
        assert results_table(runs, metrics=iter(["loss"])) == results_table(runs, metrics=["loss"])

    def test_markdown(self):
        table = results_table({"a|b": run([[2.0, 0.5]])}, form="markdown").split("\n")
        assert table[0] == "| method | training loss | seconds | useful steps |"
        assert table[1] == "| --- | ---: | ---: | ---: |"
        assert table[2] == r"| a\|b | 0.5000 | 12.35 | 97.5% |"
        assert table[3] == ""

    def test_no_histories(self):
        with pytest.raises(ValueError, match="no histories"):
            results_table({})

    def test_names_may_be_numbers(self):
        assert results_table({0.1: run([[2.0, 0.5]])}).split("\n")[2].split()[0] == "0.1"  # type: ignore[dict-item]


class TestPenalty:
    """A task with a penalty records its loss with and without it."""

    decay = run([[2.0, 0.625]], data_loss=[[2.0, 0.5]], test_loss=[[2.0, 0.75]], test_data_loss=[[2.0, 0.625]])
    plain = run([[2.0, 0.25]], test_loss=[[2.0, 0.375]])

    @staticmethod
    def older(penalty: Any, name: str = "weight_decay") -> Run:
        """Of a version that did not record the loss without the penalty; what it did is in its description."""
        one = run([[2.0, 0.875]])
        one.description = {"run": {"task": {"name": "task.x", "arguments": {name: penalty}}}}  # type: ignore[attr-defined]
        return one

    def test_tables_have_the_loss_that_publications_report(self):
        table = results_table({"decay": self.decay, "plain": self.plain}, target=0.25)
        lines = table.split("\n")
        assert "training loss without penalty  rounds to 0.25 training loss without penalty" in lines[0]
        assert [line.split()[:3] for line in lines[2:4]] == [["decay", "0.5000", "–"], ["plain", "0.2500", "10"]]
        assert "\nwithout penalty: the mean loss of the data, as publications report it" in table
        assert "penalty" not in results_table({"plain": self.plain})

    @pytest.mark.parametrize("name", ["weight_decay", "penalty_function"])
    def test_older_runs_with_a_penalty_show_no_loss_without_it(self, name):
        older = self.older(0.1, name)
        lines = results_table({"older": older, "decay": self.decay, "none": self.older(None, name)}).split("\n")
        assert [line.split()[1] for line in lines[2:5]] == ["–", "0.5000", "0.8750"]
        lines = results_table({"older": older}).split("\n")
        assert "training loss with penalty" in lines[0]
        assert lines[2].split()[1] == "0.8750"

    def test_tables_have_where_runs_ended_in_virtual_time_and_bytes(self):
        timed, silent = run([[2.0, 0.25], [2.0, 0.5]]), self.plain
        timed.rounds = {  # type: ignore[attr-defined]
            "duration": np.array([[1.5, 0.5], [1.0, 0.0]]), "bytes_down": np.array([[600, 600], [600, 0]]),
            "bytes_up": np.full((2, 2), 100),
        }  # fmt: skip
        named = ["virtual_time", "bytes"]
        lines = results_table({"timed": timed, "silent": silent}, metrics=named).split("\n")
        assert "virtual time (s)  communication (bytes)  seconds" in lines[0]
        assert [" ".join(line.split()[1:7]) for line in lines[2:4]] == ["1.5000 ± 0.7071 1100 ± 424", "– – 12.35 97.5%"]
        with pytest.raises(ValueError, match="'bytes': the run did not record its bytes; give it system="):
            results_table({"silent": silent}, metrics=["bytes"])

    def test_ticks_of_bytes_have_their_unit(self, pyplot):
        large = run([[2.0, 0.25]])
        large.rounds = {name: np.full((1, 10), 3_000_000) for name in ("bytes_down", "bytes_up")}  # type: ignore[attr-defined]
        ax = curves({"large": large}, "loss", against="bytes")
        ax.figure.canvas.draw()
        ticks = [tick.get_text() for tick in ax.get_xticklabels()]
        assert "20 MB" in ticks
        assert all(tick.endswith("B") for tick in ticks)
        assert not ax.xaxis.get_offset_text().get_text()

    def test_curves_say_which_loss_they_are(self, pyplot):
        histories = {"decay": self.decay, "plain": self.plain}
        for metric, label, ends in (
            ("loss", "training loss with penalty", [0.625, 0.25]),
            ("data_loss", "training loss without penalty", [0.5, 0.25]),
            ("test_loss", "test loss with penalty", [0.75, 0.375]),
            ("test_data_loss", "test loss without penalty", [0.625, 0.375]),
        ):
            ax = curves(histories, metric)
            assert ax.get_ylabel() == label
            assert [line.get_ydata()[-1] for line in ax.get_lines()] == ends
        assert curves({"plain": self.plain}, "loss").get_ylabel() == "training loss"

    def test_a_comparison_draws_the_loss_that_publications_report(self, pyplot, tmp_path):
        problems = {"one": {"decay": self.decay, "plain": self.plain}, "two": {"plain": self.plain}}
        figure = comparison(problems, tmp_path / "one.png")
        assert [ax.get_ylabel() for ax in figure.axes] == ["training loss without penalty", "training loss"]
        assert [line.get_ydata()[-1] for line in figure.axes[0].get_lines()] == [0.5, 0.25]

    def test_distributions_over_the_clients(self, pyplot):
        decay = run([[1]], client_loss=np.ones((1, 1, 3)), client_data_loss=np.zeros((1, 1, 3)))
        plain = run([[1]], client_loss=np.full((1, 1, 3), 0.5))
        ax = distributions({"decay": decay, "plain": plain}, "client_data_loss")
        assert ax.get_xlabel() == "client loss without penalty"
        assert distributions({"decay": decay}, "client_loss").get_xlabel() == "client loss with penalty"

    def test_losses_say_themselves_that_they_are_not_finite(self):
        one = run([[2, np.inf]], data_loss=[[2, 1]], test_loss=[[2, 1]], accuracy=[[0.1, 0.2]])
        assert measured(one, "data_loss").tolist() == [[2, 1]]
        assert np.isnan(measured(one, "accuracy")).tolist() == [[False, True]]


def test_metrics_of_a_model_that_diverged_are_not_measured():
    values = {"loss": [[2, np.inf, 1]], "test_loss": [[2, 2, np.nan]], "accuracy": [[0.1, 0.2, 0.3]]}
    one = run(**values, client_accuracy=np.ones((1, 3, 4)))
    np.testing.assert_array_equal(measured(one, "accuracy"), np.array([[0.1, np.nan, np.nan]], np.float32))
    assert np.isnan(measured(one, "client_accuracy")).all(axis=2).tolist() == [[False, True, True]]
    np.testing.assert_array_equal(measured(one, "loss"), one["loss"])  # losses say themselves what they are
    np.testing.assert_array_equal(measured(one, "test_loss"), one["test_loss"])
    assert np.isfinite(one["accuracy"]).all()  # the record stays as it is
    one.metrics["count"] = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(measured(one, "count"), [[1, np.nan, np.nan]])


class TestCurves:
    def test_a_line_and_a_band_per_method(self, pyplot):
        histories = {"fedavg": run([[2, 1, 0.1], [2, 1.2, 0.15]]), "scaffold": run([[2, 0.5, 0.01]] * 2)}
        ax = curves(histories)
        assert [line.get_label() for line in ax.get_lines()] == ["fedavg", "scaffold"]
        assert len(ax.collections) == 2
        assert ax.get_lines()[0].get_xdata().tolist() == [0, 10, 20]
        assert ax.get_lines()[0].get_ydata() == pytest.approx([2, 1.1, 0.125])
        assert all(tick == round(tick) for tick in ax.get_xticks())
        assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("rounds", "training loss", "log")
        assert ax.get_legend().get_title().get_text() == "mean and range of 2 seeds"
        first, second = ax.get_lines()
        assert first.get_color() != second.get_color()
        assert first.get_linestyle() != second.get_linestyle()

    def test_one_seed_has_no_band(self, pyplot):
        ax = curves({"a": run([[2, 1]], test_accuracy=[[0.1, 0.99]])}, "test_accuracy")
        assert len(ax.collections) == 0
        assert ax.get_ylabel() == "test accuracy"
        assert ax.get_yscale() == "linear"
        assert ax.get_legend().get_title().get_text() == ""

    @pytest.mark.parametrize(
        ("values", "log", "scale"),
        [
            ([1.0, 0.2], None, "linear"),
            ([1.0, 0.05], None, "log"),
            ([1.0, 0.0], None, "linear"),
            ([1.0, -3.0], None, "linear"),
            ([1.0, 0.05], False, "linear"),
            ([1.0, 0.2], True, "log"),
        ],
    )
    def test_losses_over_more_than_a_decade_have_a_logarithmic_axis(self, pyplot, values, log, scale):
        assert curves({"a": run([values])}, log=log).get_yscale() == scale

    def test_lines_are_added_to_given_axes_in_further_styles(self, pyplot):
        _, ax = pyplot.subplots()
        assert curves({"a": run([[2, 1]])}, ax=ax) is ax
        curves({"b": run([[2, 1]])}, ax=ax)
        first, second = ax.get_lines()
        assert first.get_color() != second.get_color()
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]

    def test_divergence_ends_the_line_with_a_cross(self, pyplot):
        ax = curves({"a": run([[2, 1, 0.1, 0.05]] * 2), "b": run([[2, 1e20, 1e30, 1e35], [2, 1e20, np.inf, np.nan]])})
        good, bad, cross = ax.get_lines()
        assert good.get_xdata().tolist() == [0, 10, 20, 30]
        assert bad.get_xdata().tolist() == [0, 10]
        assert cross.get_xdata().tolist() == [20]
        assert cross.get_color() == bad.get_color()
        assert ax.get_ylim()[1] == pytest.approx(20)
        assert 0.01 < ax.get_ylim()[0] < 0.05
        assert ax.get_legend().get_texts()[-1].get_text() == "a seed diverged"

    def test_an_accuracy_ends_where_the_loss_does(self, pyplot):
        lost = run([[2, 1, np.nan, np.nan], [2, 1, 1, 1]], test_accuracy=[[0.1, 0.5, 0.07, 0.07], [0.1, 0.5, 0.6, 0.7]])
        line, cross = curves({"a": lost}, "test_accuracy").get_lines()
        assert line.get_xdata().tolist() == [0, 10]
        assert cross.get_xdata().tolist() == [20]

    @pytest.mark.parametrize(
        ("band", "half", "said"),
        [
            ("range", [1.0, 2.0], "mean and range of 3 seeds"),
            ("std", [1.0, 2.0], "mean ± standard deviation of 3 seeds"),
            ("sem", [1 / np.sqrt(3), 2 / np.sqrt(3)], "mean ± standard error of 3 seeds"),
            ("ci95", [4.302652730 / np.sqrt(3), 4.302652730 * 2 / np.sqrt(3)], "mean and 95 % interval of 3 seeds"),
            (None, None, "mean of 3 seeds"),
        ],
    )
    def test_bands(self, pyplot, band, half, said):
        runs = {"a": run([[2, 3], [3, 5], [4, 7]])}
        ax = curves(runs, band=band)
        assert ax.get_legend().get_title().get_text() == said
        assert ax.get_lines()[0].get_ydata().tolist() == [3, 5]
        assert len(ax.collections) == (half is not None)
        for area in ax.collections:
            edges = np.unique(area.get_paths()[0].vertices, axis=0)
            assert edges == pytest.approx(
                np.array([[0, 3 - half[0]], [0, 3 + half[0]], [10, 5 - half[1]], [10, 5 + half[1]]])
            )
        figure = panels([[Panel(runs)]], band=band)
        assert figure.legends[0].get_title().get_text() == said

    def test_a_standard_deviation_may_overflow(self, pyplot):
        runs = {"a": Run(np.arange(2), {"loss": np.array([[1.0, 1e200], [1.0, 3e200]])})}
        (area,) = curves(runs, band="std").collections
        assert np.isfinite(area.get_paths()[0].vertices).all()

    def test_intervals_do_not_stretch_an_axis_beyond_what_can_be(self, pyplot):
        low = run([[1.0, 1.0], [1.0, 1.0]], accuracy=[[0.1, 0.8], [0.3, 1.0]])
        assert curves({"a": low}, "accuracy", band="ci95").get_ylim() == (0.0, 1.0)
        assert curves({"a": low}, "accuracy").get_ylim()[0] > 0.0  # bands within: as ever
        dead = run([[np.nan, np.nan], [np.nan, np.nan]], accuracy=[[0.1, 0.1], [0.1, 0.1]])
        assert curves({"a": low, "dead": dead}, "accuracy", band="ci95").get_ylim() == (0.0, 1.0)
        gain = run([[1.0, 1.0], [1.0, 1.0]], personal_accuracy_gain=[[0.1, 0.1], [0.1, 0.3]])
        assert curves({"a": gain}, "personal_accuracy_gain", band="ci95").get_ylim()[0] < 0  # whether 0 is within
        signed = run([[1.0, 1.0], [1.0, 1.0]], gain=[[-0.1, 0.1], [0.1, 1.3]])
        bottom, top = curves({"a": signed}, "gain", band="ci95").get_ylim()
        assert bottom < -1.0
        assert top > 7.0

    def test_a_band_below_zero_does_not_stretch_a_logarithmic_axis(self, pyplot):
        ax = curves({"a": run([[1.0, 0.01], [1.0, 1e-6]])}, band="std", log=True)
        assert ax.get_ylim()[0] == pytest.approx(0.005 / 2, rel=1e-2)

    FALL = (2.5, 1.2, 0.9, *np.linspace(0.62, 0.6, 18))

    def test_the_first_evaluations_do_not_take_the_whole_axis(self, pyplot):
        runs = {"a": run([self.FALL]), "b": run([np.array(self.FALL) + 0.05])}
        bottom, top = curves(runs).get_ylim()
        assert 0.5 < bottom < 0.6
        assert top == pytest.approx(0.6 + (2.55 - 0.6) / 4, rel=0.01)  # never less than a quarter of the fall
        assert curves({"a": run([np.linspace(2.5, 0.5, 20)])}).get_ylim()[1] > 2.5
        assert curves({"a": run([[2.5, 0.6, 0.6, 0.6, 0.6]])}).get_ylim()[1] > 2.5  # too few points
        assert curves({"a": run([self.FALL], accuracy=[self.FALL])}, "accuracy").get_ylim()[1] > 2.5

    def test_limits_that_were_set_stay_and_further_lines_are_taken_into_view(self, pyplot):
        _, ax = pyplot.subplots()
        ax.set_ylim(0, 9)
        assert curves({"a": run([self.FALL])}, ax=ax).get_ylim() == (0, 9)
        ax = curves({"a": run([self.FALL])})
        curves({"b": run([np.full(21, 3.0)])}, ax=ax)
        assert ax.get_ylim()[1] > 3
        ax = curves({"a": run([self.FALL])})
        ax.plot([0, 200], [2.0, 2.0])
        assert ax.get_ylim()[1] > 2.5
        _, ax = pyplot.subplots()
        ax.axhline(0.58, label="target")  # in other coordinates than the curves
        assert curves({"a": run([self.FALL])}, ax=ax).get_ylim()[1] < 1.2

    def test_line_widths_follow_matplotlib(self, pyplot):
        assert curves({"a": run([[2, 1]])}).get_lines()[0].get_linewidth() == pytest.approx(1.8)
        with pyplot.rc_context({"lines.linewidth": 1.0}):
            assert curves({"a": run([[2, 1]])}).get_lines()[0].get_linewidth() == pytest.approx(1.2)

    def test_eight_methods_have_eight_colours_and_forty_lines_differ(self, pyplot):
        styles = [line_style(number) for number in range(40)]
        assert len({style["color"] for style in styles[:8]}) == 8
        assert len({(style["color"], style["linestyle"]) for style in styles}) == 40

    @pytest.mark.parametrize("methods", [2, 3, 35])
    def test_the_legend_is_below_and_leaves_the_width_to_the_curves(self, pyplot, methods):
        ax = curves({f"method {i}": run([[2, 1]]) for i in range(methods)})
        ax.figure.canvas.draw()
        legend, axes, xlabel = (one.get_window_extent() for one in (ax.get_legend(), ax, ax.xaxis.label))
        assert axes.width > 0.85 * ax.figure.bbox.width
        assert 0 < legend.y0 < legend.y1 < xlabel.y0
        assert axes.height > (0.3 if methods == 35 else 0.6) * ax.figure.bbox.height

    def test_nothing_finite_at_all(self, pyplot):
        ax = curves({"a": run([[np.nan, np.nan]])})
        assert ax.get_lines()[0].get_xdata().size == 0
        ax.figure.canvas.draw()

    def test_bad_input(self, pyplot):
        with pytest.raises(ValueError, match="no histories"):
            curves({})
        with pytest.raises(ValueError, match=r"'per_class' of 'a' has shape \(1, 2, 3\)"):
            curves({"a": run([[1, 1]], per_class=np.ones((1, 2, 3)))}, "per_class")
        bands = "'range', 'std', 'sem', 'ci95', None"
        with pytest.raises(ValueError, match=rf"curves\(band='ci'\): it must be one of {bands}"):
            curves(TWO, band="ci")


class TestDistributions:
    def test_a_line_is_the_share_of_clients_at_or_below(self, pyplot):
        one = [[0.5, 0.25, np.nan, 0.75]]  # an evaluation of four clients, one without examples
        both = np.array([one, [[0.5, 0.5, 0.5, 0.75]]])
        histories = {"a": run([[1]] * 2, client_accuracy=both), "b": run([[1]], client_accuracy=np.array([one]))}
        ax = distributions(histories, "client_accuracy")
        line, alone = ax.get_lines()
        x, shares = line.get_data()
        assert x[1:-1].tolist() == [0.25, 0.5, 0.75]
        assert shares.tolist() == pytest.approx([0, 1 / 6, (2 / 3 + 3 / 4) / 2, 1, 1])
        assert alone.get_ydata().tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
        assert len(ax.collections) == 1  # the band of two seeds
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("client accuracy", "share of clients at or below")

    def test_at_one_evaluation(self, pyplot):
        runs = {"a": run([[2, 1]], client_loss=np.array([[[1, 2], [3, 4]]]))}
        for chosen, found in ((0, [1, 2]), (10, [3, 4]), (None, [3, 4])):
            line = distributions(runs, "client_loss", round=chosen).get_lines()[0]
            assert line.get_xdata()[1:-1].tolist() == found

    def test_seeds_whose_model_diverged_are_left_out(self, pyplot):
        values = np.array([[[0.5, 0.5]], [[0.07, 0.07]]])
        runs = {
            "one": run([[1], [np.nan]], client_accuracy=values),
            "all": run([[np.nan]] * 2, client_accuracy=values),
        }
        ax = distributions(runs, "client_accuracy")
        assert ax.get_lines()[0].get_xdata()[1:-1].tolist() == [0.5]
        words = [text.get_text() for text in ax.get_legend().get_texts()]
        assert words == ["one (1 of 2 seeds diverged)", "all (diverged)"]

    def test_clients_all_alike(self, pyplot):
        ax = distributions({"a": run([[1]], client_loss=np.ones((1, 1, 3)))}, "client_loss")
        assert ax.get_xlim() == (0.5, 1.5)

    def test_bad_input(self, pyplot):
        with pytest.raises(ValueError, match="no histories"):
            distributions({}, "client_loss")
        with pytest.raises(ValueError, match=r"'loss' of 'a' has shape .* a value for each client"):
            distributions({"a": run([[1]])}, "loss")
        good = {"a": run([[1]], client_loss=np.ones((1, 1, 3)))}
        with pytest.raises(ValueError, match=r"round is 3: 'a' was evaluated after the rounds \[0\]"):
            distributions(good, "client_loss", round=3)
        with pytest.raises(ValueError, match="not one finite value"):
            distributions({"a": run([[1]], client_loss=np.full((1, 1, 3), np.nan))}, "client_loss")


class TestComparison:
    def test_columns_are_problems_and_rows_are_loss_and_accuracy(self, pyplot, tmp_path):
        path = tmp_path / "figures" / "comparison.png"
        image = {"fedavg": run([[2, 0.1]] * 3, test_accuracy=[[0.1, 0.9]] * 3), "scaffold": run([[2, 1]] * 3)}
        figure = comparison({"digits": image, "quadratic": {"scaffold": run([[1, 0.01]] * 3)}}, path)
        assert path.read_bytes().startswith(PNG)
        top_left, top_right, low_left, low_right = figure.axes
        assert [ax.get_title() for ax in figure.axes] == ["digits", "quadratic", "", ""]
        assert [len(ax.get_lines()) for ax in figure.axes] == [2, 1, 1, 0]
        assert (top_left.get_ylabel(), low_left.get_ylabel()) == ("training loss", "test accuracy")
        assert (top_left.get_xlabel(), low_left.get_xlabel(), top_right.get_xlabel()) == ("", "rounds", "rounds")
        assert top_left.get_lines()[1].get_color() == top_right.get_lines()[0].get_color()
        assert not low_right.axison
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "scaffold"]

    def test_without_accuracies_there_is_one_row(self, pyplot, tmp_path):
        figure = comparison({"quadratic": {"a": run([[1, 0.5]])}}, tmp_path / "one.png")
        assert len(figure.axes) == 1
        assert figure.axes[0].get_xlabel() == "rounds"

    @pytest.mark.parametrize("suffix", ["pdf", "svg"])
    def test_the_name_chooses_the_format(self, pyplot, tmp_path, suffix):
        comparison({"quadratic": {"a": run([[1, 0.5]])}}, tmp_path / f"one.{suffix}")
        assert suffix in (tmp_path / f"one.{suffix}").read_bytes()[:400].decode("latin-1").lower()

    @pytest.mark.slow
    def test_size_and_fonts(self, pyplot, tmp_path):
        figure = comparison({"quadratic": {"a": run([[1, 0.5]] * 2)}}, tmp_path / "one.pdf", size=(3, 2), band="sem")
        assert figure.get_size_inches().tolist() == [3, 2]
        figure.savefig(tmp_path / "two.pdf")  # a notebook's or a script's own call
        save_figure(curves(TWO), tmp_path / "three.pdf")
        for name in ("one", "two", "three"):
            content = (tmp_path / f"{name}.pdf").read_bytes()
            assert b"/Type3" not in content
            assert b"/CIDFontType2" in content
        with pytest.raises(ValueError, match="figure size must be positive finite"):
            panels([[Panel(TWO)]], size=(float("nan"), 1))

    def test_bad_input_leaves_no_file(self, pyplot, tmp_path):
        for problems in ({}, {"digits": {}}):
            with pytest.raises(ValueError, match="comparison"):
                comparison(problems, tmp_path / "no.png")
        assert list(tmp_path.iterdir()) == []


class TestPanels:
    def test_each_panel_draws_its_metric_and_the_lowest_of_a_column_names_the_axis(self, pyplot):
        runs = {"a": run([[2, 1]], test_accuracy=[[0.1, 0.5]]), "b": run([[2, 0.5]], test_accuracy=[[0.1, 0.7]])}
        one = {"b": runs["b"]}
        figure = panels([[Panel(runs, title="left"), Panel(one, label="F")], [Panel(runs, "test_accuracy"), None]])
        top_left, top_right, low_left, low_right = figure.axes
        assert [len(ax.get_lines()) for ax in figure.axes] == [2, 1, 2, 0]
        assert (top_left.get_title(), top_right.get_ylabel(), low_left.get_ylabel()) == ("left", "F", "test accuracy")
        assert [ax.get_xlabel() for ax in (top_left, top_right, low_left)] == ["", "rounds", "rounds"]
        assert not low_right.axison
        assert top_right.get_lines()[0].get_color() == top_left.get_lines()[1].get_color()
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]

    def test_limits_of_a_panel(self, pyplot):
        figure = panels([[Panel(TWO, limits=(0.5, 4)), Panel(TWO, limits=(None, 3))]])
        assert figure.axes[0].get_ylim() == (0.5, 4)
        assert figure.axes[1].get_ylim()[1] == 3

    def test_many_columns_are_narrow_and_rows_of_the_legend_are_full(self, pyplot):
        one, many = Panel({"method 0": run([[1, 1]])}), Panel({f"method {n}": run([[1, 1]]) for n in range(8)})
        assert panels([[one, one]]).get_figwidth() == pytest.approx(2 * 3.3 + 0.6)
        figure = panels([[many, one, one]])
        assert figure.get_figwidth() == pytest.approx(3 * 2.5 + 0.6)
        assert figure.legends[0]._ncols == 4  # five fit, and would leave a row of three

    def test_a_notebook_shows_what_pyplot_does_not_know(self, pyplot):
        figure = panels([[Panel({"a": run([[1, 1]])})]])
        assert figure._repr_png_().startswith(PNG)
        assert not pyplot.get_fignums()

    def test_bad_input(self, pyplot):
        good = Panel({"a": run([[1, 1]])})
        for rows in ([], [[None]], [[good], [good, good]]):
            with pytest.raises(ValueError, match="panels: it takes rows"):
                panels(rows)


class Grid:
    """As a sweep: metrics of many points."""

    evaluated, metrics, space = np.arange(2), TWO["fedavg"].metrics, None

    def at(self, number: int) -> None:
        pass


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: results_table(TWO["fedavg"]), r"results_table: histories is a Run: it takes {name: history}; give "),
        (lambda: results_table(list(TWO.values())), r"a list of 2: .*; give dict\(zip\(names, histories\)\)"),
        (lambda: results_table({"a": Grid()}), r"histories\['a'\] is a Grid: .*; give sweep.at\(number\)"),
        (lambda: curves(TWO["fedavg"]), "curves: histories is a Run: it takes"),
        (lambda: curves(Grid()), r"histories is a Grid: .*; give sweep.at\(number\)"),
        (lambda: curves({"a": "run.npz"}), r"histories\['a'\] is 'run.npz': .*; give fedjax_sim.History.load"),
        (lambda: curves(None), "curves: histories is None: it takes"),
        (lambda: curves({"digits": TWO}), r"histories\['digits'\] is a dict of 2: .* use comparison"),
        (lambda: curves({"a": {"loss": [1]}}), r"histories\['a'\] is a dict of 1: it takes {name: history}$"),
        (lambda: distributions([TWO["fedavg"]]), "distributions: histories is a list of 1: it takes"),
        (lambda: panels(TWO), "panels: rows is a dict of 2: it takes rows of panels"),
        (lambda: panels(Panel(TWO)), r"rows is a Panel: .*; give \[\[panel\]\]"),
        (lambda: panels([Panel(TWO)]), r"rows\[0\] is a Panel: .*; for one row give \[panels\]"),
        (lambda: panels([[None], [TWO]]), r"rows\[1\]\[0\] is a dict of 2: it takes rows of panels"),
        (lambda: panels([["loss"]]), r"rows\[0\]\[0\] is 'loss': it takes rows of panels"),
        (lambda: panels([[Panel(TWO["fedavg"])]]), r"Panel\(runs\) is a Run: it takes {name: history}"),
        (lambda: comparison(TWO, "no.png"), r"problems\['fedavg'\] is a Run: .*; for one problem give"),
        (lambda: comparison([TWO], "no.png"), "comparison: problems is a list of 1: it takes {problem: {method"),
        (lambda: comparison({"p": [1]}, "no.png"), r"problems\['p'\] is a list of 1: it takes"),
        (lambda: comparison({"p": {"a": 1}}, "no.png"), r"problems\['p'\]\['a'\] is 1: it takes {name: history}"),
    ],
)  # fmt: skip
def test_other_containers_are_named_with_the_fix(pyplot, tmp_path, monkeypatch, call, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=said):
        call()
    assert not list(tmp_path.iterdir())


class TestDatasetFigures:
    @pytest.fixture
    def data(self):
        labels = [[0, 0, 1], [2] * 40, [1]]
        return datasets.from_clients([(np.zeros((len(y), 2)), y) for y in labels])

    def test_heatmap_shows_counts(self, pyplot, data):
        ax = label_heatmap(data)
        (image,) = ax.get_images()
        assert np.ma.filled(image.get_array(), 0).tolist() == [[2, 0, 0], [1, 0, 1], [0, 40, 0]]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("client", "class")
        assert ax.get_yticks().tolist() == [0, 1, 2]

    def test_heatmap_is_logarithmic_for_uneven_counts(self, pyplot, data):
        (image,) = label_heatmap(data).get_images()
        assert type(image.norm).__name__ == "LogNorm"
        even = datasets.from_clients([(np.zeros((20, 2)), np.arange(20))] * 3)
        (image,) = label_heatmap(even).get_images()
        assert type(image.norm).__name__ == "Normalize"

    def test_heatmap_needs_labels(self, pyplot):
        data = datasets.from_clients([{"x": np.ones(3)}])
        with pytest.raises(ValueError, match="no labels"):
            label_heatmap(data)

    @pytest.mark.parametrize("sizes", [[1], [5, 5, 5], [1, 2, 3, 4, 5], [1, 40, 3], list(range(1, 500)), [1, 31]])
    def test_histogram_counts_every_client(self, pyplot, tmp_path, sizes):
        data = datasets.from_clients([{"x": np.ones(size)} for size in sizes])
        ax = size_histogram(data)
        assert sum(bar.get_height() for bar in ax.patches) == len(sizes)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("examples of a client", "clients")
        assert ax.get_xscale() == ("log" if max(sizes) > 30 * min(sizes) else "linear")
        save_figure(ax.figure, tmp_path / "sizes.png")

    def test_given_axes_are_used(self, pyplot, data):
        _, (left, right) = pyplot.subplots(1, 2)
        assert label_heatmap(data, left) is left
        assert size_histogram(data, right) is right


def test_plots_without_matplotlib_name_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    data = datasets.from_clients([{"x": np.ones(3)}])
    for call in (
        lambda: curves({"a": run([[1, 1]])}),
        lambda: comparison({"p": {"a": run([[1, 1]])}}, tmp_path / "no.png"),
        lambda: label_heatmap(data),
        lambda: size_histogram(data),
    ):
        with pytest.raises(ImportError, match=r"fedjax_sim\[plot\]"):
            call()


def test_importing_the_reports_imports_no_extra():
    code = "import sys, fedjax_sim.reporting; print([m for m in ('matplotlib', 'rich', 'jax') if m in sys.modules])"
    assert printed("-c", code).strip() == "[]"
    assert all(hasattr(reporting, name) for name in reporting.__all__)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    def drive(self, bar: reporting.Progress, rounds: int = 40) -> None:
        with bar:
            bar.compiling()
            for done in range(1, rounds + 1):
                bar.update(done, {"loss": 1.0 / done})

    @pytest.mark.parametrize("enabled", [None, "auto", False])
    def test_silent_where_disabled_or_not_on_a_terminal(self, capfd, enabled):
        bar = progress_bar(40, enabled, "fedavg")
        assert not bar.enabled
        self.drive(bar)
        assert capfd.readouterr() == ("", "")

    def test_disabled_on_a_terminal(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        self.drive(progress_bar(40, False, "fedavg"))
        assert terminal.getvalue() == ""

    def test_lines_elsewhere(self, capsys):
        bar = progress_bar(40, True, "fedavg")
        assert bar.enabled
        self.drive(bar)
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert out == ""
        assert lines[0] == "fedavg: compiling"
        assert len(lines) == 11
        assert lines[1].startswith("fedavg: round 4/40, ")
        for part in (" rounds/s, ", "loss 0.25", " left"):
            assert part in lines[1]
        assert lines[-1].startswith("fedavg: round 40/40, ")
        assert lines[-1].endswith("loss 0.025")

    def test_few_updates_and_rounds(self, capsys):
        with progress_bar(3, True, "a") as bar:
            bar.update(0, {"loss": 2.0})
            bar.update(2, {"loss": float("nan")})
            bar.update(3, {"loss": 1.0})
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(",")[0] for line in lines] == ["a: round 2/3", "a: round 3/3"]
        assert "loss nan" in lines[0]
        with progress_bar(1, True, "a") as bar:
            bar.update(1, {"loss": 2.0})
        assert capsys.readouterr().err == "a: round 1/1, loss 2\n"  # one update: no speed is known

    @pytest.mark.parametrize("enabled", [None, True])
    def test_a_bar_on_a_terminal(self, monkeypatch, enabled):
        pytest.importorskip("rich")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        bar = progress_bar(40, enabled, "fed[avg]")
        assert bar.enabled
        self.drive(bar)
        shown = terminal.getvalue()
        assert "\x1b[" in shown
        for part in ("fed[avg]", "40/40", "rounds/s", "loss 0.025"):
            assert part in shown

    @pytest.mark.parametrize("why", ["no rich", "dumb terminal"])
    def test_lines_on_a_terminal_that_has_no_bar(self, monkeypatch, why):
        if why == "no rich":
            for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
                monkeypatch.delitem(sys.modules, name)
            monkeypatch.setitem(sys.modules, "rich", None)
        else:
            monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        self.drive(progress_bar(40, None, "fedavg"))
        assert len(terminal.getvalue().splitlines()) == 11
        assert "\x1b" not in terminal.getvalue()

    def test_without_a_stderr(self, monkeypatch):
        monkeypatch.setattr(sys, "stderr", None)
        self.drive(progress_bar(40, True))

    def test_errors_pass_through(self, capsys):
        with pytest.raises(KeyError), progress_bar(40, True):
            raise KeyError

    def test_another_value_is_refused(self):
        with pytest.raises(TypeError, match="progress is 'yes'"):
            progress_bar(40, "yes")


class TestFiles:
    def test_bytes_or_a_function(self, tmp_path):
        write_atomically(tmp_path / "a", b"one")
        write_atomically(str(tmp_path / "b"), lambda file: file.write(b"two"))
        assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"one", b"two")

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_a_failure_leaves_the_old_file_and_nothing_else(self, tmp_path, error):
        path = tmp_path / "result"
        path.write_bytes(b"old")

        def write(file):
            file.write(b"ne")
            raise error

        with pytest.raises(error):
            write_atomically(path, write)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_no_folder_is_made_that_is_called_as_the_home_directory_is(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(FileNotFoundError, match=r"Path\(\.\.\.\)\.expanduser\(\)"):
            write_atomically("~/results/a", b"one")
        with pytest.raises(FileNotFoundError, match="~bob is no home directory"):
            write_atomically("~bob/a", b"one")
        with pytest.raises(FileNotFoundError, match=r"checkpoints cannot be written here .*no home directory"):
            fjs.checkpoints.Store("~/runs")
        with pytest.raises(FileNotFoundError, match=r"client states cannot be kept here .*no home directory"):
            fjs.client_states.on_disk("~/scratch").allocate()
        assert not list(tmp_path.iterdir())
        pathlib.Path("~").mkdir()  # whoever wants one
        write_atomically("~/a", b"one")

    def test_directories_are_made(self, tmp_path):
        write_atomically(tmp_path / "new" / "deep" / "a", b"one")
        assert (tmp_path / "new" / "deep" / "a").read_bytes() == b"one"

    def test_a_directory_is_not_replaced(self, tmp_path):
        with pytest.raises(OSError):
            write_atomically(tmp_path, b"one")
        (tmp_path / "folder").mkdir()
        with pytest.raises(OSError):
            write_atomically(tmp_path / "folder", b"one")
        assert [path.name for path in tmp_path.iterdir()] == ["folder"]

    def test_permissions_are_those_of_the_old_file_or_of_the_umask(self, tmp_path):
        (tmp_path / "plain").write_bytes(b"")
        write_atomically(tmp_path / "new", b"one")
        assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
        os.chmod(tmp_path / "new", 0o640)
        write_atomically(tmp_path / "new", b"two")
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640

    def test_a_link_gives_way_and_is_not_followed(self, tmp_path):
        (tmp_path / "target").write_bytes(b"old")
        (tmp_path / "link").symlink_to(tmp_path / "target")
        (tmp_path / "to nowhere").symlink_to(tmp_path / "nowhere")
        for name in ("link", "to nowhere"):
            write_atomically(tmp_path / name, b"new")
            assert not (tmp_path / name).is_symlink()
            assert (tmp_path / name).read_bytes() == b"new"
        assert (tmp_path / "target").read_bytes() == b"old"
        assert not (tmp_path / "nowhere").exists()

    def test_in_a_folder_that_is_a_link(self, tmp_path):
        (tmp_path / "target").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "target")
        write_atomically(tmp_path / "link" / "a", b"one")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "target" / "a").read_bytes() == b"one"

    @pytest.mark.parametrize("kind", ["a pipe", "a device", "a directory", "a socket"])
    @pytest.mark.parametrize("linked", [False, True], ids=["itself", "linked"])
    def test_what_is_no_file_is_not_replaced(self, tmp_path, kind, linked):
        path = tmp_path / "there"
        if kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        elif kind == "a directory":
            path.mkdir()
        else:
            path = pathlib.Path("/dev/null")
        if linked:
            (tmp_path / "link").symlink_to(path)
            path = tmp_path / "link"
        before = path.lstat()[:7]  # the times are of whoever reads it, too
        # A device is not written to here: a fault would, as root, take it from everybody on this machine.
        write = check_replaceable if kind == "a device" else lambda path: write_atomically(path, b"new")
        with pytest.raises(OSError, match=f"this {'leads to' if linked else 'is'} {kind}, and no file is written over"):
            write(path)
        assert path.lstat()[:7] == before

    def test_a_temporary_name_that_is_a_link(self, tmp_path, monkeypatch):
        (tmp_path / "target").write_bytes(b"old")
        (tmp_path / ".fedjax_sim-0123456789abcdef.tmp").symlink_to(tmp_path / "target")
        monkeypatch.setattr("secrets.token_hex", lambda _: "0123456789abcdef")
        with pytest.raises(FileExistsError):
            write_atomically(tmp_path / "new", b"new")
        assert (tmp_path / "target").read_bytes() == b"old"

    def test_what_killed_processes_left_is_deleted_and_nothing_else(self, tmp_path):
        left, living, piped, linked, folder = (
            tmp_path / f".fedjax_sim-{number:016x}.tmp" for number in (1, 2, 3, 4, 0xABCDEF)
        )
        left.write_bytes(b"hal")
        os.mkfifo(piped)
        (tmp_path / "target").write_bytes(b"of a user")
        linked.symlink_to(tmp_path / "target")
        folder.mkdir()
        names = [".0123456789abcdef.tmp", ".fedjax_sim-1.tmp", "fedjax_sim-0123456789abcdef.tmp", ".fedjax_sim-x.tmp"]
        for name in names:
            (tmp_path / name).write_bytes(b"of a user")
        with open(living, "wb") as writing:
            fcntl.flock(writing, fcntl.LOCK_EX)
            remove_left_overs(tmp_path)
            assert not left.exists()
            rest = {*names, "target", living.name, piped.name, linked.name, folder.name}
            assert {path.name for path in tmp_path.iterdir()} == rest
        remove_left_overs(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == rest - {living.name}
        remove_left_overs(tmp_path / "not there")

    def test_a_file_that_is_being_written_is_not_taken_for_left_over(self, tmp_path):
        write_atomically(tmp_path / "a", lambda file: remove_left_overs(tmp_path) or file.write(b"one"))
        assert (tmp_path / "a").read_bytes() == b"one"

    def test_where_there_are_no_locks_what_is_left_is_deleted(self, tmp_path, monkeypatch):
        def flock(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr("fcntl.flock", flock)
        (tmp_path / ".fedjax_sim-0123456789abcdef.tmp").write_bytes(b"hal")
        remove_left_overs(tmp_path)
        assert list(tmp_path.iterdir()) == []
        write_atomically(tmp_path / "a", b"one")

    def test_whether_a_folder_can_be_written_is_tried(self, tmp_path, monkeypatch):
        check_writable(tmp_path / "new" / "deep")
        assert list((tmp_path / "new" / "deep").iterdir()) == []
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(NotADirectoryError, match="a file, and a directory is needed"):
            check_writable(tmp_path / "file")
        without_permission(monkeypatch, tmp_path / "new")
        with pytest.raises(PermissionError):
            check_writable(tmp_path / "new")
