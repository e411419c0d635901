"""How PyTorch models continue texts: their logits streamed, tokens sampled, each text until it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from tmm_core import lm

from ..generation import DEFAULT_SAMPLING, ContextFullError, Sampling, check_prompts
from .sampling import RowGenerators, sample

__all__ = ["TextGeneration"]


class ContinuedModel(Protocol):
    """What generation asks of a model: its tokens, how long a text can be, and streams of texts.

    Plans and states may be anything; `FilterStreaming` makes those of models whose tokens are mixed by filters.
    """

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""

    @property
    def longest_text(self) -> float:
        """How many tokens a text can have, or infinity."""

    def checked_tokens(self, input_ids: Tensor, attention_mask: Tensor | None, /) -> tuple[Tensor, Tensor | None]:
        """Return tokens and a mask as the model takes them, refused where they are none."""

    def stream_plan(self, capacity: int, /) -> Any:
        """Prepare for texts of up to `capacity` tokens."""

    def stream_init(self, plan: Any, batch_size: int, /) -> Any:
        """Begin texts."""

    def stream_prefill(
        self, plan: Any, state: Any, input_ids: Tensor, attention_mask: Tensor | None, /
    ) -> tuple[Tensor, Any]:
        """Take prompts (b, n), padded on the left; return the logits (b, V) of the next tokens."""

    def stream_step(self, plan: Any, state: Any, tokens: Tensor, /) -> tuple[Tensor, Any]:
        """Take a token (b,) of each text; return the logits (b, V) of the next ones."""

    def stream_reorder(self, state: Any, indices: Tensor, /) -> Any:
        """Return texts of the rows `indices`, in any order and number; `state` stays as it is."""

    @property
    def new_tokens(self) -> Callable[..., Iterator[Tensor]]:
        """What `generate` takes tokens from: `TextGeneration.new_tokens`."""


class TextGeneration:
    """Gives a `ContinuedModel` the methods by which it continues texts."""

    def generate(
        self: ContinuedModel,
        input_ids: Tensor,
        max_new_tokens: int,
        *,
        attention_mask: Tensor | None = None,
        do_sample: bool = True,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 0.95,
        generator: torch.Generator | None = None,
        eos_token_id: int | None = None,
        on_token: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Continue sequences, token by token.

        Parameters
        ----------
        input_ids : tensor of integers, (b, n) or (n,)
            Prompts, each of one token or more.
        max_new_tokens : int
            At most as many tokens are added.
        attention_mask : tensor, of the shape of `input_ids`, optional
            1 for a token and 0 for padding, before the tokens or after them.
        do_sample : bool
            Whether tokens are sampled; the likeliest is taken each time otherwise, as with `temperature=0`.
        temperature, top_k, top_p
            As in `tmm_adapters.generation.Sampling`.
        generator : torch.Generator, optional
            The source of random numbers; torch's own by default. Each row has a generator of its own, seeded from this
            one in the order of the rows, so what is sampled for a row does not depend on the others.
        eos_token_id : int, optional
            Ends a row, and fills it from there on; when all rows have ended, generation does.
        on_token : callable, optional
            Called at each step with the new token of each row, a tensor (b,), or () for `input_ids` of shape (n,).

        Returns
        -------
        tensor of int64, of the shape of `input_ids` with up to `max_new_tokens` more
            Padding stays where it was; new tokens follow the last column.

        Raises
        ------
        ContextFullError
            If the position bias ends before `max_new_tokens` for a row that has not; it carries all rows' tokens so
            far.
        TypeError, ValueError
            If an option is out of its range, `forward` refuses the prompt, or the model's logits are not finite.

        Notes
        -----
        Computes as `stream_prefill` and `stream_step` do, in eval mode and without gradients: O(g log^2 g) mixing for g
        tokens after one product for the prompt. Logits are those of `forward`, and do not depend on the batch, within
        the error of the products.
        """
        single = isinstance(input_ids, Tensor) and input_ids.ndim == 1
        prompt = input_ids[None] if single else input_ids
        mask = attention_mask[None] if single and attention_mask is not None else attention_mask
        taken: list[Tensor] = []
        try:
            for tokens in self.new_tokens(
                prompt,
                max_new_tokens,
                Sampling(temperature if do_sample else 0.0, top_k, top_p),
                attention_mask=mask,
                generator=generator,
                eos_token_id=eos_token_id,
            ):
                taken.append(tokens[:, None].clone())
                if on_token is not None:
                    on_token(tokens[0] if single else tokens)
        except ContextFullError as error:
            error.tokens = error.tokens[0] if single else error.tokens
            raise
        whole = torch.cat([prompt.long(), *taken], dim=1)  # (b, n + new)
        return whole[0] if single else whole

    def new_tokens(
        self: ContinuedModel,
        input_ids: Tensor,
        max_new_tokens: int,
        sampling: Sampling = DEFAULT_SAMPLING,
        *,
        attention_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        eos_token_id: int | None = None,
        end_where_full: bool = False,
    ) -> Iterator[Tensor]:
        """Yield the tokens, (b,) int64, by which `generate` continues (b, n) `input_ids`, each step as it is sampled.

        With `end_where_full` the end of the position bias ends a row, as `eos_token_id` does, and is no error.
        """
        input_ids, attention_mask = self.checked_tokens(input_ids, attention_mask)
        check_prompts(tuple(input_ids.shape), max_new_tokens, self.vocab_size, eos_token_id)
        limit, taken = self.longest_text, [input_ids]
        rows = _Rows(self, input_ids, attention_mask)
        generators = None if sampling.temperature == 0 else RowGenerators(generator, len(input_ids), input_ids.device)
        for count in range(max_new_tokens):
            full = rows.lengths + count > limit
            if bool((rows.active & full).any()) and not (end_where_full and count):
                raise ContextFullError(limit, torch.cat(taken, dim=1))
            rows.end(full)
            if not bool(rows.active.any()):
                return
            if count == 0:
                # The last token needs no place of its own, and the shortest text has as many as the bias.
                logits = rows.begin(int(min(max_new_tokens - 1, limit - int(rows.lengths.min()))))
            else:
                logits = rows.step(taken[-1][:, 0], full)
            uniform = None if generators is None else generators.uniform(count)
            tokens = rows.sample(logits, uniform, eos_token_id or 0, sampling)
            if eos_token_id is not None:
                rows.end((tokens == eos_token_id).cpu())
            taken.append(tokens[:, None])
            yield tokens.clone()  # the caller may change it


class _Rows:
    """Prompts and what follows them: the rows of a batch that are streamed, and those that go on.

    What tells rows apart is on the CPU, and so needs no waiting.
    """

    def __init__(self, model: ContinuedModel, input_ids: Tensor, attention_mask: Tensor | None) -> None:
        """Let the prompts end together; nothing is computed yet."""
        padding = None
        if attention_mask is not None:
            lm.documents_of(input_ids, attention_mask, None, wait=True)  # refuses a mask that means nothing
            input_ids, padding = lm.left_padded(input_ids, attention_mask)
        batch, longest = input_ids.shape
        self._model, self._prompt, self._padding = model, input_ids, padding
        self.lengths = torch.full((batch,), longest, device="cpu") if padding is None else longest - padding.cpu()
        self.active = torch.ones(batch, dtype=torch.bool, device="cpu")
        self._streamed = torch.arange(batch, device="cpu")

    def end(self, rows: Tensor) -> None:
        """End rows, (b,) booleans."""
        self.active = self.active & ~rows

    def begin(self, room: int) -> Tensor:
        """Return the logits after the prompts, of streams that have `room` for more tokens."""
        batch, longest = self._prompt.shape
        times = torch.arange(longest, device="cpu")
        mask = None if self._padding is None else (times >= longest - self.lengths[:, None]).to(self._prompt.device)
        self._plan = self._model.stream_plan(longest + room)
        state = self._model.stream_init(self._plan, batch)
        logits, self._state = self._model.stream_prefill(self._plan, state, self._prompt, mask)
        return logits

    def step(self, tokens: Tensor, full: Tensor) -> Tensor:
        """Return the logits after tokens (b,), of the rows that are streamed; those that are `full` have ended."""
        if bool(full[self._streamed].any()):
            places = torch.nonzero(self.active[self._streamed])[:, 0]  # rows that have ended stand in the way of others
            self._state = self._model.stream_reorder(self._state, places.to(tokens.device))
            self._streamed = self._streamed[places]
        tokens = tokens[self._streamed.to(tokens.device)]
        logits, self._state = self._model.stream_step(self._plan, self._state, tokens)
        return logits

    def sample(self, logits: Tensor, uniform: Tensor | None, fill: int, sampling: Sampling) -> Tensor:
        """Return a token (b,) for each row, `fill` for those that have ended."""
        streamed = self._streamed.to(logits.device)
        chosen = None if uniform is None else uniform[streamed]
        tokens = torch.full(self.active.shape, fill, device=logits.device)
        tokens[streamed] = sample(logits, chosen, sampling, counts=self.active[self._streamed])
        return torch.where(self.active.to(logits.device), tokens, fill)
