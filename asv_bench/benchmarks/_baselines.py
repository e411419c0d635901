"""What a causal Toeplitz product is measured against: what other libraries' documentation says to write.

A baseline of `PRODUCTS` is given NumPy arrays `w` of shape (heads, n) and `x` of shape (batch, n, channels), float32,
and returns the product as a callable without arguments. Tensors, a dense matrix and compiled code are made beforehand;
all else, the filters' spectra and the output included, within each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tmm_core

from . import THREADS, require

Floats = NDArray[np.float32]
Step = Callable[[int], Any]

MOST_DENSE = 8192
"""The longest sequence that a dense matrix is measured at: four heads take 1 GiB there."""


def torch_fft(w: Any, x: Any) -> Any:
    """Return the product of tensors by `torch.fft`: transforms along time, padded to twice the length."""
    fft, n = require("torch").fft, x.shape[1]
    x = x.reshape(*x.shape[:2], w.shape[0], -1)  # (b, n, h, d/h)
    spectra = fft.rfft(w, n=2 * n).T[..., None]  # (n + 1, h, 1)
    return fft.irfft(fft.rfft(x, n=2 * n, dim=1) * spectra, n=2 * n, dim=1)[:, :n].flatten(2)  # (b, n, d), a view


def torch_product(w: Floats, x: Floats) -> Callable[[], Any]:
    """Return the product by `torch.fft`."""
    torch = require("torch")
    filters, signals = torch.from_numpy(w), torch.from_numpy(x)
    return lambda: torch_fft(filters, signals)


def jax_product(w: Floats, x: Floats) -> Callable[[], Any]:
    """Return the product by `jax.numpy.fft` under jit, compiled by its first call."""
    jax = require("jax")
    fft, n, shape = jax.numpy.fft, x.shape[1], x.shape

    @jax.jit  # type: ignore[untyped-decorator]
    def product(w: Any, x: Any) -> Any:
        x = x.reshape(*shape[:2], w.shape[0], -1)
        spectra = fft.rfft(w, n=2 * n).T[..., None]
        return fft.irfft(fft.rfft(x, n=2 * n, axis=1) * spectra, n=2 * n, axis=1)[:, :n].reshape(shape)

    filters, signals = jax.device_put((w, x), jax.devices("cpu")[0])
    return lambda: product(filters, signals).block_until_ready()


def dense(w: Floats, x: Floats) -> Callable[[], Any]:
    """Return the product with the dense matrix, made beforehand, in Torch."""
    torch = require("torch")
    heads, n = w.shape
    if n > MOST_DENSE:
        raise NotImplementedError(f"a dense matrix of {n} rows is more than a user would hold")
    matrices = torch.from_numpy(tmm_core.causal_toeplitz(w, n))  # (h, n, n)
    signals = torch.from_numpy(x)
    if heads == 1:
        return lambda: matrices[0] @ signals
    parts = signals.reshape(*x.shape[:2], heads, -1).transpose(1, 2)  # (b, h, n, d/h)
    return lambda: (matrices @ parts).transpose(1, 2).flatten(2)


def scipy_product(w: Floats, x: Floats) -> Callable[[], Any]:
    """Return the product by `scipy.signal.fftconvolve` along time, on as many threads as the others."""
    fft, signal = require("scipy.fft"), require("scipy.signal")
    signals = x.reshape(*x.shape[:2], len(w), -1)  # (b, n, h, d/h)
    filters = np.ascontiguousarray(w.T)[None, :, :, None]  # (1, n, h, 1)

    def product() -> Any:
        with fft.set_workers(THREADS):
            return signal.fftconvolve(signals, filters, axes=1)[:, : x.shape[1]].reshape(x.shape)

    return product


PRODUCTS: dict[str, Callable[[Floats, Floats], Callable[[], Any]]] = {
    "torch.fft": torch_product,
    "jnp.fft": jax_product,
    "dense T @ x": dense,
    "scipy.signal.fftconvolve": scipy_product,
}
"""By the name that tables print."""


# Token by token: given filters `w` (heads, n) and tokens `x` (n, channels), a history returns the step at time t as a
# callable of t, which puts token t where it belongs and returns its output. Earlier tokens are in place already, so
# that some steps of many can be measured.


def numpy_history(w: Floats, x: Floats) -> Step:
    """Return steps that multiply all of the history so far by the lags, in memory made beforehand, in NumPy."""
    heads, n = w.shape
    backwards = np.ascontiguousarray(w[:, ::-1])
    history = x.reshape(n, heads, -1).swapaxes(0, 1).copy()  # (h, n, d/h)
    if heads == 1:
        lags, rows = backwards[0], history[0]

        def step(t: int) -> Any:
            rows[t] = x[t]
            return np.dot(lags[n - 1 - t :], rows[: t + 1])

        return step
    weights = backwards[:, None]  # (h, 1, n)

    def step_of_heads(t: int) -> Any:
        history[:, t] = x[t].reshape(heads, -1)
        return np.matmul(weights[:, :, n - 1 - t :], history[:, : t + 1]).reshape(-1)

    return step_of_heads


def torch_history(w: Floats, x: Floats) -> Step:
    """Return the same steps in Torch."""
    torch = require("torch")
    heads, n = w.shape
    weights = torch.from_numpy(w).flip(1)[:, None]  # (h, 1, n)
    tokens = torch.from_numpy(x).reshape(n, heads, -1)
    history = tokens.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # (h, n, d/h)

    def step(t: int) -> Any:
        history[:, t] = tokens[t]
        return torch.bmm(weights[:, :, n - 1 - t :], history[:, : t + 1]).flatten()

    def step_of_one(t: int) -> Any:
        history[0, t] = tokens[t, 0]
        return weights[0, 0, n - 1 - t :] @ history[0, : t + 1]

    chosen: Step = torch.inference_mode()(step if heads > 1 else step_of_one)
    return chosen


def joined_history(w: Floats, x: Floats) -> Step:
    """Return steps that join the history and the token by `torch.cat`, head by head, as the research code does."""
    torch = require("torch")
    heads, n = w.shape
    lags = torch.from_numpy(w)
    tokens = torch.from_numpy(x).reshape(1, n, heads, -1).unbind(2)  # heads of (1, n, d/h)

    def step(t: int) -> Any:
        outputs = []
        for head in range(heads):
            cache = torch.cat([tokens[head][:, :t], tokens[head][:, t : t + 1]], dim=1)  # (1, t + 1, d/h)
            outputs.append(lags[head, : t + 1].flip(0) @ cache)
        return torch.cat(outputs, dim=-1).flatten()

    joined: Step = torch.inference_mode()(step)
    return joined


HISTORIES: dict[str, Callable[[Floats, Floats], Step]] = {
    "history in NumPy": numpy_history,
    "history in Torch": torch_history,
    "history joined": joined_history,
}
"""By the name that tables print."""
