"""Training in JAX: devices, steps, state, and a model to be measured and to write."""
