"""What is chosen for accelerators, on a machine without one: equal results, and programs lowered for a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim.core import sampling
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.layout import base
from fedjax_sim.engine.layout.base import Bounds
from fedjax_sim.engine.layout.choose import choose_layout
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state, run_round

SIZES = [3, 17, 6, 1, 9, 30, 4, 12]
sgd = fjs.optim.sgd


def data(shape=(5,), classes=3):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((sum(SIZES), *shape)), rng.integers(0, classes, sum(SIZES), np.int32)
    return fjs.datasets.from_ids((x, y), np.repeat(np.arange(len(SIZES)), SIZES), num_classes=classes)


METHODS = {
    "fedavg": lambda rate: fjs.fedavg(client_optimizer=sgd(rate, momentum=0.5)),
    "scaffold, with a survey and states": lambda rate: fjs.scaffold(option="I", client_optimizer=sgd(rate)),
    "feddane, in two phases": lambda rate: fjs.feddane(client_optimizer=sgd(rate), mu=0.1),
}


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("what", ["values", "and derivatives"])
@pytest.mark.parametrize("method", METHODS)
def test_buckets_are_the_other_layouts(method, what):
    """With clients that are dropped, and a slot with nobody."""
    dataset = data()
    cohorts = np.array([[5, 1, 7, 3, 0, 2], [4, 5, -1, 6, 1, 3]])

    def final(layout, rate):
        train = fjs.make_train(
            task=fjs.classification(fjs.models.LogisticRegression(3, jnp.float64)), rounds=2, layout=layout,
            cohort=fjs.cohort.given(cohorts), work=fjs.local.stragglers(0.3, 2, keep=False), batch_size=4,
        )  # fmt: skip
        result = train(METHODS[method](rate), dataset, jax.random.key(0))
        loss = result.metrics["loss"][-1]
        state = [leaf for leaf in jax.tree.leaves(result.state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        return loss, (ravel_pytree(state)[0], result.rounds["useful_steps"], result.rounds["computed_steps"])

    def run(layout):
        of_rate = functools.partial(final, layout)
        if what == "values":
            return jax.device_get((jax.jit(of_rate)(0.2), 0.0))
        return jax.device_get(jax.jit(jax.value_and_grad(of_rate, has_aux=True))(0.2))

    (loss, (state, useful, computed)), slope = run(fjs.layout.buckets(2))
    (other, (states, steps, all_steps)), slopes = run(fjs.layout.stacked())
    np.testing.assert_allclose([loss, slope], [other, slopes], rtol=1e-9)
    np.testing.assert_allclose(state, states, rtol=1e-8, atol=1e-11)
    assert useful.tolist() == steps.tolist()
    assert (useful < computed).all()
    if what == "values":
        assert (computed < 0.8 * all_steps).all()
    else:  # of which the derivative's program is that of the stack
        assert computed.tolist() == all_steps.tolist()


SHUFFLED = fjs.local.shuffled(4)
KEPT = []  # the programs whose memory their operations are in


def traced_anew():
    """What jax keeps of draws, which are functions of their own, is that of one backend."""
    sampling.permute.clear_cache()
    sampling.choose.clear_cache()


def lowered(layout, model, shape=(5,), batches=SHUFFLED):
    """The functions of a round's program for a GPU, by name, as MLIR."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        asked = Plan(
            fjs.classification(model), fjs.cohort.uniform(6), fjs.local.epochs(2), batches, layout,
            algorithm=fjs.fedavg(client_optimizer=sgd(0.1)), dataset=data(shape), key=jax.random.key(0),
        )  # fmt: skip
        plan = resolve(asked, 1)
        own = jax.jit(lambda *given: run_round(*given))  # of this call: nothing that was traced before
        traced_anew()
        program = own.trace(plan, init_state(plan), jnp.int32(0)).lower(lowering_platforms=("cuda",))
    traced_anew()
    KEPT.append(program)
    module = program.compiler_ir("stablehlo")
    return {op.attributes["sym_name"].value: op for op in module.body.operations}


def operations(op, functions):
    """All operations inside, called functions included."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                called = inner.attributes["callee"].value if "callee" in inner.attributes else None
                yield from operations(functions[called] if called else inner.operation, functions)


def named(name, op, functions):
    return [one for one in operations(op, functions) if one.operation.name == name]


def is_static(loop):
    """Whether a loop ends when a number gets to a constant."""
    block = loop.operation.regions[0].blocks[0]
    compared = list(block.operations)[-1].operands[0].owner
    if getattr(compared, "name", None) != "stablehlo.compare":
        return False
    return "stablehlo.constant" in [getattr(one.owner, "name", None) for one in compared.operands]


def step_loops(functions):
    """The loops of a round that multiply, and how many products each has."""
    loops = named("stablehlo.while", functions["main"], functions)
    found = [(loop, len(named("stablehlo.dot_general", loop.operation, functions))) for loop in loops]
    return [one for one in found if one[1]]


CONVOLUTIONS = fjs.models.FemnistCNN(3, channels=(2, 3), hidden=4)
DENSE = fjs.models.LogisticRegression(3)


def inside(loop, functions):
    """What a loop has beside arithmetic: loops, choices, and draws by the names of their functions."""
    found = set()
    for one in operations(loop.operation, functions):
        name = one.attributes["callee"].value if "callee" in one.attributes else one.operation.name
        found |= {what for what in ("threefry", "permute", "while", "case", "convolution") if what in name}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "loops"),
    [
        pytest.param(fjs.layout.stacked(), [True], marks=pytest.mark.slow),
        (fjs.layout.buckets(2), [False, True, False, True]),
    ],
)
def test_the_programs_for_a_gpu(layout, loops):
    """One product for each use of a layer, no convolution in groups, no draw in a loop of steps, no other loops.

    Those of buckets end with the clients, and ask for it once in some steps: inside are loops of static length.
    """
    functions = lowered(layout, CONVOLUTIONS, (8, 8, 1))
    assert len(named("stablehlo.while", functions["main"], functions)) == len(loops)
    found = step_loops(functions)
    assert [is_static(loop) for loop, _ in found] == loops
    # Of four layers the outputs, their derivatives in kernels, and of all but the first in what they receive.
    assert {products for _, products in found} == {11}
    assert set().union(*(inside(loop, functions) for loop, _ in found)) <= {"while"}


@pytest.mark.slow
def test_what_these_checks_look_for_is_found_elsewhere(monkeypatch):
    functions = lowered(fjs.layout.lanes(3), DENSE)
    ((loop, products),) = step_loops(functions)
    assert (is_static(loop), products) == (False, 2)
    assert inside(loop, functions) == {"case"}  # whether a lane is free; drawn ahead here too
    stacked = functools.partial(lowered, fjs.layout.stacked(), DENSE)
    functions = stacked(batches=fjs.local.with_replacement(4))
    assert [inside(loop, functions) for loop, _ in step_loops(functions)] == [set()]
    monkeypatch.setattr(base, "_MOST_AHEAD", 100)
    for batches, draws in (
        (fjs.local.shuffled(4), {"permute"}),
        (fjs.local.with_replacement(4), {"threefry"}),
    ):
        functions = stacked(batches=batches)
        assert [inside(loop, functions) for loop, _ in step_loops(functions)] == [draws]
    functions = lowered(fjs.layout.turns(), CONVOLUTIONS, (8, 8, 1))
    assert all("convolution" in inside(loop, functions) for loop, _ in step_loops(functions))


def test_the_rule_for_accelerators_counts_steps(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    stacked, buckets, lanes = fjs.layout.stacked(), fjs.layout.buckets(), fjs.layout.lanes
    assert choose_layout(10, 1000, Bounds(5, 50)) == stacked
    assert choose_layout(10, 1000, Bounds(1, 10), 1.0) == stacked
    assert choose_layout(10, 1000, Bounds(25, 243), 24.0) == stacked
    assert choose_layout(10, 1000, Bounds(25, 243), 12.0) == buckets  # the largest together, and the mean of all
    assert choose_layout(12, 1000, Bounds(60, 300)) == buckets
    assert choose_layout(2000, 1000, Bounds(60, 30_000), 20.0) == buckets
    # Where there is no room for all models side by side.
    assert choose_layout(2000, 10_000_000, Bounds(60, 30_000), 60.0) == lanes(32)
    assert choose_layout(2000, 1_000_000, Bounds(60, 30_000), 20.0) == lanes(268)
    asked = Plan(
        fjs.quadratic(), fjs.cohort.full(), fjs.local.epochs(2), SHUFFLED,
        algorithm=fjs.fedavg(client_optimizer=sgd(0.1)),
        dataset=fjs.datasets.quadratics(num_clients=8, dim=2, sizes=[200, 3, 2, 2, 2, 2, 2, 2], seed=0),
        key=jax.random.key(0),
    )  # fmt: skip
    assert resolve(asked, 1).layout == buckets
    assert resolve(asked._replace(cohort=fjs.cohort.uniform(7)), 1).layout == buckets
    assert resolve(asked._replace(work=fjs.local.steps(3)), 1).layout == stacked
    # Of steps that are drawn or given only the largest number is known beforehand.
    given = fjs.local.given_steps(np.full((1, 8), 3), most=100)
    for work in (given, fjs.local.gaussian_steps(3.0, 1.0, most=9)):
        assert resolve(asked._replace(work=work), 1).layout == buckets
    alike = asked._replace(dataset=fjs.datasets.quadratics(num_clients=8, dim=2, seed=0))
    assert resolve(alike, 1).layout == stacked
    for work in (fjs.local.random_epochs(1, 20), fjs.local.stragglers(0.5, 2)):
        assert resolve(alike._replace(work=work), 1).layout == buckets
    assert choose_layout(10, 1000, Bounds(5, 50, varies=True)) == buckets
