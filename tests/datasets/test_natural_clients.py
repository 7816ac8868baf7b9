"""People, writers and groups as clients: activity from a phone, FEMNIST, Adult; and LIBSVM's sets."""

import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.datasets.sources import activity, tables
from tests.datasets.stored import check_rebuilt, needs, put


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


# Smartphone activity.

SAMPLES = 1000  # of a recording
PARTS = [(1, 1, 1, 1, 128), (1, 1, 7, 129, 200), (1, 1, 2, 201, 648), (2, 2, 6, 10, 1000), (3, 5, 3, 1, 127)]
USERS = {1: 1, 2: 2, 3: 5}  # by recording


def signals() -> np.ndarray:
    drawn = np.random.Generator(np.random.PCG64(0)).integers(-800, 800, (3 * SAMPLES, 6)).astype(np.int16)
    drawn[:, 0] = np.arange(3 * SAMPLES)  # tells samples apart
    return drawn


def packed_recordings(folder: Path) -> None:
    put(folder / "hapt_smartphone" / "hapt_signals_int16.npy.xz", lzma.compress(npy(signals())))
    rows = [f"{number},{user},{(number - 1) * SAMPLES},{SAMPLES}" for number, user in USERS.items()]
    put(folder / "hapt_smartphone" / "experiments.csv", "\n".join(["exp,user,first_row,rows", *rows]))
    rows = [",".join(map(str, part)) for part in PARTS]
    put(folder / "hapt_smartphone" / "segments.csv", "\n".join(["exp,user,activity,start,end", *rows]) + "\n")


def published_recordings(folder: Path) -> None:
    raw = folder / "hapt_smartphone" / "RawData"
    for number, user in USERS.items():
        for sensor, columns, unit in (("acc", slice(0, 3), 1 / 720), ("gyro", slice(3, 6), 0.0175 * np.pi / 180)):
            values = signals()[(number - 1) * SAMPLES : number * SAMPLES, columns] * unit
            text = "".join(" ".join(f"{value:.17g}" for value in row) + " \n" for row in values)
            put(raw / f"{sensor}_exp{number:02}_user{user:02}.txt", text)
    put(raw / "labels.txt", "".join(" ".join(map(str, part)) + " \n" for part in PARTS))


@pytest.mark.parametrize("write", [packed_recordings, published_recordings])
def test_windows(folder: Path, write: Callable[[Path], None]) -> None:
    write(folder)
    data = datasets.hapt(test_fraction=0.4, standardise=False, verify=False)
    assert data.test is not None
    np.testing.assert_array_equal(data.client_ids, [1, 2])  # the third has no window
    # A window; 6 in a row, of which 2 are for testing and 1 lies between; 14 of which 5 are.
    np.testing.assert_array_equal(data.sizes, [1 + 3, 8])
    np.testing.assert_array_equal(data.test.sizes, [2, 5])
    first, second = data.client(0), data.client(1)
    np.testing.assert_array_equal(first["y"], [0, 1, 1, 1])
    np.testing.assert_array_equal(np.unique(second["y"]), [5])
    units = np.repeat([1 / 720, 0.0175 * np.pi / 180], 3)
    np.testing.assert_allclose(first["x"][2], signals()[264:392] * units, rtol=1e-6)
    np.testing.assert_allclose(second["x"][0], signals()[1009:1137] * units, rtol=1e-6)
    np.testing.assert_allclose(data.test.client(0)["x"][0], signals()[456:584] * units, rtol=1e-6)
    scaled = datasets.hapt(test_fraction=0.4, flat=True, verify=False)
    x = np.asarray(data.examples["x"], float)
    wanted = (x - x.mean(axis=(0, 1))) / x.std(axis=(0, 1))
    np.testing.assert_allclose(scaled.examples["x"], wanted.reshape(len(x), -1), atol=1e-5)
    whole = datasets.hapt(test_fraction=0.0, verify=False)
    assert (whole.num_examples, whole.test) == (1 + 6 + 14, None)
    check_rebuilt(data)


def test_no_sample_of_a_test_window_is_trained_on(folder: Path) -> None:
    packed_recordings(folder)
    for fraction in (0.1, 0.2, 0.5, 0.9):
        data = datasets.hapt(test_fraction=fraction, standardise=False, verify=False)
        assert data.test is not None
        trained, tested = (np.rint(np.asarray(part.examples["x"])[..., 0] * 720) for part in (data, data.test))
        assert tested.size
        assert not np.isin(tested, trained).any()


def test_the_published_split_by_subject(folder: Path) -> None:
    packed_recordings(folder)
    data = datasets.hapt("subjects", verify=False)
    assert data.test is not None
    np.testing.assert_array_equal(data.client_ids, [1])
    assert (data.num_examples, data.test.num_examples) == (7, 14)
    assert np.asarray(data.test.examples["y"]).tolist() == [5] * 14


def test_recordings_that_are_not_what_they_should_be(folder: Path) -> None:
    packed_recordings(folder)
    place = folder / "hapt_smartphone"
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.hapt()
    with pytest.raises(ValueError, match="known: local, subjects"):
        datasets.hapt("official", verify=False)  # type: ignore[arg-type]
    segments = (place / "segments.csv").read_text()
    for line, message in (
        ("1,2,1,1,128", r"segment \[1, 2, 1, 1, 128\] is in no recording"),
        ("1,1,1,900,1001", "is in no recording"),
        ("1,1,1,5,4", "is in no recording"),
        ("1,1,1,5.5,400", "not whole"),
        ("1,1,1,x,400", "is not a table of numbers"),
    ):
        put(place / "segments.csv", segments + line)
        with pytest.raises(ValueError, match=message):
            datasets.hapt(verify=False)
    put(place / "segments.csv", "exp,user\n1,1\n")
    with pytest.raises(ValueError, match=r"has the columns \['exp', 'user'\], and exp, user, activity"):
        datasets.hapt(verify=False)
    put(place / "segments.csv", "exp,user,activity,start,end\n1,1,1,1,100\n")
    with pytest.raises(ValueError, match="no activity goes on for a window"):
        datasets.hapt(verify=False)
    put(place / "experiments.csv", "exp,user,first_row,rows\n1,1,2500,1000\n")
    with pytest.raises(ValueError, match="do not belong together"):
        datasets.hapt(verify=False)
    put(place / "hapt_signals_int16.npy.xz", npy(np.zeros((4, 6))))
    with pytest.raises(ValueError, match=r"has float64\[4, 6\], not int16"):
        datasets.hapt(verify=False)
    put(place / "hapt_signals_int16.npy.xz", npy(np.zeros((2, 6), np.int16))[:-2])
    with pytest.raises(ValueError, match="has 150 bytes and its header says 152"):
        datasets.hapt(verify=False)


@pytest.mark.slow
@needs("hapt_smartphone")
def test_real_smartphones() -> None:
    data = datasets.hapt(test_fraction=0.0)
    assert np.bincount(data.examples["y"]).tolist() == [1722, 1544, 1407, 1801, 1979, 1958]
    assert np.asarray(data.sizes)[[0, 7, 29]].tolist() == [347, 284, 393]
    assert data.examples["x"].shape == (10411, 128, 6)
    split = datasets.hapt("subjects", standardise=False)
    assert split.test is not None
    assert (split.num_clients, split.num_examples, split.test.num_examples) == (21, 7415, 2996)
    laying = np.asarray(split.examples["x"])[np.asarray(split.examples["y"]) == 5]
    np.testing.assert_allclose(np.linalg.norm(laying[..., :3].mean(axis=(0, 1))), 1.0, atol=0.3)  # gravity


# WISDM.


def wisdm_text(rows: int = 12) -> str:
    rng = np.random.Generator(np.random.PCG64(1))
    lines = [",".join(activity.WISDM_HEADER)]
    for row in range(rows):
        values = [f"{value:.2f}" for value in rng.normal(size=43)]
        if row % 4 == 1:
            values[33] = "?"
        lines.append(",".join([str(row + 1), str(row % 3 + 7), *values, activity._DOING[row % 6]]))
    return "\n".join(lines) + "\n"


def test_rows_of_a_phone_in_a_pocket(folder: Path) -> None:
    path = put(folder / "wisdm_transformed" / "wisdm_v1.1_transformed.csv", wisdm_text())
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.wisdm()
    raw = datasets.wisdm(test_fraction=0.0, standardise=False, verify=False)
    np.testing.assert_array_equal(raw.client_ids, [7, 8, 9])
    x = np.asarray(raw.examples["x"], float)
    table = np.array([line.split(",")[2:-1] for line in path.read_text().split("\n")[1:-1]])
    known = np.array([float(value) for value in table[:, 33] if value != "?"])
    mean = known.mean()
    assert sorted(x[:, 33].tolist()) == pytest.approx(sorted([*known, mean, mean, mean]), rel=1e-6)
    np.testing.assert_allclose(raw.client(0)["x"][1, :33], table[3, :33].astype(float), rtol=1e-6)
    np.testing.assert_array_equal(raw.client(0)["y"], [0, 3, 0, 3])
    data = datasets.wisdm(test_fraction=0.5, verify=False)
    assert data.test is not None
    np.testing.assert_array_equal(data.test.sizes, [2, 2, 2])
    np.testing.assert_allclose(np.asarray(data.examples["x"], float).mean(axis=0), 0, atol=1e-6)
    check_rebuilt(data)
    put(path, wisdm_text().replace("Walking", "Flying"))
    with pytest.raises(ValueError, match=r"row 0 .* has the class 'Flying', not one of Walking, Jogging"):
        datasets.wisdm(verify=False)
    put(path, wisdm_text().replace("\n1,7,", "\n1,7.5,"))
    with pytest.raises(ValueError, match="not whole"):
        datasets.wisdm(verify=False)
    put(path, wisdm_text(0))
    with pytest.raises(ValueError, match="has no rows"):
        datasets.wisdm(verify=False)


@needs("wisdm_transformed")
def test_real_pockets() -> None:
    data = datasets.wisdm(test_fraction=0.0)
    assert np.bincount(data.examples["y"]).tolist() == [2081, 1625, 632, 528, 306, 246]
    assert (data.num_clients, int(np.min(data.sizes)), int(np.max(data.sizes))) == (36, 60, 273)
    x = np.asarray(data.examples["x"])
    assert np.isfinite(x).all()
    assert (x[:, 30] == 0).all()  # XAVG


# FEMNIST and EMNIST by class.


def test_writers(folder: Path) -> None:
    place = folder / "leaf_femnist_520"
    images = np.arange(5 * 784).reshape(5, 28, 28).astype(np.uint8)
    put(place / "femnist_images_uint8.npy", npy(images))
    table = put(place / "femnist_labels.csv", "row,writer,label\n0,f1,61\n1,f0,3\n2,f0,0\n3,f1,9\n4,f9,7\n")
    data = datasets.femnist_writers(test_fraction=0.5, verify=False)
    assert data.test is not None
    assert datasets.client_names(data) == ("f0", "f1")
    assert (data.num_examples, data.test.num_examples, data.num_classes) == (2, 2, 62)
    check_rebuilt(data)
    every = datasets.femnist_writers(1, test_fraction=0.0, flat=False, scaled=False, verify=False)
    assert every.examples["x"].dtype == np.uint8
    np.testing.assert_array_equal(every.client(1)["x"][..., 0], images[[0, 3]])
    np.testing.assert_array_equal(every.client(1)["y"], [61, 9])
    scaled = datasets.femnist_writers(1, test_fraction=0.0, verify=False)
    np.testing.assert_allclose(scaled.client(2)["x"], images[4:].reshape(1, -1) / 255, rtol=1e-6)
    with pytest.raises(ValueError, match=r"min_images=3\): the most that a writer has are 2"):
        datasets.femnist_writers(3, verify=False)
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.femnist_writers()
    for content, message in (
        ("row,writer,label\n0,f1,6\n", "do not belong together"),
        (
            table.read_text().replace("4,f9,7", "4,f9,62"),
            "line 6 has the row .4. and the label .62., not",
        ),
        (table.read_text().replace("4,f9,7", "5,f9,7"), "line 6 has the row .5."),
    ):
        put(table, content)
        with pytest.raises(ValueError, match=message):
            datasets.femnist_writers(verify=False)


@pytest.mark.slow
@needs("leaf_femnist_520", "emnist_byclass_half")
def test_real_characters() -> None:
    data = datasets.femnist_writers(1, test_fraction=0.0)
    sizes = np.asarray(data.sizes)
    assert (data.num_clients, data.num_examples, int(np.median(sizes)), int(sizes.max())) == (520, 11687, 18, 44)
    assert int((np.asarray(data.examples["y"]) < 10).sum()) == 5811
    assert np.asarray(data.examples["x"]).mean() > 0.8  # paper, not ink
    half = datasets.emnist_byclass(10, partition="iid", scaled=False, test_fraction=0.0)
    counts = np.bincount(half.examples["y"])
    assert (half.num_examples, len(counts), counts.min(), counts.max()) == (58162, 62, 170, 3154)


# Adult and LIBSVM's sets.

ROW = "39, {work}, 7, {degree}, 13, Never-married, Adm-clerical, Husband, White, Male, {gain}, 0, 40, ?, {income}\n"


def test_census_rows(folder: Path) -> None:
    train = [("Private", "Bachelors", 0, "<=50K"), ("?", "Doctorate", 4, ">50K"), ("Private", "Bachelors", 2, ">50K")]
    test = [("Unheard-of", "Doctorate", 6, ">50K."), ("Private", "Bachelors", 0, "<=50K.")]
    text = {half: "".join(ROW.format(work=w, degree=d, gain=g, income=i) for w, d, g, i in rows)
            for half, rows in (("data", train), ("test", test))}  # fmt: skip
    path = put(folder / "adult" / "adult.data", text["data"] + "\n")
    put(folder / "adult" / "adult.test.xz", lzma.compress(("|1x3 Cross validator\n" + text["test"]).encode()))
    data = datasets.adult(verify=False)
    assert data.test is not None
    assert datasets.client_names(data) == ("Bachelors", "Doctorate")
    np.testing.assert_array_equal(data.client(0)["y"], [0, 1])
    np.testing.assert_array_equal(data.test.sizes, [1, 1])
    gain = np.array([0.0, 4.0, 2.0])
    scaled = (np.array([0.0, 2.0, 6.0]) - gain.mean()) / gain.std()
    columns = np.asarray(data.client(0)["x"])
    np.testing.assert_allclose(columns[:, 3], scaled[:2], rtol=1e-6)
    np.testing.assert_array_equal(columns[:, [0, 1, 2, 4, 5]], 0)  # constant numbers
    np.testing.assert_array_equal(columns[:, 6:10], [[0, 1, 1, 0]] * 2)  # ?, Private; Bachelors, Doctorate
    doctor = np.asarray(data.test.client(1)["x"])[0]
    np.testing.assert_allclose(doctor[3], scaled[2], rtol=1e-6)
    np.testing.assert_array_equal(doctor[6:10], [0, 0, 0, 1])  # a value that nobody trained on
    domains = datasets.adult("doctorate", verify=False)
    assert datasets.client_names(domains) == ("no", "yes")
    np.testing.assert_array_equal(domains.sizes, [2, 1])
    check_rebuilt(domains)
    with pytest.raises(ValueError, match="is not the published file"):
        datasets.adult()
    with pytest.raises(ValueError, match="known: workclass, education"):
        datasets.adult("age", verify=False)  # type: ignore[arg-type]
    for line, message in (
        (ROW.format(work="a", degree="b", gain=1, income="50K"), "row 3 .* has the class '50K'"),
        (ROW.format(work="a", degree="b", gain="much", income=">50K"), "is not a table of numbers"),
        ("1, 2\n", "2 fields and not 15"),
    ):
        put(path, text["data"] + line)
        with pytest.raises(ValueError, match=message):
            datasets.adult(verify=False)


@pytest.mark.slow
@needs("adult", "libsvm")
def test_real_census() -> None:
    pytest.importorskip("sklearn")
    data = datasets.adult("native-country")
    assert data.test is not None
    assert (data.num_clients, data.num_examples, data.test.num_examples) == (42, 32561, 16281)
    assert np.asarray(data.examples["x"]).shape == (32561, 108)
    assert (np.asarray(data.examples["y"]).sum(), np.asarray(data.test.examples["y"]).sum()) == (7841, 3846)
    np.testing.assert_array_equal(datasets.adult("doctorate").sizes, [32148, 413])
    a9a, w8a = datasets.a9a(), datasets.w8a(test_fraction=0.0)
    assert a9a.test is not None
    assert (a9a.num_examples, a9a.test.num_examples) == (32561, 16281)
    assert (np.asarray(a9a.examples["y"]).sum(), np.asarray(a9a.test.examples["y"]).sum()) == (7841, 3846)
    assert (w8a.num_examples, np.asarray(w8a.examples["y"]).sum()) == (49749, 1479)
    assert set(np.unique(w8a.examples["x"])) == set(np.unique(a9a.examples["x"])) == {0.0, 1.0}


def test_signs_as_classes(folder: Path) -> None:
    pytest.importorskip("sklearn")
    rows = "".join(f"{'+1' if i % 3 else '-1'} {i + 1}:1 123:1 \n" for i in range(9))
    put(folder / "libsvm" / "a9a", rows)
    put(folder / "libsvm" / "a9a.t.xz", lzma.compress(rows[:60].encode()[: rows[:60].rfind("\n") + 1]))
    put(folder / "libsvm" / "w8a", rows)
    data = datasets.a9a(3, verify=False)
    assert data.test is not None
    assert data.num_examples == 9
    for client in range(3):
        one = data.client(client)
        np.testing.assert_array_equal(one["y"], (np.argmax(one["x"], axis=1) % 3 > 0).astype(int))
    local = datasets.a9a(3, test="local", test_fraction=0.4, verify=False)
    assert local.test is not None
    assert local.num_examples + local.test.num_examples == 9
    assert datasets.w8a(2, partition="shards", test_fraction=0.0, verify=False).examples["x"].shape == (9, 300)
    check_rebuilt(data)
    with pytest.raises(ValueError, match="known: official, local"):
        datasets.a9a(3, test="mine", verify=False)  # type: ignore[arg-type]
    put(folder / "libsvm" / "w8a", "2 1:1\n")
    with pytest.raises(ValueError, match=r"label 2\.0, not -1 or 1"):
        datasets.w8a(1, verify=False)


def test_which_columns_are_numbers() -> None:
    named: list[Any] = [tables._ADULT_COLUMNS[place] for place in tables._NUMBERS]
    assert named == ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
    assert len(tables._CATEGORIES) == 8


# Survival by region.


def test_regions_of_patients(folder: Path) -> None:
    header = ",".join(["pid", *(f'"f,{i}"' for i in range(39)), "E", "T"])  # some names hold a comma
    rows = {name: [str(age), *["0"] * 37, str(place), *y] for place, (name, age, *y) in enumerate([
        ("a", 20, "1", "9"), ("b", 40, "0", "0"), ("c", 60, "1", "7"), ("nobody", 99, "1", "1"), ("d", 80, "0", "5"),
    ])}  # fmt: skip
    root = folder / "fed_tcga_brca"
    text = "\n".join([header, *(",".join([name, *row]) for name, row in rows.items())])
    path = put(root / "brca.csv", text)
    split = "pid,fold,fold2\nc,train,train_1\na,train,train_0\nd,test,test_1\nb,train,train_1\n"
    parts = put(root / "train_test_split.csv.xz", lzma.compress(split.encode()))
    data = datasets.fed_tcga_brca(verify=False)
    assert data.test is not None
    assert (data.client_ids.tolist(), data.num_classes) == ([0, 1], None)
    assert np.asarray(data.examples["y"]).tolist() == [[1, 9], [1, 7], [0, 0]]
    assert np.asarray(data.examples["x"])[:, [0, 38]].tolist() == [[20, 0], [60, 2], [40, 1]]
    assert (np.asarray(data.test.sizes).tolist(), np.asarray(data.test.examples["y"]).tolist()) == ([0, 1], [[0, 5]])
    check_rebuilt(data)
    scaled = datasets.fed_tcga_brca(standardise=True, verify=False)
    assert scaled.test is not None
    ages = np.array([20, 60, 40, 80]) - 40
    found = [*np.asarray(scaled.examples["x"])[:, 0], *np.asarray(scaled.test.examples["x"])[:, 0]]
    np.testing.assert_allclose(found, ages / np.std([20, 60, 40]), rtol=1e-6)
    for old, new, message in (("train_0", "train_6", "six regions"), ("a,train", "x,train", "no patient"),
                              ("b,train", "c,train", "patients twice")):  # fmt: skip
        put(parts, split.replace(old, new))
        with pytest.raises(ValueError, match=message):
            datasets.fed_tcga_brca(verify=False)
    put(path, text.replace("E,T", "T,E"))
    with pytest.raises(ValueError, match="39 features, E, T are needed"):
        datasets.fed_tcga_brca(verify=False)


@needs("fed_tcga_brca")
def test_real_regions() -> None:
    data = datasets.fed_tcga_brca()
    assert data.test is not None
    assert np.asarray(data.sizes).tolist() == [248, 156, 164, 129, 129, 40]
    assert np.asarray(data.test.sizes).tolist() == [63, 40, 42, 33, 33, 11]
    assert data.examples["x"].shape == (866, 39)
    event, time = np.concatenate([np.asarray(data.examples["y"]), np.asarray(data.test.examples["y"])]).T
    assert set(event) == {0, 1}
    assert event.sum() == 151
    assert (time.min(), time.max()) == (0, 8605)
