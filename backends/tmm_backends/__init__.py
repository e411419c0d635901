"""Engines that compute the products of `tmm_core`, and bridges of array libraries, one module per library."""
