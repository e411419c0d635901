"""What a PyTorch language model costs: parameters, operations, memory and time, measured alike for every architecture.

"At equal cost" has several meanings, which contradict each other, so comparisons report each of these accounts. All
take the model itself, as `tmm_adapters.architecture.Architecture.torch_model` makes it, and random tokens, which cost
what others do.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tmm_adapters.torch.generation import ContinuedModel

from ..architectures.flops import Flops
from .flop_counter import flops_of

__all__ = [
    "Parameters",
    "Speeds",
    "TrainingStep",
    "cache_bytes",
    "count_flops",
    "count_parameters",
    "peak_bytes",
    "speeds",
    "stored_bytes",
]


@dataclass(frozen=True)
class Parameters:
    """Numbers that a model is made of."""

    total: int
    without_embeddings: int
    """Without the tables that tokens and positions are looked up in, and without the output projection."""


def count_parameters(model: nn.Module, vocab_size: int) -> Parameters:
    """Return how many parameters a model has, on whichever device, `meta` too; tied ones count once.

    Parameters
    ----------
    model : nn.Module
        Its last linear map to `vocab_size` numbers is the output projection.
    vocab_size : int
        Number of token ids.

    Examples
    --------
    >>> count_parameters(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3), nn.Linear(3, 10)), 10)
    Parameters(total=95, without_embeddings=15)
    """
    tables: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    maps = [module for module in model.modules() if isinstance(module, nn.Linear)]
    tables += [module for module in maps if module.out_features == vocab_size][-1:]
    outside = {id(parameter): parameter.numel() for module in tables for parameter in module.parameters()}
    total = sum(parameter.numel() for parameter in model.parameters())
    return Parameters(total, total - sum(outside.values()))


def count_flops(model: nn.Module, vocab_size: int, *, batch: int, n: int) -> Flops:
    """Return the floating-point operations a token, counted as they are dispatched.

    Matrix products, convolutions, attention and Fourier transforms, of 5 N log2 N for N complex numbers and half of it
    for real ones, count; what is done element by element does not. A causal Toeplitz product counts as the transforms
    of length n that it takes, one for each filter and one there and back for each channel and row, whichever engine
    computes it.

    Parameters
    ----------
    model : nn.Module
        On a device that computes.
    vocab_size : int
        Number of token ids.
    batch, n : int
        Texts, and tokens of each. What is computed once for all texts, such as filters, is shared among their tokens.
    """
    ids, targets = _tokens(model, vocab_size, batch, n)
    forward = flops_of(lambda: model(ids, targets=targets))
    training = flops_of(lambda: model(ids, targets=targets)["loss"].backward())
    model.zero_grad()
    return Flops(forward / ids.numel(), training / ids.numel())


def stored_bytes(model: nn.Module, vocab_size: int, *, batch: int, n: int) -> float:
    """Return the bytes a token that the forward pass keeps for the backward pass, parameters and tokens aside.

    A tensor counts with all of the memory that it keeps alive; memory that several keep counts once.
    """
    ids, targets = _tokens(model, vocab_size, batch, n)
    given = {tensor.untyped_storage().data_ptr() for tensor in (ids, targets, *model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}  # alive, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(ids, targets=targets)["loss"]
    del loss
    return sum(storage.nbytes() for address, storage in kept.items() if address not in given) / ids.numel()


def peak_bytes(model: nn.Module, vocab_size: int, *, batch: int, n: int) -> int:
    """Return the most bytes that PyTorch's tensors take at once during a step of training with AdamW.

    Parameters, gradients and both moments are among them. What engines that are not PyTorch's take meanwhile is not
    seen.
    """
    step = TrainingStep(model, vocab_size, batch, n)
    step()  # AdamW makes its moments in the first
    moments = [value for state in step.optimizer.state.values() for value in state.values()]
    live = _LiveBytes([*model.parameters(), *model.buffers(), *moments])
    with live:
        step()
    return live.most


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of tensors that are alive, and the most that were at once."""

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        """Count tensors that are there already."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.most: int = 0
        self._known: set[int] = set()
        for tensor in tensors:
            self._add(tensor)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor):
                self._add(tensor)
        return results

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._remove, storage._cdata, storage.nbytes())

    def _remove(self, address: int, count: int) -> None:
        self._known.discard(address)
        self.now -= count


def cache_bytes(model: nn.Module, vocab_size: int, *, n: int) -> int:
    """Return the bytes that are kept of a text from one token to the next: what another text adds to a batch.

    The most for a text of up to `n` tokens: after its first, when an exact stream holds a place for each to come, or
    after its last, when each has left keys and values.
    """
    prompt = _tokens(model, vocab_size, 2, n)[0]

    def kept(batch: int, tokens: int) -> int:
        reader = _Reader(model, batch, n)
        for part in (prompt[:batch, : tokens - 1], prompt[:batch, tokens - 1 : tokens]):
            if part.numel():
                reader.extend(part)  # the last by itself: what is cut out of a prompt's cache keeps all of it alive
        return sum(dict(_memory_of(reader.state, set())).values())

    return max(kept(2, tokens) - kept(1, tokens) for tokens in (1, n))


@dataclass(frozen=True)
class Speeds:
    """Tokens a second of all texts of a batch, medians over turns."""

    training: float
    """Forward pass, backward pass and a step of AdamW."""
    prefill: float
    """Reading of prompts."""
    decoding: float
    """One token after the other, after prompts."""


def speeds(
    models: Mapping[str, nn.Module], vocab_size: int, *, batch: int, n: int, steps: int = 16, turns: int = 5
) -> dict[str, Speeds]:
    """Return the speeds of models by name, timed in turns, so that a change of the machine's speed meets all.

    Parameters
    ----------
    models : mapping of str to nn.Module
        The models, whose parameters training changes.
    vocab_size : int
        Number of token ids.
    batch, n : int
        Texts, and tokens of each.
    steps : int
        Of the `n` tokens, the last that are read one after the other; all but the first where `n` is as small.
    turns : int
        How often each is timed, after one turn that is not.
    """
    steps = min(steps, n - 1)
    training = {name: TrainingStep(model, vocab_size, batch, n) for name, model in models.items()}
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
    for turn in range(turns + 1):
        for name, model in models.items():
            prompt = _tokens(model, vocab_size, batch, n)[0]
            took = (
                _seconds(training[name], prompt),
                _seconds(partial(_prefill, model, prompt), prompt),
                _decoding_seconds(_Reader(model, batch, n), prompt, steps),
            )
            if turn:
                seconds[name].append(took)
    tokens = (batch * n, batch * n, batch * steps)
    return {
        name: Speeds(
            *(count / statistics.median(times) for count, times in zip(tokens, zip(*took, strict=True), strict=True))
        )
        for name, took in seconds.items()
    }


class _Reader:
    """Texts that a model reads from left to right."""

    def __init__(self, model: nn.Module, batch: int, capacity: int) -> None:
        self._model = cast(ContinuedModel, model)
        self._plan = self._model.stream_plan(capacity)
        self.state = self._model.stream_init(self._plan, batch)

    @torch.inference_mode()
    def extend(self, ids: Tensor) -> None:
        """Take tokens (b, t)."""
        if ids.shape[1] == 1:
            _, self.state = self._model.stream_step(self._plan, self.state, ids[:, 0])
        else:
            _, self.state = self._model.stream_prefill(self._plan, self.state, ids, None)


class TrainingStep:
    """A step of AdamW on the same `batch` texts of `n` random tokens each time it is called."""

    def __init__(self, model: nn.Module, vocab_size: int, batch: int, n: int) -> None:
        """Train `model`, whose token ids are below `vocab_size`."""
        self._model = model
        self._ids, self._targets = _tokens(model, vocab_size, batch, n)
        self.optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)

    def __call__(self) -> None:
        """Train on them once."""
        self._model(self._ids, targets=self._targets)["loss"].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _prefill(model: nn.Module, prompt: Tensor) -> None:
    _Reader(model, *prompt.shape).extend(prompt)


def _decoding_seconds(reader: _Reader, prompt: Tensor, steps: int) -> float:
    """Return the seconds that the last tokens take, one after the other."""
    reader.extend(prompt[:, :-steps])

    def decode() -> None:
        for t in range(prompt.shape[1] - steps, prompt.shape[1]):
            reader.extend(prompt[:, t : t + 1])

    return _seconds(decode, prompt)


def _seconds(work: Callable[[], object], beside: Tensor) -> float:
    """Return how long work takes on the device of a tensor."""
    if beside.is_cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if beside.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _tokens(model: nn.Module, vocab_size: int, batch: int, n: int) -> tuple[Tensor, Tensor]:
    """Return random tokens and targets, (b, n) each, on the model's device."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (2, batch, n), generator=generator).to(device)
    return ids[0], ids[1]


def _memory_of(value: object, seen: set[int]) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of what the state of a stream holds, except for the model and its engines."""
    if id(value) in seen or isinstance(value, nn.Module | type):
        return
    seen.add(id(value))
    parts: list[object] = []
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(value, np.ndarray):
        whole = value if value.base is None else value.base
        yield value.ctypes.data, getattr(whole, "nbytes", value.nbytes)
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif type(value).__module__.split(".")[0] in ("tmm_core", "tmm_adapters", "tmm_lab", "transformers"):
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        parts = (
            [*vars(value).values()] if hasattr(value, "__dict__") else [getattr(value, name, None) for name in slots]
        )
    for part in parts:
        yield from _memory_of(part, seen)
