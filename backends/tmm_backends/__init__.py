"""Engines that compute the products of `tmm_core`, one module per library."""
