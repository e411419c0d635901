"""Comparisons of architectures: what is held equal, the runs, the statistics, the results (`tmm compare`)."""
