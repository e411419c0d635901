"""What comparison models share in PyTorch: the loss, packed documents kept apart, texts continued token by token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tmm_adapters.generation import ContextFullError
from tmm_adapters.torch.sampling import Chance, draw
from tmm_core.errors import InputError
from tmm_core.lm import IGNORED

__all__ = ["CausalModel", "Decoder", "by_document"]


class Decoder(ABC):
    """Texts of one length that are read from left to right, and what is kept of them."""

    @abstractmethod
    def extend(self, input_ids: Tensor) -> Tensor:
        """Take the next tokens (b, t) of each text, and return the logits (b, V) of the token after the last."""


class CausalModel(ABC):
    """A language model whose logits see no later token; the other base of a subclass is a module of PyTorch."""

    longest_text: float
    """Tokens that a text can have."""

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
        ValueError
            If the rows are longer than the model's longest text.
        """
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

    @torch.no_grad()
    def new_tokens(
        self,
        input_ids: Tensor,
        max_new_tokens: int,
        *,
        attention_mask: Tensor | None = None,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 0.95,
        generator: torch.Generator | None = None,
        stop_token: int | None = None,
        end_where_full: bool = False,
    ) -> Iterator[Tensor]:
        """Yield the tokens (b,) that continue prompts (b, n); see `tmm_adapters.torch.LanguageModel.new_tokens`.

        Prompts of one length are read together, those of different lengths apart.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.to(input_ids.device)
        lengths = mask.sum(dim=1)
        batches = [torch.nonzero(lengths == n)[:, 0] for n in torch.unique(lengths)]
        chance = None if temperature == 0 else Chance(generator, len(input_ids), input_ids.device)
        going = torch.ones(len(input_ids), dtype=torch.bool)
        decoders: list[Decoder] = []
        written = [input_ids]
        tokens = torch.full((len(input_ids),), stop_token or 0, device=input_ids.device)
        for count in range(max_new_tokens):
            full = (lengths + count > self.longest_text).cpu()
            if bool((going & full).any()) and not (end_where_full and count):
                raise ContextFullError(self.longest_text, torch.cat(written, dim=1))
            going &= ~full
            if not bool(going.any()):
                return
            uniform = None if chance is None else chance.uniform(count)
            following = torch.full_like(tokens, stop_token or 0)
            for i, rows in enumerate(batches):
                if not bool(going[rows.cpu()].any()):
                    continue
                n = int(lengths[rows[0]])
                if count == 0:
                    capacity = int(min(n + max_new_tokens - 1, self.longest_text))
                    decoders.append(self.decoder(len(rows), max(n, capacity)))
                    logits = decoders[i].extend(input_ids[rows][mask[rows].bool()].view(len(rows), n))
                else:
                    logits = decoders[i].extend(tokens[rows, None])
                chosen = None if uniform is None else uniform[rows]
                following[rows] = draw(
                    logits, chosen, counts=going[rows.cpu()], temperature=temperature, top_k=top_k, top_p=top_p
                )
            tokens = torch.where(going.to(tokens.device), following, stop_token or 0)
            if stop_token is not None:
                going &= (tokens != stop_token).cpu()
            written.append(tokens[:, None])
            yield tokens.clone()


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
