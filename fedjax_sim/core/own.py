"""What is known of one's own parts: values, and all code of one's own that they reach, so that a change is noticed.

A part that no registered factory made (a flax model, a function, an optimiser from optax, a class of one's own) cannot
be built from JSON, but it can be told whether another one is the same. :func:`known` writes down what it is made of, as
:func:`copy.copy` sees it, and a checksum for every function and class of one's own that its code names, however far
away. Code of an installed package is known by the package's name; the versions of those that compute stand in the
run's environment, of others beside the name.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import linecache
import os
import sys
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.sources import bytecode, checksum, nested, source

_PACKAGE = __name__.partition(".")[0]
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_OF_ENVIRONMENT = (_PACKAGE, "jax", "jaxlib", "numpy", "flax", "optax")  # a run's environment has their versions
_OF_LINEN = ("parent", "name", "scope", "_state", "_parent_ref", "_id")  # of a module's attributes: where it stands
_LONG = 500  # characters of a value that is written down; of longer ones the checksum is
_MOST = 2_000  # pieces of code: who reaches more has reached what is not the part's
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


class Unknown(ValueError):
    """A part of which it cannot be told whether another one is the same; the message says what in it, and why."""


def known(part: Any) -> dict[str, Any]:
    """What a part is made of, as JSON: ``{"value": ..., "code": {name: checksum or short value}}``.

    ``"python"`` is there where some code has no source at hand, as at a prompt: its bytecode is of that version alone.

    Raises:
      Unknown: something in it is neither a value nor code: an open file, a lock, a traced value.
    """
    walk = _Walk()
    try:
        value = walk.value(part)
    except Unknown:
        raise
    except RecursionError:
        raise Unknown("it refers to itself, or is nested too deeply") from None
    except Exception as error:  # whatever a class of one's own raises when it is asked for its state
        raise Unknown(str(error) or type(error).__name__) from error
    python = {"python": "{}.{}".format(*sys.version_info)} if walk.by_bytecode else {}
    return {"value": _short(value), "code": dict(sorted(walk.code.items())), **python}


def origin(module: str, file: str = "") -> str | None:
    """The package that code comes from, with its version where the environment has it not; None for one's own."""
    top = module.partition(".")[0]
    if top == _PACKAGE or file.startswith(_FOLDER):  # frames that JAX has kept have no module
        return _PACKAGE
    if not file or file.startswith("<"):
        file = getattr(sys.modules.get(module), "__file__", None) or ""
    if {"site-packages", "dist-packages"} & set(file.replace("\\", "/").split("/")):
        return top if top in _OF_ENVIRONMENT else f"{top} {_version(top)}"
    return "python" if top in sys.stdlib_module_names and top != "__main__" else None


@functools.cache
def _version(top: str) -> str:
    names = importlib.metadata.packages_distributions().get(top, [top])
    try:
        return importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        value = {key: _short(item) for key, item in value.items()}
    return value if len(json.dumps(value)) <= _LONG else {"sha256": checksum(value)}


class _Walk:
    """A walk through a part; ``code`` is what it has met on its way."""

    def __init__(self) -> None:
        self.code: dict[str, Any] = {}
        self.by_bytecode = False
        self._globals: set[str] = set()
        self._met: dict[Any, str] = {}  # functions' code and classes, and what they are called in `code`
        self._inside: list[int] = []  # ids of what is being looked at, outermost first
        self._held: list[Any] = []  # what was made on the way, so that no id is taken again

    def value(self, value: Any, path: str = "it") -> Any:
        """JSON that is equal for equal values; messages call it ``path``."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if id(value) in self._inside:
            return {"again": len(self._inside) - self._inside.index(id(value))}
        self._inside.append(id(value))
        self._held.append(value)
        try:
            return self._composed(value, path)
        finally:
            self._inside.pop()

    def _composed(self, value: Any, path: str) -> Any:
        if isinstance(value, jax.core.Tracer):
            raise Unknown(f"{path} is a traced value")
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return _array(value, path)
        if type(value) in (list, tuple):
            return [self.value(item, f"{path}[{number}]") for number, item in enumerate(value)]
        if type(value) in (set, frozenset):
            return {"set": sorted((self.value(item, path) for item in value), key=json.dumps)}
        if type(value) is dict:
            if all(type(key) is str for key in value):
                return {key: self.value(item, f"{path}[{key!r}]") for key, item in value.items()}
            return {"pairs": [[self.value(k, path), self.value(v, f"{path}[{k!r}]")] for k, v in value.items()]}
        if isinstance(value, (bytes, bytearray, complex, type(...), type(NotImplemented))):
            return {type(value).__name__: value.hex() if isinstance(value, (bytes, bytearray)) else repr(value)}
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.MethodType):
            return {
                "method": self.value(value.__func__, path),
                "of": self.value(value.__self__, f"the object of {path}"),
            }
        if isinstance(value, (staticmethod, classmethod)):
            return {type(value).__name__: self.value(value.__func__, path)}
        if isinstance(value, functools.cached_property):
            return {"cached": self.value(value.func, path)}
        if isinstance(value, property):
            return {"property": [self.value(one, path) for one in (value.fget, value.fset, value.fdel)]}
        if isinstance(value, _DESCRIPTORS):
            return {"slot": value.__name__}
        if isinstance(value, jax.tree_util.PyTreeDef):
            if " at 0x" in str(value):
                raise Unknown(f"{path} is a tree's structure that has an object without a name in it")
            return {"structure": str(value)}
        return self._object(value, path)

    def _object(self, value: Any, path: str) -> Any:
        """Any other object: what :func:`copy.copy` would make one like it of."""
        nnx = sys.modules.get("flax.nnx")
        # flax 0.10 calls it Object
        if nnx is not None and isinstance(value, (getattr(nnx, "Pytree", None) or nnx.Object, nnx.Variable)):
            graph, state = nnx.split(value)
            return {"nnx": self.value(graph, path), "state": self.value(nnx.to_pure_dict(state), path)}
        cls = type(value)
        if hasattr(cls, "as_given"):  # of ours, around what was given
            return self.value(value.as_given(), path)
        if isinstance(value, nn.Module):
            fields = {name: item for name, item in vars(value).items() if name not in _OF_LINEN}
            return {"object": self._class(cls), "fields": self._each(fields, path)}
        if cls.__module__.partition(".")[0] == "jaxlib" and hasattr(value, "__wrapped__"):  # jitted
            return {"jit": self.value(value.__wrapped__, path)}
        name, module = getattr(value, "__name__", None), str(getattr(value, "__module__", ""))
        package = origin(module) if module in sys.modules else None
        if package is not None and isinstance(name, str) and getattr(sys.modules[module], name, None) is value:
            return {"global": f"{module}.{name}", "from": package}
        reduce = copyreg.dispatch_table.get(cls)
        try:
            reduced: Any = value.__reduce_ex__(2) if reduce is None else reduce(value)
        except TypeError:
            of = f"{cls.__module__}.{cls.__qualname__}".replace("builtins.", "")
            raise Unknown(f"{path} is an object of {of}, which is neither a value nor code") from None
        if isinstance(reduced, str):
            inner = getattr(value, "__wrapped__", None)  # cached functions
            return {"global": f"{module}.{reduced}"} if inner is None else self.value(inner, path)
        make, given, state, items, pairs = (*reduced, None, None, None)[:5]
        told: dict[str, Any] = {}
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            told["object"], given = self._class(given[0]), given[1:]
        else:
            told["object"] = self.value(make, path)
            self._class(cls)
        if given:
            told["given"] = [self.value(item, path) for item in given]
        if isinstance(state, dict):
            kept = {k: v for k, v in state.items() if not isinstance(getattr(cls, k, None), functools.cached_property)}
            told |= {"fields": self._each(kept, path)} if kept else {}
        elif state is not None:
            told["fields"] = self.value(state, path)
        for name, several in (("items", items), ("pairs", pairs)):
            if several is not None:
                told[name] = [self.value(list(one) if name == "pairs" else one, path) for one in several]
        return told

    def _each(self, fields: dict[Any, Any], path: str) -> dict[str, Any]:
        return {str(name): self.value(item, f"{path}.{name}" if path != "it" else f"its {name}")
                for name, item in fields.items()}  # fmt: skip

    def _function(self, function: types.FunctionType, path: str) -> dict[str, Any]:
        """Its name, its code if it is one's own, and what it was made with."""
        code = function.__code__
        module = str(function.__globals__.get("__name__", "?"))
        written = code.co_filename == "<string>" and "__create_fn__" in code.co_qualname  # by dataclasses
        package = "python" if written else origin(module, code.co_filename)
        told: dict[str, Any] = {"function": f"{module}.{code.co_qualname}"}
        if package is None:
            told["function"] = self._code(function, told["function"])
        else:
            told["from"] = package
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        closure = {name: self._cell(cell, f"{name} of {path}") for name, cell in cells}
        told |= {"closure": closure} if closure else {}
        if package is None or "<locals>" in code.co_qualname:
            of = f"a default of {path}"
            defaults = [self.value(one, of) for one in function.__defaults__ or ()]
            told |= {"defaults": defaults} if defaults else {}
            told |= {"keywords": self.value(function.__kwdefaults__, of)} if function.__kwdefaults__ else {}
            own = {name: item for name, item in vars(function).items() if not name.startswith("__")}
            told |= {"attributes": self._each(own, path)} if own else {}
        return told

    def _cell(self, cell: types.CellType, path: str) -> Any:
        try:
            content = cell.cell_contents
        except ValueError:
            return {"empty": True}
        return self.value(content, path)

    def _named(self, thing: Any, name: str) -> tuple[str, bool]:
        """What a function's code or a class is called, and whether it was met before; equal names get numbers."""
        if thing in self._met:
            return self._met[thing], True
        count = sum(one == name or one.startswith(f"{name} #") for one in self._met.values())
        self._met[thing] = f"{name} #{count + 1}" if count else name
        if len(self._met) > _MOST:
            raise Unknown(f"it reaches more than {_MOST} functions and classes")
        return self._met[thing], False

    def _code(self, function: types.FunctionType, name: str) -> str:
        """Notes a function of one's own, and what it names in its module and in modules of one's own."""
        code = function.__code__
        name, met = self._named(code, name)
        if met:
            return name
        text = source(code)
        self.by_bytecode |= text is None
        self.code[name] = f"bytecode {bytecode(code)}" if text is None else checksum(text)
        space, inner = function.__globals__, list(nested(code))
        attributes = {name for one in inner for name in one.co_names}
        for one in dict.fromkeys(
            (step.opname == "IMPORT_NAME", step.argval)
            for each in inner
            for step in dis.get_instructions(each)
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")
        ):
            imported, key = one
            if imported:
                self._imported(key, str(space.get("__package__") or ""), attributes)
            elif key in space:
                self._global(f"{space.get('__name__', '?')}.{key}", space[key], attributes)
        return name

    def _global(self, name: str, value: Any, attributes: set[str]) -> None:
        """Notes what a name of a module of one's own stands for, unless that is the function or class of this name."""
        if isinstance(value, types.ModuleType):
            self._attributes(value, attributes)
        elif name not in self._globals:
            self._globals.add(name)  # it may name itself
            told = self.value(value, name)
            if not isinstance(told, dict):
                self.code[name] = _short(told)
            elif told not in ({"function": name}, {"class": name}) and "again" not in told:
                self.code[f"{name} (value)"] = told if len(json.dumps(told)) < _LONG // 4 else checksum(told)

    def _attributes(self, module: types.ModuleType, attributes: set[str]) -> None:
        """Notes of a module of one's own what code may take from it: any of these names."""
        name, inside = module.__name__, id(module) in self._inside
        if inside or origin(name, getattr(module, "__file__", None) or "") is not None:
            return
        self._inside.append(id(module))
        for attribute in sorted(attributes & vars(module).keys()):
            self._global(f"{name}.{attribute}", vars(module)[attribute], attributes)
        self._inside.pop()

    def _imported(self, name: str, package: str, attributes: set[str]) -> None:
        """Notes what a function takes from a module of one's own that it imports when it is called."""
        parents = [package.rsplit(".", count)[0] for count in range(package.count(".") + 1)] if package else []
        for full in (name, *(f"{parent}.{name}".strip(".") for parent in parents)):
            module = sys.modules.get(full)
            if module is None and (spec := _spec(full)) is not None and origin(full, spec.origin or "") is None:
                module = importlib.import_module(full)
            if module is not None:
                self._attributes(module, attributes)

    def _module(self, module: types.ModuleType) -> dict[str, Any]:
        package = origin(module.__name__, getattr(module, "__file__", None) or "")
        if package is None:
            self.code[module.__name__] = checksum(linecache.getlines(getattr(module, "__file__", None) or ""))
        return {"module": module.__name__, "from": package}

    def _class(self, cls: type) -> dict[str, Any]:
        """Its name; of one's own also what its body made: functions, values, bases. So no source of it is needed."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        package = origin(cls.__module__)
        if package is not None:
            return {"class": name, "from": package}
        name, met = self._named(cls, name)
        if not met:
            told: dict[str, Any] = {"bases": [self.value(base) for base in (*cls.__bases__, type(cls))]}
            linen = issubclass(cls, nn.Module)
            for attribute, item in vars(cls).items():
                if not _made_by_python(attribute, item) and not (linen and attribute in _OF_LINEN):
                    told[attribute] = self.value(item, f"{cls.__qualname__}.{attribute}")
            self.code[name] = checksum(told)
        return {"class": name}


def _array(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        raise Unknown(f"{path} is an array that lies on other processes too")
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": str(value.dtype), "words": _array(jax.random.key_data(value), path)}
    plain = np.asarray(value)
    if plain.dtype.hasobject or isinstance(value, np.ma.MaskedArray):
        raise Unknown(f"{path} is an array of objects, or a masked one")
    data = hashlib.sha256(np.ascontiguousarray(plain).tobytes()).hexdigest()
    return {"array": f"{value.dtype}{list(plain.shape)}", "sha256": data}


def _made_by_python(name: str, item: Any) -> bool:
    """Whether an attribute of a class is none that its body made: Python's own, or a method that dataclasses write."""
    if not (name.startswith("__") and name.endswith("__")):
        return name == "_abc_impl"
    written = getattr(getattr(item, "__code__", None), "co_filename", "") == "<string>"
    functions = (types.FunctionType, staticmethod, classmethod, property)
    return name in ("__repr__", "__str__") or written or not isinstance(item, functions)


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
