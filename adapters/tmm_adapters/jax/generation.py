"""How the JAX language model continues texts: tokens sampled in a compiled loop over a leaf of times, tiles between.

Lengths are rounded up to powers of two, prompts by padding before them, so that a program serves many lengths.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from tmm_core import TMMConfig, lm
from tmm_core.backend import with_jax_defaults
from tmm_core.errors import InputError

from ..generation import DEFAULT_SAMPLING, ContextFullError, Sampling, check_prompts
from .batches import check_batch, check_params
from .model import Precision
from .sampling import StaticSampling, key_of, parameters_of, sample, uniform
from .streaming import DecodingPlan, stream_plan

__all__ = ["ContextFullError", "generate", "new_tokens"]

LEAST_PROMPT = 16
"""Shorter prompts are padded to as many tokens."""

Ints = NDArray[Any]

LEAST_ROOM = 64
"""There is room for as many new tokens at least."""


class LoopState(NamedTuple):
    """What a loop over tokens hands on."""

    windows: Mapping[str, Array]
    """By the names of the lags, the current leaf of each cache."""
    logits: Array
    """(b, V): of the next token."""
    ended: Array
    """(b,): rows that have ended."""
    finite: Array
    """(): whether all logits that counted were."""
    written: Array
    """(b, leaf): the tokens of this leaf."""


def generate(
    params: Mapping[str, Array],
    input_ids: Any,
    config: TMMConfig,
    max_new_tokens: int,
    *,
    attention_mask: Any = None,
    do_sample: bool = True,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float = 0.95,
    seed: int = 0,
    eos_token_id: int | None = None,
    on_token: Callable[[Any], None] | None = None,
    precision: Precision = "float32",
    backend: str | None = None,
) -> Array:
    """Continue sequences, token by token.

    See `tmm_adapters.torch.LanguageModel.generate` for the parameters that are not described here, what is returned and
    raised, and the cost.

    Parameters
    ----------
    params, config, precision, backend
        As in `apply`, on one device.
    input_ids, attention_mask : arrays, (b, n) or (n,), JAX's or NumPy's
        Prompts and their padding.
    seed : int
        From 0 to 2**64 - 1; what is sampled for a row does not depend on the other rows.
    on_token : callable, optional
        Called at each step with a NumPy array (b,), or () for `input_ids` of shape (n,); tokens then leave the device
        one by one.

    Notes
    -----
    Programs are compiled for prompts and numbers of new tokens rounded up to powers of two.

    Examples
    --------
    >>> from tmm_adapters import jax as model
    >>> config = TMMConfig(vocab_size=5, max_len=8, d_model=4, n_layers=1, n_heads=2)
    >>> generate(model.init(config), jnp.asarray([1, 4]), config, 3, temperature=0).shape
    (5,)
    """
    single = getattr(input_ids, "ndim", 0) == 1
    mask = attention_mask[None] if single and attention_mask is not None else attention_mask
    prompt = input_ids[None] if single else input_ids
    taken: list[Any] = []
    try:
        for new in new_tokens(
            params,
            prompt,
            config,
            max_new_tokens,
            Sampling(temperature if do_sample else 0.0, top_k, top_p),
            attention_mask=mask,
            seed=seed,
            eos_token_id=eos_token_id,
            at_a_time=None if on_token is None else 1,
            precision=precision,
            backend=backend,
        ):
            taken.append(new)
            if on_token is not None:
                on_token(new[0, 0] if single else new[:, 0])
    except ContextFullError as error:
        error.tokens = error.tokens[0] if single else error.tokens
        raise
    whole = np.concatenate([np.asarray(prompt), *taken], axis=1)
    text: Array = jax.device_put(whole[0] if single else whole)
    return text


def new_tokens(
    params: Mapping[str, Array],
    input_ids: Any,
    config: TMMConfig,
    max_new_tokens: int,
    sampling: Sampling = DEFAULT_SAMPLING,
    *,
    attention_mask: Any = None,
    seed: int = 0,
    eos_token_id: int | None = None,
    at_a_time: int | None = None,
    end_where_full: bool = False,
    precision: Precision = "float32",
    backend: str | None = None,
) -> Iterator[Any]:
    """Yield the tokens by which `generate` continues (b, n) `input_ids`, as NumPy arrays (b, m), m of them at a time.

    That many, at most `at_a_time`, are sampled without leaving the device; unless given, as many as are quickest. The
    first comes alone, as soon as it is there. With `end_where_full` the end of the position bias ends a row, as
    `eos_token_id` does, and is no error.
    """
    check_params(params, config)
    given = {"input_ids": input_ids} | ({} if attention_mask is None else {"attention_mask": attention_mask})
    batch = check_batch(given, config)
    check_prompts(batch["input_ids"].shape, max_new_tokens, config.vocab_size, eos_token_id)
    static = StaticSampling(sampling.temperature == 0, sampling.top_k, sampling.top_p < 1, eos_token_id)
    parameters, key = parameters_of(sampling), key_of(seed)
    if max_new_tokens == 0:
        return
    # In NumPy: JAX would compile each of these operations for a prompt's length.
    prompt = np.asarray(batch["input_ids"])
    tokens, padding = _rounded_prompt(prompt, batch.get("attention_mask"))
    lengths = tokens.shape[1] - padding
    limit = config.longest_text
    if lengths.max() > limit:
        raise ContextFullError(limit, batch["input_ids"])
    # The last token needs no place of its own, and the shortest text has as many as the bias.
    room = int(min(max_new_tokens, limit - int(lengths.min()) + 1))
    loop = _Loop(params, config, tokens, padding, room, precision, backend)
    taken, done = [prompt], 0
    while done < max_new_tokens and not loop.ended.all():
        # The token after these is sampled from logits at a position that the bias must still have.
        left = limit - int(lengths[~loop.ended].max()) + 1 - done
        if left > 0:
            count = int(min(at_a_time or loop.leaf, max_new_tokens - done, left)) if done else 1
            new = loop.run(count, static, parameters, key)
            done += new.shape[1]
            taken.append(new)
            yield new
        elif end_where_full:
            loop.end(lengths + done > limit)
        else:
            raise ContextFullError(limit, jax.device_put(np.concatenate(taken, axis=1)))


class _Loop:
    """A prompt that has been read, and the stream that goes on from it."""

    @with_jax_defaults
    def __init__(
        self,
        params: Any,
        config: TMMConfig,
        tokens: Ints,
        padding: Ints,
        count: int,
        precision: Precision,
        backend: str | None,
    ) -> None:
        """Read the prompt; every cache is then of whole leaves, for all tokens or to be renewed."""
        room = max(LEAST_ROOM, 1 << (count - 1).bit_length())
        self.plan = stream_plan(params, config, tokens.shape[1] + room, precision=precision, backend=backend)
        self.leaf = next((layer.leaf for layer in self.plan.layers.values()), LEAST_ROOM)
        self.padding, self.prompt, self.done, self.count = padding, tokens.shape[1], 0, count
        self.ended = np.zeros(len(tokens), bool)
        places = min(room, self.plan.window)
        self.caches, self.state = _read(self.plan, tokens, padding, places=places, leaf=self.leaf)

    @with_jax_defaults
    def run(self, count: int, sampling: StaticSampling, parameters: Array, key: Array) -> Any:
        """Return at most `count` new tokens of each row, fewer where a leaf or all rows end."""
        at = self.done % self.leaf
        count = min(count, self.leaf - at)
        end, self.state = _go_on(
            self.plan, self.state, at, at + count, self.prompt + self.done - at, self.padding, parameters, key,
            sampling=sampling,
        )  # fmt: skip
        new = np.asarray(self.state.written)[:, at : int(end)]
        if not bool(self.state.finite):
            raise InputError("the model's logits are not finite: its weights are damaged, or too large for their dtype")
        self.ended = np.asarray(self.state.ended)
        self.done += new.shape[1]
        if self.done % self.leaf == 0 and new.shape[1] and self.done < self.count:
            self._next_leaf()
        return new

    @with_jax_defaults
    def end(self, rows: Any) -> None:
        """End rows, (b,) booleans."""
        self.ended = self.ended | rows
        self.state = self.state._replace(ended=jax.device_put(self.ended, self.state.ended.sharding))

    def _next_leaf(self) -> None:
        """Bring the inputs of this leaf into the caches, with the tiles that are due."""
        windows = {}
        for name, layer in self.plan.layers.items():
            cache, window = self.caches[name], self.state.windows[name]
            at = (self.done - 1) % cache.shape[1] + 1
            self.caches[name], windows[name] = layer.close_leaf(cache, window, at)
        self.state = self.state._replace(windows=windows)


@functools.partial(jax.jit, static_argnames=("places", "leaf"))
def _read(
    plan: DecodingPlan, tokens: Any, padding: Any, *, places: int, leaf: int
) -> tuple[dict[str, Array], LoopState]:
    """Take a prompt; return the caches after it, and the first state of the loop, on the devices of all later ones."""
    logits, caches = plan.begin(tokens, padding, places)
    windows = {name: cache[:, :leaf] for name, cache in caches.items()}
    ended, written = jnp.zeros(len(tokens), bool), jnp.zeros((len(tokens), leaf), tokens.dtype)
    return caches, LoopState(windows, logits, ended, jnp.asarray(True), written)


@functools.partial(jax.jit, static_argnames=("sampling",), donate_argnums=1)
def _go_on(
    plan: DecodingPlan, state: LoopState, at: Any, end: Any, begin: Any, padding: Any, parameters: Array, key: Array,
    *, sampling: StaticSampling,
) -> tuple[Array, LoopState]:  # fmt: skip
    """Sample tokens from entry `at` of a leaf to `end`, or until all rows have ended; the leaf is of time `begin`."""
    whole = jax.random.fold_in(jax.random.key(key[0]), key[1])
    keys = jax.vmap(functools.partial(jax.random.fold_in, whole))(jnp.arange(state.ended.shape[0]))
    fill = sampling.eos_token_id or 0

    def more(carry: tuple[Array, LoopState]) -> Any:
        return (carry[0] < end) & ~jnp.all(carry[1].ended)

    def step(carry: tuple[Array, LoopState]) -> tuple[Array, LoopState]:
        at, state = carry
        finite = state.finite & jnp.all(state.ended | jnp.isfinite(jnp.max(state.logits, axis=-1)))
        numbers = None if sampling.greedy else uniform(keys, begin + at)
        tokens = jnp.where(state.ended, fill, sample(state.logits, numbers, parameters, sampling)).astype(
            state.written.dtype
        )
        ended = state.ended if sampling.eos_token_id is None else state.ended | (tokens == sampling.eos_token_id)
        written = lax.dynamic_update_slice_in_dim(state.written, tokens[:, None], at, 1)
        logits, windows = plan.advance(state.windows, at, begin + at, padding, tokens)
        return at + 1, LoopState(windows, logits, ended, finite, written)

    last, state = lax.while_loop(more, step, (jnp.asarray(at, "int32"), state))
    return last, state


def _rounded_prompt(tokens: Ints, mask: Array | None) -> tuple[Ints, Ints]:
    """Return prompts that end together, with padding before them up to a power of two, and each row's padding."""
    padding = np.zeros(len(tokens), "int32")
    if mask is not None:
        tokens, moved = lm.left_padded(tokens, np.asarray(mask))
        padding = padding if moved is None else moved.astype("int32")
    n = tokens.shape[1]
    more = max(LEAST_PROMPT, 1 << (n - 1).bit_length()) - n
    return np.pad(tokens, ((0, 0), (more, 0))), padding + np.int32(more)
