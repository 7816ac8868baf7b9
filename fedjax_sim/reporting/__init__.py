"""What a run looks like to its user: tables, plots, a progress bar, files written safely.

Everything here reads recorded arrays and nothing of it runs a simulation. matplotlib and rich are imported where they
are used.
"""

from types import ModuleType as _Module

from fedjax_sim.core.files import write_atomically as write_atomically
from fedjax_sim.reporting.client_plots import distributions as distributions
from fedjax_sim.reporting.client_plots import personal_models as personal_models
from fedjax_sim.reporting.data_plots import label_heatmap as label_heatmap
from fedjax_sim.reporting.data_plots import overview as overview
from fedjax_sim.reporting.data_plots import size_histogram as size_histogram
from fedjax_sim.reporting.html import report as report
from fedjax_sim.reporting.paired import paired_table as paired_table
from fedjax_sim.reporting.panels import Panel as Panel
from fedjax_sim.reporting.panels import comparison as comparison
from fedjax_sim.reporting.panels import panels as panels
from fedjax_sim.reporting.personal import personal_table as personal_table
from fedjax_sim.reporting.plots import curves as curves
from fedjax_sim.reporting.plots import save_figure as save_figure
from fedjax_sim.reporting.progress import Progress as Progress
from fedjax_sim.reporting.progress import progress_bar as progress_bar
from fedjax_sim.reporting.recorded import Recorded as Recorded
from fedjax_sim.reporting.table import results_table as results_table

__all__ = [name for name, value in vars().items() if not (name.startswith("_") or isinstance(value, _Module))]
