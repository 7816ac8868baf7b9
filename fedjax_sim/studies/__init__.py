"""What takes many runs or derivatives of them: sweeps, tuning by gradients, what a model is worth once adapted."""
