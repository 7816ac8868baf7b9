"""One client's round: how many steps, on which examples, and the steps themselves."""

from types import ModuleType as _Module

from fedjax_sim.clients.local.batches import Batches as Batches
from fedjax_sim.clients.local.batches import Positions as Positions
from fedjax_sim.clients.local.batches import fraction as fraction
from fedjax_sim.clients.local.batches import full_batch as full_batch
from fedjax_sim.clients.local.batches import in_order as in_order
from fedjax_sim.clients.local.batches import shuffled as shuffled
from fedjax_sim.clients.local.batches import with_replacement as with_replacement
from fedjax_sim.clients.local.clock import deadline as deadline
from fedjax_sim.clients.local.clock import window as window
from fedjax_sim.clients.local.work import Turn as Turn
from fedjax_sim.clients.local.work import Work as Work
from fedjax_sim.clients.local.work import epochs as epochs
from fedjax_sim.clients.local.work import gaussian_steps as gaussian_steps
from fedjax_sim.clients.local.work import geometric as geometric
from fedjax_sim.clients.local.work import given_steps as given_steps
from fedjax_sim.clients.local.work import random_epochs as random_epochs
from fedjax_sim.clients.local.work import steps as steps
from fedjax_sim.clients.local.work import stragglers as stragglers

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
