"""Every Python block of the README and the docs runs; the table of all methods agrees with the code."""

import dataclasses
import importlib.util
import inspect
import linecache
import pathlib
import re
import traceback
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.algorithms import Algorithm, Client, FedRoD, Partial, Wrapper
from fedjax_sim.algorithms.contract import received
from fedjax_sim.algorithms.heterofl import Widths
from fedjax_sim.algorithms.wrapper import encoded, uploaded
from fedjax_sim.core import descriptions
from fedjax_sim.core.trees import size_in_bytes
from tests.algorithms.test_compression import Squares

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    """The Python blocks, each after as many empty lines as bring it to its place in the page (for tracebacks)."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in found]


@pytest.mark.docs
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    descriptions.all_registered()  # what is imported within the test is forgotten with it
    monkeypatch.setattr(descriptions, "_FACTORIES", dict(descriptions._FACTORIES))
    scope = {"__name__": page.stem}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), scope)


def test_layers_that_are_named_are_made_in_their_order():
    """Flax numbers ``Dense(10)(Dense(16)(x))`` from the outside, so that ``Dense_1`` is not the head."""
    notebooks = [path.read_text(encoding="utf-8").replace("\\", "") for path in (ROOT / "notebooks").glob("*.ipynb")]
    for code in ["".join(blocks(page)) for page in PAGES] + notebooks:
        assert '"Dense_' not in code or not re.search(r"nn\.Dense\(.*\)\(.*nn\.Dense\(", code)


def mistakes(page):
    """The blocks of a page that begin with ``py``, which must fail, and what the page says is shown of each."""
    text = page.read_text(encoding="utf-8")
    return dict(re.findall(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.mark.docs
@pytest.mark.parametrize("page", [page for page in PAGES if mistakes(page)], ids=lambda page: page.name)
def test_what_is_shown_of_mistakes_is_what_is_shown(page):
    """The end of the traceback, but for the line that says that JAX has left out frames; ``...`` is any text."""
    scope = {"__name__": page.stem}
    assert page.read_text(encoding="utf-8").count("```py\n") == len(mistakes(page))
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), scope)
    for block, shown in mistakes(page).items():
        linecache.cache["script.py"] = (len(block), None, block.splitlines(keepends=True), "script.py")
        with pytest.raises(Exception) as caught:
            exec(compile(block, "script.py", "exec"), scope)
        lines = traceback.format_exception_only(caught.value)
        said = "".join(line for line in lines if line.strip("-\n") and "JAX has removed" not in line)
        wanted = re.escape(" ".join(shown.split())).replace(re.escape("..."), ".*")
        assert re.fullmatch(wanted, " ".join(said.split())), said


def test_links_point_at_files():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert f"]({page.relative_to(ROOT).as_posix()})" in text, page.name


class Row(NamedTuple):
    """A line of the table of all methods."""

    name: str
    paper: str
    round: str
    state: str
    models: str
    options: str


def table():
    section = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("\n## ")[0]
    lines = re.findall(r"^\| `\w+` \|.*$", section, re.MULTILINE)
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def options(row):
    return re.findall(r"`(\w+)`", row.options)


def factory_of(row):
    return descriptions._FACTORIES[f"algorithm.{row.name.strip('`')}"]


def made_of_records():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "site" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    return tables


def test_the_readme_installs_from_the_repository_where_it_has_an_address():
    install = made_of_records()._install
    assert any("@ git+https://example.org/r'" in line for line in install("https://example.org/r"))
    assert not any("git+" in line for line in install(""))


def test_what_is_made_of_the_records_is_as_they_say():
    """``make methods`` writes it."""
    tables = made_of_records()
    for file, make in tables.MADE:
        text = file.read_text(encoding="utf-8")
        assert make(text) == text, f"{file.name}: run make methods"
    names = sorted(name.partition(".")[2] for name in tables._OWN)
    assert sorted(row.name.strip("`") for row in table()) == names
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert sorted(line.split("`")[1] for line in readme if line.startswith("| `")) == names
    assert len(readme) < 200


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_options_are_the_constructor_s(row):
    common = {field.name for base in (Algorithm, Wrapper) for field in dataclasses.fields(base)}
    own = {field.name for field in dataclasses.fields(made(row))} - common
    assert own <= set(options(row)) <= set(inspect.signature(factory_of(row)).parameters)


SEVERAL = ("`fedem`", "`hypcluster`")  # models; `ifca` is their like, tests/clients/test_system_costs.py has the bytes


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=pytest.mark.slow if row.name in SEVERAL else ()) for row in table()]
)
def test_what_is_kept_and_sent(row):
    """Cells read "2", "none" or "1 + a scalar"; "(2 with `option`)" is what they are with that option set."""
    if isinstance(made(row), Partial | FedRoD | Widths):
        return  # parameters have names in test_partial.py, test_personal_methods.py and test_cluster_methods.py
    if made(row).requires.classes:
        return  # of a task with classes tests/clients/test_system_costs.py counts the bytes
    if isinstance(made(row), Wrapper):
        check_wrapper(row)
        return
    kept, down, up = traffic(made(row))
    check(row, kept, down, up)
    for option in set(re.findall(r"with `(\w+)`\)", row.state + row.models)):
        check(row, *traffic(made(row, **{option: True})), option=option)


def check_wrapper(row):
    """Cells read "the base's", with "+ 1" model kept, "+ a scalar" sent, or ", compressed" for fewer bytes up."""
    method = made(row)
    own, base = exchanged(method), exchanged(method.base)
    kept, down, up = (mine - theirs for mine, theirs in zip(own, base, strict=True))
    assert row.state.partition(" (")[0] == "the base's" + (f" + {kept}" if kept else "")
    numbers = 0 < max(down, up) < 2 * 8  # one each way at most, in double precision
    assert row.models == "the base's" + (", compressed" if up < 0 else " + a scalar" if numbers else "")
    assert numbers or max(down, up) <= 0


def exchanged(method):
    """(models kept of a client, bytes down, bytes up) of a method of one exchange."""
    found = []

    def exchange():  # of which shapes are all that is read
        client = one_client(lambda tree: tree)
        sent, c_i = method.send(method.init(PARAMS, SHARES)), method.init_client(PARAMS)
        delta, new, notes = encoded(method, PARAMS, sent, c_i, client)
        messages = method.finish(delta, PARAMS, sent, new, client)[0] | notes
        found.extend((count(c_i)[0], size_in_bytes(received(sent, 1)), uploaded(method, messages, PARAMS)))

    jax.eval_shape(exchange)
    return tuple(found)


def check(row, kept, down, up, option=None):
    state, models = read(row.state, option), read(row.models, option)
    assert described(state) == kept, row.state
    assert tuple(described(side) for side in models.split("/")) == (down, up), row.models


def read(cell, option):
    """The part of a cell that holds by default, or with ``option``."""
    default, _, rest = cell.partition(" (")
    variant = re.search(rf"^(.*) with `{option}`\)$", rest)
    return variant[1] if variant else default


def described(text):
    models, plus, _ = text.strip().partition(" + ")
    return 0 if models == "none" else int(models), bool(plus)


PARAMS = {"kernel": jnp.zeros((6, 5)), "bias": jnp.zeros((7,))}
SHARES = jnp.full((3,), 1 / 3)


def made(row, **arguments):
    parameters = inspect.signature(factory_of(row)).parameters
    arguments = {**dict.fromkeys({"patterns", "head"} & parameters.keys(), "bias"), **arguments}
    if "public" in parameters:
        arguments = {"public": fjs.datasets.from_clients([{"x": np.zeros((2, 3))}]), **arguments}
    if row.name == "`fedlopt`":
        arguments = {"server_optimizer": fjs.optim.learned(dispersion=True), **arguments}
    if "base" in parameters:
        return factory_of(row)(fjs.fedavg(client_optimizer=fjs.optim.sgd(0.1)), **arguments)
    return factory_of(row)(client_optimizer=fjs.optim.sgd(0.1), **arguments)


def traffic(method):
    """(state of a client, what it receives, what it sends in a round), each as (models, whether scalars too).

    Messages count by their rank: one that is a multiple of another need not be sent, nor one that is another's square.
    Clients that hear of the new model receive its change besides.
    """
    rng = np.random.default_rng(0)

    def random(tree):
        return jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.5, 1.5, jnp.shape(leaf)), jnp.float32), tree)

    # What is drawn takes its place: no program is compiled for what the method begins with.
    server, kept = jax.eval_shape(lambda: (method.init(PARAMS, SHARES), method.init_client(PARAMS)))
    heard = [getattr(server, name) for name in method.requires.hears]

    def reported(phase):
        shapes = jax.eval_shape(lambda server: received(phase.send(server), 1), server)
        sent, c_i, client = random(shapes), random(kept), one_client(random)
        if phase.requires.survey:
            client = client._replace(survey=random(phase.survey(Squares(), sent, c_i, client)))
        y = random(jax.eval_shape(phase.begin, sent, c_i, client))
        delta = phase.change(y, sent, c_i, client)
        return sent, {name: one.value for name, one in phase.finish(delta, y, sent, c_i, client)[0].items()}

    told, found = zip(*jax.jit(lambda: [reported(phase) for phase in method.phases()])(), strict=True)
    messages = [{name: one for name, one in of.items() if not is_square(one, of.values())} for of in found]
    return count(kept), count([heard, told]), (sum(map(rank, messages)), count(messages)[1])


def is_square(value, others):
    """Whether a message is that of another in square, entry by entry."""

    def same(one, other):
        return jax.tree.all(jax.tree.map(lambda a, b: np.shape(a) == np.shape(b) and np.allclose(a, b), one, other))

    alike = [other for other in others if jax.tree.structure(other) == jax.tree.structure(value)]
    return any(same(value, jax.tree.map(np.square, other)) and not same(value, other) for other in alike)


def one_client(filled):
    """A client whose numbers are ``filled(zeros)``."""
    zero, scalars = jnp.float32(0.0), {"kernel": jnp.float32(0.0), "bias": jnp.float32(0.0)}
    return Client(
        index=jnp.int32(1), id=jnp.int32(1), size=jnp.int32(4), steps=jnp.int32(3), weight=filled(zero),
        share=filled(zero), learning_rate=jnp.float32(1.0), slope=filled(scalars), key=jax.random.key(0),
        step_size=filled(scalars), relative_size=filled(zero),
    )  # fmt: skip


def count(tree):
    """(models, whether there are other numbers): leaves like those of PARAMS, one or K side by side; the rest."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    held = [[models_in(shape, leaf) for shape in shapes] for leaf in PARAMS.values()]
    totals = [sum(numbers) for numbers in held]
    return min(totals), max(totals) > min(totals) or not all(map(any, zip(*held, strict=True)))


def models_in(shape, leaf):
    """How many arrays like ``leaf`` there are in one of this shape."""
    if shape == leaf.shape:
        return 1
    return shape[0] if shape[1:] == leaf.shape else 0


def rank(messages):
    kernel = PARAMS["kernel"]
    flat = [np.reshape(leaf, (-1, kernel.size)) for leaf in jax.tree.leaves(messages) if models_in(leaf.shape, kernel)]
    return int(np.linalg.matrix_rank(np.concatenate(flat), tol=1e-3))
