"""The pages of the reference, made from the package as it is: every public name once, with its docstring.

A public name is one of ``fedjax_sim.__all__``, or of a public module: of its ``__all__``, or, where it has none, what
is defined in it without a leading underscore. Names are looked up, not parsed: they are loaded lazily, factories are
made when a module is imported, and a method has the name of its file (``algorithms.fedavg``).
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fedjax_sim

sys.path.insert(0, str(Path(__file__).parent))
import docstrings

TOP = "fedjax_sim"


class Entry(NamedTuple):
    """A public name.

    Attributes:
      module: where it is public: the dotted name of a module without ``fedjax_sim``, or ``""`` for the package itself.
      name: its last part.
      value: the object.
      exported: whether ``fjs.<name>`` is the same object.
    """

    module: str
    name: str
    value: Any
    exported: bool

    @property
    def shown(self) -> str:
        """What a user writes."""
        return ".".join(part for part in ("fjs", "" if self.exported else self.module, self.name) if part)

    @property
    def page(self) -> str:
        return f"reference/{self.module or 'runs'}.md"


def public_names(module: types.ModuleType) -> list[str]:
    """The public names of a module, submodules among them."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name, value in vars(module).items() if not name.startswith("_") and _defined_in(module, value)]


def _defined_in(module: types.ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", None) == module.__name__ and not isinstance(value, typing.TypeVar)


@functools.cache
def modules() -> dict[str, types.ModuleType]:
    """The public modules by their dotted names without ``fedjax_sim``; the package itself is ``""``."""
    found = {"": fedjax_sim}
    for name, module in list(found.items()):
        found |= dict(_below(name, module))
    return found


def _below(prefix: str, module: types.ModuleType) -> Iterator[tuple[str, types.ModuleType]]:
    for name in public_names(module):
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            full = f"{prefix}.{name}".strip(".")
            yield full, value
            yield from _below(full, value)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every public name that is not a module, once: in the module whose it is, else in the package itself."""
    top = {name: getattr(fedjax_sim, name) for name in fedjax_sim.__all__}
    inside = [
        Entry(path, name, value, exported=top.get(name) is value)
        for path, module in modules().items()
        for name in (public_names(module) if path else ())
        if not isinstance(value := getattr(module, name), types.ModuleType)
    ]
    placed = {entry.name for entry in inside if entry.exported}
    outside = [
        Entry("", name, value, exported=True)
        for name, value in top.items()
        if name not in placed and not isinstance(value, types.ModuleType)
    ]
    return (*outside, *inside)


def documentation(entry: Entry) -> str:
    """The docstring of a public name; that of a value is the string below its assignment. Empty where there is none."""
    value = entry.value
    if inspect.isclass(value):
        return inspect.cleandoc(value.__doc__ or "") if not _made_up(value) else ""
    if inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    return _below_assignment(entry)


def _made_up(cls: type) -> bool:
    """Whether a class has only the docstring that ``dataclass`` or ``NamedTuple`` writes: its signature."""
    return (cls.__doc__ or "").startswith(f"{cls.__name__}(")


def _below_assignment(entry: Entry) -> str:
    """A value says not where it is from, so all modules of the package that its own one imports it from are asked."""
    home = modules()[entry.module].__name__
    home = home.rpartition(".")[0] or home  # and those beside it
    for module in [sys.modules[name] for name in sorted(sys.modules) if name.startswith(home)]:
        file = getattr(module, "__file__", None)
        if file and vars(module).get(entry.name) is entry.value:
            found = _strings_below(file).get(entry.name)
            if found:
                return inspect.cleandoc(found)
    return ""


@functools.cache
def _strings_below(file: str) -> dict[str, str]:
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    found = {}
    for statement, after in itertools.pairwise(body):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found |= {target.id: after.value.value for target in targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def links() -> dict[str, str]:
    """Where a name is described, ``page#anchor``, by what a user writes: ``fjs.fedavg``, ``fjs.History.final``."""
    found = {f"fjs.{path}": f"reference/{path}.md" for path in modules() if path}
    for entry in entries():
        found[entry.shown] = found[f"fjs.{entry.module}.{entry.name}"] = f"{entry.page}#{entry.name}"
        found |= {f"{entry.shown}.{name}": f"{entry.page}#{entry.name}.{name}" for name, _ in methods(entry)}
    return found


def methods(entry: Entry) -> list[tuple[str, Any]]:
    """The methods and properties of a class that have a docstring, each with its object; [] for all but classes."""
    if not inspect.isclass(entry.value) or issubclass(entry.value, BaseException):
        return []
    return [
        (name, member)
        for name, member in vars(entry.value).items()
        if (not name.startswith("_") or name in ("__getitem__", "__call__")) and _kind(member) and member.__doc__
    ]


def _kind(member: Any) -> bool:
    return isinstance(member, (property, functools.cached_property, classmethod, staticmethod, types.FunctionType))


def places() -> list[str]:
    """The places of the pages, without the index."""
    return [f"reference/{path or 'runs'}.md" for path in modules()]


def title(place: str) -> str:
    """What a page is called in the navigation."""
    path = place.removeprefix("reference/").removesuffix(".md")
    return "Runs, tasks, descriptions" if path == "runs" else path


def pages() -> dict[str, str]:
    """The pages of the reference as Markdown, by their places below ``docs/``."""
    by_module: dict[str, list[Entry]] = {path: [] for path in modules()}
    for entry in entries():
        by_module[entry.module].append(entry)
    made = {f"reference/{path or 'runs'}.md": _page(path, found) for path, found in by_module.items()}
    return {"reference/index.md": _index(by_module), **made}


def _index(by_module: dict[str, list[Entry]]) -> str:
    lines = ["# Reference", "", "Every public name, made from the docstrings. `import fedjax_sim as fjs`.", ""]
    for path, found in by_module.items():
        lines += [f"## [{_title(path)}]({path or 'runs'}.md)", ""]
        lines += ["| | |", "|---|---|"] * bool(found)
        lines += [f"| [`{e.shown}`]({e.page.partition('/')[2]}#{e.name}) | {_summary(e)} |" for e in found]
        lines += [""]
    return "\n".join(lines)


def _title(path: str) -> str:
    return f"`fjs.{path}`" if path else "Runs, tasks, descriptions"


def _summary(entry: Entry) -> str:
    return docstrings.inline(documentation(entry).partition("\n\n")[0].replace("\n", " ")).replace("|", "\\|")


def _page(path: str, found: list[Entry]) -> str:
    parts = [f"# {_title(path)}"]
    if path:
        parts.append(docstrings.prose(inspect.getdoc(modules()[path]) or ""))
    below = [other for other in modules() if path and other.rpartition(".")[0] == path]
    if below:
        parts.append("Modules: " + ", ".join(f"[`fjs.{other}`]({other}.md)" for other in below) + ".")
    factories = {getattr(e.value, "__wrapped__", None): e for e in found if not inspect.isclass(e.value)}
    classes = [entry for entry in found if inspect.isclass(entry.value)]
    made = [entry for entry in classes if entry.value in factories and not methods(entry)]
    functions_first = sorted(found, key=lambda entry: inspect.isclass(entry.value))
    parts += [_entry(entry, factories) for entry in functions_first if entry not in made]
    if made:
        parts.append("## Classes\n\nWhat the functions above make. A class has its function's arguments as attributes.")
        parts.append("\n".join(map(_line, made, (factories[entry.value] for entry in made))))
    return "\n\n".join(parts) + "\n"


def _line(entry: Entry, maker: Entry) -> str:
    return f'- <a id="{entry.name}"></a>`{entry.shown}`: of [`{maker.shown}`](#{maker.name})'


def _entry(entry: Entry, factories: dict[Any, Entry]) -> str:
    value = entry.value
    maker = factories.get(value) if inspect.isclass(value) else None
    lines = [f"## `{entry.shown}` {{ #{entry.name} }}"]
    if maker is not None:
        lines.append(f"The class of what [`{maker.shown}`](#{maker.name}) makes: its arguments are the attributes.")
    else:
        lines.append(docstrings.signature(entry.shown, value) if callable(value) else "")
        lines.append(docstrings.rendered(documentation(entry)))
    for name, member in methods(entry):
        lines.append(f"### `{entry.name}.{name}` {{ #{entry.name}.{name} }}")
        function = getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType):
            lines.append(docstrings.signature(name, function, drop_first=not isinstance(member, staticmethod)))
        lines.append(docstrings.rendered(inspect.cleandoc(member.__doc__ or "")))
    return "\n\n".join(line for line in lines if line)
