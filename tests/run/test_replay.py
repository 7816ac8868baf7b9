"""Draws known ahead: a run computed again in numpy from ``fjs.draws`` alone, and cohorts replayed by ``given``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms.fedavg import FedAvg
from fedjax_sim.clients.cohort import AVERAGES
from fedjax_sim.models.task import Quadratic

co, local = fjs.cohort, fjs.local
SIZES = (2, 7, 1, 5, 4)
IDS = (30, 4, 11, 25, 8)  # neither the order of storage nor 0 to N - 1
DIM, ROUNDS, RATE, MU = 3, 4, 0.1, 0.3
N, P = len(SIZES), np.array(SIZES) / sum(SIZES)


class Noisy(Quadratic):
    """A model with randomness of its own: a linear term, drawn anew for each gradient."""

    def losses(self, params, examples, key=None):
        losses = super().losses(params, examples)
        return losses if key is None else losses + number(key) @ params


class KeyedFedAvg(FedAvg):
    """Clients and the server draw too."""

    def objective(self, F, y, k, sent, c_i, client):
        return F(y) + jnp.sum(number(client.key) * y)

    def update(self, server, got, cohort):
        new = super().update(server, got, cohort)
        return new._replace(params=new.params + number(cohort.key))


def number(key):
    """Of each key another: its bits, in [0, 0.2)."""
    return 0.1 / 2**31 * jnp.tile(jax.random.key_data(key), 2)[:DIM].astype(float)


@jax.jit
def noises(*arrays):
    """Of each of the keys."""
    return [jax.vmap(number)(keys.reshape(-1)).reshape(*keys.shape, DIM) for keys in arrays]


@jax.jit
def noises_before(model_keys):
    """Of the first batches of a client's pass over all its examples."""
    return jax.vmap(lambda k: noises(jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, k)))(model_keys))[0])(
        jnp.arange(max(SIZES))
    )


def clients():
    rng = np.random.default_rng(0)
    return [{"H": np.stack([np.diag(h) for h in rng.uniform(0.5, 2, (n, DIM))]), "e": rng.normal(size=(n, DIM))}
            for n in SIZES]  # fmt: skip


def data():
    return fjs.datasets.from_clients(clients(), client_ids=IDS)


def model(params, dataset):
    return {"x": params}


def sgd(method, **arguments):
    return method(client_optimizer=fjs.optim.sgd(RATE), **arguments)


class Numpy:
    """The run, from its draws and ``dataset.client``."""

    def __init__(self, d, dataset, noisy):
        self.d, self.x, self.noisy = d, np.full(DIM, 0.5), noisy
        self.examples = [dataset.client(position) for position in range(N)]
        self.of_steps, self.of_clients, self.of_server = map(
            np.asarray, noises(d.step_keys, d.client_keys, d.server_keys)
        )
        # of both exchanges, of a method with a pass over all examples
        self.of_pass = {id(one): np.asarray(noises_before(one.model_keys)) for one in (d, *d.earlier) if d.earlier}

    def slots(self, d, t):
        return [(s, self.examples[d.positions[t, s]]) for s in np.flatnonzero(d.valid[t])]

    def gradient(self, d, t, s, k, examples, y):
        mask = d.mask[t, s, k]
        where = d.rows[t, s, k][mask]
        g = np.mean(examples["H"][where] @ y - examples["e"][where], axis=0)
        for p, piece in enumerate(mask.reshape(d.step_keys.shape[-1], -1) if self.noisy else ()):
            g = g + piece.sum() / mask.sum() * self.of_steps[t, s, k, p]
        return g if d.scale is None else d.scale[t, s] * g

    def full(self, d, t, s, examples):
        """The pass over all examples at x, in batches as steps have them, with the first keys."""
        size, batch = len(examples["e"]), d.rows.shape[-1] // d.step_keys.shape[-1]
        g = np.mean(examples["H"] @ self.x - examples["e"], axis=0)
        for k, first in enumerate(range(0, size, batch) if self.noisy else ()):
            g = g + min(batch, size - first) / size * self.of_pass[id(d)][k, t, s]
        return g

    def descend(self, t, s, examples, correction):
        d, y = self.d, self.x
        for k in range(d.steps[t, s]):
            y = y - d.learning_rate[t, s] * RATE * (self.gradient(d, t, s, k, examples, y) + correction(y))
        return y

    def average(self, t, models):
        d, x = self.d, self.x
        moved = sum((d.weights[t, s] * (y - x) for s, y in models.items()), np.zeros(DIM))
        return x + moved + (0 if d.shift is None or not models else d.shift[t] * x)

    def fedavg(self, t):
        self.x = self.average(t, {s: self.descend(t, s, e, lambda y: 0) for s, e in self.slots(self.d, t)})

    def fedprox(self, t):
        models = {s: self.descend(t, s, e, lambda y: MU * (y - self.x)) for s, e in self.slots(self.d, t)}
        self.x = self.average(t, models)

    def keyed(self, t):
        own = {s: self.of_clients[t, s] for s, _ in self.slots(self.d, t)}
        self.x = self.average(t, {s: self.descend(t, s, e, lambda y, s=s: own[s]) for s, e in self.slots(self.d, t)})
        self.x = self.x + self.of_server[t]

    def scaffold(self, t):
        if t == 0:
            self.c, self.c_i = np.zeros(DIM), np.zeros((N, DIM))
        models, change = {}, np.zeros(DIM)
        for s, examples in self.slots(self.d, t):
            i, x = self.d.indices[t, s], self.x
            y = models[s] = self.descend(t, s, examples, lambda y, i=i: self.c - self.c_i[i])
            new = self.c_i[i] - self.c + (x - y) / (self.d.steps[t, s] * RATE * self.d.learning_rate[t, s])
            change, self.c_i[i] = change + (new - self.c_i[i]) / N, new
        self.x, self.c = self.average(t, models), self.c + change

    def feddane(self, t):
        (first,) = self.d.earlier
        assert first.rows.shape[2] == first.steps.max() == 0
        gathered = [first.weights[t, s] * self.full(first, t, s, e) for s, e in self.slots(first, t)]
        if gathered:
            mean, models = sum(gathered), {}
            for s, examples in self.slots(self.d, t):
                own = self.full(self.d, t, s, examples)
                models[s] = self.descend(t, s, examples, lambda y, own=own: mean - own + MU * (y - self.x))
            self.x = self.average(t, models)


def run_of(cohort, work, batches, *, noisy=False, **more):
    task = Noisy(start=0.5) if noisy else fjs.quadratic(start=0.5)
    return {"task": task, "rounds": ROUNDS, "cohort": cohort, "work": work, "batches": batches, **more}


def phones():
    return fjs.systems.devices(
        seconds_per_step=np.array([1.0, 0.1, 3.0, 0.5, 0.2]), policy=fjs.systems.deadline(4.0)
    )  # fmt: skip


RUNS = {
    "fedavg": (
        lambda: sgd(fjs.fedavg, client_learning_rate=fjs.rates.over_clients([1.0, 0.5, 0.9, 0.8, 0.7])),
        lambda: run_of(
            co.uniform(4, average="inverse"), local.stragglers(0.3, 2, keep=False), local.shuffled(3), system=phones()
        ),
    ),
    "fedprox": (
        lambda: sgd(fjs.fedprox, mu=MU),
        lambda: run_of(co.with_replacement(4), local.random_epochs(1, 2), local.with_replacement(2)),
    ),
    "scaffold": (
        lambda: sgd(fjs.scaffold, client_learning_rate=fjs.rates.inverse_time()),
        lambda: run_of(co.independent(0.5), local.gaussian_steps(3, 2, most=5), local.fraction(0.4)),
    ),
    "feddane": (
        lambda: sgd(fjs.feddane, mu=MU),
        lambda: run_of(
            co.available(co.with_replacement(4), co.bernoulli(0.8)),
            local.steps(3),
            local.with_replacement(2),
            noisy=True,
        ),
    ),
    "keyed": (
        lambda: KeyedFedAvg(client_optimizer=fjs.optim.sgd(RATE)),
        lambda: run_of(co.transformed(3), local.random_epochs(1, 2), local.full_batch(piece_size=2), noisy=True),
    ),
}


# Two exchanges and models that draw; clients and a server that draw. The schemes of the others have tests of their own.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "keyed" else pytest.mark.slow) for name in RUNS]
)
def test_a_run_is_computed_again_in_numpy(name, x64):
    make, arguments = RUNS[name]
    algorithm, dataset = make(), data()
    run = arguments()
    result = jax.jit(fjs.make_train(**run, evaluate=model))(algorithm, dataset, jax.random.key(3))
    x = np.asarray(result.metrics["x"])
    again = Numpy(fjs.draws(algorithm, dataset, **run, seed=3), dataset, isinstance(run["task"], Noisy))
    for t in range(ROUNDS):
        getattr(again, name)(t)
        np.testing.assert_allclose(x[t + 1], again.x, rtol=1e-12, atol=1e-12)
    assert np.abs(np.diff(x, axis=0)).max() > 0.01
    np.testing.assert_array_equal(result.rounds["cohort_size"], again.d.valid.sum(1))


def ditto(y, of, keys, tau):
    """The client's own model, on the batches after those of the shared one."""
    for k in range(tau, tau + 3):
        H, e = of(k)
        y = y - RATE * (H * y - e + MU * (y - 0.5))
    return y


def perfedavg(y, of, keys, tau):
    """y_i: the inner batches come after the outer ones; the model draws alike on both."""
    for k in range(tau):
        (H, e), (H_in, e_in) = of(k), of(tau + k)
        y = y - RATE * (1 - MU * H_in) * (H * (y - MU * (H_in * y - e_in + keys[k, 0])) - e + keys[k, 0])
    return y


def pfedme(y, of, keys, tau):
    """theta_i: two steps on each batch, each with a key of its own."""
    w = theta = y
    for k in range(tau):
        H, e = of(k)
        for key in keys[k]:
            theta = theta - RATE * (H * theta - e + key + 2 * (theta - w))
        w = w - 0.1 * 2 * (w - theta)
    return theta


def test_there_are_as_many_batches_as_clients_see():
    run = {"task": fjs.quadratic(), "rounds": 1, "cohort": co.uniform(2), "batch_size": 2}
    of_ditto = fjs.draws(sgd(fjs.ditto, personal_steps=3), data(), work=local.steps(2), **run)
    of_fedavg = fjs.draws(sgd(fjs.fedavg), data(), work=local.steps(5), **run)
    assert of_ditto.steps.tolist() == [[2, 2]]
    np.testing.assert_array_equal(of_ditto.rows, of_fedavg.rows)
    np.testing.assert_array_equal(of_ditto.mask, of_fedavg.mask)
    assert fjs.draws(sgd(fjs.perfedavg), data(), work=local.steps(3), **run).rows.shape[2] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("visit", "method", "task"),
    [
        (ditto, {"lam": MU, "personal_steps": 3}, fjs.quadratic(start=0.5)),
        (perfedavg, {"alpha": MU}, Noisy(start=0.5)),
        (pfedme, {"lam": 2.0, "inner_steps": 2, "outer_learning_rate": 0.1}, Noisy(start=0.5)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_batches_and_keys_beside_those_of_local_steps(visit, method, task, x64):
    algorithm, dataset = sgd(getattr(fjs, visit.__name__), **method), data()
    run = {"task": task, "rounds": 1, "cohort": co.uniform(1), "work": local.random_epochs(1, 2), "batch_size": 2}
    result = jax.jit(fjs.make_train(**run))(algorithm, dataset, jax.random.key(3))
    d = fjs.draws(algorithm, dataset, **run, seed=3)
    keys, examples = np.asarray(noises(d.step_keys)[0]), dataset.client(d.positions[0, 0])

    def of(k):
        """Diagonal of H, and e, of the batch k."""
        where = d.rows[0, 0, k][d.mask[0, 0, k]]
        H = np.diagonal(examples["H"][where], axis1=1, axis2=2)
        return H.mean(axis=0), examples["e"][where].mean(axis=0)

    found = result.params if visit is perfedavg else result.state.clients[d.indices[0, 0]]
    np.testing.assert_allclose(found, visit(np.full(DIM, 0.5), of, keys[0, 0], d.steps[0, 0]), rtol=1e-12)


def replayed(d):
    """The line of the documentation, for every exchange."""
    before = replayed(d.earlier[-1]._replace(earlier=d.earlier[:-1])) if d.earlier else None
    return co.given(d.ids, average=d.average, repeats=d.repeats, probability=d.inclusion, earlier=before)


ALL = tuple(AVERAGES)
Q = np.array([0.3, 0.9, 0.5, 0.6, 1.0])
WHO = {
    "full": (lambda average: co.full(average=average), ALL),
    "uniform": (lambda average: co.uniform(3, average=average), ALL),
    "with_replacement": (lambda average: co.with_replacement(4, average=average), (None,)),
    "independent": (lambda average: co.independent(Q, average=average), ALL),
    "weighted": (lambda average: co.weighted(3, average=average), tuple(name for name in ALL if name != "inverse")),
    "shuffled": (lambda average: co.shuffled(3, average=average), ALL),
    "given": (lambda average: co.given([[4, 30, -1]] * ROUNDS, average=average), ("sample", "original", "scheme_ii")),
    "available": (lambda average: co.available(co.shuffled(3, average=average), co.bernoulli(Q)), ALL),
    "available scheme I": (lambda average: co.available(co.with_replacement(4), co.bernoulli(Q)), (None,)),
}
PAIRS = [(name, average) for name, (_, averages) in WHO.items() for average in averages]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "average"), PAIRS)
def test_cohorts_are_replayed(name, average, x64):
    """By a run with the same work scheme, which drops clients whom averages count differently."""
    algorithm, dataset, scheme = sgd(fjs.fedavg), data(), WHO[name][0](average)
    run = run_of(scheme, local.stragglers(0.4, 2, keep=False), local.full_batch())
    d = fjs.draws(algorithm, dataset, **run)
    assert d.average == average

    def final(cohort):
        train = jax.jit(fjs.make_train(**{**run, "cohort": cohort}, eval_every=ROUNDS))
        result = train(algorithm, dataset, jax.random.key(0))
        return result.params, result.rounds["cohort_size"]

    (ours, size), (theirs, expected) = final(replayed(d)), final(scheme)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(size, expected)
    assert (d.valid.sum(1) < (d.repeats != 0).sum(1)).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("with_replacement", "independent") else pytest.mark.slow) for name in WHO],
)
def test_every_average_of_given_cohorts_is_the_scheme_s(name, x64):
    make, averages = WHO[name]
    dataset, key, t = data(), jax.random.key(1), jnp.int32(1)

    @jax.jit
    def both():
        found = {}
        for average in averages:
            scheme = make(average)
            selection = scheme.select(dataset, key, t)
            ids = dataset.client_ids[dataset.order].at[selection.indices].get(mode="fill", fill_value=-1)
            given = co.given(
                jnp.stack([ids, ids]), average=average, repeats=jnp.stack([selection.count] * 2),
                probability=jnp.stack([scheme.inclusion(dataset, t)] * 2) if average == "inverse" else None,
            )  # fmt: skip
            own = average or "sample"
            assert given.averaging(own) is scheme.averaging(own)
            chosen = given.select(dataset, key, t)
            took_part = selection.present & (selection.indices != 2)
            found[str(average)] = [
                (
                    one[:2],
                    who.weigh(dataset, one, took_part, own, t),
                    who.inclusion(dataset, t) if average == "inverse" else (),
                )
                for who, one in ((given, chosen), (scheme, selection))
            ]
        return found

    for ours, theirs in both().values():
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
def test_the_draws_of_both_exchanges_are_replayed(x64):
    """By numbers of draws, of which some are of clients who cannot be had."""
    make, arguments = RUNS["feddane"]
    algorithm, dataset, run = make(), data(), arguments()
    d = fjs.draws(algorithm, dataset, **run)
    again = fjs.draws(algorithm, dataset, **run | {"cohort": replayed(d)})
    assert (d.earlier[0].ids != d.ids).any()
    for ours, theirs in ((again, d), (again.earlier[0], d.earlier[0])):
        for name in ("ids", "valid", "steps", "rows"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-12)


@pytest.mark.slow
def test_the_cohorts_of_both_exchanges_are_replayed(x64):
    """FedDANE's S1 and S2, with the weights of scheme I; the plan of a streamed run knows of both too."""
    algorithm, dataset, scheme = sgd(fjs.feddane), data(), co.with_replacement(3)
    run = run_of(scheme, local.steps(2), local.shuffled(3))
    d = fjs.draws(algorithm, dataset, **run)
    assert (d.earlier[0].ids != d.ids).any()

    def final(cohort, dataset=dataset):
        return fjs.simulate(algorithm, dataset, **{**run, "cohort": cohort}, eval_every=ROUNDS).params[0]

    ours, theirs = final(replayed(d)), final(scheme)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    streamed = final(replayed(d), fjs.datasets.host.on_host(dataset))
    np.testing.assert_allclose(streamed, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_draws_of_some_rounds_of_a_key_of_data_on_the_host():
    """They are those of all rounds, of the key's seed, of the data on the device."""
    algorithm, dataset = sgd(fjs.fedavg), data()
    run = run_of(co.uniform(3), local.random_epochs(1, 2), local.shuffled(3))
    every = fjs.draws(algorithm, dataset, **run, seed=5)
    np.testing.assert_array_equal(every.rounds, range(ROUNDS))
    some = fjs.draws(algorithm, fjs.datasets.host.on_host(dataset), **run, seed=jax.random.key(5), at=[3, 1])
    K = some.steps.max()
    for name in ("ids", "indices", "positions", "steps", "weights", "rows", "mask"):
        theirs = getattr(every, name)[np.array([3, 1])]
        np.testing.assert_array_equal(getattr(some, name), theirs[:, :, :K] if name in ("rows", "mask") else theirs)
    # A client's epoch has each of its examples once.
    for s, position in enumerate(some.positions[0]):
        epoch = -(-SIZES[position] // 3)
        assert sorted(some.rows[0, s, :epoch][some.mask[0, s, :epoch]]) == list(range(SIZES[position]))
    assert [IDS[position] for position in some.positions[0]] == some.ids[0].tolist()
    assert [sorted(IDS)[index] for index in some.indices[0]] == some.ids[0].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"at": 3}, r"at=3\): give a list of rounds"),
        ({"at": []}, "give a round or more"),
        ({"at": [0, ROUNDS]}, f"is {ROUNDS}: it must be at most {ROUNDS - 1}"),
        ({"seed": 2**32}, "seed.*at most 4294967295"),
        ({"seeds": range(2)}, "no argument 'seeds'.*seed="),
        ({"batch_sizes": 2}, "no argument 'batch_sizes'.* did you mean 'batch_size'"),
        ({"work": local.steps}, "work is .*so call it"),
        ({"cohort": co.uniform(9)}, "larger than the data set's 5 clients"),
        ({"asynchronous": fjs.asynchronous.fedbuff(buffer=2)}, "asynchronous=.*all updates before"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_draws_refuses(change, message):
    run = run_of(co.uniform(2), local.steps(2), local.shuffled(3)) | change
    if "asynchronous" in change:
        run["system"] = fjs.systems.devices(seconds_per_step=1.0)
    with pytest.raises((TypeError, ValueError), match=message):
        fjs.draws(sgd(fjs.fedavg), data(), **run)


def test_traced_draws_are_refused():
    run = run_of(co.uniform(2), local.steps(2), local.shuffled(3))
    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(lambda key: fjs.draws(sgd(fjs.fedavg), data(), seed=key, **run).ids)(jax.random.key(0))


def test_a_list_of_draws_with_replacement():
    """One that names an id three times is the cohort in which the client counts three times, traced too."""
    dataset, once = data(), np.array([[4, 30, 4, 4, -1], [8, 8, 30, 30, 8]])
    counts, ids = np.array([[3, 1, 0, 0, 0], [3, 0, 2, 0, 0]]), np.array([[4, 30, -1, -1, -1], [8, -1, 30, -1, -1]])

    @jax.jit
    def selected(draws, repeats, counted, counts):
        schemes = (co.given(draws, repeats=repeats), co.given(counted, repeats=counts))
        return [jax.vmap(lambda t: one.select(dataset, jax.random.key(0), t))(jnp.arange(2)) for one in schemes]  # noqa: B023

    def drawn(draws):
        scheme = co.given(draws, repeats=1)
        return scheme.draw(dataset, jax.random.key(0), 1).weights, scheme.inclusion(dataset, 1)

    ours, theirs = selected(once, np.ones_like(once), ids, counts)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    np.testing.assert_array_equal(ours.refused, [0, 0])
    np.testing.assert_array_equal(ours.count, counts)
    weights, inclusion = jax.jit(drawn)(once)
    np.testing.assert_allclose(weights, [0.6, 0, 0.4, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(inclusion, [0, 1, 0, 0, 1])
    assert co.given(once, repeats=1).replacement
    assert not co.given(ids, repeats=(counts > 0).astype(int)).replacement


@pytest.mark.slow
def test_traced_ids_of_an_earlier_exchange_are_counted():
    """Nobody is 9 or 10; cohorts that serve both exchanges are counted once."""
    dataset = data()
    run = run_of(None, local.steps(1), local.full_batch())

    @jax.jit
    def refused(ids, before):
        given, both = co.given(ids, earlier=co.given(before)), co.given(ids)
        trains = [fjs.make_train(**{**run, "rounds": 1, "cohort": one}) for one in (given, both)]
        results = [train(sgd(fjs.feddane), dataset, jax.random.key(0)) for train in trains]
        return [result.rounds["refused_slots"] for result in results]

    assert np.concatenate(refused(np.array([[4, 9, 30]]), np.array([[10, 9, 8]]))).tolist() == [3, 1]
