"""Training of the PyTorch model: its place, its steps, its state, and what the model is worth."""
