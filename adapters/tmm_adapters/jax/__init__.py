"""The Toeplitz MLP Mixer language model in JAX: pure functions of parameters, training, streams and texts."""

from ..generation import ContextFullError
from .generation import generate, new_tokens
from .model import apply, block, from_params, init, logits_of, loss, mlp, residual_stream, token_mixing
from .optimisation import optimizer, train_step
from .sharding import shardings
from .streaming import stream_copy, stream_init, stream_plan, stream_prefill, stream_reorder, stream_step

__all__ = [
    "ContextFullError",
    "apply",
    "block",
    "from_params",
    "generate",
    "init",
    "logits_of",
    "loss",
    "mlp",
    "new_tokens",
    "optimizer",
    "residual_stream",
    "shardings",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
    "token_mixing",
    "train_step",
]
