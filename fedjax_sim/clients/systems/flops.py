"""How many floating-point operations a gradient takes, counted in its jaxpr.

Counted here and not asked of XLA (``Lowered.cost_analysis``): virtual time must not depend on the machine that
simulates it or on a version of its compiler, and XLA counts the body of a loop once, however often it runs.

A product of matrices and a convolution are two operations a multiplication and addition (of a convolution, what falls
on padding or on the zeros of a dilation is not counted). Elementwise arithmetic is one a number, transcendental
functions too, and so are sums, of the numbers that go in. Moving and comparing numbers is free. A ``while`` loop, whose
number of turns nobody knows, counts once, and of a ``cond`` the most expensive branch.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.core.devices import inner_programs
from fedjax_sim.datasets.federated import FederatedDataset
from fedjax_sim.models.task import Batch, Task

_ELEMENTWISE = frozenset((
    "acos", "acosh", "add", "add_any", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp", "cos",
    "cosh", "digamma", "div", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "integer_pow", "lgamma", "log",
    "log1p", "log2", "logistic", "max", "min", "mul", "neg", "pow", "rem", "round", "rsqrt", "sign", "sin", "sinh",
    "sqrt", "square", "sub", "tan", "tanh",
))  # fmt: skip
_OVER_INPUT = frozenset((
    "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum",
    "reduce_window_max", "reduce_window_min", "reduce_window_sum", "scatter-add", "select_and_scatter_add",
))  # fmt: skip


def gradient_flops(task: Task, params: Any, dataset: FederatedDataset, rows: int) -> float:
    """Operations of one gradient of the task's loss on a batch of ``rows`` examples; the optimiser's are not in it.

    The penalty's are. Of ``params`` and ``dataset`` the shapes count.
    """

    def abstract(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)

    examples = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), dataset.examples)
    weights, held, key = jax.eval_shape(lambda: (jnp.ones((rows,)), jnp.int32(rows), jax.random.key(0)))
    batch = Batch(examples, weights, held)

    def gradient(task: Task, params: Any, batch: Batch, key: jax.Array) -> Any:
        return jax.value_and_grad(task.batch_loss)(params, batch, key)

    return count(jax.make_jaxpr(gradient)(abstract(task), abstract(params), batch, key).jaxpr)


def count(jaxpr: Any) -> float:
    """Floating-point operations of a jaxpr."""
    return float(sum(_of(equation) for equation in jaxpr.eqns))


def _of(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    inner = list(inner_programs(equation))
    if name == "cond":
        return max(count(branch) for branch in inner)
    if name == "scan":
        return float(params["length"] * sum(count(body) for body in inner))
    if name.startswith(("custom_jvp_call", "custom_vjp_call")):
        return count(inner[0])  # the function itself; its rules are there only where they are applied
    if inner and name not in _OVER_INPUT:
        return float(sum(count(body) for body in inner))
    out = equation.outvars[0].aval
    if not jnp.issubdtype(getattr(out, "dtype", np.bool_), jnp.inexact):
        return 0.0
    if name == "dot_general":
        left = equation.invars[0].aval.shape
        contracted = params["dimension_numbers"][0][0]
        return float(2 * math.prod(out.shape) * math.prod(left[axis] for axis in contracted))
    if name == "conv_general_dilated":
        return _convolution(equation)
    if name in _ELEMENTWISE:
        return float(math.prod(out.shape))
    # Of jax 0.12: what the versions before wrote out.
    if name == "one_minus_square":  # of the derivative of tanh: (1 + x) (1 - x)
        return 3.0 * math.prod(out.shape)
    if name == "polynomial":  # of x and its coefficients, by Horner's rule
        return 2.0 * (len(equation.invars) - 2) * math.prod(out.shape)
    if name in _OVER_INPUT:
        # Of a scatter what is added, of all others what is summed.
        given = equation.invars[-1 if name.startswith("scatter") else 0].aval
        return float(math.prod(given.shape))
    return 0.0


def _convolution(equation: Any) -> float:
    params = equation.params
    left, right = (variable.aval.shape for variable in equation.invars)
    out = equation.outvars[0].aval.shape
    numbers = params["dimension_numbers"]
    pairs = 2.0 * out[numbers.out_spec[0]] * out[numbers.out_spec[1]] * right[numbers.rhs_spec[1]]
    spatial = zip(
        (left[axis] for axis in numbers.lhs_spec[2:]),
        (right[axis] for axis in numbers.rhs_spec[2:]),
        (out[axis] for axis in numbers.out_spec[2:]),
        params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"],
        strict=True,
    )  # fmt: skip
    for size, taps, places, stride, (before, _), dilation, tap_dilation in spatial:
        position = np.arange(places)[:, None] * stride + np.arange(taps)[None, :] * tap_dilation - before
        real = (position >= 0) & (position < (size - 1) * dilation + 1) & (position % dilation == 0)
        pairs *= int(real.sum())
    return float(pairs)
