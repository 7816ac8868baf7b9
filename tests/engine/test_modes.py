"""JAX's modes: NaN checks, double precision, no compilation (which test_sweep.py has for every method)."""

import jax
import numpy as np
import pytest

import fedjax_sim as fjs

METHODS = ["fedavg", "scaffold", "fednova", "fedadam", "feddyn", "fedaware", "qfedavg", "feddane"]


every_method = [pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
SETTING = {
    "task": fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3), "rounds": 4, "eval_every": 2,
    "batch_size": 10, "cohort": fjs.cohort.uniform(3), "work": fjs.local.stragglers(0.5, 2),
}  # fmt: skip


def made(name, **changes):
    return getattr(fjs, name)(client_optimizer=fjs.optim.sgd(0.05), **changes)


def problem(dtype="float32"):
    return fjs.datasets.synthetic(1.0, 1.0, num_clients=6, max_size=40, seed=0, dtype=dtype)


QUADRATIC = fjs.quadratic(), fjs.datasets.quadratics(num_clients=6, dim=2, sizes=[3, 14, 25, 1, 10, 6], seed=0)
LOGISTIC = SETTING["task"], problem()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold"])  # which divides by the steps of a client
def test_no_nan_is_made_on_the_way_in_quadratics(name):
    # all masked steps are computed
    few = {"batch_size": None, "batches": fjs.local.in_order(10), "diagnostics": ["e_lud", "drift"]}
    no_nan_is_made(name, *QUADRATIC, layout=fjs.layout.stacked(), **few)


@pytest.mark.parametrize("name", every_method)
def test_no_nan_is_made_on_the_way(name):
    no_nan_is_made(name, *LOGISTIC)


def no_nan_is_made(name, task, data, **changes):
    """Masked steps, dropped clients and empty slots divide nothing by zero, nor do their derivatives."""
    key = jax.random.key(0)
    setting = SETTING | {
        "task": task, "adjoint": fjs.adjoints.direct(),
        "cohort": fjs.cohort.independent(0.4), "diagnostics": ["e_lud", "coherence", "drift", "update_norms"],
        "system": fjs.systems.devices(seconds_per_step=0.1, dropout=0.3), **changes,
    }  # fmt: skip

    def final(algorithm):
        result = fjs.make_train(**setting)(algorithm, data, key)
        return result.metrics["loss"][-1], result

    with jax.debug_nans(True):
        slope, result = jax.jit(jax.grad(final, has_aux=True))(made(name))
    assert (result.rounds["cohort_size"] < 6).any()
    assert np.isfinite(result.metrics["loss"]).all()
    assert np.isfinite(slope.client_optimizer.learning_rate)


@pytest.mark.slow
def test_a_nan_that_is_made_is_found_and_only_that():
    task, data = QUADRATIC
    setting = SETTING | {"task": task, "layout": fjs.layout.stacked()}
    with jax.debug_nans(True):
        fjs.simulate(made("fedavg"), data, **setting)
        with pytest.raises(FloatingPointError):
            fjs.simulate(made("fedavg").replace(server_learning_rate=1e38), data, **setting)


@pytest.mark.parametrize("name", every_method)
@pytest.mark.usefixtures("x64")
def test_double_precision(name):
    """Numbers given in Python fit any precision; the model's and the data's own types stay as they are."""
    single = fjs.simulate(made(name), problem(), **SETTING)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(single.params)} == {"float32"}
    data = problem("float64")
    start = jax.tree.map(lambda leaf: leaf[0].astype("float64") * 0, single.params)
    double = fjs.simulate(made(name), data, **SETTING, initial_params=start)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(double.params)} == {"float64"}
    assert double["loss"].dtype == "float64"
    np.testing.assert_allclose(single["loss"], double["loss"], rtol=2e-5)
    assert (single["loss"] != double["loss"]).any()
