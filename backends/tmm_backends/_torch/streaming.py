"""Streams of Torch tensors: by an engine that shares their memory, or by the definition; compiled, as one operation.

A compiled program sees a stream's handle only, a tensor by which the operation finds the stream when it runs. So it
sees no number that changes from token to token or from text to text, and is compiled once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from tmm_core.backend import (
    ExchangedStream,
    InputError,
    InputTypeError,
    LayerStream,
    Streamer,
    StreamLayer,
    StreamState,
    plain_memory,
)

__all__ = ["TensorStream", "handle_of", "record_step", "recording", "stream_by"]

_numbers = itertools.count()
_states: weakref.WeakValueDictionary[int, StreamState] = weakref.WeakValueDictionary()


class TensorStream(ExchangedStream):
    """The streams of a layer of tensors, in caches that may be written to outside of inference mode, too."""

    def step(self, cache: Tensor, at: int, position: int, padding: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output for a token, and the cache after it."""
        if cache.is_inference():
            with torch.inference_mode(False):
                cache = cache.clone()
        return super().step(cache, at, position, padding, x)


def stream_by(engine: Streamer, layer: StreamLayer) -> LayerStream:
    """Return the streams of a layer of tensors; an engine of NumPy arrays steps in memory that it shares with them."""
    if recording():
        raise InputError("a plan keeps filters as they are while it is made: make it outside of compiled programs")
    plain = _tokens_of(layer)
    if engine.owns(layer.lags):
        return TensorStream(layer, engine.stream(layer), plain, lambda y: y)
    if engine.owns(torch.empty(0, dtype=layer.lags.dtype, device="cpu").numpy()):
        inner = engine.stream(layer.handed_to(lambda a: plain_memory(a).numpy()))
        return ExchangedStream(layer, inner, _arrays_by(plain), torch.from_numpy)
    inner = engine.stream(layer.handed_to(engine.receive))
    return ExchangedStream(layer, inner, lambda x: engine.receive(plain(x)), torch.utils.dlpack.from_dlpack)


def _tokens_of(layer: StreamLayer) -> Callable[[Tensor], Tensor]:
    """Return what makes of a layer's tokens tensors whose memory may be read, and refuses those that it cannot."""
    device = layer.lags.device

    def plain(x: Tensor) -> Tensor:
        if x.layout is not torch.strided:
            raise InputTypeError("x must be a dense tensor, and is sparse: convert it by to_dense()")
        if x.device != device:
            raise InputError(f"expected arrays on one device, got x on {x.device} and w on {device}: move one")
        _refuse_derivatives(x)
        memory: Tensor = plain_memory(x, "x")
        return memory

    return plain


def _arrays_by(plain: Callable[[Tensor], Tensor]) -> Callable[[Tensor], object]:
    """Return what makes of a tensor the NumPy array of its memory."""

    def array(x: Tensor) -> object:
        if forward_ad._current_level >= 0:
            _refuse_derivatives(x)
        try:
            if x.untyped_storage().nbytes() >= x.nbytes:
                return x.numpy()
        except (RuntimeError, TypeError):  # not plain memory here; to ask before would take each step's time
            pass
        return plain(x).numpy()

    return array


def _refuse_derivatives(x: Tensor) -> None:
    """Refuse tokens that derivatives or a batch are kept for, since caches are written over."""
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "streaming has no gradients, and x requires one: call it inside torch.no_grad(), or pass x.detach()"
        )
    tangent = forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call]
    if tangent is not None or torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise InputError(
            "streaming has no derivatives and no vmap, for caches are written over, and x belongs to one: pass plain "
            "tensors, and rows as the stream's batch"
        )


def recording() -> bool:
    """Return whether operations are recorded for a program: by the compiler, by `make_fx` or by TorchScript."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    proxies = torch._C._TorchDispatchModeKey.PROXY
    return _python_dispatch._is_in_torch_dispatch_mode and torch._C._get_dispatch_mode(proxies) is not None


def handle_of(state: StreamState) -> Tensor:
    """Return a tensor by which the recorded operation finds a state."""
    number = next(_numbers)
    _states[number] = state
    with torch.inference_mode(False):  # a program that changes it may run outside of that mode
        return torch.tensor(number, device="cpu")


def record_step(handle: Tensor, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Record a step in a compiled program, whose tokens are checked while it is compiled."""
    if x.dtype != dtype or x.shape != shape:
        raise InputError(f"x must be {dtype} of the shape {shape}, and is {x.dtype} of {tuple(x.shape)}")
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError("streaming has no gradients, and x requires one: compile it inside torch.no_grad()")
    y: Tensor = step_op(handle, x.detach())
    return y


# The handle counts as changed, so that steps keep their order and none is left out.
@torch.library.custom_op("tmm_core::stream_step", mutates_args=("handle",))
def step_op(handle: Tensor, x: Tensor) -> Tensor:
    """Step a stream that a compiled program holds."""
    state = _states.get(int(handle))
    if state is None:
        raise InputError("the stream of this compiled program is gone: keep its state for as long as the program runs")
    y: Tensor = state.steps.step(state, x)
    return y


@step_op.register_fake
def _(handle: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape)
