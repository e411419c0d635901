"""What documents cost adds up to what the held-out text costs, and falls to the document it belongs to."""

from __future__ import annotations

import numpy as np
import pytest
from support.architectures import small_config

from tmm_adapters.tokenizers import ByteTokenizer
from tmm_lab.compare.documents import document_bytes, document_nats
from tmm_lab.data.dataset import TokenWindows, evaluation_windows
from tmm_lab.data.text import write_text
from tmm_lab.data.tokens import write_tokens
from tmm_lab.evaluation.measure import held_out_nats
from tmm_lab.evaluation.torch_model import TorchModel

TEXTS = ["first", "the second document", "ö", "and the last one of them"]


@pytest.fixture
def part(tmp_path):
    return write_text(TEXTS, tmp_path / "text").whole()


@pytest.fixture
def tokens(part, tmp_path):
    return write_tokens(part, ByteTokenizer(), tmp_path / "tokens.npy")


@pytest.fixture
def model():
    architecture, config = small_config("tmm", vocab_size=257, max_len=16)
    return architecture.torch_model(config, seed=0).eval(), config


def test_documents_have_their_bytes(part):
    assert document_bytes(part).tolist() == [len(text.encode()) for text in TEXTS]


@pytest.mark.parametrize("stride", [1, 5, 16])
def test_documents_add_up_to_the_text(model, tokens, stride):
    torch_model, config = model
    windows = TokenWindows(tokens, 16, None, stride=stride)
    nats = document_nats(torch_model, windows, ByteTokenizer.end_of_text, batch=3)
    assert nats.shape == (len(TEXTS),)
    assert nats.sum() == pytest.approx(held_out_nats(TorchModel(torch_model, config), windows, batch=3), rel=1e-5)


def test_a_token_is_paid_for_by_its_document(model, tokens):
    """A head that finds one byte more likely makes the documents cheaper that have it, and no other cheaper."""
    torch_model, _ = model
    windows = evaluation_windows(tokens, 16, None)
    before = document_nats(torch_model, windows, ByteTokenizer.end_of_text, batch=3)

    class Hinted(type(torch_model)):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            found["logits"][..., "ö".encode()[0]] += 5.0
            return found

    torch_model.__class__ = Hinted
    after = document_nats(torch_model, windows, ByteTokenizer.end_of_text, batch=3)
    assert np.flatnonzero(after < before).tolist() == [TEXTS.index("ö")]
