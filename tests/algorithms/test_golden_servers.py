"""Golden trajectories of server optimisers, fair aggregation and averaged models, against plain numpy."""

import numpy as np
import pytest

import fedjax_sim as fjs
from tests import reference_methods as methods
from tests import reference_server as servers
from tests.algorithms.test_golden import PROBLEMS
from tests.golden import both, check, setting

slow = pytest.mark.slow


@pytest.mark.parametrize("nesterov", [False, pytest.param(True, marks=slow)])
def test_fedavgm(x64, nesterov):
    problem = PROBLEMS["whole"]()
    for beta in (0.9, 0.4):
        expected = methods.FedAvg(setting(problem, rule=lambda beta=beta: servers.Momentum(beta, nesterov)))
        check(problem, fjs.fedavgm(momentum=beta, nesterov=nesterov, **both()), expected)


@pytest.mark.parametrize(
    ("kind", "form"),
    [("fedadagrad", "paper"), ("fedadam", "optax"), ("fedyogi", "paper")]
    + [
        pytest.param(f"fed{kind}", form, marks=slow)
        for kind, form in (("adagrad", "optax"), ("adam", "paper"), ("yogi", "optax"))
    ],
)
def test_adaptive_server_optimisers(x64, kind, form):
    problem = PROBLEMS["whole"]()
    rule = {"paper": servers.Adaptive, "optax": servers.AdaptiveOptax}[form]
    make, kind = getattr(fjs, kind), kind.removeprefix("fed")
    for beta1, beta2, tau in [(0.9, 0.99, 1e-3), (0.5, 0.8, 0.1)]:
        given = (kind, beta1, beta2, tau)
        expected = methods.FedAvg(setting(problem, rule=lambda given=given: rule(*given)))
        check(problem, make(beta1=beta1, beta2=beta2, tau=tau, form=form, **both()), expected)


@pytest.mark.parametrize("form", ["paper", pytest.param("code", marks=slow)])
def test_fedams(x64, form):
    problem = PROBLEMS["whole"]()
    for beta1, beta2, eps, initial in [(0.9, 0.99, 1e-3, 1e-3), (0.5, 0.8, 0.02, 0.3)]:

        def made(arguments=(beta1, beta2, eps), initial=initial):
            return servers.Ams(*arguments) if form == "paper" else servers.AmsCode(*arguments, initial)

        expected = methods.FedAvg(setting(problem, rule=made, average="plain"))
        algorithm = fjs.fedams(beta1=beta1, beta2=beta2, eps=eps, form=form, initial=initial, **both())
        check(problem, algorithm, expected)


@pytest.mark.parametrize("average", ["plain", pytest.param("sample", marks=slow)])
def test_fedexp(x64, average):
    problem = PROBLEMS["whole"]()
    problem.x0 = np.linalg.solve(sum(c.H for c in problem.clients), sum(c.e for c in problem.clients))  # they disagree
    factors = []
    for epsilon in (10.0, 1e-3, 0.0):  # the first is more than the clients disagree by: no step is lengthened
        expected = servers.FedExp(setting(problem, average=average), epsilon)
        check(problem, fjs.fedexp(epsilon=epsilon, **both()), expected)
        factors.append(expected.factors[1:])
    assert max(factors[0]) == 1 < 1.05 < max(factors[-1])


@pytest.mark.parametrize("kind", ["tensor", pytest.param("parameter", marks=slow)])
def test_fedlopt(x64, kind):
    problem, average = PROBLEMS["whole"](), "plain" if kind == "tensor" else "sample"
    rule = fjs.optim.learned(kind, hidden=3, dispersion=True)
    draw = np.random.default_rng(5)
    weights = {name: 0.4 * draw.standard_normal(shape) for name, shape in rule.shapes().items()}
    learned = servers.LearnedRule(weights, each=kind == "parameter")
    expected = servers.FedLOpt(setting(problem, average=average), learned)
    check(problem, fjs.fedlopt(server_optimizer=rule.replace(weights=weights), **both()), expected)


@pytest.mark.parametrize("lipschitz", [None, pytest.param(20.0, marks=slow)])
def test_qfedavg(x64, lipschitz):
    problem = PROBLEMS["logistic"]()  # its losses are positive
    for q in (0.0, 0.5, 3.0):
        expected = servers.QFedAvg(setting(problem, average="plain"), q, lipschitz)
        check(problem, fjs.qfedavg(q=q, lipschitz=lipschitz, **both()), expected)


@pytest.mark.parametrize("average", ["sample", pytest.param("plain", marks=slow)])
def test_afl(x64, average):
    problem = PROBLEMS["logistic"]()
    for rate in (0.01, 0.05, 0.2):
        expected = servers.Afl(setting(problem, average=average), rate)
        check(problem, fjs.afl(weight_learning_rate=rate, **both()), expected)
    assert (np.array(expected.path) == 0).any()  # the projection puts clients to zero


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, pytest.param(1, marks=slow)])
def test_averages_of_models(x64, k):
    # the evaluated model only: the training is that of the base method
    problem = PROBLEMS["whole"]()
    run = setting(problem, rule=lambda: servers.Momentum(0.7))
    base = fjs.fedavgm(momentum=0.7, **both())
    for decay in (0.9, 0.3):
        check(problem, fjs.ema(base, decay=decay), methods.FedAvg(run), servers.ema(methods.FedAvg(run), decay))
    check(problem, fjs.last_k(base, k=k), methods.FedAvg(run), servers.last_k(methods.FedAvg(run), k))
