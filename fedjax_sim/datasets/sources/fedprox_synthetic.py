"""The synthetic data that FedProx's authors published."""

from __future__ import annotations

from typing import Literal

from fedjax_sim.core.descriptions import recipe
from fedjax_sim.core.values import suggest
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.own.leaf import from_leaf
from fedjax_sim.datasets.reading.places import check_sha256, data_dir, find

_SHA256 = {
    "0_0": "f1226a9f3688487c76c5192dd966d1bcf95df09dc01fe20c14e771dcf8f1cdf5",
    "0.5_0.5": "7636613f78ae1f1fcb14d97d8995ae0456e7d585677509f02bae439be8aa2362",
    "1_1": "b1ca3be6df86de9e7c74205dcc215d2f5e3879ff3d7be45adcf7ec927a9f521a",
    "iid": "d687892eac4c5fd3cec2bf6f07e898f47ae0664b653233e279b906a2b641476f",
}
_GET = "Get the folder data/synthetic_{} of https://github.com/litian96/FedProx{}"


@recipe("dataset.fedprox_synthetic")
def fedprox_synthetic(
    variant: Literal["0_0", "0.5_0.5", "1_1", "iid"] = "1_1",
    halves: Literal["test", "both"] | None = None,
    *,
    verify: bool = True,
) -> FederatedDataset:
    """The authors' own draw of synthetic(α, β): 30 devices, 60 features, 10 classes.

    Their repository has the test halves, a tenth of each device's examples; its generator has no seed, so the rest
    cannot be made again. The test halves alone become a data set to **train** on (there is no test part): small, but
    with the published examples, where :func:`fedjax_sim.datasets.synthetic` draws its own.

    Args:
      variant: which (α, β), or the IID set.
      halves: "test" trains on the test halves; "both" trains on ``mytrain.json`` and tests on ``mytest.json``; None
        takes both where the training file is present. Files are looked for as
        ``<data>/fedprox_synthetic/synthetic_<variant>/mytest.json`` and ``.../data/test/mytest.json``, as in the
        repository.
      verify: whether to check the test file against its SHA-256.

    Returns:
      ``{"x": float[n, 60], "y": int32[n]}``, ten classes; devices f_00000 to f_00029.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: an unknown variant, or a file that is not the published one.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, section 5.1; https://github.com/litian96/FedProx (MIT).
    """
    if variant not in _SHA256:
        raise ValueError(f"fedprox_synthetic(variant={variant!r}): {suggest(str(variant), list(_SHA256))}")
    if halves not in (None, "test", "both"):
        raise ValueError(f"fedprox_synthetic(halves={halves!r}): {suggest(str(halves), ['test', 'both'])}")
    tests = _places(variant, "test")
    test = find("fedprox_synthetic", *tests, get=_GET.format(variant, ""))
    if verify:
        check_sha256(test, _SHA256[variant])
    trains = _places(variant, "train")
    if halves == "test" or (
        halves is None and not any((data_dir() / "fedprox_synthetic" / p).exists() for p in trains)
    ):
        return from_leaf(test, num_classes=10)
    train = find(
        "fedprox_synthetic", *trains, get=_GET.format(variant, " as its authors have it, or give halves='test'")
    )
    data = from_leaf(train, test, num_classes=10)
    shape = data.examples["x"].shape[1:]
    if shape != (60,) or data.num_clients != 30:
        raise ValueError(
            f"{train} has {data.num_clients} devices and features of shape {list(shape)}, and 30 and [60] are needed: "
            "is it the right file?"
        )
    return data


def _places(variant: str, half: str) -> list[str]:
    return [f"synthetic_{variant}/my{half}.json", f"synthetic_{variant}/data/{half}/my{half}.json"]
