"""The layout of a run by measuring: ``layout="tune"`` and ``fjs.layout.tune``."""
