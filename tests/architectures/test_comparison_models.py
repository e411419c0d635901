"""The models that a TMM is compared with are what their authors describe, causal, and the same one token at a time."""

import math

import pytest
import torch
from support.architectures import COMPARISONS, small_model

from tmm_adapters.architecture import get_architecture
from tmm_adapters.generation import ContextFullError, Sampling
from tmm_core import TMMConfig, lm
from tmm_core.errors import InputError, InputTypeError
from tmm_lab.architectures.hyena import Hyena, HyenaTuned
from tmm_lab.architectures.linear_attention import LinearAttention, attend
from tmm_lab.architectures.llama import Llama
from tmm_lab.architectures.mamba2 import Mamba2
from tmm_lab.architectures.masked_mixer import MaskedMixer
from tmm_lab.architectures.window import Window

GREEDY = Sampling(0)
SMALL = {"vocab_size": 50, "max_len": 40, "d_model": 32, "n_layers": 2}


@pytest.fixture(params=COMPARISONS)
def model(request):
    return small_model(request.param)


@pytest.fixture
def ids():
    return torch.randint(50, (3, 33), generator=torch.Generator().manual_seed(1))


# Sizes

# Millions of parameters with 8000 tokens, 16 layers and 512 positions, computed from the code of the Toeplitz paper's
# experiments, for 128, 512 and 1024 channels.
PUBLISHED = {
    "tmm, flat": (4.2, 41.8, 150.8),
    "tmm, 4 heads": (4.8, 50.3, 184.4),
    "masked-mixer": (8.4, 46.0, 155.0),
    "hyena": (5.5, 59.4, 219.3),
    "linear-attention": (5.2, 58.6, 217.9),
    "window": (5.2, 58.6, 217.9),
    "mamba2": (5.9, 67.4, 252.3),
    "llama": (6.2, 75.3, 284.9),
}


def _missing(name, d):
    """Return how many of the published parameters our models lack, for a reason."""
    if name == "linear-attention":
        return -(4 + 128) * d  # the position table, which the experiments have and the published count leaves out
    if name == "window":
        return 16 * 8 * d + d + 8000  # biases of linear maps, norms and output, which transformers' Mistral has not
    return 8000 if name == "mamba2" else 0  # the bias of the output projection, which transformers' has not


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_of_the_papers_size_have_as_many_parameters_as_published(name):
    for d, published in zip((128, 512, 1024), PUBLISHED[name], strict=True):
        if name.startswith("tmm"):
            config = TMMConfig.preset("paper", d_model=d, n_heads=4 if "heads" in name else 0)
            count = sum(map(math.prod, lm.parameter_shapes(config).values()))
        else:
            architecture = get_architecture(name)
            count = architecture.n_parameters(architecture.config_class.preset("paper", d_model=d))
        assert round((count + _missing(name, d)) / 1e6, 1) == published


# What each computes


@pytest.mark.parametrize(("architecture", "name"), [(Llama, "Llama"), (Window, "Mistral"), (Mamba2, "Mamba2")])
def test_models_of_transformers_give_its_logits(architecture, name, ids):
    import transformers

    config = architecture.config_class.preset(**SMALL)
    model = architecture().torch_model(config, seed=0)
    theirs = getattr(transformers, f"{name}ForCausalLM")(config.to_transformers()).eval()
    theirs.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(ids, targets=ids)["logits"], theirs(ids).logits)


def test_a_token_attends_to_its_window_and_no_further(ids):
    model = (
        Window().torch_model(Window.config_class.preset(**SMALL | {"n_layers": 1}, window=7), seed=0).double().eval()
    )
    for before, seen in ((6, True), (7, False)):
        changed = ids.clone()
        changed[:, 20 - before] = (ids[:, 20 - before] + 1) % 50
        assert torch.equal(model(changed)["logits"][:, 20], model(ids)["logits"][:, 20]) != seen


def _dense_filter(layer, n):
    """Return the filters (d, n) of a Hyena layer, feature by feature, in float64."""
    implicit, length = layer.filter, len(layer.filter.features)
    rows = []
    for t in range(n):
        x = implicit.features[t].double()
        for linear in implicit.layers:
            x = torch.sin(implicit.frequency.double() * (linear.weight.double() @ x + linear.bias.double()))
        d = len(implicit.skip)
        rates = math.log(100) / 1.5 + torch.arange(d) / (d - 1) * (math.log(100) / 0.3 - math.log(100) / 1.5)
        rows.append(implicit.out.weight.double() @ x * torch.exp(-rates * t / (length - 1)))
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("architecture", [Hyena, HyenaTuned])
@pytest.mark.parametrize("n", [1, 2, 33])
def test_hyena_is_the_sum_over_all_earlier_tokens(architecture, n):
    layer = architecture().torch_model(architecture.config_class.preset(**SMALL), seed=0).blocks[0].mix.double()
    x = torch.randn(2, n, 32, dtype=torch.float64)
    h, u = _dense_filter(layer, n), layer.in_proj(x)
    taps = layer.short.weight[:, 0]
    short = torch.stack(
        [layer.short.bias + sum(taps[:, 2 - j] * u[:, t - j] for j in range(min(t, 2) + 1)) for t in range(n)], 1
    )
    g0, g1, v = short.split(32, dim=-1)
    v = g1 * v
    long = torch.stack(
        [sum(h[:, t - s] * v[:, s] for s in range(t + 1)) + layer.filter.skip * v[:, t] for t in range(n)], 1
    )
    torch.testing.assert_close(layer(x), layer.out_proj(g0 * long), rtol=1e-6, atol=1e-6)


def test_initial_features_of_hyena_are_time_and_its_bands():
    """The paper's configuration has one band, whose frequency is nearly zero: features are t, 1 and 0."""
    paper, tuned = (
        a().torch_model(a.config_class.preset(**SMALL), seed=0).blocks[0].mix.filter.features
        for a in (Hyena, HyenaTuned)
    )
    torch.testing.assert_close(paper[:, 1], torch.ones(40), rtol=0, atol=1e-6)
    torch.testing.assert_close(paper[:, 2], torch.zeros(40), rtol=0, atol=1e-3)
    assert tuned.shape == (40, 33)
    phase = 2 * math.pi * 7 / 40 * 15  # the last of 16 bands, at time 7
    torch.testing.assert_close(tuned[7, [16, 32]], torch.tensor([math.cos(phase), -math.sin(phase)]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("begun", [False, True])
def test_linear_attention_is_a_weighted_mean_of_all_earlier_values(n, begun):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(2, 3, n, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    sums = torch.zeros(2, 3, 8, 9, dtype=torch.float64)
    cut = n // 3 if begun else 0
    parts = []
    for part in (slice(0, cut), slice(cut, n))[not cut :]:
        y, sums = attend(q[:, :, part], k[:, :, part], v[:, :, part], sums, least=1e-6)
        parts.append(y)
    weights = (q @ k.mT).tril()
    torch.testing.assert_close(torch.cat(parts, 2), weights @ v / weights.sum(-1, keepdim=True), rtol=1e-12, atol=0)


def test_linear_attention_does_not_overflow_where_exponentials_do():
    for features, finite in (("elu", True), ("exp", False)):
        model = LinearAttention().torch_model(LinearAttention.config_class.preset(**SMALL, features=features), seed=0)
        with torch.no_grad():
            model.blocks[0].mix.key.weight.mul_(1e3)
        assert bool(model(torch.arange(40)[None])["logits"].isfinite().all()) == finite


def test_unnormalised_linear_attention_is_the_librarys():
    from linear_attention_transformer import LinearAttentionTransformerLM

    size = {"vocab_size": 50, "max_len": 256, "d_model": 32, "n_layers": 2}
    ours = LinearAttention().torch_model(LinearAttention.config_class.preset(**size, features="exp"), seed=0)
    theirs = LinearAttentionTransformerLM(
        num_tokens=50, dim=32, depth=2, max_seq_len=256, heads=4, dim_head=8, causal=True, blindspot_size=1
    )
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    with torch.no_grad():
        for theirs_p, ours_p in zip(theirs.parameters(), _in_the_librarys_order(ours), strict=True):
            theirs_p.copy_(ours_p.view(theirs_p.shape))
    ids = torch.randint(50, (2, 256), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours.double()(ids)["logits"], theirs.double()(ids), rtol=1e-10, atol=1e-10)


def _in_the_librarys_order(model):
    """Yield the parameters in the order of linear-attention-transformer's."""
    yield from model.embed.parameters()
    yield model.positions.rows.weight
    yield model.positions.columns.weight
    for block in model.blocks:
        for layer in (block.mix.query, block.mix.key, block.mix.value, block.mix.out_proj, block.mix_norm):
            yield from layer.parameters()
        for layer in (block.mlp, block.mlp_norm):
            yield from layer.parameters()
    yield from model.final_norm.parameters()
    yield from model.unembed.parameters()


@pytest.mark.parametrize("heads", [0, 4])
@pytest.mark.parametrize("kernel_size", [1, 3, 4])
def test_the_masked_mixer_is_its_formula(heads, kernel_size):
    config = MaskedMixer.config_class.preset(**SMALL, n_heads=heads, kernel_size=kernel_size)
    layer = MaskedMixer().torch_model(config, seed=0).blocks[0].mix.double()
    x = torch.randn(2, 33, 32, dtype=torch.float64)
    parts = layer.in_proj(x).chunk(config.heads, dim=-1)
    y = [torch.zeros_like(part) for part in parts]
    for head, part in enumerate(parts):
        width = part.shape[-1]
        for t in range(33):
            y[head][:, t] = layer.bias[head, t]
            for i in range(kernel_size):
                for c in range(width):
                    source = c + i - (kernel_size - 1) // 2
                    if 0 <= source < width:
                        y[head][:, t, c] += part[:, : t + 1, source] @ layer.weight[head, t, : t + 1, i]
    torch.testing.assert_close(layer(x), layer.out_proj(torch.cat(y, dim=-1)), rtol=1e-10, atol=1e-12)


# Laws of all


def test_no_token_sees_a_later_one(model, ids):
    changed = ids.clone()
    changed[:, 20:] = (ids[:, 20:] + 1) % 50
    before, after = model(ids)["logits"], model(changed)["logits"]
    torch.testing.assert_close(after[:, :20], before[:, :20], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 20:], before[:, 20:], atol=1e-3)


def test_packed_documents_are_as_if_alone(model, ids):
    segment_ids = torch.zeros_like(ids)
    segment_ids[0, 10:], segment_ids[0, 11:], segment_ids[2, 20:] = 1, 2, 7
    packed = model(ids, segment_ids=segment_ids)["logits"]
    for row, begin, end in ((0, 0, 10), (0, 10, 11), (0, 11, 33), (1, 0, 33), (2, 0, 20), (2, 20, 33)):
        alone = model(ids[row : row + 1, begin:end])["logits"][0]
        torch.testing.assert_close(packed[row, begin:end], alone, rtol=0, atol=1e-12)


def test_the_loss_is_the_mean_cross_entropy_of_targets_that_count(model, ids):
    targets = ids.roll(-1, dims=1)
    targets[:, -1], targets[1] = -100, -100
    result = model(ids, targets=targets)
    probabilities = result["logits"].softmax(-1)
    expected = -torch.stack([probabilities[row, t, targets[row, t]].log() for row in (0, 2) for t in range(32)]).mean()
    torch.testing.assert_close(result["loss"], expected.to(result["loss"].dtype), rtol=1e-5, atol=0)


def test_every_parameter_is_trained(model, ids):
    model(ids, targets=ids)["loss"].backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())] == []


def test_the_seed_decides_the_initial_parameters_and_nothing_else():
    state = torch.get_rng_state()
    first, again, other = (
        Hyena().torch_model(Hyena.config_class.preset(**SMALL), seed=seed).state_dict() for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_what_a_row_writes_does_not_depend_on_the_others(model, ids):
    mask = torch.ones_like(ids)
    mask[0, :9], mask[2, -4:] = 0, 0

    def written(rows, mask):
        generator = torch.Generator().manual_seed(5)
        return torch.stack(list(model.new_tokens(rows, 6, attention_mask=mask, generator=generator)), dim=1)

    together = written(ids, mask)
    assert together.shape == (3, 6)
    torch.testing.assert_close(written(ids[:1, 9:], None), together[:1])
    greedy = torch.stack(list(model.new_tokens(ids[2:, :-4], 2, GREEDY)), dim=1)
    likeliest = model(ids[2:, :-4])["logits"][:, -1].argmax(-1)
    assert torch.equal(greedy[:, 0], likeliest)


@pytest.mark.parametrize("architecture", [Hyena, LinearAttention, MaskedMixer])
def test_a_row_ends_with_the_positions_and_leaves_the_others_alone(architecture, ids):
    model = architecture().torch_model(architecture.config_class.preset(**SMALL), seed=3).double().eval()
    mask = torch.ones_like(ids)
    mask[0, :9] = 0  # 24, 33 and 33 tokens, of 40
    rows = [ids[:1, 9:], ids[1:2], ids[2:]]
    together = torch.stack(list(model.new_tokens(ids, 20, GREEDY, attention_mask=mask, end_where_full=True)), 1)
    assert together.shape == (3, 17)  # the last token of a text needs no position
    for row, room in enumerate((17, 8, 8)):
        alone = torch.stack(list(model.new_tokens(rows[row], room, GREEDY)), dim=1)
        assert torch.equal(together[row, :room], alone[0])
    assert not bool(together[1:, 8:].any())
    with pytest.raises(ContextFullError, match="ends at max_len=40"):
        list(model.new_tokens(ids, 20, GREEDY))


# Bad input


@pytest.mark.parametrize(
    ("architecture", "options", "named"),
    [
        (Llama, {"n_heads": 5}, "n_heads"),
        (Llama, {"d_model": 12, "n_heads": 4}, "n_heads"),
        (Window, {"window": 0}, "window"),
        (Mamba2, {"n_heads": 7}, "n_heads"),
        (Mamba2, {"n_groups": 3}, "n_groups"),
        (Mamba2, {"d_model": 33, "n_heads": 2, "n_groups": 2}, "d_model"),
        (Hyena, {"n_features": 4}, "n_features"),
        (Hyena, {"sine_frequency": 0.0}, "sine_frequency"),
        (LinearAttention, {"n_heads": 3}, "n_heads"),
        (LinearAttention, {"features": "relu"}, "features"),
        (MaskedMixer, {"kernel_size": 0}, "kernel_size"),
        (MaskedMixer, {"n_layers": "2"}, "n_layers"),
    ],
)
def test_configurations_that_cannot_be_are_refused_by_name(architecture, options, named):
    with pytest.raises((InputError, InputTypeError), match=named):
        architecture.config_class.preset(**options)


@pytest.mark.parametrize("architecture", [Hyena, LinearAttention, MaskedMixer])
def test_rows_longer_than_the_context_are_refused(architecture):
    model = architecture().torch_model(architecture.config_class.preset(**SMALL), seed=0)
    with pytest.raises(InputError, match="max_len=40"):
        model(torch.zeros(1, 41, dtype=torch.long))


def test_arguments_of_transformers_models_that_would_be_ignored_are_refused(ids):
    model = small_model("llama")
    with pytest.raises(InputError, match="attention_mask cannot be given with targets"):
        model(ids, targets=ids, attention_mask=torch.ones_like(ids))
    with pytest.raises(InputError, match="belong to input_ids, which are missing"):
        model(targets=ids)
