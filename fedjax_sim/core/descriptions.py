"""Names and arguments ↔ JSON: every run can be written down and rebuilt.

Whatever a user builds (algorithm, optimiser, cohort, work, batches, layout, model, task, data set) is made by a
*registered factory*. :func:`describe` writes the factory's name and its arguments as plain JSON data and
:func:`build` calls the factory again. Nothing is imported or executed by name: only registered factories can be
built, so a description that comes from a stranger is safe to read.

Bare functions, bare optax objects and models of one's own are accepted everywhere; they are recorded as *opaque*: they
cannot be rebuilt from JSON, but :mod:`fedjax_sim.core.own` says what is known of them, by which they are told again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ParamSpec, Self, TypeVar, dataclass_transform

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedjax_sim.core import classes, fields, own
from fedjax_sim.core.opaque import Given, opaque_parts
from fedjax_sim.core.values import numeric_dtype, shown, suggest, wrong_call

P = ParamSpec("P")
T = TypeVar("T")

_FACTORIES: dict[str, Callable[..., Any]] = {}
MAX_ARRAY = 100_000  # elements of one array argument; above this a description would no longer be something to read


@dataclass_transform(
    field_specifiers=(struct.field, fields.static, fields.leaf, fields.integers, fields.real, fields.count, fields.flag,
                      fields.choice),
    frozen_default=True,
)  # fmt: skip
class Described:
    """A frozen dataclass and pytree that a registered factory makes.

    Real hyper-parameters are leaves (so they can be traced, differentiated and vmapped); what is declared as
    :func:`~fedjax_sim.core.fields.static` is structure, part of the compiled program. :mod:`fedjax_sim.core.fields` has
    declarations that say what values are allowed.

    Subclasses become dataclasses and pytrees by themselves.
    """

    # Not flax.struct.PyTreeNode: of dataclasses registered with jax.tree_util.register_dataclass (JAX 0.10.2) the
    # structures compare equal when the fields do, whatever the classes, and jit may run one's program for another.

    def __init_subclass__(cls, kw_only: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)
        classes.check_annotated(cls)
        if not classes.of_package(cls):
            classes.check_names(cls)
        cls.__setattr__ = _refuse_assignment  # type: ignore[method-assign]  # the dataclass's own names no way out
        _register_pytree(cls)

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in the fields named.

        Raises:
          TypeError: there is no such field.
        """
        known = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        for name in changes:
            if name not in known:
                inner = f"to change what is inside, use fedjax_sim.paths.replace(given, {{{name!r}: value}})"
                hint = inner if "." in name else suggest(name, known)
                raise TypeError(f"{type(self).__name__}.replace(...) has no field {name!r}: {hint}")
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def checked(self) -> Self:
        """Returns this object normalised; raises ``ValueError`` or ``TypeError`` for bad concrete values.

        The fields are checked here; a subclass adds rules of several fields, beside ``super().checked()``.
        Called by the factory, and again by each run, of all its parts: it must refuse or leave alone what it returned
        before. Values that are traced :func:`fedjax_sim.core.values.check_real` passes, and leaves the run a condition.
        """
        fields.check_fields(self, self.factory_name())
        return fields.with_arrays(self, self.factory_name())

    @classmethod
    def factory_name(cls) -> str:
        """What messages call such an object: its factory's name."""
        return str(cls.__dict__.get("_registered_name", cls.__name__)).rpartition(".")[2]


def within(tree: Any) -> Iterator[Described]:
    """All described objects in ``tree``, those inside others too."""
    for node in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Described)):
        if isinstance(node, Described):
            yield node
            yield from within([getattr(node, field.name) for field in dataclasses.fields(node)])  # type: ignore[arg-type]


def is_traced(tree: Any) -> bool:
    """Whether a leaf of it is."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def check_again(tree: Any) -> None:
    """Checks what a run is given, but for what is traced: ``replace`` and the bare class take any value."""
    for one in within(tree):
        if not is_traced(one):
            one.checked()


def _refuse_assignment(self: Any, name: str, value: Any) -> None:
    """In the place of ``__setattr__``: what is built is a value, which programs and descriptions rely on."""
    fix = f"make a copy with another value, changed = given.replace({name}=...)"
    if name not in self.__dataclass_fields__:  # mostly an __init__ of one's own
        fix = f"no field has this name; {name}: Any = ... in the class declares one, an argument without an __init__"
    raise dataclasses.FrozenInstanceError(
        f"{type(self).__name__}.{name} cannot be assigned, objects do not change: {fix}"
    )


def _register_pytree(cls: type[Any]) -> None:
    """Makes a dataclass a pytree node whose leaves are its fields, but for those declared static."""
    leaves = [field.name for field in dataclasses.fields(cls) if field.metadata.get("pytree_node", True)]
    structure = [field.name for field in dataclasses.fields(cls) if field.name not in leaves]
    keys = [jax.tree_util.GetAttrKey(name) for name in leaves]

    def flatten(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(node, name) for name in leaves), tuple(getattr(node, name) for name in structure)

    def flatten_with_keys(node: Any) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        children, aux = flatten(node)
        return tuple(zip(keys, children, strict=True)), aux

    def unflatten(aux: tuple[Any, ...], children: Iterable[Any]) -> Any:
        node = object.__new__(cls)
        node.__dict__.update(zip([*leaves, *structure], [*children, *aux], strict=True))
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def register(name: str, factory: Callable[P, T]) -> Callable[P, T]:
    """Registers ``factory``, a function or class, and returns it.

    Args:
      name: ``"kind.name"``, for instance ``"algorithm.fedavg"``.
      factory: what :func:`build` calls with the described arguments.

    Raises:
      ValueError: the name is taken by another factory.
    """
    known = _FACTORIES.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (factory.__module__, factory.__qualname__):
        raise ValueError(f"the name {name!r} is already registered by {known.__module__}.{known.__qualname__}")
    _FACTORIES[name] = factory
    return factory


def factory(name: str, cls: Callable[P, T]) -> Callable[P, T]:
    """The user-facing factory of a :class:`Described` class: constructs, normalises, checks.

    It is registered under ``name``, ``"kind.name"``, and has the class's signature and documentation. Integers given
    for real hyper-parameters become floats, so that ``mu=1`` and ``mu=1.0`` are one compiled program.
    """
    signature = inspect.signature(cls)

    @functools.wraps(cls, updated=())
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(wrong_call(make.__name__, signature, args, kwargs, error)) from None
        made: Any = cls(*args, **kwargs)
        made = _reals_as_floats(made).checked()
        return made

    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__qualname__ = make.__name__ = name.rpartition(".")[2]
    cls._registered_name = name  # type: ignore[attr-defined]
    register(name, make)
    return make


def recipe(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function that makes a data set, so that what it returns remembers how it was made.

    The memory sits on the returned object alone: a copy with other arrays (``replace``, ``jax.tree.map``) has none
    and describes itself as opaque, because the recipe would no longer be true of it.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> T:
            made = function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            object.__setattr__(made, "_recipe", (name, _as_given(dict(bound.arguments))))
            return made

        return register(name, make)

    return decorate


def _as_given(value: Any) -> Any:
    """Lists, mappings and arrays that can be described as copies: whoever gave them may write into theirs later."""
    if isinstance(value, np.ndarray) and value.size <= MAX_ARRAY:
        return value.copy()
    if isinstance(value, dict):
        return {key: _as_given(item) for key, item in value.items()}
    return [_as_given(item) for item in value] if type(value) in (list, tuple) else value


def describe(obj: Any) -> dict[str, Any]:
    """The JSON description of what a registered factory made: ``{"name": ..., "arguments": {...}}``.

    Other objects are described as ``{"opaque": type or function name, "known": {...}}`` by what they are made of, or
    ``{"opaque": ..., "unknown": why}`` where that cannot be told. ``build(describe(obj))`` makes an equal object
    unless some part is opaque.

    Raises:
      TypeError: a hyper-parameter is traced: a description needs its value.
    """
    described = encode(obj)
    if not isinstance(described, dict) or not ({"name", "opaque"} & described.keys()):
        return {"opaque": _name_of(obj)}
    return described


def build(description: Mapping[str, Any]) -> Any:
    """Rebuilds what :func:`describe` described.

    Nothing but registered factories is called, with what they check. They do what they are for: the description of a
    large data set makes a large data set, or reads one from the data directory.

    Raises:
      ValueError: not a description, an unknown name (the nearest ones are listed), an opaque part, or nested too
        deeply; also, like TypeError, what the factories raise for their arguments.
    """
    if isinstance(description, Given):
        return description.part
    if not isinstance(description, Mapping) or not ({"name", "opaque"} & description.keys()):
        raise ValueError(
            f"not a description: {shown(description)}: give what describe(...) returns, {{'name': ..., ...}}"
        )
    try:
        opaque = opaque_parts(description)
        if opaque:
            raise ValueError(
                f"opaque parts cannot be rebuilt ({'; '.join(opaque)}): they were given as bare objects, which cannot "
                "be made of JSON; use registered factories (or register your own with fedjax_sim.register)"
            )
        return decode(description)
    except RecursionError as error:
        raise ValueError("not a description: it is nested too deeply") from error


def registered(kind: str | None = None) -> list[str]:
    """All registered names, or those of one kind (``"algorithm"``, ``"optim"``, ``"cohort"``, ...)."""
    return sorted(name for name in _FACTORIES if kind is None or name.startswith(kind + "."))


def _reals_as_floats(obj: Any) -> Any:
    def as_float(leaf: Any) -> Any:
        if isinstance(leaf, (int, float, np.integer, np.floating)) and not isinstance(leaf, bool):
            with contextlib.suppress(OverflowError):  # an integer beyond all floats: the object's check refuses it
                return float(leaf)
        return leaf

    changed = {}
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name)
        real = field.metadata.get("pytree_node", True) and not field.metadata.get("integers", False)
        if real and isinstance(value, (int, float, np.generic, dict, list, tuple)):
            changed[field.name] = jax.tree.map(as_float, value)
    return obj.replace(**changed)


def _name_of(obj: Any) -> str:
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    return f"{getattr(named, '__module__', '?')}.{named.__qualname__}"


def encode(value: Any) -> Any:
    """JSON data for numbers, text, arrays, lists, mappings, dtypes and whatever :func:`describe` describes."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic) and value.ndim == 0 and not isinstance(value, np.void):
        return value.item()
    if "_recipe" in getattr(value, "__dict__", {}):
        return _named(*value._recipe)
    if isinstance(value, Described) and "_registered_name" in type(value).__dict__:
        cls: Any = type(value)
        return _named(cls._registered_name, {f.name: getattr(value, f.name) for f in dataclasses.fields(cls) if f.init})
    if isinstance(value, nn.Module) and type(value) in _FACTORIES.values():
        name = next(name for name, factory in _FACTORIES.items() if factory is type(value))
        keys = [field.name for field in dataclasses.fields(value) if field.init]
        return _named(name, {key: getattr(value, key) for key in keys if key not in ("parent", "name")})
    if isinstance(value, jax.core.Tracer):
        raise TypeError("a traced hyper-parameter cannot be described: describe the object outside jit, grad and vmap")
    if isinstance(value, (np.ndarray, jax.Array)):
        if value.size > MAX_ARRAY or jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return {"opaque": f"array {value.dtype}{list(value.shape)}"}
        return {"array": np.asarray(value).tolist(), "dtype": str(value.dtype)}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [encode(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"mapping": {key: encode(item) for key, item in value.items()}}
    if isinstance(value, np.dtype) or (isinstance(value, type) and hasattr(value, "dtype")):
        with contextlib.suppress(TypeError, ValueError):  # another class that happens to have a dtype
            return {"dtype": str(jnp.dtype(value))}
    if getattr(type(value), "known_apart", False):  # a data set: its arrays' checksum is not for every description
        return {"opaque": _name_of(value)}
    try:
        return {"opaque": _name_of(value), "known": own.known(value)}
    except own.Unknown as error:
        return {"opaque": _name_of(value), "unknown": str(error)}


def _named(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "arguments": {key: encode(argument) for key, argument in arguments.items()}}


def decode(value: Any) -> Any:
    """The inverse of :func:`encode`, up to lists and tuples; a ValueError for what is none."""
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if isinstance(value, Given):
        return value.part
    if not isinstance(value, Mapping):
        return value
    if "array" in value:
        dtype = numeric_dtype(value.get("dtype"))
        try:
            with np.errstate(over="raise", invalid="raise"):
                array = np.asarray(value["array"], dtype=dtype)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"the array {shown(value['array'])} is not one of {dtype} ({error})") from error
        return jnp.asarray(array) if jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype else array
    if "mapping" in value:
        if not isinstance(value["mapping"], Mapping):
            raise ValueError(f"not a description: {shown(dict(value))}: its 'mapping' must be one")
        return {key: decode(item) for key, item in value["mapping"].items()}
    if "dtype" in value:
        return numeric_dtype(value["dtype"])
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ValueError(f"not a description: {shown(dict(value))}: it needs a 'name' and a mapping of 'arguments'")
    make = registered_factory(name)
    accepted = inspect.signature(make).parameters
    for key in arguments:
        if key not in accepted:
            raise ValueError(f"{name} has no argument {shown(key)}: {suggest(key, accepted)}")
    return make(**{key: decode(argument) for key, argument in arguments.items()})


def registered_factory(name: str) -> Callable[..., Any]:
    """The factory that is registered under ``name``; a ValueError, with the nearest names, where none is."""
    if name not in _FACTORIES and name not in all_registered():
        kind = name.partition(".")[0]
        raise ValueError(f"unknown name {shown(name)}: {suggest(name, registered(kind) or registered())}")
    return _FACTORIES[name]


def all_registered() -> list[str]:
    """All names, also those of modules that nobody has imported yet: the package loads them when they are asked for."""
    package = importlib.import_module(__name__.partition(".")[0])

    for name in dir(package):
        getattr(package, name)
    return registered()
