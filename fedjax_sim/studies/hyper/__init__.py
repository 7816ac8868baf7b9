"""Studies of hyper-parameters and data: by gradients through whole runs, by populations of runs."""

from types import ModuleType as _Module

from fedjax_sim.studies.coalitions import Coalitions as Coalitions
from fedjax_sim.studies.coalitions import coalitions as coalitions
from fedjax_sim.studies.hyper.tuned import Tuned as Tuned
from fedjax_sim.studies.hyper.tuning import tune as tune
from fedjax_sim.studies.objectives import Final as Final
from fedjax_sim.studies.objectives import Influence as Influence
from fedjax_sim.studies.objectives import Mean as Mean
from fedjax_sim.studies.objectives import Objective as Objective
from fedjax_sim.studies.objectives import final as final
from fedjax_sim.studies.objectives import influence as influence
from fedjax_sim.studies.objectives import mean as mean
from fedjax_sim.studies.search.asking import ask_evosax as ask_evosax
from fedjax_sim.studies.search.asking import ask_optuna as ask_optuna
from fedjax_sim.studies.search.asking import evaluator as evaluator
from fedjax_sim.studies.search.result import Searched as Searched
from fedjax_sim.studies.search.running import search as search
from fedjax_sim.studies.search.strategies import Halving as Halving
from fedjax_sim.studies.search.strategies import Population as Population
from fedjax_sim.studies.search.strategies import Strategy as Strategy
from fedjax_sim.studies.search.strategies import halving as halving
from fedjax_sim.studies.search.strategies import population as population
from fedjax_sim.studies.subject import Identity as Identity
from fedjax_sim.studies.subject import Interval as Interval
from fedjax_sim.studies.subject import Positive as Positive
from fedjax_sim.studies.subject import Simplex as Simplex
from fedjax_sim.studies.subject import Transform as Transform
from fedjax_sim.studies.subject import identity as identity
from fedjax_sim.studies.subject import interval as interval
from fedjax_sim.studies.subject import positive as positive
from fedjax_sim.studies.subject import simplex as simplex
from fedjax_sim.studies.subject import unit_interval as unit_interval

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
