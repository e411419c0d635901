"""Any engine for any array: the page in the docs says what calls give, and some refusals say what to do."""

import numpy as np
import pytest
from support.pairs import HEAD, NOT_RUN, PAGE, page, read
from support.processes import run_python
from support.requirements import import_or_skip

import tmm_core
from tmm_core import available_backends


@pytest.mark.slow
def test_the_page_says_what_calls_give():
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD), "run python tests/support/pairs.py"
    told, found = read(text), read(page())
    assert told.keys() == found.keys()
    gpu = "cuda" in tmm_core.get_backend("cupy").engine.devices if "cupy" in available_backends() else False
    for (row, backend), cell in found.items():
        said = told[row, backend]
        here = NOT_RUN not in (cell, said) and backend in available_backends()
        if here and not (gpu and "no GPU here" in said):
            assert cell == said, f"{row} by {backend}: run python tests/support/pairs.py"


def test_numba_that_may_not_compile_says_so():
    import_or_skip("numba")
    code = """
import numpy, tmm_core
w, x = numpy.ones(300, "float32"), numpy.ones((300, 4000), "float32")
print(tmm_core.causal_toeplitz_matmul(w, x)[-1, 0])
tmm_core.causal_toeplitz_matmul(w, x, backend="numba")
"""
    done = run_python(code, fails=True, NUMBA_DISABLE_JIT="1")
    assert round(float(done.stdout), 2) == 300, "auto takes another engine"
    assert "Numba is told not to compile: unset the environment variable NUMBA_DISABLE_JIT" in done.stderr


def test_documents_of_64_bit_numbers_cross_to_jax_of_32():
    jax = import_or_skip("jax")
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal(20).astype("float32"), rng.standard_normal((20, 3)).astype("float32")
    ids = np.repeat([-(1 << 40), 0, 1 << 40], [5, 8, 7])  # equal, in their lower 32 bits
    expected = tmm_core.causal_toeplitz_matmul(w, x, segment_ids=ids, backend="numpy")
    with jax.enable_x64(False):
        found = tmm_core.causal_toeplitz_matmul(w, x, segment_ids=ids, backend="jax")
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_arrays_on_one_accelerator_are_handed_to_engines_and_waited_for(monkeypatch):
    jax = import_or_skip("jax")
    from tmm_backends._jax import bridge, evaluate

    waited = []

    def run_matmul(*arguments, **options):
        result = real(*arguments, **options)
        monkeypatch.setattr(type(result), "block_until_ready", lambda array: waited.append(1) or array)
        return result

    real = evaluate.run_matmul
    monkeypatch.setattr(evaluate, "run_matmul", run_matmul)
    monkeypatch.setattr(bridge, "_on_one_accelerator", lambda arrays: True)  # as on a GPU
    w, x = jax.numpy.asarray([1.0, 2.0]), jax.numpy.asarray([1.0, 10.0, 100.0])
    y = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    assert y.tolist() == [1, 12, 120]
    assert waited == [1], "JAX would give memory away that the engine still reads"
    tmm_core.causal_toeplitz_matmul(w, x, backend="jax")
    assert waited == [1], "JAX's own engine needs no waiting"
