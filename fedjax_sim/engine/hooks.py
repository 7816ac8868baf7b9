"""The hooks of a method called one by one: what they return is checked, and what happens inside is explained."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.algorithms.contract import Message, Method
from fedjax_sim.algorithms.declarations import Misuse
from fedjax_sim.core.mistakes import called, explained, mistake, stack, unchanged
from fedjax_sim.core.values import shown, suggest

OF_WORK = ("survey", "begin", "objective", "turn", "step", "change")


def call(method: Method, name: str, *given: Any) -> Any:
    """What a hook returns, checked."""
    hook = getattr(method, name)
    with explained(of=hook):
        try:
            with unchanged(named(method, name), **dict(zip(inspect.signature(hook).parameters, given, strict=False))):
                returned = hook(*given)
        except Exception as error:
            better = explanation(error, method, name, given)
            if better is None:
                raise
            raise better from error
        rule = _RULES[name]
        fits = rule.fits(returned, method, *given)
        complaint = rule.more(returned, method, *given) if fits else f"returned {brief(returned)}: {rule.fix}"
        if complaint:
            raise TypeError(f"{named(method, name)} {complaint}")
    return returned


def named(method: Any, name: str, code: CodeType | None = None) -> str:
    """``SignAverage.update``; with the class that defines it, or whose ``code`` it is, where that is a base."""
    own = type(method)
    defines = (cls for cls in own.__mro__ if name in vars(cls) and (code is None or _code(vars(cls)[name]) is code))
    cls = next(defines, own)
    return f"{own.__name__}.{name}" if cls is own else f"{own.__name__}.{name} (of {cls.__name__})"


def explanation(error: Exception, method: Method, name: str, given: tuple[Any, ...]) -> Exception | None:
    """The error with the hook named in which it happened, and what to do; None where it says what it has to."""
    culprit, code, inside, last = _culprit(error)
    if culprit is not None:
        method, name = culprit
    who = f"{inside} (in {named(method, name, code)})" if inside else named(method, name, code)
    if isinstance(error, Misuse):
        return TypeError(f"{who} {error}")
    if last.startswith("fedjax_sim.") and isinstance(error, (TypeError, ValueError)):
        return None  # the package says itself what it does not do
    if isinstance(error, KeyError) and name == "update" and isinstance(given[1], dict) and error.args:
        asked = error.args[0]
        if isinstance(asked, str) and asked not in given[1]:
            return ValueError(f"{who}: finish sends no message {asked!r}: {suggest(asked, list(given[1]))}")
    if isinstance(error, AttributeError) and error.name == "params" and name in (*OF_WORK, "encode", "finish"):
        return TypeError(
            f"{named(method, 'send')} returned {brief(error.obj)}, and {who} reads its field params: return a named "
            "tuple with the start point in it, Sent(x)"
        )
    if said := mistake(error):
        return TypeError(f"{who} {said}")
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{who} failed: {type(error).__name__}: {error}")


def _culprit(error: Exception) -> tuple[tuple[Method, str] | None, CodeType | None, str, str]:
    """The innermost hook in which the error happened, its code, and the module whose line raised it.

    Before the module: a function of one's own that is no hook, which that hook has called (an optimiser's), or "".
    """
    found, code, inside, last = None, None, "", ""
    own = stack(error)
    traceback = error.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        last = frame.f_globals.get("__name__", "")
        inside = called(frame) if own and frame is own[0][0] else inside
        first = frame.f_code.co_varnames[:1]
        instance = frame.f_locals.get(first[0]) if first and frame.f_code.co_argcount else None
        if isinstance(instance, Method):
            for name in _HOOKS:
                if any(_code(vars(cls).get(name)) is frame.f_code for cls in type(instance).__mro__):
                    found, code, inside = (instance, name), frame.f_code, ""
    return found, code, inside, last


def _code(member: Any) -> CodeType | None:
    function = member.fget if isinstance(member, property) else member
    return getattr(function, "__code__", None)


class Rule(NamedTuple):
    """What a hook must return; both functions get that, the method and the hook's arguments."""

    fits: Callable[..., bool]  # whether it is of the right kind
    fix: str  # what to do where it is not
    more: Callable[..., str] = lambda *_: ""  # what else is wrong with it, the end of a message; "" for nothing


_STAY = "structure, shapes and types stay"
_KEPT = "structure, shapes and types stay as the first round finds them"
_IN_INIT = "init makes them, super().init(params, shares)._replace(extra=...)"


def _something(returned: Any, *_: Any) -> bool:
    return returned is not None


def _has_model(returned: Any, method: Any, *_: Any) -> bool:
    # Without a model() of its own the method reads x from the field params.
    return returned is not None and (hasattr(returned, "params") or type(method).model is not Method.model)


def _are_methods(returned: Any, *_: Any) -> bool:
    return isinstance(returned, tuple) and bool(returned) and all(isinstance(phase, Method) for phase in returned)


def _reals(returned: Any, *_: Any) -> bool:
    leaves = jax.tree.leaves(returned)
    return bool(leaves) and all(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves)


def _real_arrays(returned: Any, *_: Any) -> bool:
    return all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(returned)) and _reals(returned)


def _number(returned: Any, *_: Any) -> bool:
    if not jax.tree_util.all_leaves([returned]) or np.shape(returned) != ():
        return False
    dtype = getattr(returned, "dtype", type(returned))
    return jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)


def _named_values(returned: Any, *_: Any) -> bool:
    return isinstance(returned, dict) and all(isinstance(name, str) for name in returned)


def _tuple_of(count: int) -> Callable[..., bool]:
    return lambda returned, *_: isinstance(returned, tuple) and len(returned) == count


def _like_client_state(returned: Any, c_i: Any) -> str:
    return _differs("c_i", c_i, returned, f"{_KEPT}; init_client makes them")


def _messages(messages: Any, what: str) -> str:
    if not _named_values(messages):
        return f"returned {brief(messages)} as {what}: it must be a dict of messages by name"
    for name, message in messages.items():
        if message is None or (isinstance(message, Message) and message.value is None):
            return f"returned None as the message {name!r}: return arrays, or leave it out"
        if not isinstance(message, Message) or type(message) is Message:
            return (
                f"returned {brief(message)} as the message {name!r}: say how the server gets it, wrap it: "
                f"Mean({name}) for the cohort's average, Share, Sum or Stack"
            )
    return ""


def _step(returned: Any, method: Any, g: Any, y: Any, state: Any, *_: Any) -> str:
    return _differs("y", y, returned[0], _STAY) or _differs("the optimiser's state", state, returned[1], _STAY)


def _server(returned: Any, method: Any, server: Any, *_: Any) -> str:
    fix = f"{_KEPT}; {_IN_INIT}"
    differs = _differs("server", server, returned, fix)
    # The loop of rounds does not make a real number of a count again, as the table of clients does.
    if differs or (lowered := difference(returned, server)) is None:
        return differs
    path, now, was = lowered
    return f"changed server{path} from {was} to {now}: {fix}"


def _encode(returned: Any, method: Any, delta: Any, memory: Any, *_: Any) -> str:
    kept = f"{_KEPT}; init_memory makes them, where it remembers"
    differs = _differs("delta", delta, returned[0], _STAY) or _differs("memory", memory, returned[1], kept)
    return differs or _messages(returned[2], "its third part")


def _finish(returned: Any, method: Any, delta: Any, y: Any, sent: Any, c_i: Any, *_: Any) -> str:
    return _messages(returned[0], "its first part") or _like_client_state(returned[1], c_i)


def _report(returned: Any, *_: Any) -> str:
    wrong = [name for name, value in returned.items() if not _number(value)]
    return f"returned {brief(returned[wrong[0]])} as {wrong[0]!r}: it must be one number" if wrong else ""


def _whose_turn(returned: Any, *_: Any) -> bool:
    if returned is None:
        return True
    return (
        isinstance(returned, dict)
        and bool(returned)
        and all(jnp.shape(one) == () and jnp.issubdtype(jnp.result_type(one), jnp.bool_) for one in returned.values())
    )


_SERVER = Rule(
    lambda returned, method, server, *_: returned is not None and type(returned) is type(server),
    "return a ServerState, self.server_step(server, delta, cohort) or server._replace(...)",
    _server,
)
_RULES = {
    "phases": Rule(_are_methods, "return a tuple of methods, the last of which trains"),
    "init": Rule(_has_model, "return a ServerState, super().init(params, shares)"),
    "init_client": Rule(_something, "return what a client keeps, () for nothing"),
    "init_memory": Rule(_something, "return what the wrapper keeps for a client, () for nothing"),
    "open": _SERVER,
    "send": Rule(_something, "return what clients receive, for instance Sent(server.params)"),
    "survey": Rule(_reals, "return real numbers to be averaged, jax.grad(F)(sent.params) or F(sent.params)"),
    "begin": Rule(_real_arrays, "return what the client trains, arrays of real numbers, for instance sent.params"),
    "objective": Rule(_number, "return one number, F(y) and what the method adds to it"),
    "turn": Rule(_whose_turn, "return None, or {name: whether this step moves it} of all Parts, by k and client"),
    "step": Rule(_tuple_of(2), "return (y, optimiser state)", _step),
    "change": Rule(_something, "return what has changed, trees.subtract(y, sent.params)"),
    "encode": Rule(_tuple_of(3), "return (delta, memory, {name: message besides})", _encode),
    "finish": Rule(_tuple_of(2), "return ({name: message}, c_i), for instance ({'delta': Mean(delta)}, c_i)", _finish),
    "update": _SERVER,
    "settle": Rule(lambda *_: True, "", lambda returned, method, server, c_i, *_: _like_client_state(returned, c_i)),
    "model": Rule(_something, "return the iterate x"),
    "with_model": _SERVER,
    "evaluated": Rule(_something, "return the parameters to be evaluated"),
    "personal": Rule(_something, "return the model that the client would use"),
    "report": Rule(_named_values, "return a dict of numbers by name, {'norm': trees.norm(...)}", _report),
}
_HOOKS = ("requires", *_RULES)


# How two pytrees differ


def _differs(what: str, before: Any, after: Any, fix: str) -> str:
    """``changed ... from ... to ...``, the first place where ``after`` is not like ``before``, or ""."""
    ours: tuple[list[Any], Any] = jax.tree.flatten(before)
    theirs: tuple[list[Any], Any] = jax.tree.flatten(after)
    if ours[1] == theirs[1] and all(map(_same_type, ours[0], theirs[0])):
        return ""
    path, was, now = difference(before, after) or ("", brief(before), brief(after))
    if not path:
        return f"returned {now} for {what}, which was {was}: {fix}"
    return f"changed {what + path} from {was} to {now}: {fix}"


def difference(before: Any, after: Any, path: str = "") -> tuple[str, str, str] | None:
    """The first place where two pytrees differ: its path, and what each has there; None where they are alike."""
    ours, structure = _children(before)
    others, other = _children(after)
    if structure != other:
        return path, brief(before), brief(after)
    if len(ours) == 1 and not ours[0][0]:
        return None if _same_type(before, after) else (path, brief(before), brief(after))
    for (key, one), (_, two) in zip(ours, others, strict=True):
        found = difference(one, two, path + jax.tree_util.keystr(key))
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
    # Python's numbers and what JAX made of them take the type that they meet; a fraction in a count would be cut off.
    if None in dtypes or any(getattr(leaf, "weak_type", False) for leaf in (before, after)):
        return _kind(after) <= _kind(before)
    return dtypes[0] == dtypes[1]


def _kind(leaf: Any) -> int:
    """Truths, integers, real and complex numbers, each with all before it: the place of a leaf's type among them."""
    kinds = (np.bool_, np.integer, np.floating, np.complexfloating)
    return next((place for place, kind in enumerate(kinds) if jnp.issubdtype(jnp.result_type(leaf), kind)), -1)


def brief(tree: Any) -> str:
    """``float32[60, 10]``, ``()``, ``a dict of 2 arrays``."""
    leaves = jax.tree.leaves(tree)
    if jax.tree_util.all_leaves([tree]):
        dtype = getattr(tree, "dtype", None)
        return shown(tree) if dtype is None else f"{dtype}{list(np.shape(tree))}"
    if not leaves:
        return shown(tree)
    return f"a {type(tree).__name__} of {len(leaves)} array{'s' if len(leaves) > 1 else ''}"
