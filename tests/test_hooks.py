"""Mistakes of an author of a method, found when its class is made or a program is traced, with class and hook named."""

import inspect
import pathlib
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

import fedjax_sim as fjs
from fedjax_sim import trees
from fedjax_sim.algorithms import Client, Cohort, ServerState, hooks
from fedjax_sim.algorithms.contract import Method

KEY = jax.random.key(0)


def mine(base=fjs.Algorithm, **members):
    return type("Mine", (base,), members)


def traced(cls, wrap=lambda method: method):
    """The program of a run, traced and not compiled."""
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=2, batches=fjs.local.full_batch(), cohort=fjs.cohort.uniform(2),
        work=fjs.local.steps(2),
    )  # fmt: skip
    data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
    return jax.make_jaxpr(lambda method: train(method, data, KEY))(wrap(cls(client_optimizer=fjs.optim.sgd(0.1))))


def delta(y, sent):
    return {"delta": trees.subtract(y, sent.params)}


def zeros(self, params):
    return (jnp.zeros_like(params), ())


NEXT = r"return a ServerState, self.server_step\(server, delta, cohort\) or server._replace"
AGGREGATE = {
    "None": (lambda self, server, sums, cohort: None, f"returned None: {NEXT}"),
    "params": (lambda self, server, sums, cohort: server.params, rf"returned float\d\d\[2\]: {NEXT}"),
    "a name": (
        lambda self, server, sums, cohort: self.server_step(server, sums["deltas"], cohort),
        "finish returned no message 'deltas': did you mean 'delta'",
    ),
    "extra": (
        lambda self, server, sums, cohort: self.server_step(server._replace(extra=sums), sums["delta"], cohort),
        r"changed server.extra from \(\) to a dict of 1 array: .*init makes them, super\(\).init",
    ),
    "shape": (
        lambda self, server, sums, cohort: server._replace(params=server.params[None]),
        r"changed server.params from float\d\d\[2\] to float\d\d\[1, 2\]",
    ),
    "type": (
        lambda self, server, sums, cohort: server._replace(params=server.params.astype(jnp.bfloat16)),
        r"changed server.params from float\d\d\[2\] to bfloat16\[2\]",
    ),
}


@pytest.mark.parametrize("name", AGGREGATE)
@pytest.mark.parametrize(
    "wrap", [lambda method: method, lambda method: fjs.ema(fjs.clipped(method, norm=1.0))], ids=["bare", "wrapped"]
)
def test_aggregate(name, wrap):
    aggregate, message = AGGREGATE[name]
    with pytest.raises((TypeError, ValueError), match=rf"^Mine.aggregate:? {message}"):
        traced(mine(aggregate=aggregate), wrap)


RETURNED: dict[str, tuple[dict[str, Any], str]] = {
    "init": ({"init": lambda self, params, num_clients: params}, r"init returned float\d\d\[2\]: return a ServerState"),
    "init_client": ({"init_client": lambda self, params: None}, r"init_client returned None: .*\(\) for nothing"),
    "broadcast": ({"broadcast": lambda self, server: server.params}, r"broadcast returned .*: return a named tuple"),
    "start": ({"start": lambda self, sent, c_i, client: sent.params}, r"start returned .*: return \(y, local\)"),
    "start's y": (
        {"start": lambda self, sent, c_i, client: (sent, ())},
        r"start returned a Sent of 1 array for y, which was float\d\d\[2\]",
    ),
    "proximal": ({"proximal": lambda self, sent: sent.params}, "proximal returned .*: return one number"),
    "direction": (
        {"direction": lambda self, g, y, sent, local, client: None},
        r"direction returned None for g, which was float\d\d\[2\]",
    ),
    "local_step": (
        {"local_step": lambda self, g, y, state, sent, client: y},
        r"local_step returned .*: return \(y, optimiser state\)",
    ),
    "encode": (
        {"encodes": True, "encode": lambda self, change, sent, c_i, client: change},
        r"encode returned .*: return \(change, c_i,",
    ),
    "finish": (
        {"finish": lambda self, y, sent, c_i, local, client: delta(y, sent)},
        r"finish returned a dict of 1 array: return \(\{name: message\}, c_i\)",
    ),
    "finish, arrays": (
        {"finish": lambda self, y, sent, c_i, local, client: (y, c_i)},
        r"finish returned float\d\d\[2\] as its first part: it must be a dict of messages",
    ),
    "finish, an empty message": (
        {"finish": lambda self, y, sent, c_i, local, client: ({"delta": None}, c_i)},
        "finish returned None as the message 'delta'",
    ),
    "client state": (
        {"init_client": zeros, "finish": lambda self, y, sent, c_i, local, client: (delta(y, sent), (c_i[0], c_i[0]))},
        r"finish changed c_i\[1\] from \(\) to float\d\d\[2\]: .*init_client makes them",
    ),
    "settle": (
        {"settles": True, "init_client": zeros, "settle": lambda self, server, c_i: ()},
        r"settle returned \(\) for c_i, which was a tuple of 1 array",
    ),
    "weigh": ({"weigh": lambda self, client: client.weight}, r"weigh returned .*: return a dict of weights"),
    "weigh, a name": (
        {"weigh": lambda self, client: {"detla": client.weight}},
        "weigh returned a weight of 'detla', which finish does not return: did you mean 'delta'",
    ),
    "stacked": ({"stacked": ("detla",)}, "stacked has 'detla', which finish does not return: did you mean 'delta'"),
    "stacked, a text": ({"stacked": "delta"}, "stacked is 'delta': give a tuple of names"),
    "needs": ({"needs": property(lambda self: frozenset({"slop"}))}, "needs has 'slop': did you mean 'slope'"),
    "report": ({"report": lambda self, server: server.params}, r"report returned .*: return a dict of numbers"),
    "report, an array": (
        {"report": lambda self, server: {"x": server.params}},
        r"report returned float\d\d\[2\] as 'x': it must be one number",
    ),
    "report, a name": (
        {"report": lambda self, server: {"cohort_size": jnp.float32(1)}},
        "report returned 'cohort_size', which is recorded already",
    ),
    "phases": ({"phases": lambda self: self}, "phases returned a Mine of .*: return a tuple of methods"),
    "model": ({"model": lambda self, server: None}, "model returned None: return the iterate x"),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_hook_returns(name):
    members, message = RETURNED[name]
    with pytest.raises((TypeError, ValueError), match=rf"^Mine.{message}"):
        traced(mine(**members))


@pytest.mark.parametrize(
    ("name", "message"),
    [("a\n", r"record of every round 'a\\n': .*printable"), ("seed", "'seed'"), ("loss", "both called 'loss'")],
)
def test_what_a_report_may_be_called(name, message):
    with pytest.raises(ValueError, match=message):
        traced(mine(report=lambda self, server: {name: jnp.float32(1)}))


def test_a_base_s_hook_is_named_with_its_class():
    base = mine(aggregate=lambda self, server, sums, cohort: None)
    with pytest.raises(TypeError, match=r"^Theirs.aggregate \(of Mine\) returned None"):
        traced(type("Theirs", (base,), {}))
    renamed = mine(finish=lambda self, y, sent, c_i, local, client: ({"change": y}, c_i))
    with pytest.raises(ValueError, match=r"^Mine.aggregate \(of Algorithm\): finish returned no message 'delta'"):
        traced(renamed)


CLASSES: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt hook": ({"aggregat": lambda self, server, sums, cohort: server}, "did you mean 'aggregate'"),
    "a misspelt declaration": ({"stakced": ("delta",)}, "did you mean 'stacked'"),
    "a misspelt property": ({"need": property(lambda self: frozenset())}, "did you mean 'needs'"),
    "parameters": (
        {"aggregate": lambda self, server, sums: server},
        r"Mine.aggregate\(self, server, sums\): the contract calls aggregate\(self, server, sums, cohort\)",
    ),
    "__init__": ({"__init__": lambda self, beta: None}, r"Mine defines __init__, .*beta: Any = 0.9"),
    "no annotation": ({"beta": 0.9}, r"Mine sets beta = 0.9 without an annotation: .*beta: Any = 0.9"),
    "no annotation of a base's field": (
        {"client_learning_rate": 0.5},
        "Mine sets client_learning_rate = 0.5 without an annotation, so it would keep the default of its base",
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_what_a_class_says(name):
    members, message = CLASSES[name]
    with pytest.raises(TypeError, match=message):
        mine(**members)


def test_what_is_no_mistake():
    class Fine(fjs.Algorithm):
        """Constants, helpers, a count that starts as Python's 0, more parameters than the contract's.

        Args:
          beta: a factor.
          weights: nearly a hook's name, but a hyper-parameter.
        """

        beta: Any = 0.9
        weights: Any = 1.0
        LEAST: ClassVar[float] = 0.1
        duplicates = False

        def init(self, params, num_clients):
            return super().init(params, num_clients)._replace(extra=0)

        def step_of(self, sums):
            return trees.scale(self.beta, sums["delta"])

        def aggregate(self, state, messages, cohort, longest=1.0):
            state = state._replace(extra=state.extra + 1)
            return super().aggregate(state, sums={"delta": self.step_of(messages)}, cohort=cohort)

        def _aggregat(self):
            return None

    traced(Fine)
    traced(type("Settling", (Fine,), {"settles": True}))
    traced(Fine, lambda method: fjs.aware(fjs.top_k(method, fraction=0.5)))


def test_another_key_error_stays_as_it_is():
    def aggregate(self, server, sums, cohort):
        return {"found": 1}[next(iter(sums))]

    with pytest.raises(KeyError, match="delta"):
        traced(mine(aggregate=aggregate))


def test_every_hook_has_a_rule():
    public = {name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")}
    numbers_or_words = {"check", "minimises", "download_bytes", "upload_bytes", "slopes", "checked", "replace"}
    assert public - numbers_or_words == set(hooks._RULES)


def test_the_page_lists_what_hooks_are_given():
    page = (pathlib.Path(__file__).parent.parent / "docs" / "algorithms.md").read_text(encoding="utf-8")
    page = page[page.index("## What hooks are given") : page.index("## A method of your own")]
    for name in (*Client._fields, *Cohort._fields, *ServerState._fields):
        assert f"`{name}`" in page, name
    for name, _ in inspect.getmembers(trees, inspect.isfunction):
        assert f"`{name}(" in page, name


def test_a_program_has_nothing_of_the_checks():
    cls = mine(
        init_client=lambda self, params: jnp.zeros_like(params),
        finish=lambda self, y, sent, c_i, local, client: (delta(y, sent), c_i + 1),
        aggregate=lambda self, server, sums, cohort: self.server_step(server, sums["delta"], cohort),
    )
    checked = str(traced(cls))
    for base in (cls, fjs.Algorithm):
        for name in hooks._RULES.keys() & vars(base).keys():
            assert hasattr(vars(base)[name], "__wrapped__")
    for name in hooks._RULES.keys() & vars(cls).keys():
        setattr(cls, name, vars(cls)[name].__wrapped__)
    jax.clear_caches()
    assert str(traced(cls)) == checked
