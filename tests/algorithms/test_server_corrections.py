"""FedVARP, MimeLite, Mime and Scaffnew against plain numpy, in double precision; their limits; the work of ProxSkip.

Eight rounds as in ``test_golden_methods``: clients of unequal size, steps that differ by client and round, void slots,
dropped clients, a round in which everybody is dropped and one in which nobody is drawn.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.engine.plan import Plan
from tests import golden, reference
from tests import reference_methods as methods
from tests.algorithms.test_golden import KEY, PROBLEMS, assert_equal, follow, run
from tests.golden import FULL, FULL_TAU, both, check, setting

pytestmark = pytest.mark.xdist_group("server corrections")
slow = pytest.mark.slow
STEPS = np.full_like(FULL_TAU, 3)
EVERYBODY = {"cohorts": FULL, "eta_g": lambda t: 1.0}


class FedVarp(methods.FedAvg):
    """FedVARP: v = mean_S (Delta_i - h_i) + sum_j share_j h_j, then h_i <- Delta_i."""

    def __init__(self, run):
        super().__init__(run)
        self.h = np.zeros((run.N, len(run.x0)))

    def pseudo_gradient(self, t, S, x, ends):
        v = self.mean(t, S, [ends[i] - x - self.h[i] for i in S]) + self.run.share @ self.h
        for i in S:
            self.h[i] = ends[i] - x
        return v


class Scaffnew(methods.FedAvg):
    """Scaffnew after the tau_i steps of a round: h_i <- h_i + (p / gamma) (mean_j y_j - y_i)."""

    def __init__(self, run, p):
        super().__init__(run)
        self.p, self.h = p, np.zeros((run.N, len(run.x0)))

    def local(self, t, i, x):
        return self.solve(t, i, x, lambda g: g - self.h[i])

    def pseudo_gradient(self, t, S, x, ends):
        delta = super().pseudo_gradient(t, S, x, ends)
        for i in S:
            self.h[i] = self.h[i] + self.p / self.run.eta(t, i) * (x + delta - ends[i])
        return delta


@dataclasses.dataclass
class Momentum:
    """U = l (g + beta m), V: m <- beta m + g; with l = 1 - beta the paper's, whose m is l times this one."""

    beta: float = 0.9
    rate: float = 0.1
    m: object = 0.0

    def U(self, g):
        return self.rate * (g + self.beta * self.m)

    def V(self, g):
        self.m = self.beta * self.m + g


@dataclasses.dataclass
class Adam:
    """U = ((1 - beta1) g + beta1 m) / (sqrt(v) + tau) with v as it is; V moves both; v_0 = tau^2."""

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.05
    m: object = 0.0
    adagrad: bool = False

    def __post_init__(self):
        self.v = self.tau**2

    def U(self, g):
        return ((1 - self.beta1) * g + self.beta1 * self.m) / (np.sqrt(self.v) + self.tau)

    def V(self, g):
        self.m = (1 - self.beta1) * g + self.beta1 * self.m
        self.v = self.v + g**2 if self.adagrad else self.beta2 * self.v + (1 - self.beta2) * g**2


class MimeLite(methods.FedAvg):
    """MimeLite: steps of U, then V along the mean of grad F_i(x) over those who took part."""

    def __init__(self, run, optimizer):
        super().__init__(run)
        self.optimizer = optimizer

    def collect(self, S, x):
        weights = reference.cohort_weights(self.run.clients, S, self.run.average)
        return weights @ np.array([self.run.clients[i].full_gradient(x) for i in S])

    def local(self, t, i, x):
        return self.solve(t, i, x, self.optimizer.U)

    def round(self, t, S, x):
        new = super().round(t, S, x)
        self.optimizer.V(self.collect(S, x))
        return new


class Mime(MimeLite):
    """Mime: steps of U along g(y; b) - g(x; b) + c; c is the mean over all who were drawn, dropped or not."""

    def local(self, t, i, x):
        client, y = self.run.clients[i], x
        for k in range(self.run.tau[t, i]):
            y = y - self.run.eta(t, i) * self.optimizer.U(client.gradient(y, k) - client.gradient(x, k) + self.c)
        return y

    def round(self, t, S, x):
        self.c = self.collect(self.run.drawn(t), x)
        new = methods.FedAvg.round(self, t, S, x)
        self.optimizer.V(self.c)
        return new


def descent(run):
    """Gradient descent on the plain mean, tau steps of everybody counted as one."""
    x, models = run.x0, [run.x0]
    for t in range(len(run.cohorts)):
        x = x - run.eta(t, 0) * np.mean([client.full_gradient(x) for client in run.clients], axis=0)
        models.append(x)
    return np.array(models)


def test_the_references_have_the_limits_that_the_papers_name():
    problem = PROBLEMS["whole"]()
    full = functools.partial(setting, problem, average="plain", **EVERYBODY)
    averaged = methods.trajectory(methods.FedAvg(full(tau=FULL_TAU + 1)))
    assert_equal(methods.trajectory(FedVarp(full(tau=FULL_TAU + 1))), averaged)
    assert_equal(methods.trajectory(MimeLite(full(tau=FULL_TAU + 1), Momentum(0.0, 1.0))), averaged)
    assert_equal(methods.trajectory(Scaffnew(full(tau=FULL_TAU + 1), 0.0)), averaged)
    one = full(tau=np.ones_like(FULL_TAU))
    assert_equal(methods.trajectory(Scaffnew(one, 1.0)), descent(one))
    # one step each of everybody: the server's optimiser on all data, here the momentum with its 1 - beta
    x, m, models = problem.x0, 0.0, [problem.x0]
    for t in range(len(FULL)):
        m = 0.9 * m + 0.1 * np.mean([client.full_gradient(x) for client in problem.clients], axis=0)
        x = x - one.eta(t, 0) * m
        models.append(x)
    assert_equal(methods.trajectory(Mime(one, Momentum(0.9, 0.1))), models)
    assert_equal(methods.trajectory(MimeLite(one, Momentum(0.9, 0.1))), models)
    # SGD and full gradients: FedDANE without its proximal term
    unequal = setting(problem, average="plain")
    sgd = methods.trajectory(Mime(unequal, Momentum(0.0, 1.0)))
    assert_equal(sgd, methods.trajectory(methods.FedDane(unequal, 0.0)))


@pytest.mark.parametrize(
    ("average", "rho"), [("plain", 0.5), pytest.param("sample", 0.0, marks=slow)], ids=["plain", "sample"]
)
def test_fedvarp(x64, average, rho):
    problem = PROBLEMS["whole" if average == "plain" else "logistic"]()
    expected = FedVarp(setting(problem, average=average, rho=rho))
    result = check(problem, fjs.fedvarp(**both(rho=rho)), expected)
    kept = [np.concatenate([np.ravel(leaf[i]) for leaf in jax.tree.leaves(result.state.clients)]) for i in range(6)]
    assert_equal(kept, expected.h)
    assert_equal(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.state.server.extra)]),
                 expected.run.share @ expected.h)  # fmt: skip


SGD, ADAM = fjs.optim.sgd(0.1, momentum=0.9), fjs.optim.fedadam(0.9, 0.99, 0.05)
MIMICKED = {
    "momentum": (None, Momentum),
    "adam": (ADAM, Adam),
    "adagrad": (fjs.optim.fedadagrad(0.9, 0.99, 0.05), functools.partial(Adam, adagrad=True)),
    "nesterov, forgotten": (fjs.optim.sgd(0.5, momentum=0.6, nesterov=True), None),
}
FAST = [(fjs.mime, "momentum", "plain")]


class Nesterov(Momentum):
    """U = l (g + beta (g + beta m)): the step that would come next."""

    def U(self, g):
        return self.rate * (g + self.beta * (g + self.beta * self.m))


@pytest.mark.parametrize(
    ("make", "mimicked", "average"),
    [
        pytest.param(*case, marks=[] if case in FAST else [slow], id="-".join(map(str, (case[0].__name__, *case[1:]))))
        for case in [*FAST, (fjs.mime_lite, "adam", "plain"), (fjs.mime_lite, "momentum", "sample"),
                     (fjs.mime, "adam", "sample"),
                     (fjs.mime, "adagrad", "plain"), (fjs.mime_lite, "nesterov, forgotten", "plain")]
    ],
)  # fmt: skip
def test_mime(x64, make, mimicked, average):
    """On batches; tau = 0 drops a client from MimeLite's statistics, and from Mime's steps alone."""
    problem = PROBLEMS["logistic"]()
    optimizer, rule = MIMICKED[mimicked]
    rule = rule() if rule else Nesterov(0.6, 0.5)
    more = {} if optimizer is None else {"server_optimizer": optimizer}  # momentum is what both mimic by themselves
    made = {fjs.mime: Mime, fjs.mime_lite: MimeLite}[make](setting(problem, average=average), rule)
    result = check(problem, make(**more, **both()), made)
    if mimicked == "adam":
        moments = result.state.server.optimizer
        for kept, expected in ((moments.first, rule.m), (moments.second, rule.v)):
            assert_equal(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(kept)]), expected)


@slow
def test_mime_in_pieces_is_feddane_and_mime_lite_of_nothing_is_fedavg(x64):
    problem = PROBLEMS["logistic-full"]()
    mime = run(problem, fjs.mime(server_optimizer=None, **both(scale=0.5)), average="plain")
    assert_equal(mime.x, run(problem, fjs.feddane(same_cohort=True, **both(scale=0.5)), average="plain").x)
    lite = fjs.mime_lite(server_optimizer=None, **both())
    assert_equal(run(problem, lite, average="plain").x, run(problem, fjs.fedavg(**both()), average="plain").x)


@pytest.mark.parametrize(
    ("average", "rho"), [("plain", 0.5), pytest.param("sample", 0.0, marks=slow)], ids=["plain", "sample"]
)
def test_scaffnew_with_unequal_work(x64, average, rho):
    """A dropped client keeps its h_i; sum share_i h_i stays zero whatever the tau_i, if nobody is dropped."""
    problem = PROBLEMS["whole" if average == "plain" else "logistic"]()
    algorithm = fjs.scaffnew(p=0.3, **both(rho=rho))
    check(problem, algorithm, Scaffnew(setting(problem, cohorts=FULL, tau=FULL_TAU, average=average, rho=rho), 0.3))
    tau = np.maximum(FULL_TAU, 1)
    given = {"cohorts": FULL, "tau": tau, "average": None if average == "plain" else average}
    kept = run(problem, algorithm, **given).state.clients
    share = setting(problem, average=average).share
    for leaf in jax.tree.leaves(kept):
        assert np.abs(leaf).max() > 1e-2
        assert_equal(np.tensordot(share, leaf, 1), 0 * leaf[0])


@pytest.mark.slow
def test_scaffnew_in_rounds_of_geometric_length(x64):
    """As the paper has it: one coin for all, a round ends when it falls."""
    problem, rounds, p = PROBLEMS["whole"](), len(FULL), 0.4
    asked = Plan(
        task=problem.task, cohort=fjs.cohort.full(), work=fjs.local.geometric(p), batches=problem.batches,
        layout=fjs.layout.turns(),
    )  # fmt: skip
    drawn = fjs.draws(
        fjs.scaffnew(client_optimizer=fjs.optim.sgd(0.1)), problem.dataset, task=problem.task, rounds=rounds, seed=3,
        cohort=asked.cohort, work=asked.work, batches=problem.batches,
    ).steps  # fmt: skip
    assert (drawn == drawn[:, :1]).all()
    assert len(np.unique(drawn)) > 1
    method = fjs.scaffnew(p=p, **golden.client())
    result = follow(asked, method, problem.dataset, problem.initial_params(), rounds, key=jax.random.key(3))
    expected = Scaffnew(setting(problem, tau=drawn, average="plain", **EVERYBODY), p)
    assert_equal(result.x, methods.trajectory(expected))


@pytest.mark.slow
def test_p_is_differentiated_and_the_coin_is_not(x64):
    problem, p = PROBLEMS["whole"](), 0.4
    train = fjs.make_train(
        task=problem.task, rounds=3, cohort=fjs.cohort.full(), work=fjs.local.geometric(p), batches=problem.batches,
        eval_every=3,
    )  # fmt: skip

    @jax.jit
    @jax.value_and_grad
    def loss(p):
        method = fjs.scaffnew(client_optimizer=fjs.optim.sgd(0.1), p=p)
        result = train(method, problem.dataset, KEY, initial_params=problem.initial_params())
        return jnp.sum(result.state.clients**2) + result.metrics["loss"][-1]

    step = 1e-5
    central = (loss(p + step)[0] - loss(p - step)[0]) / (2 * step)
    np.testing.assert_allclose(loss(p)[1], central, rtol=1e-7)


@slow
def test_scaffnew_of_a_fixed_number_of_steps_is_vrl_sgd(x64):
    """p = 1 / tau. Where tau_i differ it finds the minimum that VRL-SGD misses."""
    problem = PROBLEMS["whole"]()
    fixed = {"cohorts": FULL, "tau": STEPS}
    assert_equal(
        run(problem, fjs.scaffnew(p=1 / 3, **both()), **fixed).x, run(problem, fjs.vrl_sgd(**both()), **fixed).x
    )
    H, e = (np.mean([getattr(client, name) for client in problem.clients], axis=0) for name in ("H", "e"))
    steps = jnp.array([[1, 2, 3, 4, 5, 2]] * 800)
    train = fjs.make_train(
        task=problem.task, rounds=800, cohort=fjs.cohort.full(), work=fjs.local.given_steps(steps, most=5),
        batches=problem.batches, eval_every=800,
    )  # fmt: skip
    sgd = {"client_optimizer": fjs.optim.sgd(0.05)}
    found = [train(made, problem.dataset, KEY).params for made in (fjs.scaffnew(p=0.3, **sgd), fjs.vrl_sgd(**sgd))]
    assert np.abs(found[0] - np.linalg.solve(H, e)).max() < 1e-9
    assert np.abs(found[1] - np.linalg.solve(H, e)).max() > 1e-2


@slow
def test_fedvarp_without_the_noise_of_cohorts(x64):
    """At a constant rate FedAvg of two clients of six never comes to rest; FedVARP does, where FedAvg of all does."""
    problem = PROBLEMS["whole"]()
    run_ = {"task": problem.task, "rounds": 600, "work": fjs.local.steps(3), "batches": problem.batches,
            "eval_every": 600}  # fmt: skip
    found = {
        name: fjs.make_train(cohort=cohort, **run_)(make(client_optimizer=fjs.optim.sgd(0.05)), problem.dataset, KEY)
        for name, make, cohort in (
            ("all", fjs.fedavg, fjs.cohort.full(average="plain")),
            ("fedavg", fjs.fedavg, fjs.cohort.uniform(2, average="plain")),
            ("fedvarp", fjs.fedvarp, fjs.cohort.uniform(2)),
        )
    }
    apart = {name: np.abs(result.params - found["all"].params).max() for name, result in found.items()}
    assert apart["fedvarp"] < 1e-9
    assert apart["fedavg"] > 1e-2


def test_what_they_refuse_before_anything_compiles():
    data, local = fjs.datasets.quadratics(num_clients=4, dim=2), {"client_optimizer": fjs.optim.sgd(0.1)}

    def asked(method, cohort, **more):
        given = {"work": fjs.local.steps(1), **more}
        return fjs.simulate(method, data, task=fjs.quadratic(), rounds=1, cohort=cohort, batch_size=2, **given)

    for method in (fjs.mime(**local), fjs.mime_lite(**local), fjs.fedvarp(**local)):
        with pytest.raises(ValueError, match="original"):
            asked(method, fjs.cohort.original(2))
    for make in (fjs.fedvarp, fjs.scaffnew):
        with pytest.raises(ValueError, match=r"drawn twice|everybody|every client|slot"):
            asked(make(**local), fjs.cohort.with_replacement(3))
    with pytest.raises(ValueError, match="scaffnew"):
        fjs.scaffnew(p=1.5, **local)
    with pytest.raises(ValueError, match="in an exchange of their own"):
        fjs.dp(fjs.mime(**local))
    for method in (fjs.mime_lite(**local), fjs.fedvarp(**local)):
        with pytest.raises(ValueError, match=r"gradient|memory"):
            asked(fjs.dp(method), fjs.cohort.uniform(2))
    with pytest.raises(ValueError, match=r"several exchanges"):
        asked(
            fjs.mime(**local), fjs.cohort.uniform(2), asynchronous=fjs.asynchronous.fedbuff(buffer=2),
            system=fjs.systems.devices(seconds_per_step=1.0),
        )  # fmt: skip


# docs/choose.md: is a minimum of F where x rests, with equal and with unequal steps; does x rest if cohorts are drawn?
RESTING = {
    "fedavg": (fjs.fedavg, {}, (False, False, False)),
    "fedavgm": (fjs.fedavgm, {"momentum": 0.5}, (False, False, False)),
    "fedexp": (fjs.fedexp, {}, (False, False, False)),
    "fedprox": (fjs.fedprox, {"mu": 1.0}, (False, False, False)),
    "large_batch_sgd": (fjs.large_batch_sgd, {}, (True, True, False)),
    "fednova": (fjs.fednova, {}, (False, False, False)),
    "fednova, reduced": (fjs.fednova, {"variance_reduction": True}, (True, True, True)),
    "scaffold": (fjs.scaffold, {}, (True, True, True)),
    "scaffold I": (fjs.scaffold, {"option": "I"}, (True, True, True)),
    "vrl_sgd": (fjs.vrl_sgd, {}, (True, False, None)),
    "scaffnew": (fjs.scaffnew, {"p": 0.3}, (True, True, None)),
    "feddyn": (fjs.feddyn, {"alpha": 1.0}, (True, True, True)),
    "fedvarp": (fjs.fedvarp, {}, (False, False, True)),
    "feddane": (fjs.feddane, {}, (True, True, False)),
    "fedcm": (fjs.fedcm, {"alpha": 0.5}, (False, False, False)),
    "mime_lite": (fjs.mime_lite, {}, (False, False, False)),
    "mime": (fjs.mime, {}, (True, True, False)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", RESTING)
def test_where_methods_rest(x64, name):
    make, options, expected = RESTING[name]
    problem, rounds = PROBLEMS["whole"](), 3000
    H, e = (np.mean([getattr(client, field) for client in problem.clients], axis=0) for field in ("H", "e"))
    unequal = jnp.tile(jnp.arange(1, 7), (rounds, 1))
    everybody, drawn = fjs.cohort.full(average="plain"), fjs.cohort.uniform(2, average="plain")
    settings = [(everybody, fjs.local.steps(4)), (everybody, fjs.local.given_steps(unequal, most=6)),
                (drawn, fjs.local.steps(4))]  # fmt: skip
    for number, (cohort, work) in enumerate(settings):
        if expected[number] is None:
            continue
        train = fjs.make_train(
            task=problem.task, rounds=rounds, cohort=cohort, work=work, batches=problem.batches, eval_every=10,
            evaluate=lambda x, _: {"x": x},
        )  # fmt: skip
        method = make(client_optimizer=fjs.optim.sgd(0.03), **options)
        x = np.asarray(jax.jit(train)(method, problem.dataset, KEY).metrics["x"])
        apart = x[-1] - np.linalg.solve(H, e) if number < 2 else x[-20:] - x[-1]
        assert (np.abs(apart).max() < 1e-8) == expected[number], (number, apart)
