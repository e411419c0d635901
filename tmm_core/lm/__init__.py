"""The language model, once, in array-API calls: its parameters, its logits and its loss, and its streams."""

from .decoding import (
    filters_of,
    prefill_padded,
    stream_copy,
    stream_init,
    stream_plan,
    stream_prefill,
    stream_reorder,
    stream_step,
)
from .documents import IGNORED, documents_of, left_padded, next_token_targets, positions_of, refused_rows, targets_of
from .model import bias_of, check_vocabulary, forward, loss
from .parameters import (
    check_config,
    check_params,
    decayed_names,
    flops_per_token,
    frozen_names,
    init_params,
    parameter_shapes,
)
from .plans import DecodingPlan, DecodingState, Filter, Mix, StreamedModel

__all__ = [
    "IGNORED",
    "DecodingPlan",
    "DecodingState",
    "Filter",
    "Mix",
    "StreamedModel",
    "bias_of",
    "check_config",
    "check_params",
    "check_vocabulary",
    "decayed_names",
    "documents_of",
    "filters_of",
    "flops_per_token",
    "forward",
    "frozen_names",
    "init_params",
    "left_padded",
    "loss",
    "next_token_targets",
    "parameter_shapes",
    "positions_of",
    "prefill_padded",
    "refused_rows",
    "stream_copy",
    "stream_init",
    "stream_plan",
    "stream_prefill",
    "stream_reorder",
    "stream_step",
    "targets_of",
]
