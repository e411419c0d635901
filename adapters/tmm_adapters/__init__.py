"""Trainable Toeplitz MLP Mixer language models, their checkpoints, and the command line."""
