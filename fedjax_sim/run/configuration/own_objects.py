"""``module:object`` in a configuration: models, tasks, methods, data sets and evaluations of one's own."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import flax.linen as nn

from fedjax_sim.algorithms.contract import Method
from fedjax_sim.core.own import origin
from fedjax_sim.core.values import shown, suggest
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.datasets.host import HostDataset
from fedjax_sim.models.contract import Task

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_KINDS: dict[str | None, tuple[tuple[type, ...], str]] = {
    "algorithm": ((Method,), "a method"),
    "dataset": ((FederatedDataset, HostDataset), "a data set"),
    "task": ((Task,), "a task"),
    "model": ((nn.Module,), "a flax.linen module"),
}


def is_own(name: Any) -> bool:
    """Whether a name in a configuration is one of ``module:object``."""
    return isinstance(name, str) and ":" in name


def own_factory(name: str, kind: str | None, given: bool) -> Callable[..., Any]:
    """What makes the object that ``module:object`` names, of a kind; modules are found from the current directory on.

    A class or function is called with the arguments that are ``given``, a function that evaluates is taken as it is
    where there are none, and an object of the kind is itself.

    Raises:
      ValueError: such parts are no kind of one's own, or there is no such module or object, or the module is an
        installed package's: a configuration calls nothing but code of one's own.
      TypeError: it is or makes something else; also what its code raises.
    """
    if kind not in _KINDS and kind != "evaluation":
        said = "algorithm, dataset, task, evaluate, and a table or key 'model'"
        raise ValueError(f"{name!r} stands where no object of your own can: these are {said}")
    found = _found(name)
    if kind == "evaluation":
        if not callable(found):
            raise TypeError(f"{name} is {shown(found)}: it must be a function (params, dataset) -> {{name: value}}")
        return found if given or isinstance(found, type) else lambda: found
    classes, wanted = _KINDS[kind]
    if isinstance(found, classes):
        return lambda: found
    if not callable(found) or (isinstance(found, type) and not issubclass(found, classes)):
        raise TypeError(f"{name} is {shown(found)}: it must be {wanted}, a class of them or a function that makes one")

    @functools.wraps(found, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        made = found(*args, **kwargs)
        if not isinstance(made, classes):
            raise TypeError(f"{name} has made {shown(made)}: it must make {wanted}")
        return made

    return make


def _found(name: str) -> Any:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no module:object, as mine:Net is for Net in mine.py")
    module, _, key = name.partition(":")
    if module.endswith(".py"):
        raise ValueError(f"{name}: a module is named without .py, {module.removesuffix('.py')}:{key}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)  # imports nothing
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise ValueError(f"{name}: there is no {top}.py and no folder {top} in {here}, and Python finds none elsewhere")
    where = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    if package := origin(top, where):
        raise ValueError(f"{name} is of {package.partition(' ')[0]}, {where}: a name with a colon is for your own code")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name} cannot be imported: {error}") from error
    if not hasattr(found, key):
        public = [one for one, thing in vars(found).items() if not one.startswith("_") and _is_own(thing)]
        raise ValueError(f"{name}: {found.__file__} has no {key}: {suggest(key, public)}")
    if not _is_own(getattr(found, key)):
        raise ValueError(f"{name} is not of {found.__file__} but imported there: a colon is for your own code")
    return getattr(found, key)


def _is_own(thing: Any) -> bool:
    code = isinstance(thing, (type, types.FunctionType, types.BuiltinFunctionType))
    return not isinstance(thing, types.ModuleType) and not (code and origin(str(thing.__module__)))
