"""Benchmarks: ours and what people write today, taking turns in one process; for `tmm bench` and for `asv_bench/`."""

from .measure import (
    HEADS,
    LENGTHS,
    Case,
    compare_gradients,
    compare_products,
    gradients,
    product,
    product_memory,
)
from .process import ALLOCATORS, default_backend, default_threads, prepare
from .rivals import HISTORIES, RIVALS
from .streaming import STREAMED, Stream, compare_streams, slowest_step, stream_memory, time_streams
from .training import CONTEXTS, REPLACEMENTS, TRAINING, compare_training
from .turns import FULL, QUICK, Pace, Ratio, compare, take_turns

__all__ = [
    "ALLOCATORS",
    "CONTEXTS",
    "FULL",
    "HEADS",
    "HISTORIES",
    "LENGTHS",
    "QUICK",
    "REPLACEMENTS",
    "RIVALS",
    "STREAMED",
    "TRAINING",
    "Case",
    "Pace",
    "Ratio",
    "Stream",
    "compare",
    "compare_gradients",
    "compare_products",
    "compare_streams",
    "compare_training",
    "default_backend",
    "default_threads",
    "gradients",
    "prepare",
    "product",
    "product_memory",
    "slowest_step",
    "stream_memory",
    "take_turns",
    "time_streams",
]
