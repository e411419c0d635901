"""What comparison models share in PyTorch: the loss, packed documents kept apart, texts continued token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tmm_adapters.torch.batches import check_tokens
from tmm_adapters.torch.generation import TextGeneration
from tmm_core.errors import InputError, UnsupportedError
from tmm_core.lm import IGNORED

__all__ = ["CausalModel", "Decoder", "by_document"]


class Decoder(ABC):
    """Texts of one length that are read from left to right, and what is kept of them."""

    @abstractmethod
    def extend(self, input_ids: Tensor) -> Tensor:
        """Take the next tokens (b, t) of each text, and return the logits (b, V) of the token after the last."""


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

    def losses(self, input_ids: Tensor, *, targets: Tensor | None, segment_ids: Tensor | None) -> dict[str, Tensor]:
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
            return {"logits": logits}
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        return {"loss": loss, "logits": logits}

    # One token at a time, as `tmm_adapters.torch.generation` asks for it

    def checked_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return tokens and mask as they are taken, refused where they are none."""
        return check_tokens("input_ids", input_ids, self.vocab_size), attention_mask

    def stream_plan(self, capacity: int) -> int:
        """Return the tokens that texts can have."""
        return capacity

    def stream_init(self, plan: int, batch_size: int) -> _Texts:
        """Begin texts."""
        return _Texts(batch_size)

    @torch.no_grad()
    def stream_prefill(
        self, plan: int, state: _Texts, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, _Texts]:
        """Take prompts (b, n), padded on the left; return the logits (b, V) of the tokens after them."""
        b, n = input_ids.shape
        lengths = torch.full((b,), n) if attention_mask is None else attention_mask.sum(dim=1).cpu()
        if not state.groups:
            equal = [torch.nonzero(lengths == length)[:, 0] for length in torch.unique(lengths)]
            state.groups = [(rows, self.decoder(len(rows), plan)) for rows in equal]
        return state.extend(input_ids, lengths), state

    @torch.no_grad()
    def stream_step(self, plan: int, state: _Texts, tokens: Tensor) -> tuple[Tensor, _Texts]:
        """Take a token (b,) of each text; return the logits (b, V) of the next ones."""
        return state.extend(tokens[:, None], torch.ones(len(tokens))), state

    def stream_reorder(self, state: _Texts, indices: Tensor) -> _Texts:
        """Return some of the texts, each at most once."""
        return state.chosen(indices.cpu())


class _Texts:
    """A batch of texts that are read, those of one length by one decoder."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._going = torch.arange(size)  # the texts of the batch that go on; others ended
        self.groups: list[tuple[Tensor, Decoder]] = []

    def extend(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """Take the last `lengths` (b,) of tokens (b, n), of those that go on; return the logits (b, V) after them."""
        device = input_ids.device
        every = input_ids.new_zeros(self._size, input_ids.shape[1])  # texts that ended take any tokens
        every[self._going.to(device)] = input_ids
        lengths = torch.ones(self._size).index_copy(0, self._going, lengths.float())
        found: Tensor | None = None
        for rows, decoder in self.groups:
            logits = decoder.extend(every[rows.to(device)][:, -int(lengths[rows].max()) :])
            found = logits.new_zeros(self._size, logits.shape[1]) if found is None else found
            found[rows.to(device)] = logits
        assert found is not None
        return found[self._going.to(device)]

    def chosen(self, indices: Tensor) -> _Texts:
        """Return the texts of these indices; decoders of which none goes on are dropped."""
        if len(torch.unique(indices)) < len(indices):
            raise UnsupportedError("rows of comparison models cannot be copied: give each index once")
        texts = _Texts(self._size)
        texts._going = self._going[indices]
        texts.groups = [group for group in self.groups if bool(torch.isin(group[0], texts._going).any())]
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
