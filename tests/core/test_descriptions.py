"""``describe`` and ``build``: whatever a registered factory makes can be written down as JSON and made again."""

import dataclasses
import functools
import importlib.util
import inspect
import json
import pkgutil
import sys
import types
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_sim as fjs
from fedjax_sim import adjoints, hyper, sweeps
from fedjax_sim.core import classes, descriptions
from fedjax_sim.core.descriptions import (
    Described,
    build,
    describe,
    is_traced,
    opaque_parts,
    registered,
    registered_factory,
    within,
)
from fedjax_sim.core.fields import static
from fedjax_sim.core.records import RECORDS
from fedjax_sim.datasets.sources.record import sources
from fedjax_sim.studies.benchmark import personal

sgd = fjs.optim.sgd
STEPS = np.array([[1, 2], [3, 0]])

# One object of every registered factory, with arguments that are not the defaults. A factory without a line fails.
MADE: dict[str, Callable[[], Any]] = {
    "algorithm.fedavg": lambda: fjs.fedavg(
        client_optimizer=sgd(0.1),
        server_optimizer=fjs.optim.adam(0.01),
        client_learning_rate=fjs.rates.inverse_time(1.0, 0.5),
        server_learning_rate=0.7,
    ),
    "algorithm.feddf": lambda: fjs.feddf(
        client_optimizer=sgd(0.1), public=fjs.datasets.synthetic(0.5, 0.5, num_clients=2, max_size=20), steps=3
    ),
    "algorithm.fednova": lambda: fjs.fednova(
        client_optimizer=sgd(0.1, momentum=0.9),
        client_learning_rate={"w": 0.5, "b": jnp.ones(3)},
        mu=0.2,
        tau_eff=3.5,
    ),
    "algorithm.fedprox": lambda: fjs.fedprox(client_optimizer=sgd(0.1), mu=0.3, adaptive=True, patience=2),
    "aggregator.centered_clipping": lambda: fjs.aggregators.centered_clipping(2.0, iterations=3),
    "aggregator.geometric_median": lambda: fjs.aggregators.geometric_median(0.1, iterations=4),
    "aggregator.krum": lambda: fjs.aggregators.krum(2),
    "aggregator.mean": fjs.aggregators.mean,
    "aggregator.median": fjs.aggregators.median,
    "aggregator.multi_krum": lambda: fjs.aggregators.multi_krum(2, m=3),
    "aggregator.trimmed_mean": lambda: fjs.aggregators.trimmed_mean(0.2),
    "algorithm.attacked": lambda: fjs.attacked(fjs.fedavg(client_optimizer=sgd(0.1)), [3, -1], fjs.attacks.gaussian()),
    "algorithm.robust": lambda: fjs.robust(fjs.scaffold(client_optimizer=sgd(0.1)), fjs.aggregators.krum(1)),
    "attack.gaussian": lambda: fjs.attacks.gaussian(2.0, keep=1.0),
    "attack.inner_product": lambda: fjs.attacks.inner_product(0.5),
    "attack.little_is_enough": lambda: fjs.attacks.little_is_enough(1.5),
    "attack.scaling": lambda: fjs.attacks.scaling(-3.0),
    "attack.sign_flip": lambda: fjs.attacks.sign_flip(2.0),
    "dataset.flip_labels": lambda: fjs.datasets.flip_labels(fjs.datasets.synthetic(0.5, 1, 3), [1], np.arange(10)),
    "dataset.random_labels": lambda: fjs.datasets.random_labels(fjs.datasets.synthetic(0.5, 1, 3), [0, 2], seed=4),
    "algorithm.reweighted": lambda: fjs.reweighted(fjs.fedavg(client_optimizer=sgd(0.1)), [0.5, -1.0, 0.0]),
    "algorithm.scaffold": lambda: fjs.scaffold(client_optimizer=fjs.optim.adam(0.1), option="I"),
    "algorithm.adaptively_clipped": lambda: fjs.adaptively_clipped(fjs.fedavg(client_optimizer=sgd(0.1)), initial=0.3),
    "algorithm.clipped": lambda: fjs.clipped(fjs.scaffold(client_optimizer=sgd(0.1)), norm=0.5),
    "algorithm.dp": lambda: fjs.dp(
        fjs.fedavg(client_optimizer=sgd(0.1)), norm=0.5, noise_multiplier=0.8, quantile=0.4, count_noise=2.0
    ),
    "algorithm.fedrep": lambda: fjs.fedrep(fjs.fedavg(client_optimizer=sgd(0.1)), "Dense_1", head_steps=3),
    "algorithm.fedrod": lambda: fjs.fedrod(head="Dense_1", client_optimizer=sgd(0.1)),
    "algorithm.freeze": lambda: fjs.freeze(fjs.fedavg(client_optimizer=sgd(0.1)), "Dense_0"),
    "algorithm.keep": lambda: fjs.keep(fjs.scaffold(client_optimizer=sgd(0.1)), ("Dense_1", "bias")),
    "algorithm.quantised": lambda: fjs.quantised(fjs.fedavg(client_optimizer=sgd(0.1)), bits=4, scale="max"),
    "algorithm.random_k": lambda: fjs.random_k(fjs.fedavg(client_optimizer=sgd(0.1)), 0.2, feedback=True),
    "algorithm.top_k": lambda: fjs.top_k(fjs.fedavg(client_optimizer=sgd(0.1)), fraction=0.2),
    "algorithm.afl": lambda: fjs.afl(client_optimizer=sgd(0.1), weight_learning_rate=0.2),
    "algorithm.aware": lambda: fjs.aware(
        fjs.fednova(client_optimizer=sgd(0.1), server_optimizer=fjs.optim.fedyogi(0.8)), alpha=0.4, layers=("Dense_1",)
    ),
    "algorithm.dane": lambda: fjs.dane(client_optimizer=sgd(0.1), mu=0.1, tolerance=1e-6),
    "algorithm.ema": lambda: fjs.ema(fjs.fedavg(client_optimizer=sgd(0.1)), decay=0.5),
    "algorithm.fedadagrad": lambda: fjs.fedadagrad(client_optimizer=sgd(0.1), tau=0.1),
    "algorithm.fedadam": lambda: fjs.fedadam(client_optimizer=sgd(0.1), beta1=0.8, form="optax"),
    "algorithm.fedams": lambda: fjs.fedams(client_optimizer=sgd(0.1), form="code", initial=0.1),
    "algorithm.fedavgm": lambda: fjs.fedavgm(client_optimizer=sgd(0.1), momentum=0.5, nesterov=True),
    "algorithm.fedaware": lambda: fjs.fedaware(
        client_optimizer=sgd(0.1), clusters=[0, 1, 0], candidates="all", solver=fjs.min_norm.away_steps(max_steps=50)
    ),
    "algorithm.fedcm": lambda: fjs.fedcm(client_optimizer=sgd(0.1), alpha=0.3, scaling="direction"),
    "algorithm.feddane": lambda: fjs.feddane(client_optimizer=sgd(0.1), mu=0.2, same_cohort=True),
    "algorithm.feddyn": lambda: fjs.feddyn(client_optimizer=sgd(0.1), alpha=0.3, form="code"),
    "algorithm.fedyogi": lambda: fjs.fedyogi(client_optimizer=sgd(0.1), beta2=0.9),
    "algorithm.large_batch_sgd": lambda: fjs.large_batch_sgd(client_optimizer=sgd(0.1)),
    "algorithm.last_k": lambda: fjs.last_k(fjs.scaffold(client_optimizer=sgd(0.1)), k=3),
    "algorithm.local_sgd": lambda: fjs.local_sgd(client_optimizer=sgd(0.1)),
    "algorithm.qfedavg": lambda: fjs.qfedavg(client_optimizer=sgd(0.1), q=2.0, lipschitz=5.0),
    "algorithm.vrl_sgd": lambda: fjs.vrl_sgd(client_optimizer=sgd(0.1, momentum=0.3)),
    "min_norm.active_set": lambda: fjs.min_norm.active_set(max_steps=70, tolerance=1e-9),
    "min_norm.away_steps": lambda: fjs.min_norm.away_steps(max_steps=70),
    "min_norm.frank_wolfe": lambda: fjs.min_norm.frank_wolfe(max_steps=70),
    "optim.fedadagrad": lambda: fjs.optim.fedadagrad(tau=0.1),
    "optim.fedadam": lambda: fjs.optim.fedadam(beta1=0.8),
    "optim.fedams": lambda: fjs.optim.fedams(corrected=True, initial=0.2),
    "optim.fedyogi": lambda: fjs.optim.fedyogi(beta2=0.9),
    "stopping.any_of": lambda: fjs.stopping.any_of([fjs.stopping.converged(1e-3), fjs.stopping.rising(2.0)]),
    "stopping.converged": lambda: fjs.stopping.converged(1e-3, metric="test_loss"),
    "stopping.reached": lambda: fjs.stopping.reached("accuracy", 0.7),
    "stopping.patience": lambda: fjs.stopping.patience("test_loss", evaluations=3, change=0.1),
    "stopping.rising": lambda: fjs.stopping.rising(2.0, over=5),
    "availability.bernoulli": lambda: fjs.cohort.bernoulli([0.5, 1.0]),
    "availability.periodic": lambda: fjs.cohort.periodic(4, 2, offsets=[0, 3]),
    "availability.trace": lambda: fjs.cohort.trace([[True, False], [True, True]], repeat=False),
    "adjoint.bounded": lambda: adjoints.bounded(30, 7, adjoints.nested(2)),
    "adjoint.direct": adjoints.direct,
    "adjoint.forward": adjoints.forward,
    "adjoint.implicit": lambda: adjoints.implicit(adjoints.gmres(tolerance=1e-8), settled=1e-3),
    "adjoint.nested": lambda: adjoints.nested(levels=3),
    "adjoint.per_round": adjoints.per_round,
    "adjoint.truncated": lambda: adjoints.truncated(5, adjoints.nested()),
    "linear_solver.cg_normal": lambda: adjoints.cg_normal(max_steps=50),
    "linear_solver.gmres": lambda: adjoints.gmres(restart=7),
    "linear_solver.neumann": lambda: adjoints.neumann(tolerance=1e-6, max_steps=77),
    "batches.fraction": lambda: fjs.local.fraction(0.3),
    "batches.full_batch": lambda: fjs.local.full_batch(piece_size=7),
    "batches.in_order": lambda: fjs.local.in_order(3),
    "batches.shuffled": lambda: fjs.local.shuffled(3),
    "batches.with_replacement": lambda: fjs.local.with_replacement(3),
    "cohort.available": lambda: fjs.cohort.available(fjs.cohort.uniform(2), fjs.cohort.bernoulli(0.8)),
    "cohort.full": lambda: fjs.cohort.full(average="plain"),
    "cohort.given": lambda: fjs.cohort.given(
        [[0, 1], [1, -1]],
        average="inverse",
        repeats=[[1, 2], [-1, 0]],
        probability=[[0.5, 0.25], [0.5, 1.0]],
        earlier=fjs.cohort.given([[1, -1], [0, 1]], average="inverse", probability=0.75),
    ),
    "cohort.independent": lambda: fjs.cohort.independent(0.3, cap=40, average="inverse"),
    "cohort.shuffled": lambda: fjs.cohort.shuffled(3, passes="uniform"),
    "cohort.weighted": lambda: fjs.cohort.weighted(2, weights=[1.0, 2.0, 0.0]),
    "cohort.uniform": lambda: fjs.cohort.uniform(3, average="sample"),
    "cohort.with_replacement": lambda: fjs.cohort.with_replacement(4),
    "dataset.cifar10": lambda: fjs.datasets.cifar10(4, batches=(1,)),
    "dataset.cifar100_dirichlet": lambda: fjs.datasets.cifar100_dirichlet(1.0),
    "dataset.cifar10_dirichlet": lambda: fjs.datasets.cifar10_dirichlet(1.0, batches=(1,)),
    "dataset.with_validation": lambda: fjs.datasets.with_validation(
        fjs.datasets.synthetic(1.0, 1.0, num_clients=3, sizes=[5, 6, 7]), 0.5, 1, gap=1
    ),
    "dataset.on_host": lambda: fjs.datasets.on_host(fjs.datasets.quadratics(num_clients=3, dim=2, seed=4)),
    "dataset.digits": lambda: fjs.datasets.digits(num_clients=5, alpha=0.3, seed=2, test_fraction=0.1),
    "dataset.from_directory": lambda: build({"name": "dataset.from_directory", "arguments": {"folder": "clients"}}),
    "dataset.from_leaf": lambda: build({"name": "dataset.from_leaf", "arguments": {"train": "users.json"}}),
    "dataset.from_table": lambda: build({"name": "dataset.from_table", "arguments": {"table": "a.csv", "client": "c"}}),
    "dataset.from_tfds": lambda: fjs.datasets.from_tfds("tiny_writers", client="writer", test_split="test"),
    "dataset.mnist_two_digits": lambda: fjs.datasets.mnist_two_digits(100, balanced=True),
    "dataset.mnist_writers": lambda: fjs.datasets.mnist_writers("all"),
    "dataset.a9a": lambda: fjs.datasets.a9a(4, test="local"),
    "dataset.adult": lambda: fjs.datasets.adult("race"),
    "dataset.emnist_byclass": lambda: fjs.datasets.emnist_byclass(10, partition="shards"),
    "dataset.femnist_writers": lambda: fjs.datasets.femnist_writers(20, scaled=False),
    "dataset.hapt": lambda: fjs.datasets.hapt("subjects", standardise=False),
    "dataset.w8a": lambda: fjs.datasets.w8a(4, partition="dirichlet"),
    "dataset.wisdm": lambda: fjs.datasets.wisdm(2, test_fraction=0.3),
    "dataset.ag_news": lambda: fjs.datasets.ag_news(10, labels="noisy", articles="subset"),
    "dataset.fedprox_synthetic": lambda: fjs.datasets.fedprox_synthetic("iid", "test"),
    "dataset.mushrooms": lambda: fjs.datasets.mushrooms(5, partition="shards"),
    "dataset.parkinsons": lambda: fjs.datasets.parkinsons("both", standardise=False),
    "dataset.sent140": lambda: fjs.datasets.sent140(None, 50),
    "dataset.shakespeare_roles": lambda: fjs.datasets.shakespeare_roles(9, stride=7, max_windows=100),
    "dataset.tinyshakespeare": lambda: fjs.datasets.tinyshakespeare(9, stride=7),
    "dataset.quadratics": lambda: fjs.datasets.quadratics(2, 3, 1, scale=0.2, hessians=np.eye(3) * 2, sizes=[1, 2]),
    "dataset.synthetic": lambda: fjs.datasets.synthetic(
        0.5, 1, 3, 4, spread="variance", test_fraction=0.1, sizes=[5, 6, 7], max_size=6, dtype=jnp.bfloat16
    ),
    "diagnostic.client_losses": lambda: fjs.diagnostics.client_losses(worst=0.2),
    "diagnostic.coherence": lambda: fjs.diagnostics.coherence(),
    "diagnostic.communication": lambda: fjs.diagnostics.communication(),
    "diagnostic.consensus": lambda: fjs.diagnostics.consensus(),
    "diagnostic.cosine_matrix": lambda: fjs.diagnostics.cosine_matrix(),
    "diagnostic.dissimilarity": lambda: fjs.diagnostics.dissimilarity(uniform=True),
    "diagnostic.drift": lambda: fjs.diagnostics.drift(),
    "diagnostic.e_lud": lambda: fjs.diagnostics.e_lud(),
    "diagnostic.efficiency": lambda: fjs.diagnostics.efficiency(),
    "diagnostic.gradient_moments": lambda: fjs.diagnostics.gradient_moments(uniform=True),
    "diagnostic.gradient_variance": lambda: fjs.diagnostics.gradient_variance(uniform=True),
    "diagnostic.hessian_dissimilarity": lambda: fjs.diagnostics.hessian_dissimilarity(iterations=5, num_clients=3),
    "diagnostic.inexactness": lambda: fjs.diagnostics.inexactness(mu=0.3),
    "diagnostic.lud": lambda: fjs.diagnostics.lud(),
    "diagnostic.surrogate": lambda: fjs.diagnostics.surrogate(normalised=True),
    "diagnostic.update_norms": lambda: fjs.diagnostics.update_norms(),
    "diagnostic.virtual_time": lambda: fjs.diagnostics.virtual_time(speeds=[1.0, 2.0], transfer=0.5),
    "layout.buckets": lambda: fjs.layout.buckets(2),
    "layout.pooled": lambda: fjs.layout.pooled(fjs.layout.turns()),
    "layout.factored": lambda: fjs.layout.factored(fjs.layout.stacked(), width=64),
    "layout.lanes": lambda: fjs.layout.lanes(3),
    "layout.mesh": lambda: fjs.layout.mesh(2, inner=fjs.layout.lanes(3), data="sharded"),
    "layout.stacked": lambda: fjs.layout.stacked(),
    "layout.static_schedule": lambda: fjs.layout.static_schedule(2),
    "layout.turns": lambda: fjs.layout.turns(),
    "model.CharLSTM": lambda: fjs.models.CharLSTM(7, embedding=3, hidden=5, layers=1),
    "model.CifarCNN": lambda: fjs.models.CifarCNN(100, channels=(2, 3, 4), hidden=256),
    "model.DigitsCNN": lambda: fjs.models.DigitsCNN(3, channels=(2, 3, 4), hidden=(5,)),
    "model.FromBytes": lambda: fjs.models.FromBytes(fjs.models.MLP(3, hidden=(2,)), mean=(0.1, 0.2), std=(0.5,)),
    "model.FemnistCNN": lambda: fjs.models.FemnistCNN(10, dropout=(0.25, 0.5), channels=(3, 4)),
    "model.GPTNeoX": lambda: fjs.models.GPTNeoX(vocabulary=9, width=8, heads=2, rotary=0.5, parallel=False),
    "model.GPTNeoXClassifier": lambda: fjs.models.GPTNeoXClassifier(3, fjs.models.GPTNeoX(layers=1), padding=1),
    "model.LeNet": lambda: fjs.models.LeNet(3, channels=(2, 3), hidden=(5,)),
    "model.LogisticRegression": lambda: fjs.models.LogisticRegression(3, param_dtype=jnp.bfloat16),
    "model.MLP": lambda: fjs.models.MLP(3, hidden=(4, 5), param_dtype=jnp.float16),
    "model.ResNet18": lambda: fjs.models.ResNet18(100, groups=2, imagenet_stem=True),
    "model.SentimentLSTM": lambda: fjs.models.SentimentLSTM(3, fjs.models.random_table(4, 5), bottleneck=None),
    "model.VGG11": lambda: fjs.models.VGG11(hidden=(), dropout=0.0, groups=16),
    "model.frozen_table": lambda: fjs.models.frozen_table(np.array([[0.5, 1.0], [2.0, 1 / 3]], np.float32)),
    "model.random_table": lambda: fjs.models.random_table(4, 5, seed=2),
    "optim.adam": lambda: fjs.optim.adam(0.1, b1=0.8, b2=0.99, eps=1e-6, eps_root=1e-9),
    "optim.from_optax": lambda: fjs.optim.from_optax(
        "adam", learning_rate=0.1, b1=jnp.float32(0.8), nesterov=True, mu_dtype=jnp.bfloat16
    ),
    "optim.learned": lambda: fjs.optim.learned("parameter", hidden=3, dispersion=True),
    "optim.sgd": lambda: sgd(jnp.array([0.1, 0.2]), momentum=np.float32(0.9), nesterov=True),
    "policy.deadline": lambda: fjs.systems.deadline(2.5, keep=True),
    "policy.first": lambda: fjs.systems.first(3),
    "policy.wait_for_all": fjs.systems.wait_for_all,
    "quantity.empirical": lambda: fjs.systems.empirical([0.5, 2.0]),
    "quantity.exponential": lambda: fjs.systems.exponential(2.0),
    "quantity.half_normal": lambda: fjs.systems.half_normal(2.0),
    "quantity.lognormal": lambda: fjs.systems.lognormal(2.0, 0.5),
    "quantity.pareto": lambda: fjs.systems.pareto(2.0, 1.5),
    "quantity.uniform": lambda: fjs.systems.uniform(1.0, 2.0),
    "client_states.on_device": lambda: fjs.client_states.on_device(dtype="bfloat16"),
    "client_states.on_host": lambda: fjs.client_states.on_host(dtype="float32"),
    "client_states.on_disk": lambda: fjs.client_states.on_disk("a directory", dtype="bfloat16"),
    "asynchronous.fedbuff": lambda: fjs.asynchronous.fedbuff(5, staleness=fjs.asynchronous.hinge(2.0, 3.0)),
    "asynchronous.fedasync": lambda: fjs.asynchronous.fedasync(0.5, staleness=fjs.asynchronous.constant()),
    "staleness.constant": lambda: fjs.asynchronous.constant(),
    "staleness.polynomial": lambda: fjs.asynchronous.polynomial(0.7),
    "staleness.hinge": lambda: fjs.asynchronous.hinge(a=3.0, b=2.0),
    "system.devices": lambda: fjs.systems.devices(
        flops_per_second=fjs.systems.lognormal(1e9, 1.0),
        download=[1e6, 2e6],
        latency=0.1,
        dropout=0.2,
        jitter=fjs.systems.uniform(0.5, 1.5),
        policy=fjs.systems.first(2),
        seed=3,
    ),
    "rate.inverse_time": lambda: fjs.rates.inverse_time(2, 3),
    "rate.over_clients": lambda: fjs.rates.over_clients([1.0, 0.5]),
    "rate.over_rounds": lambda: fjs.rates.over_rounds(np.array([1.0, 0.5])),
    "rate.piecewise": lambda: fjs.rates.piecewise(1.0, (3, 5), factor=0.2),
    "space.grid": lambda: sweeps.grid({"mu": [0, 0.1], "client_optimizer.learning_rate": np.logspace(-2, 0, 3)}),
    "space.random": lambda: sweeps.random({"mu": sweeps.log_uniform(1e-3, 1), "alpha": sweeps.uniform(0, 1)}, 5, 2),
    "space.zipped": lambda: sweeps.zipped({"mu": [0.1, 1], "client_learning_rate.values": [[1.0, 0.5], [0.2, 0.1]]}),
    "task.classification": lambda: fjs.classification(fjs.models.MLP(3, (4,)), weight_decay=1e-3),
    "task.binary_classification": lambda: fjs.binary_classification(
        fjs.models.MLP(1, (4,)), scores=(fjs.scores.roc_auc(), fjs.scores.f1())
    ),
    "task.cox": lambda: fjs.cox(fjs.models.MLP(1, (4,)), weight_decay=1e-3),
    "score.roc_auc": fjs.scores.roc_auc,
    "score.f1": fjs.scores.f1,
    "score.balanced_accuracy": fjs.scores.balanced_accuracy,
    "score.calibration_error": lambda: fjs.scores.calibration_error(bins=10),
    "task.functions": lambda: fjs.functions(first, losses),
    "task.regression": lambda: fjs.regression(fjs.models.MLP(1, hidden=(3,)), weight_decay=0.1),
    "distribution.log_uniform": lambda: sweeps.log_uniform(1e-3, 10),
    "distribution.uniform": lambda: sweeps.uniform(-1, 1.5),
    "benchmark.by_clients": lambda: fjs.benchmark.by_clients(fjs.quadratic(start=1.0)),
    "benchmark.fine_tuned": lambda: personal.fine_tuned(fjs.fedavg(client_optimizer=sgd(0.1)), tuning_rate=0.2),
    "benchmark.own_models": lambda: fjs.benchmark.own_models(fjs.quadratic(start=1.0), 8),
    "evaluation.per_client": lambda: fjs.per_client(fjs.quadratic(start=1.0), worst=0.2),
    "evaluation.personalise": lambda: fjs.personalise(
        fjs.quadratic(), sgd(0.1), fjs.local.steps(2), fjs.local.shuffled(3), first_order=True, seed=4
    ),
    "task.quadratic": lambda: fjs.quadratic(start=1.5),
    "tau_eff.effective_steps": lambda: fjs.fednova(client_optimizer=sgd(0.1), tau_eff="steps").tau_eff,
    "objective.final": lambda: hyper.final("loss"),
    "objective.mean": lambda: hyper.mean("loss"),
    "search.halving": lambda: fjs.hyper.halving(4, eta=3),
    "search.population": lambda: fjs.hyper.population(0.3, factor=1.5, resample=0.2),
    "outer.es": lambda: fjs.outer.es(0.2, pairs=3, window=2),
    "outer.exact": lambda: fjs.outer.exact(),
    "outer.forward_gradient": lambda: fjs.outer.forward_gradient(3),
    "outer.pes": lambda: fjs.outer.pes(0.2, pairs=3, window=2),
    "outer.score": lambda: fjs.outer.score(4, baseline=False),
    "outer.truncated": lambda: fjs.outer.truncated(2),
    "transform.identity": lambda: hyper.identity(),
    "transform.interval": lambda: hyper.interval(-1, 2.5),
    "transform.positive": lambda: hyper.positive(),
    "transform.simplex": lambda: hyper.simplex(),
    "work.deadline": lambda: fjs.local.deadline(2.0, [1.0, 3.0], 4, keep=False),
    "work.gaussian_steps": lambda: fjs.local.gaussian_steps(3, most=9, variance=2.0),
    "work.geometric": lambda: fjs.local.geometric(0.2, most=30),
    "work.given_steps": lambda: fjs.local.given_steps(STEPS, most=7),
    "work.random_epochs": lambda: fjs.local.random_epochs(1, 4),
    "work.steps": lambda: fjs.local.steps(3),
    "work.window": lambda: fjs.local.window(2.0, 30),
    "work.stragglers": lambda: fjs.local.stragglers(0.3, 4, keep=False),
}
WITH_OPAQUE_PARTS = {"task.functions"}
# Its round trip is in test_host.py.
NO_PYTREE = {"dataset.on_host"}


def of_record(name: str) -> Any:
    """The method of a record, around FedAvg if it is a wrapper."""
    make = registered_factory(name)
    options = {key: value for key, value in (RECORDS[name].case or {}).items() if key not in ("inert", "base")}
    if "base" in inspect.signature(make).parameters:
        return make(fjs.fedavg(client_optimizer=sgd(0.1)), **options)
    return make(client_optimizer=sgd(0.1), **options)


assert fjs.algorithms  # importing it registers them
MADE |= {name: functools.partial(of_record, name) for name in RECORDS if name not in MADE}
# A data set by name that is not above is made with its defaults: a new one has nothing to add here.
MADE |= {
    f"dataset.{name}": registered_factory(f"dataset.{name}") for name in sources() if f"dataset.{name}" not in MADE
}
# Their round trip is tested where the files are faked.
NEEDS_FILES = {f"dataset.from_{kind}" for kind in ("directory", "leaf", "table", "tfds")}
NEEDS_FILES |= {f"dataset.{name}" for name, of in sources().items() if of.files}


def first(key: jax.Array) -> jax.Array:
    return jnp.zeros(())


def losses(params: jax.Array, examples: Any) -> jax.Array:
    return jnp.square(params - examples["y"])


def through_json(obj: Any) -> Any:
    return build(json.loads(json.dumps(describe(obj))))


def assert_same(one: Any, other: Any) -> None:
    """Equal types, structure and leaves; Python numbers and arrays are told apart, dtypes compared."""
    assert type(one) is type(other)
    if isinstance(one, nn.Module):
        assert one == other
        return
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.ndim(a) == np.ndim(b)
        assert jnp.result_type(a) == jnp.result_type(b)
        assert isinstance(a, float) == isinstance(b, float)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def load_everything() -> None:
    """Names are registered when their module is first used."""
    with pytest.raises(ValueError, match="unknown name"):
        build({"name": "nothing"})


def test_the_table_has_every_registered_factory() -> None:
    load_everything()
    ours = {name for name in registered() if descriptions._FACTORIES[name].__module__.startswith("fedjax_sim.")}
    assert ours == set(MADE)


def test_checks_take_traced_values() -> None:
    """A run repeats them on its traced parts, and takes one that raises for somebody's own."""
    apart = {name for name in MADE if name.startswith(("transform.", "dataset."))}  # of no run
    made = [MADE[name]() for name in sorted(set(MADE) - apart)]
    leaves, structure = jax.tree.flatten([one for one in made if isinstance(one, Described)])

    def checked(leaves: Any) -> int:
        parts = list(filter(is_traced, within(jax.tree.unflatten(structure, leaves))))
        for part in parts:
            part.checked()
        return len(parts)

    count: list[int] = []
    jax.eval_shape(lambda leaves: count.append(checked(leaves)), leaves)
    assert count[0] > 80


@pytest.mark.parametrize(
    "name", sorted(set(MADE) - WITH_OPAQUE_PARTS - NEEDS_FILES - {"dataset.on_host"})
)  # test_host.py
def test_round_trip_through_json(name: str) -> None:
    if name == "dataset.digits" and importlib.util.find_spec("sklearn") is None:
        pytest.skip("needs scikit-learn")
    made = MADE[name]()
    description = describe(made)
    assert description["name"] == name
    assert opaque_parts(description) == []
    rebuilt = through_json(made)
    assert_same(rebuilt, made)
    assert describe(rebuilt) == description


def test_epochs_is_written_as_random_epochs() -> None:
    assert_same(through_json(fjs.local.epochs(3)), fjs.local.epochs(3))


def test_a_description_is_what_the_documentation_says() -> None:
    assert describe(sgd(0.02, momentum=0.9)) == {
        "name": "optim.sgd",
        "arguments": {"learning_rate": 0.02, "momentum": 0.9, "nesterov": False, "decay": None},
    }


def test_defaults_need_not_be_written() -> None:
    assert build({"name": "optim.sgd", "arguments": {"learning_rate": 1}}) == sgd(1.0)
    assert build({"name": "cohort.full"}) == fjs.cohort.full()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "bool"])
def test_arrays_keep_their_dtype(dtype: str) -> None:
    given = jnp.array([[0, 1], [1, 0]], jnp.dtype(dtype))
    made = Holder(value=given)
    rebuilt = through_json(make_holder(value=given))
    assert_same(rebuilt, made)
    assert rebuilt.value.dtype == dtype


def test_double_precision_survives_where_it_is_enabled(x64: None) -> None:
    made = fjs.rates.over_rounds(np.array([0.1, 1 / 3]))
    assert_same(through_json(made), made)
    assert through_json(made).values.dtype == np.float64


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, np.float64, np.dtype("int8"), jnp.dtype("float16")])
def test_dtypes(dtype: Any) -> None:
    rebuilt = through_json(make_holder(value=1.0, kind=dtype))
    assert rebuilt.kind == jnp.dtype(dtype)
    assert fjs.models.MLP(3, param_dtype=dtype) == through_json(fjs.models.MLP(3, param_dtype=dtype))


# Parts that cannot be rebuilt.


def opaque_algorithm() -> fjs.Algorithm:
    return fjs.fedavg(
        client_optimizer=optax.sgd(0.1), client_learning_rate=optax.constant_schedule(1.0), server_learning_rate=0.5
    )


def test_bare_objects_are_opaque_and_named() -> None:
    parts = opaque_parts(describe(opaque_algorithm()))
    assert [part.partition(":")[0] for part in parts] == ["client_optimizer", "client_learning_rate"]
    parts = opaque_parts({"run": {"task": describe(fjs.functions(first, losses))}})
    assert [part.partition(":")[0] for part in parts] == ["run.task.init_function", "run.task.losses_function"]
    assert parts[1].endswith("test_descriptions.losses")
    in_containers = make_holder(value={"a": [1.0, first]})
    assert [part.partition(":")[0] for part in opaque_parts(describe(in_containers))] == ["value.a.1"]


def test_opaque_parts_are_refused_with_their_paths() -> None:
    description = json.loads(json.dumps(describe(opaque_algorithm())))
    with pytest.raises(ValueError, match=r"client_optimizer: .*; client_learning_rate: .*registered factories"):
        build(description)
    with pytest.raises(ValueError, match=r"opaque.*object: tests.core.test_descriptions\.losses"):
        build(describe(losses))


@pytest.mark.parametrize("obj", [3, None, [1], {"a": 1}, np.ones(2)])
def test_values_are_opaque(obj: Any) -> None:
    assert set(describe(obj)) == {"opaque"}


@pytest.mark.parametrize("obj", [losses, optax.sgd(0.1), nn.Dense(3), object()])
def test_other_objects_are_opaque_and_known(obj: Any) -> None:
    description = describe(obj)
    assert set(description) == {"opaque", "known"}
    json.dumps(description)


def test_a_model_of_flax_is_opaque_in_its_place() -> None:
    description = describe(fjs.classification(nn.Dense(3)))
    assert opaque_parts(description) == ["model: flax.linen.linear.Dense"]


def test_a_subclass_is_not_its_parent() -> None:
    class Mine(type(MADE["algorithm.fedavg"]())):  # type: ignore[misc]
        pass

    assert set(describe(Mine(client_optimizer=sgd(0.1)))) == {"opaque", "known"}


def test_a_changed_data_set_is_opaque() -> None:
    data = fjs.datasets.quadratics(2, 3)
    assert describe(data)["name"] == "dataset.quadratics"
    doubled = jax.tree.map(lambda leaf: leaf * 2, data)
    for changed in (data.replace(test=None), data.with_example_weights(np.ones(2)), data.subset([1, 0]), doubled):
        assert set(describe(changed)) == {"opaque"}


def test_large_arrays_and_keys_are_opaque() -> None:
    assert opaque_parts(describe(make_holder(value=jnp.zeros(100_001)))) == ["value: array float32[100001]"]
    assert opaque_parts(describe(make_holder(value=jax.random.key(0)))) == ["value: array key<fry>[]"]


def test_traced_values_are_refused() -> None:
    def inside(value: jax.Array) -> jax.Array:
        for traced in (sgd(value), fjs.fedavg(client_optimizer=sgd(0.1), client_learning_rate={"w": value})):
            with pytest.raises(TypeError, match=r"traced.*outside jit, grad and vmap"):
                describe(traced)
        return value

    jax.jit(inside)(0.1)
    jax.grad(inside)(0.1)


# What comes from a stranger.


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"name": "algorithm.fedprx"}, "unknown name 'algorithm.fedprx': did you mean 'algorithm.fedprox'"),
        ({"name": "nothing.like"}, "unknown name 'nothing.like': .*known: "),
        ({"name": "algorithm.fedprox", "arguments": {"nu": 1.0}}, r"fedprox has no argument 'nu': .*known: .*mu"),
        (
            {"name": "optim.sgd", "arguments": {"learning_rat": 1.0}},
            "'learning_rat': did you mean 'learning_rate'",
        ),
        (
            {"name": "algorithm.fedavg", "arguments": {"client_optimizer": {"name": "optim.sdg", "arguments": {}}}},
            "'optim.sdg': did you mean 'optim.sgd'",
        ),
        (
            {"name": "optim.from_optax", "arguments": {"name": "apply_updates", "arguments": {"mapping": {}}}},
            "optax.apply_updates",
        ),
        (
            {"name": "optim.from_optax", "arguments": {"name": "tree", "arguments": {"mapping": {}}}},
            "optax has no optimiser 'tree'",
        ),
        ({"name": 3}, "not a description: .*'name'"),
        ({"name": ["optim.sgd"]}, "not a description"),
        ({"name": "optim.sgd", "arguments": [0.1]}, "not a description: .*mapping of 'arguments'"),
        ({"name": "optim.sgd", "arguments": {"learning_rate": {"lr": 1}}}, "not a description"),
        ({"name": "model.MLP", "arguments": {"num_classes": 3, "param_dtype": {"dtype": "flot"}}}, "dtype 'flot'"),
        ({}, "not a description"),
        ("optim.sgd", "not a description: 'optim.sgd'"),
        (["optim.sgd"], "not a description"),
        (None, "not a description: None"),
        (3, "not a description: 3"),
    ],
)
def test_bad_descriptions(description: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        build(description)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "algorithm.__class__",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("builtins.eval", "antigravity", "fedjax_sim.fedavg", "json.tool.main")
        ),
    ],
)
def test_a_name_is_looked_up_and_never_imported(name: str) -> None:
    load_everything()
    before = set(sys.modules)
    with pytest.raises(ValueError, match="unknown name"):
        build({"name": name, "arguments": {"command": "exit 1"}})
    with pytest.raises(ValueError, match="unknown name"):
        build({"name": "algorithm.fedavg", "arguments": {"client_optimizer": {"name": name}}})
    assert set(sys.modules) == before


# A user's own.


class Holder(Described):
    """Holds one value.

    Args:
      value: a leaf.
      kind: structure.
    """

    value: Any
    kind: Any = static(default=None)


make_holder = fjs.factory("test.holder", Holder)


class TwoLayers(nn.Module):
    """A model of the user's."""

    width: int = 4
    head: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(nn.Dense(self.width)(x))


fjs.register("model.two_layers", TwoLayers)


def test_a_users_factory_and_model() -> None:
    made = make_holder(value={"a": 1, "b": (2.0, np.float32(0.5))}, kind="x")
    assert made.value == {"a": 1.0, "b": (2.0, 0.5)}
    assert_same(through_json(made), made)
    model = TwoLayers(3, head=fjs.models.LogisticRegression(2))
    assert describe(model)["name"] == "model.two_layers"
    assert through_json(model) == model
    assert_same(through_json(fjs.classification(model)), fjs.classification(model))


def test_a_users_algorithm() -> None:
    class Slower(fjs.Algorithm):
        """Half of every step."""

        part: Any = 0.5

    slower = fjs.factory("test.slower", Slower)
    made = slower(client_optimizer=sgd(0.1), part=1)
    assert_same(through_json(made), made)
    assert made.part == 1.0
    assert isinstance(made.part, float)


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'optim\.sgd' is already registered by fedjax_sim\.optim\.described\.sgd"):
        fjs.register("optim.sgd", losses)
    assert fjs.register("model.two_layers", TwoLayers) is TwoLayers  # again, as a notebook's cell does


# A run's record.


@pytest.mark.slow
def test_a_history_rebuilds_its_run() -> None:
    data = fjs.datasets.synthetic(1.0, 1.0, num_clients=4, sizes=[12, 8, 20, 5], seed=3)
    history = fjs.simulate(
        fjs.fedprox(client_optimizer=sgd(0.02, momentum=0.5), mu=0.1),
        data,
        task=fjs.classification(fjs.models.LogisticRegression(10), weight_decay=1e-3),
        rounds=3,
        cohort=fjs.cohort.uniform(2),
        work=fjs.local.stragglers(0.5, 2),
        batch_size=4,
        eval_every=2,
        seeds=[3, 5],
    )
    description = json.loads(json.dumps(history.description))
    assert opaque_parts(description) == []
    run = description["run"]
    parts = {name: build(run[name]) for name in ("task", "cohort", "work", "batches", "layout")}
    again = fjs.simulate(
        build(description["algorithm"]),
        build(description["dataset"]),
        rounds=run["rounds"],
        eval_every=run["eval_every"],
        seeds=history.seeds,
        **parts,
    )
    assert again.description == history.description
    np.testing.assert_array_equal(again["loss"], history["loss"])
    np.testing.assert_array_equal(again["test_accuracy"], history["test_accuracy"])


def test_a_run_of_opaque_parts_is_recorded_too() -> None:
    """What cannot be rebuilt must not cost a user the results."""

    def squares(params: Any, examples: Any) -> jax.Array:
        return jnp.square(params - examples["e"][:, 0])

    history = fjs.simulate(
        opaque_algorithm(),
        fjs.datasets.quadratics(2, 1).replace(),
        task=fjs.functions(first, squares),
        rounds=1,
        cohort=fjs.cohort.full(),
        work=fjs.local.steps(1),
        batch_size=1,
    )
    paths = {part.partition(":")[0] for part in opaque_parts(history.description)}
    assert paths == {
        "algorithm.client_optimizer",
        "algorithm.client_learning_rate",
        "dataset",
        "run.task.init_function",
        "run.task.losses_function",
    }


@pytest.mark.parametrize(
    ("base", "given"),
    [
        (fjs.task.Classification, {"weight_decay": 0.1}),
        (type(fjs.cohort.uniform(1)), {"average": "plain"}),
        (type(fjs.local.steps(1)), {"num_steps": 5}),
    ],
)
def test_a_value_without_annotation_would_be_that_of_the_base(base: type, given: dict[str, Any]) -> None:
    with pytest.raises(
        TypeError, match=rf"^Mine sets {next(iter(given))} = .* without an annotation, so it would keep"
    ):
        type("Mine", (base,), given)


@pytest.mark.parametrize(
    ("base", "name", "given", "meant"),
    [
        (type(fjs.local.steps(1)), "step", lambda self, turn: turn.sizes, "steps"),
        (type(fjs.aggregators.median()), "combined", lambda self, stack, who: stack, "combine"),
        (type(fjs.aggregators.median()), "weigthed", True, "weighted"),
        (type(fjs.attacks.sign_flip()), "tamper", lambda self, message, key: message, "tampered"),
        (type(fjs.systems.deadline(1.0)), "closes", lambda self, reports: reports, "close"),
    ],
)
def test_a_misspelt_method_would_run_that_of_the_base(base: type, name: str, given: Any, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"^Mine.{name}: no base has it.* did you mean '{meant}'\?"):
        type("Mine", (base,), {name: given})


def test_no_class_of_the_package_misspells_a_name() -> None:
    """Their names are checked here, which takes an import no time."""
    for module in pkgutil.walk_packages(fjs.__path__, "fedjax_sim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, new = [descriptions.Described], {descriptions.Described}
    for one in found:
        found += {*one.__subclasses__()} - new
        new |= {*one.__subclasses__()}
    own = [one for one in found[1:] if one.__module__.startswith("fedjax_sim.")]
    assert len(own) > 250
    for one in own:
        classes.check_names(one)


def test_a_helper_has_any_name() -> None:
    class Mine(type(fjs.local.steps(1))):  # type: ignore[misc]
        def step(self, turn: Any) -> Any:
            return turn.sizes

        def most_step(self) -> int:
            return 3

        def steps(self, turn: Any) -> Any:
            return jax.tree.map(lambda _: self.step(turn), turn)

    class Base(type(fjs.local.steps(1))):  # type: ignore[misc]
        def rule_a(self, turn: Any) -> Any:
            return self.rule_b(turn)  # type: ignore[attr-defined]

    class Below(Base):
        def rule_b(self, turn: Any) -> Any:
            return turn.sizes

    assert Mine(2).most_step() == 3
    assert Below(2).rule_a(types.SimpleNamespace(sizes=1)) == 1


def test_an_init_of_ones_own_is_told_of_fields() -> None:
    class Warm(fjs.task.Classification):
        def __init__(self, model: nn.Module, temperature: float) -> None:
            self.temperature = temperature

    with pytest.raises(dataclasses.FrozenInstanceError, match=r"no field has this name; temperature: Any = \.\.\."):
        Warm(nn.Dense(2), 2.0)


def test_classes_with_equal_fields_are_different_structures() -> None:
    """Else a compiled program of one could be run for the other (see ``Described``)."""
    one, other = fjs.fedadam(client_optimizer=sgd(0.1)), fjs.fedyogi(client_optimizer=sgd(0.1))
    assert [field.name for field in dataclasses.fields(one)] == [field.name for field in dataclasses.fields(other)]
    assert jax.tree.structure(one) != jax.tree.structure(other)
    named = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(one)[0][0][0])
    assert named == ".client_optimizer.learning_rate"
    assert_same(jax.tree.unflatten(jax.tree.structure(one), jax.tree.leaves(one)), one)
