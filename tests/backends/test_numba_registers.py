"""The Numba engine with the registers of other processors than this one."""

import pytest
from support.processes import run_python
from support.requirements import import_or_skip, system_or_skip

LAWS = """
from tmm_backends._numba import lanes
from tmm_core.testing import get_library, products
library = get_library("numpy").restricted({dtypes})
for law in (products.check_products, products.check_correlations, products.check_segments, products.check_dtypes):
    law(library, "numba")
print(max(lanes.WIDTHS.values()))
"""
AVX2 = "+avx,+avx2,+fma,+f16c"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "lanes", "dtypes"),
    [
        pytest.param(AVX2, 8, "'float32', 'float16'", id="AVX2"),
        pytest.param("+sse2", 4, "'float32'", id="SSE2"),
    ],
)
def test_laws_hold_with_narrower_registers(features, lanes, dtypes, tmp_path):
    system_or_skip("x86_64", "names features of x86-64 processors")
    import_or_skip("numba")
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = run_python(LAWS.format(dtypes=dtypes), PYTHONWARNINGS="error", **environment)
    assert done.stdout.split() == [str(lanes)]


def test_float16_is_refused_where_no_instruction_reads_it(monkeypatch):
    import_or_skip("numba")
    import numpy as np

    import tmm_core
    from tmm_backends._numba import engine

    monkeypatch.setattr(engine, "CONVERTS_HALVES", False)
    x = np.arange(300, dtype=np.float16)[:, None] / 64
    with pytest.raises(ValueError, match="no instructions for float16"):
        tmm_core.causal_toeplitz_matmul(x[:, 0], x, backend="numba")
    y = tmm_core.causal_toeplitz_matmul(x[:, 0].astype(np.float32), x, backend="numba")
    expected = tmm_core.causal_toeplitz_matmul(x[:, 0].astype(float), x.astype(float), backend="numpy")
    np.testing.assert_allclose(y, expected, atol=1e-6 * np.abs(expected).max())
