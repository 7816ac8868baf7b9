"""The model of the best evaluation: that of a run which ends there, wherever states are and however it resumed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs

pytestmark = pytest.mark.xdist_group("best")  # one worker compiles what they share

sgd = fjs.optim.sgd
ROUNDS, SEEDS = 6, [3, 5, 8]


@fjs.recipe("test_best.measured")
def measured():
    def measure(params, dataset):
        start = params[0] == 1.0
        return {
            "wave": jnp.sin(17.0 * jnp.sum(params)),  # up and down from round to round, for each seed in its own way
            "pair": params[:2],
            "nothing": jnp.nan * params[0],
            "later": jnp.where(start, jnp.nan, -params[0]),
        }

    return measure


MEASURED = measured()


def run(**changes):
    given = {
        "algorithm": fjs.ditto(client_optimizer=sgd(0.2), lam=0.5),
        "dataset": fjs.datasets.quadratics(num_clients=5, dim=3, seed=0),
        "task": fjs.quadratic(start=1.0),
        "rounds": ROUNDS,
        "cohort": fjs.cohort.uniform(2),
        "work": fjs.local.steps(2),
        "batches": fjs.local.full_batch(),
        "evaluate": MEASURED,
        "seeds": SEEDS,
    }
    return fjs.simulate(**given | changes)


def same(one, other):
    """Whether two trees are equal to the last bit."""
    left, right = (jax.tree.leaves(tree) for tree in (one, other))
    pairs = zip(left, right, strict=True) if len(left) == len(right) else [(0, 1)]
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def row(tree, number):
    return jax.tree.map(lambda leaf: leaf[number], tree)


@pytest.fixture(scope="module")
def best():
    return run(keep_best="wave", keep_state=True)


def test_the_model_and_the_states_are_those_of_a_run_that_ends_there(best):
    rounds = best.at_best("round", "wave")
    assert len({*rounds.tolist(), 0, ROUNDS}) > 3, rounds
    for number, length in enumerate(rounds.tolist()):
        ended = run(rounds=length, keep_state=True)
        assert same(row(best.params, number), row(ended.params, number))
        assert same(row(best.state, number), row(ended.state, number))
    last = run()
    assert same((best.metrics, best.rounds), (last.metrics, last.rounds))
    assert not same(best.params, last.params)
    assert best.description["run"].pop("keep_best") == "wave"
    assert best.description["run"] == last.description["run"]
    best.description["run"]["keep_best"] = "wave"


def test_a_seed_that_stops_has_its_best_model_too(best):
    stopped = run(keep_best="wave", stop=fjs.stopping.patience("wave", evaluations=1), keep_state=True)
    assert stopped.stops
    for number, length in enumerate(stopped.at_best("round", "wave").tolist()):
        assert same(row(stopped.params, number), row(run(rounds=length).params, number) if length else np.ones(3, "f4"))


def test_resumed_it_is_the_same(tmp_path, best):
    run(rounds=3, keep_best="wave", keep_state=True, checkpoint=tmp_path, every=1)
    resumed = run(keep_best="wave", keep_state=True, checkpoint=tmp_path, every=1)
    assert same((resumed.params, resumed.state, resumed.metrics), (best.params, best.state, best.metrics))
    again = run(keep_best="wave", keep_state=True, checkpoint=tmp_path)  # all of it from the file
    assert same((again.params, again.state), (best.params, best.state))
    with pytest.raises(ValueError, match="keep_best"):
        run(keep_state=True, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="keep_state"):
        run(keep_best="wave", checkpoint=tmp_path)


@pytest.mark.slow
def test_states_off_the_device(tmp_path, best):
    apart = run(keep_best="wave", keep_state=True, client_states=fjs.client_states.on_disk(tmp_path))
    assert same((apart.params, apart.state.clients), (best.params, best.state.clients))


def test_files_and_verification(tmp_path, best):
    best.save(tmp_path / "best.npz")
    loaded = fjs.History.load(tmp_path / "best.npz")
    assert same(loaded.params, best.params)
    assert fjs.verify(loaded).passed


def test_what_is_no_number_is_never_the_best():
    """The start, where no evaluation has a number; and not the start, where it alone has none."""
    none, later = (run(keep_best=name) for name in ("nothing", "later"))
    assert same(none.params, np.ones((len(SEEDS), 3), "f4"))
    assert np.isnan(later["later"][:, 0]).all()
    assert same(-later.params[:, 0], later["later"][:, 1:].max(axis=1))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(TypeError, match="keep_best is 3: give the name of a metric"):
        run(keep_best=3)
    with pytest.raises(ValueError, match="keep_best='waves', which this run does not record: did you mean 'wave'"):
        run(keep_best="waves")
    with pytest.raises(ValueError, match=r"keep_best='pair' is an array of shape \(2,\)"):
        run(keep_best="pair")
