"""What people do, from the accelerometer of their phone: one client a person."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_sim.core.files import read_text
from fedjax_sim.core.values import check_choice, check_count, check_flag, check_real, shown
from fedjax_sim.datasets.construct import from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.from_arrays import held_out
from fedjax_sim.datasets.reading.npz import read_npy
from fedjax_sim.datasets.reading.tables import csv_rows, numbers, whole
from fedjax_sim.datasets.sources.record import DataFile, Source, data_set
from fedjax_sim.datasets.sources.sharing import deal, standardised

_UCI = (
    "https://archive.ics.uci.edu/dataset/341/smartphone+based+recognition+of+human+activities+and+postural+transitions"
)


def _file(sha256: str, *names: str) -> DataFile:
    return DataFile("hapt_smartphone", names, f"Get the folder RawData of {_UCI}", sha256)


_SIGNALS = _file(
    "0e856bfac702c62ce83c2e14db4eb67d12cb2a653294354f876cde67bd1afcad", "RawData", "hapt_signals_int16.npy.xz"
)
_RECORDINGS = _file("bbcb7039e53c6d4357cf99302cbf366682c9e704bc2f5e3859ef61dc134c210a", "experiments.csv")
_SEGMENTS = _file("896c5efa7fd325dc43cad909efbfa9f39b6ab7be1691d7b3a50c4cbf9d389e6f", "segments.csv")
_UNITS = np.repeat([1 / 720, 0.0175 * np.pi / 180], 3)  # of the six int16 channels: g, and rad/s
_LENGTH, _STEP = 128, 64  # samples of a window, at 50 Hz, and between the starts of two
_ACTIVITIES = 6
_TESTED = (2, 4, 9, 10, 12, 13, 18, 20, 24)  # the published split by subject


@data_set(
    "dataset.hapt",
    source=Source(
        (_SIGNALS,),
        size="7.6 MB (as text: 100 MB)",
        terms="CC BY 4.0; its authors forbid commercial use",
        papers=("reyes-ortiz2016transition",),
    ),
)
def hapt(
    test: Literal["local", "subjects"] = "local",
    seed: int = 0,
    *,
    test_fraction: float = 0.2,
    standardise: bool = True,
    flat: bool = False,
    verify: bool = True,
) -> FederatedDataset:
    """Six activities of 30 people from a phone at their waist: UCI HAR's recordings, with newer labels.

    Walking, walking upstairs, downstairs, sitting, standing, laying; 10,411 windows of 128 samples (2.56 s) that lie
    within one activity, half of each in the next, as UCI HAR has them (its first version has 10,299). A sample is the
    acceleration in g along three axes, gravity included, and the angular velocity in rad/s.

    Args:
      test: "local" tests each of the 30 people on later windows of their own; "subjects" is the published split, which
        trains on 21 people and tests on the 9 others, whose windows are dealt to the 21 uniformly at random.
      seed: of that deal.
      test_fraction: for ``test="local"``: of the windows of each stretch of one activity the last
        floor(test_fraction n) are for testing, and the one before them, which shares samples with the first of them,
        is left out. Windows drawn at random would share half of their samples with windows trained on.
      standardise: whether each of the six channels has mean 0 and standard deviation 1 over all training windows.
      flat: whether a window is a vector [768] or [128, 6].
      verify: whether to check the packed files against their SHA-256 (text files have none).

    Returns:
      ``{"x": float32[n, 128, 6], "y": int32[n]}``, six classes; ``client_ids`` are the subjects, 1 to 30.

    Raises:
      FileNotFoundError: neither the published folder ``RawData`` nor packed files are there.
      ValueError: other files.

    Source: Reyes-Ortiz, Oneto, Samà, Parra and Anguita 2016, Transition-aware human activity recognition using
    smartphones, doi:10.1016/j.neucom.2015.07.085; the split by subject: Anguita et al. 2013, UCI HAR.
    """
    check_choice("hapt(test=...)", test, ("local", "subjects"))
    check_count("hapt(seed=...)", seed, low=0)
    check_real("hapt(test_fraction=...)", test_fraction, low=0.0, below=1.0, host=True)
    check_flag("hapt(standardise=...)", standardise)
    check_flag("hapt(flat=...)", flat)
    found = _SIGNALS.found()
    recordings, segments = _as_text(found) if found is not None and found.name == "RawData" else _packed(verify)
    x, y, subjects, held = _windows(recordings, segments, test, test_fraction)
    kept = held >= 0
    x, y, subjects, held = x[kept], y[kept], subjects[kept], held[kept] == 1
    if standardise:
        x = standardised(x, x[~held], axis=(0, 1))
    x = x.astype(np.float32).reshape((len(x), -1) if flat else x.shape)
    train = (x[~held], y[~held])
    if not held.any():
        return from_ids(train, subjects, num_classes=_ACTIVITIES)
    known = np.unique(subjects[~held])
    owner = subjects[held] if test == "local" else known[deal(int(held.sum()), known.size, seed)]
    return from_ids(train, subjects[~held], test=(x[held], y[held]), test_ids=owner, num_classes=_ACTIVITIES)


Recordings = dict[int, tuple[int, np.ndarray]]  # by number: whose it is, and its samples float[n, 6]


def _packed(verify: bool) -> tuple[Recordings, np.ndarray]:
    """The recordings, and the segments int[n, 5]: recording, subject, activity, first and last sample from 1."""
    signals = read_npy(_SIGNALS.path(verify=verify))
    where, parts = _RECORDINGS.path(verify=verify), _SEGMENTS.path(verify=verify)
    if signals.dtype != np.int16 or signals.shape[1:] != (6,):
        raise ValueError(f"hapt: {_SIGNALS.path()} has {signals.dtype}{list(signals.shape)}, not int16[n, 6]")
    rows = _integers(where, ("exp", "user", "first_row", "rows"))
    end = rows[:, 2] + rows[:, 3]
    if (rows[:, 2:] < 0).any() or end.max() > len(signals):
        raise ValueError(f"hapt: {where} names rows that {_SIGNALS.path()} has not: the files do not belong together")
    cut = {number: (user, signals[first : first + count] * _UNITS) for number, user, first, count in rows.tolist()}
    return cut, _integers(parts, ("exp", "user", "activity", "start", "end"))


def _as_text(folder: Path) -> tuple[Recordings, np.ndarray]:
    """As :func:`_packed`, of the published text files."""
    labels = folder / "labels.txt"
    if not labels.is_file():
        raise FileNotFoundError(f"hapt: {labels} is not there: get the whole folder RawData of {_UCI}")
    segments = whole(labels, _spaced(labels))
    if segments.shape[1] != 5:
        raise ValueError(f"hapt: {labels} has {segments.shape[1]} numbers a line, not 5: fetch it again")
    recordings: Recordings = {}
    for number, user in np.unique(segments[:, :2], axis=0).tolist():
        halves = [_spaced(folder / f"{sensor}_exp{number:02}_user{user:02}.txt") for sensor in ("acc", "gyro")]
        if halves[0].shape != halves[1].shape or halves[0].shape[1:] != (3,):
            shapes = " and ".join(str(list(half.shape)) for half in halves)
            raise ValueError(f"hapt: recording {number} in {folder} has samples {shapes}: both must be [n, 3]")
        recordings[number] = user, np.concatenate(halves, axis=1)
    return recordings, segments


def _windows(
    recordings: Recordings, segments: np.ndarray, test: str, fraction: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Windows float[n, 128, 6], classes, subjects, and which are held out: 1, and -1 for those left out altogether."""
    x, y, subjects, held = [], [], [], []
    for number, user, activity, start, end in segments.tolist():
        if activity > _ACTIVITIES:  # postural transitions
            continue
        owner, recorded = recordings.get(number, (None, ()))
        if owner != user or not 1 <= start <= end <= len(recorded):
            raise ValueError(f"hapt: the segment {shown([number, user, activity, start, end])} is in no recording")
        samples = recorded[start - 1 : end]
        count = (len(samples) - _LENGTH) // _STEP + 1
        if count < 1:
            continue
        x.append(np.lib.stride_tricks.sliding_window_view(samples, _LENGTH, axis=0)[::_STEP].transpose(0, 2, 1))
        y.append(np.full(count, activity - 1))
        subjects.append(np.full(count, user))
        part = np.zeros(count, np.int64)
        if test == "subjects":
            part[:] = user in _TESTED
        elif later := int(fraction * count):
            part[-later:] = 1
            part[-later - 1 : -later] = -1
        held.append(part)
    if not x:
        raise ValueError("hapt: no activity goes on for a window of 128 samples: fetch the files again")
    return tuple(np.concatenate(part) for part in (x, y, subjects, held))  # type: ignore[return-value]


def _spaced(path: Path) -> np.ndarray:
    return numbers(path, [line.split() for line in read_text(path, encoding="ascii").splitlines()])


def _integers(path: Path, names: tuple[str, ...]) -> np.ndarray:
    return whole(path, numbers(path, list(csv_rows(path, names))))


_WISDM = DataFile(
    "wisdm_transformed",
    ("wisdm_v1.1_transformed.csv", "wisdm_v1.1_transformed.csv.xz"),
    "Get WISDM_ar_v1.1_transformed.arff from https://www.cis.fordham.edu/wisdm/dataset.php and write its rows as csv, "
    "with a first line of the attributes' names",
    "0432ceb82d7817056616bf84fde694298ab8b47eb91adbf7bda05bbb7b63bf73",
)
_AXES = "XYZ"
WISDM_HEADER = [
    "UNIQUE_ID", "user", *(f"{axis}{bin}" for axis in _AXES for bin in range(10)),
    *(f"{axis}{what}" for what in ("AVG", "PEAK", "ABSOLDEV", "STANDDEV") for axis in _AXES), "RESULTANT", "class",
]  # fmt: skip
_DOING = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")


@data_set(
    "dataset.wisdm",
    source=Source(
        (_WISDM,), size="1.2 MB", terms="free to use with its readme; cite the paper", papers=("kwapisz2011activity",)
    ),
)
def wisdm(
    seed: int = 0, *, test_fraction: float = 0.2, standardise: bool = True, verify: bool = True
) -> FederatedDataset:
    """Six activities of 36 people from a phone in their pocket: 43 features of each 10 seconds, 5,418 rows.

    Walking, jogging, upstairs, downstairs, sitting, standing. People have 60 to 273 rows and did not do all of it, so
    labels are very uneven. The 10 seconds do not overlap.

    Args:
      seed: of the draw of held-out rows.
      test_fraction: share of each person's rows held out, drawn uniformly.
      standardise: whether each feature has mean 0 and standard deviation 1 over all training rows. A missing time
        between peaks ("?" in 381, 131 and 103 rows) is the training rows' mean, whether it is standardised or not.
      verify: whether to check the file against its SHA-256.

    Returns:
      ``{"x": float32[n, 43], "y": int32[n]}``, six classes in the order above; features as in the file, of which XAVG
      is 0 in all rows. ``client_ids`` are the users, 1 to 36.

    Raises:
      FileNotFoundError: the file is missing.
      ValueError: another file.

    Source: Kwapisz, Weiss and Moore 2011, Activity recognition using cell phone accelerometers, section 2.2.
    """
    check_flag("wisdm(standardise=...)", standardise)
    path = _WISDM.path(verify=verify)
    rows = list(csv_rows(path, WISDM_HEADER))
    for number, row in enumerate(rows):
        if row[-1] not in _DOING:
            raise ValueError(
                f"{path}: row {number} (counted from 0) has the class {shown(row[-1])}, not one of {', '.join(_DOING)}"
            )
    missing = np.array([[field == "?" for field in row[2:-1]] for row in rows], bool)
    table = numbers(path, [["0" if field == "?" else field for field in row[1:-1]] for row in rows])
    users, x = whole(path, table[:, 0]), table[:, 1:]
    y = np.array([_DOING.index(row[-1]) for row in rows])
    trained = ~held_out(users, test_fraction, seed)
    known = trained[:, None] & ~missing
    count = np.maximum(known.sum(axis=0), 1)
    x = np.where(missing, (x * known).sum(axis=0) / count, x)
    if standardise:
        x = standardised(x, x[trained])
    return from_ids((x, y), users, test_fraction=test_fraction, seed=seed, num_classes=len(_DOING))
