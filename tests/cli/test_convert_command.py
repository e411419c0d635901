"""`tmm convert`: checkpoints of the research code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.commands import REFERENCE

from tmm_adapters.pretrained import read_config, read_tensors, write_tensors
from tmm_adapters.research_code import from_research_code
from tmm_lab.cli import main


def test_convert_reads_a_reference_and_writes_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    source = REFERENCE / "softplus_mean_heads4.safetensors"
    assert "mean=" in refused("convert", source, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert main(["convert", str(source), str(tmp_path / "model"), "--mean"]) == 0
    config, params = from_research_code(read_tensors(source), mean=True)
    assert read_config(tmp_path / "model") == config
    written = read_tensors(tmp_path / "model" / "model.safetensors")
    assert all((written[name] == params[name]).all() for name in params)
    said, told = capsys.readouterr()
    assert "4 heads, context" in said
    assert f"{sum(array.size for array in params.values()):,} parameters" in said
    assert "tmm generate and tmm eval need one" in told, "else it would be a surprise later"
    assert "is not empty" in refused("convert", source, tmp_path / "model", "--mean")


def test_convert_refuses_what_it_does_not_know(tmp_path: Path, refused: Callable[..., str]) -> None:
    write_tensors(tmp_path / "other.safetensors", {"transformer.wte": np.zeros((2, 2), np.float32)})
    assert "transformer.wte" in refused("convert", tmp_path / "other.safetensors", tmp_path / "model")
    (tmp_path / "pickle.pt").write_bytes(b"\x80\x04K\x01.")
    assert "is not a whole safetensors file" in refused("convert", tmp_path / "pickle.pt", tmp_path / "model")
    assert "there is no file" in refused("convert", tmp_path / "none", tmp_path / "model")
