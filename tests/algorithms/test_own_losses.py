"""Methods with losses of their own, and servers that distil: against loops in numpy, float64, on a net with a penalty.

The net's derivatives are by hand; what a method adds says its own in the logits and in the features.
"""

import functools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms.labels import cross_entropies
from fedjax_sim.core.keys import Purpose, purpose_key, round_key
from fedjax_sim.engine.loss import Loss
from fedjax_sim.engine.plan import Plan
from fedjax_sim.models.task import Batch
from tests.algorithms.test_golden import KEY, follow

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group("own losses")]

ETA, DECAY, ROWS, CLASSES, WIDTH = 0.2, 0.03, 4, 4, 5
SGD = fjs.optim.sgd(ETA)
IDS = np.array([10, 3, 7, 21])  # of the clients as they are stored; their indices are 2, 0, 1, 3
LABELS = ([0, 1, 0, 2, 0], [1, 1, 1, 1, 3, 1, 3], [2, 0, 2, 1], [3, 3, 2, 0, 2, 1])  # who lacks what
COHORTS = np.array([[10, 3, 21], [21, 7, 3], [7, -1, 10]])  # nobody has class 3 in the last round
TAU = np.array([[2, 1, 3, 0], [3, 1, 2, 2], [1, 2, 1, 4]])  # by client index; one is dropped
ROUNDS = len(TAU)
MODEL = fjs.models.MLP(CLASSES, (WIDTH,), param_dtype=jnp.float64)
TASK = fjs.classification(MODEL, weight_decay=DECAY)


@functools.cache
def data():
    rng = np.random.default_rng(1)
    clients = [(rng.standard_normal((len(y), 3)), np.array(y)) for y in LABELS]
    found = fjs.datasets.from_clients(clients, client_ids=IDS, num_classes=CLASSES)
    return found.with_example_weights(rng.uniform(0.5, 1.5, found.num_examples))


@functools.cache
def clients():
    """``(x, y, v)`` by client index."""
    found = data()
    rows = [slice(int(found.offsets[i]), int(found.offsets[i] + found.sizes[i])) for i in np.asarray(found.order)]
    parts = [np.asarray(part) for part in (found.examples["x"], found.examples["y"], found.example_weights)]
    return [tuple(part[of] for part in parts) for of in rows]


@functools.cache
def first():
    return jax.tree.map(np.asarray, jax.jit(TASK.init)(jax.random.key(3), data()))


@functools.cache
def public(rows=6):
    x = np.random.default_rng(8).standard_normal((rows, 3))
    return fjs.datasets.from_clients([{"x": x[:2]}, {"x": x[2:]}])


# The net by hand


def layers(params, x):
    """The features and the logits."""
    one, two = (params["params"][f"Dense_{i}"] for i in (0, 1))
    z = np.maximum(x @ one["kernel"] + one["bias"], 0)
    return z, z @ two["kernel"] + two["bias"]


def pulled(params, x, in_logits, in_features=0.0, decay=DECAY):
    """Derivatives in the parameters of those in the logits and, besides, in the features; with the penalty's."""
    z, _ = layers(params, x)
    back = (in_logits @ params["params"]["Dense_1"]["kernel"].T + in_features) * (z > 0)
    found = {
        "Dense_0": {"bias": back.sum(0), "kernel": x.T @ back},
        "Dense_1": {"bias": in_logits.sum(0), "kernel": z.T @ in_logits},
    }
    return plus({"params": found}, 2 * decay, params)


def plus(a, factor, b):
    return jax.tree.map(lambda a, b: a + factor * b, a, b)


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def of_losses(logits, y):
    """Derivative of the cross-entropies in the logits."""
    return softmax(logits) - np.eye(CLASSES)[y]


def plain(params, x, y, r, **_):
    """The gradient of sum_j r_j loss_j + penalty."""
    return pulled(params, x, r[:, None] * of_losses(layers(params, x)[1], y))


def counts(i):
    _, y, v = clients()[i]
    return np.array([v[y == c].sum() for c in range(CLASSES)])


def batch(i, k):
    """The rows of step k, with r_j = v_j / count."""
    parts = clients()[i]
    start = k % -(-len(parts[1]) // ROWS) * ROWS
    x, y, v = (part[start : start + ROWS] for part in parts)
    return x, y, v / len(y)


def taking_part(t):
    indices = [int(np.flatnonzero(np.sort(IDS) == one)[0]) for one in COHORTS[t] if one >= 0]
    return [i for i in indices if TAU[t, i] > 0]


def trained(gradient, start, t, i, **known):
    y = start
    for k in range(TAU[t, i]):
        y = plus(y, -ETA, gradient(y, *batch(i, k), i=i, **known))
    return y


def averaged(average, x, ends, t):
    """x + sum of weights (y_i - x); in the transformed average, whose losses are scaled, a dropped client counts."""
    sizes = {i: len(clients()[i][1]) if average == "sample" else 1.0 for i in ends}
    total = sum(COHORTS[t] >= 0) if average == "transformed" else sum(sizes.values())
    deltas = [jax.tree.map(lambda a, b, i=i: sizes[i] / total * (a - b), y, x) for i, y in ends.items()]
    return functools.reduce(lambda x, delta: plus(x, 1, delta), deltas, x)


def by_hand(gradient, average="sample", server=lambda x, ends, t: x):
    """``(x, what every client had at the end of its last visit)``; ``server`` goes on from the average."""
    x, last = first(), [first()] * len(IDS)
    for t in range(ROUNDS):
        ends = {i: trained(gradient, x, t, i, x0=x, before=last[i]) for i in taking_part(t)}
        for i, y in ends.items():
            last[i] = y
        x = server(averaged(average, x, ends, t), ends, t)
    return x, last


def settings(average="sample", task=TASK, **changes):
    return {
        "task": task, "cohort": fjs.cohort.given(COHORTS, average=average),
        "work": fjs.local.given_steps(TAU, most=4), "batches": fjs.local.in_order(ROWS), **changes,
    }  # fmt: skip


def run(method, average="sample", **changes):
    return follow(Plan(**settings(average, **changes)), method, data(), first(), ROUNDS)


def same(found, expected, tolerance=1e-11):
    ours, theirs = jax.tree.leaves(found), jax.tree.leaves(expected)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def stacked(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


both_averages = pytest.mark.parametrize("average", ["sample", pytest.param("plain", marks=pytest.mark.slow)])


# The methods


def of_moon(mu, temperature):
    """The gradient of MOON's loss."""

    def cosine(a, b):
        """And its derivative in a, which is 0 where a vector is 0."""
        lengths = np.linalg.norm(a, axis=1, keepdims=True), np.linalg.norm(b, axis=1, keepdims=True)
        product = np.where(lengths[0] * lengths[1] > 0, lengths[0] * lengths[1], np.inf)
        value = (a * b).sum(1, keepdims=True) / product
        return value, b / product - value * a / np.where(lengths[0] > 0, lengths[0], np.inf) ** 2

    def gradient(params, x, y, r, x0, before, **_):
        z, logits = layers(params, x)
        (near, of_near), (far, of_far) = (cosine(z, layers(other, x)[0]) for other in (x0, before))
        e = np.exp(near / temperature), np.exp(far / temperature)
        share = e[1] / (e[0] + e[1])  # d/ds of -log e^near / (e^near + e^far), s = far - near
        in_features = mu * share * (of_far - of_near) / temperature
        return pulled(params, x, r[:, None] * of_losses(logits, y), r[:, None] * in_features)

    return gradient


def of_fedntd(beta, temperature):
    """The gradient of FedNTD's loss."""

    def others(logits, y):
        return softmax(np.where(np.eye(CLASSES)[y] == 1, -np.inf, logits / temperature))

    def gradient(params, x, y, r, x0, **_):
        logits, of_x = layers(params, x)[1], layers(x0, x)[1]
        apart = (others(logits, y) - others(of_x, y)) / temperature
        return pulled(params, x, r[:, None] * (of_losses(logits, y) + beta * apart))

    return gradient


@both_averages
def test_moon(average):
    mu, temperature = 0.7, 0.4
    x, last = by_hand(of_moon(mu, temperature), average)
    found = run(fjs.moon(client_optimizer=SGD, mu=mu, temperature=temperature), average)
    same(found.params, x)
    same(found.state.clients, stacked(last))
    without = run(fjs.moon(client_optimizer=SGD, mu=0.0, temperature=temperature), average)
    same(without.params, by_hand(plain, average)[0])


@pytest.mark.parametrize("name", ["moon", pytest.param("fedntd", marks=pytest.mark.slow)])
def test_models_that_are_compared_with_where_clients_keep_a_part_of_them(name):
    """They are constants: x and the client's last model, with the part that it came with."""
    weight, temperature = 5.0, 0.4
    gradient = {"moon": of_moon, "fedntd": of_fedntd}[name](weight, temperature)
    of = {"mu" if name == "moon" else "beta": weight, "temperature": temperature}

    def with_bias(model, own):
        layer = model["params"]["Dense_0"] | {"bias": own["params"]["Dense_0"]["bias"]}
        return {"params": model["params"] | {"Dense_0": layer}}

    x, last = first(), [first()] * len(IDS)
    for t in range(ROUNDS):
        starts = {i: with_bias(x, last[i]) for i in taking_part(t)}
        ends = {i: trained(gradient, y, t, i, x0=y, before=last[i]) for i, y in starts.items()}
        for i, y in ends.items():
            last[i] = y
        x = with_bias(averaged("sample", x, ends, t), first())
    found = run(fjs.keep(METHODS[name](**of), "Dense_0/bias"))
    same(found.params, x)
    same(found.state.clients.memory["params"]["Dense_0"]["bias"], stacked(last)["params"]["Dense_0"]["bias"])


def test_moon_where_a_net_says_nothing():
    """Features of zero have no direction; nothing is not a number."""
    silent = jax.tree.map(np.asarray, first())
    silent["params"]["Dense_0"]["bias"] = np.full(WIDTH, -1e3)
    method = fjs.moon(client_optimizer=SGD)
    plan = Plan(**settings())
    found = follow(plan, method, data(), silent, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params))


@both_averages
def test_fedntd(average):
    beta, temperature = 0.8, 1.7
    found = run(fjs.fedntd(client_optimizer=SGD, beta=beta, temperature=temperature), average)
    same(found.params, by_hand(of_fedntd(beta, temperature), average)[0])
    without = run(fjs.fedntd(client_optimizer=SGD, beta=0.0, temperature=temperature), average)
    same(without.params, by_hand(plain, average)[0])


@both_averages
def test_fedlc(average):
    tau = 1.3

    def gradient(params, x, y, r, i, **_):
        n = counts(i)
        logits = np.where(n > 0, layers(params, x)[1] - tau * np.where(n > 0, n, 1) ** -0.25, -np.inf)
        return pulled(params, x, r[:, None] * of_losses(logits, y))

    found = run(fjs.fedlc(client_optimizer=SGD, tau=tau), average)
    same(found.params, by_hand(gradient, average)[0])


@pytest.mark.parametrize(
    ("average", "form"), [("sample", "paper"), *(pytest.param(*case, marks=pytest.mark.slow) for case in [
        ("plain", "paper"), ("sample", "code"),
    ])],
)  # fmt: skip
def test_fedrs(average, form):
    alpha = 0.3

    def gradient(params, x, y, r, i, **_):
        n = counts(i)
        factors = np.where(n > 0, 1, alpha) if form == "paper" else alpha + (1 - alpha) * n / n.max()
        return pulled(params, x, r[:, None] * factors * of_losses(factors * layers(params, x)[1], y))

    found = run(fjs.fedrs(client_optimizer=SGD, alpha=alpha, form=form), average)
    same(found.params, by_hand(gradient, average)[0])
    without = run(fjs.fedrs(client_optimizer=SGD, alpha=1.0, form=form), average)
    same(without.params, by_hand(plain, average)[0])


@pytest.mark.slow
@pytest.mark.parametrize("method", [fjs.fedlc, functools.partial(fjs.fedrs, form="code")])
def test_a_client_whose_examples_count_for_nothing(method):
    """It has no label of any class, and the penalty for a gradient."""
    weightless = data().with_example_weights(np.zeros(data().num_examples))
    found = follow(Plan(**settings()), method(client_optimizer=SGD), weightless, first(), ROUNDS)
    expected = by_hand(lambda params, x, y, r, i, **_: pulled(params, x, np.zeros((len(y), CLASSES))))[0]
    same(found.params, expected)


with_a_head = functools.partial(fjs.fedrod, head=("Dense_0",))


@pytest.mark.slow
@pytest.mark.parametrize("method", [fjs.fedlc, with_a_head])
def test_a_void_slot_has_a_derivative_in_the_weights_of_examples(method):
    """It has no label of any class either, and the loss of no class is infinite."""
    two = fjs.datasets.from_clients([(np.ones((2, 2)), np.array([0, 1])), (np.ones((1, 2)), np.array([1]))])
    train = fjs.make_train(
        task=fjs.classification(fjs.models.LogisticRegression(2)), rounds=1, cohort=fjs.cohort.given([[0, -1]]),
        work=fjs.local.steps(1), batches=fjs.local.full_batch(), evaluate_train=False,
        evaluate=lambda params, data: {"none": 0.0},
    )  # fmt: skip

    def value(weights):
        params = train(method(client_optimizer=SGD), two.with_example_weights(weights), KEY).params
        return params["params"]["Dense_0"]["bias"][0]

    found = jax.jit(jax.grad(value))(np.ones(3))
    assert np.isfinite(found).all()
    assert found[0] > 0 or method is with_a_head  # which weighs its classes against it
    assert found[2] == 0


@both_averages
def test_fedsam(average):
    rho = 0.2

    def gradient(params, x, y, r, **_):
        g = plain(params, x, y, r)
        length = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(g)))
        return plain(plus(params, rho / length, g), x, y, r)

    found = run(fjs.fedsam(client_optimizer=SGD, rho=rho), average)
    same(found.params, by_hand(gradient, average)[0])
    same(run(fjs.fedsam(client_optimizer=SGD, rho=0.0), average).params, by_hand(plain, average)[0])


@pytest.mark.slow
def test_fedsam_at_rest():
    """Where the gradient is 0 there is no direction uphill, and no derivative that is not a number."""
    rest = fjs.datasets.quadratics_from(np.ones((1, 1, 1)), np.zeros((1, 1)))
    run_of = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batches": fjs.local.full_batch()}
    train = fjs.make_train(task=fjs.quadratic(), rounds=1, **run_of)

    def value(rho):
        return train(fjs.fedsam(client_optimizer=SGD, rho=rho), rest, KEY).params[0]

    assert [float(found) for found in jax.jit(jax.value_and_grad(value))(0.1)] == [0.0, 0.0]


@pytest.mark.parametrize("form", ["paper", pytest.param("code", marks=pytest.mark.slow)])
def test_fedproto(form):
    lam = 0.6

    def gradient(params, x, y, r, means, known, lam=lam, **_):
        z, logits = layers(params, x)
        of, in_features = np.eye(CLASSES)[y], np.zeros_like(z)
        if form == "code":
            in_features = 2 / WIDTH * r[:, None] * known[y][:, None] * (z - means[y])
        else:
            for c in np.flatnonzero(known & (of.sum(0) > 0)):
                weights = r * of[:, c] / (r @ of[:, c])
                in_features += 2 * weights[:, None] * (weights @ z - means[c])
        return pulled(params, x, r[:, None] * of_losses(logits, y), lam * in_features)

    def expected(lam):
        models, means, known = [first()] * len(IDS), np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES, bool)
        for t in range(ROUNDS):
            sums, number = np.zeros_like(means), np.zeros(CLASSES)
            for i in taking_part(t):
                models[i] = trained(gradient, models[i], t, i, means=means, known=known, lam=lam)
                x, y, v = clients()[i]
                of = v[:, None] * np.eye(CLASSES)[y]
                n, features = of.sum(0), of.T @ layers(models[i], x)[0]
                if form == "code":
                    n, features = (n > 0) * 1.0, features / np.where(n > 0, n, 1)[:, None]
                sums, number = sums + features, number + n
            seen = number > 0
            means = np.where(seen[:, None], sums / np.where(seen, number, 1)[:, None], means)
            known = known | seen
        return models, means

    models, means = expected(lam)
    method = fjs.fedproto(client_optimizer=SGD, lam=lam, form=form)
    found = run(method)
    same(found.state.clients.model, stacked(models))
    same(found.state.server.extra.means, means)
    assert found.state.server.extra.known.all()
    same(found.params, first())
    same(method.personal(found.state.server, found.state.clients), found.state.clients.model)
    local = run(fjs.fedproto(client_optimizer=SGD, lam=0.0, form=form))
    same(local.state.clients.model, stacked(expected(0.0)[0]))


@pytest.mark.parametrize(
    ("average", "rows"), [("sample", 2), pytest.param("plain", 9, marks=pytest.mark.slow)]
)  # fmt: skip
def test_feddf(average, rows):
    """On drawn batches of two, and on all public data at once."""
    steps, rate = 3, 0.5
    x_public = np.asarray(public().examples["x"])

    def server(x, ends, t):
        key = purpose_key(round_key(KEY, t), Purpose.SERVER)
        for k in range(steps):
            drawn = np.asarray(jax.random.randint(jax.random.fold_in(key, k), (rows,), 0, len(x_public)))
            d = x_public if rows > len(x_public) else x_public[drawn]
            teacher = softmax(np.mean([layers(y, d)[1] for y in ends.values()], axis=0))
            in_logits = (softmax(layers(x, d)[1]) - teacher) / len(d)
            x = plus(x, -rate, pulled(x, d, in_logits, decay=0.0))
        return x

    of = {"public": public(), "steps": steps, "batch_size": rows, "distiller": fjs.optim.sgd(rate)}
    found = run(fjs.feddf(client_optimizer=SGD, **of), average)
    same(found.params, by_hand(plain, average, server)[0])


@pytest.mark.slow
def test_feddf_hears_changes_of_its_model_from_attackers():
    """Of clients that are all silent the mean of the logits is that of x, which stays."""
    silent = fjs.attacked(METHODS["feddf"](), list(range(len(IDS))), fjs.attacks.scaling(0.0))
    same(run(silent).params, first())


@pytest.mark.slow
def test_feddf_without_steps_is_fedavg():
    found = run(fjs.feddf(client_optimizer=SGD, public=public(), steps=0))
    same(found.params, by_hand(plain)[0])


# Of all of them

METHODS = {
    "moon": lambda **of: fjs.moon(**{"client_optimizer": SGD, "mu": 0.7, **of}),
    "fedntd": lambda **of: fjs.fedntd(**{"client_optimizer": SGD, "beta": 0.8, **of}),
    "fedlc": lambda **of: fjs.fedlc(**{"client_optimizer": SGD, **of}),
    "fedrs": lambda **of: fjs.fedrs(**{"client_optimizer": SGD, **of}),
    "fedsam": lambda **of: fjs.fedsam(**{"client_optimizer": SGD, **of}),
    "fedproto": lambda **of: fjs.fedproto(**{"client_optimizer": SGD, "lam": 0.6, **of}),
    "feddf": lambda **of: fjs.feddf(**{
        "client_optimizer": SGD, "public": public(), "steps": 2, "batch_size": 3, "distiller": fjs.optim.sgd(0.3), **of
    }),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_hyper_gradients(name):
    """In all that is real of the method, against central differences, of a model that someone would use."""
    method, tree = METHODS[name](), fjs.paths.real_leaves
    leaves = {path: jnp.asarray(leaf, jnp.float64) for path, leaf in tree(method).items() if np.ndim(leaf) == 0}
    train = fjs.make_train(rounds=2, eval_every=2, **settings(work=fjs.local.given_steps(TAU[:2], most=4)) | {
        "cohort": fjs.cohort.given(COHORTS[:2])
    })  # fmt: skip
    mix = [np.random.default_rng(5).standard_normal(leaf.shape) for leaf in jax.tree.leaves(first())]

    def value(leaves):
        made = fjs.paths.replace(method, leaves)
        state = train(made, data(), KEY, initial_params=first()).state
        kept = jax.tree.map(lambda leaf: leaf[1], state.clients)
        model = made.personal(state.server, kept)
        return sum(jnp.sum(jnp.asarray(a) * b) for a, b in zip(mix, jax.tree.leaves(model), strict=True))

    direction = dict(zip(leaves, np.random.default_rng(6).uniform(0.5, 1.0, len(leaves)), strict=True))
    step = 1e-4
    points = [{path: leaf + s * step * direction[path] for path, leaf in leaves.items()} for s in (-2, -1, 1, 2)]
    values = jax.jit(lambda all_: jax.lax.map(value, all_))(jax.tree.map(lambda *rows: jnp.stack(rows), *points))
    central = np.asarray(values) @ np.array([1.0, -8.0, 8.0, -1.0]) / (12 * step)
    gradient = jax.jit(jax.grad(value))(leaves)
    np.testing.assert_allclose(sum(gradient[path] * direction[path] for path in leaves), central, rtol=1e-7)
    assert all(gradient[path] != 0 for path in leaves if not (name == "fedproto" and path.startswith("server")))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_layouts_agree(name):
    results = [
        run(METHODS[name](), layout=layout)
        for layout in (fjs.layout.turns(), fjs.layout.stacked(), fjs.layout.lanes(2), fjs.layout.static_schedule(2))
    ]
    for other in results[1:]:
        same((other.params, other.state), (results[0].params, results[0].state), 1e-10)


WRAPPERS = {
    "clipped": lambda base: fjs.clipped(base, norm=1e9),
    "top_k": lambda base: fjs.top_k(base, fraction=1.0),
    "ema": lambda base: fjs.ema(base, decay=0.5),
    "keep": lambda base: fjs.keep(base, "Dense_1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["clipped", "top_k", "ema"])
@pytest.mark.parametrize("name", METHODS)
def test_a_wrapper_that_changes_nothing(name, wrapper):
    if name == "fedproto" and wrapper != "ema":
        pytest.skip("it sends no change of a model, and such wrappers refuse it")
    bare, wrapped = run(METHODS[name]()), run(WRAPPERS[wrapper](METHODS[name]()))
    server, kept = wrapped.state.server, wrapped.state.clients
    same(server.base.params, bare.state.server.params)
    kept = kept.base if hasattr(kept, "memory") else kept
    same(kept, bare.state.clients)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moon", "fedntd", "fedlc", "fedrs", "fedsam"])
def test_around_a_part_of_the_model(name):
    """With the head kept, or frozen, by the client the body is trained all the same; keep refuses some of them."""
    for around in (fjs.freeze,) if METHODS[name]().requires.elsewhere else (fjs.keep, fjs.freeze):
        found = run(around(METHODS[name](), "Dense_1"))
        moved, still = (found.params["params"][f"Dense_{i}"]["kernel"] for i in (0, 1))
        assert np.isfinite(moved).all()
        assert (moved != first()["params"]["Dense_0"]["kernel"]).any()
        np.testing.assert_array_equal(still, first()["params"]["Dense_1"]["kernel"])


@pytest.mark.slow
def test_counts_where_the_average_scales_the_losses():
    """n_ic are counts, whatever multiplies F_i; and that multiplies all of what stands in the place of F."""
    found = run(fjs.fedlc(client_optimizer=SGD, tau=1.3), "transformed")
    tau, mean = 1.3, np.mean([len(y) for _, y, _ in clients()])

    def gradient(params, x, y, r, i, **_):
        n, scale = counts(i), len(clients()[i][1]) / mean
        logits = np.where(n > 0, layers(params, x)[1] - tau * np.where(n > 0, n, 1) ** -0.25, -np.inf)
        g = pulled(params, x, r[:, None] * of_losses(logits, y))
        return jax.tree.map(lambda leaf: scale * leaf, g)

    same(found.params, by_hand(gradient, "transformed")[0])


# Sequences, tasks of functions


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_an_example_may_have_several_labels(name):
    """A label at every position: an example of two positions is two examples of one, of half the weight."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((6, 2, 3)), rng.integers(0, 3, (6, 2))
    init, said = functools.partial(_init, 3), {"outputs_function": _logits, "features_function": _features}
    task = fjs.functions(init, _mean_losses, **said)
    ends = []
    for a, b in ((x, y), (x.reshape(12, 3), y.reshape(12))):
        found = fjs.datasets.from_clients([(a[: len(a) // 3], b[: len(a) // 3]), (a[len(a) // 3 :], b[len(a) // 3 :])])
        shared = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(2), "batches": fjs.local.full_batch()}
        method = METHODS[name](
            **({"public": fjs.datasets.from_clients([{"x": a}]), "batch_size": 99} if name == "feddf" else {})
        )
        ends.append(follow(Plan(task=task, **shared), method, found, init(KEY), 2))
    same((ends[0].params, ends[0].state.clients), (ends[1].params, ends[1].state.clients))


def _init(classes, key):
    rng = np.random.default_rng(2)
    return {"a": jnp.asarray(rng.standard_normal((3, 4))), "b": jnp.asarray(rng.standard_normal((4, classes)))}


def _features(params, examples):
    return jnp.tanh(examples["x"] @ params["a"])


def _logits(params, examples):
    return _features(params, examples) @ params["b"]


def _mean_losses(params, examples):
    logits = _logits(params, examples)
    found = -jnp.take_along_axis(jax.nn.log_softmax(logits), examples["y"][..., None], -1)[..., 0]
    return found.mean(axis=tuple(range(1, found.ndim)))


# What is refused


def plan_of(task, **changes):
    return Plan(**{**settings(task=task), **changes})


@pytest.mark.parametrize("name", ["fedntd", "fedlc", "fedrs", "fedproto", "feddf"])
def test_a_task_without_classes_is_refused(name):
    quadratics = fjs.datasets.quadratics_from(np.ones((4, 1, 1)), np.zeros((4, 1)))
    for task, of in ((fjs.quadratic(), quadratics), (fjs.functions(functools.partial(_init, 3), _mean_losses), data())):
        with pytest.raises(ValueError, match=r"needs a task that tells classes apart .*use fedjax_sim.classification"):
            follow(plan_of(task, cohort=fjs.cohort.full()), METHODS[name](), of, None, ROUNDS)


@pytest.mark.parametrize("name", ["moon", "fedproto"])
def test_a_model_without_features_is_refused(name):
    task = fjs.functions(functools.partial(_init, CLASSES), _mean_losses, outputs_function=_logits)
    with pytest.raises(TypeError, match="does not say what features its model has"):
        follow(plan_of(task), METHODS[name](), data(), None, ROUNDS)


def test_what_else_is_refused():
    with pytest.raises(TypeError, match=r"feddf\(public=...\) is 'mnist': give a data set"):
        METHODS["feddf"](public="mnist")
    other = fjs.datasets.from_clients([{"x": np.zeros((2, 9))}])
    with pytest.raises(ValueError, match=r"has float64\[9\] for examples\['x'\], and the clients' are float64\[3\]"):
        run(METHODS["feddf"](public=other))
    buffered = {"asynchronous": fjs.asynchronous.fedbuff(2), "system": fjs.systems.devices(seconds_per_step=1.0)}
    with pytest.raises(ValueError, match="reads single messages"):
        run(METHODS["feddf"](), cohort=fjs.cohort.uniform(2), work=fjs.local.steps(1), **buffered)
    for around in (fjs.keep, fjs.freeze):
        with pytest.raises(ValueError, match="FedDf needs the whole model"):
            around(METHODS["feddf"](), "Dense_1")
        with pytest.raises(ValueError, match="FedProto needs the whole model"):
            around(METHODS["fedproto"](), "Dense_1")
    for around in (fjs.quantised, fjs.top_k, fjs.clipped):  # prototypes would count for less than nothing
        with pytest.raises(ValueError, match="report what is no change of a model"):
            around(METHODS["fedproto"]())
    for around in (fjs.robust, fjs.reweighted):
        with pytest.raises(ValueError, match=r"\(fedproto\(...\)\): fedproto weighs its clients itself"):
            run(around(METHODS["fedproto"]()), "plain")
    for wrong, of_run in (("num_classes=20", CLASSES), ("width=99", r"\d+")):
        name, number = wrong.split("=")
        with pytest.raises(ValueError, match=rf"fedproto\({wrong}\): it is {of_run} in this run: leave it out"):
            run(METHODS["fedproto"](**{name: int(number)}))
    with pytest.raises(ValueError, match="no models are averaged"):
        run(METHODS["fedproto"](), "transformed")
    for name in ("moon", "fedproto"):
        with pytest.raises(ValueError, match="clients drawn twice have no meaning"):
            run(METHODS[name](), cohort=fjs.cohort.with_replacement(2))
    for name in ("fedsam", "fedproto"):
        with pytest.raises(ValueError, match="needs a whole batch at a time"):
            run(METHODS[name](), batches=fjs.local.full_batch(2))


def test_what_is_asked_of_a_model_in_half_precision_has_the_digits_of_single():
    """A loss of 0.0003 was 0 with a gradient of 0, and the squares of features of 40 were infinite in float16."""
    task = fjs.classification(nn.Dense(2, dtype=jnp.float16, param_dtype=jnp.float16))
    kernel = np.zeros((64, 2), np.float16)
    kernel[:, 0] = 8 / (64 * 40)
    params = {"params": {"kernel": kernel, "bias": np.zeros(2, np.float16)}}
    examples = {"x": np.full((1, 64), 40, np.float16), "y": np.zeros(1, np.int32)}
    F = Loss(task, Batch(examples, jnp.ones(1), jnp.int32(1)), None)
    expected = np.log1p(np.exp(-8))
    np.testing.assert_allclose(cross_entropies(F.outputs(params), F.labels), expected, rtol=2e-2)
    moon = fjs.moon(client_optimizer=SGD, mu=1.0)
    found = moon.objective(F, params, jnp.int32(0), types.SimpleNamespace(params=params), params, None)
    np.testing.assert_allclose(found, expected + np.log(2), rtol=1e-4)
