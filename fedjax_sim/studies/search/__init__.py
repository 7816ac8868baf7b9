"""Many runs that are trained beside each other and chosen among on the way: :func:`fedjax_sim.search`."""
