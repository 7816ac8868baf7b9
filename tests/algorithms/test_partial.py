"""A part of the model that stays with the clients, or is never trained: against loops by hand, in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import trees
from fedjax_sim.algorithms.partial import merged, split
from fedjax_sim.algorithms.wrapper import keeps_personal
from fedjax_sim.engine.checks import resolve
from fedjax_sim.engine.draw import exchange_cost
from fedjax_sim.engine.plan import Plan
from fedjax_sim.engine.rounds import init_state
from tests.algorithms.test_golden import follow

pytestmark = pytest.mark.usefixtures("x64")

ETA, STEPS, ROUNDS, N = 0.1, 3, 3, 4
KEY, SGD = jax.random.key(0), fjs.optim.sgd(ETA)
HEAD, BODY = "Dense_1", ("params/Dense_0", "bias")  # the bias of the head is matched by "bias" alone
COHORTS = np.array([[0, 1, 2, -1], [2, 3, -1, -1], [1, 0, 3, -1]])  # client 3 comes late, everybody misses a round


def add(a, b):
    return jax.tree.map(np.add, a, b)


def subtract(a, b):
    return jax.tree.map(np.subtract, a, b)


def scale(factor, a):
    return jax.tree.map(lambda leaf: factor * leaf, a)


def add_scaled(a, factor, b):
    return add(a, scale(factor, b))


@functools.cache
def data():
    rng = np.random.default_rng(4)
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=(n, 2))} for n in (4, 6, 3, 5)]
    return fjs.datasets.from_clients(clients)


def first():
    rng = np.random.default_rng(1)
    return {
        "params": {
            "Dense_0": {"kernel": rng.normal(size=(3, 2))},
            "Dense_1": {"bias": rng.normal(size=2), "kernel": rng.normal(size=(2, 2))},
        }
    }


def losses(params, examples):
    body, head = params["params"]["Dense_0"], params["params"]["Dense_1"]
    outputs = jnp.tanh(examples["x"] @ body["kernel"]) @ head["kernel"] + head["bias"][None]
    return jnp.sum((outputs - examples["y"]) ** 2, axis=1)


def penalty(params):
    return 0.05 * trees.square(params)


TASK = fjs.functions(lambda key: jax.tree.map(jnp.asarray, first()), losses, penalty_function=penalty)


def settings(layout=None, cohort=None):
    cohort = fjs.cohort.given(COHORTS, average="plain") if cohort is None else cohort
    whole = {"batches": fjs.local.full_batch(), "work": fjs.local.steps(STEPS)}
    return {"task": TASK, "cohort": cohort, "layout": layout, **whole}


def trainer(cohort=None):
    return fjs.make_train(rounds=ROUNDS, **settings(cohort=cohort))


def run(method, layout=None):
    return follow(Plan(**settings(layout)), method, data(), first(), ROUNDS, KEY)


def personal(method, result):
    return [
        method.personal(result.state.server, jax.tree.map(lambda leaf, i=i: leaf[i], result.state.clients))
        for i in range(N)
    ]


def gradient_of(client, params):
    """Of the mean loss and the penalty, by the chain rule."""
    x, y = (np.asarray(data().client(client)[name]) for name in ("x", "y"))
    body, head = params["params"]["Dense_0"], params["params"]["Dense_1"]
    hidden = np.tanh(x @ body["kernel"])
    apart = 2 * (hidden @ head["kernel"] + head["bias"] - y) / len(x)
    parts = {
        "Dense_0": {"kernel": x.T @ (apart @ head["kernel"].T * (1 - hidden**2))},
        "Dense_1": {"bias": apart.sum(axis=0), "kernel": hidden.T @ apart},
    }
    return jax.tree.map(lambda g, w: g + 0.1 * w, {"params": parts}, params)


def by_hand(patterns, correction=lambda client, y, x: None, server=None, kept=True, after=None):
    """``(x, [v_i])``: local steps on both parts, an average of the shared one; ``correction`` joins its gradient."""
    x, own = split(first(), patterns, "")
    v = [own] * N
    server = server or (lambda x, delta: add(x, delta))
    for cohort in COHORTS:
        deltas = []
        present = [int(client) for client in cohort if client >= 0]
        for client in present:
            u, mine = x, v[client]
            for _ in range(STEPS):
                g_u, g_v = split(gradient_of(client, merged(u, mine)), patterns, "")
                more = correction(client, u, x)
                g_u = g_u if more is None else add(g_u, more)
                u = add_scaled(u, -ETA, g_u)
                mine = add_scaled(mine, -ETA, g_v) if kept else mine
            deltas.append(subtract(u, x))
            v[client] = mine
        mean = scale(1 / len(present), functools.reduce(add, deltas))
        if after is not None:
            after(dict(zip(present, deltas, strict=True)))
        x = server(x, mean)
    return x, v


def check(method, x, v, result=None):
    result = run(method) if result is None else result
    trees_close(result.params, merged(x, split(first(), method.patterns, "")[1]))
    for mine, theirs in zip(personal(method, result), v, strict=True):
        trees_close(mine, merged(x, theirs))


def trees_close(mine, theirs, tolerance=1e-12):
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), mine, theirs)


@pytest.mark.parametrize(
    "patterns",
    [pytest.param((HEAD,), marks=pytest.mark.slow), BODY, pytest.param(("*",), marks=pytest.mark.slow)],
    ids=["FedPer", "LG-FedAvg", "everything"],
)
def test_what_is_kept_is_each_clients_own(patterns) -> None:
    method = fjs.keep(fjs.fedavg(client_optimizer=SGD), patterns)
    x, v = by_hand(patterns)
    check(method, x, v)
    assert not any(
        np.allclose(a, b) for one, two in itertools.combinations(v, 2)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("inside", [pytest.param("keep", marks=pytest.mark.slow), "freeze"])
def test_what_is_kept_trains_where_all_the_rest_is_frozen(inside) -> None:
    fedavg = fjs.fedavg(client_optimizer=SGD)
    method = fjs.keep(fjs.freeze(fedavg, "Dense_0"), HEAD)
    method = fjs.freeze(fjs.keep(fedavg, HEAD), "Dense_0") if inside == "keep" else method
    body, head = split(first(), (HEAD,), "")
    v = [head] * N
    for client in [int(client) for cohort in COHORTS for client in cohort if client >= 0]:
        for _ in range(STEPS):
            v[client] = add_scaled(v[client], -ETA, split(gradient_of(client, merged(body, v[client])), (HEAD,), "")[1])
    result = run(method)
    trees_close(result.params, first())
    for mine, theirs in zip(personal(method, result), v, strict=True):
        trees_close(mine, merged(body, theirs))


@pytest.mark.slow
def test_terms_of_the_base_are_of_the_shared_part_alone() -> None:
    mu = 0.7
    x, v = by_hand((HEAD,), lambda client, y, x: scale(mu, subtract(y, x)))
    check(fjs.keep(fjs.fedprox(client_optimizer=SGD, mu=mu), HEAD), x, v)

    shared = split(first(), (HEAD,), "")[0]
    c, c_i = scale(0, shared), [scale(0, shared)] * N

    def controls(deltas):
        nonlocal c
        for client, delta in deltas.items():
            new = subtract(subtract(c_i[client], c), scale(1 / (STEPS * ETA), delta))
            changes[client], c_i[client] = subtract(new, c_i[client]), new
        c = add(c, scale(1 / N, functools.reduce(add, (changes[client] for client in deltas))))

    changes = {}
    x, v = by_hand((HEAD,), lambda client, y, x: subtract(c, c_i[client]), after=controls)
    check(fjs.keep(fjs.scaffold(client_optimizer=SGD), HEAD), x, v)


@pytest.mark.slow
def test_no_server_optimiser_moves_what_is_kept() -> None:
    m = v = None

    def adam(x, delta):
        nonlocal m, v
        zeros = scale(0, x)
        m = scale(0.1, delta) if m is None else add(scale(0.9, m), scale(0.1, delta))
        before = jax.tree.map(lambda leaf: leaf + 1e-2, zeros) if v is None else v
        v = add(scale(0.99, before), scale(0.01, jax.tree.map(np.square, delta)))
        return jax.tree.map(lambda x, m, v: x + 0.3 * m / (np.sqrt(v) + 0.1), x, m, v)

    expected = by_hand((HEAD,), server=adam)
    check(fjs.keep(fjs.fedadam(client_optimizer=SGD, server_learning_rate=0.3, tau=0.1), HEAD), *expected)


def test_what_is_frozen_stays_bit_for_bit_and_the_rest_trains_without_it() -> None:
    method = fjs.freeze(fjs.fedavgm(client_optimizer=SGD, momentum=0.5), (HEAD,))
    result, momentum = run(method), None

    def server(x, delta):
        nonlocal momentum
        momentum = delta if momentum is None else add_scaled(delta, 0.5, momentum)
        return add(x, momentum)

    x, own = by_hand((HEAD,), kept=False, server=server)
    jax.tree.map(np.testing.assert_array_equal, split(result.params, (HEAD,), "")[1], own[0])
    trees_close(split(result.params, (HEAD,), "")[0], x)
    trees_close(method.personal(result.state.server, ()), result.params, 0)
    assert jax.tree.leaves(result.state.clients) == []
    assert result.state.visited is None  # which is of methods whose clients have models of their own

    class Own(type(method)):
        def personal(self, server, c_i):
            return self.evaluated(server)

    assert keeps_personal(Own(method.base, method.patterns))


LAYOUTS = {"stacked": fjs.layout.stacked(), "lanes": fjs.layout.lanes(2)}
METHODS = {
    "scaffold": fjs.scaffold(client_optimizer=fjs.optim.sgd(ETA, momentum=0.4)),
    "fednova": fjs.fednova(client_optimizer=SGD),
    "feddane": fjs.feddane(client_optimizer=SGD, mu=0.1),
    "qfedavg": fjs.qfedavg(client_optimizer=SGD, q=0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=() if (name, layout) == ("scaffold", "stacked") else pytest.mark.slow)
        for name in METHODS for layout in LAYOUTS
    ],
)  # fmt: skip
def test_layouts_agree(name, layout) -> None:
    method = fjs.keep(fjs.freeze(METHODS[name], "params/Dense_1/bias"), "Dense_1/kernel")
    expected = run(method, fjs.layout.turns())
    assert np.isfinite(expected.x).all()
    found = run(method, LAYOUTS[layout])
    trees_close((found.params, found.state), (expected.params, expected.state), 1e-11)


@pytest.mark.slow
def test_bytes_are_those_of_what_is_sent() -> None:
    def traffic(method):
        asked = Plan(
            TASK, fjs.cohort.full(average="plain"), fjs.local.steps(1), fjs.local.full_batch(), algorithm=method,
            system=fjs.systems.devices(seconds_per_step=1.0), dataset=data(), key=KEY,
        )  # fmt: skip
        plan, found = resolve(asked, 1), []

        def trace(key):
            of_key = plan._replace(key=key)
            state, phase = init_state(of_key), of_key.phases()[-1]
            sent = phase.method.send(state.server)
            found.append(exchange_cost(of_key, phase, sent, jnp.int32(0), state))

        jax.eval_shape(trace, KEY)
        return found[0].bytes_down // 8, found[0].bytes_up // 8

    fedavg, scaffold = fjs.fedavg(client_optimizer=SGD), fjs.scaffold(client_optimizer=SGD)
    assert traffic(fedavg) == (12, 12)
    assert traffic(fjs.keep(fedavg, HEAD)) == (6, 6)
    assert traffic(fjs.keep(scaffold, BODY)) == (8, 8)
    assert traffic(fjs.freeze(scaffold, "bias")) == (20, 20)
    two = fjs.freeze(fjs.keep(fedavg, "Dense_1/kernel"), "bias")
    assert traffic(two) == (6, 6)
    assert traffic(fjs.adaptively_clipped(two)) == (7, 7)
    assert traffic(fjs.keep(fjs.quantised(fedavg, bits=8), HEAD))[1] == (6 + 8) // 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "wrap"),
    [
        (fjs.fedavg, lambda base: fjs.top_k(fjs.clipped(base, norm=0.2), fraction=0.5)),
        # A wrapper that remembers finds its own memory in the first of two exchanges as well.
        pytest.param(
            functools.partial(fjs.feddane, mu=0.1), lambda base: fjs.top_k(base, fraction=0.5), marks=pytest.mark.slow
        ),
        pytest.param(fjs.fedadam, lambda base: fjs.ema(base, decay=0.5), marks=pytest.mark.slow),
        pytest.param(
            fjs.fedavg, lambda base: fjs.robust(base, fjs.aggregators.centered_clipping(0.5)), marks=pytest.mark.slow
        ),
    ],
    ids=["top_k", "feddane", "ema", "robust"],
)
def test_wrappers_outside_and_inside_do_the_same(base, wrap) -> None:
    base = base(client_optimizer=SGD)
    outside, inside = wrap(fjs.keep(base, HEAD)), fjs.keep(wrap(base), HEAD)
    found, expected = run(outside), run(inside)
    trees_close(found.params, expected.params)
    trees_close(personal(outside, found), personal(inside, expected))


@pytest.mark.slow
def test_parts_of_parts_are_parts() -> None:
    fedavg = fjs.fedavg(client_optimizer=fjs.optim.sgd(ETA, momentum=0.5))
    both = fjs.keep(fedavg, ("bias", "Dense_0"))
    nested = fjs.keep(fjs.keep(fedavg, "bias"), "Dense_0")
    one, two = run(both), run(nested)
    trees_close(one.params, two.params)
    trees_close(personal(both, one), personal(nested, two))


@pytest.mark.slow
def test_vmap_and_derivatives() -> None:
    """Mapped gradients are finite differences of mapped values, which are those of a run alone."""
    train, dataset = trainer(), data()

    def method_of(rate):
        return fjs.keep(fjs.fedprox(client_optimizer=fjs.optim.sgd(rate), mu=0.2), HEAD)

    def loss_of(method, result):
        return trees.square(personal(method, result)[1]) + trees.square(result.params)

    def loss(rate, params):
        return loss_of(method_of(rate), train(method_of(rate), dataset, KEY, initial_params=params))

    params, step = first(), 1e-6
    direction = jax.tree.map(lambda leaf: np.cos(np.arange(leaf.size * 1.0)).reshape(leaf.shape), params)
    rates = ETA + step * np.array([0, 1, -1, 0, 0])
    moved = [add_scaled(params, step * sign, direction) for sign in (0, 0, 0, 1, -1)]
    mapped = jax.jit(jax.vmap(jax.value_and_grad(loss, argnums=(0, 1))))
    values, slopes = mapped(rates, jax.tree.map(lambda *leaves: np.stack(leaves), *moved))
    np.testing.assert_allclose(values[0], loss_of(method_of(ETA), run(method_of(ETA))), rtol=1e-12)
    np.testing.assert_allclose(slopes[0][0], (values[1] - values[2]) / (2 * step), rtol=1e-7)
    pairs = zip(jax.tree.leaves(slopes[1]), jax.tree.leaves(direction), strict=True)
    along = sum(np.sum(slope[0] * one) for slope, one in pairs)
    np.testing.assert_allclose(along, (values[3] - values[4]) / (2 * step), rtol=1e-7)


def test_patterns_are_parts_of_paths() -> None:
    params = {"params": {"a": {"w": 1.0}, "ab": {"w": 2.0, "b": 3.0}}, "more": (4.0, 5.0)}

    def of(*patterns):
        return jax.tree.leaves(split(params, patterns, "keep")[1])

    assert of("a") == [1.0]
    assert of("a*") == [1.0, 3.0, 2.0]
    assert of("w") == [1.0, 2.0]
    assert of("ab/b", "more/1") == [5.0, 3.0]
    assert of("params/*/w") == [1.0, 2.0]
    rest, own = split(params, ("w",), "keep")
    assert jax.tree.leaves(rest) == [4.0, 5.0, 3.0]
    assert merged(rest, own) == merged(own, rest) == params


def test_what_makes_no_sense_is_said_before_compiling() -> None:
    fedavg = fjs.fedavg(client_optimizer=SGD)
    for patterns, message in (
        ("Dense_2", r"keep\(patterns=...\): no parameter has 'Dense_2' in its path: did you mean 'Dense_\d'\? known: "
         "params/Dense_0/kernel, params/Dense_1/bias, params/Dense_1/kernel"),
        (("Dense_0", "Dense"), "no parameter has 'Dense' in its path"),
        ("kernel/Dense_0", "no parameter has 'kernel/Dense_0' in its path"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(trainer(), fjs.keep(fedavg, patterns), data(), KEY)
    with pytest.raises(ValueError, match=r"freeze\(patterns=...\): no parameter has 'Dense_2'"):
        jax.eval_shape(trainer(), fjs.freeze(fedavg, "Dense_2"), data(), KEY)
    for patterns in (3, (), [""], ("a", 2), None):
        with pytest.raises((TypeError, ValueError), match=r"keep\(.*'Dense_1'"):
            fjs.keep(fedavg, patterns)
    with pytest.raises(ValueError, match="takes no local steps"):
        fjs.keep(fjs.large_batch_sgd(client_optimizer=SGD), HEAD)
    # The correction of Mime and what FedSAM has ahead would have a derivative in what is kept.
    elsewhere = {fjs.mime: {}, fjs.fedsam: {}, fjs.perfedavg: {"form": "first_order"}}
    for (make, options), around in itertools.product(elsewhere.items(), (fjs.keep, fjs.fedrep)):
        with pytest.raises(ValueError, match=r"(keep|fedrep)\(base\): .* for gradients elsewhere than where it trains"):
            around(fjs.clipped(make(client_optimizer=SGD, **options)), HEAD)
    fjs.freeze(fjs.mime(client_optimizer=SGD), HEAD)
    with pytest.raises(ValueError, match=r"keep\(base\): FedProx follows the objective at the shared model"):
        fjs.keep(fjs.fedprox(client_optimizer=SGD, adaptive=True), HEAD)
    rates = jax.tree.map(lambda leaf: 1.0, first())
    for name in ("client_learning_rate", "server_learning_rate"):
        with pytest.raises(ValueError, match=f"{name} has a value for each array"):
            fjs.freeze(fjs.fedavg(client_optimizer=SGD, **{name: rates}), HEAD)
    with pytest.raises(ValueError, match=r"aware\(base\).*keep\(aware\(...\), ...\)"):
        jax.eval_shape(trainer(), fjs.aware(fjs.keep(fedavg, HEAD)), data(), KEY)
    with pytest.raises(ValueError, match=r"in place of cohort\.with_replacement"):
        jax.eval_shape(trainer(cohort=fjs.cohort.with_replacement(3)), fjs.keep(fedavg, HEAD), data(), KEY)
    single = fjs.functions(lambda key: jnp.zeros(3), lambda w, examples: examples["x"] @ w)
    with pytest.raises(ValueError, match="a single array, which has no name"):
        fjs.simulate(
            fjs.keep(fedavg, "*"),
            data(),
            task=single,
            rounds=1,
            cohort=fjs.cohort.full(),
            work=fjs.local.steps(1),
            batch_size=2,
        )


@pytest.mark.slow
@pytest.mark.parametrize("second", [pytest.param(2, marks=pytest.mark.slow), 0], ids=["another cohort", "a straggler"])
def test_who_only_sent_a_gradient_has_not_been_visited(second: int) -> None:
    """FedDANE's first cohort, and who is dropped from the second, keep the head that they began with."""
    earlier, trains = np.array([[0, 1]]), np.array([[1, second]])
    cohort = fjs.cohort.given(trains, earlier=fjs.cohort.given(earlier))
    given = settings(cohort=cohort) | {"work": fjs.local.given_steps(np.array([[0, 2, 2, 0]]))}
    method = fjs.keep(fjs.feddane(client_optimizer=SGD), HEAD)
    state = jax.jit(fjs.make_train(rounds=1, **given))(method, data(), KEY).state
    trained = [1, 2] if second == 2 else [1]
    assert np.flatnonzero(state.visited).tolist() == trained
    began = jax.tree.leaves(state.clients.memory)
    moved = [not np.allclose(began[-1][i], first()["params"][HEAD]["kernel"]) for i in range(N)]
    assert np.flatnonzero(moved).tolist() == trained


def test_descriptions() -> None:
    for method in (fjs.keep(fjs.scaffold(client_optimizer=SGD), [HEAD, "bias"]), fjs.freeze(METHODS["fednova"], "a/b")):
        assert fjs.build(fjs.describe(method)) == method
        assert isinstance(method.patterns, tuple)
