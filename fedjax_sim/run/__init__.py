"""Runs: ``make_train`` and ``simulate``, what they record and keep on disk, how they are described in files."""
