"""What each document of the held-out text costs a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tmm_adapters.files import add_sum, atomic_write, check, digest
from tmm_adapters.pretrained import load_model
from tmm_core.lm import IGNORED

from ..data.dataset import TokenWindows, evaluation_windows
from ..data.text import Part
from ..progress import waiting
from ..training.data import Data
from ..training.runs import Run

__all__ = ["costs_of", "document_bytes", "document_nats"]


def document_bytes(part: Part) -> NDArray[np.int64]:
    """Return the bytes of each document of a text, (documents,)."""
    sizes = [0]
    for text, ends_document in part.pieces():
        sizes[-1] += len(text.encode())
        if ends_document:
            sizes.append(0)
    return np.asarray(sizes[:-1] if sizes[-1] == 0 else sizes)


@torch.inference_mode()
def document_nats(model: Any, windows: TokenWindows, end_of_text: int, *, batch: int) -> NDArray[np.float64]:
    """Return the cross-entropy (nats) of each document, (documents,), summed over its tokens and its end.

    Parameters
    ----------
    model : nn.Module
        As `Architecture.torch_model` describes it, in evaluation mode.
    windows : TokenWindows
        The held-out text, each of whose tokens is predicted once.
    end_of_text : int
        The id that ends documents.
    batch : int
        Windows computed at a time.
    """
    document = np.cumsum(windows.tokens[:] == end_of_text) - 1  # of the token after each
    nats = np.zeros(int(document[-2]) + 1)
    device = next(model.parameters()).device
    with waiting("measuring documents", len(windows)) as advance:
        for first in range(0, len(windows), batch):
            numbers = range(first, min(first + batch, len(windows)))
            rows = [windows[number] for number in numbers]
            tensors = {name: torch.from_numpy(np.stack([row[name] for row in rows])).to(device) for name in rows[0]}
            targets = tensors.pop("targets")
            logits = model(**tensors)["logits"].float()
            costs = torch.nn.functional.cross_entropy(
                logits.mT, targets, ignore_index=IGNORED, reduction="none"
            )  # (b, n)
            for number, row in zip(numbers, costs.double().cpu().numpy(), strict=True):
                start = windows.start(number)
                np.add.at(nats, document[start : start + windows.context], row)
            advance(len(rows))
    return nats


def costs_of(run: Run, data: Data, *, batch: int, device: str) -> NDArray[np.float64]:
    """Return the cross-entropy (nats) of each held-out document under the model of a run, measured once."""
    path = run.folder / "documents.npy"
    if not path.is_file():
        model, _ = load_model(run.model, device=device)
        windows = evaluation_windows(data.held_out_tokens, run.parsed().config.max_len, None)
        measured = document_nats(model.eval(), windows, data.tokenizer.end_of_text, batch=batch)
        with atomic_write(path) as file:
            np.save(file, measured)
            file.flush()
            add_sum(path, digest(Path(file.name)))
    check(path)
    found: NDArray[np.float64] = np.load(path)
    return found
