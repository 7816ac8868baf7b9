"""Cohorts, work schemes and rules of one's own, checked before a run; what is said where there is no memory."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.core.mistakes import notes
from fedjax_sim.engine.arguments import asked_of
from fedjax_sim.engine.checks import resolve_seeds
from fedjax_sim.engine.memory import room, side_by_side

DATA = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
SGD = fjs.optim.sgd(0.1)


def run(method=None, **more):
    given = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batches": fjs.local.full_batch()} | more
    return fjs.simulate(method or fjs.fedavg(client_optimizer=SGD), DATA, task=fjs.quadratic(), rounds=1, **given)


def cohort(**select):
    def chosen(self, dataset, key, round_):
        given = {"indices": jnp.arange(2), "count": jnp.ones(2, jnp.int32)} | select
        return fjs.cohort.Selection(**given) if "whole" not in select else select["whole"]

    members = {"size": lambda self, num_clients: 2, "select": chosen}
    return type("Mine", (fjs.cohort.Participation,), members)()


COHORTS = {
    "a bare array": ({"whole": jnp.arange(2)}, r"returned int32\[2\]: return Selection\(indices=int32\[2\]"),
    "too many": ({"indices": jnp.arange(3)}, r"returned Selection\(indices=int32\[3\]"),
    "no whole numbers": ({"indices": jnp.arange(2.0)}, r"returned Selection\(indices=float32\[2\]"),
    "nobody": ({"indices": jnp.array([0, 3])}, "drew the client 3 of 3: clients are numbered from 0 to 2"),
    "below": ({"indices": jnp.array([-1, 1])}, "drew the client -1 of 3"),
    "twice": ({"indices": jnp.array([1, 1])}, "has the client 1 in 2 slots: a client has one slot, whose count says"),
}


@pytest.mark.parametrize("name", COHORTS)
def test_a_cohort_s_draw(name):
    select, message = COHORTS[name]
    with pytest.raises((TypeError, ValueError), match=rf"^Mine.select {message}"):
        run(cohort=cohort(**select))


def work(steps, most=2):
    return type(
        "Mine", (fjs.local.Work,), {"steps": lambda self, turn: steps, "most_steps": lambda self, epoch: most}
    )()


WORK = {
    "no whole numbers": ({"steps": jnp.ones(3)}, r"returned float32\[3\]: return int32\[3\], a number for each slot"),
    "one number": ({"steps": jnp.int32(1)}, r"returned int32\[\]"),
    "beyond": ({"steps": jnp.array([1, 3, 1])}, r"gives a client 3 steps, and most_steps\(1\).* is 2"),
}


@pytest.mark.parametrize("name", WORK)
def test_steps(name):
    given, message = WORK[name]
    with pytest.raises((TypeError, ValueError), match=rf"^Mine.steps {message}"):
        run(work=work(**given))


def test_schemes_that_draw_once_while_they_are_traced():
    def select(self, dataset, key, round_):
        return fjs.cohort.Selection(jnp.asarray(np.random.permutation(3)[:2]), jnp.ones(2, jnp.int32))  # noqa: NPY002

    members = {"size": lambda self, num_clients: 2, "select": select}
    with pytest.raises(TypeError, match=r"^Mine.select draws from np.random or random, which happens once"):
        run(cohort=type("Mine", (fjs.cohort.Participation,), members)())
    steps = {"steps": lambda self, turn: jnp.full(3, random.randint(1, 2)), "most_steps": lambda self, epoch: 2}
    with pytest.raises(TypeError, match=r"^Mine.steps draws from np.random or random"):
        run(work=type("Mine", (fjs.local.Work,), steps)())


def test_void_slots_may_have_anything():
    """A void slot has the index N, and its number of steps does not matter."""
    given = {"indices": jnp.array([1, 3]), "count": jnp.array([1, 0])}
    history = run(cohort=cohort(**given), work=work(jnp.array([2, 9])))
    assert history.rounds["useful_steps"].tolist() == [[2]]
    traced = fjs.make_train(
        task=fjs.quadratic(), rounds=1, batches=fjs.local.full_batch(), cohort=cohort(**given),
        work=work(jnp.array([2, 9])),
    )  # fmt: skip
    assert jax.eval_shape(traced, fjs.fedavg(client_optimizer=SGD), DATA, jax.random.key(0)).params.shape == (2,)


@pytest.mark.parametrize("combined", [lambda stack: stack, lambda stack: fjs.aggregators.Combined(stack, (), {})])
def test_what_a_rule_returns(combined):
    members = {"combine": lambda self, stack, who, state=(): combined(stack)}
    rule = type("Mine", (fjs.aggregators.Aggregator,), members)()
    with pytest.raises(TypeError, match=r"^Mine.combine returned .*: return Combined\(value, state, report\)"):
        run(fjs.robust(fjs.fedavg(client_optimizer=SGD), rule))


# Memory


def test_models_at_work():
    layouts = fjs.layout
    assert side_by_side(layouts.turns(), 5) == side_by_side(layouts.factored(layouts.turns()), 5) == 1
    assert side_by_side(layouts.stacked(), 500) == side_by_side(layouts.buckets(2), 500) == 500
    assert [side_by_side(layouts.lanes(8), slots) for slots in (5, 500)] == [5, 8]


def planned(**more):
    given = {
        "task": fjs.quadratic(), "rounds": 1, "cohort": fjs.cohort.full(), "work": fjs.local.steps(1),
        "batches": fjs.local.full_batch(), "layout": fjs.layout.stacked(),
    }  # fmt: skip
    asked, _ = asked_of(given | more)
    asked = asked._replace(algorithm=fjs.scaffold(client_optimizer=SGD))
    return resolve_seeds(asked, DATA, [0], 1, None, None)


@pytest.mark.parametrize("error", [MemoryError("no"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 bytes")])
def test_what_takes_memory(error):
    with pytest.raises(type(error)) as caught, room(planned()):
        raise error
    # models of two numbers in single precision; the examples of each of three clients are a matrix and a vector
    (note,) = notes(caught.value)
    assert note.splitlines()[1:] == [
        "  72 B for the examples: fedjax_sim.datasets.on_host(dataset)",
        "  24 B for the states of 3 clients, 8 B each: client_states=fedjax_sim.client_states.on_host()",
        "  24 B for 3 models at work, 8 B each, in layout=Stacked(), and as much for their gradients: "
        "layout=fedjax_sim.layout.turns(), one after the other",
        "  what layers compute: smaller batches, full_batch(piece_size=32); fewer seeds at once, sweep(chunk=1)",
    ]


def test_other_errors_are_not_of_memory():
    with pytest.raises(jax.errors.JaxRuntimeError) as caught, room(planned()):
        raise jax.errors.JaxRuntimeError("INTERNAL: 9 bytes")
    assert notes(caught.value) == []
