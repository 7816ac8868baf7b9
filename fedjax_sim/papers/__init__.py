"""The papers' figures and tables as named experiments, a folder a paper; the demo."""
