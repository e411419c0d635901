"""Training in PyTorch: devices and processes, steps, state, and a model to be measured and to write."""
