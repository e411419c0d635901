"""Which engine serves which arrays: calls every pair, and writes docs/pairs.md.

    python tests/support/pairs.py

Needs what the tests need. Pairs that need a GPU are called where there is one.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tmm_core
from tmm_core.errors import NotFoundError
from tmm_core.testing import Library, get_library
from tmm_core.testing.oracles import dense_correlation, dense_product

PAGE = Path(__file__).parent.parent.parent / "docs" / "pairs.md"

BACKENDS = ("array_api", "numpy", "numba", "torch", "jax", "cupy")
ARRAYS = {
    "NumPy": "numpy",
    "NumPy, bfloat16": "numpy-bfloat16",
    "array_api_strict": "array_api_strict",
    "Torch": "torch",
    "Torch, compiled": "torch-compiled",
    "Torch, on a GPU": "torch-cuda",
    "JAX": "jax",
    "JAX, in jit": "jax-jit",
    "JAX, on a GPU": "jax-cuda",
    "JAX, in jit on a GPU": "jax-jit-cuda",
    "Dask": "dask",
    "CuPy": "cupy",
}
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")

REFUSALS = (TypeError, ValueError, LookupError, NotImplementedError, RuntimeError)
NOT_RUN = "not run here"

HEAD = """# Any engine for any array

Every engine serves every array, or says why not. Made by `python tests/support/pairs.py`, which calls each pair; a test
compares this page with what the calls give.

`works`: the product is right. `∂` and `∂²`: so are its gradients of the first and second order; NumPy, CuPy and Dask
differentiate nothing. `not run here`: that needs a GPU, and the machine that made this page has none; `pytest -m gpu`
tries the laws there. Numbers stand for the reasons below, in the words of the errors. CuPy's engine computes on GPUs
only: where there is one, it still refuses arrays on a CPU, and says so.
"""

BETWEEN = """
## Types

NumPy arrays of each dtype, and JAX as it comes, with 32 bits.
"""


@dataclass
class Reasons:
    """Why pairs are refused, each under its number."""

    known: list[str] = field(default_factory=list)

    def number(self, error: Exception) -> str:
        """Return what stands in the table for an error."""
        reason = re.sub(r"\s+", " ", str(error)).strip()
        within = re.search(r'got \w+\("(.*?)"\) Hint', reason)  # PyTorch's compiler tells of an error in an error
        reason = within[1] if within else reason
        reason = re.sub(r" \(cuda\w+: [^)]*\)", "", reason)  # in the words of the machine
        reason = re.sub(r"^backend '\w+' cannot serve this call: (.*); choose another, or 'auto'$", r"\1", reason)
        if reason not in self.known:
            self.known.append(reason)
        return f"[{self.known.index(reason) + 1}]"


def library_of(name: str) -> Library | None:
    """Return a library, or None for one that is not installed, or of a GPU where there is none."""
    try:
        return get_library(name)
    except NotFoundError:
        return None


def outcome(library: Library, backend: str, dtype: str, reasons: Reasons) -> str:
    """Return what becomes of the product and its gradients."""
    rng = np.random.default_rng(0)
    w, x, g, v = (rng.integers(-4, 5, shape).astype(float) for shape in ((1, 1, 3), (5, 2), (5, 2), (1, 1, 3)))
    run = library.transform(lambda w, x: tmm_core.causal_toeplitz_matmul(w, x, backend=backend))
    arrays = [library.asarray(a, dtype) for a in (w, x, g, v)]
    steps: list[tuple[str, Callable[[], tuple], tuple]] = [
        ("works", lambda: (run(*arrays[:2]),), (dense_product(w, x),)),
    ]
    if library.vjp is not None:
        steps += [
            ("∂", lambda: first(library, run, *arrays),
             (dense_correlation(x, g, 3, 1, 1), dense_product(w, g, adjoint=True))),
            ("∂²", lambda: second(library, run, *arrays), (dense_product(v, g, adjoint=True), dense_product(v, x))),
        ]  # fmt: skip
    done: list[str] = []
    for name, compute, expected in steps:
        try:
            found = compute()
        except REFUSALS as error:
            number = reasons.number(error)
            return f"{' '.join(done)}, {name} refused {number}" if done else f"refused {number}"
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(library.to_numpy(a), b, atol=1e-2 if "16" in dtype else 1e-4)
        done.append(name)
    return " ".join(done)


def first(library: Library, run: Callable, w: object, x: object, g: object, v: object) -> tuple:
    """Return the gradients of `<g, T(w) x>` for w and x."""
    return tuple(library.vjp(run, (w, x), g))


def second(library: Library, run: Callable, w: object, x: object, g: object, v: object) -> tuple:
    """Return the gradients for x and g of `<v, c>`, c that of `<g, T(w) x>` for w."""
    if not library.name.startswith("torch"):
        return tuple(library.vjp(lambda x, g: library.vjp(run, (w, x), g)[0], (x, g), v))
    import torch  # around compiled functions, torch.func does not go

    w, x, g = (a.detach().clone().requires_grad_() for a in (w, x, g))
    (c,) = torch.autograd.grad(run(w, x), w, g, create_graph=True)
    return torch.autograd.grad(c, (x, g), v)


@contextlib.contextmanager
def jax_of_32_bits() -> Iterator[None]:
    """Let JAX be as it comes."""
    import jax

    with jax.enable_x64(False):
        yield


def tables() -> tuple[dict[tuple[str, str], str], dict[tuple[str, str], str], list[str]]:
    """Return the cells of both tables, by row and column, and the reasons."""
    reasons, pairs, types = Reasons(), {}, {}
    for row, name in ARRAYS.items():
        library = library_of(name)
        dtype = "bfloat16" if "bfloat16" in row else "float32"
        for backend in BACKENDS:
            pairs[row, backend] = NOT_RUN if library is None else outcome(library, backend, dtype, reasons)
    numpy = get_library("numpy-bfloat16")
    with jax_of_32_bits():
        for dtype in DTYPES:
            for backend in BACKENDS:
                types[dtype, backend] = outcome(numpy, backend, dtype, reasons)
    return pairs, types, reasons.known


def table(title: str, cells: dict[tuple[str, str], str]) -> str:
    """Return cells as a table of Markdown."""
    rows = dict.fromkeys(row for row, _ in cells)
    lines = [[title, *BACKENDS], ["---"] * (len(BACKENDS) + 1)]
    lines += [[row, *(cells[row, backend] for backend in BACKENDS)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page() -> str:
    """Return the page."""
    pairs, types, reasons = tables()
    numbered = "\n".join(f"{i}. {reason}" for i, reason in enumerate(reasons, 1))
    parts = (HEAD, table("arrays", pairs), BETWEEN, table("dtype", types), "\n## Reasons\n", numbered)
    return "\n".join(parts) + "\n"


def read(text: str) -> dict[tuple[str, str], str]:
    """Return the cells of a page by row and column, with reasons in place of their numbers."""
    reasons = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE))
    cells = {}
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        row, *columns = line.split(" | ")
        for backend, cell in zip(BACKENDS, columns, strict=True):
            cells[row, backend] = re.sub(r"\[(\d+)\]", lambda found: reasons[found[1]], cell)
    return cells


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
