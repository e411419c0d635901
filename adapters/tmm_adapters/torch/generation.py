"""How the PyTorch language model continues texts: its logits streamed, tokens drawn, each text until it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .sampling import Chance, check_sampling, draw
from .streaming import Decoder, aligned, evaluating, stream_reorder

__all__ = ["ContextFullError", "Generation"]


class ContextFullError(ValueError):
    """Raised in generation when the position bias has no place for another token; `tokens` holds those so far."""

    def __init__(self, message: str, tokens: Tensor) -> None:
        """Keep the tokens beside the message."""
        super().__init__(message)
        self.tokens = tokens


class Generation(Decoder):
    """A decoder that writes."""

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
        """Yield the tokens, (b,) int64, by which `generate` continues (b, n) `input_ids`, each step as it is drawn.

        With `end_where_full` the end of the position bias ends a row, as `stop_token` does, and is no error. The model
        is in eval mode until the last token has come, or the iterator is closed.
        """
        options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        check_sampling(input_ids, max_new_tokens, stop_token, self.tmm_config.vocab_size, **options)
        input_ids = self.checked_ids(input_ids)
        prompt, padding = (input_ids, None) if attention_mask is None else aligned(input_ids, attention_mask)
        (batch, longest), device = prompt.shape, prompt.device
        lengths = torch.full((batch,), longest, device="cpu") if padding is None else longest - padding.cpu()
        limit = self.tmm_config.max_len if self.tmm_config.position_bias and len(self.blocks) else math.inf
        taken = [input_ids]
        if max_new_tokens > 0 and longest > limit:
            raise _full(limit, taken)
        with evaluating(self):
            chance = None if temperature == 0 else Chance(generator, batch, device)
            rows = torch.arange(batch, device="cpu")  # those that are streamed
            going = torch.ones(batch, dtype=torch.bool, device="cpu")  # those that have not ended
            for count in range(max_new_tokens):
                if count == 0:
                    # The last token needs no place of its own, and the shortest text has as many as the bias.
                    most = min(longest + max_new_tokens - 1, longest - int(lengths.min()) + limit)
                    plan = self.stream_plan(int(most))
                    times = torch.arange(longest, device="cpu")
                    mask = None if padding is None else times >= longest - lengths[:, None]
                    logits, state = self.stream_prefill(plan, self.stream_init(plan, batch), prompt, mask)
                else:
                    if int(lengths[rows].max()) + count > limit:
                        full = lengths + count > limit
                        if bool((going & full).any()) and not end_where_full:
                            raise _full(limit, taken)
                        going &= ~full
                        if not bool(going.any()):
                            return
                        places = torch.nonzero(going[rows])[:, 0]  # rows that have ended stand in the way of others
                        state, rows = stream_reorder(state, places.to(device)), rows[places]
                    logits, state = self.stream_step(plan, state, taken[-1][rows.to(device), 0])
                uniform = None if chance is None else chance.uniform(count)[rows.to(device)]
                tokens = torch.full((batch,), stop_token or 0, device=device)
                tokens[rows.to(device)] = draw(logits, uniform, counts=going[rows], **options)
                tokens = torch.where(going.to(device), tokens, stop_token or 0)
                if stop_token is not None:
                    going &= (tokens != stop_token).cpu()
                taken.append(tokens[:, None])
                yield tokens.clone()  # which who takes it may change
                if not bool(going.any()):
                    return

    def generate(
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
        temperature : float
            Divides the logits; 0 takes the likeliest token each time.
        top_k : int, optional
            Draw from as many tokens, the likeliest.
        top_p : float
            Draw from the fewest tokens that together have this probability.
        generator : torch.Generator, optional
            The source of chance; torch's own by default. Each row draws from a generator of its own, seeded from this
            one in the order of the rows, so what a row draws does not depend on the others.
        stop_token : int, optional
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
                attention_mask=mask,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                generator=generator,
                stop_token=stop_token,
            ):
                taken.append(tokens[:, None].clone())
                if on_token is not None:
                    on_token(tokens[0] if single else tokens)
        except ContextFullError as error:
            error.tokens = error.tokens[0] if single else error.tokens
            raise
        whole = torch.cat([prompt.long(), *taken], dim=1)  # (b, n + new)
        return whole[0] if single else whole


def _full(limit: float, taken: list[Tensor]) -> ContextFullError:
    return ContextFullError(
        f"the model's position bias ends at max_len={limit} tokens: ask for fewer tokens, shorten the prompt, or train "
        "with position_bias=False, which runs on",
        torch.cat(taken, dim=1),
    )
