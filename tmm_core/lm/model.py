"""The language model, once, in array-API calls: its parameters, its logits and its loss.

Every function takes the parameters as a flat mapping from names to arrays of one library; the names are the keys of
the safetensors file. In float64 NumPy this is the oracle of the trainable models in `tmm_adapters`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

from .._arrays.exchange import Array, namespace_of
from .._arrays.properties import as_integers, nan_where, result_dtype_name, surely_any
from .._arrays.strictness import with_jax_defaults
from .._dispatch.checks import check_arrays, check_integers
from ..config import TMMConfig
from ..errors import InputError
from ..mixing import float32_at_least, mix_tokens
from .documents import IGNORED, documents_of, positions_of, refused_rows, targets_of
from .parameters import check_params
from .plans import Mix

__all__ = ["bias_of", "check_vocabulary", "forward", "loss"]

Params = Mapping[str, Array]
# The machine epsilon by name, for NumPy does not know that of bfloat16.
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@with_jax_defaults
def forward(
    params: Params,
    input_ids: Array,
    config: TMMConfig,
    *,
    attention_mask: Array | None = None,
    segment_ids: Array | None = None,
    backend: str | None = None,
) -> Array:
    """Return the logits of the next token at every position.

    Parameters
    ----------
    params : mapping of names to arrays
        As `parameter_shapes` describes them, of one library and one floating dtype.
    input_ids : array of integers, (..., n)
        Tokens, of the same library.
    config : TMMConfig
        The model.
    attention_mask : array of booleans or numbers, (..., n), optional
        1 for a token and 0 for padding, before the tokens or after them; logits at padding mean nothing.
    segment_ids : array of integers, (..., n), optional
        Non-decreasing numbers of the documents packed into each row: none sees another, and positions are counted
        within each. Those of padding do not matter.
    backend : str, optional
        Name of the backend that computes the Toeplitz products; see `tmm_core.use_backend`.

    Returns
    -------
    array, (..., n, vocab_size)
        In the dtype of the parameters; norms of half-precision values are computed in float32.

    Raises
    ------
    TypeError
        If tokens or segment ids are no integers, or the arrays are of several libraries.
    ValueError
        If names or shapes of the parameters are not those of `config`; a token is outside the vocabulary (in traced
        code it and all after it become NaN); a document is longer than the position bias; the mask has a hole or a
        row without tokens, or segment ids go back (in traced code such rows become NaN).

    Notes
    -----
    O(n log n) time and O(n) memory in the length of the sequence. A row's logits do not depend on what it is batched or
    packed with. Documents cost next to nothing with Numba's engine and about four times the mixing with others, so
    pass no mask where nothing is padded. Source: arXiv 2605.06683.

    Examples
    --------
    >>> import numpy as np
    >>> from tmm_core import lm
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> params = lm.init_params(config, np.random.default_rng(0))
    >>> lm.forward(params, np.asarray([[1, 4, 2]]), config).shape
    (1, 3, 5)
    """
    check_params(params, config)
    input_ids, attention_mask, segment_ids = arrays_with(
        params, input_ids=input_ids, attention_mask=attention_mask, segment_ids=segment_ids
    )
    input_ids = as_ids("input_ids", input_ids)
    documents = documents_of(input_ids, attention_mask, segment_ids)
    positions = positions_of(documents, config)
    apart = {"segment_ids": documents, "positions": positions}

    def mix(name: str, x: Array) -> Array:
        bias = params.get(bias_of(name))
        return mix_tokens(params[name], x, bias, softplus=config.softplus, mean=config.mean, **apart, backend=backend)

    logits = logits_of(params, blocks(params, input_ids, config, mix), config)
    refused = refused_rows(documents)
    return logits if refused is None else nan_where(refused[..., None], logits)


@with_jax_defaults
def loss(
    params: Params,
    input_ids: Array,
    config: TMMConfig,
    *,
    labels: Array | None = None,
    targets: Array | None = None,
    attention_mask: Array | None = None,
    segment_ids: Array | None = None,
    backend: str | None = None,
) -> Array:
    """Return the mean cross-entropy (nats) of each token given those before it.

    Parameters
    ----------
    params, input_ids, config, attention_mask, segment_ids, backend
        As in `forward`.
    labels : array of integers, of the shape of `input_ids`, optional
        The tokens to predict, `input_ids` unless given; position t predicts `labels[..., t + 1]`. Labels of -100 do
        not count, nor does padding, nor a label of another document than t.
    targets : array of integers, of the shape of `input_ids`, optional
        In place of labels: what each position predicts, all of which count but those of -100.

    Returns
    -------
    array, ()
        NaN if nothing counts.

    Raises
    ------
    TypeError, ValueError
        As `forward`, for labels as for tokens; and if their shapes differ, both labels and targets are given, or there
        is no position to predict.

    Notes
    -----
    As `forward`; logits of half precision are summed in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from tmm_core import lm
    >>> config = TMMConfig(vocab_size=4, max_len=8, d_model=2, n_layers=0, n_heads=0, embed_std=0)
    >>> float(lm.loss(lm.init_params(config, np.random.default_rng(0)), np.asarray([1, 3, 2]), config))  # knows nothing
    1.3862943649291992
    """
    check_params(params, config)
    input_ids, labels, targets, attention_mask, segment_ids = arrays_with(
        params,
        input_ids=input_ids, labels=labels, targets=targets, attention_mask=attention_mask, segment_ids=segment_ids,
    )  # fmt: skip
    xp, input_ids = namespace_of(input_ids), as_ids("input_ids", input_ids)
    documents = documents_of(input_ids, attention_mask, segment_ids)
    labels = input_ids if labels is None and targets is None else labels
    labels = None if labels is None else as_ids("labels", labels)
    targets = None if targets is None else as_ids("targets", targets)
    wanted: Array = targets_of(input_ids, labels, targets, documents)
    logits = forward(params, input_ids, config, attention_mask=attention_mask, segment_ids=segment_ids, backend=backend)
    logits = float32_at_least(xp, logits)
    counts = wanted != IGNORED
    check_vocabulary("label", wanted, config.vocab_size)
    known = _in_vocabulary(wanted, config.vocab_size)
    top = xp.max(logits, axis=-1, keepdims=True)
    log_total = xp.log(xp.sum(xp.exp(logits - top), axis=-1)) + top[..., 0]
    ids = xp.cumulative_sum(xp.ones_like(logits[..., :1, :]), axis=-1) - 1  # 0, 1, … on the right device
    hit = xp.astype(ids, wanted.dtype) == wanted[..., None]
    chosen = xp.sum(xp.where(hit, logits, xp.zeros_like(logits)), axis=-1)
    nats = nan_where(counts & ~known, log_total - chosen)
    nats = xp.where(counts, nats, xp.zeros_like(nats))
    total, counted = xp.sum(nats), xp.sum(xp.astype(counts, nats.dtype))
    nothing = counted == 0  # then NaN, without a warning of NumPy's, whose switch no compiler follows
    return nan_where(nothing, total / xp.where(nothing, xp.ones_like(counted), counted))


def blocks(params: Params, input_ids: Array, config: TMMConfig, mix: Mix) -> Array:
    """Return the residual stream of tokens, (..., d), after the last block."""
    xp = namespace_of(*params.values(), input_ids)
    check_vocabulary("token", input_ids, config.vocab_size)
    x = _embed(xp, params["embed.weight"], input_ids)
    mlp_first = config.order == "mlp_first"
    for i in range(config.n_layers):
        block = _part(params, f"blocks.{i}")
        if mlp_first:
            x = x + _mlp(xp, _part(block, "mlp"), _norm(xp, _part(block, "mlp_norm"), x, config), config)
        mixed = _norm(xp, _part(block, "mix_norm"), x, config)
        x = x + _mix(xp, _part(block, "mix"), mixed, config, f"blocks.{i}.mix.", mix)
        if not mlp_first:
            x = x + _mlp(xp, _part(block, "mlp"), _norm(xp, _part(block, "mlp_norm"), x, config), config)
    return x


def logits_of(params: Params, x: Array, config: TMMConfig) -> Array:
    """Return the logits, (..., vocab_size), of what comes out of the last block."""
    xp = namespace_of(*params.values(), x)
    if config.final_norm:
        x = _norm(xp, _part(params, "final_norm"), x, config)
    unembed = params["embed.weight" if config.tie_embeddings else "unembed.weight"]
    return xp.matmul(x, xp.matrix_transpose(unembed))


def bias_of(name: str) -> str:
    """Return the name of the position bias that goes with lags."""
    return name.replace(".mix.lags", ".mix.bias")


def _embed(xp: ModuleType, table: Array, ids: Array) -> Array:
    known = _in_vocabulary(ids, table.shape[0])
    safe = xp.where(known, ids, xp.zeros_like(ids))
    rows = xp.reshape(xp.take(table, xp.reshape(safe, (-1,)), axis=0), (*ids.shape, table.shape[1]))
    return nan_where(~known[..., None], rows)


def _mlp(xp: ModuleType, p: Params, x: Array, config: TMMConfig) -> Array:
    """Return `down(activation(up(x)))`."""
    return _linear(xp, _part(p, "down"), _ACTIVATIONS[config.activation](xp, _linear(xp, _part(p, "up"), x)))


def _mix(xp: ModuleType, p: Params, x: Array, config: TMMConfig, prefix: str, mix: Mix) -> Array:
    """Return `T x + bias` between its projections; with two layers `T2 silu(T1 x + bias1) + bias2`."""
    if config.has_projections:
        x = _linear(xp, _part(p, "in_proj"), x)
    x = mix(prefix + "lags", x)
    if config.mix_layers == 2:
        x = mix(prefix + "lags2", _silu(xp, x))
    return _linear(xp, _part(p, "out_proj"), x) if config.has_projections else x


def _norm(xp: ModuleType, p: Params, x: Array, config: TMMConfig) -> Array:
    """Return x over its root mean square, or also less its mean, times the weight (plus the bias)."""
    y = float32_at_least(xp, x)
    if config.norm == "rms":
        mean_square = xp.mean(y * y, axis=-1, keepdims=True)
        y = y / xp.sqrt(mean_square + _EPS[result_dtype_name(x)]) * p["weight"]
    else:
        y = y - xp.mean(y, axis=-1, keepdims=True)
        y = y / xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + 1e-5) * p["weight"] + p["bias"]
    return xp.astype(y, x.dtype, copy=False)


def _linear(xp: ModuleType, p: Params, x: Array) -> Array:
    y = xp.matmul(x, xp.matrix_transpose(p["weight"]))
    return y + p["bias"] if "bias" in p else y


def _silu(xp: ModuleType, x: Array) -> Array:
    """Return `x / (1 + exp(-x))`, by tanh, which cannot overflow."""
    return 0.5 * x * (1 + xp.tanh(0.5 * x))


def _gelu_tanh(xp: ModuleType, x: Array) -> Array:
    """Return the tanh approximation of `x * normal_cdf(x)`."""
    return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


_ACTIVATIONS = {"silu": _silu, "gelu_tanh": _gelu_tanh}


def _part(params: Params, prefix: str) -> dict[str, Array]:
    """Return the parameters under a prefix, by the rest of their names."""
    return {name.removeprefix(prefix + "."): p for name, p in params.items() if name.startswith(prefix + ".")}


def arrays_with(params: Params, **arrays: Array | None) -> list[Any]:
    """Return arrays that go with a model's parameters, refused by name where they do not."""
    return check_arrays(**arrays, params=next(iter(params.values())))[1][:-1]


def as_ids(name: str, ids: Array) -> Array:
    """Return integers of any width as the library's own, which hold every vocabulary."""
    check_integers(name, ids, "numbers of tokens")
    if ids.ndim == 0:
        raise InputError(f"{name} must be (..., n), a sequence of tokens, and is a single number")
    integers: Array = as_integers(ids)
    return integers


def check_vocabulary(what: Literal["token", "label"], ids: Array, size: int) -> None:
    """Refuse tokens, or labels other than -100, outside a vocabulary, where their values are known."""
    xp = namespace_of(ids)
    ids = ids if what == "token" else xp.where(ids == IGNORED, xp.zeros_like(ids), ids)
    if surely_any(~_in_vocabulary(ids, size)):
        least, most = int(xp.min(ids)), int(xp.max(ids))
        raise InputError(
            f"{what} {least if least < 0 else most} is outside the vocabulary of {size} tokens (0 to {size - 1}): "
            "were the text and the model made with the same tokenizer?"
        )


def _in_vocabulary(ids: Array, size: int) -> Array:
    return (ids >= 0) & (ids < size)
