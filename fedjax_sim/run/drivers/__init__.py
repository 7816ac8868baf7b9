"""How :func:`fedjax_sim.simulate` gets its rounds computed: with the data on the device, or streamed from the host."""
