"""Language models in PyTorch and in JAX, tokenizers, model folders, and what an architecture must provide."""
