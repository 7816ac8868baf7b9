"""Learned rules against plain numpy; what they do not see; the known rules among them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim.optim.described import third_party
from fedjax_sim.optim.learned import features
from tests.reference_server import LearnedRule

learned = fjs.optim.learned
update = jax.jit(lambda rule, *given, **more: rule.update(*given, **more))
seen = jax.jit(features, static_argnames="each")
each_kind = pytest.mark.parametrize("kind", ["tensor", "parameter"])
# What no kind of rule does otherwise: by rules_are_their_formula both are known.
one_kind = pytest.mark.parametrize("kind", ["tensor", pytest.param("parameter", marks=pytest.mark.slow)])


def random(rule, seed=0, scale=0.5):
    draw = np.random.default_rng(seed)
    return rule.replace(weights={name: scale * draw.standard_normal(shape) for name, shape in rule.shapes().items()})


def cohort(seed):
    """Changes of five clients, [5, ...], of a matrix and a number, and weights that sum to one."""
    draw = np.random.default_rng(seed)
    weights = draw.uniform(0.5, 1.0, 5)
    changes = {"kernel": draw.standard_normal((5, 3, 2)) + 0.5, "bias": draw.standard_normal(5) - 2}
    return changes, weights / weights.sum()


def of_cohort(seed):
    changes, weights = cohort(seed)
    gradient = {name: -np.tensordot(weights, of, 1) for name, of in changes.items()}
    return gradient, {name: np.tensordot(weights, of**2, 1) for name, of in changes.items()}


PARAMS = {"kernel": np.arange(6.0).reshape(3, 2) - 2, "bias": np.array(0.7)}


@pytest.mark.parametrize("dispersion", [True, pytest.param(False, marks=pytest.mark.slow)])
@each_kind
def test_rules_are_their_formula(x64, kind, dispersion):
    rule = random(learned(kind, hidden=4, dispersion=dispersion))
    state = rule.init(PARAMS)
    references = {name: LearnedRule(rule.weights, each=kind == "parameter") for name in PARAMS}
    for step in range(3):
        gradient, square = of_cohort(step)
        extra = {"square": square} if dispersion else {}
        u, state = update(rule, jax.tree.map(jnp.asarray, gradient), state, PARAMS, **extra)
        for name, reference in references.items():
            q = square[name].reshape(-1) if dispersion else None
            expected = reference(-gradient[name].reshape(-1), PARAMS[name].reshape(-1), q)
            np.testing.assert_allclose(np.reshape(u[name], -1), expected, rtol=1e-11)


def test_what_a_rule_remembers_in_half_precision_is_that_of_single():
    """In bfloat16 a momentum of 0.99 ended at 0.84 of a constant gradient, and no second moment moved on from there."""

    @jax.jit
    def after(gradient, rule):
        def step(state, _):
            return rule.update(gradient, state, jnp.ones_like(gradient))[::-1]

        return jax.lax.scan(step, rule.init(gradient), length=600)

    rule = random(learned("tensor", hidden=4))
    (half, updates), (single, expected) = after(jnp.ones(3, jnp.bfloat16), rule), after(jnp.ones(3), rule)
    np.testing.assert_allclose(half.momenta, single.momenta, rtol=1e-6)
    np.testing.assert_allclose(half.second, single.second, rtol=1e-6)
    assert updates.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(updates, "f"), expected, rtol=1e-2)


def test_dispersion_is_the_variance_of_the_changes(x64):
    changes, weights = cohort(4)
    gradient, square = of_cohort(4)
    g, q = gradient["kernel"], square["kernel"]
    variance = np.tensordot(weights, (changes["kernel"] + g) ** 2, 1)
    with third_party():
        own, whole = seen(jnp.int32(0), g, PARAMS["kernel"], np.stack([g] * 3), g**2, q, each=True)
        rounded = g**2 * (1 + np.finfo(float).eps * np.array([-2.0, 2.0]))  # another order, or a fused product
        alone, _ = seen(jnp.int32(0), g, PARAMS["kernel"], np.stack([g] * 3), g**2, rounded, each=True)
    np.testing.assert_allclose(own[..., -2], variance / np.sqrt((variance**2).mean()), rtol=1e-11)
    np.testing.assert_allclose(own[..., -1], g / np.sqrt(variance + g**2), rtol=1e-11)
    np.testing.assert_allclose(whole[-1], 1 - variance.mean() / q.mean(), rtol=1e-11)
    np.testing.assert_allclose(alone[..., -2:], np.stack([0 * g, np.sign(g)], -1), atol=1e-12)  # one client
    assert own.shape[-1] + whole.shape[-1] == learned("parameter", dispersion=True).shapes()["kernel_0"][0]


@one_kind
def test_updates_scale_as_gradients_do(kind):
    rule = random(learned(kind, dispersion=True))
    params = jax.tree.map(jnp.float32, PARAMS)

    def path(scale):
        state, found = rule.init(params), []
        for step in range(3):
            gradient, square = (jax.tree.map(jnp.float32, one) for one in of_cohort(step))
            gradient, square = fjs.trees.scale(scale, gradient), fjs.trees.scale(scale**2, square)
            u, state = update(rule, gradient, state, params, square=square)
            found.append(fjs.trees.scale(1 / scale, u))
        return found

    for one, other in zip(path(1.0), path(2.0**-14), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, other)


def known(rule, outputs):
    """The rule whose network says ``outputs``, whatever it sees."""
    weights = {name: np.zeros(shape) for name, shape in rule.shapes().items()}
    return rule.replace(weights=weights | {"bias_2": np.asarray(outputs, float)})


@one_kind
def test_constant_outputs_are_known_rules(x64, kind):
    rule, rate = learned(kind), 0.3
    momentum, adam = optax.ema(0.9, debias=True), optax.adam(1.0, b1=0.9, b2=0.99, eps=0.0)

    def following(outputs):
        one = known(rule, outputs)
        return one, one.init(PARAMS)

    cases = {
        "sgd": following([np.log(rate), 0, 0, 0, 0]), "momentum": following([np.log(rate), 0, 1, 0, 0]),
        "adam": following([0, 0, 0, 0, 1]),
    }  # fmt: skip
    other = {"momentum": momentum.init(PARAMS), "adam": adam.init(PARAMS)}
    step_of = {"momentum": jax.jit(momentum.update), "adam": jax.jit(adam.update)}
    for step in range(3):
        gradient = jax.tree.map(jnp.asarray, of_cohort(step)[0])
        found = {}
        for name, (one, state) in cases.items():
            found[name], state = update(one, gradient, state, PARAMS)
            cases[name] = one, state
        with third_party():
            m, other["momentum"] = step_of["momentum"](gradient, other["momentum"])
            a, other["adam"] = step_of["adam"](gradient, other["adam"], PARAMS)
        for leaf in PARAMS:
            rms = np.sqrt((np.asarray(gradient[leaf]) ** 2).mean())
            np.testing.assert_allclose(found["sgd"][leaf], -rate * gradient[leaf], rtol=1e-12)
            np.testing.assert_allclose(found["momentum"][leaf], -rate * m[leaf], rtol=1e-12)
            np.testing.assert_allclose(found["adam"][leaf], rms * a[leaf], rtol=1e-12)
    start = update(rule, gradient, rule.init(PARAMS), PARAMS)[0]  # the weights that a rule has by itself
    jax.tree.map(lambda u, g: np.testing.assert_allclose(u, -g, rtol=1e-12), start, gradient)


@one_kind
def test_nothing_is_divided_by_nothing(kind):
    rule = random(learned(kind, dispersion=True))
    params = jax.tree.map(jnp.float32, PARAMS)
    zeros = fjs.trees.zeros_like(params)

    def moved(gradient, square):
        u, _ = rule.update(gradient, rule.init(params), params, square=square)
        return fjs.trees.square(u) + sum(map(jnp.sum, jax.tree.leaves(u)))

    value, slopes = jax.jit(jax.value_and_grad(moved, argnums=(0, 1)))(zeros, zeros)
    assert value == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.slow
@one_kind
def test_weights_are_mapped_over(kind):
    rules = [random(learned(kind), seed) for seed in range(3)]
    gradient = jax.tree.map(jnp.float32, of_cohort(0)[0])
    params = jax.tree.map(jnp.float32, PARAMS)
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.float32(leaf) for leaf in leaves]), *rules)
    found = jax.jit(jax.vmap(lambda rule: rule.update(gradient, rule.init(params), params)[0]))(stacked)
    for number, rule in enumerate(rules):
        expected = update(rule, gradient, rule.init(params), params)[0]
        jax.tree.map(lambda a, b, at=number: np.testing.assert_allclose(a[at], b, rtol=1e-5), found, expected)


def test_what_is_refused():
    rule = learned(hidden=4)
    with pytest.raises(ValueError, match=r"kernel_1 \(4, 4\).*hidden=5"):
        learned(weights=rule.weights, hidden=5)
    with pytest.raises(ValueError, match=r"kernel_0 \(13, 4\).*dispersion=True"):
        learned(weights=rule.weights, hidden=4, dispersion=True)
    with pytest.raises(ValueError, match="bias_0 None"):
        learned(weights={k: v for k, v in rule.weights.items() if k != "bias_0"}, hidden=4)
    with pytest.raises(TypeError, match="arrays by name"):
        learned(weights=[1.0])
    params = jax.tree.map(jnp.float32, PARAMS)
    told = learned(dispersion=True)
    with pytest.raises(ValueError, match="fedlopt"):
        told.update(params, told.init(params), params)
    with pytest.raises(ValueError, match="looks at the parameters"):
        rule.transform().update(params, rule.init(params))
    sgd = fjs.optim.sgd(0.1)
    for server in (None, sgd, rule):
        with pytest.raises(TypeError, match="dispersion=True"):
            fjs.fedlopt(client_optimizer=sgd, server_optimizer=server)
    assert not fjs.optim.is_linear(rule)
