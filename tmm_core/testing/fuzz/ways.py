"""The ways in which arrays are held that make no difference, and the settings under which calls are made."""

from __future__ import annotations

from importlib import import_module

from ..oracles import Numbers

__all__ = ["SETTINGS", "ways"]

_HELD = {
    "numpy": (
        "np.asfortranarray(a)",
        "np.flip(np.flip(a).copy())",
        "np.repeat(a, 2, axis=-1)[..., ::2]",
        "np.frombuffer(b'x' + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape)",
        "np.swapaxes(np.swapaxes(a, 0, -1).copy(), 0, -1)",
    ),
    "torch": (
        "a.transpose(0, -1).contiguous().transpose(0, -1)",
        "a.repeat_interleave(2, -1)[..., ::2]",
        "torch.cat([a.new_zeros(1), a.reshape(-1)])[1:].reshape(a.shape)",
        "torch.inference_mode()(a.clone)()",
    ),
    "jax": ("jax.device_put(a, jax.devices()[0])",),
    "dask": ("a.rechunk(1)", "a.rechunk(-1)", "a[::-1][::-1]", "a.compute()"),
}
_SHARDED = "jax.device_put(a, jax.sharding.NamedSharding(jax.make_mesh((2,), ('i',)), jax.sharding.PartitionSpec('i')))"
SETTINGS = {
    "numpy": ("np.errstate(all='raise')",),
    "torch": ("torch.no_grad()", "torch.inference_mode()"),
    "jax": ("jax.numpy_rank_promotion('raise')", "jax.numpy_dtype_promotion('strict')", "jax.debug_nans(True)"),
}


def ways(library: str, values: Numbers, dtype: str) -> list[str]:
    """Return expressions for an array with the same values."""
    found = list(_HELD.get(library, ()))
    if library == "numpy" and dtype != "bfloat16":
        found.append("a.astype(a.dtype.newbyteorder())")
    if library == "torch" and dtype in ("float32", "float64"):
        found += ["torch.complex(torch.zeros_like(a), -a).conj().imag"] * 2
    if library == "torch" and dtype.startswith("complex"):
        found += ["a.conj().resolve_conj().conj()"] * 2
    if library == "torch" and not dtype.startswith("int"):
        found += ["torch.nn.Parameter(a)"]
        if not values.any() and values.size:
            found += ["torch._efficientzerotensor(a.shape, dtype=a.dtype)"] * 4
    if library == "jax" and values.size and values.shape[0] % 2 == 0 and _has_several_devices():
        # Of no entries, JAX itself cannot read what a program gives back.
        found += [_SHARDED] * 2
    return found


def _has_several_devices() -> bool:
    """Return whether arrays of JAX can be spread over a mesh."""
    return len(import_module("jax").devices()) > 1
