"""Clusters, mixtures and widths against plain loops by hand, in double precision."""

import functools
import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms.cfl import halves
from fedjax_sim.algorithms.contract import nobody
from fedjax_sim.algorithms.fjord import Fjord
from fedjax_sim.algorithms.heterofl import masks
from fedjax_sim.algorithms.several import apart
from fedjax_sim.engine.plan import Plan
from fedjax_sim.models.passes import Clients
from tests.algorithms import test_golden, test_sweep
from tests.algorithms.test_golden import COHORTS, TAU, QuadraticProblem, assert_equal

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group("clusters")]

ETA, SPREAD = 0.05, 1.5
SGD = fjs.optim.sgd(ETA)
RATES = {"server_learning_rate": fjs.rates.over_rounds(test_golden.SERVER_RATES)}
slow = pytest.mark.slow


@functools.cache
def quadratics():
    return QuadraticProblem(fjs.local.full_batch())


def cohort_of(t):
    """Who takes part, by client index."""
    return [i for i in COHORTS[t] if i >= 0 and TAU[t, i] > 0]


def weights_of(cohort, average):
    sizes = np.array([1.0 if average == "plain" else quadratics().clients[i].size for i in cohort])
    return sizes / sizes.sum()


def moved(i, x, tau, gradient=None):
    """y_i - x after tau steps down F_i, or along ``gradient``."""
    gradient = quadratics().clients[i].full_gradient if gradient is None else gradient
    y = x
    for _ in range(tau):
        y = y - ETA * gradient(y)
    return y - x


def starts(number, x=None, spread=SPREAD, seed=0):
    """As documented: x + spread (n_k - mean_l n_l)."""
    x = quadratics().x0 if x is None else x
    (key,) = jax.random.split(jax.random.key(seed), 1)
    noise = np.asarray(jax.random.normal(key, (number, *x.shape), x.dtype))
    return x + spread * (noise - noise.mean(axis=0))


# IFCA, HypCluster


def clustered(K, average="plain", divides_by_all=False, seed=0):
    """The mean of the K models before and after every round, the models, who chose what, and what rounds record."""
    x, last, shared, chosen = starts(K, seed=seed), np.zeros(6, int), [], []
    for t in range(len(COHORTS)):
        shared.append(x.mean(axis=0))
        cohort = cohort_of(t)
        if not cohort:
            chosen.append(chosen[-1])
            continue
        weights, sums, mass = weights_of(cohort, average), np.zeros_like(x), np.zeros(K)
        for i, w in zip(cohort, weights, strict=True):
            last[i] = k = np.argmin([quadratics().clients[i].loss(one) for one in x])
            sums[k] += w * moved(i, x[k], TAU[t, i])
            mass[k] += w
        step = sums if divides_by_all else sums / np.where(mass > 0, mass, 1)[:, None]
        x = x + test_golden.SERVER_RATES[t] * step
        chosen.append(mass)
    return np.stack([*shared, x.mean(axis=0)]), x, last, np.stack(chosen)


@pytest.mark.parametrize(
    ("make", "average", "option"),
    [
        ("ifca", None, "models"),
        pytest.param("ifca", None, "gradients", marks=slow),
        pytest.param("ifca", "sample", "models", marks=slow),
        pytest.param("hypcluster", None, None, marks=slow),
        pytest.param("hypcluster", "plain", None, marks=slow),
    ],
)
def test_clusters_by_losses(make, average, option):
    means = average or {"ifca": "plain", "hypcluster": "sample"}[make]
    shared, models, last, chosen = clustered(3, means, option == "gradients", seed=2)
    assert len({*last}) > 1  # or this would test one model
    more = {} if option is None else {"option": option}
    method = getattr(fjs, make)(client_optimizer=SGD, clusters=3, spread=SPREAD, seed=2, **RATES, **more)
    result = test_golden.run(quadratics(), method, average=average)
    assert_equal(result.x, shared)
    assert_equal(result.state.server.params, models)
    np.testing.assert_array_equal(result.state.clients, last)
    assert_equal(np.stack([result.rounds[f"cluster_{k}"] for k in range(3)], 1), chosen)
    assert_equal(jax.vmap(method.personal, (None, 0))(result.state.server, result.state.clients), models[last])


@slow
@pytest.mark.parametrize("make", ["ifca", "hypcluster"])
def test_one_cluster_is_fedavg(make):
    method = getattr(fjs, make)(client_optimizer=SGD, clusters=1)
    fedavg = test_golden.run(quadratics(), fjs.fedavg(client_optimizer=SGD), average=method.requires.average)
    assert_equal(test_golden.run(quadratics(), method).x, fedavg.x)


def test_models_in_bfloat16_start_where_those_in_single_precision_do():
    x = jnp.linspace(-1, 1, 100, dtype=jnp.float32)
    half, single = (apart(one, 3, 0.5, seed=1) for one in (x.astype(jnp.bfloat16), x))
    np.testing.assert_allclose(half.astype(jnp.float32), single, rtol=0.02, atol=0.02)


# FedEM


def rows_of_clients():
    """Every client's own examples (H, e, c) and their weights, in the order of the ids."""
    data = test_sweep.problem()
    rows = [slice(int(data.offsets[i]), int(data.offsets[i] + data.sizes[i])) for i in np.asarray(data.order)]
    of = {name: np.asarray(leaf) for name, leaf in {**data.examples, "v": data.example_weights}.items()}
    return [[of[name][row] for name in ("H", "e", "c", "v")] for row in rows]


def follow(method, average=None):
    """A run of tests/algorithms/test_sweep.py: void slots, clients dropped, steps that differ."""
    asked = Plan(
        task=fjs.quadratic(), cohort=fjs.cohort.given(test_sweep.COHORTS, average=average),
        work=fjs.local.given_steps(test_sweep.TAU, most=test_sweep.MOST), batches=fjs.local.full_batch(),
    )  # fmt: skip
    return test_golden.follow(asked, method, test_sweep.problem(), test_sweep.start(), test_sweep.ROUNDS)


def mixtures(K, average):
    """The components and the clients' weights after the rounds of :func:`follow`."""
    clients, x = rows_of_clients(), starts(K, np.asarray(test_sweep.start()), 0.1)
    pi, ids = np.full((6, K), 1 / K), np.sort(test_sweep.IDS).tolist()
    for t, row in enumerate(test_sweep.COHORTS):
        cohort = [ids.index(one) for one in row if one >= 0 and test_sweep.TAU[t, ids.index(one)] > 0]
        weights = np.array([1.0 if average == "plain" else len(clients[i][0]) for i in cohort])
        step = np.zeros_like(x)
        for i, w in zip(cohort, weights / weights.sum(), strict=True):
            H, e, c, v = clients[i]
            losses = np.stack([np.einsum("d,jde,e->j", one, H, one) / 2 - e @ one + c for one in x], 1)
            q = pi[i] * np.exp(-losses)
            q /= q.sum(1, keepdims=True)
            pi[i] = v @ q / v.sum()
            for k in range(K):
                own = v * q[:, k] / len(v)
                A, b = np.tensordot(own, H, 1), own @ e
                step[k] += w * moved(i, x[k], test_sweep.TAU[t, i], lambda y, A=A, b=b: A @ y - b)
        x = x + step
    return x, pi


@pytest.mark.parametrize("average", [None, pytest.param("plain", marks=slow)])
def test_mixtures(average):
    method = fjs.fedem(client_optimizer=SGD, components=3, spread=0.1)
    models, pi = mixtures(3, average or "sample")

    assert 0.1 < np.median(pi) < 0.4  # or this would test clusters
    result = follow(method, average)
    assert_equal(result.state.server.params, models)
    assert_equal(result.state.clients, pi)
    assert_equal(result.params, models.mean(axis=0))


@slow
def test_one_component_is_fedavg():
    ours, fedavg = follow(fjs.fedem(client_optimizer=SGD, components=1)), follow(fjs.fedavg(client_optimizer=SGD))
    assert_equal(ours.x, fedavg.x)
    assert_equal(ours.state.clients, np.ones((6, 1)))


def test_a_client_whose_examples_weigh_nothing_keeps_its_mixture():
    pi, client = jnp.array([0.3, 0.7]), nobody()._replace(survey=jnp.zeros(2))
    assert_equal(fjs.fedem(client_optimizer=SGD).finish((), (), (), pi, client)[1], pi)


def labelled():
    rng = np.random.default_rng(9)
    clients = [(rng.standard_normal((n, 4)), np.resize([0, 1, 2], n)) for n in (7, 5, 9)]
    return fjs.datasets.from_clients(clients, test=clients, num_classes=3)


def test_a_client_itself_uses_the_mixture():
    """Its probabilities are mixed, not its parameters; losses have the mean penalty of the components."""
    data = labelled()
    task = fjs.classification(fjs.models.LogisticRegression(3, param_dtype=jnp.float64), weight_decay=0.1)
    method, rng = fjs.fedem(client_optimizer=SGD, components=3), np.random.default_rng(1)
    models, pi = {"kernel": rng.normal(size=(3, 4, 3)), "bias": rng.normal(size=(3, 3))}, rng.dirichlet(np.ones(3), 3)
    start = {"params": {"Dense_0": {name: leaf.mean(axis=0) for name, leaf in models.items()}}}
    server = method.init(start, np.ones(3) / 3)._replace(params={"params": {"Dense_0": models}})
    found = jax.jit(fjs.per_client(task))(start, data, clients=Clients(method, server, pi, np.ones(3, bool)))
    x, y = np.asarray(data.examples["x"]), np.asarray(data.examples["y"])
    for i, (first, n) in enumerate(zip(np.asarray(data.offsets), np.asarray(data.sizes), strict=True)):
        rows = slice(first, first + n)
        logits = np.einsum("jd,kdc->kjc", x[rows], models["kernel"]) + models["bias"][:, None]
        p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        mixed = np.tensordot(pi[i], p, 1)
        penalty = 0.1 * pi[i] @ (np.square(models["kernel"]).sum((1, 2)) + np.square(models["bias"]).sum(1))
        loss = np.mean(-np.log(mixed[np.arange(n), y[rows]])) + penalty
        assert_equal(found["personal_client_loss"][i], loss)
        assert_equal(found["personal_client_accuracy"][i], np.mean(mixed.argmax(1) == y[rows]))


# CFL


def best_halves(similar, members):
    """The halves of least cross similarity, by trying all; the first one has the lowest client."""
    best = None
    for chosen in itertools.product([False, True], repeat=len(members) - 1):
        second = [i for i, there in zip(members[1:], chosen, strict=True) if there]
        first = [i for i in members if i not in second]
        if second:
            cross = max(similar[i, j] for i in first for j in second)
            best = min(best or (np.inf,), (cross, first, second))
    return best


def split_clusters(epsilon1, epsilon2, gamma, places, average):
    """Models, clusters, parents and numbers of clusters after every round of five; client 4 is dropped in round 1."""
    x, cluster, parent, numbers = np.stack([quadratics().x0] * places), np.zeros(6, int), np.arange(places), []
    number, heard = 1, np.zeros(6, int)
    for t in range(5):
        present = [i for i in range(6) if FULL_TAU[t, i] > 0]
        deltas = {i: moved(i, x[cluster[i]], FULL_TAU[t, i]) for i in present}
        heard[present] = cluster[present]
        similar = np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in deltas.values()] for a in deltas.values()])
        before, old = cluster.copy(), number
        for c in range(old):
            members = [i for i in range(6) if before[i] == c]
            there = [i for i in members if i in present]
            weights = np.array([1.0 if average == "plain" else quadratics().clients[i].size for i in there])
            mean = sum(w * deltas[i] for w, i in zip(weights / weights.sum(), there, strict=True))
            x[c] = x[c] + mean
            longest = max(np.linalg.norm(deltas[i]) for i in there)
            if there != members or len(members) < 2 or number == places:
                continue
            if np.linalg.norm(mean) < epsilon1 and longest > epsilon2:
                at = {i: place for place, i in enumerate(present)}
                whole = {(i, j): similar[at[i], at[j]] for i in members for j in members}
                cross, _, second = best_halves(whole, members)
                if np.sqrt((1 - cross) / 2) > gamma:
                    x[number], parent[number], cluster[second] = x[c], c, number
                    number += 1
        numbers.append(number)
    return x[:number], cluster, parent, numbers, heard


FULL_TAU = np.array(
    [[2, 3, 1, 4, 2, 3], [3, 1, 2, 2, 0, 4], [2, 2, 3, 1, 4, 2], [1, 2, 3, 4, 2, 3], [2, 1, 2, 3, 1, 2]]
)


@pytest.mark.parametrize(
    ("epsilon1", "epsilon2", "gamma", "places", "average"),
    [
        (0.4, 0.1, 0.3, 4, None),  # in one round two clusters want the last place
        pytest.param(0.4, 0.1, 0.3, 6, None, marks=slow),
        pytest.param(0.4, 0.1, 0.0, 3, "sample", marks=slow),
        pytest.param(0.4, 0.1, 0.45, 6, None, marks=slow),
    ],
)
def test_clusters_that_are_split(epsilon1, epsilon2, gamma, places, average):
    models, cluster, parent, numbers, heard = split_clusters(epsilon1, epsilon2, gamma, places, average or "plain")
    assert numbers[-1] > 1
    method = fjs.cfl(client_optimizer=SGD, clusters=places, epsilon1=epsilon1, epsilon2=epsilon2, gamma=gamma)
    result = test_golden.run(quadratics(), method, cohorts=np.tile(np.arange(6), (5, 1)), tau=FULL_TAU, average=average)
    tree = result.state.server.extra
    np.testing.assert_array_equal(tree.cluster, cluster)
    np.testing.assert_array_equal(tree.parent, parent)
    np.testing.assert_array_equal(result.rounds["clusters"], numbers)
    np.testing.assert_array_equal(result.state.clients, heard)
    assert_equal(result.state.server.params[: numbers[-1]], models)
    assert_equal(result.params, models[cluster].mean(axis=0))


def test_the_halves_are_the_best_of_all():
    """Two clusters and a client that is in none, side by side."""
    rng = np.random.default_rng(0)
    indices, member = rng.permutation(11), np.zeros((11, 3), bool)
    member[[0, 2, 3, 6, 8, 9], 0], member[[1, 4, 5, 10], 2] = True, True
    find = jax.jit(halves)
    for _ in range(10):
        similar = rng.uniform(-1, 1, (11, 11))
        similar += similar.T
        second, cross = find(jnp.asarray(similar), jnp.asarray(member), jnp.asarray(indices, jnp.int32))
        assert cross[1] == -np.inf
        for c in (0, 2):
            slots = sorted(np.flatnonzero(member[:, c]), key=lambda slot: indices[slot])
            best, _, there = best_halves(similar, [int(slot) for slot in slots])
            assert cross[c] == best
            assert np.flatnonzero(np.asarray(second) & member[:, c]).tolist() == sorted(there)
        assert not second[7]


# HeteroFL, FjORD


WIDTHS = (0.4, 1.0, 0.6)
HIDDEN = (5, 4)
DECAY = 0.1


def sizes_at(width):
    return [4, *(math.ceil(round(width * d, 9)) for d in HIDDEN), 3]


def narrow(layers, width):
    """The first units of every hidden layer of a list of (kernel, bias)."""
    sizes = sizes_at(width)
    return [(W[:a, :b], c[:b]) for (W, c), a, b in zip(layers, sizes, sizes[1:], strict=False)]


def gradient_of(layers, x, y, hidden):
    """Of the mean cross-entropy of a ReLU network whose hidden layers' outputs are multiplied by ``hidden``."""
    inputs, signs = [x], []
    for W, c in layers[:-1]:
        z = hidden * (inputs[-1] @ W + c)
        signs.append(z > 0)
        inputs.append(np.maximum(z, 0))
    logits = inputs[-1] @ layers[-1][0] + layers[-1][1]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    back, found = (p - np.eye(3)[y]) / len(y), []
    for place in range(len(layers) - 1, -1, -1):
        found.append((inputs[place].T @ back, back.sum(0)))
        if place:
            back = hidden * (back @ layers[place][0].T) * signs[place - 1]
    return found[::-1]


def narrower_networks(first, data, taus, draw, scaled, average="plain"):
    """The network after the rounds: narrower ones are cut out, trained and put back."""
    layers = [(np.array(first[f"Dense_{i}"]["kernel"]), np.array(first[f"Dense_{i}"]["bias"])) for i in range(3)]
    x, y = np.asarray(data.examples["x"]), np.asarray(data.examples["y"])
    clients = [slice(a, a + n) for a, n in zip(np.asarray(data.offsets), np.asarray(data.sizes), strict=True)]
    for t, steps in enumerate(taus):
        sums, counts = ([(np.zeros_like(W), np.zeros_like(c)) for W, c in layers] for _ in range(2))
        for i, rows in enumerate(clients):
            if not steps[i]:
                continue
            weight = 1.0 if average == "plain" else rows.stop - rows.start
            own = [(W.copy(), c.copy()) for W, c in layers]
            for k in range(steps[i]):
                width = draw(t, i, k)
                part = narrow(own, width)
                for (W, c), (gW, gc) in zip(
                    part, gradient_of(part, x[rows], y[rows], 1 / width if scaled else 1.0), strict=True
                ):
                    W -= ETA * (gW + 2 * DECAY * W)  # of the parameters, not of what the scaler makes of them
                    c -= ETA * (gc + 2 * DECAY * c)
            held = [narrow(one, WIDTHS[i]) for one in (sums, counts, own, layers)]
            for total, count, mine, theirs in zip(*held, strict=True):
                for j in range(2):
                    total[j][...] += weight * (mine[j] - theirs[j])
                    count[j][...] += weight
        layers = [
            tuple(v + s / np.where(n, n, 1) for v, s, n in zip(*one, strict=True))
            for one in zip(layers, sums, counts, strict=True)
        ]
    return layers


TAUS = np.array([[2, 3, 1], [3, 0, 2], [1, 2, 3]])  # in the second round nobody has the whole network


def train_widths(method, rounds=3, average=None, **more):
    data = labelled()
    task = fjs.classification(fjs.models.MLP(3, HIDDEN, param_dtype=jnp.float64), weight_decay=DECAY)
    first = jax.jit(task.init)(jax.random.key(3), data)
    asked = Plan(
        task=task, cohort=fjs.cohort.given(np.tile(np.arange(3), (3, 1)), average=average),
        work=fjs.local.given_steps(TAUS, most=3), batches=fjs.local.full_batch(), **more,
    )  # fmt: skip
    return first["params"], data, test_golden.follow(asked, method, data, first, rounds)


def same_network(found, layers):
    for i, (kernel, bias) in enumerate(layers):
        assert_equal(found["params"][f"Dense_{i}"]["kernel"], kernel)
        assert_equal(found["params"][f"Dense_{i}"]["bias"], bias)


@pytest.mark.parametrize(
    ("scaler", "average"),
    [(True, None), pytest.param(False, None, marks=slow), pytest.param(True, "sample", marks=slow)],
)
def test_each_entry_is_averaged_over_those_who_have_it(scaler, average):
    method = fjs.heterofl(client_optimizer=SGD, widths=np.array(WIDTHS), scaler=scaler)
    first, data, result = train_widths(method, average=average)
    layers = narrower_networks(first, data, TAUS, lambda t, i, k: WIDTHS[i], scaler, average or "plain")
    same_network(result.params, layers)
    np.testing.assert_allclose(result.state.clients, WIDTHS)
    own = method.personal(result.state.server, result.state.clients[0])["params"]
    assert_equal(np.asarray(own["Dense_1"]["kernel"])[:2, :2], layers[1][0][:2, :2])
    assert np.count_nonzero(own["Dense_1"]["kernel"]) == 4


def test_every_step_has_a_width_of_its_own():
    drawn, levels = {}, (0.4, 0.6, 1.0)

    def see(index, steps, k, width):  # a client takes another number of steps in every round
        drawn[int(index), int(steps), int(k)] = round(float(width), 6)

    class Spy(Fjord):
        def objective(self, F, y, k, sent, c_i, client):
            jax.debug.callback(see, client.index, client.steps, k, self._drawn(k, client))
            return super().objective(F, y, k, sent, c_i, client)

    method = Spy(client_optimizer=SGD, widths=jnp.array(WIDTHS), levels=levels)
    first, data, result = train_widths(method, layout=fjs.layout.turns())
    jax.effects_barrier()
    layers = narrower_networks(first, data, TAUS, lambda t, i, k: drawn[i, TAUS[t, i], k], False)
    same_network(result.params, layers)
    by_client = [{width for (i, _, _), width in drawn.items() if i == j} for j in range(3)]
    assert by_client[0] == {0.4}
    assert {1.0} < by_client[1] <= {*levels}
    assert by_client[2] == {0.4, 0.6}


@slow
def test_whole_networks_are_fedavg():
    results = [
        train_widths(method, average="plain")[2].x
        for method in (
            fjs.fedavg(client_optimizer=SGD),
            fjs.heterofl(client_optimizer=SGD),
            fjs.fjord(client_optimizer=SGD, levels=(1.0,)),
        )
    ]
    assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])


class Chain(nn.Module):
    """Two convolutions, flattened, and two dense layers."""

    widths: tuple[int, int, int]

    @nn.compact
    def __call__(self, x):
        for width in self.widths[:2]:
            x = nn.relu(nn.Conv(width, (3, 3), param_dtype=jnp.float64)(x))
        x = nn.relu(nn.Dense(self.widths[2], param_dtype=jnp.float64)(x.reshape(len(x), -1)))
        return nn.Dense(3, param_dtype=jnp.float64)(x)


def test_a_mask_is_the_narrower_network():
    rng, x = np.random.default_rng(0), np.random.default_rng(1).standard_normal((2, 4, 4, 2))
    whole = Chain((4, 6, 5))
    shapes = jax.eval_shape(whole.init, jax.random.key(0), x)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), shapes)
    held = masks(params, jnp.float32(0.6))
    widths = (3, 4, 3)
    wanted = jax.eval_shape(Chain(widths).init, jax.random.key(0), x)
    cut = jax.tree.map(lambda leaf, mask, like: leaf[np.asarray(mask) > 0].reshape(like.shape), params, held, wanted)
    masked = jax.tree.map(lambda leaf, mask: leaf * np.asarray(mask), params, held)
    with fjs.optim.third_party():
        assert_equal(jax.jit(whole.apply)(masked, x), jax.jit(Chain(widths).apply)(cut, x))


def test_models_that_are_no_chain_are_refused():
    method = fjs.heterofl(client_optimizer=SGD)
    for params, why in (
        (jnp.zeros(3), "a parameter without a name"),
        ({"params": {"BatchNorm_0": {"scale": jnp.zeros(3)}}}, "BatchNorm_0/scale"),
        ({"Dense_0": {"kernel": jnp.zeros((2, 3))}, "Dense_1": {"kernel": jnp.zeros((4, 2))}}, "Dense_1 has 4 inputs"),
    ):
        with pytest.raises(ValueError, match=f"no chain of flax's .*{why}"):
            method.init(params, jnp.ones(2))
    with pytest.raises(ValueError, match=r"heterofl\(widths=...\) has the shape \(3,\): .* 2 clients"):
        method.replace(widths=np.ones(3)).check(2)
    for levels in ((), (0.5, 0.5), (0.0, 1.0), (0.5, 1.5)):
        with pytest.raises((TypeError, ValueError), match="levels"):
            fjs.fjord(client_optimizer=SGD, levels=levels)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [([np.nan, 2, 1], 2), ([np.inf, np.nan, 3], 2), ([np.nan, np.inf, np.inf], 1), ([np.nan] * 3, 0)],
)
def test_a_model_whose_loss_is_no_number_is_not_chosen(losses, chosen):
    method = fjs.ifca(client_optimizer=SGD, clusters=3)
    sent = method.send(method.init(jnp.zeros(2), jnp.ones(4) / 4))
    client = nobody()._replace(survey=jnp.array(losses, float))
    np.testing.assert_array_equal(method.begin(sent, jnp.int32(0), client), sent.params[chosen])
    messages, kept = method.finish(jnp.ones(2), jnp.ones(2), sent, jnp.int32(0), client)
    assert kept == chosen
    np.testing.assert_array_equal(messages["chosen"].value, np.eye(3)[chosen])
    np.testing.assert_array_equal(messages["delta"].value, np.eye(3)[chosen][:, None] * np.ones(2))


@pytest.mark.parametrize("make", ["heterofl", "fjord"])
def test_a_list_of_widths_is_an_array(make):
    """In a program, where a list would be as many arrays."""
    method = getattr(fjs, make)(client_optimizer=SGD, widths=[1.0, 0.5])
    assert fjs.paths.real_leaves(method)["widths"].shape == (2,)
    jax.eval_shape(lambda method: method.check(2), method)


@slow
@pytest.mark.parametrize(("make", "more"), [("heterofl", {}), ("fjord", {"levels": (0.4, 1.0)})])
def test_hyper_gradients_through_masks(make, more):
    def loss(rate):
        method = getattr(fjs, make)(client_optimizer=fjs.optim.sgd(rate), widths=jnp.array(WIDTHS), **more)
        train = fjs.make_train(
            task=fjs.classification(fjs.models.MLP(3, HIDDEN, param_dtype=jnp.float64)), rounds=2, eval_every=2,
            cohort=fjs.cohort.full(), work=fjs.local.steps(2), batches=fjs.local.full_batch(),
        )  # fmt: skip
        return train(method, labelled(), jax.random.key(0)).metrics["loss"][-1]

    slope = jax.jit(jax.value_and_grad(loss))
    central = (slope(0.1 + 1e-5)[0] - slope(0.1 - 1e-5)[0]) / 2e-5
    np.testing.assert_allclose(slope(0.1)[1], central, rtol=1e-6)


@slow
def test_a_mixture_of_models_of_which_a_part_is_frozen():
    """What is frozen is the same in all of them."""
    data, task = labelled(), fjs.classification(fjs.models.MLP(3, HIDDEN, param_dtype=jnp.float64))
    method = fjs.freeze(fjs.fedem(client_optimizer=SGD, spread=1.0), "Dense_1")
    first = jax.jit(task.init)(jax.random.key(3), data)
    asked = Plan(task=task, cohort=fjs.cohort.full(), work=fjs.local.steps(2), batches=fjs.local.full_batch())
    result = test_golden.follow(asked, method, data, first, 1)
    own = method.personal(result.state.server, result.state.clients[0]).models["params"]
    np.testing.assert_array_equal(own["Dense_1"]["kernel"], np.stack([first["params"]["Dense_1"]["kernel"]] * 2))
    assert np.abs(own["Dense_0"]["kernel"][0] - own["Dense_0"]["kernel"][1]).max() > 0.1


# Inside wrappers


@pytest.mark.slow
def test_one_model_goes_up_whatever_is_around():
    """And nothing clipped is nothing changed."""
    models, _, _, _ = clustered(2, seed=2)
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, eval_every=1, cohort=fjs.cohort.given(COHORTS[:1], average="plain"),
        work=fjs.local.given_steps(TAU[:1]), batches=fjs.local.full_batch(), diagnostics=["communication"],
    )  # fmt: skip
    method = fjs.clipped(fjs.ifca(client_optimizer=SGD, spread=SPREAD, seed=2), norm=1e9)
    result = jax.jit(train)(method, quadratics().dataset, test_golden.KEY, initial_params=quadratics().initial_params())
    assert_equal(result.params, models[1])
    np.testing.assert_array_equal(result.rounds["bytes_down"], [4 * 2 * 4 * 8])
    np.testing.assert_array_equal(result.rounds["bytes_up"], [4 * (4 * 8 + 4)])


def test_wrappers_for_one_model_and_one_average_are_refused():
    several = fjs.ifca, fjs.fedem, fjs.cfl
    for wrap in (fjs.ema, fjs.last_k, fjs.aware, fjs.top_k, lambda base: fjs.keep(base, "head")):
        for make in several:
            with pytest.raises(ValueError, match="keeps several models on the server"):
                wrap(make(client_optimizer=SGD))
    for wrap in (fjs.robust, lambda base: fjs.attacked(base, clients=[0])):
        for make in (fjs.ifca, fjs.heterofl, fjs.fjord):
            with pytest.raises(ValueError, match="averages each part of what it keeps over other clients"):
                wrap(make(client_optimizer=SGD))
    for wrap in (fjs.keep, fjs.freeze):
        for make in (fjs.heterofl, fjs.fjord):
            with pytest.raises(ValueError, match="needs the whole model"):
                wrap(make(client_optimizer=SGD), "head")
    with pytest.raises(ValueError, match="another model at its next visit"):
        fjs.ifca(client_optimizer=SGD, keep_optimizer=True)
    for make in several:
        fjs.top_k(make(client_optimizer=SGD), feedback=False)
    fjs.top_k(fjs.heterofl(client_optimizer=SGD))
