"""The compiled program: its size, how often it is compiled and called, and that simulate and make_train agree."""

import contextlib
import inspect
import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim.engine.arguments import DEFAULTS, RunArguments

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def compilations():
    """Counts what XLA compiles inside the block."""
    counted, active = [], [True]

    def listener(event, duration, **kwargs):
        if event == COMPILED and active[0]:
            counted.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield counted
    finally:
        active[0] = False  # unregistering has no public name in the oldest version


def data(num_clients=6, size=30, seed=0):
    return fjs.datasets.quadratics(num_clients=num_clients, dim=2, sizes=[size] * num_clients, seed=seed)


def settings(**changes):
    return {
        "task": fjs.quadratic(),
        "rounds": 5,
        "eval_every": 2,
        "batches": fjs.local.in_order(8),
        "cohort": fjs.cohort.uniform(3),
        "work": fjs.local.random_epochs(1, 2),
        **changes,
    }


def fednova(rate=0.02):
    return fjs.fednova(client_optimizer=fjs.optim.sgd(rate, momentum=0.5))


def text(dataset, **changes):
    train = fjs.make_train(**settings(**changes))
    return jax.jit(train).lower(fednova(), dataset, jax.random.key(0)).as_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        fjs.layout.turns(),
        *(pytest.param(of, marks=pytest.mark.slow) for of in (fjs.layout.stacked(), fjs.layout.lanes(2))),
    ],
    ids=str,
)
def test_the_program_does_not_grow(layout):
    # no two loops of one length, cohorts of more than the four clients that a record names: helper functions of equal
    # shapes would be shared
    small = text(data(9, 20), layout=layout, rounds=14, work=fjs.local.steps(5), cohort=fjs.cohort.uniform(6))
    large = text(data(40, 80), layout=layout, rounds=44, work=fjs.local.steps(50), cohort=fjs.cohort.uniform(20))
    # equal but for helper functions that two shapes happen to share
    assert abs(small.count("\n") - large.count("\n")) <= 10
    assert "callback" not in small


def test_one_compilation_serves_start_chunks_tail_values_and_seeds():
    dataset, other = data(), data(seed=1)
    changed = fednova(0.05).replace(server_learning_rate=0.5)
    with compilations() as first:
        history = fjs.simulate(fednova(), dataset, **settings(), seeds=[0, 1])
    assert len(first) > 0
    with compilations() as again:
        fjs.simulate(fednova(), dataset, **settings(rounds=7), seeds=[0, 1])  # whole chunks and a shorter one
        fjs.simulate(changed, dataset, **settings(), seeds=[5, 6])
        fjs.simulate(fednova(), other, **settings(), seeds=[0, 1])
        fjs.simulate(fednova(), dataset, **settings(eval_every=5), seeds=[0, 1, 2])
        fjs.simulate(fednova(), dataset, **settings(rounds=3, eval_every=1), seeds=4)
    assert again == []
    assert history.compile_seconds > history.seconds / 100


@pytest.mark.slow
def test_one_call_of_the_program_a_chunk(monkeypatch):
    from fedjax_sim.run import resident

    calls = []
    advance = resident._advance

    def counted(*args):
        calls.append((int(args[3]), np.asarray(args[4]).tolist()))
        return advance(*args)

    monkeypatch.setattr(resident, "_advance", counted)
    fjs.simulate(fednova(), data(), **settings(), seeds=[0, 1])
    each = [(0, [0]), (0, [2]), (2, [2]), (4, [1])]  # the start, then a call a chunk
    assert calls == [call for call in each for _ in range(2)]  # and seed


def test_seeds_that_run_at_once_have_the_same_bits(monkeypatch):
    """Of this process' threads, whatever it may use; and one at a time where a setting is this thread's alone."""
    from fedjax_sim.core import devices
    from fedjax_sim.run import resident

    monkeypatch.setattr(resident, "available_cores", lambda: 3)
    made = []

    def noted(count):
        made.append((count, devices.threads_for_programs(count)))
        return made[-1][1]

    monkeypatch.setattr(resident, "threads_for_programs", noted)
    given = settings() | {"seeds": range(5), "progress": False}
    at_once = fjs.simulate(fednova(), data(), **given)
    with jax.default_matmul_precision("highest"):
        fjs.simulate(fednova(), data(), **given)
    assert [(count, threads is not None) for count, threads in made] == [(3, True), (3, False)]
    for row in range(5):
        alone = fjs.simulate(fednova(), data(), **given | {"seeds": [row]})
        for name in alone.metrics:
            np.testing.assert_array_equal(alone[name][0], at_once[name][row], err_msg=name)
        for name in alone.rounds:
            np.testing.assert_array_equal(alone.rounds[name][0], at_once.rounds[name][row], err_msg=name)
        same = jax.tree.map(lambda one, every, row=row: (one[0] == every[row]).all(), alone.params, at_once.params)
        assert all(jax.tree.leaves(same))


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 1e-3, 3600.0])
def test_a_chunk_in_parts_for_the_progress_bar_has_the_same_bits(pause, monkeypatch, capsys):
    from fedjax_sim.run import resident

    monkeypatch.setattr(resident, "_PAUSE", pause)
    given = settings(rounds=9, eval_every=6) | {"seeds": [0, 1]}
    history = fjs.simulate(fednova(), data(), **given, progress=True)
    said = capsys.readouterr().err
    # a part of one round finds out how long a round takes
    expected = {0.0: range(1, 10), 3600.0: (1, 6, 9)}.get(pause, ())
    assert all(f"round {done}/9" in said for done in expected)
    assert said.count("round ") <= 9
    assert ", loss" in said
    assert "clients/s" in said
    plain = fjs.simulate(fednova(), data(), **given, progress=False)
    assert history.evaluated.tolist() == [0, 6, 9]
    for name in plain.metrics:
        np.testing.assert_array_equal(history[name], plain[name])
    for name in plain.rounds:
        np.testing.assert_array_equal(history.rounds[name], plain.rounds[name])
    jax.tree.map(np.testing.assert_array_equal, history.params, plain.params)


def test_no_data_in_the_program():
    # a data set that is closed over would be printed as a constant of its size
    assert len(text(data(6, 400))) == pytest.approx(len(text(data(6, 40))), rel=0.01)


def test_simulate_is_make_train():
    history = fjs.simulate(fednova(), data(), **settings(), seeds=[7, 11])
    train = jax.jit(fjs.make_train(**settings()))
    for row, seed in enumerate(history.seeds):
        result = train(fednova(), data(), jax.random.key(seed))
        assert result.metrics["round"].tolist() == history.evaluated.tolist() == [0, 2, 4, 5]
        for name, values in history.metrics.items():
            np.testing.assert_allclose(values[row], result.metrics[name], rtol=2e-5, atol=1e-6, err_msg=name)
        for name, values in history.rounds.items():
            np.testing.assert_array_equal(values[row], result.rounds[name], err_msg=name)
        ours = jax.tree.map(lambda leaf, row=row: leaf[row], history.params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), ours, result.params)


KINDS = {
    "overflow, diagnostics, a system, reports": lambda sgd: {
        "algorithm": fjs.adaptively_clipped(fjs.fedprox(client_optimizer=sgd, adaptive=True)),
        "cohort": fjs.cohort.independent(0.05), "diagnostics": ["e_lud", "communication"],
        "system": fjs.systems.devices(seconds_per_step=0.1),
    },
    "asynchronous": lambda sgd: {
        "algorithm": fjs.fedavg(client_optimizer=sgd), "cohort": fjs.cohort.uniform(2),
        "system": fjs.systems.devices(seconds_per_step=0.1), "asynchronous": fjs.asynchronous.fedbuff(2),
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "asynchronous" else ()) for kind in KINDS]
)
def test_histories_have_what_train_results_have(kind):
    run = {"task": fjs.quadratic(), "rounds": 2, "batches": fjs.local.full_batch(), "work": fjs.local.steps(1)}
    run |= KINDS[kind](fjs.optim.sgd(0.1))
    algorithm, dataset = run.pop("algorithm"), fjs.datasets.quadratics(num_clients=60, dim=2, seed=0)
    shapes = jax.eval_shape(fjs.make_train(**run), algorithm, dataset, jax.random.key(0))
    if "overflow" in kind:  # a sweep of one point, whose runs are simulate's
        space = fjs.sweeps.grid({"system.seconds_per_step": [0.2]})
        history = fjs.sweep(algorithm, dataset, space, **run, seeds=3).at(0)
    else:
        history = fjs.simulate(algorithm, dataset, **run, seeds=3)
    for ours, theirs in ((history.metrics, shapes.metrics), (history.rounds, shapes.rounds)):
        found = {name: (values.shape[1:], values.dtype) for name, values in ours.items()}
        assert found == {name: (shape.shape, shape.dtype) for name, shape in theirs.items() if name != "round"}
    assert {"nonfinite_ids", "nonfinite_clients", "diverged"} <= history.rounds.keys()
    assert ("overflow" in history.rounds) == ("overflow" in kind)


TAKING_RUNS = [fjs.make_train, fjs.simulate, fjs.sweep, fjs.layout.tune]


@pytest.mark.parametrize("function", TAKING_RUNS, ids=lambda function: function.__name__)
def test_what_is_missing_or_misspelt_is_said_before_anything_else(function):
    given = {"task": fjs.quadratic(), "rounds": 1, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1)}
    # positional ones first, then those of a run, and all with their defaults
    parameters = inspect.signature(function).parameters
    of_run = [name for name in parameters if name in DEFAULTS or name in given]
    assert of_run == [name for name in RunArguments.__annotations__ if name in parameters]
    kinds = [parameter.kind for parameter in parameters.values()]
    assert kinds == sorted(kinds)
    assert all(parameters[name].default == DEFAULTS.get(name, inspect.Parameter.empty) for name in of_run)
    assert set(typing.get_type_hints(function)) == {*parameters, "return"}
    others = [None] * sum(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
    for missing, named in (
        (["work"], r"'work': for instance work=fedjax_sim\.local\.epochs\(1\)$"),
        (["task", "rounds", "work"], "'task', 'rounds', 'work': for instance task=.*, rounds=100, work="),
    ):
        with pytest.raises(TypeError, match=rf"{function.__name__}\(\.\.\.\) is missing required arguments: {named}"):
            function(*others, **{name: value for name, value in given.items() if name not in missing})
    with pytest.raises(TypeError, match=r"no argument 'policy': it is the system's: "):
        function(*others, **given, policy=None)
    with pytest.raises(TypeError, match=r"no argument 'eval_evry': did you mean 'eval_every'\?"):
        function(*others, **given, eval_evry=2)


def test_layouts_are_measured_among_candidates():
    with pytest.raises(TypeError, match=r"tune\(\.\.\.\) has no argument 'layout': it measures layouts.*candidates="):
        fjs.layout.tune(fednova(), data(), **settings(), layout=fjs.layout.turns())


@pytest.mark.slow
def test_an_optax_object_is_one_program():
    bare = fjs.fedavg(client_optimizer=optax.sgd(0.05))
    fjs.simulate(bare, data(), **settings())
    with compilations() as again:
        fjs.simulate(bare, data(), **settings(rounds=7))
    assert again == []


def test_the_keyword_lists_agree():
    ours = inspect.signature(fjs.simulate).parameters
    theirs = dict(inspect.signature(fjs.make_train).parameters)
    for name in ("adjoint", "on_round"):  # simulate has no derivatives, and callbacks
        del theirs[name]
    assert [name for name in ours if name in theirs] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].annotation == parameter.annotation
    more = {"stop", "on_divergence", "checkpoint", "every", "keep", "allow_opaque"}  # what ends and resumes a run
    more |= {"callbacks", "divergence_factor"}
    more |= {"client_states"}  # off the device they are no JAX function's, and words of bits have no derivative
    more |= {"keep_best", "keep_state", "initial_state"}  # its function returns and takes them
    assert set(ours) - set(theirs) == {"algorithm", "dataset", "seeds", "initial_params", "progress"} | more


@pytest.mark.slow
def test_more_can_be_recorded():
    def norm(params, dataset):
        return {"norm": jnp.linalg.norm(params), "n": dataset.num_clients}

    history = fjs.simulate(fednova(), data(), **settings(evaluate=norm), seeds=[0, 1])
    assert history["norm"].shape == (2, 4)
    assert (history["norm"][:, 0] == 0).all()
    assert (history["norm"][:, 1:] > 0).all()
    np.testing.assert_allclose(history.final("norm"), np.linalg.norm(history.params, axis=1), rtol=1e-5)
    assert (history["n"] == 6).all()


@pytest.mark.slow
def test_all_algorithms_see_the_same_draws():
    others = [fjs.fedavg, fjs.fedprox, fjs.scaffold]
    steps = [
        fjs.simulate(make(client_optimizer=fjs.optim.sgd(0.01)), data(), **settings(), seeds=3).rounds["useful_steps"]
        for make in others
    ]
    for row in steps[1:]:
        np.testing.assert_array_equal(row, steps[0])
    assert len(np.unique(steps[0])) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        fjs.cohort.uniform(5),
        *(pytest.param(s, marks=pytest.mark.slow) for s in (fjs.cohort.full(), fjs.cohort.with_replacement(8))),
    ],
    ids=lambda scheme: type(scheme).__name__,
)
def test_draws_on_the_host_and_inside_a_program_are_the_same(scheme):
    key, dataset = jax.random.key(4), data(20)
    inside = jax.jit(jax.vmap(lambda t: scheme.draw(dataset, key, t)))(np.arange(3, dtype=np.int32))
    for t in range(3):
        outside = scheme.draw(dataset, key, t)
        jax.tree.map(lambda a, b, t=t: np.testing.assert_array_equal(np.asarray(a)[t], b), inside, outside)


@pytest.mark.slow
def test_scheme_one_is_unbiased_and_sample_weights_are_not():
    sizes = np.array([1, 2, 3, 10, 4])
    dataset = fjs.datasets.quadratics(num_clients=5, dim=2, sizes=sizes)
    changes = np.array([0.5, -0.5, 0.0, 1.0, -1.0])  # stand-ins for the clients' updates
    key, rounds = jax.random.key(0), jnp.arange(40_000, dtype=jnp.int32)

    def mean_update(scheme, average="sample"):
        def update(t):
            draw = scheme.draw(dataset, key, t, average)
            return jnp.sum(draw.weights * jnp.asarray(changes, jnp.float32)[jnp.maximum(draw.ids, 0)])

        updates = np.asarray(jax.jit(jax.vmap(update))(rounds))
        return updates.mean(), 5 * updates.std() / np.sqrt(len(updates))

    shares = sizes / sizes.sum()
    mean, error = mean_update(fjs.cohort.with_replacement(2))
    assert abs(mean - shares @ changes) < error
    mean, error = mean_update(fjs.cohort.uniform(2), "plain")
    assert abs(mean - changes.mean()) < error
    mean, error = mean_update(fjs.cohort.uniform(2))
    pairs = [(i, j) for i in range(5) for j in range(i)]
    expected = np.mean([(sizes[i] * changes[i] + sizes[j] * changes[j]) / (sizes[i] + sizes[j]) for i, j in pairs])
    assert abs(mean - expected) < error
    assert abs(mean - shares @ changes) > error  # biased, as predicted


@pytest.mark.slow
def test_progress_is_silent_when_off(capfd):
    fjs.simulate(fednova(), data(), **settings(), progress=False)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_simulate_refuses_traced_values():
    def loss(rate):
        return fjs.simulate(fednova(rate), data(), **settings())["loss"]

    with pytest.raises(TypeError, match="make_train"):
        jax.grad(loss)(0.1)
