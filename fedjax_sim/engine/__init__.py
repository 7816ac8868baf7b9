"""A run of rounds as one XLA program: its plan, one round, layouts, where states lie, adjoints."""
