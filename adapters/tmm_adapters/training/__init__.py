"""Training runs: Hugging Face's Trainer with this project's model, data, defaults and callbacks."""
