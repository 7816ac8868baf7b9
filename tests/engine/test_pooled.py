"""A cohort of one step each as one gradient: the same rounds, also where clients diverge, or the layout is refused."""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms.affine import affine, is_affine
from fedjax_sim.algorithms.contract import Stack
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.layout.choose import choose_pooled
from fedjax_sim.engine.plan import Plan, _operations

MODULE = sys.modules[type(fjs.layout.pooled()).__module__]
SIZES = (5, 9, 13, 30, 3, 22)
SGD = fjs.optim.sgd(0.1)
HEAVY = fjs.optim.sgd(0.1, momentum=0.9, nesterov=True, decay=0.9)
FEDAVG = fjs.fedavg(client_optimizer=SGD)
ONE = fjs.local.steps(1)


def given(sizes=SIZES):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, 7)), rng.integers(0, 3, n)) for n in sizes]


def clients(sizes=SIZES):
    return fjs.datasets.from_clients(given(sizes), num_classes=3)


def with_features(data, client, value):
    """With features of one client that are all of this value."""
    x = np.array(data.examples["x"])
    x[int(data.offsets[client]) : int(data.offsets[client]) + SIZES[client]] = value
    return data.replace(examples={**data.examples, "x": jnp.asarray(x)})


def mlp(*hidden):
    return fjs.classification(fjs.models.MLP(3, hidden, param_dtype=jnp.float64), weight_decay=0.01)


def nothing(params, dataset):
    return {"nothing": jnp.zeros(())}


def run(algorithm, layout, data=None, task=None, **changes):
    given = {
        "cohort": fjs.cohort.uniform(4), "work": ONE, "batches": fjs.local.shuffled(4), "rounds": 3, "eval_every": 3,
        "evaluate": nothing, "progress": False,
    } | changes  # fmt: skip
    data = clients() if data is None else data
    return fjs.simulate(algorithm, data, task=mlp(5) if task is None else task, layout=layout, **given)


def trained(algorithm, layout, data=None, **changes):
    """As one program."""
    given = {
        "task": mlp(5), "cohort": fjs.cohort.uniform(4), "work": ONE, "batches": fjs.local.shuffled(4), "rounds": 3,
        "eval_every": 3, "evaluate": nothing, "evaluate_train": False,
    } | changes  # fmt: skip
    data = clients() if data is None else data
    return jax.jit(fjs.make_train(**given, layout=layout))(algorithm, data, jax.random.key(0))


def same(found, wanted, tolerance=1e-13):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.fixture
def gradients(monkeypatch):
    """How many gradients of a cohort were traced."""
    found, gradient = [], MODULE._gradient

    def noting(*args):
        found.append(1)
        return gradient(*args)

    monkeypatch.setattr(MODULE, "_gradient", noting)
    return found


class Dropping(nn.Module):
    """A model that draws from each client's own key."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(5, param_dtype=jnp.float64)(x))
        return nn.Dense(3, param_dtype=jnp.float64)(fjs.models.Dropout(0.5)(x))


DROPPING = fjs.classification(Dropping(), weight_decay=0.01)
METHODS = {
    "momentum": (fjs.fedavg(client_optimizer=HEAVY), {}),
    "proximal": (fjs.fedprox(client_optimizer=SGD, mu=0.3, adaptive=True), {"cohort": fjs.cohort.with_replacement(4)}),
    "outside": (fjs.fednova(client_optimizer=fjs.optim.sgd(0.1, momentum=0.5), mu=0.3, prox_momentum="outside"), {}),
    "normalised": (fjs.fednova(client_optimizer=HEAVY), {"cohort": fjs.cohort.uniform(4, average="transformed")}),
    "adaptive": (fjs.fedadam(client_optimizer=SGD), {"cohort": fjs.cohort.uniform(4, average="original")}),
    "whole": (
        fjs.large_batch_sgd(client_optimizer=SGD),
        {"cohort": fjs.cohort.uniform(4, average="transformed"), "task": mlp(), "skip_nonfinite": True},
    ),
    "pieces": (FEDAVG, {"batches": fjs.local.full_batch(4), "cohort": fjs.cohort.uniform(4, average="scheme_ii")}),
    "inverse": (FEDAVG, {"cohort": fjs.cohort.independent(0.5, average="inverse")}),
    "all at once": (
        fjs.fednova(client_optimizer=HEAVY, mu=0.3),
        {"cohort": fjs.cohort.full(average="transformed"), "task": DROPPING, "batches": fjs.local.in_order(4)},
    ),
}
FAST = ("whole",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in METHODS]
)
def test_the_result_is_the_other_layout_s(x64, gradients, name):
    """With penalties, weights of examples, rates and keys of each client's own, and clients that take no step.

    Of one case a client diverges, in the rounds that have it.
    """
    method, changes = METHODS[name]
    method = method.replace(client_learning_rate=fjs.rates.over_clients(np.linspace(0.5, 1.0, 6)))
    data = clients().with_example_weights(np.linspace(0.5, 2.0, sum(SIZES)))
    diverges = "skip_nonfinite" in changes
    data = with_features(data, 4, np.inf) if diverges else data
    changes = {"work": fjs.local.given_steps(np.array([[1, 1, 0, 1, 1, 1]] * 3))} | changes
    wanted = trained(method, fjs.layout.turns(), data, **changes)
    assert not gradients
    found = trained(method, fjs.layout.pooled(), data, **changes)
    assert gradients
    same(found.params, wanted.params)
    assert {*found.rounds["nonfinite_clients"].tolist()} == ({0, 1} if diverges else {0})
    for what in ("useful_steps", "nonfinite_clients", "cohort_size"):
        np.testing.assert_array_equal(found.rounds[what], wanted.rounds[what])


@pytest.mark.parametrize(
    "batches",
    [
        fjs.local.in_order(4),
        *(pytest.param(of(4), marks=pytest.mark.slow) for of in (fjs.local.shuffled, fjs.local.full_batch)),
    ],
    ids=["in_order", "shuffled", "full_batch"],
)
def test_some_examples_at_a_time(x64, monkeypatch, batches):
    """Six clients in passes of two or three batches, the last of which is not full."""
    changes = {"batches": batches, "cohort": fjs.cohort.uniform(5), "task": mlp()}
    wanted = trained(FEDAVG, fjs.layout.turns(), **changes)
    monkeypatch.setattr(MODULE, "_NUMBERS", 4 * 8 * 2)
    found = trained(FEDAVG, fjs.layout.pooled(), **changes)
    same(found.params, wanted.params)
    assert np.all(found.rounds["computed_steps"] >= found.rounds["useful_steps"])


@pytest.mark.slow
@pytest.mark.parametrize("skip", [True, False])
def test_clients_that_diverge_are_found_and_left_out(x64, skip):
    """The other layout runs in the round of such a client, and in no other."""
    data = clients()
    poisoned = with_features(data, 2, np.inf)
    changes = {
        "cohort": fjs.cohort.given(np.array([[0, 1, 3], [1, 2, 4], [3, 4, 5]])), "skip_nonfinite": skip,
        "batches": fjs.local.shuffled(3),
    }  # fmt: skip
    wanted, found = (run(FEDAVG, layout, poisoned, **changes) for layout in (fjs.layout.turns(), fjs.layout.pooled()))
    same(found.params, wanted.params)
    for what in ("nonfinite_clients", "nonfinite_ids", "diverged"):
        np.testing.assert_array_equal(found.rounds[what], wanted.rounds[what])
    if skip:
        assert found.rounds["nonfinite_clients"].tolist() == [[0, 1, 0]]
        assert found.rounds["computed_steps"].tolist() == [[3, 6, 3]]


@pytest.mark.slow
def test_seeds_side_by_side(x64):
    """Under vmap, where the clients of one seed diverge."""
    data = clients()
    train = fjs.make_train(
        task=mlp(5), cohort=fjs.cohort.uniform(3), work=ONE, batches=fjs.local.shuffled(4), rounds=2,
        layout=fjs.layout.pooled(), skip_nonfinite=True,
    )  # fmt: skip
    poisoned = with_features(data, 2, np.nan)
    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(lambda key: train(FEDAVG, poisoned, key).params))(keys)
    for number, key in enumerate(keys):
        alone = jax.jit(train)(FEDAVG, poisoned, key).params
        assert np.all(np.isfinite(jax.tree.leaves(alone)[0]))
        same(jax.tree.map(lambda leaf, number=number: leaf[number], together), alone)


@pytest.mark.slow
def test_the_derivative_is_the_other_layout_s(x64):
    data = clients()

    def loss(rate, layout):
        method = fjs.fedavg(client_optimizer=fjs.optim.sgd(rate))
        train = fjs.make_train(
            task=mlp(), cohort=fjs.cohort.uniform(3), work=ONE, batches=fjs.local.shuffled(4), rounds=2, layout=layout
        )
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(train(method, data, jax.random.key(0)).params))

    found, wanted = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(0.1, layout)
        for layout in (fjs.layout.pooled(), fjs.layout.turns())
    )
    same(found, wanted, 1e-12)


@pytest.mark.slow
def test_examples_that_are_off_the_device(x64, gradients):
    found = run(FEDAVG, fjs.layout.pooled(), fjs.datasets.host.from_clients(given(), num_classes=3), DROPPING)
    assert gradients
    same(found.params, run(FEDAVG, fjs.layout.turns(), task=DROPPING).params)


@pytest.mark.slow
def test_losses_that_compare_a_client_s_examples(x64, gradients):
    rng = np.random.default_rng(0)
    lives = [np.stack([rng.integers(0, 2, n), rng.exponential(size=n)], -1) for n in SIZES]
    data = fjs.datasets.from_clients([(x, y) for (x, _), y in zip(given(), lives, strict=True)])
    task = fjs.cox(nn.Dense(1, param_dtype=jnp.float64))
    changes = {"batches": fjs.local.full_batch(30), "task": task}
    wanted = run(FEDAVG, fjs.layout.turns(), data, **changes)
    same(run(FEDAVG, fjs.layout.pooled(), data, **changes).params, wanted.params)
    assert gradients


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train)(x))


@pytest.mark.slow
def test_it_is_refused_where_there_is_no_such_gradient(x64):
    def refused(why, method=FEDAVG, **changes):
        with pytest.raises(ValueError, match=rf"layout=Pooled\(.*because {why}.*: use layout=None"):
            run(method, fjs.layout.pooled(), **changes)

    refused("clients may take 2 local steps", work=fjs.local.steps(2))
    refused("clients may take 8 local steps", work=fjs.local.epochs(1))
    refused("Scaffold does more", fjs.scaffold(client_optimizer=SGD))
    refused("FedAvg does more", FEDAVG.replace(keep_optimizer=True))
    refused("its local solver is", fjs.fedavg(client_optimizer=fjs.optim.adam(0.1)))
    refused("FedNova keeps a state", fjs.fednova(client_optimizer=SGD, variance_reduction=True))
    refused("a diagnostic looks at the change", diagnostics=(fjs.diagnostics.drift(),))
    refused("the model has running statistics", task=fjs.classification(Normed()))
    plain = fjs.functions(
        lambda key: {"w": jnp.zeros(3), "b": jnp.zeros((), jnp.float32)},
        lambda params, examples: examples["x"][:, 0] * params["w"][0] + params["b"].astype(examples["x"].dtype),
    )
    refused("the model has parameters of several types", task=plain)
    one = fjs.functions(lambda key: {"w": jnp.zeros(3)}, lambda params, examples: examples["x"][:, 0] * params["w"][0])
    refused("the learning rate is not one number", FEDAVG.replace(client_learning_rate={"w": 0.5}), task=one)


class Stacking(type(FEDAVG)):
    """A method of somebody's own that is marked, and should not be."""

    @affine
    def finish(self, delta, y, sent, c_i, client):
        messages, c_i = super().finish(delta, y, sent, c_i, client)
        return messages | {"all": Stack(delta)}, c_i


@pytest.mark.slow
def test_stacks_of_what_clients_train_are_no_sums(x64):
    with pytest.raises(ValueError, match=r"Stacking\.finish stacks what clients train.*leave out its mark"):
        run(Stacking(client_optimizer=SGD), fjs.layout.pooled())


def test_the_rule():
    """On a CPU: models of some size whose kernels are used once; methods whose clients survey."""
    assert choose_pooled(10, 1 << 12, 6.0 * (1 << 12))
    assert not choose_pooled(10, 1 << 12, 60.0 * (1 << 12))
    assert not choose_pooled(10, 600, 6.0)
    assert not choose_pooled(1, 1 << 12, 6.0)
    assert is_affine(fjs.large_batch_sgd(client_optimizer=SGD), surveying=True)
    assert not is_affine(FEDAVG, surveying=True)
    task, data = fjs.classification(fjs.models.MLP(3, (400,))), clients((4,) * 4)
    for work, wanted in ((ONE, fjs.layout.pooled), (fjs.local.steps(2), fjs.layout.turns)):
        asked = Plan(
            task, fjs.cohort.uniform(4), work, fjs.local.shuffled(4), algorithm=FEDAVG, dataset=data,
            key=jax.random.key(0),
        )  # fmt: skip
        assert type(resolve(asked, 1).layout) is type(wanted())


def test_what_a_round_computes():
    """Four clients of five batches of 8, as all have: mostly products."""
    task, data = fjs.classification(fjs.models.LogisticRegression(3)), clients((40,) * 6)
    asked = Plan(
        task, fjs.cohort.uniform(4), fjs.local.epochs(1), fjs.local.shuffled(8), algorithm=FEDAVG, dataset=data,
        key=jax.random.key(0),
    )  # fmt: skip
    products = 4 * 5 * (4 * 8 * 7 * 3)
    assert products < _operations(asked) < 2 * products
