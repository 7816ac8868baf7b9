"""Data that is drawn, not read: FedProx's synthetic(alpha, beta) and FedNova's quadratic clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.values import INT32_MAX, check_choice, check_count, check_real
from fedjax_sim.datasets.array_checks import host_array
from fedjax_sim.datasets.construct import from_clients, from_ids
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.partition.dealing import checked_client_sizes
from fedjax_sim.datasets.sources.record import Source, data_set
from fedjax_sim.datasets.validate import check_room

_FEATURES = 60
_CLASSES = 10
_SMALLER = "give fewer clients, smaller sizes or a smaller dim"


@data_set("dataset.synthetic", source=Source(papers=("li2020federated",)))
def synthetic(
    alpha: float,
    beta: float,
    num_clients: int = 30,
    seed: int = 0,
    *,
    iid: bool = False,
    spread: Literal["std", "variance"] = "std",
    test_fraction: float = 0.2,
    sizes: Sequence[int] | None = None,
    max_size: int | None = None,
    dtype: Any = None,
) -> FederatedDataset:
    """FedProx's synthetic data: linear classifiers whose models (alpha) and inputs (beta) differ between clients.

    For client k, with j = 1 .. 60 features and 10 classes::

        u_k ~ N(0, alpha)    W_k[j, c], b_k[c] ~ N(u_k, 1)
        B_k ~ N(0, beta)     v_k[j] ~ N(B_k, 1)
        x ~ N(v_k, diag(j^-1.2))    y = argmax(x W_k + b_k)    n_k = floor(LogNormal(4, 2)) + 50

    alpha moves the clients' models apart, beta their inputs. synthetic(0, 0) is not IID: W_k, b_k and v_k still
    differ. The paper writes N(0, alpha), a variance; its authors' code passes alpha as the standard deviation, which is
    the default here (the readings differ at 0.5, not at 0 and 1).

    Client k is the same whatever the number of clients, and its model is the same whatever its size.

    Args:
      alpha: spread of u_k, >= 0.
      beta: spread of B_k, >= 0.
      num_clients: N (30 in FedProx, 100 in Li et al.).
      seed: of all draws.
      iid: one W, b ~ N(0, 1) for all clients and v_k = 0; alpha and beta must then be 0.
      spread: whether alpha and beta are standard deviations ("std") or variances ("variance").
      test_fraction: share of each client's examples held out (0.2 in the paper, 0.1 in its code).
      sizes: n_k of each client, before holding out; by default the log-normal draw.
      max_size: cap on n_k; the log-normal tail is heavy (std 2,950 beside a mean of 453).
      dtype: of the features; the default float type by default.

    Returns:
      ``{"x": float[n, 60], "y": int32[n]}`` with ten classes, by client.

    Source: Li et al. 2020 (FedProx), arXiv:1812.06127, section 5.1 and appendix C.1.

    Example:
      >>> data = synthetic(1.0, 1.0, num_clients=3, sizes=[50, 100, 150])
      >>> data.sizes.tolist(), data.test.sizes.tolist()
      ([40, 80, 120], [10, 20, 30])
    """
    check_real("synthetic(alpha)", alpha, low=0.0)
    check_real("synthetic(beta)", beta, low=0.0)
    check_count("synthetic(num_clients)", num_clients)
    check_count("synthetic(seed)", seed, low=0)
    check_choice("synthetic(spread=...)", spread, ("std", "variance"))
    if iid and (alpha != 0 or beta != 0):
        raise ValueError(f"synthetic(alpha={alpha}, beta={beta}, iid=True): IID clients have no spread, give 0 and 0")
    stds = (float(alpha), float(beta)) if spread == "std" else (float(alpha) ** 0.5, float(beta) ** 0.5)
    counts = (
        _log_normal_sizes(num_clients, seed)
        if sizes is None
        else checked_client_sizes("synthetic", sizes, INT32_MAX, num_clients)
    )
    if max_size is not None:
        check_count("synthetic(max_size=...)", max_size)
        counts = np.minimum(counts, max_size)

    made = _float_dtype("synthetic", dtype)
    # At the peak: the clients' arrays, these in one, what is held out of it, and the data set.
    remedy = "cap the sizes with max_size=, give fewer clients or a narrower dtype="
    check_room("synthetic, while it is made", int(counts.sum()), 4 * _FEATURES * made.itemsize, remedy)
    deviation = np.arange(1, _FEATURES + 1) ** -0.6  # the square root of the variance j^-1.2
    clients = []
    for inputs, weights, bias, noise in _clients(counts, seed, stds, iid):
        features = inputs + deviation * noise
        clients.append((features.astype(made), np.argmax(features @ weights + bias, axis=1)))
    return from_clients(clients, test_fraction=test_fraction, seed=seed, num_classes=_CLASSES)


@data_set("dataset.quadratics")
def quadratics(
    num_clients: int = 30,
    dim: int = 10,
    seed: int = 0,
    *,
    scale: float = 0.1,
    hessians: Any = None,
    sizes: Sequence[int] | None = None,
    dtype: Any = None,
) -> FederatedDataset:
    """Clients with the objectives F_i(x) = 1/2 x^T H_i x - e_i^T x, where e_i ~ N(0, scale^2 I).

    A client's data is its H_i and e_i, so that the loss of an example is the whole objective. The default is FedNova's
    figure 2: 30 clients, H_i = I and variance 0.01 (the paper does not state the dimension).

    Args:
      num_clients: N.
      dim: d.
      seed: of the e_i.
      scale: standard deviation of the entries of e_i.
      hessians: symmetric H_i, float[N, d, d], or one for all, float[d, d]; the identity by default.
      sizes: n_i; client i holds n_i copies of its one example, which sets p_i = n_i / n. One each by default.
      dtype: of the arrays; the default float type by default.

    Returns:
      ``{"H": float[n, d, d], "e": float[n, d]}``, by client.

    Source: Wang et al. 2020 (FedNova), arXiv:2007.07481, section 3 and figure 2.

    Example:
      >>> data = quadratics(num_clients=2, dim=3, sizes=[1, 4])
      >>> data.examples["H"].shape, data.examples["e"].shape
      ((5, 3, 3), (5, 3))
    """
    check_count("quadratics(num_clients)", num_clients)
    check_count("quadratics(dim)", dim)
    check_count("quadratics(seed)", seed, low=0)
    check_real("quadratics(scale=...)", scale, low=0.0)
    check_room("quadratics", num_clients, 8 * dim * dim, _SMALLER)  # float64, until their type is known
    given = np.eye(dim) if hessians is None else host_array("quadratics(hessians=...)", hessians)
    if given.shape not in ((dim, dim), (num_clients, dim, dim)):
        raise ValueError(
            f"quadratics(hessians=...) has shape {given.shape}: it must be {(num_clients, dim, dim)}, or {(dim, dim)} "
            "for one Hessian that all clients share"
        )
    e = scale * np.random.Generator(np.random.PCG64(seed)).standard_normal((num_clients, dim))
    return quadratics_from(np.broadcast_to(given, (num_clients, dim, dim)), e, sizes=sizes, dtype=dtype)


def quadratics_from(H: Any, e: Any, *, sizes: Sequence[int] | None = None, dtype: Any = None) -> FederatedDataset:
    """Clients with the objectives F_i(x) = 1/2 x^T H_i x - e_i^T x for given H_i, float[N, d, d], and e_i, float[N, d].

    ``sizes`` and ``dtype`` as in :func:`quadratics`.

    Raises:
      ValueError: shapes that do not agree, an H_i that is not symmetric, sizes below one.
    """
    made = _float_dtype("quadratics_from", dtype)
    hessians, linear = (_reals(f"quadratics_from({name})", given, made) for name, given in (("H", H), ("e", e)))
    if linear.ndim != 2 or hessians.shape != (*linear.shape, linear.shape[-1]):
        raise ValueError(
            f"quadratics_from: H has shape {hessians.shape} and e has shape {linear.shape}; they must be [N, d, d] and "
            "[N, d]"
        )
    gap = np.abs(hessians - np.swapaxes(hessians, 1, 2))
    round_off = 8 * float(jnp.finfo(made).eps)
    tolerance = round_off * np.abs(hessians).max(axis=(1, 2), initial=0.0)
    for client in np.flatnonzero(gap.max(axis=(1, 2), initial=0.0) > tolerance)[:1]:
        raise ValueError(f"quadratics_from: H of client {client} is not symmetric; use (H + H^T) / 2")
    counts = 1 if sizes is None else checked_client_sizes("quadratics", sizes, INT32_MAX, len(linear))
    owner = np.repeat(np.arange(len(linear)), counts)
    check_room("quadratics_from", owner.size, hessians[:1].nbytes, _SMALLER)
    return from_ids({"H": hessians[owner], "e": linear[owner]}, owner)


def _clients(
    counts: np.ndarray, seed: int, stds: tuple[float, float], iid: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yields v_k [60], W_k [60, 10], b_k [10] and standard normal noise [n_k, 60] of each client."""
    shared = _stream(seed, 1)
    common = shared.standard_normal((_FEATURES, _CLASSES)), shared.standard_normal(_CLASSES)
    for client, count in enumerate(counts):
        rng = _stream(seed, 2, client)
        model_mean, input_mean = rng.standard_normal(2) * stds
        inputs = input_mean + rng.standard_normal(_FEATURES)
        weights = model_mean + rng.standard_normal((_FEATURES, _CLASSES))
        bias = model_mean + rng.standard_normal(_CLASSES)
        if iid:
            inputs, (weights, bias) = np.zeros(_FEATURES), common
        yield inputs, weights, bias, rng.standard_normal((int(count), _FEATURES))


def _log_normal_sizes(num_clients: int, seed: int) -> np.ndarray:
    return np.floor(_stream(seed, 0).lognormal(4.0, 2.0, num_clients)).astype(np.int64) + 50


def _reals(what: str, values: Any, dtype: Any) -> np.ndarray:
    array = host_array(what, values)
    if array.dtype.kind not in "biu" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{what} has dtype {array.dtype}: give real numbers")
    return array.astype(dtype)


def _float_dtype(what: str, dtype: Any) -> Any:
    made = jnp.dtype(jnp.result_type(float) if dtype is None else dtype)
    if not jnp.issubdtype(made, jnp.floating):
        raise TypeError(f"{what}(dtype={made}): it must be a floating-point type")
    if jax.dtypes.canonicalize_dtype(made) != made:
        raise ValueError(f"{what}(dtype={made}): enable it first with jax.config.update('jax_enable_x64', True)")
    return made


def _stream(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
