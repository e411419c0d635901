"""The Numba engine's parts, each against what it is for: butterflies, plans, passes, threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
from support.requirements import import_or_skip

import_or_skip("numba")

from tmm_backends._numba import correlation_kernels, memory, operands, plans, product, threads
from tmm_backends._numba.butterflies import join, split

RNG = np.random.default_rng(0)


# Butterflies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A complex number that can do what butterflies ask for."""

    z: complex

    def __add__(self, other):
        return Number(self.z + other.z)

    def __sub__(self, other):
        return Number(self.z - other.z)

    def __mul__(self, other):
        return Number(self.z * other.z)

    def times_i(self):
        return Number(1j * self.z)

    def conjugate(self):
        return Number(self.z.conjugate())

    def scaled(self, factor):
        return Number(factor * self.z)


def roots_and_constants(radix, phase):
    """Return where a butterfly takes values, and its constants, for c = exp(2 pi i phase)."""

    def turn(phases):
        return np.exp(2j * np.pi * np.asarray(phases))

    if radix != 8:
        return turn(phase + np.arange(radix) / radix), turn(phase * np.arange(1, radix))
    halves = [phase, phase + 1 / 8]
    roots = np.concatenate([turn(half + np.arange(4) / 4) for half in halves])
    return roots, np.concatenate([turn([4 * phase]), *(turn(half * np.arange(1, 4)) for half in halves)])


@pytest.mark.parametrize("radix", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("phase", [0.0, 1 / 16, 0.123, 0.9])
def test_a_butterfly_takes_the_values_of_a_polynomial_and_goes_back(radix, phase):
    roots, constants = roots_and_constants(radix, phase)
    coefficients = RNG.standard_normal(radix) + 1j * RNG.standard_normal(radix)
    numbers, turns = ([Number(complex(z)) for z in array] for array in (coefficients, constants))
    values = split(numbers, turns)
    np.testing.assert_allclose([v.z for v in values], np.polynomial.polynomial.polyval(roots, coefficients), atol=1e-14)
    np.testing.assert_allclose([v.z for v in join(values, turns)], radix * coefficients, atol=1e-13)


@pytest.mark.parametrize("radix", [1, 6, 7])
def test_a_radix_without_a_formula_is_refused(radix):
    one = [Number(1)] * radix
    with pytest.raises(ValueError, match=f"radix {radix}"):
        split(one, one[1:])


# Lengths and plans ---------------------------------------------------------------------------------------------------

LENGTHS = sorted({odd << power for odd in (1, 3, 5, 9, 15) for power in range(5, 22)})
SMALL_LENGTHS = [length for length in LENGTHS if length <= 4096]


def test_the_fast_length_is_the_least_of_its_forms():
    for n in [*range(1, 9000), *(length + by for length in LENGTHS if length < 1 << 20 for by in (-1, 0, 1))]:
        length = plans.fast_length(n)
        assert length == next(allowed for allowed in LENGTHS if allowed >= n), n
        assert n <= 256 or length <= 1.25 * n, n
    assert plans.fast_length(1021) == 1024


def filters_of(w, kind):
    """Return filters as they are: spectra are linear, and the scales of powers of two are undone by the caller."""
    filters = operands.Filters.of(w[:, None], kind)
    assert not filters.unsafe.any()
    return filters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", SMALL_LENGTHS)
def test_spectra_are_values_at_the_roots_of_i_each_once_and_go_back(length, dtype):
    kind = operands.ARITHMETIC[dtype]
    eps = np.finfo(dtype).eps
    w = RNG.standard_normal((3, length)).astype(dtype)
    w[0] = np.arange(length) == 1  # the polynomial z, whose values are the roots themselves
    filters = filters_of(w, kind)
    rows = product.filter_spectra(filters, length, 1)
    values = rows.view(f"complex{2 * rows.itemsize * 8}").astype(complex) * length * filters.scales[:, None]
    turns = np.angle(values[0]) / (2 * np.pi) * length - 1 / 4
    order = np.rint(turns).astype(int) % length
    np.testing.assert_array_equal(np.sort(order), np.arange(length))
    phases = np.exp(2j * np.pi * np.arange(length) / (4 * length))
    expected = length * np.fft.ifft(w.astype(float) * phases)[:, order]
    error = np.abs(values - expected).max(axis=1) / np.linalg.norm(w.astype(float), axis=1)
    assert error.max() <= 2 * eps * np.log2(length)
    conjugates = product.filter_spectra(filters, length, -1).view(f"complex{2 * rows.itemsize * 8}")
    np.testing.assert_array_equal(conjugates, rows.view(conjugates.dtype).conj())
    back = lags_of(rows, kind, length) * filters.scales
    np.testing.assert_allclose(back.T, w, atol=4 * eps * np.log2(length))


def lags_of(spectra, kind, length):
    """Transform spectra, divided by the length, back by the compiled kernel."""
    plan = plans.plan(length, kind.compute_dtype)
    buffer, scratch = product.transform_buffers(kind, length, 1)
    out = np.empty((length, len(spectra)), kind.compute_dtype)
    tag, jobs = (memory.DTYPE_TAGS[kind.compute_dtype.name],), -(-len(spectra) // kind.lanes)
    correlation_kernels.inverse_transform(tag, spectra, 0, jobs, plan.constants, plan.steps, buffer, scratch, out)
    return out


@pytest.mark.parametrize("length", [1024, 5 << 6, 9 << 5, 15 << 6])
def test_constants_are_roots_of_unity_to_a_unit_in_the_last_place(length):
    constants = plans.plan(length, np.dtype(np.float64)).constants.view(complex)
    phases = np.rint(np.angle(constants) / (2 * np.pi) * 4 * length)
    exact = np.asarray([complex(mpmath.expjpi(mpmath.mpf(phase) / (2 * length))) for phase in phases])
    assert np.abs(constants - exact).max() <= 1.5 * 2.0**-52


# Threads -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(monkeypatch):
    """A pool of eight threads, whatever this machine has."""
    with ThreadPoolExecutor(8) as made:
        monkeypatch.setattr(threads, "_pool", made)
        yield made


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("jobs", [1, 2, 7, 1000])
def test_every_job_is_done_once(pool, jobs, count):
    done, together = np.zeros(jobs, int), threading.Barrier(min(jobs, count))

    def worker():
        together.wait(timeout=60)  # as many threads as asked for, or nobody goes on

        def work(first, last):
            done[first:last] += 1

        return work

    threads.parallel_for(jobs, worker, threads=count)
    np.testing.assert_array_equal(done, 1)


def test_threads_that_are_busy_elsewhere_are_not_waited_for(monkeypatch):
    release = threading.Event()
    with ThreadPoolExecutor(1) as busy:
        monkeypatch.setattr(threads, "_pool", busy)
        busy.submit(release.wait, 60)
        done = np.zeros(50, int)

        def work(first, last):
            done[first:last] += 1

        threads.parallel_for(50, lambda: work, threads=3)
        np.testing.assert_array_equal(done, 1)
        release.set()


def test_an_error_in_any_thread_is_raised(pool):
    caller, together = threading.get_ident(), threading.Barrier(2)

    def worker():
        together.wait(timeout=60)
        if threading.get_ident() != caller:
            raise MemoryError("no memory for a thread")
        return lambda first, last: None

    with pytest.raises(MemoryError, match="for a thread"):
        threads.parallel_for(10, worker, threads=2)
