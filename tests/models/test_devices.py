"""Devices by name: one choice for training, evaluation and whoever loads a model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.requirements import import_or_skip

from tmm_adapters.devices import torch_device

torch = import_or_skip("torch")


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(False, False, "cpu"), (True, False, "cuda"), (False, True, "mps"), (True, True, "cuda")],
)
def test_auto_is_an_accelerator_where_there_is_one(
    cuda: bool, mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: mps))
    assert torch_device("auto") == torch.device(chosen)
    assert torch_device("cpu") == torch.device("cpu")
    for name, there in (("cuda", cuda), ("cuda:1", cuda), ("mps", mps)):
        if there:
            assert torch_device(name) == torch.device(name)
        else:
            with pytest.raises(ValueError, match=f"device '{name}' is not available to PyTorch.*choose auto or cpu"):
                torch_device(name)


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="device 'abacus' is not a device of PyTorch: choose auto, cpu, cuda or mps"):
        torch_device("abacus")
