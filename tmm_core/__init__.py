"""Toeplitz MLP Mixer: causal Toeplitz products on any array, and the language model built of them.

The axis law, everywhere: `x` is `(..., n, d)`, time on axis -2 and channels last. Lags are the last axis of `w`:
`(k,)`, `(h, k)` or `(h, m, k)` for `h` heads, kernel size `m` and `k` lags; head `i` owns the channels
`[i*d/h, (i+1)*d/h)`.
The operator comes first, as in `A @ x`:

    y[..., t, c] = sum_{i<m} sum_{j <= min(t, k-1)} w[head(c), i, j] * x[..., t-j, c-(m-1)+i]

with channels outside the head, and positions in another segment, read as zero.
"""

from . import lm
from ._dispatch.choice import choose_engine, chosen_backend, current_backend, set_backend, use_backend
from .backend import available_backends, get_backend, registered_backends
from .config import TMMConfig
from .index import OperatorIndex, fredholm_index, toeplitz_symbol
from .mixing import document_positions, mix_tokens
from .solving import causal_toeplitz_inverse, causal_toeplitz_solve
from .streaming import stream_copy, stream_init, stream_plan, stream_prefill, stream_reorder, stream_step
from .toeplitz import causal_toeplitz, causal_toeplitz_correlate, causal_toeplitz_matmul, toeplitz_matmul

__all__ = [
    "OperatorIndex",
    "TMMConfig",
    "available_backends",
    "causal_toeplitz",
    "causal_toeplitz_correlate",
    "causal_toeplitz_inverse",
    "causal_toeplitz_matmul",
    "causal_toeplitz_solve",
    "choose_engine",
    "chosen_backend",
    "current_backend",
    "document_positions",
    "fredholm_index",
    "get_backend",
    "lm",
    "mix_tokens",
    "registered_backends",
    "set_backend",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
    "toeplitz_matmul",
    "toeplitz_symbol",
    "use_backend",
]

__version__ = "0.1.0"
