"""Which kind of array is at hand, and which engine computes on it."""
