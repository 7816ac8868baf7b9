"""Federated algorithms: one short file each, against the contract of :mod:`fedjax_sim.algorithms.contract`."""

from fedjax_sim.algorithms.affine import affine
from fedjax_sim.algorithms.apfl import Apfl, apfl
from fedjax_sim.algorithms.attacked import Attacked, attacked
from fedjax_sim.algorithms.averaging import Ema, LastK, ema, last_k
from fedjax_sim.algorithms.base import Algorithm, Sent, ServerState
from fedjax_sim.algorithms.cfl import Cfl, cfl
from fedjax_sim.algorithms.clipping import AdaptivelyClipped, Clipped, Clipping, adaptively_clipped, clipped
from fedjax_sim.algorithms.compression import Compressed, Quantised, RandomK, TopK, quantised, random_k, top_k
from fedjax_sim.algorithms.contract import Client, Cohort, Each, Mean, Method, Parts, Requires, Share, Stack, Sum
from fedjax_sim.algorithms.ditto import Ditto, ditto
from fedjax_sim.algorithms.fairness import Afl, QFedAvg, afl, qfedavg
from fedjax_sim.algorithms.fedala import FedAla, fedala
from fedjax_sim.algorithms.fedavg import FedAvg, LargeBatchSgd, LocalSgd, fedavg, large_batch_sgd, local_sgd
from fedjax_sim.algorithms.fedaware import Aware, FedAware, aware, fedaware
from fedjax_sim.algorithms.fedcm import FedCm, fedcm
from fedjax_sim.algorithms.feddane import Dane, FedDane, dane, feddane
from fedjax_sim.algorithms.feddf import FedDf, feddf
from fedjax_sim.algorithms.feddyn import FedDyn, feddyn
from fedjax_sim.algorithms.fedem import FedEM, fedem
from fedjax_sim.algorithms.fedexp import FedExp, fedexp
from fedjax_sim.algorithms.fedlc import FedLc, fedlc
from fedjax_sim.algorithms.fedlopt import FedLOpt, fedlopt
from fedjax_sim.algorithms.fednova import FedNova, fednova
from fedjax_sim.algorithms.fedntd import FedNtd, fedntd
from fedjax_sim.algorithms.fedopt import (
    FedAdagrad,
    FedAdam,
    FedAms,
    FedAvgM,
    FedYogi,
    fedadagrad,
    fedadam,
    fedams,
    fedavgm,
    fedyogi,
)
from fedjax_sim.algorithms.fedproto import FedProto, fedproto
from fedjax_sim.algorithms.fedprox import FedProx, fedprox
from fedjax_sim.algorithms.fedrep import FedRep, fedrep
from fedjax_sim.algorithms.fedrod import FedRoD, fedrod
from fedjax_sim.algorithms.fedrs import FedRs, fedrs
from fedjax_sim.algorithms.fedsam import FedSam, fedsam
from fedjax_sim.algorithms.fedvarp import FedVarp, fedvarp
from fedjax_sim.algorithms.fjord import Fjord, fjord
from fedjax_sim.algorithms.heterofl import HeteroFl, heterofl
from fedjax_sim.algorithms.ifca import HypCluster, Ifca, hypcluster, ifca
from fedjax_sim.algorithms.mime import Mime, MimeLite, mime, mime_lite
from fedjax_sim.algorithms.moon import Moon, moon
from fedjax_sim.algorithms.mr_mtl import MrMtl, mr_mtl
from fedjax_sim.algorithms.partial import Freeze, Keep, Partial, freeze, keep
from fedjax_sim.algorithms.perfedavg import PerFedAvg, perfedavg
from fedjax_sim.algorithms.pfedme import PFedMe, pfedme
from fedjax_sim.algorithms.private import Dp, dp
from fedjax_sim.algorithms.reweighted import Reweighted, reweighted
from fedjax_sim.algorithms.robust import Robust, robust
from fedjax_sim.algorithms.scaffnew import Scaffnew, scaffnew
from fedjax_sim.algorithms.scaffold import Scaffold, scaffold
from fedjax_sim.algorithms.vrl_sgd import VrlSgd, vrl_sgd
from fedjax_sim.algorithms.wrapper import Wrapped, Wrapper

__all__ = [
    "AdaptivelyClipped", "Afl", "Algorithm", "Apfl", "Attacked", "Aware", "Cfl", "Client", "Clipped", "Clipping",
    "Cohort", "Compressed", "Dane", "Ditto", "Dp", "Each", "Ema", "FedAdagrad", "FedAdam", "FedAla", "FedAms",
    "FedAvg", "FedAvgM", "FedAware", "FedCm", "FedDane", "FedDf", "FedDyn", "FedEM", "FedExp", "FedLOpt", "FedLc",
    "FedNova", "FedNtd", "FedProto", "FedProx", "FedRep", "FedRoD", "FedRs", "FedSam", "FedVarp", "FedYogi", "Fjord",
    "Freeze", "HeteroFl", "HypCluster", "Ifca", "Keep", "LargeBatchSgd", "LastK", "LocalSgd", "Mean", "Method",
    "Mime", "MimeLite", "Moon", "MrMtl", "PFedMe", "Partial", "Parts", "PerFedAvg", "QFedAvg", "Quantised",
    "RandomK", "Requires", "Reweighted", "Robust", "Scaffnew", "Scaffold", "Sent", "ServerState", "Share", "Stack",
    "Sum", "TopK", "VrlSgd", "Wrapped", "Wrapper", "adaptively_clipped", "affine", "afl", "apfl", "attacked",
    "aware", "cfl", "clipped", "dane", "ditto", "dp", "ema", "fedadagrad", "fedadam", "fedala", "fedams", "fedavg",
    "fedavgm", "fedaware", "fedcm", "feddane", "feddf", "feddyn", "fedem", "fedexp", "fedlc", "fedlopt", "fednova",
    "fedntd", "fedproto", "fedprox", "fedrep", "fedrod", "fedrs", "fedsam", "fedvarp", "fedyogi", "fjord", "freeze",
    "heterofl", "hypcluster", "ifca", "keep", "large_batch_sgd", "last_k", "local_sgd", "mime", "mime_lite", "moon",
    "mr_mtl", "perfedavg", "pfedme", "qfedavg", "quantised", "random_k", "reweighted", "robust", "scaffnew",
    "scaffold", "top_k", "vrl_sgd",
]  # fmt: skip
