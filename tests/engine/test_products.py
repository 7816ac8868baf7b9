"""Accelerators round the factors of products unless told otherwise: only those of models are left to that.

A Gram matrix or a mean in TF32 or bfloat16 would be wrong in its third digit without a word. Of quadratics nothing is
rounded, so nothing of their runs may be.
"""

import re

import jax
import pytest

import fedjax_sim as fjs
from fedjax_sim.core import descriptions
from tests.algorithms import test_sweep as sweep

pytestmark = pytest.mark.usefixtures("x64")
STACKED = fjs.layout.stacked()  # sums over the cohort are products
FAST = {"fedaware", "fedlopt", "robust"}
VARIANTS = [
    pytest.param(name, number, marks=[] if name in FAST and not number else pytest.mark.slow)
    for name, number in sweep.VARIANTS
]
PRODUCT = re.compile(r"dot_general\[.*?\] ", re.DOTALL)


def products(program, *arguments):
    """How many a program has, and those that do not ask for all digits."""
    found = PRODUCT.findall(str(jax.make_jaxpr(program)(*arguments)))
    return len(found), [one for one in found if "HIGHEST" not in one]


@pytest.mark.parametrize(("name", "number"), VARIANTS)
def test_those_of_methods_have_all_digits(name, number):
    algorithm, average = sweep.make(name, number)
    run = sweep.given(STACKED, average, sweep.batches_of(algorithm, sweep.SHUFFLED))
    some, rounded = products(run, algorithm, sweep.problem(), *sweep.arguments(algorithm))
    assert some
    assert not rounded


@pytest.mark.slow
def test_those_of_diagnostics_have_all_digits():
    assert fjs.diagnostics  # importing it registers them
    names = [name.partition(".")[2] for name in descriptions.registered("diagnostic")]

    def run(algorithm, data, **more):
        train = fjs.make_train(
            task=fjs.quadratic(), rounds=1, cohort=fjs.cohort.uniform(3), work=fjs.local.steps(2), batch_size=2, **more
        )
        return train(algorithm, data, jax.random.key(0))

    algorithm, data = fjs.fednova(client_optimizer=fjs.optim.sgd(0.1)), sweep.problem()
    few, _ = products(run, algorithm, data)
    many, rounded = products(lambda *given: run(*given, diagnostics=names), algorithm, data)
    assert many > few + 10
    assert not rounded


def test_those_of_models_are_as_jax_has_them():
    """What everybody expects, and what is fast there."""
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=4, max_size=30, seed=0)
    train = fjs.make_train(
        task=fjs.classification(fjs.models.LogisticRegression(10)), rounds=1, cohort=fjs.cohort.uniform(2),
        work=fjs.local.steps(2), batch_size=5,
    )  # fmt: skip
    assert products(train, fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), data, jax.random.key(0))[1]
