"""What a causal Toeplitz product is measured against: what people write today, right off the documentation.

A rival is given NumPy arrays `w` of shape (heads, n) and `x` of shape (batch, n, channels), float32, and returns the
product as a callable without arguments: what is in the caller's hands already (tensors, a dense matrix, compiled code)
is made beforehand, and all else, the filters' spectra and the output included, within each call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import tmm_core

from .process import wanted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MOST_DENSE", "RIVALS", "dense", "jnp_fft", "scipy_fftconvolve", "torch_fft", "torch_fft_product"]

Floats = NDArray[np.float32]
Product = Callable[[], Any]

MOST_DENSE = 8192
"""The longest sequence that a dense matrix is measured at: four heads take 1 GiB there."""


def torch_fft_product(w: Tensor, x: Tensor) -> Tensor:
    """Return the product by `torch.fft`, of two transforms along time, padded to twice the length."""
    import torch

    n = x.shape[1]
    x = x.reshape(*x.shape[:2], w.shape[0], -1)  # (b, n, h, d/h)
    spectra = torch.fft.rfft(w, n=2 * n).T[..., None]  # (n + 1, h, 1)
    y: Tensor = torch.fft.irfft(torch.fft.rfft(x, n=2 * n, dim=1) * spectra, n=2 * n, dim=1)[:, :n]
    return y.flatten(2)  # (b, n, d), a view


def torch_fft(w: Floats, x: Floats) -> Product:
    """Return the product by `torch.fft`."""
    with wanted("torch"):
        import torch

    filters, signals = torch.from_numpy(w), torch.from_numpy(x)
    return lambda: torch_fft_product(filters, signals)


def jnp_fft(w: Floats, x: Floats) -> Product:
    """Return the product by `jax.numpy.fft` under jit, compiled by its first call."""
    with wanted("jax"):
        import jax
        import jax.numpy as jnp

    n, shape = x.shape[1], x.shape

    @jax.jit
    def product(w: jax.Array, x: jax.Array) -> jax.Array:
        x = x.reshape(*shape[:2], w.shape[0], -1)
        spectra = jnp.fft.rfft(w, n=2 * n).T[..., None]
        y = jnp.fft.irfft(jnp.fft.rfft(x, n=2 * n, axis=1) * spectra, n=2 * n, axis=1)[:, :n]
        return y.reshape(shape)

    filters, signals = jax.device_put((w, x), jax.devices("cpu")[0])
    return lambda: product(filters, signals).block_until_ready()


def dense(w: Floats, x: Floats) -> Product:
    """Return the product with the dense matrix, made beforehand, in Torch."""
    with wanted("torch"):
        import torch

    heads, n = w.shape
    if n > MOST_DENSE:
        raise NotImplementedError(f"a dense matrix of {n} rows is more than a user would hold")
    matrices = torch.from_numpy(tmm_core.causal_toeplitz(w, n))  # (h, n, n)
    signals = torch.from_numpy(x)
    if heads == 1:
        return lambda: matrices[0] @ signals
    parts = signals.reshape(*x.shape[:2], heads, -1).transpose(1, 2)  # (b, h, n, d/h)
    return lambda: (matrices @ parts).transpose(1, 2).flatten(2)


def scipy_fftconvolve(w: Floats, x: Floats) -> Product:
    """Return the product by `scipy.signal.fftconvolve` along time, on as many threads as the others."""
    with wanted("scipy"):
        import scipy.fft
        import scipy.signal

    heads, n = w.shape
    signals = x.reshape(*x.shape[:2], heads, -1)  # (b, n, h, d/h)
    filters = np.ascontiguousarray(w.T)[None, :, :, None]  # (1, n, h, 1)
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))

    def product() -> Floats:
        with scipy.fft.set_workers(threads):
            y: Floats = scipy.signal.fftconvolve(signals, filters, axes=1)[:, :n].reshape(x.shape)
        return y

    return product


RIVALS: dict[str, Callable[[Floats, Floats], Product]] = {
    "torch.fft": torch_fft,
    "jnp.fft": jnp_fft,
    "dense T @ x": dense,
    "scipy.signal.fftconvolve": scipy_fftconvolve,
}
"""By the name that tables print."""
