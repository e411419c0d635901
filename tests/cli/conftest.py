"""Fixtures: a small model, a text, and a command that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support import commands
from support.commands import SMALL

from tmm_adapters.pretrained import save_params
from tmm_adapters.tokenizers import ByteTokenizer
from tmm_core import lm


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_params(tmp_path / "model", lm.init_params(SMALL, np.random.default_rng(0)), SMALL, ByteTokenizer())
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text("the head mixes every token with those before it. " * 60)
    return tmp_path / "words.txt"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return partial(commands.refused, capsys)
