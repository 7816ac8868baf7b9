"""Forward mode at the memory of the run itself, and the refusal of reverse mode."""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_sim.core.descriptions import factory
from fedjax_sim.engine.adjoints.base import Ran, Run, Scanned
from fedjax_sim.engine.layout.base import Layout
from fedjax_sim.engine.plan import Plan, TrainState


class Forward(Scanned):
    """Forward mode through the loops as they run: no idle step, and memory that does not grow with R.

    For ``jax.jacfwd``, ``jax.jvp`` and a few hyper-parameters: time grows with their number, about one forward run each
    and one more; memory is that of the run times their number plus one. Reverse mode is refused when the program is
    traced, for the loops cannot be run backwards.
    """

    def fitted(self, layout: Layout) -> Layout:
        return layout.as_it_runs()

    def run(self, run: Run, plan: Plan, state: TrainState) -> Ran:
        return without_reverse_mode(super().run(run, plan, state), _MESSAGE)  # type: ignore[no-any-return]


_MESSAGE = (
    "adjoint=forward() has no reverse mode, so jax.grad, jax.vjp and jax.jacrev cannot pass it: use jax.jacfwd, or "
    "give make_train another adjoint, such as per_round() or nested() of fedjax_sim.adjoints"
)


def without_reverse_mode(tree: Any, message: str) -> Any:
    """``tree`` as it is, with its tangents; ``TypeError(message)`` when a reverse-mode derivative is traced."""

    def guarded(leaf: Any) -> Any:
        return _one_way.bind(leaf, message=message) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) else leaf

    return jax.tree.map(guarded, tree)


def _refuse(cotangent: Any, operand: Any, *, message: str) -> NoReturn:
    raise TypeError(message)


# The identity, linear, batched and lowered as such; only its transpose is missing. JAX has no function for this:
# custom_vjp refuses forward mode, and linear_call cannot be vmapped.
_one_way = Primitive("one_way")
_one_way.def_impl(lambda x, *, message: x)
_one_way.def_abstract_eval(lambda x, *, message: x)
ad.deflinear2(_one_way, _refuse)
batching.defvectorized(_one_way)
mlir.register_lowering(_one_way, lambda _, x, *, message: [x])

forward = factory("adjoint.forward", Forward)
