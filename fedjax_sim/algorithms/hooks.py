"""What the hooks of a method return, checked where they return it: the message names the class and the hook.

Checked when a program is traced. Structures, shapes and types are compared, never values, so a compiled program has
nothing of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_sim.values import shown, suggest

Function = Callable[..., Any]


def watched(cls: type[Any]) -> None:
    """Puts a check of what they return around the hooks that ``cls`` defines."""
    for name, rule in _RULES.items():
        function = vars(cls).get(name)
        if inspect.isfunction(function):
            setattr(cls, name, _checked(cls, name, function, rule))


def _checked(cls: type[Any], name: str, function: Function, rule: Rule) -> Function:
    @functools.wraps(function)
    def hook(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = function(*args, **kwargs)
        except KeyError as error:
            asked, messages = error.args[:1], _by_place(function, args, kwargs)[2:3] if name == "aggregate" else ()
            if not messages or not asked or asked[0] in messages[0]:
                raise
            known = suggest(str(asked[0]), list(messages[0]))
            raise ValueError(f"{_who(cls, name, args[0])}: finish returned no message {asked[0]!r}: {known}") from error
        complaint = rule(returned, *_by_place(function, args, kwargs))
        if complaint:
            raise TypeError(f"{_who(cls, name, args[0])} {complaint}")
        return returned

    return hook


def _by_place(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return inspect.signature(function).bind(*args, **kwargs).args if kwargs else args


def _who(cls: type[Any], name: str, method: Any) -> str:
    """``SignAverage.aggregate``; with the class that defines it, where that is a base."""
    own = type(method).__name__
    return f"{own}.{name}" if type(method) is cls else f"{own}.{name} (of {cls.__name__})"


# A rule gets what a hook returned, the method and the hook's arguments; it returns the end of a message, "" for none.
Rule = Callable[..., str]

_NEXT = "return a ServerState, self.server_step(server, delta, cohort) or server._replace(...)"
_STAY = "structure, shapes and types stay"
_KEPT = "structure, shapes and types stay as the first round finds them"
_IN_INIT = "init makes them, super().init(params, num_clients)._replace(extra=...)"


def _something(what: str) -> Rule:
    return lambda returned, *_: f"returned None: {what}" if returned is None else ""


def _init(returned: Any, method: Any, *_: Any) -> str:
    # Without a model() of its own (a subclass's is wrapped here) the method reads x from the field params.
    if returned is None or not (hasattr(returned, "params") or hasattr(type(method).model, "__wrapped__")):
        return f"returned {_text(returned)}: return a ServerState, super().init(params, num_clients)"
    return ""


def _like_server(returned: Any, method: Any, server: Any, *_: Any) -> str:
    if returned is None or type(returned) is not type(server):
        return f"returned {_text(returned)}: {_NEXT}"
    return _differs("server", server, returned, f"{_KEPT}; {_IN_INIT}")


def _like_client_state(returned: Any, c_i: Any) -> str:
    return _differs("c_i", c_i, returned, f"{_KEPT}; init_client makes them")


def _direction(returned: Any, method: Any, g: Any, *_: Any) -> str:
    return _differs("g", g, returned, _STAY)


def _broadcast(returned: Any, method: Any, server: Any) -> str:
    if hasattr(returned, "params") and hasattr(returned, "_replace"):
        return ""
    return f"returned {_text(returned)}: return a named tuple with the start point in its field params, Sent(x)"


def _start(returned: Any, method: Any, sent: Any, c_i: Any, client: Any) -> str:
    if not _tuple_of(returned, 2):
        return f"returned {_text(returned)}: return (y, local), for instance (sent.params, ())"
    return _differs("y", sent.params, returned[0], "the first model is like sent.params")


def _proximal(returned: Any, method: Any, sent: Any) -> str:
    if returned is None or (jax.tree_util.all_leaves([returned]) and np.shape(returned) == ()):
        return ""
    return f"returned {_text(returned)}: return one number, mu, or None"


def _local_step(returned: Any, method: Any, g: Any, y: Any, state: Any, *_: Any) -> str:
    if not _tuple_of(returned, 2):
        return f"returned {_text(returned)}: return (y, optimiser state)"
    return _differs("y", y, returned[0], _STAY) or _differs("the optimiser's state", state, returned[1], _STAY)


def _encode(returned: Any, method: Any, change: Any, sent: Any, c_i: Any, client: Any) -> str:
    if not _tuple_of(returned, 3):
        return f"returned {_text(returned)}: return (change, c_i, {{name: message besides}})"
    new, kept, notes = returned
    differs = _differs("change", change, new, _STAY)
    return differs or _like_client_state(kept, c_i) or _messages(notes, "its third part")


def _finish(returned: Any, method: Any, y: Any, sent: Any, c_i: Any, *_: Any) -> str:
    if not _tuple_of(returned, 2):
        return f"returned {_text(returned)}: return ({{name: message}}, c_i), for instance ({{'delta': delta}}, c_i)"
    return _messages(returned[0], "its first part") or _like_client_state(returned[1], c_i)


def _messages(messages: Any, what: str) -> str:
    if not (isinstance(messages, dict) and all(isinstance(name, str) for name in messages)):
        return f"returned {_text(messages)} as {what}: it must be a dict of messages by name"
    empty = [name for name, message in messages.items() if message is None]
    return f"returned None as the message {empty[0]!r}: return arrays, or leave it out" if empty else ""


def _weigh(returned: Any, method: Any, client: Any) -> str:
    if not (isinstance(returned, dict) and all(isinstance(name, str) for name in returned)):
        return f"returned {_text(returned)}: return a dict of weights by the names of messages"
    return _numbers("the weight of", returned)


def _report(returned: Any, method: Any, server: Any) -> str:
    if not (isinstance(returned, dict) and all(isinstance(name, str) for name in returned)):
        return f"returned {_text(returned)}: return a dict of numbers by name, {{'norm': trees.norm(...)}}"
    return _numbers("", returned)


def _numbers(what: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        if not jax.tree_util.all_leaves([value]) or np.shape(value) != ():
            named = f"{what} {name!r}".strip()
            return f"returned {_text(value)} as {named}: it must be one number, an array of shape ()"
    return ""


def _phases(returned: Any, method: Any) -> str:
    if isinstance(returned, tuple) and returned and all(hasattr(phase, "broadcast") for phase in returned):
        return ""
    return f"returned {_text(returned)}: return a tuple of methods, the last of which trains"


_RULES: dict[str, Rule] = {
    "hoisted": _something("return a method, for instance super().hoisted(params)"),
    "phases": _phases,
    "init": _init,
    "init_client": _something("return what a client keeps, () for nothing"),
    "introduced": _something("return the server's state"),
    "before": _something("return the server's state"),
    "model": _something("return the iterate x"),
    "parameters": _something("return the parameters to be evaluated"),
    "with_model": _like_server,
    "broadcast": _broadcast,
    "start": _start,
    "proximal": _proximal,
    "direction": _direction,
    "local_step": _local_step,
    "encode": _encode,
    "finish": _finish,
    "weigh": _weigh,
    "aggregate": _like_server,
    "settle": lambda returned, method, server, c_i: _like_client_state(returned, c_i),
    "after": _like_server,
    "report": _report,
}


# How two pytrees differ


def _tuple_of(value: Any, count: int) -> bool:
    return isinstance(value, tuple) and len(value) == count


def _differs(what: str, before: Any, after: Any, fix: str) -> str:
    """``changed ... from ... to ...``, the first place where ``after`` is not like ``before``, or ""."""
    ours: tuple[list[Any], Any] = jax.tree.flatten(before)
    theirs: tuple[list[Any], Any] = jax.tree.flatten(after)
    if ours[1] == theirs[1] and all(map(_same_type, ours[0], theirs[0])):
        return ""
    path, was, now = _difference(before, after) or ("", _text(before), _text(after))
    if not path:
        return f"returned {now} for {what}, which was {was}: {fix}"
    return f"changed {what + path} from {was} to {now}: {fix}"


def _difference(before: Any, after: Any, path: str = "") -> tuple[str, str, str] | None:
    ours, structure = _children(before)
    others, other = _children(after)
    if structure != other:
        return path, _text(before), _text(after)
    if len(ours) == 1 and not ours[0][0]:
        return None if _same_type(before, after) else (path, _text(before), _text(after))
    for (key, one), (_, two) in zip(ours, others, strict=True):
        found = _difference(one, two, path + jax.tree_util.keystr(key))
        if found:
            return found
    return None


def _children(tree: Any) -> Any:
    """The parts of a pytree, one level down, and its structure there."""
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)


def _same_type(before: Any, after: Any) -> bool:
    if np.shape(before) != np.shape(after):
        return False
    dtypes = [getattr(leaf, "dtype", None) for leaf in (before, after)]
    # Python's numbers and what JAX made of them take the type that they meet.
    weak = None in dtypes or any(getattr(leaf, "weak_type", False) for leaf in (before, after))
    return weak or dtypes[0] == dtypes[1]


def _text(tree: Any) -> str:
    """``float32[60, 10]``, ``()``, ``a dict of 2 arrays``."""
    leaves = jax.tree.leaves(tree)
    if jax.tree_util.all_leaves([tree]):
        dtype = getattr(tree, "dtype", None)
        return shown(tree) if dtype is None else f"{dtype}{list(np.shape(tree))}"
    if not leaves:
        return shown(tree)
    return f"a {type(tree).__name__} of {len(leaves)} array{'s' if len(leaves) > 1 else ''}"
