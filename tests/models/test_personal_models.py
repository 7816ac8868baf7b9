"""Client states as a user has them, and what the clients' own models are worth, against loops by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.models.passes import Clients

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group("personal models")]

SGD = fjs.optim.sgd(0.3)
IDS = np.array([70, 20, 90, 40, 30])  # not sorted: storage order and the order of the ids differ
SIZES, TEST_SIZES = (6, 3, 8, 5, 4), (300, 2, 0, 5, 3)  # more test examples of one client than are read at a time


@functools.cache
def separable(host=False):
    """Clients who disagree about which side is which."""
    rng = np.random.default_rng(4)

    def part(n, sign):
        x = rng.standard_normal((n, 2))
        return {"x": x, "y": (sign * x[:, 0] > 0).astype(float)}

    signs = (1, -1, 1, -1, 1)
    train = [part(n, sign) for n, sign in zip(SIZES, signs, strict=True)]
    test = [part(n, sign) for n, sign in zip(TEST_SIZES, signs, strict=True)]
    data = fjs.datasets.from_clients(train, test=test, client_ids=IDS)
    return fjs.datasets.on_host(data) if host else data


def margins(params, examples):
    return examples["x"] @ (params["body"] * params["head"])


def hits(params, examples):
    return (margins(params, examples) > 0) == (examples["y"] > 0.5)


TASK = fjs.functions(
    lambda key: {"body": jnp.array([1.0, 0.5]), "head": jnp.array([-0.2, 0.4])},
    lambda params, examples: jax.nn.softplus((1 - 2 * examples["y"]) * margins(params, examples)),
    lambda params, examples: {"accuracy": hits(params, examples).astype(float)},
)
TUNED = fjs.personalise(TASK, fjs.optim.sgd(0.2), fjs.local.steps(2))
RUN = {
    "task": TASK, "rounds": 2, "eval_every": 2, "batches": fjs.local.full_batch(), "work": fjs.local.steps(4),
    "cohort": fjs.cohort.uniform(1), "evaluate": fjs.per_client(TASK, worst=0.5, tuned=TUNED),
}  # fmt: skip
METHODS = {
    "ditto": fjs.ditto(client_optimizer=SGD, lam=0.1),
    "fedrep": fjs.fedrep(fjs.fedavg(client_optimizer=SGD), "head", head_steps=2),
}
HELD = np.array(TEST_SIZES) > 0


@functools.cache
def history(name):
    return fjs.simulate(METHODS[name], separable(), **RUN, seeds=[3, 1], keep_state=True, progress=False)


def values_of(models, part=None):
    """Losses and accuracies of the clients' models on their own test examples, in storage order, in numpy."""
    part = separable().test if part is None else part
    found = {"loss": [], "accuracy": []}
    for position, params in enumerate(models):
        test = part.client(position)
        z = test["x"] @ (np.asarray(params["body"]) * np.asarray(params["head"]))
        found["loss"].append(np.log1p(np.exp((1 - 2 * test["y"]) * z)).mean() if len(z) else np.nan)
        found["accuracy"].append(((z > 0) == (test["y"] > 0.5)).mean() if len(z) else np.nan)
    return {name: np.array(values) for name, values in found.items()}


def gradient(params, data):
    z = data["x"] @ (params["body"] * params["head"])
    sign = 1 - 2 * data["y"]
    at = (sign / (1 + np.exp(-sign * z))) @ data["x"] / len(z)
    return {"body": at * params["head"], "head": at * params["body"]}


def descended(params, data, steps=2, eta=0.2, mu=0.0):
    start = y = {part: np.asarray(leaf) for part, leaf in params.items()}
    for _ in range(steps):
        g = gradient(y, data)
        y = {part: y[part] - eta * (g[part] + mu * (y[part] - start[part])) for part in y}
    return y


def by_hand(name, seed):
    """All that is recorded of the models beside each other, from what the history keeps."""
    run = history(name)
    shared = jax.tree.map(lambda leaf: leaf[seed], run.params)
    own = [jax.tree.map(lambda leaf: leaf[seed], run.client(i)) for i in IDS]
    visited = run.state.visited[seed][np.argsort(np.argsort(IDS))]
    own = own if name == "ditto" else [{**shared, "head": kept.memory["head"]} for kept in own]
    return {"client_visited": visited} | beside_each_other(shared, own, visited, separable(), separable().test)


def beside_each_other(shared, own, visited, data, part):
    """What is recorded of a held-out part for the shared model, the clients' own ones and the fine-tuned ones."""
    models = {
        "shared": [shared] * 5, "personal": own,
        "tuned": [descended(shared, data.client(position)) for position in range(5)],
    }  # fmt: skip
    values = {model: values_of(of_all, part) for model, of_all in models.items()}
    held = np.asarray(part.sizes) > 0
    counted = held & visited
    sizes = np.asarray(part.sizes)[counted]
    found = {"unvisited": (held & ~visited).sum()}
    for model, metrics in values.items():
        for metric, of_all in metrics.items():
            found[f"{model}_{metric}"] = of_all[counted].mean()
            found[f"{model}_{metric}_by_examples"] = (of_all[counted] * sizes).sum() / sizes.sum()
            ordered = np.sort(of_all[counted])[:: -1 if metric == "loss" else 1]
            found[f"{model}_{metric}_worst"] = ordered[: -(-counted.sum() // 2)].mean()
            if model != "shared":
                found[f"{model}_client_{metric}"] = of_all
    for model, other, gain, losing in (
        ("tuned", "shared", "gain", "losing"), ("personal", "shared", "gain", "losing"),
        ("personal", "tuned", "gain_over_tuned", "losing_to_tuned"),
    ):  # fmt: skip
        for metric in ("loss", "accuracy"):
            gains = (values[model][metric] - values[other][metric]) * (-1 if metric == "loss" else 1)
            found[f"{model}_client_{metric}_{gain}"] = gains
            found[f"{model}_{metric}_{gain}"] = gains[counted].mean()
            found[f"{model}_{metric}_{losing}"] = (gains[counted] < 0).mean()
    return found


def test_models_are_judged_by_the_part_that_is_named():
    """The shared, personal and fine-tuned models of clients two of whom were not visited, in both held-out parts."""
    data = fjs.datasets.with_validation(separable(), 0.4)
    rng, params = np.random.default_rng(0), TASK.init(jax.random.key(0), data)
    states = {name: rng.normal(size=(5, 2)) for name in params}  # in the order of the ids
    visited, place = np.array([True, False, True, True, False]), np.argsort(np.argsort(IDS))
    found = jax.jit(RUN["evaluate"])(params, data, clients=Clients(METHODS["ditto"], None, states, visited))
    np.testing.assert_array_equal(found["client_visited"], visited[place])
    own = [{name: states[name][at] for name in states} for at in place]
    losses = []
    for part, prefix in (("test", ""), ("validation", "validation_")):
        expected = beside_each_other(params, own, visited[place], data, getattr(data, part))
        for metric, value in expected.items():
            np.testing.assert_allclose(found[prefix + metric], value, rtol=1e-10, atol=1e-12, err_msg=prefix + metric)
        losses.append(float(expected["tuned_loss"]))
    assert losses[0] != losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "fedrep"])
def test_the_models_beside_each_other_are_those_by_hand(name):
    """Those who were not visited are left out: their heads are as they began."""
    run = history(name)
    assert f"note: the numbers of {name} are those of the shared model; personal_table shows" in run.table()
    for seed in range(2):
        expected = by_hand(name, seed)
        assert 0 < expected["unvisited"] < 4
        for metric, value in expected.items():
            np.testing.assert_allclose(run[metric][seed, -1], value, rtol=1e-10, atol=1e-12, err_msg=metric)
    recorded = {metric for metric in run.metrics if not metric.startswith("test_")}
    plain = {"loss", "accuracy", "client_loss", "client_accuracy", "loss_worst", "accuracy_worst"}
    assert recorded == plain | set(by_hand(name, 0))
    # Before the first round all have the model that they begin with.
    start = TASK.init_function(None)
    np.testing.assert_allclose(run["personal_accuracy"][:, 0], values_of([start] * 5)["accuracy"][HELD].mean())
    assert run["unvisited"][:, 0].tolist() == [4, 4]


@pytest.mark.slow
def test_who_was_visited_is_who_has_changed():
    state = history("ditto").state
    changed = (state.clients["body"] != np.array([1.0, 0.5])).any(axis=-1)
    np.testing.assert_array_equal(state.visited, changed)


@pytest.mark.slow
def test_fedrep_is_not_judged_by_a_head_that_nobody_trains():
    """All are visited and trained: each serves itself well, the shared head is where it began."""
    common = {**RUN, "cohort": fjs.cohort.full(), "rounds": 8, "eval_every": 8, "evaluate": fjs.per_client(TASK)}
    run = fjs.simulate(METHODS["fedrep"], separable(), **common, keep_state=True, progress=False)
    np.testing.assert_array_equal(run.params["head"][0], [-0.2, 0.4])
    heads = [{"body": run.params["body"][0], "head": run.client(i).memory["head"][0]} for i in IDS]
    own = values_of(heads)["accuracy"]
    np.testing.assert_allclose(run["personal_client_accuracy"][0, -1], own, rtol=1e-12)
    assert run["unvisited"][0, -1] == 0
    assert own[HELD].mean() > 0.8 > 0.6 > run["shared_accuracy"][0, -1]


@pytest.mark.slow
@pytest.mark.parametrize("home", ["make_train", "host", "sweep", "fewer bits"])
def test_all_ways_to_run_record_the_same(home, tmp_path):
    # The host's data is sent by a thread, which knows nothing of the fixture.
    method, expected = METHODS["ditto"], history("ditto")
    run = {**RUN, "evaluate": fjs.per_client(TASK, worst=0.5)}
    tolerance = {"host": 1e-5, "fewer bits": 0.02}.get(home, 1e-11)
    if home == "make_train":
        found = jax.jit(fjs.make_train(**run))(method, separable(), jax.random.key(3))
        metrics, state = found.metrics, found.state
        for i in IDS:
            own = jax.tree.map(lambda leaf: leaf[0], expected.client(i))
            jax.tree.map(np.testing.assert_allclose, state.client(i, separable()), own)
        with pytest.raises(KeyError, match="no client has the id 5: the 5 ids are 20 to 90"):
            state.client(5, separable())
    elif home == "sweep":
        space = fjs.sweeps.points([{"lam": 0.1}])
        metrics = {
            name: value[0]
            for name, value in fjs.sweep(method, separable(), space, **run, seeds=3).at(0).metrics.items()
        }
    else:
        data = separable(host=home == "host")
        bits = fjs.client_states.on_device(dtype="bfloat16") if home == "fewer bits" else None
        found = fjs.simulate(method, data, **run, seeds=3, client_states=bits, progress=False)
        metrics = {name: value[0] for name, value in found.metrics.items()}
        assert found.state is None
        found.save(tmp_path / "run.npz")
        with pytest.raises(ValueError, match="keep_state=True"):
            fjs.History.load(tmp_path / "run.npz").client(20)
    names = {name for name in expected.metrics if "tuned" not in name}
    assert names == set(metrics) - {"round"}
    # What clients begin with is rounded too, by which half of them lose.
    for name in {name for name in names if "losing" not in name} if home == "fewer bits" else names:
        np.testing.assert_allclose(metrics[name], expected[name][0], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.slow
def test_a_method_whose_frozen_part_nobody_keeps_has_one_model_and_all_clients_count():
    """As of FedAvg: what fine-tuning makes of the shared model is asked of those too who were never visited."""
    method = fjs.freeze(fjs.fedavg(client_optimizer=SGD), "head")
    found = jax.jit(fjs.make_train(**{**RUN, "rounds": 1, "eval_every": 1}))(method, separable(), jax.random.key(3))
    tuned = [descended(found.params, separable().client(position)) for position in range(5)]
    np.testing.assert_allclose(found.metrics["tuned_loss"][-1], values_of(tuned)["loss"][HELD].mean(), rtol=1e-10)
    assert not {name for name in found.metrics if "personal" in name or "visited" in name}


def mean_norm(params, dataset, clients):
    return {"kept": jnp.mean(jnp.abs(clients.states["body"])), "apart": clients.personal(2)["head"]}


@pytest.mark.slow
def test_an_evaluation_of_ones_own_may_ask_for_the_clients():
    """They are read as they were, also where they are kept in fewer bits."""
    bits = fjs.client_states.on_device(dtype="bfloat16")
    run = {**RUN, "evaluate": mean_norm}
    found = fjs.simulate(METHODS["ditto"], separable(), **run, client_states=bits, keep_state=True)
    np.testing.assert_allclose(found.final("kept")[0], np.abs(found.state.clients["body"]).mean(), rtol=1e-12)
    np.testing.assert_array_equal(found.final("apart"), found.client(40)["head"])
    with pytest.raises(ValueError, match=r"reads what all clients keep.*use client_states=fedjax_sim.client_states.on"):
        fjs.simulate(METHODS["ditto"], separable(), **run, client_states=fjs.client_states.on_host())


@functools.cache
def bowls(host=False):
    """Quadratics of two coordinates, as many of a client as it has examples above."""
    rng = np.random.default_rng(5)
    parts = []
    for n in SIZES:
        root = rng.normal(size=(2, 2))
        parts.append({"H": np.stack([root @ root.T / 4 + np.eye(2)] * n), "e": rng.normal(size=(n, 2))})
    data = fjs.datasets.from_clients(parts, client_ids=IDS)
    return fjs.datasets.on_host(data) if host else data


SCAFFOLD, FULL = fjs.scaffold(client_optimizer=SGD), fjs.cohort.full()


def short(rounds, cohort=FULL):
    return {
        "task": fjs.quadratic(start=1.0), "rounds": rounds, "eval_every": 1, "batches": fjs.local.full_batch(),
        "work": fjs.local.steps(4), "cohort": cohort,
    }  # fmt: skip


@functools.cache
def trained(rounds, cohort=FULL):
    return jax.jit(fjs.make_train(**short(rounds, cohort)))(SCAFFOLD, bowls(), jax.random.key(5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [*(pytest.param(place, marks=pytest.mark.slow) for place in ("device", "host")), "bfloat16"]
)
def test_client_states_are_in_the_history_and_in_its_file(place, tmp_path):
    states = {
        "device": None, "host": fjs.client_states.on_host(), "bfloat16": fjs.client_states.on_device(dtype="bfloat16")
    }[place]  # fmt: skip
    two = fjs.cohort.uniform(2)
    found = fjs.simulate(
        SCAFFOLD, bowls(), **short(2, two), seeds=[5], client_states=states, keep_state=True, progress=False
    )
    expected = trained(2, two).state
    tolerance = 1e-2 if place == "bfloat16" else 1e-12
    for ours, leaf in zip(*map(jax.tree.leaves, (found.state.clients, expected.clients)), strict=True):
        np.testing.assert_allclose(ours[0], leaf, rtol=tolerance, atol=tolerance)
        assert ours.dtype == leaf.dtype
    np.testing.assert_array_equal(found.client_ids, np.sort(IDS))
    found.save(tmp_path / "run.npz")
    loaded = fjs.History.load(tmp_path / "run.npz")
    for i in IDS:
        jax.tree.map(np.testing.assert_array_equal, loaded.client(i), found.client(i))
    np.testing.assert_array_equal(loaded.state.server["params"], found.state.server.params)
    assert loaded.state.visited is None
    with pytest.raises(KeyError, match="no client has the id 71"):
        loaded.client(71)


@pytest.mark.slow
def test_a_wrapper_that_averages_gives_its_average_to_clients_without_a_model_of_their_own():
    method = fjs.ema(fjs.fedavg(client_optimizer=SGD), decay=0.5)
    result = jax.jit(fjs.make_train(**short(2)))(method, bowls(), jax.random.key(0))
    server = result.state.server
    np.testing.assert_array_equal(method.personal(server, ()), result.params)
    assert not np.allclose(result.params, method.model(server))


@pytest.mark.slow
def test_adapted_models_by_hand():
    start = jax.tree.map(np.asarray, TASK.init_function(None))
    both = [TUNED.replace(mu=mu) for mu in (None, 0.7)]
    train, whole = separable().replace(test=None), separable()
    found = jax.jit(lambda: [(adapted.models(start, train), adapted(start, whole)) for adapted in both])()
    for (models, values), mu in zip(found, (0.0, 0.7), strict=True):
        expected = [descended(start, train.client(position), mu=mu) for position in range(5)]
        for index, position in enumerate(np.argsort(IDS)):
            for part, leaf in expected[position].items():
                np.testing.assert_allclose(models[part][index], leaf, rtol=1e-12)
        np.testing.assert_allclose(values["personal_client_loss"], values_of(expected)["loss"], rtol=1e-12)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"personalise\(mu=\.\.\.\) is -1"):
        fjs.personalise(TASK, SGD, fjs.local.steps(1), mu=-1.0)
    with pytest.raises(TypeError, match=r"per_client\(tuned=...\) is 0.1: give fedjax_sim.personalise"):
        fjs.per_client(TASK, tuned=0.1)
    with pytest.raises(TypeError, match="keep_state is 1"):
        fjs.simulate(METHODS["ditto"], separable(), **RUN, keep_state=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "home", [*(pytest.param(home, marks=pytest.mark.slow) for home in ("device", "host", "file")), "make_train"]
)
def test_a_run_goes_on_from_the_state_of_another(home, tmp_path):
    """Where nothing is drawn, a run and a second one are as one; control variates are carried over."""
    data, whole = bowls(host=home == "host"), trained(3)
    if home == "make_train":
        train = jax.jit(fjs.make_train(**short(2)))
        found = train(SCAFFOLD, data, jax.random.key(7), initial_state=trained(1).state)
        params, state, losses = found.params, found.state, found.metrics["loss"]
    else:
        first = fjs.simulate(SCAFFOLD, data, **short(1), seeds=[0, 1], keep_state=True, progress=False)
        if home == "file":
            first.save(tmp_path / "first.npz")
            first = fjs.History.load(tmp_path / "first.npz")
        more = {"seeds": [7, 8], "initial_state": first.state, "keep_state": True, "progress": False}
        found = fjs.simulate(SCAFFOLD, data, **short(2), **more)
        params, losses = jax.tree.map(lambda leaf: leaf[1], found.params), found["loss"][1]
        state = jax.tree.map(lambda leaf: leaf[1], found.state)
    tolerance = 1e-5 if home == "host" else 1e-12  # the host's data is sent in single precision
    close = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    close(params, whole.params)
    jax.tree.map(close, state.clients, whole.state.clients)
    close(losses, whole.metrics["loss"][1:])


def losses_by_hand(x):
    """Before and after a round from zero control variates, which is one of FedAvg with plain averages."""
    parts, shares = [bowls().client(position) for position in range(5)], np.array(SIZES) / sum(SIZES)
    matrices, vectors = ([part[name].mean(axis=0) for part in parts] for name in ("H", "e"))

    def loss(x):
        return sum(p * (x @ h @ x / 2 - e @ x) for p, h, e in zip(shares, matrices, vectors, strict=True))

    ends = []
    for h, e in zip(matrices, vectors, strict=True):
        y = x
        for _ in range(4):
            y = y - 0.3 * (h @ y - e)
        ends.append(y)
    return [loss(x), loss(np.mean(ends, axis=0))]


@pytest.mark.slow
def test_seeds_start_from_models_of_their_own():
    models = [np.array([0.1, 0.2]), np.array([-1.0, 3.0])]
    run = {**short(1), "seeds": [4, 5], "progress": False}
    for given, of_seeds in ((models, models), (models[1], [models[1]] * 2)):
        found = fjs.simulate(SCAFFOLD, bowls(), **run, initial_params=given)
        np.testing.assert_allclose(found["loss"], [losses_by_hand(model) for model in of_seeds], rtol=1e-12)
    pair = fjs.functions(lambda key: [jnp.ones(2), jnp.ones(2)], lambda w, e: fjs.quadratic().losses(w[0] * w[1], e))
    same = fjs.simulate(SCAFFOLD, bowls(), **{**run, "task": pair}, initial_params=[models[0], np.ones(2)])
    assert (same["loss"][0] == same["loss"][1]).all()
    np.testing.assert_allclose(same["loss"][0, 0], losses_by_hand(models[0])[0], rtol=1e-12)


@pytest.mark.slow
def test_what_no_run_can_start_from():
    def start(method=SCAFFOLD, seeds=0, **given):
        return fjs.simulate(method, bowls(), **short(1), seeds=seeds, **given, progress=False)

    model = np.ones(2)
    with pytest.raises(ValueError, match="has 2 entries, and there are 3 seeds: give a model for each"):
        start(seeds=range(3), initial_params=[model, model])
    with pytest.raises(ValueError, match=r"initial_params\[1\] is a pytree"):
        start(seeds=range(2), initial_params=[model, {"body": model}])
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[None], trained(1).state)
    for wrong, given in {
        "initial_state has 'clients': it is not of FedAvg": {"method": fjs.fedavg(client_optimizer=SGD)},
        r"'server/.*' is float64\[1, .*it is float64\[2, .* 5 clients and 2 seeds": {"seeds": range(2)},
        "a state has its model": {"initial_params": model},
        "only a run that keeps them on the device": {"client_states": fjs.client_states.on_host()},
    }.items():
        with pytest.raises(ValueError, match=wrong):
            start(initial_state=state, **given)
    with pytest.raises(TypeError, match=r"give result.state of make_train's function"):
        start(initial_state=model)
    with pytest.raises(ValueError, match=r"is float64\[1, .*jax.tree.map\(lambda leaf: leaf\[0\], history.state\)"):
        fjs.make_train(**short(1))(SCAFFOLD, bowls(), jax.random.key(0), initial_state=state)
