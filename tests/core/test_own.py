"""What is known of one's own parts: the same in another process, another after whatever would change a result."""

import functools
import json
import linecache
import pathlib
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_sim.core.own import Unknown, known, origin
from fedjax_sim.core.sources import source
from fedjax_sim.run.checkpoints.differences import by_names_alone, differences

ROOT = pathlib.Path(__file__).parents[2]
LOCK = threading.Lock()

MINE = """
import dataclasses, functools
import flax.linen as nn, jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
import helpers

RATE = 0.5
TABLE = np.arange(3.0)
act = nn.relu

def scaled(x):
    return far(x) * RATE

def far(x):
    return x + 1  # a comment

def looked_up(x, table=np.arange(3)):
    return table[x] + TABLE[x]

def twice(function):
    @functools.wraps(function)
    def doubled(x):
        return 2 * function(x)
    return doubled

@twice
def decorated(x):
    return x - 1

def made(rate):
    def inner(x):
        return rate * x
    return inner

class Base(nn.Module):
    width: int = 3
    slope = 2.0
    def bend(self, x):
        return act(scaled(x))

class Net(Base):
    act: object = nn.relu
    @nn.compact
    def __call__(self, x):
        return self.act(self.bend(nn.Dense(self.width)(x)))

class Two(nnx.Module):
    def __init__(self, rngs, hidden=4):
        self.l = nnx.Linear(2, hidden, rngs=rngs)
    def __call__(self, x):
        return scaled(self.l(x))

@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Tree:
    w: object
    def __call__(self, x):
        return self.w @ x
    def tree_flatten(self):
        return (self.w,), None
    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

def of_helpers(x):
    return helpers.shifted(x)

def imports(x):
    from helpers import shifted
    return shifted(x)

def recursive(n):
    return 1 if n == 0 else n * recursive(n - 1)

jitted = jax.jit(scaled)
part = functools.partial(scaled, 3)
lambdas = (lambda x: x, lambda x: -x)
chain = optax.chain(optax.clip(0.1), optax.adam(1e-3))
net = Net(4)
two = Two(nnx.Rngs(0))
tree = Tree(jnp.ones(2))
closure = made(0.1)
first = lambdas[0]
gradient = jax.grad(scaled)
"""
HELPERS = "SHIFT = 1\n\ndef shifted(x):\n    return x + SHIFT\n"
PARTS = [
    "net", "Net", "two", "tree", "scaled", "looked_up", "decorated", "closure", "of_helpers", "imports", "recursive",
    "jitted", "part", "first", "chain", "gradient",
]  # fmt: skip


@pytest.fixture
def write(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes both modules anew, with changes, and imports them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(*changes: tuple[str, str]) -> Any:
        texts = {"helpers": HELPERS, "mine": MINE}
        for before, after in changes:
            assert sum(text.count(before) for text in texts.values()) == 1, before
            texts = {name: text.replace(before, after) for name, text in texts.items()}
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        linecache.clearcache()
        for name, text in texts.items():
            module = types.ModuleType(name)
            module.__file__ = str(tmp_path / f"{name}.py")
            monkeypatch.setitem(sys.modules, name, module)
            exec(compile(text, module.__file__, "exec"), vars(module))
        return sys.modules["mine"]

    return written


def lines(one: Any, other: Any) -> list[str]:
    """What differs between what is known of two parts of one name."""
    return differences(*({"it": {"opaque": "it", "known": told}} for told in (one, other)))


@pytest.mark.parametrize(
    ("part", "before", "after", "told"),
    [
        ("net", "x + 1 ", "x + 2 ", "the source of mine.far now differs"),
        ("net", "RATE = 0.5", "RATE = 0.6", "mine.RATE is 0.5 in the checkpoint, 0.6 now"),
        ("net", "slope = 2.0", "slope = 3.0", "mine.Base now differs"),
        ("net", "net = Net(4)", "net = Net(5)", "it.width: 4 in the checkpoint, 5 now"),
        ("net", "net = Net(4)", "net = Net(4, nn.gelu)", "it.act"),
        ("net", "net = Net(4)", "net = Net(4, scaled)", "it.act"),
        ("net", "\nact = nn.relu", "\nact = nn.gelu", "mine.act (value)"),
        ("net", "class Net(Base)", "class Net(nn.Module)", "mine.Net now differs"),
        ("Net", "nn.Dense(self.width)", "nn.Dense(self.width, use_bias=False)", "mine.Net.__call__ now differs"),
        ("scaled", "RATE = 0.5", "RATE = jnp.float32(0.5)", "mine.RATE (value)"),
        ("looked_up", "table=np.arange(3)", "table=np.arange(4)", "it"),
        ("looked_up", "TABLE = np.arange(3.0)", "TABLE = np.arange(3.0) + 1", "mine.TABLE (value)"),
        ("decorated", "2 * function", "3 * function", "mine.twice.<locals>.doubled"),
        ("decorated", "x - 1", "x - 2", "mine.decorated"),
        ("closure", "made(0.1)", "made(0.2)", "0.1 in the checkpoint, 0.2 now"),
        ("of_helpers", "SHIFT = 1", "SHIFT = 2", "helpers.SHIFT is 1 in the checkpoint, 2 now"),
        ("of_helpers", "return x + SHIFT", "return x - SHIFT", "the source of helpers.shifted"),
        ("imports", "return x + SHIFT", "return x - SHIFT", "the source of helpers.shifted"),
        ("recursive", "n * recursive", "n + recursive", "mine.recursive"),
        ("jitted", "x + 1 ", "x + 2 ", "mine.far"),
        ("part", "scaled, 3", "scaled, 4", "it"),
        ("part", "return far(x) * RATE", "return far(x) / RATE", "mine.scaled"),
        ("first", "lambdas[0]", "lambdas[1]", "mine.<lambda>"),
        ("first", "lambda x: x,", "lambda y: y,", "mine.<lambda>"),
        ("chain", "1e-3", "2e-3", "it"),
        ("chain", "optax.clip(0.1)", "optax.clip(0.2)", "it"),
        ("two", "hidden=4", "hidden=5", "it"),
        ("two", "Two(nnx.Rngs(0))", "Two(nnx.Rngs(1))", "it.state"),
        ("two", "return scaled(self.l(x))", "return self.l(x)", "mine.Two.__call__"),
        ("tree", "jnp.ones(2)", "2 * jnp.ones(2)", "it.w"),
        ("tree", "self.w @ x", "x @ self.w", "mine.Tree.__call__"),
        ("gradient", "x + 1 ", "x + 2 ", "mine.far"),
    ],
)
def test_a_change_is_noticed(write: Any, part: str, before: str, after: str, told: str) -> None:
    one = known(getattr(write(), part))
    found = lines(one, known(getattr(write((before, after)), part)))
    assert found, "unnoticed"
    assert any(told in line for line in found), found


def test_what_changes_nothing_is_not_noticed(write: Any) -> None:
    """Another place in the file, other functions, a comment outside: parts are known by what they reach."""
    one = {part: known(getattr(write(), part)) for part in PARTS}
    moved = write(("RATE = 0.5\n", "\n# a line\nRATE = 0.5\n"), ("x - 1\n", "x - 1\n\nOTHER = 1\n"))
    assert {part: lines(one[part], known(getattr(moved, part))) for part in PARTS} == {part: [] for part in PARTS}


@pytest.mark.slow
def test_another_process_knows_the_same(write: Any, tmp_path: pathlib.Path) -> None:
    mine = write()
    code = (
        "import json, sys, mine; from fedjax_sim.core.own import known; "
        f"print(json.dumps({{part: known(getattr(mine, part)) for part in {PARTS}}}))"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu", "HOME": "/tmp"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    there = json.loads(done.stdout)
    here = json.loads(json.dumps({part: known(getattr(mine, part)) for part in PARTS}))
    assert {part: lines(there[part], here[part]) for part in PARTS} == {part: [] for part in PARTS}


def test_equal_optimisers_are_the_same_and_numbers_count() -> None:
    assert known(optax.adamw(0.1)) == known(optax.adamw(0.1))
    assert known(optax.adamw(0.1)) != known(optax.adamw(0.1, b1=0.8))
    assert known(optax.sgd(0.1)) != known(optax.sgd(0.1, momentum=0.9))


def test_a_file_that_was_edited_since_is_not_taken_for_what_runs(write: Any, tmp_path: pathlib.Path) -> None:
    mine = write()
    one = known(mine.scaled)
    (tmp_path / "mine.py").write_text(MINE.replace("x + 1 ", "x + 2 "))
    found = known(mine.scaled)
    assert found["code"]["mine.scaled"] == one["code"]["mine.scaled"]  # as it is in the file, if elsewhere
    assert found["code"]["mine.far"].startswith("bytecode ")
    assert found["python"] == "{}.{}".format(*sys.version_info)


def test_without_source_bytecode_is_compared_in_one_version_of_python_alone() -> None:
    space: dict[str, Any] = {"__name__": "prompt"}
    exec("def f(x): return x + 1\ndef g(x): return x + 1\ndef h(x): return x + 2", space)
    one, other, third = (known(space[name]) for name in "fgh")
    assert source(space["f"].__code__) is None
    assert one["code"]["prompt.f"] == other["code"]["prompt.g"] != third["code"]["prompt.h"]
    elsewhere = {**one, "python": "2.7", "code": {"prompt.f": "bytecode 0"}}
    (line,) = lines(elsewhere, one)
    assert line == (
        "it: prompt.f cannot be compared: in the checkpoint it had no source, and bytecode is of one version of Python "
        "(2.7)"
    )


def test_several_lambdas_in_a_line_are_told_apart() -> None:
    one, other = (lambda x: x + 1), (lambda x: x - 1)  # fmt: skip
    assert source(one.__code__) == "lambda x: x + 1"
    assert source(other.__code__) == "lambda x: x - 1"
    several = functools.reduce(
        lambda a, b: a
        + b, [1, 2], 0
    )  # fmt: skip
    assert several == 3


def test_a_body_on_several_lines_is_whole() -> None:
    function = [
        lambda a, b: a
        - b
    ][0]  # fmt: skip
    assert source(function.__code__) == "lambda a, b: a\n        - b"


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (functools.partial(print, threading.Lock()), "an object of _thread.lock, which is neither a value nor code"),
        (lambda lock=LOCK: lock, "a default of it is an object of _thread.lock"),
        (np.array([object()]), "an array of objects"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "a masked one"),
        ((x for x in ()), "an object of generator"),
    ],
)
def test_what_cannot_be_known(part: Any, why: str) -> None:
    with pytest.raises(Unknown, match=why):
        known(part)


def test_traced_values_cannot_be_known() -> None:
    def inside(rate: jax.Array) -> jax.Array:
        with pytest.raises(Unknown, match="rate of it is a traced value"):
            known(lambda x: rate * x)
        return rate

    jax.eval_shape(inside, 1.0)


class Cached:
    """An object that computes something once."""

    @functools.cached_property
    def table(self) -> list[int]:
        return [1, 2]


def test_a_cache_that_was_filled_is_no_change() -> None:
    cached = Cached()
    before = known(cached)
    assert cached.table == [1, 2]
    assert known(cached) == before


def test_what_refers_to_itself_has_an_end() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert known(loop)["value"] == [1, {"again": 1}]


def test_packages_are_known_by_their_names() -> None:
    assert origin(nn.Dense.__module__) == "flax"
    assert origin("json") == "python"
    assert origin("fedjax_sim.models") == "fedjax_sim"
    assert origin("scipy.special") is None or origin("scipy").startswith("scipy ")
    assert origin(__name__, __file__) is None
    assert known(jnp.tanh)["code"] == {}


def test_by_names_alone_the_values_count_still(write: Any) -> None:
    def described(part: Any) -> dict[str, Any]:
        return {"it": {"opaque": "mine.Net", "known": known(part)}}

    changes: list[list[tuple[str, str]]] = [[], [("x + 1 ", "x + 2 ")], [("Net(4)", "Net(5)")]]
    one, edited, wider = (described(write(*each).net) for each in changes)
    assert differences(one, edited)
    assert differences(*by_names_alone(one, edited)) == []
    assert differences(*by_names_alone(one, wider)) == ["it.width: 4 in the checkpoint, 5 now"]
    assert differences(*by_names_alone({"it": {"opaque": "mine.Net"}}, one)) == []
