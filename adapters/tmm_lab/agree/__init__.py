"""Agreement: every backend computes the same things, and each is held against NumPy in float64; for `tmm agree`."""
