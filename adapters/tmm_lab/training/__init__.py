"""Training runs: one course of a run, and a model, data and defaults, for Hugging Face's Trainer and for JAX."""
