"""Paired differences over seeds: known values, what is no difference, what is refused."""

import numpy as np
import pytest

from fedjax_sim.reporting import paired_table
from fedjax_sim.reporting.paired import adjusted, differences, paired, t_test
from fedjax_sim.reporting.table import half_width
from tests.reporting.test_reporting import Run, run


def with_seeds(finals, seeds=None, **metrics):
    """A run that ends with these losses."""
    made = run([[5.0, one] for one in finals], **{name: [[0, one] for one in of] for name, of in metrics.items()})
    made.metrics = {name: values.astype(float) for name, values in made.metrics.items()}
    made.seeds = list(range(len(finals))) if seeds is None else seeds
    return made


BASE = [1.0, 2.0, 3.0, 4.0, 5.0]
FEW = {"a": with_seeds([1.0, 2.0]), "b": with_seeds([2.0, 4.0])}


def test_known_values():
    d = np.array(BASE)
    assert half_width(d) == pytest.approx(2.7764451052 * np.sqrt(2.5 / 5), rel=1e-9)
    assert t_test(d) == t_test(-d) == pytest.approx(0.0132356, rel=1e-5)  # t = 3 sqrt(2), four degrees of freedom
    assert t_test(np.array([1.0, -1.0])) == 1.0
    np.testing.assert_allclose(half_width(np.stack([d, 2 * d])), half_width(d) * np.array([1, 2]))
    np.testing.assert_allclose(adjusted(np.array([0.01, 0.04, 0.03]), "holm"), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(adjusted(np.array([0.01, 0.04, 0.03]), "bh"), [0.03, 0.04, 0.04])
    untested = np.array([[0.01, np.nan], [0.04, 0.03]])
    np.testing.assert_allclose(adjusted(untested, "holm"), [[0.03, np.nan], [0.06, 0.06]])
    np.testing.assert_array_equal(adjusted(untested, None), untested)


def test_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    a, b = np.random.default_rng(0).normal(size=(2, 7))
    expected = stats.ttest_rel(a, b)
    assert t_test(a - b) == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = expected.confidence_interval(0.95)
    assert half_width(a - b) == pytest.approx((high - low) / 2, rel=1e-9)


def test_rows_are_differences_seed_by_seed():
    """In the order of the seeds of the first, whatever the other's; the tests are corrected together."""
    turned = with_seeds([13.0, 10.0, 10.0, 9.0, 8.0], seeds=[4, 3, 2, 1, 0])
    turned.metrics["loss"][:, -1] = [one + 2 * one for one in [5.0, 4.0, 3.0, 2.0, 1.0]]
    near = with_seeds([1.1, 1.9, 3.2, 3.8, 5.3])
    rows = paired({"base": with_seeds(BASE), "turned": turned, "near": near}, "loss")
    assert [row.method for row in rows] == ["turned", "near"]
    assert rows[0].mean == pytest.approx(6.0)  # of 2, 4, ..., 10
    assert rows[0].half == pytest.approx(2 * 1.9632432, rel=1e-6)
    assert [row.better for row in rows] == [0, 2]
    assert rows[0].p == pytest.approx(0.0132356, rel=1e-5)
    assert rows[0].adjusted == pytest.approx(2 * rows[0].p)
    assert rows[1].adjusted == pytest.approx(rows[1].p)


def test_more_is_better_of_accuracies_and_the_test_accuracy_is_taken():
    losses = with_seeds([1.0, 1.0, 1.0], accuracy=[0.5, 0.5, 0.5], test_accuracy=[0.5, 0.5, 0.5])
    other = with_seeds([2.0, 2.0, 2.0], accuracy=[0.4, 0.4, 0.4], test_accuracy=[0.6, 0.7, 0.4])
    (row,) = paired({"a": losses, "b": other})
    assert row.mean == pytest.approx(0.2 / 3)
    assert row.better == 2
    del other.metrics["test_accuracy"]  # then what both have
    assert paired({"a": losses, "b": other})[0].mean == pytest.approx(-0.1)


def test_round_off_is_no_difference():
    a, b = with_seeds(BASE), with_seeds(np.array(BASE) * (1 + 1e-7))
    (row,) = paired({"a": a, "b": b}, "loss")
    assert (row.mean, row.half, row.better, row.p) == (0.0, 0.0, 0, 1.0)
    assert differences(np.array([1.0]), np.array([1.0 + 1e-7]), "float64") != 0


@pytest.mark.parametrize("wide", ["a", "b", "ab"])
def test_round_off_is_that_of_the_narrower_of_two_precisions(wide):
    runs = {"a": with_seeds(BASE), "b": with_seeds(np.array(BASE) * (1 + 1e-7))}
    for name, made in runs.items():
        made.description = {"environment": {"float": "float64" if name in wide else "float32"}}
    assert (paired(runs, "loss")[0].mean == 0) == (wide != "ab")


def test_differences_that_are_all_equal_have_no_test():
    """As of accuracies of few examples: t would be as large as round-off is small."""
    moved = with_seeds(np.array(BASE) + 0.1)  # not the same to the last bit
    (row,) = paired({"a": with_seeds(BASE), "b": moved}, "loss")
    assert np.isnan(row.p)
    assert np.isnan(row.adjusted)
    assert row.mean == pytest.approx(0.1)
    assert row.half == 0
    said = paired_table({"a": with_seeds(BASE), "b": moved}, "loss")
    assert "where all differences are equal there is no t test" in said
    assert "+0.1000 ± 0.0000" in said
    assert "corrected for 0 tests" in said
    small = {"a": with_seeds([0.0, 0.0]), "b": with_seeds([3e-5, 3e-5])}
    assert "+0.000030 ± 0.000000" in paired_table(small, "loss")


def test_a_method_with_a_seed_that_diverged_has_no_difference():
    inf = with_seeds([1.0, np.inf, 2.0, 3.0, 4.0])
    assert np.isnan(paired({"a": inf, "b": inf}, "loss")[0].mean)
    row = paired({"a": with_seeds(BASE), "b": inf}, "loss")[0]  # infinity is no round-off away from a number
    assert np.isnan(row.mean)
    assert np.isnan(row.p)
    assert row.better == 0
    bad = with_seeds([1.0, np.nan, 2.0, 3.0, 4.0], test_accuracy=[0.9] * 5)
    good = {
        "a": with_seeds(BASE, test_accuracy=[0.5] * 5),
        "c": with_seeds(BASE, test_accuracy=[0.1, 0.2, 0.3, 0.4, 0]),
    }
    table = paired_table({**good, "bad": bad})
    assert table.split("\n")[4].split() == ["bad", "diverged", "(1", "of", "5)", "–", "–", "–", "–"]
    assert "corrected for 1 test" in table
    rows = paired({"bad": bad, **good})
    assert all(np.isnan(row.p) for row in rows)


def test_too_few_seeds_are_said():
    """Flipping signs reaches 2^(1 - S) at least: 0.0625 of five seeds, 0.03125 of six."""
    other = with_seeds(np.array(BASE) + BASE)
    assert "5 seeds are few" in paired_table({"a": with_seeds(BASE), "b": other}, "loss")
    assert "fewer than 6 seeds" in paired_table({"a": with_seeds(BASE), "b": other}, "loss")
    six = [*BASE, 6.0]
    table = paired_table({"a": with_seeds(six), "b": with_seeds(np.array(six) + six)}, "loss")
    assert "are few" not in table
    assert "fewer than 7 seeds" in paired_table(
        {"a": with_seeds(six), "b": with_seeds(np.array(six) + six), "c": with_seeds(np.array(six) * six)}, "loss"
    )


def test_a_table():
    table = paired_table({"a": with_seeds(BASE), "b": with_seeds(np.array(BASE) + BASE)}, "loss", against="b")
    assert table.split("\n")[2:4] == [
        "b       6.0000 ± 3.1623           –          –      –         –",
        "a       3.0000 ± 1.5811  -3.0 ± 2.0     5 of 5  0.013     0.013",
    ]
    other = with_seeds(np.array(BASE) + BASE)
    other.evaluated = other.evaluated * 2
    assert "not after equally many rounds: a 10, b 20" in paired_table({"a": with_seeds(BASE), "b": other}, "loss")


def test_other_data_are_said():
    runs = {"a": with_seeds(BASE), "b": with_seeds(np.array(BASE) + BASE)}
    for number, one in enumerate(runs.values()):
        one.description = {"dataset": {"name": "dataset.synthetic", "arguments": {"seed": number}}}
    assert "the data sets differ" in paired_table(runs, "loss")


@pytest.mark.parametrize(
    ("histories", "given", "said"),
    [
        ({"a": with_seeds(BASE)}, {}, "there is 1 method"),
        ({"a": with_seeds([1.0]), "b": with_seeds([2.0])}, {}, "there is one seed"),
        ({"a": with_seeds([1.0, 2.0]), "b": with_seeds([1.0, 2.0], seeds=[0, 2])}, {}, "b has 0, 2: differences"),
        (FEW, {"against": "A"}, "did you mean 'a'"),
        (FEW, {"metric": "matrix"}, "not one number"),
        ({"a": FEW["a"], "b": Run(np.arange(2), {"mse": np.ones((2, 2))})}, {}, "no accuracy or loss that all runs"),
    ],
)
def test_what_is_refused(histories, given, said):
    if given.get("metric") == "matrix":
        for one in histories.values():
            one.metrics["matrix"] = np.ones((2, 2, 3))
    with pytest.raises(ValueError, match=said):
        paired_table(histories, **given)


def test_a_score_that_is_not_defined_has_not_diverged():
    """The area under a curve of clients that have one class."""
    none = {name: with_seeds(BASE, test_roc_auc=[np.nan] * 5) for name in "ab"}
    lines = paired_table(none, "test_roc_auc").split("\n")
    assert [line.split()[1] for line in lines[2:4]] == ["–", "–"]
