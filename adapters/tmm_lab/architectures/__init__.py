"""What a Toeplitz MLP Mixer is compared with: other language models, trained and measured by the same code."""
