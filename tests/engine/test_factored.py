"""Clients in the coordinates of their examples: the same rounds, and never where they would not be."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms.affine import is_affine
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.layout.choose import choose_width
from fedjax_sim.engine.plan import Plan
from fedjax_sim.models.coordinates import InCoordinates, layer_of_examples
from tests.engine.test_pooled import SGD, SIZES, mlp, nothing

INPUTS = 24
HEAVY = fjs.optim.sgd(0.1, momentum=0.5)


def given(sizes=SIZES, inputs=INPUTS):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, inputs)), rng.integers(0, 3, n)) for n in sizes]


def clients(*of):
    return fjs.datasets.from_clients(given(*of), num_classes=3)


LINEAR = fjs.classification(fjs.models.LogisticRegression(3, param_dtype=jnp.float64))


def final(algorithm, layout, data=None, task=None, **changes):
    run = {
        "cohort": fjs.cohort.uniform(4), "work": fjs.local.epochs(3), "batches": fjs.local.shuffled(4), "rounds": 3,
        "eval_every": 3, "evaluate": nothing, "progress": False,
    } | changes  # fmt: skip
    data = clients() if data is None else data
    history = fjs.simulate(algorithm, data, task=mlp(7) if task is None else task, layout=layout, **run)
    return history.params


def trained(algorithm, layout, data, task, **changes):
    """As one program."""
    given = {
        "cohort": fjs.cohort.full(), "work": fjs.local.epochs(3), "batches": fjs.local.in_order(4), "rounds": 3,
        "eval_every": 3,
    } | changes  # fmt: skip
    train = fjs.make_train(task=task, layout=layout, evaluate=nothing, evaluate_train=False, **given)
    return jax.jit(train)(algorithm, data, jax.random.key(0)).params


def same(found, wanted, tolerance=1e-13):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.all(np.isfinite(one))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.fixture
def in_coordinates(monkeypatch):
    """The arrays that clients trained in the kernel's place."""
    shapes, losses = [], InCoordinates.losses

    def noting(self, params, examples, key=None):
        shapes.append(self.layer.kernel(params).shape)
        return losses(self, params, examples, key)

    monkeypatch.setattr(InCoordinates, "losses", noting)
    return shapes


METHODS = {
    "momentum": fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1, momentum=0.9, nesterov=True, decay=0.9)),
    "proximal": fjs.fedprox(client_optimizer=SGD, mu=0.3, adaptive=True),
    "normalised": fjs.fednova(client_optimizer=HEAVY, mu=0.3, prox_momentum="outside"),
    "all at once": fjs.fednova(client_optimizer=fjs.optim.sgd(0.1, momentum=0.9, nesterov=True, decay=0.9), mu=0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_result_is_the_other_layout_s(x64, in_coordinates, name):
    """With clients of more than 13 examples, who train as ever; rates of their own; weights of examples."""
    method = METHODS[name].replace(client_learning_rate=fjs.rates.over_clients(np.linspace(0.5, 1.0, 6)))
    data = clients().with_example_weights(np.linspace(0.5, 2.0, sum(SIZES)))
    few = {"task": mlp(), "batches": fjs.local.in_order(4)} if name == "all at once" else {}
    wanted = final(method, fjs.layout.turns(), data, **few)
    assert not in_coordinates
    same(final(method, fjs.layout.factored(width=13), data, **few), wanted)
    assert set(in_coordinates) == {(14, 3 if few else 7)}


@pytest.mark.slow
def test_the_other_layout_may_be_any(x64, in_coordinates):
    """All at once, with examples that are drawn twice; and in lanes, on data off the device."""
    method = fjs.fedavg(client_optimizer=HEAVY)
    twice = {"batches": fjs.local.with_replacement(4)}
    wanted = final(method, fjs.layout.turns(), **twice)
    same(final(method, fjs.layout.factored(fjs.layout.stacked()), **twice), wanted)
    assert set(in_coordinates) == {(23, 7)}  # two less than inputs: the client of 30 trains as ever
    host = fjs.datasets.host.from_clients(given(), num_classes=3)
    same(final(method, fjs.layout.factored(fjs.layout.lanes(2)), host), final(method, fjs.layout.turns()))


def test_clients_of_one_size_that_all_fit(x64, in_coordinates):
    """No second program for larger ones; the coordinates are not taken for the second kernel, which has their shape."""
    data, method = clients((6, 6, 6)), fjs.fedavg(client_optimizer=SGD)
    wanted = trained(method, fjs.layout.turns(), data, mlp(7, 7))
    same(trained(method, fjs.layout.factored(), data, mlp(7, 7)), wanted)
    assert set(in_coordinates) == {(8, 7)}


def test_what_others_hold_reaches_nobody(x64):
    """A client that does not take part may hold anything."""
    data, method = clients(), fjs.fedavg(client_optimizer=SGD)
    x = np.array(data.examples["x"])
    x[int(data.offsets[2]) : int(data.offsets[2]) + 13] = np.nan
    poisoned = data.replace(examples={**data.examples, "x": jnp.asarray(x)})
    few = {
        "cohort": fjs.cohort.given(np.array([[1, 4], [0, 1]])),
        "batches": fjs.local.shuffled(4),
        "rounds": 2,
        "eval_every": 2,
    }
    wanted = trained(method, fjs.layout.turns(), data, LINEAR, **few)
    same(trained(method, fjs.layout.factored(), poisoned, LINEAR, **few), wanted)


@pytest.mark.slow
def test_the_derivative_is_the_other_layout_s(x64):
    data = clients()

    def loss(rate, layout):
        method = fjs.fedavg(client_optimizer=fjs.optim.sgd(rate))
        train = fjs.make_train(
            task=LINEAR, cohort=fjs.cohort.uniform(3), work=fjs.local.epochs(2), batches=fjs.local.shuffled(4),
            rounds=2, layout=layout,
        )  # fmt: skip
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(train(method, data, jax.random.key(0)).params))

    found, wanted = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(0.1, layout)
        for layout in (fjs.layout.factored(width=13), fjs.layout.turns())
    )
    same(found, wanted, 1e-12)


class Steeper(type(METHODS["momentum"])):
    """A method of somebody's own, whose objective is not affine in the gradients."""

    def objective(self, F, y, k, sent, c_i, client):
        return F(y) ** 2


class Sparse(fjs.task.Classification):
    def penalty(self, params):
        return 0.1 * sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(params))


class Squared(fjs.task.Classification):
    def batch_loss(self, params, batch, key=None):
        return super().batch_loss(params, batch, key) ** 2


class Rooted(fjs.task.Classification):
    def batch_mean(self, params, losses, batch):
        return jnp.sqrt(super().batch_mean(params, losses, batch))


@pytest.mark.slow
def test_it_is_refused_where_clients_have_no_such_coordinates(x64):
    data, method = clients(), fjs.fedavg(client_optimizer=SGD)

    def refused(why, method=method, **changes):
        with pytest.raises(ValueError, match=rf"layout=Factored\(.*because {why}.*: use layout=None"):
            final(method, fjs.layout.factored(), data, **changes)

    refused("Scaffold does more", fjs.scaffold(client_optimizer=SGD))
    refused("Clipped does more", fjs.clipped(method, 1.0))
    refused("Steeper does more", Steeper(client_optimizer=SGD))
    refused("FedAvg does more", method.replace(keep_optimizer=True))
    refused("its local solver is", fjs.fedavg(client_optimizer=fjs.optim.adam(0.1)))
    refused("FedNova keeps a state", fjs.fednova(client_optimizer=SGD, variance_reduction=True))
    refused("a diagnostic looks at the change", diagnostics=(fjs.diagnostics.drift(),))
    plain = fjs.functions(lambda key: jnp.zeros(3), lambda params, examples: examples["x"][:, 0])
    refused("Functions is no task of a flax module", task=plain)
    # What is computed of the kernel itself would be computed of its coordinates, or not at all.
    refused("Sparse has a penalty of its own", task=Sparse(mlp(7).model))
    refused("Squared has a batch_loss of its own", task=Squared(mlp(7).model))
    refused("Rooted has a batch_mean of its own", task=Rooted(mlp(7).model))


class Skip(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x) + nn.Dense(3, use_bias=False)(x)


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(fjs.models.Dropout(0.5)(x))


class Scaled(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(5, name="first")((x.reshape(len(x), -1) - 1) / 2))
        return nn.Dense(3)(fjs.models.Dropout(0.5)(x))


class Again(nn.Module):
    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(x.shape[-1])
        return nn.Dense(3)(layer(layer(x)))


def test_the_layer_that_reads_the_examples():
    def found(model, shape=(4, 6)):
        task, data = fjs.classification(model), fjs.datasets.from_clients([(np.zeros((2, *shape), np.float32), [0, 2])])
        return layer_of_examples(task, jax.eval_shape(lambda: task.init(jax.random.key(0), data)), data.examples)

    layer = found(Scaled())
    assert (layer.path, layer.inputs, layer.outputs) == (("first",), 24, 5)
    assert found(fjs.models.LogisticRegression(3)).inputs == 24
    assert "Skip is all that reads" in found(Skip(), (6,))
    assert "Noisy is all that reads" in found(Noisy(), (6,))
    assert "Again is all that reads" in found(Again(), (6,))
    assert "LeNet is all that reads" in found(fjs.models.LeNet(3), (28, 28, 1))


def test_the_rule():
    """Several epochs, over fewer examples than inputs, with a large kernel; the width leaves out few clients."""
    data = clients((16,) * 15 + (40,), 64)
    assert choose_width(64, 100, 5.0, data) == 16
    assert choose_width(64, 100, 1.0, data) is None
    assert choose_width(64, 10, 5.0, data) is None
    assert choose_width(17, 400, 5.0, data) is None
    task, algorithm = fjs.classification(fjs.models.MLP(3, (100,))), fjs.fedavg(client_optimizer=SGD)

    def chosen(epochs):
        asked = Plan(
            task, fjs.cohort.uniform(2), fjs.local.epochs(epochs), fjs.local.shuffled(8), algorithm=algorithm,
            dataset=data, key=jax.random.key(0),
        )  # fmt: skip
        return resolve(asked, 1).layout

    assert isinstance(chosen(5), type(fjs.layout.factored()))
    assert chosen(5).width == 16
    assert not isinstance(chosen(1), type(fjs.layout.factored()))


def test_methods_that_are_affine():
    """Those whose clients' hooks are all marked; a wrapper or a subclass that changes one of them is not."""
    marked = (fjs.fedavg, fjs.fedprox, fjs.fednova, fjs.fedadam, fjs.fedavgm, fjs.local_sgd)
    assert all(is_affine(make(client_optimizer=SGD)) for make in marked)
    others = (fjs.scaffold, fjs.fedexp, fjs.moon, fjs.fedsam, fjs.feddyn, fjs.large_batch_sgd)
    assert not any(is_affine(make(client_optimizer=SGD)) for make in others)
    assert not is_affine(fjs.top_k(fjs.fedavg(client_optimizer=SGD), 0.5))
