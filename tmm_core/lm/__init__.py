"""The language model, once, in array-API calls: its parameters, its logits and its loss, and its streams."""

from .decoding import (
    DecodingPlan,
    DecodingState,
    stream_copy,
    stream_init,
    stream_plan,
    stream_prefill,
    stream_reorder,
    stream_step,
)
from .documents import IGNORED
from .model import bias_of, forward, loss
from .parameters import check_params, decayed_names, flops_per_token, frozen_names, init_params, parameter_shapes

__all__ = [
    "IGNORED",
    "DecodingPlan",
    "DecodingState",
    "bias_of",
    "check_params",
    "decayed_names",
    "flops_per_token",
    "forward",
    "frozen_names",
    "init_params",
    "loss",
    "parameter_shapes",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
]
