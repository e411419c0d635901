"""Texts continued by `generate`: as without a cache, whatever the way of sampling, and as our own way does."""

import copy
import threading

import pytest
from support.requirements import import_or_skip

import_or_skip("transformers")
import torch
from transformers import TextIteratorStreamer, pipeline

from tmm_adapters.hf.cache import CACHE
from tmm_adapters.torch import LanguageModel

pytestmark = pytest.mark.usefixtures("one_thread")
WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "do_sample": False},
    "beam sampling": {"num_beams": 2, "do_sample": True},
    "chunks": {"do_sample": False, "prefill_chunk_size": 4},
}
PROMPTS = torch.arange(22).reshape(2, 11) * 7 % 256
PADDED = torch.ones_like(PROMPTS)
PADDED[0, :3] = 0


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_sampling_gives_what_it_gives_without_a_cache(model, way: str, mask):
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        options = dict(WAYS[way])
        if not use_cache:
            options.pop("prefill_chunk_size", None)  # asks for a cache
        found.append(model.generate(PROMPTS, attention_mask=mask, max_new_tokens=12, use_cache=use_cache, **options))
    assert torch.equal(*found)
    assert found[0].shape[0] == 2 * WAYS[way].get("num_return_sequences", 1)


def test_greedy_texts_are_those_of_the_torch_model(model):
    ours = LanguageModel.from_params(model.state_dict(), model.tmm)
    theirs = model.generate(PROMPTS, max_new_tokens=40, do_sample=False, eos_token_id=None)  # more than the context
    assert torch.equal(theirs, ours.generate(PROMPTS, 40, do_sample=False))


def test_rows_that_are_padded_continue_as_single_ones(model):
    together = model.generate(PROMPTS, attention_mask=PADDED, max_new_tokens=12, do_sample=False)
    alone = model.generate(PROMPTS[:1, 3:], max_new_tokens=12, do_sample=False)
    assert torch.equal(together[:1, 3:], alone)


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
def test_a_conversation_goes_on_from_its_cache(model, mask):
    options = {"max_new_tokens": 8, "do_sample": False}
    first = model.generate(PROMPTS, attention_mask=mask, return_dict_in_generate=True, **options)
    more = torch.cat([first.sequences, PROMPTS.flip(1)], dim=1)
    whole = None if mask is None else torch.cat([mask, torch.ones(2, more.shape[1] - 11, dtype=torch.long)], dim=1)
    expected = model.generate(more, attention_mask=whole, use_cache=False, **options)
    cache = first[CACHE]
    for one in (copy.deepcopy(cache), cache):
        assert torch.equal(model.generate(more, attention_mask=whole, **{CACHE: one}, **options), expected)


def test_embedded_prompts_and_none_are_continued(model):
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = model.generate(PROMPTS, **options)[:, PROMPTS.shape[1] :]
    embedded = model.embed(PROMPTS)
    assert torch.equal(model.generate(inputs_embeds=embedded, **options), expected)
    begun = model.generate(**options)
    assert begun[0, 0] == model.generation_config.bos_token_id == 256


def test_texts_are_streamed_and_stopped(model, tokenizer):
    inputs = tokenizer("Once", return_tensors="pt")
    options = {**inputs, "max_new_tokens": 24, "do_sample": False}
    text = tokenizer.decode(model.generate(**options)[0])
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    thread = threading.Thread(target=model.generate, kwargs={**options, "streamer": streamer})
    thread.start()
    assert "".join(streamer) == text.removeprefix("Once")
    thread.join()
    stop = next(text[i] for i in range(8, len(text)) if text[i].isascii() and text[i] not in text[:8])
    stopped = tokenizer.decode(model.generate(**options, stop_strings=[stop], tokenizer=tokenizer)[0])
    assert stopped == text[: text.index(stop) + 1]


def test_the_pipeline_continues_texts_alone_and_in_batches(folder):
    write = pipeline("text-generation", model=str(folder))
    options = {"max_new_tokens": 6, "do_sample": False}
    texts = ["Once", "upon a time"]
    alone = [write(text, **options)[0]["generated_text"] for text in texts]
    together = [found[0]["generated_text"] for found in write(texts, batch_size=2, **options)]
    assert together == alone
    assert all(len(text) > len(prompt) for text, prompt in zip(alone, texts, strict=True))
