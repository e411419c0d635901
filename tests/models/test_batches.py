"""Padding and packed documents in the definition and in PyTorch: what counts, what is refused, what compiled code does.

That a row's result does not depend on its batch is a law, checked over all libraries in `test_laws.py`.
"""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.model_variants import VARIANTS, random_ids, random_params
from torch import Tensor

from tmm_adapters.pretrained import save_params
from tmm_adapters.tokenizers import ByteTokenizer
from tmm_adapters.torch import LanguageModel
from tmm_core import TMMConfig, lm, mix_tokens
from tmm_lab.cli import main
from tmm_lab.data.dataset import TokenWindows, evaluation_windows
from tmm_lab.training.job import Job
from tmm_lab.training.options import TrainingOptions
from tmm_lab.training.runs import Run

HEADS = VARIANTS["heads"]
MASK = np.asarray([[0] * 3 + [1] * 7 + [0] * 2, [1] * 12])
SEGMENTS = np.asarray([[9] * 3 + [4] * 2 + [7] * 5 + [0] * 2, [-1] * 5 + [0] * 7])  # those of padding do not matter


@pytest.fixture(params=sorted(VARIANTS))
def config(request: pytest.FixtureRequest) -> TMMConfig:
    return VARIANTS[request.param]


def torch_model(config: TMMConfig) -> LanguageModel:
    return LanguageModel.from_params(random_params(config), config)


# --- The same as alone ------------------------------------------------------------------------------------------------


def test_documents_of_a_padded_batch_are_as_alone(config: TMMConfig):
    params, ids = random_params(config), random_ids(config)
    logits = lm.forward(params, ids, config, attention_mask=MASK, segment_ids=SEGMENTS)
    assert np.isfinite(logits).all()
    for row, begin, end in ((0, 3, 5), (0, 5, 10), (1, 0, 5), (1, 5, 12)):
        alone = lm.forward(params, ids[row, begin:end], config)
        assert logits[row, begin:end] == pytest.approx(alone, abs=1e-10), (row, begin)


def test_the_torch_model_computes_the_same(config: TMMConfig):
    params, ids, model = random_params(config), random_ids(config), torch_model(config)
    targets = np.where(np.arange(12) % 3 == 0, lm.IGNORED, np.roll(ids, -1, 1))
    for given in ({"attention_mask": MASK}, {"segment_ids": np.sort(SEGMENTS)},
                  {"attention_mask": MASK, "segment_ids": SEGMENTS}):  # fmt: skip
        tensors = {name: torch.from_numpy(value) for name, value in given.items()}
        out = model(torch.from_numpy(ids), labels=torch.from_numpy(ids), **tensors)
        expected = lm.forward(params, ids, config, **given)
        assert out["logits"].detach().numpy() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert out["loss"].item() == pytest.approx(lm.loss(params, ids, config, labels=ids, **given), rel=1e-9)
        out = model(torch.from_numpy(ids), targets=torch.from_numpy(targets), **tensors)
        assert out["loss"].item() == pytest.approx(lm.loss(params, ids, config, targets=targets, **given), rel=1e-9)


def test_positions_are_counted_within_documents_however_long_the_row():
    """A row of several documents, or of much padding, may be longer than the position bias."""
    params, ids = random_params(HEADS), random_ids(HEADS, (1, 30))
    segments = np.repeat([[0, 1, 2]], [12, 6, 12], axis=1)
    logits = lm.forward(params, ids, HEADS, segment_ids=segments)
    assert logits[0, 18:] == pytest.approx(lm.forward(params, ids[0, 18:], HEADS), abs=1e-10)
    mask = (np.arange(30) >= 20)[None].astype(int)
    logits = lm.forward(params, ids, HEADS, attention_mask=mask)
    assert logits[0, 20:] == pytest.approx(lm.forward(params, ids[0, 20:], HEADS), abs=1e-10)
    with pytest.raises(ValueError, match=r"the longest document has 13 positions .* only max_len=12"):
        lm.forward(params, ids, HEADS, segment_ids=np.repeat([[0, 1, 2]], [13, 5, 12], axis=1))


def test_traced_code_makes_nan_beyond_the_position_bias():
    rng = np.random.default_rng(0)
    w, x, bias = rng.standard_normal((2, 9)), rng.standard_normal((1, 9, 4)), rng.standard_normal((2, 5))
    segments = jnp.asarray([[0, 0, 1, 1, 1, 1, 1, 1, 1]])
    with jax.enable_x64(True):
        y = jax.jit(lambda s: mix_tokens(jnp.asarray(w), jnp.asarray(x), jnp.asarray(bias), segment_ids=s))(segments)
    assert np.isnan(y[0, 7:]).all()
    alone = mix_tokens(w, x[:, 2:7], bias)
    assert np.asarray(y[:, 2:7]) == pytest.approx(alone, abs=1e-12)
    assert np.isfinite(y[:, :7]).all()


# --- Loss -------------------------------------------------------------------------------------------------------------


def test_labels_of_other_documents_and_of_padding_do_not_count():
    params, ids = random_params(HEADS), random_ids(HEADS)
    nats, count = 0.0, 0
    for row, begin, end in ((0, 3, 5), (0, 5, 10), (1, 0, 5), (1, 5, 12)):
        nats += (end - begin - 1) * float(lm.loss(params, ids[row, begin:end], HEADS))
        count += end - begin - 1
    loss = lm.loss(params, ids, HEADS, attention_mask=MASK, segment_ids=SEGMENTS)
    assert loss == pytest.approx(nats / count, rel=1e-12)


def test_targets_count_as_they_are():
    """Across documents, too: the last token of one predicts the end-of-text that begins the next."""
    params, ids = random_params(HEADS), random_ids(HEADS)
    logits = lm.forward(params, ids, HEADS, segment_ids=np.sort(SEGMENTS))
    targets = np.roll(ids, -1, 1)
    targets[1, 3:6] = lm.IGNORED
    chosen = np.take_along_axis(logits, np.maximum(targets, 0)[..., None], 2)[..., 0]
    nats = np.log(np.exp(logits).sum(-1)) - chosen
    expected = nats[targets != lm.IGNORED].mean()
    assert lm.loss(params, ids, HEADS, targets=targets, segment_ids=np.sort(SEGMENTS)) == pytest.approx(expected)
    single = lm.loss(params, ids[:, :1], HEADS, targets=targets[:, :1])
    assert np.isfinite(single), "one position can predict a target"


# --- What is refused --------------------------------------------------------------------------------------------------


def forwards(config: TMMConfig) -> list[Any]:
    """Return the definition and the Torch model as functions of NumPy arrays."""
    model = torch_model(config)

    def in_torch(ids: Any, **given: Any) -> Tensor:
        return model(torch.from_numpy(ids), **{name: torch.from_numpy(a) for name, a in given.items()})["logits"]

    return [functools.partial(lm.forward, random_params(config), config=config), in_torch]


@pytest.mark.parametrize("forward", [0, 1], ids=["definition", "torch"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": np.where(np.arange(12) == 5, 0, MASK)}, "attention_mask has a hole"),
        ({"attention_mask": MASK * [[0], [1]]}, "row of padding only: leave such rows out"),
        ({"attention_mask": 2 * MASK}, "must hold 1 for tokens and 0 for padding"),
        ({"attention_mask": MASK - 1.0}, "must hold 1 for tokens and 0 for padding"),
        ({"attention_mask": MASK[:1]}, r"must have the shape of input_ids, \(2, 12\), and has \(1, 12\)"),
        ({"segment_ids": SEGMENTS}, "segment_ids must not decrease along time"),
        ({"segment_ids": SEGMENTS[:, 1:]}, r"segment_ids must have the shape of input_ids"),
        ({"segment_ids": SEGMENTS, "attention_mask": np.roll(MASK, 1, 1)}, "segment_ids must not decrease"),
    ],
)  # fmt: skip
def test_masks_and_segments_that_mean_nothing_are_refused(forward: int, given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        forwards(HEADS)[forward](random_ids(HEADS), **given)


@pytest.mark.parametrize("forward", [0, 1], ids=["definition", "torch"])
def test_masks_of_any_kind_of_number_are_taken(forward: int):
    run, ids = forwards(HEADS)[forward], random_ids(HEADS)
    expected = run(ids, attention_mask=MASK)
    for kind in (bool, np.uint8, np.float32):
        assert (run(ids, attention_mask=MASK.astype(kind)) == expected).all()
    with pytest.raises(TypeError, match="segment_ids must be integers"):
        run(ids, segment_ids=SEGMENTS.astype(float))


def test_labels_and_targets_are_not_both_taken():
    ids = random_ids(HEADS)
    with pytest.raises(ValueError, match="labels and targets are both given"):
        lm.loss(random_params(HEADS), ids, HEADS, labels=ids, targets=ids)
    with pytest.raises(ValueError, match="targets must have the shape"):
        lm.loss(random_params(HEADS), ids, HEADS, targets=ids[:, 1:])
    model, tensor = torch_model(HEADS), torch.from_numpy(ids)
    with pytest.raises(ValueError, match="labels and targets are both given"):
        model(tensor, labels=tensor, targets=tensor)
    with pytest.raises(ValueError, match="targets must have the shape"):
        model(tensor, targets=tensor[:, 1:])
    with pytest.raises(ValueError, match="label 11 is outside the vocabulary"):
        model(tensor, targets=torch.full_like(tensor, 11))


# --- Compiled ---------------------------------------------------------------------------------------------------------

BAD = np.asarray([[1] * 12, [0] * 12, [1, 0] * 6, [1] * 12, [2] * 12])
BAD_SEGMENTS = np.zeros((5, 12), int)
BAD_SEGMENTS[3, 5] = 1


def test_traced_code_makes_nan_of_the_rows_that_eager_code_refuses():
    params, ids = random_params(HEADS), random_ids(HEADS, (5, 12))
    given = {name: jnp.asarray(p) for name, p in params.items()}
    with jax.enable_x64(True):
        run = jax.jit(lambda i, m, s: (lm.forward(given, i, HEADS, attention_mask=m, segment_ids=s),
                                       lm.loss(given, i, HEADS, attention_mask=m, segment_ids=s)))  # fmt: skip
        logits, loss = run(jnp.asarray(ids), jnp.asarray(BAD), jnp.asarray(BAD_SEGMENTS))
    assert np.isnan(loss)
    assert np.isnan(logits[1:]).all()
    assert np.asarray(logits[0]) == pytest.approx(lm.forward(params, ids[0], HEADS), abs=1e-5)


@pytest.mark.parametrize("name", ["no_blocks", "later"])
def test_compiled_whole_it_computes_the_same_and_makes_nan_of_what_eager_code_refuses(name: str):
    config = dataclasses.replace(VARIANTS[name], n_layers=min(1, VARIANTS[name].n_layers))
    model, ids = torch_model(config), torch.from_numpy(random_ids(config, (5, 12)))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    good = torch.from_numpy(np.tile(MASK, (3, 1))[:5])
    segments = torch.from_numpy(np.tile(SEGMENTS, (3, 1))[:5])
    expected = model(ids, labels=ids, attention_mask=good, segment_ids=segments)
    found = compiled(ids, labels=ids, attention_mask=good, segment_ids=segments)
    assert torch.allclose(found["logits"], expected["logits"])
    assert torch.allclose(found["loss"], expected["loss"])
    found = compiled(ids, labels=ids, attention_mask=torch.from_numpy(BAD), segment_ids=torch.from_numpy(BAD_SEGMENTS))
    assert found["loss"].isnan()
    assert found["logits"][1:].isnan().all()
    assert torch.allclose(found["logits"][0], model(ids[:1])["logits"][0])


def test_functional_transforms_see_through_masks():
    """Gradients of each example of a padded batch, as `torch.func` makes them."""
    model, ids, mask = torch_model(HEADS), torch.from_numpy(random_ids(HEADS)), torch.from_numpy(MASK)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p: dict[str, Tensor], row: Tensor, its_mask: Tensor) -> Tensor:
        given = {"labels": row[None], "attention_mask": its_mask[None]}
        return torch.func.functional_call(model, p, (row[None],), given)["loss"]

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, ids, mask)
    for row in range(2):
        model.zero_grad()
        model(ids[row : row + 1], labels=ids[row : row + 1], attention_mask=mask[row : row + 1])["loss"].backward()
        assert all(torch.allclose(grads[name][row], p.grad) for name, p in model.named_parameters()), row


# --- Training and evaluation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
def test_training_and_evaluation_isolate_documents_unless_joined(joined: bool, monkeypatch: pytest.MonkeyPatch):
    tokens = np.tile([256, 1, 2], 40)
    data: Any = SimpleNamespace(training_tokens=tokens, held_out_tokens=tokens, tokenizer=ByteTokenizer())
    options = TrainingOptions(join_documents=joined)
    job = Job.of(Run(Path("run"), {}), dataclasses.replace(HEADS, vocab_size=257), options, data)
    for one in (job.samples.batch([0]), job.held_out[0]):
        sample = {name: array.reshape(-1) for name, array in one.items()}
        assert ("segment_ids" in sample) is not joined
        if not joined:
            assert (np.diff(sample["segment_ids"]) == (sample["input_ids"][1:] == 256)).all()


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
def test_eval_reads_documents_as_training_did(joined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = dataclasses.replace(HEADS, vocab_size=257)
    params = lm.init_params(config, np.random.default_rng(0))
    save_params(tmp_path / "model", params, config, ByteTokenizer(), join_documents=joined)
    (tmp_path / "text.txt").write_text("one document\n")
    seen: list[Any] = []

    def recorded(tokens: Any, context: int, end_of_text: int | None) -> TokenWindows:
        seen.append(end_of_text)
        return evaluation_windows(tokens, context, end_of_text)

    monkeypatch.setattr("tmm_lab.data.dataset.evaluation_windows", recorded)
    assert main(["eval", str(tmp_path / "model"), "--text", str(tmp_path / "text.txt"), "--device", "cpu"]) == 0
    assert seen == [None if joined else 256]


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # in array_api_compat
def test_the_definition_compiles_whole():
    config = dataclasses.replace(HEADS, vocab_size=11)
    params = {name: torch.asarray(p) for name, p in lm.init_params(config, np.random.default_rng(0)).items()}
    ids = torch.arange(8)[None]
    compiled = torch.compile(lm.loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(params, ids, config, labels=ids), lm.loss(params, ids, config, labels=ids))
    assert lm.loss(params, ids, config, labels=torch.full_like(ids, lm.IGNORED)).isnan()
