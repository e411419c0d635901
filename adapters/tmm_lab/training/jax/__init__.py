"""Training of the JAX model: its place, its steps, its state, and what the model is worth."""
