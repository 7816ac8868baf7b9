"""What a run looks like to its user: tables, plots, a progress bar, files written safely.

Everything here reads recorded arrays and nothing of it runs a simulation. matplotlib and rich are imported where they
are used.
"""

from fedjax_sim.core.files import write_atomically
from fedjax_sim.reporting.client_plots import distributions, personal_models
from fedjax_sim.reporting.data_plots import label_heatmap, overview, size_histogram
from fedjax_sim.reporting.html import report
from fedjax_sim.reporting.paired import paired_table
from fedjax_sim.reporting.panels import Panel, comparison, panels
from fedjax_sim.reporting.personal import personal_table
from fedjax_sim.reporting.plots import curves, save_figure
from fedjax_sim.reporting.progress import Progress, progress_bar
from fedjax_sim.reporting.recorded import Recorded
from fedjax_sim.reporting.table import results_table

__all__ = [
    "Panel",
    "Progress",
    "Recorded",
    "comparison",
    "curves",
    "distributions",
    "label_heatmap",
    "overview",
    "paired_table",
    "panels",
    "personal_models",
    "personal_table",
    "progress_bar",
    "report",
    "results_table",
    "save_figure",
    "size_histogram",
    "write_atomically",
]
