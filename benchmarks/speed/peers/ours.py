"""fedjax_sim: all rounds as one program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.speed.peers.contract import Peer, Rounds
from benchmarks.speed.workloads import BATCH, RATE, Weights, Workload

PEER = Peer(
    title="fedjax_sim",
    requirements=(),
    configuration="rounds as one jitted program; the layout that the rule chooses; batches in stored order",
    framework=False,
    versions=("jax", "jaxlib"),
)


class Program:
    """Rounds [first, last) as one call of one program, whatever the two numbers are."""

    def __init__(self, work: Workload, *, shuffled: bool = False, layout: Any = None, model: Any = None) -> None:
        import jax
        from jax import lax

        import fedjax_sim as fjs
        from fedjax_sim.engine.checks import resolve
        from fedjax_sim.engine.plan import Plan
        from fedjax_sim.engine.rounds import init_state, run_round

        data = fjs.datasets.from_ids((work.x, work.y), np.repeat(np.arange(len(work.sizes)), work.sizes))
        asked = Plan(
            fjs.classification(_model(work) if model is None else model),
            fjs.cohort.given(work.cohorts),
            fjs.local.epochs(1),
            fjs.local.shuffled(BATCH) if shuffled else fjs.local.in_order(BATCH),
            layout,
            algorithm=fjs.fedavg(client_optimizer=fjs.optim.sgd(RATE)),
            dataset=data,
            key=jax.random.key(0),
        )
        self._names, self.plan = _names(work.start), resolve(asked, len(work.cohorts)).placed().everywhere()

        @functools.partial(jax.jit, donate_argnums=1)
        def program(plan, state, first, last):
            return lax.fori_loop(first, last, lambda t, state: run_round(plan, state, t)[0], state)

        self._initial, self._program = jax.jit(init_state), program

    def begin(self, weights: Weights) -> Any:
        """The state before a round, with these weights."""
        import jax.numpy as jnp

        named = zip(self._names, weights, strict=True)
        params = {"params": {name: {"kernel": jnp.array(w), "bias": jnp.array(b)} for name, (w, b) in named}}
        state = self._initial(self.plan, params)
        # Where the program leaves it, so that it is compiled for one place alone.
        layout = self.plan.layout
        return layout.everywhere(state._replace(clients=()))._replace(clients=layout.spread(state.clients))

    def advance(self, state: Any, first: int, last: int) -> Any:
        """The state before round ``last``, computed; the one that was given is used up."""
        import jax

        return jax.block_until_ready(self._program(self.plan, state, np.int32(first), np.int32(last)))

    def weights(self, state: Any) -> Weights:
        """The model of a state."""
        trained = state.server.params["params"]
        return [(np.asarray(trained[name]["kernel"]), np.asarray(trained[name]["bias"])) for name in self._names]


def make(work: Workload, **given: Any) -> Rounds:
    """The program from weights to weights; what is given are arguments of :class:`Program`."""
    program = Program(work, **given)
    return lambda weights, first, last: program.weights(program.advance(program.begin(weights), first, last))


def _model(work: Workload) -> Any:
    import fedjax_sim as fjs

    classes = work.start[-1][1].size
    if work.start[0][0].ndim == 4:
        return fjs.models.FemnistCNN(classes)
    widths = tuple(int(b.size) for _, b in work.start[:-1])
    return fjs.models.MLP(classes, widths) if widths else fjs.models.LogisticRegression(classes)


def _names(weights: Weights) -> list[str]:
    """flax's names of the layers, numbered by kind."""
    kinds = ["Conv" if w.ndim == 4 else "Dense" for w, _ in weights]
    return [f"{kind}_{kinds[:i].count(kind)}" for i, kind in enumerate(kinds)]


def simulate(work: Workload, tick: Callable[..., None], layout: Any = None) -> Weights:
    """The first round, then the others in up to three calls of the same program."""
    program = Program(work, layout=layout)
    state = program.advance(program.begin(work.start), 0, 1)
    tick()
    for piece in np.array_split(np.arange(1, len(work.cohorts)), min(3, len(work.cohorts) - 1)):
        state = program.advance(state, int(piece[0]), int(piece[-1]) + 1)
        tick(len(piece))
    return program.weights(state)
