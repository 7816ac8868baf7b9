"""Figure 4: what a proximal term does to the weights of the clients, to the speed and to the variance of a round.

Pure functions of the local steps tau_i and of alpha = eta mu: nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fjs
from fedjax_sim.algorithms.contract import nobody
from fedjax_sim.algorithms.probe import accumulation
from fedjax_sim.core.devices import double_precision
from fedjax_sim.diagnostics import measures
from fedjax_sim.papers.bench import Bench, Claim, Outcome, Setting, Table
from fedjax_sim.papers.drawing import canvas
from fedjax_sim.papers.measuring import largest
from fedjax_sim.reporting.plots import LEGEND, line_style, mean_and_band, plain

CLIENTS, MEAN = 30, 20.0
READINGS = {"variance 20": 20.0**0.5, "standard deviation 20": 20.0}  # of N(20, 20), as standard deviations
MOST = 200  # steps; nine standard deviations above the mean
LOWEST = 1e-3  # of the figure's vertical axis


class Quantities(NamedTuple):
    """What the figure shows, for one draw of tau and one alpha."""

    weight_bias: Any  # chi^2(p || w), p_i = 1/m
    slowdown: Any  # mean tau / tau_eff
    relative_variance: Any  # A of eq. 10


NAMES = {"weight_bias": "weight bias", "slowdown": "slowdown", "relative_variance": "relative variance"}


def perform(bench: Bench) -> Outcome:
    """Both readings of N(20, 20), all draws of tau (a seed each) and all alphas."""
    clients = bench.choose(4, CLIENTS)
    alphas = np.linspace(0.0, 1.0, bench.choose(3, 101))
    found: dict[str, Quantities] = {}
    errors, means = {}, {}
    for reading, std in READINGS.items():
        taus = [draw_steps(std, clients, seed) for seed in bench.seeds]
        means[reading] = np.array([tau.mean() for tau in taus])
        with double_precision():
            found[reading] = stacked([[Quantities(*map(float, of_solver(tau, float(alpha)))) for alpha in alphas]
                                      for tau in taus])  # fmt: skip
        formulas = stacked([[closed_form(tau, float(alpha)) for alpha in alphas] for tau in taus])
        errors[reading] = largest(float(np.abs(a - b).max()) for a, b in zip(found[reading], formulas, strict=True))
    return Outcome(
        _settings(bench), _claims(found, means, errors), {"figure4": _figure(alphas, found)}, [_table(alphas, found)],
        {"alpha": alphas, "quantities": {reading: of._asdict() for reading, of in found.items()}},
    )  # fmt: skip


def draw_steps(std: float, clients: int, seed: int) -> np.ndarray:
    """tau_i ~ N(20, std^2), rounded and clipped to [1, 200]."""
    normal = np.random.default_rng(seed).standard_normal(clients)
    return np.clip(np.rint(MEAN + std * normal), 1, MOST).astype(np.int64)


@jax.jit
def _measured(tau: jax.Array, alpha: jax.Array) -> Quantities:
    m = len(tau)
    p = jnp.full((m,), 1 / m)
    method, params = fjs.fedprox(client_optimizer=fjs.optim.sgd(1.0), mu=alpha), jnp.zeros(())
    clients = jax.vmap(lambda steps: nobody()._replace(steps=steps))(tau)
    a = accumulation(method, params, method.send(method.init(params, p)), clients, MOST)
    sums = jnp.sum(a, axis=1)
    effective, w = jnp.dot(p, sums), measures.normalised(p * sums)
    return Quantities(
        measures.chi_square(p, w), jnp.mean(tau.astype(p.dtype)) / effective,
        measures.relative_variance(w, a, effective),
    )  # fmt: skip


def of_solver(tau: np.ndarray, alpha: float) -> Quantities:
    """From the accumulation vectors a_i of the proximal solver itself (eta = 1, mu = alpha)."""
    return _measured(jnp.asarray(tau, jnp.int32), jnp.asarray(alpha))


def closed_form(tau: np.ndarray, alpha: float) -> Quantities:
    """From |a_i|_1 = [1 - (1 - alpha)^tau_i] / alpha and |a_i|_2^2, alpha (2 - alpha) in its place (geometric sums)."""
    one, two = _geometric(1 - alpha, tau), _geometric((1 - alpha) ** 2, tau)
    p, w, m = 1 / len(tau), one / one.sum(), len(tau)
    effective = one.mean()
    return Quantities(
        float(((p - w) ** 2 / w).sum()), float(tau.mean() / effective),
        float(m * effective * (w**2 * two / one**2).sum()),
    )  # fmt: skip


def _geometric(ratio: float, count: np.ndarray) -> np.ndarray:
    """1 + ratio + ... + ratio^(count - 1)."""
    return count.astype(float) if ratio == 1.0 else (1 - ratio**count) / (1 - ratio)


def stacked(rows: Sequence[Sequence[Quantities]]) -> Quantities:
    """Arrays [seeds, alphas] of the quantities."""
    return Quantities(*(np.array([[getattr(one, name) for one in row] for row in rows]) for name in Quantities._fields))


def _claims(found: dict[str, Quantities], means: dict[str, np.ndarray], errors: dict[str, float]) -> list[Claim]:
    """``means``: of tau, by reading and draw."""
    tight = 1e-9
    claims = [
        Claim("the solver's own accumulation vectors give the closed forms (within 1e-9)",
              all(error < tight for error in errors.values()), {"largest difference": errors},
              own=True),
    ]  # fmt: skip
    for reading, of in found.items():
        bias, slowdown, variance = (values.mean(axis=0) for values in of)
        second = reading != next(iter(READINGS))  # N(mean, variance) is the usual notation
        claims += [
            Claim(f"{reading}: the weight bias falls as alpha grows, and is 0 at alpha = 1",
                  bool((np.diff(of.weight_bias) < tight).all() and bias[-1] < tight < bias[0]),
                  {"alpha = 0, middle, 1": bias[[0, len(bias) // 2, -1]]}, own=second,
                  quote="As we increase α, the weights wi come closer to pi", place="Section V, Figure 4",
                  ours="with every draw; equality at alpha = 1 within 1e-9", identity=not second),
            Claim(f"{reading}: the slowdown grows with alpha, from 1 to the mean of tau at alpha = 1",
                  bool((np.diff(of.slowdown) > -tight).all() and np.abs(of.slowdown[:, 0] - 1).max() < tight
                       and np.abs(of.slowdown[:, -1] - means[reading]).max() < tight),
                  {"alpha = 0, middle, 1": slowdown[[0, len(slowdown) // 2, -1]],
                   "mean of tau": means[reading].mean()}, own=second,
                  quote="increasing α worsens the slowdown", place="Section V, Figure 4",
                  ours="with every draw; the ends within 1e-9", identity=not second),
            Claim(f"{reading}: the relative variance is 1 at both ends and smaller between",
                  bool(np.abs(of.relative_variance[:, [0, -1]] - 1).max() < tight and (variance[1:-1] < 1).all()),
                  {"alpha = 0, least, 1": [variance[0], variance.min(), variance[-1]]},
                  "follows from eq. 10; the paper shows the curve without words", True),
        ]  # fmt: skip
    return claims


def _table(alphas: np.ndarray, found: dict[str, Quantities]) -> Table:
    chosen = [int(np.argmin(np.abs(alphas - alpha))) for alpha in (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)]
    return Table(
        "Means of the draws",
        ("N(20, 20)", "alpha", *NAMES.values()),
        [(reading, float(alphas[k]), *(float(values[:, k].mean()) for values in of))
         for reading, of in found.items() for k in dict.fromkeys(chosen)],
        "The paper gives a figure only.",
    )  # fmt: skip


def _figure(alphas: np.ndarray, found: dict[str, Quantities]) -> Any:
    figure, [axes] = canvas(8.4, 3.6, 1, len(found), sharey=True)
    for ax, (reading, of) in zip(axes, found.items(), strict=True):
        for number, (name, values) in enumerate(zip(NAMES.values(), of, strict=True)):
            mean_and_band(ax, alphas, values, line_style(number), "range", stepped=False, label=name)
        ax.set_title(f"tau ~ N(20, 20): {reading}", fontsize="medium")
        ax.set(xlabel="alpha = eta mu", yscale="log", ylim=(LOWEST, 50))
        plain(ax)
    handles = axes[0].get_lines()
    seeds = len(next(iter(found.values())).slowdown)
    words = f"mean and range of {seeds} draws of tau" if seeds > 1 else None
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), title=words, **LEGEND)
    return figure


def _settings(bench: Bench) -> list[Setting]:
    row = bench.setting
    return [
        row("clients", "30, p_i = 1/30", smoke="4, p_i = 1/4"),
        row("tau_i", "N(20, 20), variance or standard deviation not said", "both, rounded and clipped to [1, 200]"),
        row("draws of tau", "not given (one)", len(bench.seeds)),
        row("alpha", "not given", "0 to 1"),
    ]
