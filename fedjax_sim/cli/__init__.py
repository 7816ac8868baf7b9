"""The commands of ``fedjax-sim``, one file each; jax, flax and optax are imported by those that compute."""
