"""Padding and packed documents, turned into one numbering of the documents in each row."""

from __future__ import annotations

from types import ModuleType

from .._arrays.exchange import Array
from .._arrays.properties import device_of, surely_any, values_known, values_within_reach
from .._dispatch.checks import check_arrays, check_integers, check_mask
from .._dispatch.compilation import one_operation
from ..config import TMMConfig
from ..errors import InputError
from ..mixing import document_positions

__all__ = ["IGNORED", "documents_of", "left_padded", "next_token_targets", "positions_of", "refused_rows", "targets_of"]

IGNORED = -100
"""The label of a token that the loss passes over."""

_REFUSED = -1


def documents_of(
    input_ids: Array, attention_mask: Array | None, segment_ids: Array | None, *, wait: bool = False
) -> Array:
    """Return the number of each token's document, (..., n), from 1 on; padding is a document of its own everywhere.

    So what keeps documents apart keeps padding out, whatever it holds and however long it is. Rows that eager code
    refuses are numbered -1 in traced code. None where rows are whole, without mask or ids.

    Parameters
    ----------
    input_ids : array, (..., n)
        Tokens; only their shape and library matter.
    attention_mask : array of booleans or numbers, (..., n), or None
        1 for a token and 0 for padding, before the tokens or after them.
    segment_ids : array of integers, (..., n), or None
        Non-decreasing numbers of the documents packed into each row; those of padding do not matter.
    wait : bool
        Whether to wait for a device, to refuse there, too, what would be numbered -1.

    Raises
    ------
    TypeError
        If segment ids are no integers, or the arrays are of several libraries.
    ValueError
        If a shape is not that of `input_ids`, a mask has other values, holes or a row without tokens, or ids go back.
    """
    if attention_mask is None and segment_ids is None:
        return None
    numbers: Array = _numbered(input_ids, attention_mask, segment_ids, wait)
    return numbers


@one_operation
def _numbered(input_ids: Array, attention_mask: Array | None, segment_ids: Array | None, wait: bool) -> Array:
    xp, (input_ids, attention_mask, segment_ids) = check_arrays(
        input_ids=input_ids, attention_mask=attention_mask, segment_ids=segment_ids
    )
    integer = xp.__array_namespace_info__().default_dtypes()["integral"]
    for name, array in (("attention_mask", attention_mask), ("segment_ids", segment_ids)):
        if array is not None and tuple(array.shape) != tuple(input_ids.shape):
            raise InputError(
                f"{name} must have the shape of input_ids, {tuple(input_ids.shape)}, and has {tuple(array.shape)}"
            )
    if input_ids.shape[-1] == 0:  # no library need slice off a position that is not there
        return xp.zeros_like(input_ids, dtype=integer)
    begins = xp.zeros_like(input_ids[..., 1:], dtype=xp.bool)  # whether the next position is of another document
    wrong = xp.any(begins, axis=-1)
    if segment_ids is not None:
        check_integers("segment_ids", segment_ids, "numbers of documents")
        segment_ids = xp.astype(segment_ids, integer, copy=False)
        begins = segment_ids[..., 1:] != segment_ids[..., :-1]
        back = segment_ids[..., 1:] < segment_ids[..., :-1]
    if attention_mask is not None:
        check_mask(attention_mask)
        token = xp.astype(attention_mask, xp.bool)
        begins = begins | ~(token[..., 1:] & token[..., :-1])
        wrong = _wrong_mask(xp, attention_mask, token, integer, wait)
    if segment_ids is not None:
        back = back if attention_mask is None else back & token[..., 1:] & token[..., :-1]
        back = xp.any(back, axis=-1)
        if surely_any(back, wait=wait):
            raise InputError("segment_ids must not decrease along time: number documents in their order in the row")
        wrong = wrong | back
    begins = xp.concat([xp.ones_like(input_ids[..., :1], dtype=xp.bool), begins], axis=-1)
    documents = xp.cumulative_sum(xp.astype(begins, integer), axis=-1)
    return xp.where(wrong[..., None], xp.full_like(documents, _REFUSED), documents)


def left_padded(input_ids: Array, attention_mask: Array) -> tuple[Array, Array | None]:
    """Return the tokens with all padding before them, none that all rows have, and how much each row has of it.

    Parameters
    ----------
    input_ids : array of integers, (b, n)
        Tokens.
    attention_mask : array, (b, n)
        1 for a token and 0 for padding, before the tokens or after them.

    Returns
    -------
    input_ids : array of integers, (b, m)
        Rows that end together, with token 0 for padding; m is n in traced code.
    padding : array of integers, (b,), or None
        None where it is known that there is none.

    Raises
    ------
    TypeError, ValueError
        If they are no arrays of one library, or not of the same two axes.
    """
    xp, (ids, mask) = check_arrays(input_ids=input_ids, attention_mask=attention_mask)
    if ids.ndim != 2 or mask is None or mask.shape != ids.shape:
        shapes = f"{tuple(ids.shape)} and {None if mask is None else tuple(mask.shape)}"
        raise InputError(f"input_ids and attention_mask must both be (b, n), and are {shapes}")
    check_integers("input_ids", ids, "numbers of tokens")
    check_mask(mask)
    batch, n = ids.shape
    token = xp.astype(xp.astype(mask, xp.bool), ids.dtype)
    padding = n - xp.sum(token, axis=-1)  # (b,)
    after = xp.sum(xp.astype(xp.cumulative_sum(xp.flip(token, axis=-1), axis=-1) == 0, ids.dtype), axis=-1)
    times = xp.arange(n, dtype=ids.dtype, device=device_of(ids))
    rows = xp.arange(batch, dtype=ids.dtype, device=device_of(ids))[:, None]
    source = xp.remainder(times - after[:, None], n)
    moved = xp.reshape(xp.take(xp.reshape(ids, (-1,)), xp.reshape(source + n * rows, (-1,))), (batch, n))
    moved = xp.where(times >= padding[:, None], moved, xp.zeros_like(moved))  # padding may hold no token at all
    if values_within_reach(padding):
        common = int(xp.min(padding)) if batch else 0
        moved, padding = moved[:, common:], padding - common
        if not bool(xp.any(padding > 0)):
            return moved, None
    return moved, padding


def positions_of(documents: Array | None, config: TMMConfig) -> Array | None:
    """Return the position of each token within its document, for layers that ask for it; None where none does."""
    if documents is None or not (config.mean or config.position_bias):
        return None
    return document_positions(documents)


def refused_rows(documents: Array | None) -> Array | None:
    """Return, of shape (..., 1), which rows must become NaN, or None where it is known that none must."""
    if documents is None or values_known(documents):
        return None
    return documents[..., :1] == _REFUSED


@one_operation
def next_token_targets(labels: Array, documents: Array | None) -> Array:
    """Return the target of each position, (..., n), given the tokens themselves as labels.

    That is the label of the next position, or -100 if there is none, or it is of another document or padding.
    """
    xp, (labels, documents) = check_arrays(labels=labels, documents=documents)
    check_integers("labels", labels, "numbers of tokens")
    following = labels[..., 1:]
    if documents is not None:
        following = xp.where(documents[..., 1:] == documents[..., :-1], following, xp.full_like(following, IGNORED))
    return xp.concat([following, xp.full_like(labels[..., :1], IGNORED)], axis=-1)


def targets_of(input_ids: Array, labels: Array | None, targets: Array | None, documents: Array | None) -> Array | None:
    """Return the next-token targets, (..., n), that a loss is told by one of two names; None for neither.

    Parameters
    ----------
    input_ids : array, (..., n)
        Tokens; only their shape matters.
    labels : array of integers, (..., n), or None
        The tokens to predict, which are shifted by `next_token_targets`; the logits are not, which would copy them.
    targets : array of integers, (..., n), or None
        What each position predicts, as it is.
    documents : array, (..., n), or None
        As `documents_of` numbers them.

    Raises
    ------
    ValueError
        If both are given, their shape is not that of `input_ids`, or labels have fewer than two positions.
    """
    if labels is not None and targets is not None:
        raise InputError("labels and targets are both given: give labels, which are shifted here, or shifted targets")
    name, given = ("targets", targets) if labels is None else ("labels", labels)
    if given is None:
        return None
    if tuple(given.shape) != tuple(input_ids.shape) or (labels is not None and given.shape[-1] < 2):
        more = ", with two positions or more" if labels is not None else ""
        raise InputError(
            f"{name} must have the shape of input_ids{more}: got {tuple(given.shape)} and {tuple(input_ids.shape)}"
        )
    return given if labels is None else next_token_targets(labels, documents)


def _wrong_mask(xp: ModuleType, mask: Array, token: Array, integer: object, wait: bool) -> Array:
    """Return, of shape (...,), which rows have a mask that means nothing; where values are known, say what is wrong."""
    first = token[..., :1]
    starts = xp.concat([first, token[..., 1:] & ~token[..., :-1]], axis=-1)
    runs = xp.sum(xp.astype(starts, integer), axis=-1)
    other = xp.any(mask != xp.astype(token, mask.dtype), axis=-1)
    empty = runs == 0
    wrong = other | empty | (runs > 1)
    if surely_any(wrong, wait=wait):
        if bool(xp.any(other)):
            raise InputError("attention_mask must hold 1 for tokens and 0 for padding, and has other values")
        if bool(xp.any(empty)):
            raise InputError("attention_mask has a row of padding only: leave such rows out of the batch")
        raise InputError(
            "attention_mask has a hole, padding between tokens: pad before or after the tokens; documents side "
            "by side are told apart by segment_ids"
        )
    return wrong
