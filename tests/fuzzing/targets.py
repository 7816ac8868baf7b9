"""The readers, each with the changes that are made to its files, and what it may raise."""

import contextlib
import dataclasses
import functools
import io
import json
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_sim as fjs
from fedjax_sim.cli import main as cli
from fedjax_sim.datasets.reading.archives import read_members
from fedjax_sim.datasets.sources.image_files import read_idx
from fedjax_sim.reporting.html import page
from fedjax_sim.reporting.html.curves import axes_of
from fedjax_sim.run.checkpoints import Store
from fedjax_sim.run.configuration import ConfigurationError, building, tables
from fedjax_sim.run.history import History
from fedjax_sim.studies.sweeps import Sweep
from fedjax_sim.studies.sweeps.stored import Folder
from tests.fuzzing import mutations, samples, structures
from tests.fuzzing.mutations import Change
from tests.fuzzing.samples import Files


@dataclasses.dataclass(frozen=True)
class Target:
    """A reader under attack.

    Attributes:
      name: of the reader.
      files: makes valid files, by their paths in a folder.
      changes: what is done to a file, by the end of its name.
      read: reads the folder, and looks at what it got.
      refuses: the exact types of its documented errors.
      speaks_of: what a message must have one of; a path of the folder always counts.
      bound: bytes that reading may take at its peak.
      opens: whether the reader opens the files itself.
      warns: whether it may warn.
      patience: how many times longer than other readers it may take.
    """

    name: str
    files: Callable[[], Files]
    changes: dict[str, Change]
    read: Callable[[Path], Any]
    refuses: tuple[type[Exception], ...] = (ValueError, FileNotFoundError)
    speaks_of: tuple[str, ...] = ()
    bound: int = 2**27
    opens: bool = True
    warns: bool = False
    patience: float = 1.0

    def changed(self, rng: random.Random) -> Files:
        """The valid files with one of them, seldom two, changed."""
        files = dict(self.files())
        for name in rng.sample(sorted(files), min(len(files), rng.choice((1, 1, 1, 2)))):
            change = next(change for end, change in self.changes.items() if name.endswith(end))
            files[name] = change(files[name], rng)
        return files


def _read_idx(folder: Path) -> None:
    for name in samples.idx_files():
        assert read_idx(folder / name, max_bytes=2**22).dtype.kind in "iuf"


def _check(data: Any) -> None:
    assert data.num_clients >= 1
    for leaf in map(np.asarray, data.examples.values()):
        assert leaf.shape[0] == data.num_examples
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all()


def _read_archives(folder: Path) -> None:
    for name in samples.archive_files():
        found = read_members(folder / name, ["in/b", "in/a"], max_bytes=2**20)
        assert list(found) == ["in/b", "in/a"]


def _read_tables(files: Callable[[], Files], folder: Path) -> None:
    for name in files():
        table = fjs.datasets.from_table
        _check(table(folder / name, client="who", y="ill", encode=["smoker"], test_fraction=0.3))


def _read_plays(folder: Path) -> None:
    small = {"num_roles": None, "min_chars": 12, "length": 10, "verify": False}
    _check(fjs.datasets.shakespeare_roles(**small))
    _check(fjs.datasets.tinyshakespeare(**small))


def _read_sources(folder: Path) -> None:
    _check(fjs.datasets.parkinsons(verify=False))
    _check(fjs.datasets.mushrooms(2, verify=False))


def _read_people(folder: Path) -> None:
    for read in (fjs.datasets.hapt, fjs.datasets.wisdm, fjs.datasets.femnist_writers, fjs.datasets.adult):
        _check(read(verify=False))


def _read_pythia(folder: Path) -> None:
    for part in ("one", "many"):
        model, params = fjs.models.load_pythia(folder / part, 3)
        assert model.num_classes == 3
        assert params["params"]["head"]["kernel"].shape == (8, 3)


def _read_history(folder: Path) -> None:
    record = History.load(folder / "run.npz", max_bytes=2**24)
    assert isinstance(record.algorithm, str)
    assert record.metrics == {} or record.final(next(iter(record.metrics))).shape[0] == len(record.seeds)


def _use_history(folder: Path) -> None:
    """What loads can be used for everything that a history is for."""
    record = History.load(folder / "run.npz", max_bytes=2**24)
    with _used():
        assert repr(record)
        assert "useful steps" in record.table(target=0.5)
        names = sorted({*record.metrics, *record.rounds})
        for name in names:
            record.final(name)
            if record[name].ndim == 2:
                record.rounds_to(name, 0.5)
        drawn = random.Random((folder / "run.npz").read_bytes())  # a figure takes longer than all else: one is enough
        name = drawn.choice(names)
        _drawn(lambda: record.plot(name), flat=record[name].ndim == 2)
        axis = drawn.choice(list(axes_of(record)))
        _drawn(lambda: record.plot(name, against=axis), flat=record[name].ndim == 2)
        assert len(record.to_pandas()) == len(record.seeds) * len(record.evaluated)
        ends = [record.stops[seed].round if seed in record.stops else record.evaluated[-1] for seed in record.seeds]
        assert len(record.to_pandas(each="round")) == sum(ends)
        record.to_xarray()
        page({"a": record, "b": record})
        record.save(folder.parent / "again.npz")
        again = History.load(folder.parent / "again.npz")
        (folder.parent / "again.npz").unlink()
        assert again.rounds.keys() == record.rounds.keys()
        assert (again.divergences, again.stops) == (record.divergences, record.stops)
        _show(folder / "run.npz")


def _use_sweep(folder: Path) -> None:
    sweep = Sweep.load(folder / "sweep.npz")
    with _used():
        assert repr(sweep)
        sweep.table()
        for name in (*sweep.metrics, *sweep.rounds):
            sweep.final(name)
        for number in range(sweep.space.num_points):
            sweep.at(number).table()
        assert sweep.diverged.shape == sweep.shape
        if "loss" in sweep.metrics:  # a run may record that of the test part alone
            if sweep.ranked("loss"):
                sweep.best("loss")
                _drawn(lambda: sweep.curves("loss"))
            _drawn(sweep.profile, flat=all(np.ndim(value) == 0 for value in sweep.space.point(0).values()))
        sweep.to_pandas()
        sweep.to_xarray()
        sweep.coordinates, sweep.params  # noqa: B018
        _show(folder / "sweep.npz")


@contextlib.contextmanager
def _used() -> Iterator[None]:
    """Whatever is raised for a record that was loaded is a fault, an error of a documented type too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:])
        raise AssertionError(f"{type(error).__name__}: {str(error)[:200]} ({where})") from error


def _drawn(plot: Callable[[], Any], *, flat: bool = True) -> None:
    """Draws, where something can be drawn: of an array of several axes there may be nothing."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    try:
        plot().figure.canvas.draw()
    except ValueError:
        if flat:
            raise
    finally:
        pyplot.close("all")


def _show(path: Path) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = cli.main(["show", str(path)])
    assert status == 0, said.getvalue()


def _read_sweep(folder: Path) -> None:
    with Folder(folder, samples.CONFIGURATION) as stored:
        numbers = [number for runs, _ in stored.finished() for number in runs]
    assert len(set(numbers)) == len(numbers)


def _read_description(folder: Path) -> None:
    for name in samples.description_files():
        try:
            described = json.loads((folder / name).read_bytes())
        except (ValueError, RecursionError):
            continue  # who reads the JSON is not the package
        fjs.describe(fjs.build(described))


def _read_configuration(folder: Path) -> None:
    """All tables, but not whether they are all that a run needs."""
    content, place = tables.load(folder / "run.toml", ["run.rounds=4", "algorithm.mu=0.2"])
    for key, value in content.items():
        building.value_of(value, place / key)


def _read_checkpoints(folder: Path) -> None:
    with Store(folder, keep=3) as store:
        found = store.newest()
        assert found is None or found.round >= 0


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("idx", samples.idx_files, {".gz": mutations.gzipped(mutations.plain), "": mutations.plain}, _read_idx),
        Target(
            "mnist", samples.mnist_files, {"": mutations.gzipped(mutations.plain)},
            lambda _: _check(fjs.datasets.mnist(2, partition="iid", verify=False)), speaks_of=("mnist", "iid"),
        ),
        Target(
            "cifar10", samples.cifar_files, {"": mutations.tarred(mutations.plain)},
            lambda _: _check(fjs.datasets.cifar10(2, partition="iid", batches=(1,), verify=False)), speaks_of=("iid",),
        ),
        Target(
            "archives", samples.archive_files,
            {".tar": mutations.tarred(mutations.plain)}, _read_archives,
        ),
        Target(
            "from_directory", samples.directory_files, {"": mutations.npz},
            lambda folder: _check(fjs.datasets.from_directory(folder, max_bytes=2**24)),
            speaks_of=("client", "examples"),
        ),
        Target(
            "from_table csv", samples.csv_files, {".gz": mutations.gzipped(mutations.text), "": mutations.text},
            functools.partial(_read_tables, samples.csv_files), (ValueError, FileNotFoundError, TypeError),
            ("from_table", "client", "examples"),
        ),
        Target(
            "from_table parquet", samples.parquet_files, {"": mutations.plain},
            functools.partial(_read_tables, samples.parquet_files), (ValueError, FileNotFoundError, TypeError),
            ("from_table", "client", "examples"),
        ),
        Target(
            "from_leaf", samples.leaf_files, {"": mutations.json_tree},
            lambda folder: _check(fjs.datasets.from_leaf(folder / "train", folder / "test")),
            speaks_of=("client", "examples", "user"),
        ),
        Target(
            "ag_news", samples.news_files, {"": mutations.text},
            lambda _: _check(fjs.datasets.ag_news(2, partition="iid", verify=False)), speaks_of=("iid",),
        ),
        Target(
            "sent140", samples.tweets_files, {"": mutations.text}, lambda _: _check(fjs.datasets.sent140(None, 2)),
        ),
        Target(
            "shakespeare", samples.plays_files, {".gz": mutations.gzipped(mutations.json_tree), "": mutations.text},
            _read_plays, speaks_of=("Characters.encode", "roles in the file"),
        ),
        Target("parkinsons, mushrooms", samples.table_files, {"": mutations.text}, _read_sources, speaks_of=("iid",)),
        Target(
            "people", samples.people_files,
            {".xz": mutations.npy, ".npy": mutations.npy, "": mutations.text}, _read_people,
            speaks_of=("hapt", "femnist_writers", "client", "examples"),
        ),
        Target(
            "load_pythia", samples.pythia_files,
            {".json": mutations.json_tree, "": mutations.safetensors}, _read_pythia,
        ),
        Target(
            "History.load", samples.history_files,
            {"": mutations.zipped(lambda data, rng: _about(data, rng))}, _read_history,
        ),
        Target("a history's structure", samples.record_files, {"": structures.changed}, _use_history, patience=6.0),
        Target("a sweep's structure", samples.swept_files, {"": structures.changed}, _use_sweep, patience=6.0),
        Target(
            "sweep folder", samples.sweep_files,
            {".json": mutations.json_tree, "": mutations.zipped(lambda data, rng: _about(data, rng))}, _read_sweep,
        ),
        Target(
            "build", samples.description_files, {"": mutations.json_tree}, _read_description, (ValueError, TypeError),
            ("",), opens=False,
        ),
        Target(
            "configuration", samples.configuration_files, {"": mutations.text}, _read_configuration,
            (ConfigurationError, FileNotFoundError),
        ),
        Target("Store.newest", samples.checkpoint_files, {"": mutations.safetensors}, _read_checkpoints, warns=True),
    )
}  # fmt: skip


def _about(data: bytes, rng: random.Random) -> bytes:
    """A member of a record's file: its JSON, kept as an array of bytes, or an array."""
    at = data.find(b'{"format"')
    if at < 0:
        return mutations.npy(data, rng)
    changed = mutations.json_tree(data[at:], rng)
    return mutations.npy_of(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(changed)},), }}", changed)
