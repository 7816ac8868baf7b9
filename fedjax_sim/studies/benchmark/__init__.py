"""``fjs.benchmark``: a fair comparison of methods as a protocol with a version; one's own is entered by ``run``."""

from types import ModuleType as _Module

from fedjax_sim.studies.benchmark.evidence import BUDGETS as BUDGETS
from fedjax_sim.studies.benchmark.evidence import Difference as Difference
from fedjax_sim.studies.benchmark.evidence import differences as differences
from fedjax_sim.studies.benchmark.evidence import smallest_effect as smallest_effect
from fedjax_sim.studies.benchmark.evidence import within as within
from fedjax_sim.studies.benchmark.methods import DEEP as DEEP
from fedjax_sim.studies.benchmark.methods import METHODS as METHODS
from fedjax_sim.studies.benchmark.methods import Entry as Entry
from fedjax_sim.studies.benchmark.personal import PERSONAL as PERSONAL
from fedjax_sim.studies.benchmark.personal import OwnModels as OwnModels
from fedjax_sim.studies.benchmark.personal import own_models as own_models
from fedjax_sim.studies.benchmark.problems import PROBLEMS as PROBLEMS
from fedjax_sim.studies.benchmark.problems import ByClients as ByClients
from fedjax_sim.studies.benchmark.problems import Problem as Problem
from fedjax_sim.studies.benchmark.problems import by_clients as by_clients
from fedjax_sim.studies.benchmark.result import Cost as Cost
from fedjax_sim.studies.benchmark.result import Result as Result
from fedjax_sim.studies.benchmark.result import cost as cost
from fedjax_sim.studies.benchmark.result import run as run
from fedjax_sim.studies.benchmark.running import PROTOCOL as PROTOCOL
from fedjax_sim.studies.benchmark.running import SMOKE as SMOKE
from fedjax_sim.studies.benchmark.running import Choice as Choice
from fedjax_sim.studies.benchmark.running import Protocol as Protocol
from fedjax_sim.studies.benchmark.running import Row as Row

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
