"""Described wrappers of optax optimisers: their real hyper-parameters are leaves of the algorithm.

``fjs.optim.sgd(0.02)`` is ``optax.sgd(0.02)`` whose learning rate can be differentiated, vmapped and changed without
compiling again. A bare ``optax.GradientTransformation`` is accepted wherever an optimiser is, but recorded as opaque.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_sim.core import trees
from fedjax_sim.core.descriptions import Described, factory
from fedjax_sim.core.fields import check_single, flag, real, static
from fedjax_sim.core.loops import with_static_derivative
from fedjax_sim.core.values import check_real, shown, suggest
from fedjax_sim.optim.known import known, opened, with_numbers


@contextlib.contextmanager
def third_party() -> Iterator[None]:
    """Standard promotion for code that is not ours: optax's Adam family and flax's convolutions need it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def lenient(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under :func:`third_party`, and its derivative too.

    The context alone is not enough: inside a loop JAX differentiates the loop's program, long after the function has
    returned, and some rules mix dtypes (that of a power with an integer exponent). Here the derivative is taken by a
    rule that enters the context again. Everything that may carry a derivative is an argument, not closed over.
    """

    def inside(*operands: Any) -> Any:
        with third_party():
            return function(*operands)

    return with_static_derivative(inside, inside)


class Optimizer(Described):
    """An optax optimiser with a description; subclasses say how to make it."""

    def transform(self) -> optax.GradientTransformation:
        """The optax transformation with the current (possibly traced) hyper-parameters."""
        raise TypeError(f"{type(self).__name__} must define transform() -> optax.GradientTransformation")

    def init(self, params: Any) -> Any:
        """The optimiser state at ``params``."""
        with third_party():
            return self.transform().init(params)

    def update(self, gradients: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        """``(updates, state)`` in the dtypes of the gradients and of the state.

        What is of a wider one is rounded: a hyper-parameter that is traced has a dtype of its own, where a number takes
        that of what it meets. Other updates, which would change the program, are a TypeError. ``extra`` is optax's.
        """
        updates, new_state = _update(self, gradients, state, params, extra)
        dtypes = [[leaf.dtype for leaf in jax.tree.leaves(tree)] for tree in (updates, gradients)]
        if dtypes[0] != dtypes[1]:
            updates, new_state = jax.tree.map(_rounded, (updates, new_state), (gradients, state))
        for update, gradient in zip(jax.tree.leaves(updates), jax.tree.leaves(gradients), strict=True):
            if update.dtype != gradient.dtype:
                raise TypeError(f"{describe_name(self)} turns {gradient.dtype} gradients into {update.dtype} updates")
        return updates, new_state

    def peek(self, gradients: Any, state: Any, params: Any) -> Any:
        """The updates of a step after which the statistics are still ``state``, as Mime's clients make it.

        Here the step of :meth:`update`, forgotten; adaptive optimisers whose papers say it divide by a second moment
        that these gradients are no part of.
        """
        return self.update(gradients, state, params)[0]


def _rounded(new: jax.Array, old: jax.Array) -> jax.Array:
    """``new`` in the dtype of ``old``, where its own is a wider one."""
    real = jnp.issubdtype(old.dtype, jnp.floating) and jnp.issubdtype(new.dtype, jnp.floating)
    return new.astype(old.dtype) if real and jnp.finfo(old.dtype).bits < jnp.finfo(new.dtype).bits else new


def _stepped(optimizer: Optimizer, gradients: Any, state: Any, params: Any, extra: dict[str, Any]) -> Any:
    with third_party():
        return optimizer.transform().update(gradients, state, params, **extra)


def _in_single(optimizer: Optimizer, *operands: Any) -> Any:
    """The step in single precision at least: its derivative in a number of the optimiser's is a sum over the model."""
    if isinstance(optimizer, Hoisted):  # a program of these dtypes
        return _stepped(optimizer, *operands)
    like = jax.eval_shape(_stepped, optimizer, *operands)
    return trees.of_types(_stepped(optimizer, *trees.unhalved(operands)), like)


_update = with_static_derivative(_stepped, _in_single)


class Sgd(Optimizer):
    """Stochastic gradient descent: b <- rho b + g, y <- y - eta gamma^k b in step k = 0, 1, ... (rho = 0: plain).

    Nesterov's form steps along g + rho b. Linear, so FedNova, SCAFFOLD II and VRL-SGD accept it.

    Args:
      learning_rate: eta >= 0.
      momentum: rho in [0, 1), or None for no buffer.
      nesterov: step along g + rho b.
      decay: gamma in (0, 1], from step to step (a client's steps of one round; on a server, its rounds), or None.
    """

    learning_rate: Any = real(low=0.0)
    momentum: Any = real(default=None, low=0.0, below=1.0)
    nesterov: bool = flag(default=False)
    decay: Any = real(default=None, above=0.0, high=1.0)

    def checked(self) -> Self:
        made = super().checked()
        if made.nesterov and made.momentum is None:
            raise ValueError("sgd(nesterov=True, momentum=None): Nesterov's form needs a momentum, for instance 0.9")
        return made

    def transform(self) -> optax.GradientTransformation:
        check_single(self, self.factory_name())
        if self.decay is None:
            return optax.sgd(self.learning_rate, self.momentum, self.nesterov)
        rate, decay = jnp.asarray(self.learning_rate), jnp.asarray(self.decay)
        return optax.sgd(lambda k: rate * decay ** jnp.asarray(k, decay.dtype), self.momentum, self.nesterov)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015) as optax has it, with bias correction; not linear in the gradients.

    Moments are kept in single precision at least: optax has the parameters' own, and in bfloat16 a b2 of 0.999 is 1.

    Args:
      learning_rate: step size, >= 0.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added outside the root.
      eps_root: added inside the root; must be > 0 to differentiate through a zero gradient.
    """

    learning_rate: Any = real(low=0.0)
    b1: Any = real(default=0.9, low=0.0, below=1.0)
    b2: Any = real(default=0.999, low=0.0, below=1.0)
    eps: Any = real(default=1e-8, low=0.0)
    eps_root: Any = real(default=1e-16, low=0.0)

    def transform(self) -> optax.GradientTransformation:
        check_single(self, self.factory_name())
        adam = optax.adam(self.learning_rate, self.b1, self.b2, self.eps, self.eps_root)
        return optax.GradientTransformation(
            lambda params: adam.init(trees.wide(params)),
            lambda gradients, state, params=None: adam.update(trees.wide(gradients), state, params),
        )


class FromOptax(Optimizer):
    """Any optax optimiser by name."""

    name: str = static()
    arguments: dict[str, Any]  # the real ones, which are leaves
    options: tuple[tuple[str, Any], ...] = static(default=())  # the others, as sorted pairs

    def checked(self) -> Self:
        names = [key for key in dir(optax) if _is_function(getattr(optax, key)) and not key.startswith("_")]
        if self.name not in names:
            raise ValueError(f"optax has no optimiser {self.name!r}: {suggest(str(self.name), names)}")
        if not isinstance(self.arguments, Mapping):
            raise TypeError(f"from_optax({self.name!r}): its arguments are {shown(self.arguments)}: give them by name")
        accepted = list(inspect.signature(getattr(optax, self.name)).parameters)
        for key in (*self.arguments, *dict(self.options)):
            if key not in accepted:
                raise ValueError(f"optax.{self.name} has no argument {key!r}: {suggest(key, accepted)}")
        for key, value in self.arguments.items():
            what = f"from_optax({self.name!r}, {key}=...)"
            if callable(value):
                raise TypeError(
                    f"{what} is {shown(value)}: give a number; a schedule over rounds belongs into "
                    "client_learning_rate, one over local steps into a bare optax object"
                )
            if value is not None:
                check_real(what, value, low=0.0 if key == "learning_rate" else None)
        try:
            made = self.transform()
        except (TypeError, ValueError) as error:
            raise TypeError(f"optax.{self.name} cannot be made with these arguments: {error}") from error
        if not isinstance(made, optax.GradientTransformation):
            raise ValueError(f"optax.{self.name} is no optimiser: it returns {made!r}")
        return self

    def transform(self) -> optax.GradientTransformation:
        return getattr(optax, self.name)(**self.arguments, **dict(self.options))


class Bare(Optimizer):
    """A bare optax object: works everywhere, but its hyper-parameters are hidden from us and from a description.

    Attributes:
      transformation: the object, or one like it of which some numbers do not matter.
      numbers: what stands in their places, traced in a program (see :func:`hoist`); ``()`` where the object's own do.
    """

    transformation: optax.GradientTransformation = static()
    numbers: tuple[Any, ...] = ()

    def transform(self) -> optax.GradientTransformation:
        return with_numbers(self.transformation, self.numbers) if self.numbers else self.transformation

    as_given = transform  # what it is known by: the transformation itself may have the numbers of another object


class Hoisted(Optimizer):
    """A bare optax object whose closed-over traced values have become leaves (see :func:`hoist`)."""

    init_function: Callable[..., Any] = static()
    update_function: Callable[..., Any] = static()
    init_values: list[Any]
    update_values: list[Any]

    def transform(self) -> optax.GradientTransformation:
        return optax.GradientTransformation(
            lambda params: self.init_function(params, *self.init_values),
            lambda gradients, state, params=None: self.update_function(gradients, state, params, *self.update_values),
        )


def _is_function(value: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether it is a function, also with some arguments given already, as ``optax.nadam`` is one."""
    return inspect.isfunction(getattr(value, "func", value))


def from_optax(name: str, **arguments: Any) -> Optimizer:
    """Any optax optimiser by its name: ``from_optax("rmsprop", learning_rate=0.01, decay=0.9)``.

    Its moments have the dtype of the parameters, as bare optax objects' do: in bfloat16 a decay of 0.999 is 1.

    Args:
      name: the optax function.
      **arguments: its arguments; real numbers and arrays become leaves (schedules belong into
        ``client_learning_rate``), booleans and strings are structure.

    Raises:
      ValueError: optax has no such optimiser, or it has no such argument.
    """
    function = getattr(optax, str(name), None)
    parameters = inspect.signature(function).parameters if _is_function(function) else {}

    def is_option(key: str, value: Any) -> bool:
        if isinstance(value, int) and not isinstance(value, bool) and key in parameters:
            kinds = re.findall(r"\w+", str(parameters[key].annotation))
            return key in ("key", "seed") or ("int" in kinds and "float" not in kinds)
        dtype = isinstance(value, (type, np.dtype)) and hasattr(value, "dtype" if isinstance(value, type) else "name")
        return dtype or (isinstance(value, (bool, str)) and key != "learning_rate")

    options = {key: value for key, value in arguments.items() if is_option(key, value)}
    real = {key: value for key, value in arguments.items() if key not in options}
    return _from_optax(name=name, arguments=real, options=tuple(sorted(options.items(), key=lambda pair: pair[0])))


sgd = factory("optim.sgd", Sgd)
adam = factory("optim.adam", Adam)
_from_optax = factory("optim.from_optax", FromOptax)


def as_optimizer(given: Any, what: str) -> Optimizer:
    """``given``, one of ours or a bare optax object, as an :class:`Optimizer`; a TypeError names it ``what``."""
    if isinstance(given, (Optimizer, jax.core.Tracer)):
        return given  # type: ignore[return-value]
    if isinstance(given, optax.GradientTransformation):
        return Bare(transformation=known(given))
    fix = "call it" if callable(given) else "give an optimiser"
    fix += ", for instance fedjax_sim.optim.sgd(0.1) or optax.sgd(0.1)"
    if hasattr(given, "gradient_transformation"):  # optax.MultiSteps
        fix = "give its .gradient_transformation()"
    raise TypeError(f"{what} is {shown(given)}: {fix}")


def hoist(optimizer: Optimizer, params: Any) -> Optimizer:
    """Makes values that a bare optax object closes over explicit: derivatives reach them, others compile nothing.

    ``optax.sgd(lr)`` with a traced ``lr`` hides the tracer in a closure, out of reach of ``jax.custom_jvp``; with a
    number ``lr`` it would be part of the program. Described optimisers come back as they are; ``params`` may be shapes.
    """
    if not isinstance(optimizer, Bare) or optimizer.numbers:
        return optimizer
    bare = optimizer.transformation
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    with third_party():
        state = jax.eval_shape(bare.init, example)
        init, init_values = jax.closure_convert(bare.init, example)
        update, update_values = jax.closure_convert(
            lambda gradients, state, params: bare.update(gradients, state, params), example, state, example
        )
    if init_values or update_values:
        return Hoisted(init_function=init, update_function=update, init_values=init_values, update_values=update_values)
    first, numbers = opened(bare)
    leaves, structure = jax.tree.flatten(example)
    if numbers and _opens(first, structure, *leaves):
        return Bare(transformation=first, numbers=numbers)
    return optimizer  # the same object: a program is known by it


@functools.lru_cache(maxsize=256)
def _opens(first: optax.GradientTransformation, structure: Any, *leaves: Any) -> bool:
    """Whether an object of optax computes the same, by all that shapes say, where numbers of its own are traced."""

    def stepped(optimizer: Bare, params: Any) -> Any:
        transform = optimizer.transform()
        state = transform.init(params)
        return state, transform.update(params, state, params)

    def shapes(*numbers: Any) -> Any:
        with third_party():
            found = jax.eval_shape(stepped, Bare(first, numbers), jax.tree.unflatten(structure, leaves))
        return jax.tree.flatten(found)

    try:
        return bool(shapes(*opened(first)[1]) == shapes())
    except Exception:  # what JAX raises where Python asks for a number's value differs from place to place
        return False


def hoisted(node: Any, params: Any) -> Any:
    """A method, with its wrappers, with all its optimisers hoisted (see :func:`hoist`); refuses those that draw."""
    if isinstance(node, Optimizer):
        _check_draws_nothing(node, params)
        return hoist(node, params)
    changed = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Described) and field.metadata.get("pytree_node", True):
            changed[field.name] = hoisted(value, params)
    return node.replace(**changed) if changed else node


def _check_draws_nothing(optimizer: Optimizer, params: Any) -> None:
    """Refuses a random key in the state, as ``optax.add_noise`` has it: it begins as the same one everywhere."""
    for path, leaf in trees.by_path(jax.eval_shape(optimizer.init, params)).items():
        words = path.rpartition("/")[2] == "rng_key"  # of older versions of optax, without a type of its own
        if words or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"an optimiser draws from a random key in its state ({path}), the same for all clients and seeds: draw "
                "from client.key in a method's step, or from the key of losses(params, examples, key)"
            )


def move(y: Any, rate: Any, updates: Any) -> Any:
    """y + l u, with l a scalar or a pytree like the parameters."""
    scalar: Any = jax.tree.structure(0.0)
    if jax.tree.structure(rate) == scalar:
        return trees.add_scaled(y, rate, updates)
    return trees.add(y, trees.multiply(updates, rate))


def is_linear(optimizer: Optimizer) -> bool:
    """Whether the parameters after some steps are a linear function of the gradients.

    Decided by transposing the chain of three steps on one scalar, which JAX can do for linear functions only: SGD with
    any momentum passes; Adam, AdaGrad, sign and clipping do not.
    """
    # Of hyper-parameters stacked for vmap, one is looked at.
    optimizer = jax.tree.map(lambda leaf: leaf.reshape(-1)[0] if np.ndim(leaf) else leaf, optimizer)

    def chain(gradients: list[jax.Array]) -> jax.Array:
        y = jnp.zeros(())
        with third_party():
            transform = optimizer.transform()
            state = transform.init(y)
            for gradient in gradients:
                # Not optimizer.update: a function with a derivative of its own cannot be transposed.
                update, state = transform.update(gradient, state, y)
                y = y + update
        return y

    scalar = jax.ShapeDtypeStruct((), jnp.result_type(float))
    try:
        # Shapes alone: inside of eval_shape what does not depend on the gradients is not computed either.
        jax.eval_shape(lambda y: jax.linear_transpose(chain, [scalar] * 3)(y), scalar)
    except Exception:  # what JAX raises for a nonlinear operation differs from primitive to primitive
        return False
    return True


def describe_name(optimizer: Optimizer) -> str:
    """How messages name an optimiser."""
    if isinstance(optimizer, FromOptax):
        return f"optax.{optimizer.name}"
    return type(optimizer).__name__.lower() if isinstance(optimizer, (Sgd, Adam)) else "the given optax optimiser"
