"""Figures of data sets show what is in them, for ten clients and for thousands."""

import numpy as np
import pytest

from fedjax_sim.datasets import FederatedDataset, from_clients, from_partition, partition
from fedjax_sim.reporting import label_heatmap, overview, size_histogram, sweep_plots

pytestmark = pytest.mark.usefixtures("pyplot")


def made(clients: int, examples: int = 12_000, classes: int = 10, **kwargs: float) -> FederatedDataset:
    labels = np.arange(examples) % classes
    rows = partition.dirichlet(labels, clients, 0.3, 0)
    return from_partition((np.zeros((examples, 1), np.float32), labels), rows, **kwargs)


def cells(ax) -> np.ndarray:
    (image,) = ax.get_images()
    return np.ma.filled(image.get_array(), 0).T


def test_few_clients_have_their_numbers_written() -> None:
    data = made(10)
    ax = label_heatmap(data)
    table = data.statistics().label_table
    np.testing.assert_array_equal(cells(ax), table)
    written = {tuple(map(round, text.get_position())): int(text.get_text()) for text in ax.texts}
    assert written == {place: count for place, count in np.ndenumerate(table) if count}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [str(client) for client in range(10)]


def test_many_clients_have_neither_numbers_nor_a_tick_each() -> None:
    ax = label_heatmap(made(100))
    assert not ax.texts
    assert len(ax.get_xticks()) <= 12


@pytest.mark.parametrize("clients", [500, 1000, 1001])
def test_columns_are_wide_enough_to_be_seen(clients: int) -> None:
    data = made(clients)
    ax = label_heatmap(data)
    shown, table = cells(ax), data.statistics().label_table
    assert len(shown) <= 500
    together = -(-clients // 500)
    np.testing.assert_allclose(shown[0], table[:together].mean(axis=0))
    np.testing.assert_allclose(shown[-1], table[(len(shown) - 1) * together :].mean(axis=0))
    labels = [other.get_ylabel() for other in ax.figure.axes if other is not ax]
    assert labels == [f"examples (white: none){'' if together == 1 else f',{chr(10)}mean of {together} clients'}"]


def test_the_label_of_the_colours_is_within_the_figure() -> None:
    figure = overview(made(3000, examples=30_000, classes=5))
    figure.canvas.draw()
    bar = next(ax for ax in figure.axes if "white: none" in ax.get_ylabel())
    box = bar.yaxis.label.get_window_extent()
    assert box.y0 >= 0
    assert box.y1 <= figure.bbox.height


@pytest.mark.parametrize("sort", ["size", "class"])
def test_clients_can_be_sorted(sort: str) -> None:
    data = made(30)
    table = cells(label_heatmap(data, sort=sort))
    assert sorted(map(tuple, table)) == sorted(map(tuple, data.statistics().label_table))
    measure = -table.sum(axis=1) if sort == "size" else table.argmax(axis=1)
    assert np.all(np.diff(measure) >= 0)


def test_sorted_clients_keep_their_numbers() -> None:
    data = from_clients([(np.zeros((n, 1)), np.zeros(n, int)) for n in (2, 9, 5)])
    ax = label_heatmap(data, sort="size")
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "0"]


def test_an_unknown_order_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"is 'sizes': did you mean 'size'"):
        label_heatmap(made(3), sort="sizes")  # type: ignore[arg-type]


def test_histogram_of_equal_sizes_is_one_bar() -> None:
    data = from_clients([{"x": np.ones(4)}] * 6)
    ax = size_histogram(data)
    assert [bar.get_height() for bar in ax.patches if bar.get_height()] == [6]
    assert ax.get_xticks().tolist() == [4]
    assert ax.get_title() == "6 clients, 24 examples"


def test_histogram_with_clients_that_have_nothing() -> None:
    data = from_clients([{"x": np.ones(4)}] * 3, test=[None, None, {"x": np.ones(90)}])
    ax = size_histogram(data.test)
    assert ax.get_xscale() == "linear"
    assert [bar.get_height() for bar in ax.patches if bar.get_height()] == [2, 1]


@pytest.mark.parametrize("clients", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 100)), 10])
def test_overview(clients: int, tmp_path) -> None:
    data = made(clients, test_fraction=0.2)
    figure = overview(data, tmp_path / "data.png", sort="class")
    assert (tmp_path / "data.png").read_bytes()[:4] == b"\x89PNG"
    assert [ax.get_xlabel() for ax in figure.axes[:3]] == [
        "clients, by their commonest class",
        "examples of a client",
        "classes of a client",
    ]
    assert data.test is not None
    assert figure.get_suptitle().endswith(f"{data.test.num_examples:,} test examples")
    held = figure.axes[2].patches[: data.num_classes]
    assert sum(bar.get_height() for bar in held) == clients
    assert "label entropy" in figure.axes[2].get_legend().get_texts()[1].get_text()


def test_the_colour_bar_does_not_begin_at_none() -> None:
    (image,) = label_heatmap(made(100)).get_images()
    assert image.norm.vmin == 1
    (image,) = label_heatmap(from_clients([(np.zeros((2, 1)), np.arange(2))] * 3)).get_images()
    assert (image.norm.vmin, image.norm.vmax) == (0, 1)  # one colour for all


def test_the_legend_of_a_profile_is_above_its_band(pyplot) -> None:
    x = sweep_plots.Axis("mu", np.array([0.1, 1.0, 10.0]))
    for lines in ([[0.6, 0.7], [0.6, 0.7], [0.6, 0.7]], [[1.0, 90.0], [1.0, 80.0], [np.nan, np.nan]]):
        ax = sweep_plots.line(x, np.array(lines), label="loss")
        ax.figure.canvas.draw()
        top = ax.transData.transform((1.0, np.nanmax(lines)))[1]
        assert ax.get_legend().get_window_extent().y0 > top


def test_overview_without_labels_is_the_histogram(tmp_path) -> None:
    figure = overview(from_clients([{"x": np.ones(n)} for n in (1, 2, 300)]), tmp_path / "data.svg")
    assert len(figure.axes) == 1
    assert figure.axes[0].get_xscale() == "log"
    assert "svg" in (tmp_path / "data.svg").read_text()[:400]
