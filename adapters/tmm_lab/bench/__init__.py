"""Benchmarks: ours and what people write today, taking turns in one process; for `tmm bench` and for `asv_bench/`."""

from .decoding import DECODED, DECODING, MEASURED, ONLY, Decoding, measure_decoding
from .measure import HEADS, LENGTHS, Case, compare_gradients, compare_products, gradients, product, product_memory
from .packing import PACKED, PACKED_MODELS, compare_packing
from .process import ALLOCATORS, default_backend, default_threads, prepare
from .rivals import HISTORIES, RIVALS
from .streaming import STREAMED, Stream, compare_streams, slowest_step, stream_memory, time_streams
from .training import CONTEXTS, OTHERS, TRAINING, compare_training
from .turns import FULL, QUICK, Pace, Ratio, compare, take_turns

__all__ = [
    "ALLOCATORS",
    "CONTEXTS",
    "DECODED",
    "DECODING",
    "FULL",
    "HEADS",
    "HISTORIES",
    "LENGTHS",
    "MEASURED",
    "ONLY",
    "OTHERS",
    "PACKED",
    "PACKED_MODELS",
    "QUICK",
    "RIVALS",
    "STREAMED",
    "TRAINING",
    "Case",
    "Decoding",
    "Pace",
    "Ratio",
    "Stream",
    "compare",
    "compare_gradients",
    "compare_packing",
    "compare_products",
    "compare_streams",
    "compare_training",
    "default_backend",
    "default_threads",
    "gradients",
    "measure_decoding",
    "prepare",
    "product",
    "product_memory",
    "slowest_step",
    "stream_memory",
    "take_turns",
    "time_streams",
]
