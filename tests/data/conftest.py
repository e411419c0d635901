"""A text of several documents, and the tokenizers that there are."""

import pytest
from support.texts import prose, strings

from tmm_adapters.tokenizers import ByteTokenizer, train_tokenizer
from tmm_lab.data.text import write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    documents = [prose(i, 20 + i) for i in range(60)]
    return write_text(documents, tmp_path_factory.mktemp("text") / "text")


@pytest.fixture(scope="module")
def subwords(text):
    return train_tokenizer(strings(text.whole()), 400)


@pytest.fixture(params=["bytes", "subwords"])
def tokenizer(request, subwords):
    return ByteTokenizer() if request.param == "bytes" else subwords
