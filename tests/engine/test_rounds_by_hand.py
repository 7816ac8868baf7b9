"""A round's bookkeeping by hand: who counts, who moves, which batch and which key a step has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs

SGD = fjs.optim.sgd(0.125)


class Pull(fjs.Task):
    """f(y) = mean (y - e)^2 / 2 over a batch, so that a step is y - l (y - mean e)."""

    def init(self, key: jax.Array, dataset: fjs.FederatedDataset) -> Any:
        return jnp.ones(())

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        return 0.5 * (params - examples["e"]) ** 2


class Noise(Pull):
    """A loss whose gradient is a draw of the model's own."""

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        drawn = jnp.zeros(()) if key is None else jax.random.normal(key)
        return params * drawn + 0 * examples["e"]


class Root(Pull):
    """A gradient of sqrt e: not a number where e < 0."""

    def losses(self, params: Any, examples: Any, key: jax.Array | None = None) -> jax.Array:
        return params * jnp.sqrt(examples["e"])


def clients(*each: list[float]) -> fjs.FederatedDataset:
    """Clients of the examples e; the labels are no matter."""
    return fjs.datasets.from_clients([{"e": np.asarray(e, np.float32)} for e in each])


def run(algorithm: Any, data: fjs.FederatedDataset, rounds: int = 1, **more: Any) -> Any:
    settings = {
        "task": Pull(), "cohort": fjs.cohort.full(), "work": fjs.local.steps(2), "batches": fjs.local.full_batch(),
        "eval_every": rounds,
    }  # fmt: skip
    return jax.jit(fjs.make_train(**settings | more, rounds=rounds))(algorithm, data, jax.random.key(0))


TWO = clients([1.0, 2.0, 6.0], [4.0])
EVERY_MODEL = {"eval_every": 1, "evaluate_train": False, "evaluate": lambda params, dataset: {"x": params}}


def test_a_round_without_anybody_moves_nothing():
    """With the server's momentum a round of no change would still move x."""
    method = fjs.fedavg(client_optimizer=SGD, server_optimizer=fjs.optim.sgd(1.0, momentum=0.9))
    empty = fjs.cohort.given([[0, 1], [-1, -1], [-1, -1]])
    x = run(method, TWO, 3, cohort=empty, **EVERY_MODEL).metrics["x"]
    assert x[0] != x[1] == x[2] == x[3]


def test_steps_of_both_exchanges_are_useful():
    """FedDANE: a full gradient of each of two clients, then one more at the same model, and two steps, of each."""
    found = run(fjs.feddane(client_optimizer=SGD, mu=0.1), TWO, cohort=fjs.cohort.given([[0, 1]]))
    assert found.rounds["useful_steps"].tolist() == [2 + 2 + 4]


@pytest.mark.parametrize(
    "around",
    [
        lambda method: method,
        pytest.param(fjs.ema, marks=pytest.mark.slow),
        pytest.param(lambda method: fjs.last_k(method, 2), marks=pytest.mark.slow),
    ],
    ids=["alone", "ema", "last_k"],
)
def test_a_cohort_that_overflows_is_no_number(around):
    """Nor is an average of models, which is what is evaluated."""

    @jax.jit
    def chosen(probability: jax.Array) -> Any:
        cohort = fjs.cohort.independent(probability, cap=1)
        return run(around(fjs.fedavg(client_optimizer=SGD)), TWO, 1, cohort=cohort)

    found = chosen(jnp.float32(1.0))
    assert np.isnan(float(found.params))
    assert np.isnan(found.metrics["loss"]).tolist() == [False, True]
    assert found.rounds["overflow"].tolist() == found.rounds["diverged"].tolist() == [True]
    empty = chosen(jnp.float32(0.0))
    assert np.isfinite(float(empty.params))
    assert not empty.rounds["overflow"].any()


@pytest.mark.parametrize("piece", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_full_gradient_in_pieces_is_one_step(piece):
    """Of three examples in pieces of two the last is half as large; each piece weighs by its examples."""
    whole = run(fjs.fedavg(client_optimizer=SGD), TWO, 2)
    pieces = run(fjs.fedavg(client_optimizer=SGD), TWO, 2, batches=fjs.local.full_batch(piece))
    np.testing.assert_allclose(pieces.params, whole.params, rtol=1e-6)
    y = x = 1.0
    for _ in range(2):
        ends = []
        for mean in (3.0, 4.0):
            y = x
            for _ in range(2):
                y -= 0.125 * (y - mean)
            ends.append(y)
        x = (3 * ends[0] + ends[1]) / 4
    np.testing.assert_allclose(whole.params, x, rtol=1e-6)


def test_every_step_draws_anew():
    """The model's randomness of step k is no other step's, and does not depend on how many steps there are."""

    @jax.jit
    def end(steps: jax.Array) -> jax.Array:
        work = fjs.local.given_steps(steps.reshape(1, 1), most=3)
        return run(fjs.fedavg(client_optimizer=SGD), clients([0.0]), task=Noise(), work=work).params

    moves = np.diff([1.0, *(float(end(jnp.int32(k))) for k in (1, 2, 3))])
    assert len({round(move, 5) for move in moves.tolist()}) == 3


def test_a_client_without_steps_keeps_its_state():
    """SCAFFOLD: c_i - c + (x - y) / (K l) of a client that took no step would move its c_i by -c."""
    work = fjs.local.given_steps([[2, 0], [2, 0]], most=2)
    found = run(fjs.scaffold(client_optimizer=SGD), TWO, 2, work=work)
    first, second = np.asarray(jax.tree.leaves(found.state.clients)[0])
    assert first != 0
    assert second == 0


@pytest.mark.slow
def test_a_client_that_is_left_out_keeps_its_state():
    data = clients([4.0], [-1.0])
    found = run(fjs.scaffold(client_optimizer=SGD), data, task=Root(), skip_nonfinite=True)
    first, second = np.asarray(jax.tree.leaves(found.state.clients)[0])
    np.testing.assert_allclose(first, 2.0, rtol=1e-6)
    assert second == 0
    assert np.isfinite(found.params)


def test_the_second_batch_of_a_step_is_another():
    """Per-FedAvg: the inner step is on the batch that the client would see tau steps later, here e = 5."""
    method = fjs.perfedavg(client_optimizer=SGD, alpha=0.25, form="first_order")
    found = run(method, clients([1.0, 5.0]), work=fjs.local.steps(1), batches=fjs.local.in_order(1))
    adapted = 1.0 - 0.25 * (1.0 - 5.0)
    np.testing.assert_allclose(found.params, 1.0 - 0.125 * (adapted - 1.0), rtol=1e-6)


def test_the_server_draws_anew_each_round():
    """Noise alone moves the model: the clients stay where they are."""
    method = fjs.dp(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.0)), norm=1.0, noise_multiplier=1.0)
    x = run(method, clients([1.0], [1.0]), 2, work=fjs.local.steps(1), **EVERY_MODEL).metrics["x"]
    assert x[1] != x[0] == 1.0
    assert abs((x[2] - x[1]) - (x[1] - 1.0)) > 1e-3


def test_what_clients_hear_afterwards_is_sent():
    """VRL-SGD: x and then the average change go down, a change goes up: 4 bytes each, two clients."""
    found = run(fjs.vrl_sgd(client_optimizer=SGD), TWO, diagnostics=["communication"])
    assert (found.rounds["bytes_down"].tolist(), found.rounds["bytes_up"].tolist()) == ([16], [8])


def test_steps_beside_those_of_the_work_are_taken():
    """Ditto with lambda = 0: three steps of its own of v_i from 1, beside two of y_i, and their time."""
    method = fjs.ditto(client_optimizer=SGD, lam=0.0, personal_steps=3)
    found = run(method, TWO, system=fjs.systems.devices(seconds_per_step=1.0))
    kept = np.asarray(jax.tree.leaves(found.state.clients)[0])
    for v, mean in zip(kept, (3.0, 4.0), strict=True):
        np.testing.assert_allclose(v, mean + (1 - 0.125) ** 3 * (1 - mean), rtol=1e-6)
    assert found.rounds["useful_steps"].tolist() == [2 * (2 + 3)]
    assert found.rounds["duration"].tolist() == [5.0]


def test_a_derivative_has_room_for_steps_beside_the_work():
    """Where it has not, what the clients leave is NaN."""
    method = fjs.ditto(client_optimizer=SGD, lam=0.0, personal_steps=3)
    slope = jax.jit(jax.grad(lambda method: run(method, TWO).params))(method).client_optimizer.learning_rate
    # Two steps from 1 end at mean + (1 - l)^2 (1 - mean).
    each = [-2 * (1 - 0.125) * (1 - mean) for mean in (3.0, 4.0)]
    np.testing.assert_allclose(slope, np.average(each, weights=[3, 1]), rtol=1e-5)
