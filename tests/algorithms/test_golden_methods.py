"""Golden trajectories of methods with local corrections and several exchanges, against plain numpy.

Eight rounds of the problems of ``test_golden``: six clients of unequal size, steps that differ by client and round,
void slots, clients dropped by zero steps, a round in which everybody is dropped and one in which nobody is drawn.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fjs
from fedjax_sim.engine.plan import Plan
from tests import golden, reference
from tests import reference_memory as memory
from tests import reference_methods as methods
from tests import reference_server as servers
from tests.algorithms.test_golden import KEY, PROBLEMS, assert_equal, by_client, drawn, follow, over_clients, run
from tests.golden import COHORTS, FULL, FULL_TAU, TAU, both, check, setting

slow = pytest.mark.slow


def rest_slow(cases, fast=1):
    """All cases, of which the first ones run every time."""
    return [case if number < fast else pytest.param(case, marks=slow) for number, case in enumerate(cases)]


def test_the_reference_agrees_with_itself():
    # closed forms of the slope, and methods that must coincide, in numpy alone
    for tau in (1, 4, 9):
        forms = {
            0.1 * tau: {},
            0.1 * reference.norm_proximal(tau, 0.25): {"mu": 2.5},
            0.1 * reference.norm_momentum(tau, 0.9): {"rho": 0.9},
            0.1 * (1 - 0.8**tau) / 0.2: {"gamma": 0.8},
            0.1 * reference.accumulation(tau, 0.1, 2.5, 0.9).sum(): {"mu": 2.5, "rho": 0.9},
        }
        for form, solver in forms.items():
            assert methods.slope(tau, 0.1, **solver) == pytest.approx(form, rel=1e-12)
        for mu, rho in [(0.0, 0.0), (2.5, 0.0), (0.0, 0.9)]:  # where the authors' normaliser is not inconsistent
            z = methods.authors_normaliser(tau, 0.1, mu, rho)
            assert 0.1 * z == pytest.approx(methods.slope(tau, 0.1, mu=mu, rho=rho), rel=1e-12)

    problem = PROBLEMS["quadratic"]()
    plain, arguments = setting(problem, average="plain"), (problem.clients, problem.x0)
    averaged = methods.trajectory(methods.FedAvg(plain))
    nova = methods.trajectory(methods.FedNova(plain))
    assert_equal(methods.trajectory(memory.FedCm(plain, 1.0)), averaged)
    assert_equal(methods.trajectory(memory.FedCm(plain, 1.0, "direction")), nova)
    assert_equal(methods.trajectory(servers.QFedAvg(plain, 0.0)), averaged)
    older = reference.fednova(*arguments, COHORTS, TAU, golden.by_round, eta_g=plain.eta_g, average="plain")
    assert_equal(nova, older)

    steps = np.full_like(TAU, 3)
    for average, corrected in [("plain", memory.VrlSgd), ("sample", lambda run: methods.FedNova(run, 0, None, True))]:
        full = setting(problem, cohorts=FULL, tau=steps, average=average, eta=lambda t, i: 0.03, eta_g=lambda t: 1.0)
        scaffold = reference.scaffold(*arguments, FULL, steps, full.eta, option="II", average=average)
        assert_equal(methods.trajectory(corrected(full)), scaffold.x)
    weighted = methods.trajectory(memory.FedAware(full, alpha=1.0, weights="sample"))
    assert_equal(weighted, methods.trajectory(methods.FedAvg(full)))


@pytest.mark.parametrize("kind", rest_slow(["quadratic", "logistic"]))
def test_fedprox_with_adaptive_mu(x64, kind):
    # a server step of 3 makes F rise and fall; nothing is counted in a round without clients, not even in the first
    problem = PROBLEMS[kind]()
    paths = []
    for mu, patience, first in [(0.15, 2, 0), (0.0, 1, 0), (0.5, 1, 3)]:
        given = {"cohorts": np.roll(COHORTS, -first, axis=0), "tau": np.roll(TAU, -first, axis=0)}
        expected = methods.AdaptiveFedProx(setting(problem, eta_g=lambda t: 3.0, **given), mu, 0.2, patience)
        algorithm = fjs.fedprox(
            mu=mu, adaptive=True, increment=0.2, patience=patience, server_learning_rate=3.0, **golden.client()
        )
        result = check(problem, algorithm, expected)
        paths.append(expected.path)
        # recorded is what a round used; a round without clients goes on with the same
        used = np.cumsum([0, *(len(expected.taking_part(t)) > 0 for t in range(len(TAU) - 1))])
        np.testing.assert_allclose(result.rounds["mu"], np.array(expected.path)[used], rtol=1e-12)
    if kind == "quadratic":
        assert any(np.diff(path).max() > 0 and np.diff(path).min() < 0 for path in paths)


@slow
@pytest.mark.parametrize("same", [False, True])
def test_feddane(x64, same):
    # given cohorts are the same in both phases; nobody is dropped from phase 1
    problem = PROBLEMS["logistic"]()
    for mu in (0.0, 0.7):
        algorithm = fjs.feddane(mu=mu, same_cohort=same, **both())
        check(problem, algorithm, methods.FedDane(setting(problem), mu))


@slow
@pytest.mark.parametrize("same", [False, True])
def test_feddane_draws_two_cohorts(x64, same):
    problem = PROBLEMS["whole"]()
    cohort, data, rounds = fjs.cohort.uniform(3), problem.dataset, len(TAU)
    draws = jax.jit(jax.vmap(lambda key, t: cohort.draw(data, key, t).ids, (None, 0)))
    ts = jnp.arange(rounds, dtype=jnp.int32)
    first, second = (np.searchsorted(problem.ids, draws(key, ts)) for key in (jax.random.fold_in(KEY, 1), KEY))
    assert (np.sort(first) != np.sort(second)).any()
    run_ = Plan(
        task=problem.task, cohort=cohort, work=fjs.local.given_steps(TAU), batches=problem.batches,
        layout=fjs.layout.turns(),
    )  # fmt: skip
    algorithm = fjs.feddane(mu=0.3, same_cohort=same, **both())
    result = follow(run_, algorithm, data, problem.initial_params(), rounds)
    expected = methods.FedDane(setting(problem, cohorts=second), 0.3, second if same else first)
    assert_equal(result.x, methods.trajectory(expected))
    # of both phases: a full gradient each of the first cohort; steps, and another full gradient, of the second
    steps = [3 + sum(TAU[t, i] + 1 for i in expected.taking_part(t)) for t in range(rounds)]
    assert result.rounds["useful_steps"].tolist() == result.rounds["computed_steps"].tolist() == steps


def test_dane(x64):
    # everybody; the tolerance ends some clients' work and tau that of others
    problem = PROBLEMS["whole"]()
    for mu, tolerance in [(0.5, 0.6), (0.1, 0.0)]:
        expected = methods.Dane(setting(problem, cohorts=FULL, tau=FULL_TAU, scale=3.0), mu, tolerance)
        check(problem, fjs.dane(mu=mu, tolerance=tolerance, **both(scale=3.0)), expected)
        if tolerance:
            spent = [FULL_TAU[t, i] for t in range(len(FULL)) for i in expected.taking_part(t)]
            assert 0 < np.sum(np.array(expected.steps) < spent) < len(spent)


FEDNOVA = {
    "variance reduction, momentum": [({"variance_reduction": True}, {"rho": 0.6}, {"average": "plain"})],
    "proximal: tau_eff = sum w tau": [({"mu": 1.5}, {}, {}), ({"mu": 0.3}, {}, {})],
    "proximal, sum w s": [({"mu": 1.5, "tau_eff": "slope"}, {"rho": 0.4}, {})],
    "sum w tau": [({"tau_eff": "steps"}, {"rho": 0.7}, {})],
    "given tau_eff, decayed": [
        ({"tau_eff": 4.0}, {"gamma": 0.8}, {}),
        ({"tau_eff": 1.5}, {"gamma": 0.6}, {}),
    ],
    "momentum, decayed": [({}, {"rho": 0.9, "gamma": 0.7}, {})],
    "Nesterov": [({}, {"rho": 0.8, "nesterov": True}, {})],
    "variance reduction": [({"variance_reduction": True}, {}, {"average": "sample"})],
    "variance reduction, proximal": [({"variance_reduction": True, "mu": 0.8, "tau_eff": "slope"}, {"rho": 0.5}, {})],
    "authors' normaliser": [
        ({"mu": 1.5, "prox_momentum": "outside"}, {"rho": 0.9}, {}),
        ({"mu": 0.4, "prox_momentum": "outside"}, {"rho": 0.5}, {}),
    ],
    "authors' normaliser, sum w s": [({"mu": 1.5, "prox_momentum": "outside", "tau_eff": "slope"}, {"rho": 0.9}, {})],
}


@pytest.mark.parametrize("variant", rest_slow(FEDNOVA, 2))
def test_fednova(x64, variant):
    problem = PROBLEMS["logistic"]()
    for options, solver, more in FEDNOVA[variant]:
        here = {key: value for key, value in options.items() if key != "prox_momentum"}
        expected = methods.FedNova(setting(problem, **solver, **more), outside="prox_momentum" in options, **here)
        check(problem, fjs.fednova(**options, **both(**solver)), expected)


@slow
def test_fednova_of_unequal_step_sizes(x64):
    # the step is sum w_i eta_i s_i (or eta_i tau_i) times sum w_i Delta_i / (eta_i s_i)
    problem = PROBLEMS["quadratic"]()
    for tau_eff in ("slope", "steps"):
        expected = methods.FedNova(setting(problem, eta=by_client, rho=0.5), tau_eff=tau_eff)
        check(problem, fjs.fednova(tau_eff=tau_eff, **both(rate=over_clients(), rho=0.5)), expected)


class AdamNova(methods.FedNova):
    """FedNova with Adam on the clients (optax's, eps_root 1e-16): normalised by its path against unit gradients."""

    def adam(self, t, i, y, gradient):
        eta, m, v = self.run.eta(t, i), 0.0, 0.0
        for k in range(self.run.tau[t, i]):
            g = gradient(y, k)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            y = y - eta * m / (1 - 0.9 ** (k + 1)) / (np.sqrt(v / (1 - 0.999 ** (k + 1)) + 1e-16) + 1e-8)
        return y

    def local(self, t, i, x):
        return self.adam(t, i, x, self.run.clients[i].gradient)

    def normaliser(self, t, i):
        return -self.adam(t, i, 0.0, lambda y, k: 1.0)


@slow
def test_fednova_with_adam_is_opt_in(x64):
    problem, arguments = PROBLEMS["logistic"](), {**both(), "client_optimizer": fjs.optim.adam(1.0)}
    with pytest.raises(ValueError, match="linear"):
        fjs.fednova(**arguments)
    check(problem, fjs.fednova(accept_nonlinear=True, **arguments), AdamNova(setting(problem)))


@slow
def test_fednova_with_server_momentum(x64):
    problem = PROBLEMS["quadratic"]()
    run_ = setting(problem, rule=lambda: servers.Momentum(0.6), rho=0.5)
    algorithm = fjs.fednova(server_optimizer=fjs.optim.sgd(1.0, momentum=0.6), **both(rho=0.5))
    check(problem, algorithm, methods.FedNova(run_))


@pytest.mark.parametrize(
    ("average", "rho"), [("plain", 0.5), pytest.param("sample", 0.0, marks=slow)], ids=["plain", "sample"]
)
def test_vrl_sgd_with_dropped_clients(x64, average, rho):
    # a dropped client keeps its v_i, made from the average of the round that it was last in
    problem = PROBLEMS["whole" if average == "plain" else "logistic"]()
    full = {"cohorts": FULL, "tau": FULL_TAU, "average": average, "eta_g": lambda t: 1.0}
    check(problem, fjs.vrl_sgd(**golden.client(rho=rho)), memory.VrlSgd(setting(problem, rho=rho, **full)))


@slow
def test_vrl_sgd_with_a_server_step(x64):
    # xhat is the average of the models, whatever the server makes of it
    problem = PROBLEMS["quadratic"]()
    check(problem, fjs.vrl_sgd(**both()), memory.VrlSgd(setting(problem, cohorts=FULL, tau=FULL_TAU, average="plain")))


@pytest.mark.parametrize("scaling", rest_slow(["mean", "direction"]))
def test_fedcm(x64, scaling):
    problem = PROBLEMS["whole" if scaling == "mean" else "logistic"]()
    for alpha, rho in [(0.1, 0.0), (0.6, 0.5)]:
        expected = memory.FedCm(setting(problem, average="plain", rho=rho), alpha, scaling)
        check(problem, fjs.fedcm(alpha=alpha, scaling=scaling, **both(rho=rho)), expected)


@pytest.mark.parametrize("form", rest_slow(["paper", "code"]))
def test_feddyn(x64, form):
    problem = PROBLEMS["whole" if form == "paper" else "logistic"]()
    make = {"paper": memory.FedDyn, "code": memory.FedDynCode}[form]
    for alpha, rho in [(0.5, 0.0), (2.0, 0.4)]:
        expected = make(setting(problem, average="plain", rho=rho), alpha)
        check(problem, fjs.feddyn(alpha=alpha, form=form, **both(rho=rho)), expected)


@pytest.mark.parametrize("kind", rest_slow(["quadratic", "logistic"]))
def test_large_batch_sgd(x64, kind):
    # one full local gradient of everybody who was drawn, whatever the work and the batches say
    problem = PROBLEMS[kind]()
    check(problem, fjs.large_batch_sgd(**both()), methods.LargeBatchSgd(setting(problem)))


def test_local_sgd(x64):
    problem = PROBLEMS["whole"]()
    check(problem, fjs.local_sgd(**both()), methods.FedAvg(setting(problem, cohorts=FULL, tau=FULL_TAU)))


AWARE = {
    "shortest": {},
    "all candidates": {"candidates": "all"},
    "uniform": {"weights": "uniform"},
    "uniform over all": {"weights": "uniform", "candidates": "all"},
    "by size": {"weights": "sample"},
    "normalised": {"normalised": True},
    "warm-up": {"warm_up": True},
    "one layer": {"layers": ("kernel",)},
    "clusters": {"clusters": np.array([0, 1, 0, 2, 1, 2])},
    "uniform over clusters": {"clusters": np.array([0, 1, 0, 2, 1, 2]), "weights": "uniform"},
}


@pytest.mark.parametrize("variant", rest_slow(AWARE))
def test_fedaware(x64, variant):
    problem = PROBLEMS["whole" if variant == "shortest" else "logistic"]()
    options = AWARE[variant]
    here = {key: value for key, value in options.items() if key != "layers"}
    coordinates = slice(3, None) if "layers" in options else slice(None)  # the bias comes first
    for alpha in (0.5, 0.9):
        expected = memory.FedAware(setting(problem), alpha=alpha, coordinates=coordinates, **here)
        check(problem, fjs.fedaware(alpha=alpha, **options, **both()), expected)


def test_a_layer_is_a_whole_part_of_a_path():
    momenta = {name: {"kernel": np.ones((2, 3))} for name in ("Dense_1", "Dense_10")}
    chosen = fjs.fedaware(layers="Dense_1", **both())._of_layers(momenta)
    assert [name for name in momenta if chosen[name]["kernel"] is not None] == ["Dense_1"]
    with pytest.raises(ValueError, match=r"fedaware\(layers=...\): no parameter has 'Dense_2' in its path"):
        fjs.fedaware(layers=("Dense_1", "Dense_2"), **both())._of_layers(momenta)


def bases(problem):
    """Methods that AWARE extends, of the package and of the reference."""
    moment = setting(problem, rule=lambda: servers.Momentum(0.7))
    return {
        "fedavgm": (fjs.fedavgm(momentum=0.7, **both()), methods.FedAvg(moment)),
        "fednova": (fjs.fednova(variance_reduction=True, **both()), methods.FedNova(setting(problem), 0, None, True)),
        "feddane": (fjs.feddane(mu=0.3, **both()), methods.FedDane(setting(problem), 0.3)),
        "fedprox": (
            fjs.fedprox(mu=0.3, adaptive=True, patience=1, **both()),
            methods.AdaptiveFedProx(setting(problem), 0.3, patience=1),
        ),
    }


@pytest.mark.parametrize("name", rest_slow(["fedavgm", "fednova", "feddane", "fedprox"]))
def test_aware_projects_the_step_of_any_method(x64, name):
    problem = PROBLEMS["whole" if name == "fedavgm" else "logistic"]()
    algorithm, base = bases(problem)[name]
    check(problem, fjs.aware(algorithm, alpha=0.6), memory.Aware(base, alpha=0.6))


def test_aware_refuses_feddyn():
    # Proposition 3.1 extends x <- x - eta_g d~, a form that FedDyn does not have
    with pytest.raises((TypeError, ValueError), match=r"(?i)feddyn"):
        fjs.aware(fjs.feddyn(**both()))


def test_aware_refuses_averages_of_models_that_it_moves():
    for average in (fjs.ema, fjs.last_k):
        with pytest.raises(ValueError, match="those before the projection: put ema or last_k outside"):
            fjs.aware(fjs.clipped(average(fjs.fedavg(**both()))))
        average(fjs.aware(fjs.fedavg(**both())))


@slow
@pytest.mark.parametrize("layout", [fjs.layout.stacked(), fjs.layout.lanes(2)], ids=["stacked", "lanes"])
def test_every_layout(x64, layout):
    # work that ends early, stacked messages, state of the clients, surveys
    problem = PROBLEMS["logistic-full"]()
    full = setting(problem, cohorts=FULL, tau=FULL_TAU)
    for algorithm, expected in [
        (fjs.dane(mu=0.5, tolerance=0.3, **both()), methods.Dane(full, 0.5, 0.3)),
        (fjs.vrl_sgd(**both()), memory.VrlSgd(dataclasses.replace(full, average="plain"))),
        (fjs.aware(fjs.feddane(mu=0.3, **both())), memory.Aware(methods.FedDane(setting(problem), 0.3))),
    ]:
        check(problem, algorithm, expected, layout=layout)


@pytest.mark.parametrize("average", rest_slow(["transformed", "scheme_ii", "original"], 2))
def test_averaging_schemes(x64, average):
    # dropped stragglers: x stays in the place of their models
    problem = PROBLEMS["whole" if average == "transformed" else "logistic"]()
    run_ = setting(problem, average=average)
    for mu in (0.0, 0.9):
        check(problem, fjs.fedprox(mu=mu, **both()), methods.FedAvg(run_, mu))


def test_fednova_refuses_weights_that_do_not_sum_to_one(x64):
    problem = PROBLEMS["quadratic"]()
    for average in ("original", "scheme_ii"):
        with pytest.raises(ValueError, match=average):
            run(problem, fjs.fednova(**both()), average=average)


@slow
def test_inverse_probabilities_need_a_random_cohort(x64):
    with pytest.raises(ValueError, match="inverse"):
        fjs.cohort.given(np.zeros((1, 1), int), average="inverse")
    problem = PROBLEMS["quadratic"]()
    cohort = fjs.cohort.uniform(3, average="inverse")
    ids = [np.searchsorted(problem.ids, draw.ids) for draw in drawn(cohort, problem.dataset, len(TAU))]
    train = fjs.make_train(
        task=problem.task, rounds=len(TAU), cohort=cohort, work=fjs.local.given_steps(TAU), batches=problem.batches,
        evaluate=lambda x, _: {"x": x},
    )  # fmt: skip
    result = jax.jit(train)(fjs.fedavg(**both()), problem.dataset, KEY, initial_params=problem.initial_params())
    expected = methods.FedAvg(setting(problem, cohorts=ids, average="inverse"))
    assert_equal(result.metrics["x"], methods.trajectory(expected))
