"""Measurements. What they compile is neither kept nor found compiled: else a second one would tell another story."""

import os

os.environ.setdefault("FEDJAX_SIM_CACHE", "off")
