"""Mistakes in code of one's own: what is said, of which function and line; and what is not to be written into."""

import inspect
import os
import random
import re

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import FedAvg
from fedjax_sim.cli.process import status_of
from fedjax_sim.core import mistakes

DATA = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
SGD = fjs.optim.sgd(0.1)


def run(method=None, task=None, data=DATA, **more):
    given = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batches": fjs.local.full_batch()} | more
    method = method or fjs.fedavg(client_optimizer=SGD)
    return fjs.simulate(method, data, task=task or fjs.quadratic(), rounds=1, **given)


def init(key):
    return {"w": jnp.ones(2)}


def plain(params, examples):
    return examples["e"] @ params["w"]


def note_of(caught):
    """The one note that is ours."""
    (note,) = mistakes.notes(caught.value)
    return note


def line_of(function, text):
    """``File "...", line N, in function`` of the line of a function that has the text."""
    lines, first = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines, first) if text in line)
    return f'File "{inspect.getsourcefile(function)}", line {number}, in {function.__name__}'


def branches(params, examples):
    return plain(params, examples) if params["w"][0] > 0 else -plain(params, examples)


def helper(values):
    return float(values.sum())


def by_a_helper(params, examples):
    return plain(params, examples) * helper(params["w"])


def by_numpy(params, examples):
    return np.dot(examples["e"], params["w"])


def by_condition(params, examples):
    losses = plain(params, examples)
    return losses[losses > 0]


def in_place(params, examples):
    losses = plain(params, examples)
    losses[0] = 0.0
    return losses


LOSSES = {
    branches: ("asks for the truth of a value .* jax.numpy.where", "if params"),
    by_a_helper: ("needs a value that is not known .* jax.numpy", "* helper("),
    by_numpy: ("needs a value that is not known .* jax.numpy", "np.dot"),
    by_condition: (r"takes entries by a condition.*jax.numpy.where\(condition", "losses > 0"),
    in_place: (r"writes into an array.*x.at\[index\].set\(value\)", "losses[0] = "),
}


@pytest.mark.parametrize("losses", LOSSES, ids=lambda losses: losses.__name__)
def test_a_loss_is_shown_with_its_line_and_what_to_write(losses):
    message, text = LOSSES[losses]
    with pytest.raises((TypeError, ValueError), match=rf"^losses_function\(params, examples\) {message}") as caught:
        run(task=fjs.functions(init, losses))
    assert line_of(losses, text) in note_of(caught)
    assert isinstance(caught.value.__cause__, Exception)  # JAX's own


def test_all_lines_from_the_function_to_the_fault_are_shown():
    with pytest.raises(TypeError) as caught:
        run(task=fjs.functions(init, by_a_helper))
    lines = note_of(caught).splitlines()
    assert [line.strip() for line in lines] == [
        line_of(by_a_helper, "* helper("),
        'return plain(params, examples) * helper(params["w"])',
        line_of(helper, "float"),
        "return float(values.sum())",
    ]


def scaled(params, examples):
    examples["e"] = examples["e"] / 2
    return plain(params, examples)


def halved(params, examples):
    params["w"] = params["w"] / 2
    return plain(params, examples)


def renamed(params, examples):
    examples["more"] = examples["e"]
    return plain(params, examples)


@pytest.mark.parametrize(
    ("losses", "what"), [(scaled, r"examples\['e'\]"), (halved, r"params\['w'\]"), (renamed, r"examples\['more'\]")]
)
def test_what_is_given_is_not_written_into(losses, what):
    """A penalty, a proximal term or a metric would read what the loss has left."""
    with pytest.raises(TypeError, match=rf"^losses_function writes into {what}, which others read") as caught:
        run(task=fjs.functions(init, losses))
    assert line_of(losses, "def ") in note_of(caught)


@pytest.mark.parametrize("draw", [np.random.normal, random.random], ids=["numpy", "python"])
def test_nothing_is_drawn_while_a_program_is_traced(draw):
    """Every round, client and seed would have the same number."""

    def noisy(params, examples):
        return plain(params, examples) + draw() * jnp.sum(params["w"])

    class Noisy(FedAvg):
        def change(self, y, sent, c_i, client):
            return super().change(jax.tree.map(lambda leaf: leaf + draw(), y), sent, c_i, client)

    with pytest.raises(TypeError, match=r"^losses_function draws from np.random or random, .* all rounds"):
        run(task=fjs.functions(init, noisy))
    with pytest.raises(TypeError, match=r"^Noisy.change draws"):
        run(Noisy(client_optimizer=SGD))
    with pytest.raises(TypeError, match=r"^evaluate draws"):
        run(evaluate=lambda params, dataset: {"one": jnp.float32(draw())})


def test_neither_do_outputs_hooks_and_evaluations():
    def outputs(params, examples):
        params["w"] = 2 * params["w"]
        return examples["e"]

    class Matching(FedAvg):
        def objective(self, F, y, k, sent, c_i, client):
            return jnp.sum(F.outputs(y)) + F(y)

    class Moving(FedAvg):
        def update(self, server, got, cohort):
            server.params["w"] = server.params["w"] + got["delta"]["w"]
            return server

    def evaluate(params, dataset):
        params["w"] = 0 * params["w"]
        return {"zero": params["w"]}

    task = fjs.functions(init, plain, outputs_function=outputs)
    with pytest.raises(TypeError, match=r"outputs_function writes into params\['w'\]"):
        run(Matching(client_optimizer=SGD), task)
    with pytest.raises(TypeError, match=r"Moving.update writes into server.params\['w'\]"):
        run(Moving(client_optimizer=SGD), task)
    with pytest.raises(TypeError, match=r"evaluate writes into params\['w'\]") as caught:
        run(task=task, evaluate=evaluate)
    assert line_of(evaluate, "def ") in note_of(caught)


def test_what_the_mechanism_itself_says():
    given = {"a": [1, 2]}
    with mistakes.unchanged("it", given=given):
        dict(given)["a"] = 3
    with pytest.raises(TypeError, match=r"^it writes into given\['a'\]\[2\]"), mistakes.unchanged("it", given=given):
        given["a"].append(3)
    with pytest.raises(KeyError), mistakes.unchanged("it", given=given):
        raise KeyError


def test_errors_of_the_package_get_no_line():
    with pytest.raises(ValueError, match="rounds") as caught:
        fjs.make_train(task=fjs.quadratic(), rounds=0, batch_size=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1))
    assert mistakes.notes(caught.value) == []


def test_an_evaluation_keeps_jax_s_error_and_says_what_it_was_called_with():
    def evaluate(params, dataset):
        return {"found": dataset.examples["z"]}

    def known(params, dataset):
        return {"found": float(params[0])}

    with pytest.raises(KeyError) as caught:
        run(evaluate=evaluate)
    assert line_of(evaluate, '"z"') in note_of(caught)
    assert "evaluate was called with params float32[2], dataset FederatedDataset(3 clients" in note_of(caught)
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, batch_size=1, cohort=fjs.cohort.full(), work=fjs.local.steps(1), evaluate=known
    )
    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        train(fjs.fedavg(client_optimizer=SGD), DATA, jax.random.key(0))
    assert f"{mistakes.called(_frame(known))} needs a value that is not known" in note_of(caught)
    assert line_of(known, "float") in note_of(caught)


@pytest.mark.parametrize(
    ("layer", "fix"),
    [
        (nn.Dropout(0.5), r"fedjax_sim.models.Dropout\(rate\), or deterministic=not train"),
        (nn.Dropout(0.5, deterministic=False), r"fedjax_sim.models.Dropout\(rate\), or deterministic=not train"),
        (nn.BatchNorm(), "use_running_average=not train"),
    ],
    ids=["dropout", "always", "norm"],
)
def test_a_layer_that_is_not_told_whether_it_trains(layer, fix):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(layer.copy()(x))

    data = fjs.datasets.from_clients([(np.ones((4, 3)), np.arange(4) % 2)])
    with pytest.raises((ValueError, flax.errors.InvalidRngError), match=r"must be passed|needs PRNG") as caught:
        run(task=fjs.classification(Net()), data=data)
    assert re.search(rf"Net.__call__ calls a layer that is not told whether it trains: write {fix}", note_of(caught))
    assert note_of(caught).endswith("return nn.Dense(2)(layer.copy()(x))")


def _frame(function):
    try:
        function(None, None)
    except TypeError as error:
        return error.__traceback__.tb_next.tb_frame


def test_an_object_that_cannot_be_shown_hides_no_error():
    class Odd:
        def __repr__(self):
            raise RuntimeError

    def fails(odd):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), mistakes.explained():
        jax.tree.map(fails, [Odd()])


def test_of_a_value_that_was_kept_the_place_is_named():
    def leaking(of):
        kept = []

        def losses(params, examples):
            kept.append(of(plain(params, examples)))
            return plain(params, examples) * kept[0]

        return losses

    for of, error, who in ((jnp.sum, jax.errors.UnexpectedTracerError, "a function"), (jnp.abs, TypeError, "losses")):
        with pytest.raises(error) as caught:
            run(task=fjs.functions(init, leaking(of)))
        assert note_of(caught).startswith(f"{who} uses a value that it has kept from another call")
        assert "(kept of its losses_function[0] is a traced value)" in note_of(caught)


@pytest.mark.slow
def test_of_a_value_that_is_differentiated_the_place_is_named():
    common = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batch_size": 1, "layout": fjs.layout.turns()}

    def final_loss(scale):
        task = fjs.functions(init, lambda params, examples: scale * plain(params, examples))
        train = fjs.make_train(task=task, rounds=1, **common)
        return train(fjs.fedavg(client_optimizer=SGD), DATA, jax.random.key(0)).metrics["loss"][-1]

    with pytest.raises(jax.errors.UnexpectedTracerError) as caught:
        jax.grad(final_loss)(1.0)
    assert "differentiated or mapped is given in a field of the method or the task" in note_of(caught)
    assert "(scale of its losses_function is a traced value)" in note_of(caught)
    assert os.path.dirname(fjs.__file__) not in note_of(caught)  # no lines of the package; JAX 0.6 has some of callers


def test_an_optimiser_within_a_hook_is_named_before_it():
    class Sign(fjs.optim.Optimizer):
        def transform(self):
            def update(gradients, state, params=None):
                return (gradients if gradients[0] > 0 else state), state

            return fjs.optim.sgd(0.1).transform()._replace(update=update)

    with pytest.raises(TypeError, match=r"^update \(in FedAvg.step\) asks for the truth"):
        run(fjs.fedavg(client_optimizer=Sign()))


def test_a_command_says_it_too(capsys):
    class Options:
        command, traceback = "run", False

        @staticmethod
        def run(options):
            run(task=fjs.functions(init, lambda params, examples: jnp.ones(3)))

    assert status_of(Options) == 1
    said = capsys.readouterr().err
    assert said.startswith("fedjax-sim run: losses_function returns float32[3]")
    assert said.splitlines()[1].endswith("in <lambda>")


class Two(nn.Module):
    @nn.compact
    def __call__(self, x, y):
        return nn.Dense(1)(x)


class Few(fjs.cohort.Participation):
    def size(self, num_clients):
        return 1

    def select(self, dataset, key):
        return fjs.cohort.Selection(jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.int32))


LABELLED = fjs.datasets.from_ids((np.zeros((4, 2), np.float32), np.zeros(4, np.float32)), [0, 0, 1, 1])
CALLS = {
    "a module's init": (lambda: {"task": fjs.functions(Two().init, plain)}, "self.init_function(key)"),
    "a module": (lambda: {"task": fjs.regression(Two()), "data": LABELLED}, "self.model.init(key, self._one(dataset)"),
    "evaluate": (lambda: {"evaluate": lambda params: {}}, "evaluate(params, dataset, **known)"),
    "a scheme": (lambda: {"cohort": Few()}, "cohort.select(data, key, t)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_does_not_fit_is_shown_as_it_is_written(name):
    given, call = CALLS[name]
    with pytest.raises(TypeError, match=r"\(\) (takes|missing) \d") as caught:
        run(**given())
    assert f"fedjax_sim calls it so: {call}" in note_of(caught)


def test_a_call_of_ones_own_is_not_shown_as_the_packages():
    class Own(type(fjs.fedavg(client_optimizer=SGD))):
        def _moved(self, server):
            return server

        def update(self, server, message, cohort):
            return self._moved(server, cohort)

    with pytest.raises(TypeError, match="_moved") as caught:
        run(Own(client_optimizer=SGD))
    assert "self._moved(server, cohort)" in note_of(caught)
    assert "calls it so" not in note_of(caught)
    with pytest.raises(TypeError, match="missing 1") as caught:
        run(task=fjs.functions(init, lambda params, examples: plain(params)))
    assert "calls it so" not in note_of(caught)
    given = {"cohort": fjs.cohort.full(), "work": fjs.local.steps(1), "batches": fjs.local.full_batch()}
    train = fjs.make_train(task=fjs.quadratic(), rounds=1, **given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'seeds'") as caught:
        train(fjs.fedavg(client_optimizer=SGD), DATA, seeds=3)
    assert not mistakes.notes(caught.value)


def test_a_field_that_is_not_there_is_shown_with_those_that_are():
    class Later(fjs.local.Work):
        def steps(self, turn):
            return turn.epochs

        def most_steps(self, epoch):
            return epoch

    with pytest.raises(AttributeError) as caught:
        run(work=Later())
    assert "steps reads 'epochs' of Turn, which has no such field: did you mean 'epoch'? known: " in note_of(caught)


def test_a_dictionary_that_is_unpacked_has_names():
    def losses(params, examples):
        x, y = examples
        return (params @ x - y) ** 2

    with pytest.raises((TypeError, ValueError), match=r"take examples\['x'\], examples\['y'\]"):
        run(task=fjs.functions(lambda key: jnp.ones(2), losses), data=LABELLED)
