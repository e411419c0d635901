"""The Numba engine among threads, forks and processes."""

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.numba_oracle import correlate, normal, product
from support.processes import run_python
from support.requirements import import_or_skip, system_or_skip

import_or_skip("numba")

import numba

from tmm_backends._numba import product as product_module
from tmm_backends._numba import threads

# Threads -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def threaded(monkeypatch):
    """Let every call of the engine compute in so many threads, however small it is."""
    monkeypatch.setattr(product_module, "SMALL", 1)
    with ThreadPoolExecutor(8) as pool:
        monkeypatch.setattr(threads, "_pool", pool)
        yield lambda count: monkeypatch.setattr(product_module, "thread_count", lambda: count)


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("heads", [1, 3, 60])
@pytest.mark.parametrize("n", [40, 300])
def test_the_same_bits_for_any_number_of_threads(n, heads, kernel_size, threaded):
    w, x, g = normal(0, heads, kernel_size, n), normal(1, 7, n, 60), normal(2, 7, n, 60)
    ids = np.sort(np.random.default_rng(3).integers(0, 4, (7, n)))
    results = []
    for count in (1, 2, 3, 5):
        threaded(count)
        results.append(
            [
                *(product(w, x, adjoint=a, segment_ids=i) for a in (False, True) for i in (None, ids)),
                *(correlate(x, g, lags=n, heads=heads, kernel_size=kernel_size, segment_ids=i) for i in (None, ids)),
            ]
        )
    for other in results[1:]:
        for found, expected in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(found, expected)


def test_many_python_threads_at_once(threaded):
    threaded(2)
    pairs = [(normal(i, 2, 150 + i), normal(i + 50, 3, 150 + i, 34)) for i in range(16)]
    expected = [(product(w, x), correlate(x, x, lags=9, heads=2)) for w, x in pairs]

    def call(i):
        w, x = pairs[i % 16]
        return product(w, x), correlate(x, x, lags=9, heads=2)

    with ThreadPoolExecutor(8) as many:
        for i, found in enumerate(many.map(call, range(128))):
            np.testing.assert_array_equal(found[0], expected[i % 16][0])
            np.testing.assert_array_equal(found[1], expected[i % 16][1])


def threads_used(monkeypatch, count):
    """Return by how many threads a large product was computed: as soon as `count` have begun, or one waited long."""
    used, together, plain = set(), threading.Barrier(count), product_module.product_kernels.product

    def watched(*arguments):
        if threading.get_ident() not in used:
            used.add(threading.get_ident())
            together.wait(timeout=10)
        plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(product_module.product_kernels, "product", watched)
        product(normal(0, 200), normal(1, 64, 200, 64))
    return len(used)


@pytest.mark.parametrize(
    ("numbas", "openmps", "torchs", "expected"),
    [
        (3, None, None, 3),
        (3, "2", None, 2),
        (2, "3,1", None, 2),
        (3, "nonsense", None, 3),
        (4, None, 1, 1),
        (4, "3", 2, 2),
    ],
)
def test_the_users_choices_of_threads_are_respected(numbas, openmps, torchs, expected, monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", numbas)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if openmps is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", openmps)
    torch = import_or_skip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(torchs or 8)
    try:
        with ThreadPoolExecutor(8) as pool:
            monkeypatch.setattr(threads, "_pool", pool)
            assert threads_used(monkeypatch, expected) == expected
    finally:
        torch.set_num_threads(before)


# Processes -----------------------------------------------------------------------------------------------------------

BEGIN = """
    import atexit, multiprocessing, os, sys, threading
    import numpy as np
    import tmm_core
    from tmm_backends._numba import product
    product.SMALL = 1

    def check(seed=0):
        rng = np.random.default_rng(seed)
        w, x = rng.standard_normal(300), rng.standard_normal((8, 300, 40))
        y = tmm_core.causal_toeplitz_matmul(w, x, backend="numba")
        expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
        np.testing.assert_allclose(y, expected, atol=1e-11)

    def helpers():
        return sum(thread.name.startswith("tmm-numba") for thread in threading.enumerate())
    """


def run(code, **environment):
    """Run code in a process of its own, after `BEGIN`; return what it printed."""
    threads = {"NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    done = run_python(textwrap.dedent(BEGIN) + textwrap.dedent(code), **threads | environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_forked_children_compute_too():
    system_or_skip("posix", "only POSIX forks")
    printed = run(
        """
        check()
        assert helpers() == 1
        stop = threading.Event()
        busy = threading.Thread(target=lambda: [check(i) for i in iter(lambda: stop.is_set(), True)])
        busy.start()  # forks happen amid the calls of another thread
        for i in range(8):
            child = os.fork()
            if child == 0:
                assert helpers() == 0
                check(i)
                assert helpers() == 1  # a thread of its own
                grandchild = os.fork()
                if grandchild == 0:
                    check()
                    os._exit(0)
                os._exit(os.waitpid(grandchild, 0)[1])
            assert os.waitpid(child, 0)[1] == 0
            check(i)
        stop.set()
        busy.join()
        print("done")
        """
    )
    assert printed == "done\n"


def test_calls_while_the_interpreter_ends():
    for before in ("check()", ""):
        printed = run(
            f"""
            def last():
                check()
                print("last")
            atexit.register(last)
            {before}
            """
        )
        assert printed == "last\n"


def test_spawned_children_compute_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(BEGIN)
        + textwrap.dedent(
            """
            if __name__ == "__main__":
                check()
                with multiprocessing.get_context("spawn").Pool(2) as pool:
                    pool.map(check, range(4))
                print("done")
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-3000:]


@pytest.mark.parametrize(
    ("environment", "count"), [({"NUMBA_NUM_THREADS": "1"}, 1), ({"OMP_NUM_THREADS": "1"}, 1), ({}, 2)]
)
def test_the_environment_says_how_many_threads_there_are(environment, count):
    printed = run(
        """
        check()
        print(1 + helpers())
        """,
        **environment,
    )
    assert int(printed) == count
