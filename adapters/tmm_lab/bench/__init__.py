"""Paired timing, and the benchmarks of `asv_bench/` as tables for `tmm bench`."""

from .turns import FULL, QUICK, Schedule, compare, take_turns

__all__ = ["FULL", "QUICK", "Schedule", "compare", "take_turns"]
