"""Real hyper-parameters by name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim import paths

sgd = fjs.optim.sgd


def fedprox():
    return fjs.fedprox(
        client_optimizer=sgd(0.1, momentum=0.9),
        client_learning_rate={"w": 0.5, "layers": [jnp.ones(3), 2.0]},
        server_learning_rate=fjs.rates.over_rounds([1.0, 0.5]),
        mu=0.3,
    )


def test_every_real_leaf_has_a_path():
    names = [
        "client_optimizer.learning_rate", "client_optimizer.momentum", "client_learning_rate.layers.0",
        "client_learning_rate.layers.1", "client_learning_rate.w", "server_learning_rate.values", "mu", "increment",
    ]  # fmt: skip
    found = paths.real_leaves(fedprox())
    assert sorted(found) == sorted(names)
    assert [found["mu"], found["client_optimizer.momentum"], found["client_learning_rate.w"]] == [0.3, 0.9, 0.5]
    assert all(paths.get(fedprox(), name) is not None for name in names)


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (fjs.ema(fjs.scaffold(client_optimizer=sgd(0.1)), decay=0.5), {"base.client_optimizer.learning_rate", "decay"}),
        (fjs.fedaware(client_optimizer=sgd(0.1), clusters=[0, 1]), {"client_optimizer.learning_rate", "alpha"}),
        (fjs.optim.from_optax("rmsprop", learning_rate=0.1, decay=0.9), {"arguments.learning_rate", "arguments.decay"}),
        (fjs.classification(fjs.models.LogisticRegression(3), weight_decay=0.1), {"weight_decay"}),
        (fjs.cohort.uniform(3), set()),
        ({"a": 1.0, "b": [1, np.float32(2.0)], "c": jax.random.key(0), "d": None}, {"a", "b.1"}),
    ],
    ids=["wrapper", "integers", "optax", "task", "cohort", "dictionary"],
)
def test_of_anything_that_is_a_pytree(obj, expected):
    assert set(paths.real_leaves(obj)) - {"base.client_learning_rate", "base.server_learning_rate",
                                          "client_learning_rate", "server_learning_rate"} == expected  # fmt: skip


def test_replace_changes_what_is_named_and_nothing_else():
    before = fedprox()
    after = paths.replace(before, {"mu": 1, "client_learning_rate.layers.0": jnp.zeros(3)})
    assert after.mu == 1.0
    assert isinstance(after.mu, float)
    assert after.client_learning_rate["layers"][0].tolist() == [0.0, 0.0, 0.0]
    assert jax.tree.structure(after) == jax.tree.structure(before)
    assert before.mu == 0.3
    same = paths.replace(before, paths.real_leaves(before))
    jax.tree.map(np.testing.assert_array_equal, same, before)


def test_values_may_be_integers_traced_or_stacked():
    before = fedprox()
    assert paths.replace(before, {"server_learning_rate.values": [1, 2]}).server_learning_rate.values.dtype.kind == "f"
    assert paths.replace(before, {"mu": jnp.arange(3)}).mu.dtype == jnp.float32
    stacked = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    assert paths.replace(before, {"server_learning_rate.values": stacked}).server_learning_rate.values.shape == (2, 2)
    gradient = jax.grad(lambda mu: paths.replace(before, {"mu": mu}).mu ** 2)(3.0)
    assert gradient == 6.0


def test_a_dictionary_of_leaves_is_what_grad_takes_where_there_are_integers():
    algorithm = fjs.fedaware(client_optimizer=sgd(0.1), clusters=[0, 1], alpha=0.4)

    def value(algorithm):
        return algorithm.alpha**2 * algorithm.client_optimizer.learning_rate

    with pytest.raises(TypeError, match="int32"):
        jax.grad(value)(algorithm)
    reals = {path: jnp.float32(leaf) for path, leaf in paths.real_leaves(algorithm).items()}
    gradient = jax.grad(lambda reals: value(paths.replace(algorithm, reals)))(reals)
    np.testing.assert_allclose(gradient["alpha"], 2 * 0.4 * 0.1, rtol=1e-6)
    np.testing.assert_allclose(gradient["client_optimizer.learning_rate"], 0.16, rtol=1e-6)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("alhpa", "no hyper-parameter 'alhpa': did you mean 'alpha'"),
        ("client_optimizer.learning_rte", "did you mean 'client_optimizer.learning_rate'"),
        ("client_optimizer", "not one leaf: give 'client_optimizer.learning_rate'"),
        ("client_optimizer.nesterov", "= False, which is structure: only real leaves.*make one FedAware"),
        ("candidates", "= 'seen', which is structure"),
        ("clusters", "of type int32: only real leaves have a derivative.*make one FedAware"),
        ("server_optimizer", "= None, .*give it a number"),
        ("client_optimizer.momentum", "= None, .*give it a number"),
        ("server_optimizer.learning_rate", "no hyper-parameter"),
        ("alpha.0", "no hyper-parameter"),
        ("", "no hyper-parameter ''"),
    ],
)  # fmt: skip
def test_other_paths_are_refused(path, message):
    algorithm = fjs.fedaware(client_optimizer=sgd(0.1), clusters=[0, 1])
    for call in (paths.get, lambda obj, path: paths.replace(obj, {path: 0.5})):
        with pytest.raises(ValueError, match=message):
            call(algorithm, path)


def test_what_hides_its_hyper_parameters_has_no_paths():
    with pytest.raises(ValueError, match=r"known: client_learning_rate, server_learning_rate"):
        paths.get(fjs.fedavg(client_optimizer=optax.sgd(0.1)), "client_optimizer.learning_rate")
    with pytest.raises(ValueError, match="Uniform has no real leaves"):
        paths.get(fjs.cohort.uniform(3), "num_sampled")


def test_bad_values_are_refused():
    with pytest.raises(TypeError, match="3 is no path"):
        paths.get(fedprox(), 3)
    with pytest.raises(TypeError, match=r"'mu' is given 'much'"):
        paths.replace(fedprox(), {"mu": "much"})
    with pytest.raises(TypeError, match=r"'mu' is given True"):
        paths.replace(fedprox(), {"mu": True})
    with pytest.raises(ValueError, match=r"fedprox\(mu=...\) is -1"):
        paths.replace(fedprox(), {"mu": -1.0})
    with pytest.raises(ValueError, match=r"sgd\(learning_rate=...\) is -0.1"):
        paths.replace(fjs.ema(fedprox()), {"base.client_optimizer.learning_rate": -0.1})
    with pytest.raises(ValueError, match="keys of dictionaries must have no dots"):
        paths.real_leaves({"a.b": 1.0, "a": {"b": 2.0}})


def test_what_a_wrapper_shows_of_its_base_is_named_by_its_path():
    method = fjs.ema(fjs.clipped(fedprox()))
    with pytest.raises(ValueError, match=r"in what it wraps: give 'base\.base\.client_optimizer\.learning_rate'"):
        paths.get(method, "client_optimizer.learning_rate")
