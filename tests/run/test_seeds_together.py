"""All seeds in one program, as on accelerators: the same run as one program called for each seed."""

import jax
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.run import resident


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(None, id="to the end", marks=pytest.mark.slow),
        pytest.param(fjs.stopping.reached("loss", 0.3), id="stopping"),
    ],
)
def test_it_is_the_same_run(stop, monkeypatch):
    data = fjs.datasets.quadratics(num_clients=5, dim=2, sizes=[4, 3, 6, 2, 5], seed=0)

    def run():
        return fjs.simulate(
            fjs.scaffold(client_optimizer=fjs.optim.sgd(0.05)), data, seeds=[0, 1, 2, 3], rounds=7, eval_every=2,
            task=fjs.quadratic(start=1.0), cohort=fjs.cohort.uniform(2), batches=fjs.local.in_order(2),
            work=fjs.local.steps(3), stop=stop, keep_state=True,
        )  # fmt: skip

    each = run()
    monkeypatch.setattr(resident, "_ONE_BY_ONE", ())
    together = run()
    assert together.stops == each.stops
    if stop is not None:
        assert {seed: one.round for seed, one in each.stops.items()} == {0: 4, 1: 6, 2: 4, 3: 4}
    np.testing.assert_array_equal(together.evaluated, each.evaluated)
    for mine, theirs in ((together.metrics, each.metrics), (together.rounds, each.rounds)):
        assert mine.keys() == theirs.keys()
        for name, values in mine.items():
            np.testing.assert_allclose(values, theirs[name], rtol=2e-5, atol=1e-6, err_msg=name)
    for one, other in zip(
        jax.tree.leaves((together.params, together.state)), jax.tree.leaves((each.params, each.state)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_seeds_of_xlas_generators_are_their_own(monkeypatch):
    """Under vmap they draw for all keys from the first: of seeds [0, 3] and [0, 4] the second runs were the same."""
    monkeypatch.setattr(resident, "_ONE_BY_ONE", ())
    data = fjs.datasets.quadratics(num_clients=5, dim=2, seed=0)

    def losses(seeds):
        history = fjs.simulate(
            fjs.fedavg(client_optimizer=fjs.optim.sgd(0.3)), data, seeds=seeds, rounds=3, task=fjs.quadratic(),
            cohort=fjs.cohort.uniform(2), batches=fjs.local.full_batch(), work=fjs.local.steps(1),
        )  # fmt: skip
        return history["loss"]

    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(losses([0, 3])[1], losses([3])[0])
