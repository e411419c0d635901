"""What comparison models share in PyTorch: the loss, packed documents kept apart, texts continued token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tmm_adapters.torch.batches import check_tokens
from tmm_adapters.torch.generation import TextGeneration
from tmm_adapters.torch.outputs import Output
from tmm_core import lm
from tmm_core.errors import InputError, InputTypeError
from tmm_core.lm import IGNORED

__all__ = ["CausalModel", "Decoder", "by_document"]


class Decoder(ABC):
    """Texts of one length that are read from left to right, and what is kept of them."""

    @abstractmethod
    def extend(self, input_ids: Tensor) -> Tensor:
        """Take the next tokens (b, t) of each text, and return the logits (b, V) of the token after the last."""

    @abstractmethod
    def select(self, rows: Tensor) -> Decoder:
        """Return a decoder that goes on with `rows` (c,) of the texts; this one stays as it is."""


class CausalModel(TextGeneration, ABC):
    """A language model whose logits see no later token; the other base of a subclass is a module of PyTorch."""

    vocab_size: int
    """Number of token ids."""
    longest_text: float
    """Tokens that a text can have, or infinity."""

    @abstractmethod
    def logits(self, input_ids: Tensor) -> Tensor:
        """Return the logits (b, n, V) of tokens (b, n)."""

    @abstractmethod
    def decoder(self, batch_size: int, capacity: int) -> Decoder:
        """Begin to read `batch_size` texts of up to `capacity` tokens each."""

    def losses(self, input_ids: Tensor, *, targets: Tensor | None, segment_ids: Tensor | None) -> Output:
        """Return what `forward` returns: see `tmm_adapters.architecture.Architecture.torch_model`.

        Raises
        ------
        TypeError, ValueError
            If tokens are no integers of the vocabulary, or rows are longer than the model's longest text.
        """
        input_ids = check_tokens("input_ids", input_ids, self.vocab_size)
        if input_ids.shape[-1] > self.longest_text:
            raise InputError(
                f"input_ids have {input_ids.shape[-1]} positions, and the model ends at max_len={self.longest_text}: "
                "give shorter rows"
            )
        logits = self.logits(input_ids) if segment_ids is None else by_document(self.logits, input_ids, segment_ids)
        if targets is None:
            return Output(logits=logits)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        return Output(loss=loss, logits=logits)

    # One token at a time, as `tmm_adapters.torch.generation` asks for it

    def checked_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return tokens and mask as they are taken, refused where they are none."""
        return check_tokens("input_ids", input_ids, self.vocab_size), attention_mask

    def stream_plan(self, capacity: int) -> int:
        """Return the tokens that texts can have."""
        return capacity

    def stream_init(self, plan: int, batch_size: int) -> _Texts:
        """Begin texts."""
        return _Texts(torch.zeros(batch_size, dtype=torch.long, device="cpu"))

    @torch.no_grad()
    def stream_prefill(
        self, plan: int, state: _Texts, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, _Texts]:
        """Take tokens (b, n) of each text, padded only where texts begin; return the logits (b, V) after them."""
        input_ids, attention_mask = self.checked_tokens(input_ids, attention_mask)
        size, limit, begun = len(state.lengths), min(plan, self.longest_text), bool(state.groups)
        if input_ids.ndim != 2 or len(input_ids) != size or input_ids.numel() == 0:
            raise InputError(
                f"input_ids must be ({size}, n), a token or more of each text, and have the shape "
                f"{tuple(input_ids.shape)}: begin with the end-of-text token where there is no prompt"
            )
        padding = None
        if attention_mask is not None:
            lm.documents_of(input_ids, attention_mask, None, wait=True)  # refuses a mask that means nothing
            input_ids, padding = lm.left_padded(input_ids, attention_mask)
        if padding is not None and begun:
            raise InputError("padding comes before a text's first token, and all have begun: pass no attention_mask")
        n = input_ids.shape[1]
        taken = torch.full_like(state.lengths, n) if padding is None else n - padding.cpu()
        if int((state.lengths + taken).max()) > limit:
            raise InputError(
                f"texts end at {limit} tokens, {int(state.lengths.max())} have come and {n} would follow: plan for "
                "more, or take a model whose texts are longer"
            )
        if not begun:
            each = [torch.nonzero(taken == length)[:, 0] for length in taken.unique()]
            state.groups = [(rows, self.decoder(len(rows), plan)) for rows in each]
        state.lengths = state.lengths + taken
        rows = torch.cat([rows for rows, _ in state.groups])
        parts = [
            decoder.extend(input_ids[rows.to(input_ids.device), n - int(taken[rows[0]]) :])
            for rows, decoder in state.groups
        ]
        return torch.cat(parts)[rows.argsort().to(input_ids.device)], state

    @torch.no_grad()
    def stream_step(self, plan: int, state: _Texts, tokens: Tensor) -> tuple[Tensor, _Texts]:
        """Take a token (b,) of each text; return the logits (b, V) of the next ones."""
        return self.stream_prefill(plan, state, tokens[..., None])

    @torch.no_grad()
    def stream_reorder(self, state: _Texts, indices: Tensor) -> _Texts:
        """Return texts of the rows `indices` (c,), in any order and number; `state` stays as it is."""
        return state.select(indices.cpu())


@dataclass
class _Texts:
    """A batch of texts that are read, those that began with as many tokens by one decoder."""

    lengths: Tensor
    """Tokens of each, (b,), on the CPU."""
    groups: list[tuple[Tensor, Decoder]] = field(default_factory=list)
    """Rows of the batch, on the CPU, and the decoder that reads them."""

    def select(self, indices: Tensor) -> _Texts:
        """Return the texts of these indices."""
        size = len(self.lengths)
        if indices.is_floating_point() or indices.dtype == torch.bool:
            raise InputTypeError(f"indices must be integers, rows of the batch, not {indices.dtype}")
        if indices.ndim != 1 or not len(indices) or bool(((indices < 0) | (indices >= size)).any()):
            raise InputError(f"indices must be (c,), one or more rows of the batch, 0 to {size - 1}")
        texts = _Texts(self.lengths[indices])
        for rows, decoder in self.groups:
            places = torch.full_like(self.lengths, -1)
            places[rows] = torch.arange(len(rows), device="cpu")
            chosen = places[indices]  # (c,), -1 for rows of other decoders
            if bool((chosen >= 0).any()):
                texts.groups.append((torch.nonzero(chosen >= 0)[:, 0], decoder.select(chosen[chosen >= 0])))
        return texts


def by_document(logits: Callable[[Tensor], Tensor], input_ids: Tensor, segment_ids: Tensor) -> Tensor:
    """Return the logits (b, n, V) of packed documents, each computed as a row of its own.

    Documents are padded at their ends to powers of two and computed with those of the same: at most twice the tokens.

    Parameters
    ----------
    logits : callable
        Of tokens (b, n), such that no position sees a later one.
    input_ids, segment_ids : tensors of integers, (b, n)
        Tokens, and non-decreasing numbers of the documents in each row.
    """
    b, n = input_ids.shape
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    starts = torch.nonzero(begins.flatten())[:, 0]  # (documents,), as indices of all b n tokens
    lengths = torch.diff(starts, append=starts.new_tensor([b * n]))
    if len(starts) == b:
        return logits(input_ids)
    sizes = torch.exp2(torch.ceil(torch.log2(lengths.double()))).long().clamp(max=n)
    tokens, parts, places = input_ids.flatten(), [], []
    for size in torch.unique(sizes).tolist():
        chosen = sizes == size
        offsets = torch.arange(size, device=tokens.device)
        inside = offsets < lengths[chosen, None]  # (documents, size)
        at = torch.where(inside, starts[chosen, None] + offsets, 0)
        parts.append(logits(tokens[at])[inside])  # (tokens, V)
        places.append(at[inside])
    order = torch.cat(places).argsort()
    return torch.cat(parts)[order].view(b, n, -1)
