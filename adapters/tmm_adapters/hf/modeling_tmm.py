"""The Toeplitz MLP Mixer as a model of transformers: the PyTorch model, loaded, trained and sampled by its tools."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from tmm_core import lm
from tmm_core.errors import InputError, InputTypeError, UnsupportedError

from ..torch.batches import targets_of
from ..torch.model import Network
from .cache import CACHE, TMMCache, with_columns
from .configuration_tmm import TMMPretrainedConfig

__all__ = ["TMMForCausalLM"]


class TMMForCausalLM(PreTrainedModel, GenerationMixin, Network):
    """The language model, whose parameters have the names that they have in every framework.

    Parameters
    ----------
    config : TMMPretrainedConfig
        The model. Its initial parameters are those of `tmm_core.lm.init_params` with a seed that PyTorch's random
        numbers give, so `torch.manual_seed` decides about them.

    Notes
    -----
    Has no attention maps, no static caches and no assisted decoding, and says so where they are asked for.
    """

    config_class = TMMPretrainedConfig
    config: TMMPretrainedConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    gradient_checkpointing = False
    _no_split_modules = ["Block"]  # noqa: RUF012  (typed by the base class)
    _input_embed_layer = "embed"
    _is_stateful = True  # its cache cannot go back

    def __init__(self, config: TMMPretrainedConfig) -> None:
        """Make the model and, where its device has values, its initial parameters."""
        super().__init__(config)
        self.make_modules(config.core())
        device = torch.get_default_device()
        if device.type != "meta":
            self.to_empty(device=device)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """Return the model in a folder or repository; see `transformers.PreTrainedModel.from_pretrained`.

        Raises
        ------
        ValueError
            If parameters are missing.
        """
        wanted = options.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **options)
        model, info = loaded
        if missing := sorted(info["missing_keys"]):
            raise InputError(f"the weights lack {', '.join(missing)}: the folder is incomplete, copy or write it again")
        model.freeze()  # loading makes parameters anew
        return (model, info) if wanted else model

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: TMMCache | None = None,
        past_key_values: TMMCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        segment_ids: Tensor | None = None,
        targets: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits of the next tokens, and the loss where labels or targets are given.

        Parameters
        ----------
        input_ids : tensor of integers, (b, n)
            Tokens; with a cache those that follow the ones in it.
        attention_mask : tensor, (b, n), or with a cache (b, tokens in it + n), optional
            1 for a token and 0 for padding, before the tokens or, without a cache, after them.
        labels : tensor of integers, (b, n), optional
            The tokens themselves, which are shifted here; -100 is passed over.
        inputs_embeds : tensor, (b, n, d), optional
            In place of `input_ids`.
        cache, past_key_values : TMMCache, optional
            One cache by its newer or older name. It is changed, and keeps no gradients.
        use_cache : bool, optional
            Whether to begin a cache where none is given; by default not, as the gradients would be lost.
        logits_to_keep : int or tensor of positions
            Compute logits of that many last positions, or at these, only; 0 is all of them.
        output_hidden_states : bool, optional
            Return the embedded tokens and what comes out of each block, the last after the final norm.
        segment_ids, targets : tensors of integers, (b, n), optional
            As in `tmm_adapters.torch.LanguageModel`.
        num_items_in_batch : int, optional
            Divide the sum of the losses by this; by default it is their mean.
        **others
            What transformers hands to every model and a TMM does without; tensors that would be ignored are refused.

        Raises
        ------
        TypeError, ValueError, NotImplementedError
            If an argument is not as described, or asks for what the model does not have.
        """
        _refuse_others(others, output_attentions)
        cache = _given_cache(cache, past_key_values)
        tokens = self._tokens_of(input_ids, inputs_embeds)
        attention_mask = None if _says_nothing(attention_mask, tokens, cache) else attention_mask
        if cache is not None or use_cache:
            if labels is not None or targets is not None or segment_ids is not None:
                raise InputError(
                    "labels, targets and segment_ids do not go with a cache, which keeps no gradients and one text a "
                    "row: leave out the cache"
                )
            cache = TMMCache(self) if cache is None else cache
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        documents = refused = None
        with _recorded(self.blocks if wants_states else ()) as states:
            if cache is not None:
                x = cache.extend(tokens, attention_mask, inputs_embeds)
            else:
                documents = lm.documents_of(tokens, attention_mask, segment_ids)  # (b, n), or None
                refused = lm.refused_rows(documents)
                x = self.through_blocks(self.embed(tokens) if inputs_embeds is None else inputs_embeds, documents)
        targets = targets_of(tokens, labels, targets, documents, self.vocab_size)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.logits_of(x[:, kept])
        if refused is not None:
            logits = torch.where(refused[..., None], torch.nan, logits)
        loss = None
        if targets is not None:
            loss = self.loss_function(
                logits=logits,
                labels=targets,
                shift_labels=targets[:, kept],
                vocab_size=self.vocab_size,
                num_items_in_batch=num_items_in_batch,
            )
        hidden_states = None
        if wants_states:
            begin = self.embed(tokens) if inputs_embeds is None else inputs_embeds
            states = [begin, *(with_columns(state, tokens.shape[1]) for state in states)]
            hidden_states = (*states[:-1], self.final_norm(states[-1]))
        kept_cache: dict[str, Any] = {CACHE: cache}
        return CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=hidden_states, **kept_cache)

    def _tokens_of(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Return tokens, checked, or zeros for what is embedded already."""
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give one of input_ids and inputs_embeds")
        if inputs_embeds is not None:
            if inputs_embeds.ndim != 3 or inputs_embeds.shape[-1] != self.tmm.d_model:
                raise InputError(f"inputs_embeds must be (b, n, {self.tmm.d_model}), got {tuple(inputs_embeds.shape)}")
            return torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
        tokens, _ = self.checked_tokens(cast(Tensor, input_ids))
        if tokens.ndim != 2:
            raise InputError(f"input_ids must have the shape (batch, n), got {tuple(tokens.shape)}")
        return tokens

    def through(self, block: nn.Module, *given: Any) -> Tensor:
        """Return what comes out of a block; where gradients are checkpointed it is computed again for them."""
        if self.gradient_checkpointing and self.training:
            return cast(Tensor, self._gradient_checkpointing_func(block.__call__, *given))
        return super().through(block, *given)

    # What transformers asks of models

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Fill the parameters that have no values yet."""
        empty = {name: p for name, p in self.named_parameters() if not getattr(p, "_is_hf_initialized", False)}
        if empty:
            seed = int(torch.randint(1 << 62, (), device="cpu"))
            values = lm.init_params(self.tmm, np.random.default_rng(seed))
            for name, parameter in empty.items():
                parameter.copy_(torch.from_numpy(values[name]))

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding."""
        return self.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding."""
        self.embed = cast(nn.Embedding, value)

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the output projection, None where the embedding is used as such."""
        return self.unembed

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the output projection."""
        self.unembed = new_embeddings

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.tmm.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.tmm = replace(self.tmm, vocab_size=value)

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict[str, Any], *others: Any
    ) -> None:
        """Begin the cache of a generation, of the one kind that there is."""
        if model_kwargs.get(CACHE) is None and generation_config.use_cache is not False:
            kind = generation_config.cache_implementation
            if kind not in (None, "dynamic"):
                raise UnsupportedError(
                    f"cache_implementation={kind!r} is a kind of cache that a TMM does not have, whose cache holds "
                    "streams of its filters: leave cache_implementation out"
                )
            model_kwargs[CACHE] = TMMCache(self)
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *others)  # type: ignore[misc]


def _given_cache(cache: TMMCache | None, past_key_values: TMMCache | None) -> TMMCache | None:
    """Return the one cache of two names."""
    if cache is not None and past_key_values is not None:
        raise InputError("cache and past_key_values are two names of one argument: give one of them")
    given = past_key_values if cache is None else cache
    if given is not None and not isinstance(given, TMMCache):
        raise InputTypeError(
            f"the cache of a TMM is a TMMCache, and a {type(given).__name__} came: leave it out, or give what a call "
            "returned"
        )
    return given


def _refuse_others(others: dict[str, Any], output_attentions: bool | None) -> None:
    """Refuse tensors that would be passed over; the other options of transformers have no meaning here."""
    if output_attentions:
        raise UnsupportedError(
            "a TMM has no attention maps: what mixes its tokens are the filters of model.filters(), the same for every "
            "text; leave output_attentions out"
        )
    known = {"cache_position"}  # in transformers 5.0 generate gives it to every model; the cache knows it
    unknown = sorted(name for name, value in others.items() if isinstance(value, Tensor) and name not in known)
    if unknown:
        raise InputTypeError(
            f"unknown arguments {', '.join(unknown)}: leave them out; positions are counted from attention_mask, and "
            "packed texts are told apart by segment_ids"
        )


def _says_nothing(attention_mask: Tensor | None, tokens: Tensor, cache: TMMCache | None) -> bool:
    """Return whether a mask is known to be without padding, which saves the work of keeping it apart."""
    if attention_mask is None or torch.compiler.is_compiling() or cache is not None:
        return attention_mask is None
    return attention_mask.shape == tokens.shape and bool((attention_mask == 1).all())


@contextmanager
def _recorded(blocks: Any) -> Iterator[list[Tensor]]:
    """Yield a list that what comes out of each block is appended to."""
    states: list[Tensor] = []
    handles = [block.register_forward_hook(lambda _module, _given, output: states.append(output)) for block in blocks]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()
