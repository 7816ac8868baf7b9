"""Personalised evaluation against numpy, and its gradient against MAML's by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fjs
from fedjax_sim.studies.personalise import personalise

pytestmark = pytest.mark.usefixtures("x64")

sgd = fjs.optim.sgd
N, DIM, ETA, STEPS = 4, 3, 0.15, 3
SIZES, TEST_SIZES = (3, 1, 4, 2), (2, 0, 3, 1)
IDS = np.array([7, 2, 9, 4])  # not sorted: storage order and client index differ
START = np.array([0.5, -1.0, 0.3])


def quadratic_clients(seed, sizes):
    rng = np.random.default_rng(seed)
    clients = []
    for n in sizes:
        root = rng.standard_normal((n, DIM, DIM))
        H = root @ root.swapaxes(1, 2) / DIM + 0.5 * np.eye(DIM)
        clients.append({"H": H, "e": rng.standard_normal((n, DIM)), "c": np.ones(n)})
    return clients


TRAIN, TEST = quadratic_clients(1, SIZES), quadratic_clients(2, TEST_SIZES)
HELD = np.array(TEST_SIZES) > 0


def problem():
    return fjs.datasets.from_clients(TRAIN, test=TEST, client_ids=IDS)


def loss(client, x):
    return np.mean(np.einsum("i,bij,j->b", x, client["H"], x) / 2 - client["e"] @ x + client["c"])


def gradient_of(client, x):
    return client["H"].mean(axis=0) @ x - client["e"].mean(axis=0)


def adapted(client, x, steps=STEPS):
    for _ in range(steps):
        x = x - ETA * gradient_of(client, x)
    return x


def by_hand(x):
    """Test losses of the clients after their steps, NaN without test examples."""
    ends = [adapted(client, x) for client in TRAIN]
    return np.array([loss(test, y) if len(test["c"]) else np.nan for test, y in zip(TEST, ends, strict=True)])


def maml_by_hand(x, first_order=False):
    """d/dx of the mean test loss at y_i: the product of the steps' Jacobians, transposed, on the gradient at y_i."""
    total = np.zeros(DIM)
    for client, test in zip(TRAIN, TEST, strict=True):
        if len(test["c"]):
            step = np.eye(DIM) - ETA * client["H"].mean(axis=0)
            jacobian = np.eye(DIM) if first_order else np.linalg.matrix_power(step, STEPS)
            total += jacobian.T @ gradient_of(test, adapted(client, x))
    return total / HELD.sum()


def evaluator(**more):
    return personalise(fjs.quadratic(), sgd(ETA), fjs.local.steps(STEPS), **more)


@functools.cache
def at_the_start(first_order):
    """The gradient of the mean loss, and everything that is found."""

    def value(x):
        found = evaluator(first_order=first_order, worst=0.5)(x, problem())
        return found["personal_loss"], found

    return jax.jit(jax.grad(value, has_aux=True))(START)


def test_before_and_after_by_hand():
    _, found = at_the_start(False)
    before = np.array([loss(test, START) if len(test["c"]) else np.nan for test in TEST])
    after = by_hand(START)
    for values, when in ((before, "_before"), (after, "")):
        np.testing.assert_allclose(found[f"personal_client_loss{when}"], values, rtol=1e-12)
        np.testing.assert_allclose(found[f"personal_loss{when}"], values[HELD].mean(), rtol=1e-12)
        worst = np.sort(values[HELD])[::-1][:2].mean()  # half of three, rounded up
        np.testing.assert_allclose(found[f"personal_loss_worst{when}"], worst, rtol=1e-12)
    assert len(found) == 6


@pytest.mark.parametrize("first_order", [False, True], ids=["MAML", "first order"])
def test_the_gradient_is_maml_s(first_order):
    gradient, found = at_the_start(first_order)
    np.testing.assert_allclose(found["personal_loss"], by_hand(START)[HELD].mean(), rtol=1e-12)
    np.testing.assert_allclose(gradient, maml_by_hand(START, first_order), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [fjs.layout.stacked(), fjs.layout.lanes(2), fjs.layout.static_schedule()],
    ids=["stacked", "lanes", "static_schedule"],
)  # fmt: skip
def test_layouts_agree(layout):
    def value(x, layout):
        found = evaluator(layout=layout)(x, problem())
        return found["personal_loss"], found["personal_client_loss"]

    gradient, values = jax.jit(jax.grad(value, has_aux=True), static_argnums=1)(jnp.asarray(START), layout)
    np.testing.assert_allclose(values, by_hand(START), rtol=1e-12)
    np.testing.assert_allclose(gradient, maml_by_hand(START), rtol=1e-10)


@pytest.mark.slow
def test_many_test_examples_are_read_in_pieces():
    """More than one piece, the last one partial and moved back to stay inside the data."""
    test = quadratic_clients(3, (700, 1, 0, 300))
    data = fjs.datasets.from_clients(TRAIN, test=test, client_ids=IDS)

    def value(x):
        found = evaluator()(x, data)
        return found["personal_loss"], found["personal_client_loss"]

    gradient, values = jax.jit(jax.grad(value, has_aux=True))(jnp.asarray(START))
    ends = [adapted(client, START) for client in TRAIN]
    expected = [loss(one, y) if len(one["c"]) else np.nan for one, y in zip(test, ends, strict=True)]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    step = [np.linalg.matrix_power(np.eye(DIM) - ETA * client["H"].mean(axis=0), STEPS) for client in TRAIN]
    by_client = [step[i].T @ gradient_of(test[i], ends[i]) for i in (0, 1, 3)]
    np.testing.assert_allclose(gradient, np.mean(by_client, axis=0), rtol=1e-9)


def logistic_problem():
    rng = np.random.default_rng(5)
    train = [(rng.standard_normal((n, 2)), rng.integers(0, 3, n)) for n in (5, 8, 6)]
    test = [(rng.standard_normal((n, 2)), rng.integers(0, 3, n)) for n in (4, 3, 5)]
    return fjs.datasets.from_clients(train, test=test, num_classes=3)


@pytest.mark.slow
def test_a_model_with_metrics_a_penalty_and_drawn_batches():
    """Against plain JAX on the batches that the round would draw, momentum and all."""
    data = logistic_problem()
    task = fjs.classification(fjs.models.LogisticRegression(3, param_dtype=jnp.float64), weight_decay=0.05)
    evaluate = personalise(task, sgd(0.2, momentum=0.5), fjs.local.steps(4), fjs.local.in_order(3))
    params = jax.tree.map(lambda leaf: leaf + 0.1, task.init(jax.random.key(1), data))

    def mean_loss(params, x, y):
        log = jax.nn.log_softmax(task.model.apply(params, x))
        picked = -jnp.mean(jnp.sum(jnp.where(jax.nn.one_hot(y, 3, dtype=bool), log, 0.0), axis=1))
        return picked + 0.05 * jnp.sum(ravel_pytree(params)[0] ** 2)

    held = [(data.client(i), data.test.client(i)) for i in range(data.num_clients)]

    def by_jax(params):
        losses, accuracies = [], []
        for batch, test in held:
            y, buffer = params, jax.tree.map(jnp.zeros_like, params)
            pieces = -(-len(batch["y"]) // 3)
            for k in range(4):
                rows = slice(k % pieces * 3, k % pieces * 3 + 3)
                g = jax.grad(mean_loss)(y, batch["x"][rows], batch["y"][rows])
                buffer = jax.tree.map(lambda b, g: 0.5 * b + g, buffer, g)
                y = jax.tree.map(lambda y, b: y - 0.2 * b, y, buffer)
            losses.append(mean_loss(y, test["x"], test["y"]))
            chosen = jnp.argmax(task.model.apply(y, test["x"]), axis=-1)
            accuracies.append(jnp.mean((chosen.astype(jnp.int32) == test["y"]).astype(jnp.float64)))
        return jnp.mean(jnp.stack(losses)), jnp.stack(accuracies)

    def ours(params):
        found = evaluate(params, data)
        return found["personal_loss"], found["personal_client_accuracy"]

    with jax.numpy_dtype_promotion("standard"):
        expected, accuracies = jax.jit(jax.grad(by_jax, has_aux=True))(params)
    gradient, found = jax.jit(jax.grad(ours, has_aux=True))(params)
    np.testing.assert_allclose(found, accuracies, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(gradient)[0], ravel_pytree(expected)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_in_a_run():
    """Recorded by simulate; and the gradient reaches the run's own hyper-parameters and the fine-tuning's rate."""
    algorithm, evaluate = fjs.fedavg(client_optimizer=sgd(0.1)), evaluator()
    common = {
        "task": fjs.quadratic(start=0.5), "rounds": 2, "cohort": fjs.cohort.full(), "work": fjs.local.steps(2),
        "batches": fjs.local.full_batch(), "eval_every": 2,
    }  # fmt: skip
    history = fjs.simulate(algorithm, problem(), **common, evaluate=evaluate, progress=False)
    assert history["personal_client_loss"].shape == (1, 2, N)
    np.testing.assert_allclose(history["personal_client_loss"][0, 0], by_hand(np.full(DIM, 0.5)), rtol=1e-12)
    np.testing.assert_allclose(history["personal_client_loss"][0, 1], by_hand(history.params[0]), rtol=1e-12)

    def value(rates):
        tuned = evaluate.replace(client_optimizer=sgd(rates[1]))
        train = fjs.make_train(**common, evaluate=tuned)
        result = train(fjs.fedavg(client_optimizer=sgd(rates[0])), problem(), jax.random.key(0))
        return result.metrics["personal_loss"][1]

    rates, step = np.array([0.1, ETA]), 1e-4
    around = jax.jit(jax.vmap(value))(rates + step * np.concatenate([np.eye(2), -np.eye(2)]))
    expected = (around[:2] - around[2:]) / (2 * step)
    assert np.abs(expected).min() > 1e-4
    np.testing.assert_allclose(jax.jit(jax.grad(value))(rates), expected, rtol=1e-6)


@pytest.mark.slow
def test_clients_that_take_no_step_are_tested_as_they_are():
    work = fjs.local.given_steps(np.array([[2, 0, 3, 0]]))  # by client index: ids 2, 4, 7, 9
    evaluate = personalise(fjs.quadratic(), sgd(ETA), work)
    found = jax.jit(lambda x: evaluate(x, problem()))(jnp.asarray(START))
    steps = {2: 2, 4: 0, 7: 3, 9: 0}
    expected = [
        loss(test, adapted(client, START, steps[int(id_)])) if len(test["c"]) else np.nan
        for client, test, id_ in zip(TRAIN, TEST, IDS, strict=True)
    ]
    np.testing.assert_allclose(found["personal_client_loss"], expected, rtol=1e-12)


@pytest.mark.slow
def test_reptile_is_federated_averaging_with_a_server_rate():
    """x <- x + epsilon mean_i (y_i - x)."""
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, cohort=fjs.cohort.full(average="plain"), work=fjs.local.steps(STEPS),
        batches=fjs.local.full_batch(),
    )  # fmt: skip
    algorithm = fjs.fedavg(client_optimizer=sgd(ETA), server_learning_rate=0.4)
    result = jax.jit(train)(algorithm, problem(), jax.random.key(0), initial_params=jnp.asarray(START))
    mean = np.mean([adapted(client, START) for client in TRAIN], axis=0)
    np.testing.assert_allclose(result.params, START + 0.4 * (mean - START), rtol=1e-12)


def test_bad_input():
    task, work = fjs.quadratic(), fjs.local.steps(1)
    with pytest.raises(TypeError, match=r"personalise\(task=...\) is 'quadratic': it must be a Task"):
        personalise("quadratic", sgd(0.1), work)
    with pytest.raises(TypeError, match=r"personalise\(work=...\) is 5.0: it must be a Work"):
        personalise(task, sgd(0.1), 5)
    with pytest.raises(TypeError, match=r"personalise\(client_optimizer=...\) is 0.1"):
        personalise(task, 0.1, work)
    with pytest.raises(
        TypeError,
        match=r"personalise\(batches=...\) is 20.0: it must be a Batches",
    ):
        personalise(task, sgd(0.1), work, 20)
    with pytest.raises(ValueError, match=r"personalise\(worst=...\) is 0"):
        evaluator(worst=0.0)
    without = fjs.datasets.from_clients(TRAIN)
    with pytest.raises(ValueError, match=r"no test part: hold some out"):
        evaluator()(jnp.asarray(START), without)
    with pytest.raises(TypeError, match=r"on_device\(\)"):
        evaluator()(jnp.asarray(START), fjs.datasets.on_host(problem()))


@pytest.mark.slow
def test_the_loss_without_the_penalty():
    """Losses (w x - y)^2 and the penalty w^2 / 4, from w = 2: one step of 0.1 ends at 1.1 and 1.7."""
    task = fjs.functions(
        lambda key: jnp.asarray(2.0), lambda w, e: (w * e["x"] - e["y"]) ** 2, penalty_function=lambda w: w**2 / 4
    )

    def part(x, y):
        return {"x": np.array(x, float), "y": np.array(y, float)}

    test = [part([1], [1]), part([3, 0], [2, 1])]
    data = fjs.datasets.from_clients([part([1, 2], [0, 1]), part([1], [1])], test=test)
    found = jax.jit(personalise(task, sgd(0.1), fjs.local.steps(1), worst=0.5))(jnp.asarray(2.0), data)
    data_losses, penalties = np.array([0.01, 5.305]), np.array([1.1**2, 1.7**2]) / 4
    np.testing.assert_allclose(found["personal_client_data_loss"], data_losses, rtol=1e-12)
    np.testing.assert_allclose(found["personal_client_loss"], data_losses + penalties, rtol=1e-12)
    assert float(found["personal_data_loss"]) == pytest.approx(data_losses.mean(), rel=1e-12)
    assert float(found["personal_data_loss_worst"]) == pytest.approx(5.305, rel=1e-12)
    assert found["personal_client_data_loss_before"].tolist() == [1, 8.5]
    assert found["personal_client_loss_before"].tolist() == [2, 9.5]


@pytest.mark.parametrize("only", [pytest.param(None, marks=pytest.mark.slow), "head"])
def test_the_first_order_gradient_is_that_at_the_adapted_models(only):
    """With a proximal term, and where some parameters take steps: mean_i grad f_i(y_i), y_i by hand."""
    rng, mu, rate, steps = np.random.default_rng(3), 0.7, 0.1, 3
    made = [(rng.standard_normal((size, 2)), rng.standard_normal(size)) for size in (4, 2, 5)]
    tests = [(rng.standard_normal((3, 2)), rng.standard_normal(3)) for _ in made]
    data = fjs.datasets.from_clients(made, test=tests)
    x = {"body": jnp.array(rng.standard_normal(2)), "head": jnp.array(rng.standard_normal(()))}

    def losses(params, examples):
        return (examples["x"] @ (params["body"] * params["head"]) - examples["y"]) ** 2

    task = fjs.functions(lambda key: x, losses)
    adapted = fjs.personalise(task, fjs.optim.sgd(rate), fjs.local.steps(steps), first_order=True, mu=mu, only=only)
    mean_loss = jax.value_and_grad(lambda params: adapted(params, data)["personal_loss"])
    (value, gradient), models = jax.jit(lambda x: (mean_loss(x), adapted.models(x, data)))(x)

    def slope(params, inputs, targets):
        residuals = inputs @ (params["body"] * params["head"]) - targets
        at = 2 * residuals @ inputs / len(targets)
        return np.mean(residuals**2), {"body": at * params["head"], "head": at @ params["body"]}

    x = jax.tree.map(np.asarray, x)
    expected, mean = jax.tree.map(np.zeros_like, x), 0.0
    for (inputs, targets), (held, wanted), index in zip(made, tests, range(3), strict=True):
        y = x
        for _ in range(steps):
            g = slope(y, inputs, targets)[1]
            g = {name: g[name] + mu * (y[name] - x[name]) for name in y}
            y = {name: y[name] - rate * g[name] if only in (None, name) else y[name] for name in y}
        one, of = slope(y, held, wanted)
        mean, expected = mean + one / 3, jax.tree.map(lambda total, part: total + part / 3, expected, of)
        found = jax.tree.map(lambda leaf: leaf[index], models)  # noqa: B023
        for name in y:
            np.testing.assert_allclose(found[name], y[name], rtol=1e-10)
    np.testing.assert_allclose(value, mean, rtol=1e-10)
    for name in x:
        np.testing.assert_allclose(gradient[name], expected[name], rtol=1e-9)


@pytest.mark.slow
def test_only_some_parameters_need_names_that_are_there():
    data = fjs.datasets.synthetic(0.0, 0.0, num_clients=3, max_size=20, seed=0)
    task = fjs.classification(fjs.models.LogisticRegression(10))
    adapted = fjs.personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(2), only="Dense_9")
    with pytest.raises(ValueError, match=r"personalise\(only=...\): no parameter has 'Dense_9' in its path"):
        adapted(task.init(jax.random.key(0), data), data)
    with pytest.raises(TypeError, match=r"personalise\(only=...\) is 3: give parts of the paths"):
        fjs.personalise(task, fjs.optim.sgd(0.1), fjs.local.steps(2), only=3)
