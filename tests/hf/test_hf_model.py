"""The model of transformers: the PyTorch model's values, and a sentence where it has none."""

import copy
import pickle

import pytest
from support.model_variants import VARIANTS, random_ids
from support.requirements import import_or_skip

import_or_skip("transformers")
import torch
from transformers import DynamicCache

from tmm_adapters.hf import TMMCache, TMMForCausalLM, TMMPretrainedConfig
from tmm_adapters.hf.cache import CACHE
from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = torch.arange(22).reshape(2, 11) * 7 % 256


def both(config: TMMConfig) -> tuple[TMMForCausalLM, LanguageModel]:
    torch.manual_seed(0)
    model = TMMForCausalLM(TMMPretrainedConfig(**config.to_dict())).double().eval()
    return model, LanguageModel.from_params(model.state_dict(), config).eval()


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_loss_are_those_of_the_torch_model(name: str):
    config = VARIANTS[name]
    model, ours = both(config)
    ids = torch.from_numpy(random_ids(config))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    for options in ({}, {"attention_mask": mask}):
        output, expected = model(ids, labels=ids, **options), ours(ids, labels=ids, **options)
        assert torch.equal(output.logits, expected.logits)
        torch.testing.assert_close(output.loss.double(), expected.loss, rtol=1e-6, atol=0)
        parts = model(ids, labels=ids, num_items_in_batch=7, **options)
        counted = int((mask[:, :-1] * mask[:, 1:]).sum()) if options else ids[:, 1:].numel()
        torch.testing.assert_close(parts.loss, output.loss * counted / 7)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_cache_reads_texts_in_pieces(name: str):
    config = VARIANTS[name]
    model, _ = both(config)
    ids = torch.from_numpy(random_ids(config))
    mask = torch.ones_like(ids)
    mask[:, :1] = 0  # padding that all rows have
    mask[0, :3] = 0
    n = ids.shape[1]
    for given in (None, mask):
        whole = model(ids, given, output_hidden_states=True)
        cache, begin, parts = TMMCache(model), 0, []
        for end in (5, 6, n - 1, n):
            seen = None if given is None else given[:, :end]
            part = model(ids[:, begin:end], seen, past_key_values=cache, output_hidden_states=True)
            parts.append((part.logits, part.hidden_states[-1]))
            begin = end
            assert cache.get_seq_length() == end
        token = torch.ones_like(ids, dtype=torch.bool) if given is None else given.bool()
        for together, expected in zip(zip(*parts, strict=True), (whole.logits, whole.hidden_states[-1]), strict=True):
            torch.testing.assert_close(torch.cat(together, dim=1)[token], expected[token])


def test_copies_and_rows_of_a_cache_go_on_by_themselves(model):
    ids = torch.cat([IDS, IDS.flip(0)], dim=1)
    cache = TMMCache(model)
    model(ids[:, :4], cache=cache)
    branch = copy.deepcopy(cache)
    branch.reorder_cache(torch.tensor([1, 0]))
    branch.batch_repeat_interleave(2)
    rows = torch.tensor([1, 1, 0, 0])
    later = model(ids[rows, 4:9], cache=branch).logits
    torch.testing.assert_close(later, model(ids[rows, :9]).logits[:, 4:])
    torch.testing.assert_close(model(ids[:, 4:6], cache=cache).logits, model(ids[:, :6]).logits[:, 4:])
    branch.batch_select_indices(torch.tensor([True, False, False, True]))
    rest = model(ids[[1, 0], 9:12], cache=branch).logits
    torch.testing.assert_close(rest, model(ids[[1, 0], :12]).logits[:, 9:])
    branch.reset()
    torch.testing.assert_close(model(ids, cache=branch).logits, model(ids).logits)


def test_only_the_wanted_logits_and_every_hidden_state_are_returned(model):
    output = model(IDS, output_hidden_states=True, logits_to_keep=3)
    whole = model(IDS).logits
    assert torch.equal(output.logits, whole[:, -3:])
    assert torch.equal(model(IDS, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])
    first, *_, last = output.hidden_states
    assert len(output.hidden_states) == 3
    assert torch.equal(first, model.embed(IDS))
    assert torch.equal(model.logits_of(last), whole)  # this model has no final norm
    assert torch.equal(model(inputs_embeds=first).logits, whole)
    assert isinstance(model(IDS, return_dict=False), tuple)


@pytest.mark.filterwarnings(
    "ignore:torch.ao.quantization is deprecated", "ignore:.*quantized tensor creation functions"
)
@pytest.mark.parametrize("change", ["deepcopy", "pickle", "half", "bfloat16", "int8", "compile", "export"])
def test_it_is_a_module_as_any_other(model, change: str):
    expected = model(IDS).logits
    changes = {
        "deepcopy": (copy.deepcopy, 0),
        "pickle": (lambda model: pickle.loads(pickle.dumps(model)), 0),
        "half": (lambda model: model.half(), 0.01),
        "bfloat16": (lambda model: model.to(torch.bfloat16), 0.1),
        "int8": (
            lambda model: torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8),
            0.2,
        ),
        "compile": (lambda model: torch.compile(model, backend="eager"), 0),
        "export": (_exported, 1e-5),
    }
    make, bound = changes[change]
    changed = make(model)
    logits = changed(IDS[:, :9] if change == "export" else IDS).logits
    torch.testing.assert_close(logits.float(), expected[:, : logits.shape[1]], atol=bound, rtol=0)
    if change != "export":
        assert changed.generate(IDS, max_new_tokens=3, do_sample=False).shape == (2, 14)


def _exported(model):
    """Return the forward pass as a program for any length."""
    lengths = {"input_ids": {1: torch.export.Dim("n", min=2, max=31)}}
    return torch.export.export(model, (IDS,), dynamic_shapes=lengths).module()


def test_the_seed_of_torch_decides_about_initial_parameters():
    config = TMMPretrainedConfig(d_model=8, n_layers=1, n_heads=2, max_len=8)
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(TMMForCausalLM(config))
    same, again, other = (model.blocks[0].mix.lags for model in models)
    assert torch.equal(same, again)
    assert not torch.equal(same, other)


REFUSED = {
    "attention maps": (lambda m: m(IDS, output_attentions=True), NotImplementedError, "has no attention maps"),
    "position ids": (lambda m: m(IDS, position_ids=IDS), TypeError, "unknown arguments position_ids: .*segment_ids"),
    "another cache": (lambda m: m(IDS, cache=DynamicCache()), TypeError, "is a TMMCache, and a DynamicCache came"),
    "two caches": (lambda m: m(IDS, cache=TMMCache(m), past_key_values=TMMCache(m)), ValueError, "two names of one"),
    "labels and a cache": (lambda m: m(IDS, labels=IDS, use_cache=True), ValueError, "keeps no gradients"),
    "nothing to read": (lambda m: m(), ValueError, "give one of input_ids and inputs_embeds"),
    "a token too many": (lambda m: m(IDS + 256), ValueError, "vocabulary"),
    "a mask with a hole": (lambda m: m(IDS, _mask([1, 0, 1])), ValueError, "attention_mask has a hole"),
    "padding after tokens": (lambda m: m(IDS, _mask([1, 1, 0]), use_cache=True), ValueError, "padding_side='left'"),
    "a row of padding": (lambda m: m(IDS, _mask([0, 0, 0]), use_cache=True), ValueError, "padding only for some text"),
    "a short mask": (lambda m: m(IDS, _mask([1, 1, 1])[:, :4], use_cache=True), ValueError, r"must be \(b, 11\)"),
    "other rows": (lambda m: m(IDS[:1], cache=m(IDS, use_cache=True)[CACHE]), ValueError, "the cache is of 2 texts"),
    "going back": (lambda m: TMMCache(m).crop(1), NotImplementedError, "cannot go back"),
    "static caches": (lambda m: _generate(m, cache_implementation="static"), NotImplementedError, "'static'"),
    "assisted decoding": (lambda m: _generate(m, assistant_model=m), ValueError, "assisted generation is not"),
    "changed parameters": (lambda m: _trained_between(m), ValueError, "parameters have changed"),
}


def _generate(model, **options) -> None:
    model.generate(IDS[:1], max_new_tokens=2, **options)


def _mask(first: list[int]) -> torch.Tensor:
    """Return a mask that begins so in its first row, whose last entry goes on."""
    mask = torch.ones_like(IDS)
    mask[0] = torch.tensor(first + first[-1:] * (IDS.shape[1] - len(first)))
    return mask


def _trained_between(model) -> None:
    cache = TMMCache(model)
    model(IDS, cache=cache)
    with torch.no_grad():
        model.blocks[0].mix.lags.mul_(2)
    model(IDS, cache=cache)


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_cannot_do_is_said(model, what: str):
    call, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        call(model)


def test_texts_end_where_the_position_bias_does():
    model = TMMForCausalLM(TMMPretrainedConfig(d_model=8, n_layers=1, n_heads=2, max_len=16))
    assert TMMCache(model).get_max_length() == 16
    with pytest.raises(ValueError, match="the position bias ends at max_len=16"):
        model.generate(IDS, max_new_tokens=16, do_sample=False, eos_token_id=None)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"tmm": {"d_model": 8, "n_experts": 2}}, ValueError, r"unknown fields \['n_experts'\]"),
        ({"d_model": -8}, ValueError, "d_model must be at least 1"),
        ({"d_model": "8"}, TypeError, "d_model must be a whole number"),
        ({"model_type": "llama"}, ValueError, "architecture 'llama', not of 'tmm'"),
        ({"tmm": {"model_type": "hyena"}}, ValueError, "architecture 'hyena', not of 'tmm'"),
    ],
)
def test_configurations_that_cannot_be_are_refused(fields, kind, words):
    with pytest.raises(kind, match=words):
        TMMPretrainedConfig(**fields)


def test_fields_of_the_model_are_attributes_of_its_configuration():
    config = TMMPretrainedConfig(d_model=8, n_heads=2, hidden_size=16)
    config.n_layers = 3
    assert (config.hidden_size, config.num_hidden_layers, config.core().n_layers) == (16, 3, 3)
    assert TMMPretrainedConfig(tie_word_embeddings=True).core().tie_embeddings
    with pytest.raises(ValueError, match="n_heads=3 does not divide"):
        config.n_heads = 3
    with pytest.raises(AttributeError, match="has no attribute 'n_experts'"):
        _ = config.n_experts
    assert copy.deepcopy(config).core() == pickle.loads(pickle.dumps(config)).core() == config.core()
