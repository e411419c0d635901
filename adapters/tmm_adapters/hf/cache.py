"""What a Toeplitz MLP Mixer keeps of texts that it has read: its streams, as transformers holds caches."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from tmm_core import lm
from tmm_core.errors import InputError, UnsupportedError

from ..torch.model import Network
from ..torch.streaming import DecodingPlan, eval_mode

__all__ = ["CACHE", "TMMCache"]

CACHE = "cache" if "cache" in {f.name for f in dataclasses.fields(CausalLMOutputWithPast)} else "past_key_values"
"""What transformers calls a cache: newer versions, and older ones."""

_CAPACITY = 1 << 40  # tokens; what a stream takes depends on the reach of its filters, not on this


class TMMCache(Cache):
    """The streams of a batch of texts: what `model(..., use_cache=True)` returns and takes.

    Every call of the model with a cache changes it. `copy.deepcopy` and the choice of rows cost nothing until the next
    call. It cannot go back: `crop` refuses.

    Parameters
    ----------
    model : Network
        The model, in whose parameters nothing may change while the cache is used.
    """

    def __init__(self, model: Network) -> None:
        """Begin without texts."""
        super().__init__(layers=[])
        self._streamed = _Streamed(model)
        self._longest = model.longest_text
        self.reset()

    def reset(self) -> None:
        """Forget the texts."""
        self._plan: DecodingPlan | None = None
        self._state: lm.DecodingState | None = None
        self._rows: Tensor | None = None  # of the state, which are those of the cache
        self._shared = False  # whether another cache has the same state
        self._seen = 0

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def extend(self, input_ids: Tensor, attention_mask: Tensor | None = None, embeds: Tensor | None = None) -> Tensor:
        """Read what follows, and return what comes out of the last block.

        Parameters
        ----------
        input_ids : tensor of integers, (b, n)
            The next tokens of each text.
        attention_mask : tensor, (b, seen + n), optional
            1 for a token and 0 for padding, which is only before a text.
        embeds : tensor, (b, n, d), optional
            What to read in place of the embedded tokens.

        Returns
        -------
        tensor, (b, n, d)
            Zeros for padding that all texts have.
        """
        batch, n = input_ids.shape
        mask = self._mask_of_new(attention_mask, n)
        model = self._streamed.model
        if self._plan is None or self._state is None:
            self._plan = DecodingPlan(self._streamed, _CAPACITY)
            self._state = lm.stream_init(self._plan, batch)
        if batch != self.batch_size:
            raise InputError(
                f"the cache is of {self.batch_size} texts, and {batch} are continued: give as many, after "
                "cache.batch_repeat_interleave(number) where each is continued several times"
            )
        self._plan.check(self._streamed)
        self._settle()
        self._streamed.embeds = embeds
        with eval_mode(model):
            if n == 1 and mask is None and embeds is None:
                _, self._state = lm.stream_step(self._plan, self._state, input_ids[:, 0])
            else:
                _, self._state = lm.stream_prefill(self._plan, self._state, input_ids, mask)
        self._seen += n
        return with_columns(self._streamed.stream, n)

    def _mask_of_new(self, attention_mask: Tensor | None, n: int) -> Tensor | None:
        """Return the mask of the new tokens, None where it says nothing."""
        if attention_mask is None:
            return None
        if attention_mask.ndim != 2 or attention_mask.shape[1] != self._seen + n:
            raise InputError(
                f"attention_mask must be (b, {self._seen + n}), for the {self._seen} tokens in the cache and {n} more, "
                f"and has the shape {tuple(attention_mask.shape)}"
            )
        new = attention_mask[:, self._seen :]
        if bool((new == 1).all()):
            return None
        if self._seen == 0 and bool((new == 0).all(dim=1).any()):
            raise InputError(
                f"the first {n} columns of attention_mask are padding only for some text, which cannot begin so: leave "
                "it out, or take a prefill_chunk_size that is larger than the padding"
            )
        if self._seen or bool((new[:, -1] == 0).any()):
            raise InputError(
                "attention_mask has padding after tokens, where texts are to go on: pad before the first tokens, as "
                "tokenizers with padding_side='left' do"
            )
        return new

    def _settle(self) -> None:
        """Copy what is shared with other caches, or has other rows."""
        assert self._state is not None
        if self._rows is not None:
            self._state = lm.stream_reorder(self._state, self._rows)
        elif self._shared:
            self._state = lm.stream_copy(self._state)
        self._rows, self._shared = None, False

    # What transformers asks of caches

    @property
    def batch_size(self) -> int:
        """Texts, -1 before the first."""
        if self._state is None:
            return -1
        return self._state.batch_size if self._rows is None else len(self._rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens each text has, padding included."""
        return self._seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return how many tokens a text can have, -1 without a limit."""
        return -1 if self._longest == float("inf") else int(self._longest)

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return how many tokens are seen with the next ones, and where they begin."""
        return self._seen + query_length, 0

    def batch_select_indices(self, indices: Tensor) -> None:
        """Go on with these rows, in any order and number."""
        if self._state is None:
            return
        if self._rows is not None:
            indices = self._rows[indices]
        elif indices.dtype != torch.bool and torch.equal(indices.cpu(), torch.arange(self.batch_size, device="cpu")):
            return
        if indices.dtype == torch.bool:
            indices = torch.nonzero(indices)[:, 0]
        self._rows = indices

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these rows: what beam search calls."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Go on with each text several times."""
        self.batch_select_indices(torch.arange(max(self.batch_size, 0), device="cpu").repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to go back."""
        raise UnsupportedError(
            "the cache of a TMM cannot go back, so no decoding that tries tokens and takes them back, such as assisted "
            "decoding, can use it: keep a copy.deepcopy of the cache to go back to"
        )

    @property
    def is_compileable(self) -> bool:
        """Whether a compiled program can use it: the places of a stream change at each token."""
        return False

    @property
    def is_initialized(self) -> bool:
        """Whether there are texts."""
        return self._state is not None

    @property
    def is_croppable(self) -> bool:
        """Whether it can go back."""
        return False

    @property
    def is_linear(self) -> list[bool]:
        """Whether tokens that were read are to be given once more, a layer each."""
        return [False]

    @property
    def is_sliding(self) -> list[bool]:
        """Whether it forgets tokens, a layer each."""
        return [False]

    def __len__(self) -> int:
        """Return how many filters there are."""
        return len(self._streamed.filters())

    def __repr__(self) -> str:
        """Return what it holds in words."""
        return f"{type(self).__name__}(texts={max(self.batch_size, 0)}, tokens={self._seen})"

    def __copy__(self) -> TMMCache:
        """Return a cache that goes on by itself from where this one is; the model is shared."""
        other = TMMCache(self._streamed.model)
        if self._plan is not None:
            other._streamed, other._plan = self._streamed, self._plan
        other._state, other._rows, other._seen = self._state, self._rows, self._seen
        self._shared = other._shared = True
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> TMMCache:
        """Return the same."""
        return copy.copy(self)


class _Streamed:
    """A network as `DecodingPlan` takes it, whose last stream is kept whole: logits are of any of its positions."""

    embeds: Tensor | None = None
    stream: Tensor

    def __init__(self, model: Network) -> None:
        self.model = model

    @property
    def training(self) -> bool:
        return self.model.training

    @training.setter
    def training(self, value: bool) -> None:
        self.model.training = value

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()

    def filters(self) -> Mapping[str, lm.Filter]:
        return self.model.filters()

    def checked_tokens(self, input_ids: Tensor, attention_mask: Tensor | None, /) -> tuple[Tensor, Tensor | None]:
        return self.model.checked_tokens(input_ids, attention_mask)

    def residual_stream(self, input_ids: Tensor, *, mix: lm.Mix) -> Tensor:
        x = cast(Tensor, self.model.embed(input_ids)) if self.embeds is None else self.embeds[:, -input_ids.shape[1] :]
        self.stream = self.model.through_blocks(x, mix=mix)
        return self.stream

    def logits_of(self, x: Tensor) -> Tensor:
        return x


def with_columns(x: Tensor, n: int) -> Tensor:
    """Return what streams made of tokens, (b, d) or (b, m, d), as (b, n, d), with zeros for padding before them."""
    x = x[:, None] if x.ndim == 2 else x
    return F.pad(x, (0, 0, n - x.shape[1], 0))
