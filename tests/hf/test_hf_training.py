"""The model trained by the tools of transformers and PEFT."""

import copy
from pathlib import Path

import pytest
from support.requirements import import_or_skip

import_or_skip("transformers")
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from tmm_adapters.pretrained import load_model

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # its newer name is not that of every version
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]
IDS = torch.arange(9)[None] * 5
ROWS = [{"input_ids": torch.arange(k, k + 16), "labels": torch.arange(k, k + 16)} for k in range(12)]


def train(model, folder: Path, **options) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=3, learning_rate=0.1, optim="sgd", report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=ROWS)
    trainer.train()
    return trainer


def test_accumulation_and_checkpointed_gradients_change_nothing(model, tmp_path: Path):
    other, before = copy.deepcopy(model), copy.deepcopy(model)
    trainer = train(model, tmp_path, per_device_train_batch_size=4)
    calls = []
    other.blocks[0].register_forward_pre_hook(lambda *_: calls.append(None))
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}
    train(other, tmp_path, **options)
    assert len(calls) == 2 * 3 * 2  # each of six batches is computed twice
    for (name, one), another in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, another, msg=name)
    assert not torch.equal(model.embed.weight, before.embed.weight)
    trainer.save_model(str(tmp_path / "saved"))
    again, _ = load_model(tmp_path / "saved", device="cpu")
    assert torch.equal(again(IDS).logits, model.eval()(IDS).logits)


def test_adapters_of_low_rank_are_trained_merged_and_read_again(model, folder: Path, tmp_path: Path):
    peft = import_or_skip("peft")
    config = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=2)
    adapted = peft.get_peft_model(model, config)
    train(adapted, tmp_path, per_device_train_batch_size=4, gradient_checkpointing=True)
    adapted.eval()
    fresh = AutoModelForCausalLM.from_pretrained(folder)
    expected = adapted(input_ids=IDS).logits
    assert not torch.allclose(fresh(IDS).logits, expected)
    written = adapted.generate(input_ids=IDS, max_new_tokens=4, do_sample=False)
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    torch.testing.assert_close(again(input_ids=IDS).logits, expected)
    merged = again.merge_and_unload()
    assert torch.equal(merged.generate(IDS, max_new_tokens=4, do_sample=False), written)
    merged.save_pretrained(tmp_path / "merged")
    for reader in (lambda path: load_model(path, device="cpu")[0], AutoModelForCausalLM.from_pretrained):
        torch.testing.assert_close(reader(tmp_path / "merged")(IDS).logits, expected)
