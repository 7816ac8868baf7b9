"""Mistakes of an author of a method, found when its class is made or before a run is compiled: class and hook named."""

import inspect
import pathlib
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim import trees
from fedjax_sim.algorithms import (
    Client,
    Cohort,
    FedAvg,
    Mean,
    Method,
    Parts,
    Requires,
    ServerState,
    Stack,
    Sum,
    Wrapper,
)
from fedjax_sim.engine import hook_checks, hooks
from fedjax_sim.models.shapes import check_values

KEY = jax.random.key(0)


def mine(base=FedAvg, **members):
    return type("Mine", (base,), members)


def checked(cls, wrap=lambda method: method, **fields):
    """What is checked before a run, of two clients in a round; nothing of the engine is traced."""
    data, task = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0), fjs.quadratic()
    params = jax.eval_shape(lambda key: task.init(key, data), KEY)
    losses = check_values(task, params, data.examples, training=True)
    method = wrap(cls(client_optimizer=fjs.optim.sgd(0.1), **fields))
    hook_checks.check_hooks(method, task, params, losses, data, 2)


def requires(**fields):
    return property(lambda self: Requires(**fields))


def clipped(method):
    return fjs.clipped(method, norm=1.0)


def zeros(self, params):
    return (jnp.zeros_like(params), ())


FLOATS = r"float\d\d\[2\]"
NEXT = r"return a ServerState, self.server_step\(server, delta, cohort\) or server._replace"
UPDATE = {
    "None": (lambda self, server, got, cohort: None, f"returned None: {NEXT}"),
    "params": (lambda self, server, got, cohort: server.params, rf"returned {FLOATS}: {NEXT}"),
    "a name": (
        lambda self, server, got, cohort: self.server_step(server, got["deltas"], cohort),
        "finish sends no message 'deltas': did you mean 'delta'",
    ),
    "extra": (
        lambda self, server, got, cohort: self.server_step(server._replace(extra=got), got["delta"], cohort),
        r"changed server.extra from \(\) to a dict of 1 array: .*init makes them, super\(\).init",
    ),
    "shape": (
        lambda self, server, got, cohort: server._replace(params=server.params[None]),
        r"changed server.params from float\d\d\[2\] to float\d\d\[1, 2\]",
    ),
    "type": (
        lambda self, server, got, cohort: server._replace(params=server.params.astype(jnp.bfloat16)),
        r"changed server.params from float\d\d\[2\] to bfloat16\[2\]",
    ),
}


@pytest.mark.parametrize("name", UPDATE)
@pytest.mark.parametrize("wrap", [lambda method: method, lambda method: fjs.ema(clipped(method))], ids=["", "wrapped"])
def test_update(name, wrap):
    update, message = UPDATE[name]
    with pytest.raises((TypeError, ValueError), match=rf"^Mine.update:? {message}"):
        checked(mine(update=update), wrap)


def no_model(self, server):
    return None


RETURNED: dict[str, tuple[dict[str, Any], str]] = {
    "init": ({"init": lambda self, params, shares: params}, rf"init returned {FLOATS}: return a ServerState"),
    "init_client": ({"init_client": lambda self, params: None}, r"init_client returned None: .*\(\) for nothing"),
    "open": (
        {"requires": requires(objective=True), "open": lambda self, server, objective: None},
        rf"open returned None: {NEXT}",
    ),
    "send": ({"send": no_model}, "send returned None: return what clients receive"),
    "send, no start": (
        {"send": lambda self, server: server.params},
        rf"send returned {FLOATS}, and Mine.begin \(of Method\) reads its field params: return a named tuple",
    ),
    "survey": (
        {"requires": requires(survey=True), "survey": lambda self, F, sent, c_i, client: client.size},
        r"survey returned int32\[\]: return real numbers to be averaged",
    ),
    "begin": ({"begin": lambda self, sent, c_i, client: None}, r"begin returned None: return what the client trains"),
    "objective, None": (
        {"objective": lambda self, F, y, k, sent, c_i, client: None},
        r"objective returned None: return one number, F\(y\)",
    ),
    "objective, an array": (
        {"objective": lambda self, F, y, k, sent, c_i, client: F(y) + y},
        rf"objective returned {FLOATS}: return one number",
    ),
    "objective, other parameters": (
        {
            "begin": lambda self, sent, c_i, client: Parts(a=sent.params, b=sent.params),
            "change": lambda self, y, sent, c_i, client: trees.subtract(y["a"], sent.params),
        },
        rf"objective \(of Method\) called F with a Parts of 2 arrays for params, which is {FLOATS}: F takes parameters",
    ),
    "turn": ({"turn": lambda self, k, client: k > 0}, r"turn returned bool\[\]: return None, or \{name: whether"),
    "turn, a number": (
        {"turn": lambda self, k, client: {"a": k}},
        r"turn returned .*: return None, or \{name: whether",
    ),
    "turn, no parts": (
        {"turn": lambda self, k, client: {"a": k > 0}},
        rf"turn names \['a'\], and begin returned {FLOATS}: name all parts, or None",
    ),
    "turn, not all parts": (
        {
            "begin": lambda self, sent, c_i, client: Parts(a=sent.params, b=sent.params),
            "objective": lambda self, F, y, k, sent, c_i, client: F(y["a"]) + F(y["b"]),
            "turn": lambda self, k, client: {"a": k > 0},
            "change": lambda self, y, sent, c_i, client: trees.subtract(y["a"], sent.params),
        },
        r"turn names \['a'\], and begin returned Parts of \['a', 'b'\]: name all parts, or None",
    ),
    "objective, a mean of nothing": (
        {"objective": lambda self, F, y, k, sent, c_i, client: F.mean(y)},
        rf"objective called F.mean on {FLOATS}: give an array \[B, ...\]",
    ),
    "objective, a slope": (
        {
            "requires": requires(slope=True),
            "objective": lambda self, F, y, k, sent, c_i, client: F(y) + F.mean(F.losses(y)),
        },
        "objective reads F.losses, and such an objective has no slope",
    ),
    "step": (
        {"step": lambda self, g, y, state, k, sent, c_i, client: y},
        r"step returned .*: return \(y, optimiser state\)",
    ),
    "step's y": (
        {"step": lambda self, g, y, state, k, sent, c_i, client: (y[:1], state)},
        r"step returned float\d\d\[1\] for y, which was float\d\d\[2\]",
    ),
    "change": ({"change": lambda self, y, sent, c_i, client: None}, "change returned None: return what has changed"),
    "finish": (
        {"finish": lambda self, delta, y, sent, c_i, client: {"delta": Mean(delta)}},
        r"finish returned a dict of 1 array: return \(\{name: message\}, c_i\)",
    ),
    "finish, arrays": (
        {"finish": lambda self, delta, y, sent, c_i, client: (delta, c_i)},
        rf"finish returned {FLOATS} as its first part: it must be a dict of messages",
    ),
    "finish, a bare array": (
        {"finish": lambda self, delta, y, sent, c_i, client: ({"delta": delta}, c_i)},
        rf"finish returned {FLOATS} as the message 'delta': .* wrap it: Mean\(delta\)",
    ),
    "finish, an empty message": (
        {"finish": lambda self, delta, y, sent, c_i, client: ({"delta": None}, c_i)},
        "finish returned None as the message 'delta'",
    ),
    "client state": (
        {
            "init_client": zeros,
            "finish": lambda self, delta, y, sent, c_i, client: ({"delta": Mean(delta)}, (c_i[0], c_i[0])),
        },
        r"finish changed c_i\[1\] from \(\) to float\d\d\[2\]: .*init_client makes them",
    ),
    "client state, a count that becomes a fraction": (
        {
            "init_client": lambda self, params: {"count": 0},
            "finish": lambda self, delta, y, sent, c_i, client: ({"delta": Mean(delta)}, {"count": c_i["count"] + 0.5}),
        },
        r"finish changed c_i\['count'\] from int\d\d\[\] to float\d\d\[\]: .*init_client makes them",
    ),
    "server, a real number that becomes a count": (
        {
            "init": lambda self, params, shares: FedAvg.init(self, params, shares)._replace(extra=jnp.zeros(())),
            "update": lambda self, server, got, cohort: FedAvg.update(self, server, got, cohort)._replace(extra=0),
        },
        r"update changed server.extra from float\d\d\[\] to 0: .*init makes them",
    ),
    "settle": (
        {
            "requires": requires(hears=("params",)),
            "init_client": zeros,
            "settle": lambda self, server, c_i, client: (),
        },
        r"settle returned \(\) for c_i, which was a tuple of 1 array",
    ),
    "phases": ({"phases": lambda self: self}, "phases returned a Mine of .*: return a tuple of methods"),
    "model": ({"model": no_model}, "model returned None: return the iterate x"),
    "with_model": (
        {"with_model": lambda self, server, params: params},
        rf"with_model returned {FLOATS}: return a ServerState",
    ),
    "evaluated": ({"evaluated": no_model}, "evaluated returned None: return the parameters"),
    "personal": ({"personal": lambda self, server, c_i: None}, "personal returned None: return the model"),
    "report": ({"report": lambda self, server: server.params}, r"report returned .*: return a dict of numbers"),
    "report, an array": (
        {"report": lambda self, server: {"x": server.params}},
        rf"report returned {FLOATS} as 'x': it must be one number",
    ),
    "report, a text": (
        {"report": lambda self, server: {"x": "a"}},
        "report returned 'a' as 'x': it must be one number",
    ),
    "requires": ({"requires": frozenset({"slope"})}, r"requires returned frozenset\(\{'slope'\}\): return Requires"),
    "requires, averages": (
        {"requires": requires(averages=frozenset({"sampel"}))},
        "requires has 'sampel' in averages: .*did you mean 'sample'",
    ),
    "requires, average": ({"requires": requires(average="mean")}, "requires has average='mean': it must be one of"),
    "requires, a flag": ({"requires": requires(steps=None)}, "requires has steps=None: it must be True or False"),
    "requires, hold": ({"requires": requires(hold=0)}, "requires has hold=0: it must be a whole number of steps"),
    "requires, per_step": ({"requires": requires(per_step=0)}, "requires has per_step=0: it must be a whole number"),
    "requires, a text": ({"requires": requires(hears="params")}, "requires has hears='params': give a tuple"),
    "requires, a field": (
        {"requires": requires(hears=("extras",))},
        "requires has 'extras' in hears, which the server's state lacks: did you mean 'extra'",
    ),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_hook_returns(name):
    members, message = RETURNED[name]
    with pytest.raises((TypeError, ValueError), match=rf"^Mine.{message}"):
        checked(mine(**members))


def if_(self, g, y, state, k, sent, c_i, client):
    return super(type(self), self).step(g, y, state, k, sent, c_i, client) if k > 2 else (y, state)


RAISED: dict[str, tuple[dict[str, Any], str]] = {
    "if": ({"step": if_}, r"step asks for the truth of a value .*jax.numpy.where or jax.lax.cond; .*static\(\)"),
    "a number": (
        {"update": lambda self, server, got, cohort: range(cohort.size)},
        r"update needs a value that is not known .*use jax.numpy; .*static\(\)",
    ),
    "numpy": (
        {"change": lambda self, y, sent, c_i, client: np.abs(y)},
        "change needs a value that is not known .*use jax.numpy",
    ),
    "a fault": (
        {"begin": lambda self, sent, c_i, client: sent.parms},
        "begin reads 'parms' of Sent, which has no such field: did you mean 'params'",
    ),
    "another key": (
        {"update": lambda self, server, got, cohort: {"found": 1}[next(iter(got))]},
        "update failed: KeyError: 'delta'",
    ),
}


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("wrap", [lambda method: method, clipped], ids=["", "wrapped"])
def test_what_a_hook_raises(name, wrap):
    members, message = RAISED[name]
    with pytest.raises((TypeError, ValueError), match=rf"^Mine.{message}") as caught:
        checked(mine(**members), wrap)
    assert caught.value.__cause__ is not None  # with the line where it happened


def test_what_the_package_says_itself_stays_as_it_is():
    said = "robust.*: clipped weighs its clients itself"
    with pytest.raises(ValueError, match=f"^{said}"):
        checked(FedAvg, lambda method: fjs.robust(fjs.clipped(fjs.qfedavg(client_optimizer=method.client_optimizer))))


def test_a_base_s_hook_is_named_with_its_class():
    base = mine(update=lambda self, server, got, cohort: None)
    with pytest.raises(TypeError, match=r"^Theirs.update \(of Mine\) returned None"):
        checked(type("Theirs", (base,), {}))
    renamed = mine(finish=lambda self, delta, y, sent, c_i, client: ({"change": Mean(delta)}, c_i))
    for wrap in (lambda method: method, fjs.ema):
        with pytest.raises(ValueError, match=r"^Mine.update \(of FedAvg\): finish sends no message 'delta'"):
            checked(renamed, wrap)


WRAPPERS: dict[str, tuple[dict[str, Any], str]] = {
    "encode": (
        {"encode": lambda self, delta, memory, sent, client: delta},
        r"encode returned .*: return \(delta, memory, \{name: message besides\}\)",
    ),
    "encode, delta": (
        {"encode": lambda self, delta, memory, sent, client: (delta[:1], memory, {})},
        r"encode returned float\d\d\[1\] for delta, which was float\d\d\[2\]",
    ),
    "encode, memory": (
        {"encode": lambda self, delta, memory, sent, client: (delta, delta, {})},
        rf"encode returned {FLOATS} for memory, which was \(\): .*init_memory makes them",
    ),
    "encode, a bare array": (
        {"encode": lambda self, delta, memory, sent, client: (delta, memory, {"norm": trees.norm(delta)})},
        r"encode returned float\d\d\[\] as the message 'norm'",
    ),
    "update": ({"update": lambda self, server, got, cohort: server.base}, "update returned a ServerState of 1 array"),
    "if": (
        {"begin": lambda self, sent, c_i, client: sent.params if client.size else sent},
        "begin asks for the truth of a value",
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_named(name):
    members, message = WRAPPERS[name]
    with pytest.raises(TypeError, match=f"^Mine.{message}"):
        checked(FedAvg, mine(Wrapper, **members))


def tells(self, delta, y, sent, c_i, client):
    return {"delta": Mean(delta), "length": Sum(jax.jit(trees.norm)(y))}, y


def keeps(self, delta, y, sent, c_i, client):
    both = jax.jit(lambda delta, y: (trees.norm(delta), trees.norm(y)))(delta, y)
    return {"delta": Mean(delta), "length": Stack(both[0])}, y


@pytest.mark.parametrize(("finish", "fine"), [(tells, False), (keeps, True)])
def test_what_is_sent_knows_y_through_delta_alone(finish, fine):
    cls = mine(init_client=lambda self, params: params, finish=finish)
    checked(cls)
    checked(cls, fjs.ema)  # which binds nothing
    for wrap in (clipped, lambda method: fjs.ema(fjs.top_k(method, fraction=0.5))):
        if fine:
            checked(cls, wrap)
            continue
        message = r"^Mine.finish computes the message 'length' from y, and a wrapper binds delta alone .*into change"
        with pytest.raises(ValueError, match=message):
            checked(cls, wrap)


CLASSES: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt hook": ({"udpate": lambda self, server, got, cohort: server}, "did you mean 'update'"),
    "a misspelt property": ({"require": property(lambda self: Requires())}, "did you mean 'requires'"),
    "parameters": (
        {"update": lambda self, server, got: server},
        r"Mine.update\(self, server, got\): the contract calls update\(self, server, got, cohort\)",
    ),
    "__init__": ({"__init__": lambda self, beta: None}, r"Mine defines __init__, .*beta: Any = 0.9"),
    "no annotation": ({"beta": 0.9}, r"Mine sets beta = 0.9 without an annotation: .*beta: Any = 0.9"),
    "no annotation of a base's field": (
        {"client_learning_rate": 0.5},
        "Mine sets client_learning_rate = 0.5 without an annotation, so it would keep the default of its base",
    ),
    "a former hook": (
        {"aggregate": lambda self, server, sums, cohort: server},
        r"^Mine.aggregate: in methods nothing reads this since 0.2.0; .* docs/stability.md",
    ),
    "a former declaration": ({"stacked": ("delta",)}, "^Mine.stacked: .* docs/stability.md"),
    "a former property": ({"needs": property(lambda self: frozenset())}, "^Mine.needs: .* docs/stability.md"),
    "no wrapper": (
        {"encode": lambda self, delta, memory, sent, client: (delta, memory, {})},
        "^Mine.encode: in methods nothing reads this",
    ),
    "former arguments": (
        {"finish": lambda self, y, sent, c_i, local, client: None},
        r"^Mine.finish\(self, y, .*\): the contract calls finish\(self, delta, y, sent, c_i, client\) since 0.2.0",
    ),
    "former arguments of init": (
        {"init": lambda self, params, num_clients: None},
        r"^Mine.init\(.*\): the contract calls init\(self, params, shares\) since 0.2.0",
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_what_a_class_says(name):
    members, message = CLASSES[name]
    with pytest.raises(TypeError, match=message):
        mine(**members)


def test_a_wrapper_s_own_hooks_have_their_arguments():
    with pytest.raises(
        TypeError, match=r"^Mine.encode\(self, change, .*\): the contract calls encode\(self, delta, mem"
    ):
        mine(Wrapper, encode=lambda self, change, sent, c_i, client: (change, c_i, {}))
    with pytest.raises(TypeError, match=r"the contract calls uploaded\(self, nbytes, delta\)"):
        mine(Wrapper, uploaded=lambda self, messages: 0)


def test_what_is_no_mistake():
    class Fine(FedAvg):
        """Constants, helpers, a count that starts as Python's 0, more parameters than the contract's.

        Args:
          beta: a factor.
          start: a former hook's name, but a hyper-parameter.
        """

        beta: Any = 0.9
        start: Any = 1.0
        LEAST: ClassVar[float] = 0.1

        def init(self, params, shares):
            return super().init(params, shares)._replace(extra=0)

        def step_of(self, got):
            return trees.scale(self.beta, got["delta"])

        def steps(self):
            return 2

        def update(self, state, messages, cohort, longest=1.0):
            state = state._replace(extra=state.extra + 1)
            return super().update(state, got={"delta": self.step_of(messages)}, cohort=cohort)

        def _udpate(self):
            return None

    checked(Fine)
    checked(type("Settling", (Fine,), {"requires": requires(hears=("params", "extra"))}))
    checked(Fine, lambda method: fjs.aware(fjs.top_k(method, fraction=0.5)))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda method: method,
        lambda method: fjs.ema(fjs.quantised(clipped(method), bits=8)),
        lambda method: fjs.attacked(method, clients=[0]),
    ],
)
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "feddyn", "feddane", "large_batch_sgd", "vrl_sgd", "afl"])
def test_the_package_s_own_methods_pass(name, wrap):
    needed = {"fedprox": {"mu": 0.1}, "feddyn": {"alpha": 0.1}, "feddane": {"mu": 0.1}}
    checked(
        lambda client_optimizer: getattr(fjs, name)(client_optimizer=client_optimizer, **needed.get(name, {})), wrap
    )


def test_every_hook_has_a_rule():
    public = {name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")}
    assert public - {"check", "fitted"} | {"encode", "init_memory"} == set(hooks._RULES)


def test_what_was_checked_is_remembered():
    calls = []
    cls = mine(report=lambda self, server: calls.append(server) or {})
    checked(cls, client_learning_rate=0.1)
    checked(cls, client_learning_rate=0.2)
    assert len(calls) == 1


def test_a_run_checks_its_method():
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=1, batches=fjs.local.full_batch(), cohort=fjs.cohort.full(),
        work=fjs.local.steps(1),
    )  # fmt: skip
    method = mine(update=lambda self, server, got, cohort: None)(client_optimizer=fjs.optim.sgd(0.1))
    with pytest.raises(TypeError, match=r"^Mine.update returned None"):
        train(method, fjs.datasets.quadratics(num_clients=3, dim=2, seed=0), KEY)


def traced(cls):
    """The program of a run, traced and not compiled."""
    train = fjs.make_train(
        task=fjs.quadratic(), rounds=2, batches=fjs.local.full_batch(), cohort=fjs.cohort.uniform(2),
        work=fjs.local.steps(2),
    )  # fmt: skip
    data = fjs.datasets.quadratics(num_clients=3, dim=2, seed=0)
    return jax.make_jaxpr(lambda method: train(method, data, KEY))(cls(client_optimizer=fjs.optim.sgd(0.1)))


def test_a_name_of_a_report_that_is_taken():
    with pytest.raises(ValueError, match=r"^Mine.report returned 'cohort_size', which is recorded already"):
        traced(mine(report=lambda self, server: {"cohort_size": jnp.float32(1)}))


@pytest.mark.parametrize(
    ("name", "message"),
    [("a\n", r"record of every round 'a\\n': .*printable"), ("seed", "'seed'"), ("loss", "both called 'loss'")],
)
def test_what_a_report_may_be_called(name, message):
    with pytest.raises(ValueError, match=message):
        traced(mine(report=lambda self, server: {name: jnp.float32(1)}))


def test_a_program_has_nothing_of_the_checks(monkeypatch):
    cls = mine(init_client=lambda self, params: jnp.zeros_like(params))
    with_checks = str(traced(cls))
    monkeypatch.setattr("fedjax_sim.engine.checks.check_hooks", lambda *_: None)
    assert str(traced(cls)) == with_checks


def test_the_page_lists_what_hooks_are_given():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    page = page[page.index("## What hooks are given") : page.index("## A method of your own")]
    for name in (*Client._fields, *Cohort._fields, *ServerState._fields):
        assert f"`{name}`" in page, name
    for name, _ in inspect.getmembers(trees, inspect.isfunction):
        assert name.startswith("_") or f"`{name}(" in page, name


def test_the_page_lists_the_contract():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    page = page[page.index("## The contract") : page.index("## What hooks are given")]
    for name, value in vars(Method).items():
        if inspect.isfunction(value) and not name.startswith("_"):
            _, *given = inspect.signature(value).parameters
            assert f"`{name}({', '.join(given)})`" in page, name
    for name in vars(Requires()):
        assert f"`{name}`" in page, name
