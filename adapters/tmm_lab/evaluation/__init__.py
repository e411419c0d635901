"""What a language model is worth: bits per byte of held-out texts, completions, and baselines."""
