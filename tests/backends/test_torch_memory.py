"""What a tensor says of itself holds for engines that read memory: flags, zeros without memory, strides, classes."""

import numpy as np
import pytest
import torch
from support.requirements import import_or_skip
from torch.utils._pytree import tree_map

import tmm_core
from tmm_core import causal_toeplitz_correlate, causal_toeplitz_matmul, mix_tokens
from tmm_core.backend import plain_memory, share
from tmm_core.errors import InputError, InputTypeError

ENGINES = ["array_api", "numpy", "numba", "torch", "jax"]


class Named(torch.Tensor):
    """A subclass that adds nothing."""


class Wrapper(torch.Tensor):
    """A tensor that stands for another one, and has no memory of its own, as distributed tensors do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda a: a.inner if isinstance(a, cls) else a, (args, kwargs or {}))
        return tree_map(lambda a: cls(a) if isinstance(a, torch.Tensor) else a, func(*args, **kwargs))


WAYS = {
    "negative": lambda a: torch._neg_view(-a),
    "imaginary": lambda a: torch.complex(a, -a).conj().imag if a.dtype in (torch.float32, torch.float64) else a,
    "conjugate": lambda a: a.conj().resolve_conj().conj(),
    "zero": lambda a: torch._efficientzerotensor(tuple(a.shape), dtype=a.dtype),
    "overlapping": lambda a: a[..., :1].expand(a.shape),
    "strided": lambda a: torch.stack([a, a], -1)[..., 1],
    "subclass": lambda a: a.as_subclass(Named),
    "parameter": lambda a: torch.nn.Parameter(a, requires_grad=a.is_floating_point() or a.is_complex()),
}
"""Tensors that are not what lies in their memory one number after the other, of given values or of zeros."""


def plain(a):
    """Return the same values in memory of their own."""
    return torch.tensor(a.detach().clone().tolist(), dtype=a.dtype)


def operations(engine, dtype):
    """Yield functions with an engine behind them, and arguments: all that public functions let it read."""
    w, x, g, bias = (torch.randn(*shape, dtype=dtype) for shape in ((2, 3), (2, 7, 4), (2, 7, 4), (2, 16)))
    ids = torch.tensor([[0, 0, 1, 1, 1, 4, 4], [0] * 7])

    def multiply(w, x, ids):
        return causal_toeplitz_matmul(w, x, adjoint=True, segment_ids=ids, backend=engine)

    def relate(x, g, ids):
        return causal_toeplitz_correlate(x, g, lags=3, heads=2, segment_ids=ids, backend=engine)

    def mix(w, x, bias):
        return mix_tokens(w, x, bias, method="direct", backend=engine)

    def stream(w, bias, prompt, padding, token, rows):
        plan = tmm_core.stream_plan(w, 16, bias=bias, backend=engine)
        state = tmm_core.stream_init(plan, (2,), 4)
        y, state = tmm_core.stream_prefill(plan, state, prompt, padding=padding)
        z, state = tmm_core.stream_step(plan, state, token)
        state = tmm_core.stream_reorder(state, rows)
        last, _ = tmm_core.stream_prefill(plan, state, prompt)
        return torch.cat([y, z[:, None], last], 1)

    yield multiply, (w, x, ids)
    yield relate, (x, g, ids)
    if engine != "jax":  # compiles for seconds what is handed over in the same way
        yield mix, (w, x, bias)
        yield stream, (w, bias, x, torch.tensor([2, 1]), x[:, 3].clone(), torch.tensor([1, 0]))


@pytest.mark.parametrize(
    ("way", "engine"),
    [(way, engine) for way in WAYS for engine in ENGINES if (way, engine) != ("conjugate", "numba")],  # of reals only
)
@torch.no_grad()
def test_values_are_what_a_tensor_says(way, engine):
    complex_numbers = way == "conjugate"
    if engine != "array_api":
        import_or_skip(engine)
    if engine == "jax":
        import_or_skip("jax").config.update("jax_enable_x64", True)
    torch.manual_seed(0)
    for function, arguments in operations(engine, torch.complex128 if complex_numbers else torch.float64):
        for i, argument in enumerate(arguments):
            said = WAYS[way](argument)
            found, expected = (function(*arguments[:i], a, *arguments[i + 1 :]) for a in (said, plain(said)))
            torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.complex64, torch.int32])
@pytest.mark.parametrize("way", WAYS)
def test_other_libraries_get_the_values_that_a_tensor_has(way, dtype):
    said = WAYS[way]((10 * torch.randn(3, 4)).to(dtype))
    np.testing.assert_array_equal(share(said, np).astype(complex), plain(said).to(torch.complex64).numpy())
    memory = plain_memory(said)
    assert memory.data_ptr()
    assert (memory.is_neg(), memory.is_conj(), memory.requires_grad) == (False, False, False)


@pytest.mark.parametrize("engine", ENGINES[:-1])
def test_cotangents_are_what_they_say(engine):
    if engine != "array_api":
        import_or_skip(engine)
    torch.manual_seed(0)
    w, x = torch.randn(2, 3, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    y = mix_tokens(w, x, backend=engine)
    for way in (*WAYS, "sparse"):
        said = torch.randn(5, 4).to_sparse() if way == "sparse" else WAYS[way](torch.randn(5, 4)).detach()
        dense = plain(said.to_dense())
        found, expected = (torch.autograd.grad(y, (w, x), g, retain_graph=True) for g in (said, dense))
        torch.testing.assert_close(found, expected)


def test_gradients_that_are_zero_without_memory():
    w, x = torch.randn(1, 64, requires_grad=True), torch.randn(2, 64, 32, requires_grad=True)
    torch.sgn(mix_tokens(w, x)).sum().backward()
    assert not w.grad.any()
    assert not x.grad.any()


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.parametrize("engine", ENGINES[:-1])
def test_what_has_no_memory_is_refused(engine):
    if engine != "array_api":
        import_or_skip(engine)
    w, x = torch.randn(2, 3), torch.randn(5, 4)
    plan = tmm_core.stream_plan(w, 8, backend=engine)
    freed, token, cotangent = x.clone(), x[:1].clone(), x.clone()
    for tensor in (freed, token, cotangent):
        tensor.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="x must have its entries in memory, and its storage has been freed"):
        causal_toeplitz_matmul(w, freed, backend=engine)
    with pytest.raises(InputError, match="x must have its entries in memory, and its storage has been freed"):
        tmm_core.stream_step(plan, tmm_core.stream_init(plan, (1,), 4), token)
    with pytest.raises(InputError, match="a tensor must have its entries in memory"):
        causal_toeplitz_matmul(w, x.clone().requires_grad_(), backend=engine).backward(cotangent)
    with pytest.raises(InputTypeError, match="a Wrapper has none"):
        tmm_core.stream_step(plan, tmm_core.stream_init(plan, (1,), 4), Wrapper(x[:1]))
    with pytest.raises(InputTypeError, match="x must have all its entries, and is a masked array"):
        causal_toeplitz_matmul(w, torch.masked.masked_tensor(x, x > 0), backend=engine)
    wrapped = causal_toeplitz_matmul(w, Wrapper(x), backend=engine)
    torch.testing.assert_close(wrapped.inner, causal_toeplitz_matmul(w, x, backend=engine))


@pytest.mark.parametrize("engine", ENGINES[:-1])
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16, torch.float64])
def test_the_default_dtype_changes_nothing(default, engine):
    if engine != "array_api":
        import_or_skip(engine)
    torch.manual_seed(0)
    w, x, bias, ids = torch.randn(2, 90), torch.randn(2, 90, 4), torch.randn(2, 99), torch.arange(90) // 50
    x[1, 80, 0] = torch.nan

    def compute():
        plan = tmm_core.stream_plan(w, 90, bias=bias, softplus=True, mean=True, backend=engine)
        y, state = tmm_core.stream_prefill(plan, tmm_core.stream_init(plan, (2,), 4), x[:, :9])
        for t in range(9, 90):
            y, state = tmm_core.stream_step(plan, state, x[:, t])
        mixed = mix_tokens(w, x, bias, softplus=True, mean=True, segment_ids=ids, backend=engine)
        related = causal_toeplitz_correlate(1e30 * x, 1e-30 * x, lags=90, heads=2, backend=engine)
        with tmm_core.use_backend(engine):
            return y, mixed, related, tmm_core.causal_toeplitz_inverse(w, 20), tmm_core.causal_toeplitz(w, 3)

    expected = compute()
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = compute()
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
