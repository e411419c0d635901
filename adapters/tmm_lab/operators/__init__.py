"""The Toeplitz operators of a trained model: index, spectra, tables and pictures."""
