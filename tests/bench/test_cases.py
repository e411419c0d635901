"""What is measured: baselines compute what ours do, and a wrong result is not timed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import benchmarks
import numpy as np
import pytest
import torch
from benchmarks import _baselines, gradients, memory, product, streaming
from support.requirements import import_or_skip, skip_without

import tmm_core
from tmm_lab.bench import Schedule, take_turns

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = product.Case(24, 2, elements=24 * 8 * 3)
NEEDS = {"torch.fft": "torch", "jnp.fft": "jax", "dense T @ x": "torch", "scipy.signal.fftconvolve": "scipy"}
FEW = Schedule(seconds=0.0, turns=2)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", _baselines.PRODUCTS)
def test_products_agree_with_the_definition(name: str, heads: int) -> None:
    import_or_skip(NEEDS[name])
    rng = np.random.default_rng(heads)
    w, x = rng.standard_normal((heads, 33)), rng.standard_normal((2, 33, 6))
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    found = np.asarray(_baselines.PRODUCTS[name](w.astype(np.float32), x.astype(np.float32))())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_gradients_agree_and_are_those_of_filters_and_signals() -> None:
    ours = partial(tmm_core.causal_toeplitz_matmul, backend="torch")
    mine, others = (gradients.gradients(SMALL, function)() for function in (ours, _baselines.torch_fft))
    assert [g.shape for g in others] == [(2, 24), SMALL.shape]
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", _baselines.HISTORIES)
def test_histories_agree_with_the_definition(name: str, heads: int) -> None:
    streams = streaming.Streams(33, heads, 6, "numpy")
    w, x = streams.w, streams.x
    expected = tmm_core.causal_toeplitz_matmul(w, x, backend="numpy")
    step = _baselines.HISTORIES[name](w, x)
    for t in (0, 5, 32, 7):
        np.testing.assert_allclose(np.asarray(step(t)), expected[t], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["history in NumPy", "history in Torch"])
def test_tokens_are_put_into_the_history_within_a_step(name: str) -> None:
    """Otherwise the step would be spared what a stream has to do."""
    streams = streaming.Streams(33, 1, 6, "numpy")
    w, x = streams.w, streams.x
    step = _baselines.HISTORIES[name](w, x)
    before = np.asarray(step(5)).copy()
    x[4:6] += 1  # the step puts token 5 into the history, and that alone
    np.testing.assert_allclose(np.asarray(step(5)) - before, w[0, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("wrong", [lambda y: y + 0.1, lambda y: y * np.float32(np.nan)])
def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch, wrong: Callable) -> None:
    right = _baselines.PRODUCTS["torch.fft"]
    monkeypatch.setitem(_baselines.PRODUCTS, "torch.fft", lambda w, x: lambda: wrong(right(w, x)()))
    monkeypatch.setattr(product, "Case", lambda n, heads: SMALL)
    monkeypatch.setattr(product, "BACKEND", "torch")
    benchmark, params = product.ProductAgainst(), (24, 2, "default", "torch.fft")
    benchmark.setup(*params)
    with pytest.raises(RuntimeError, match=r"torch\.fft and ours differ by"):
        benchmark.track_product(*params)
    streams = streaming.Streams(40, 2, 6, "numpy")
    step = _baselines.numpy_history(streams.w, streams.x)
    with pytest.raises(RuntimeError, match="it and ours differ by"):
        streaming.stream_ratios(streams, "it", lambda t: wrong(step(t)), FEW)


@pytest.mark.parametrize("name", _baselines.PRODUCTS)
def test_a_missing_library_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == NEEDS[name]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, NEEDS[name], None)
    with pytest.raises(NotImplementedError, match=f"{NEEDS[name]}.* cannot be imported"):
        _baselines.PRODUCTS[name](*SMALL.arrays())


def test_what_nobody_would_hold_or_has_is_nothing_to_measure() -> None:
    with pytest.raises(NotImplementedError, match="8193 rows"):
        _baselines.dense(*product.Case(_baselines.MOST_DENSE + 1, 1).arrays())
    with pytest.raises(NotImplementedError, match="'none' is not installed"):
        product.Product().setup(64, 1, "none")


def test_arrays_have_as_many_elements_at_every_length() -> None:
    for n in (*product.LENGTHS, 1021, 2**20):
        for heads in product.HEADS:
            case = product.Case(n, heads)
            assert case.shape[1] == n
            assert case.shape[2] % heads == 0 < case.shape[2]
            assert np.prod(case.shape) == pytest.approx(8 * 1024 * 512, rel=0.01)


# --- Streams ----------------------------------------------------------------------------------------------------------


def test_all_steps_of_short_streams_are_taken_and_some_of_long_ones() -> None:
    assert streaming.Streams(64, 1, 1, "numpy").times == range(64)
    for n in (1000, 8192, 32768):
        times = streaming.Streams(n, 1, 1, "numpy").times
        assert 256 <= len(times) <= 1024
        assert np.mean(times) == pytest.approx((n - 1) / 2, rel=0.01), "a step takes as long as its history is"


def test_a_comparison_is_of_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many streams a turn takes, and however few steps the baseline does: where a step of either takes 1 s."""
    monkeypatch.setattr(streaming, "STEPS", 10)
    seconds = count()

    def ticking(function: Callable) -> Callable:
        return lambda *arguments: (next(seconds), function(*arguments))[1]

    monkeypatch.setattr(tmm_core, "stream_step", ticking(tmm_core.stream_step))
    monkeypatch.setattr(streaming, "take_turns", partial(take_turns, clock=lambda: float(repr(seconds)[6:-1])))
    streams = streaming.Streams(40, 2, 6, "numpy")
    step = ticking(_baselines.numpy_history(streams.w, streams.x))
    assert streaming.stream_ratios(streams, "it", step, FEW) == [1.0, 1.0]


def test_the_slowest_step_is_so_in_most_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process takes from a step of one stream does not count."""
    seconds = iter(np.cumsum([0, 1, 5, 1, 9, 1, 5, 1, 1, 1, 5, 9]))  # steps of 1, 5 and 1 s; one stream's last took 9
    monkeypatch.setattr(streaming.time, "perf_counter", lambda: next(seconds))

    class Fake:
        def each(self, after: Callable) -> None:
            for y in range(4):
                after(y)

    assert streaming.slowest_step(Fake(), times=3) == 5.0


def test_a_stream_holds_an_entry_a_time_and_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = streaming.Streaming()
    benchmark.streams = streaming.Streams(40, 2, 6, "numpy")
    assert benchmark.track_memory(40, 2) == 40 * 6 * 4
    monkeypatch.setattr(streaming, "FULL", FEW)
    assert len(benchmark.track_token(40, 2)["samples"]) == 2


# --- Memory and threads -----------------------------------------------------------------------------------------------


def test_extra_memory_is_what_a_call_holds_beyond_its_result() -> None:
    if not Path("/proc/self/clear_refs").exists():
        skip_without("linux", "the system does not tell a process's peak since a moment")

    def call() -> np.ndarray:
        temporary = np.ones(2**25, np.int8)
        return np.concatenate([temporary[: 2**24], np.ones(2**24, np.int8)])  # 32, 16 and 32 MiB at once

    np.ones(2**28, np.int8)  # the peak so far is no matter
    assert memory.extra_memory(call) == pytest.approx(48 * 2**20, abs=2**21)


PROCESS = """
import benchmarks
import resource, numpy as np, numba, torch
def faults():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.full(2**25, 1, np.int8); np.full(2**26, 1, np.int8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first = faults()
benchmarks.ready("array_api", "keeps pages")
print(first, faults(), torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
"""


def test_processes_have_the_threads_asked_for_and_keep_pages() -> None:
    """Whatever the user exported; and pages that are kept are not asked of the system again."""
    import_or_skip("numba")
    if benchmarks.glibc() is None:
        skip_without("linux", "the C library is not glibc")
    path = str(Path(benchmarks.__file__).parents[1])
    exported = {"OMP_NUM_THREADS": "8", "NUMBA_NUM_THREADS": "8", "TMM_BENCH_THREADS": "2", "PYTHONPATH": path}
    command = [sys.executable, "-c", PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **exported})
    mapped, kept, *threads = map(int, done.stdout.split())
    assert kept < 10 < mapped, "96 MiB are 48 pages at the least, should the system make them huge"
    assert threads == [2, 2]
