"""What the proof of an index stands on: the errors of FFTs, Taylor polynomials of arcs, integers in place of floats."""

import dataclasses
import tracemalloc

import mpmath
import numpy as np
import pytest

from tmm_core import fredholm_index
from tmm_core.index import _fixed_point, _winding

EPS = 2.0**-52


def test_ffts_err_less_than_the_proof_takes_them_to():
    rng = np.random.default_rng(0)
    for exponent in (1, 2, 3, 7, 10, 12):
        points = 1 << exponent
        for w in (rng.standard_normal(points), rng.standard_normal(points) + 1j * rng.standard_normal(points)):
            w = w / 16
            found = np.fft.fft(w)
            for i in rng.integers(0, points, 5).tolist():
                re, im = _fixed_point.powers(_fixed_point.cis(-2 * i, exponent), points)
                wr, wi = _fixed_point.from_floats(w.real), _fixed_point.from_floats(w.imag)
                exact = complex(sum(wr * re - wi * im) / (1 << 512), sum(wr * im + wi * re) / (1 << 512))
                assert abs(found[i] - exact) <= EPS * (4 * exponent + 8) * np.sum(np.abs(w))


@pytest.mark.parametrize("numerator", [0, 1, -1, 12345, -(3 << 28), (5 << 30) + 7])
def test_phases_have_256_places(numerator):
    mpmath.mp.prec = 300
    exact = mpmath.expjpi(mpmath.mpf(numerator) / 2**30)
    re, im = _fixed_point.cis(numerator, 30)
    assert abs(mpmath.mpc(re, im) / mpmath.mpf(2) ** 256 - exact) < mpmath.mpf(2) ** -248
    re, im = _fixed_point.powers((re, im), 1000)
    assert abs(mpmath.mpc(re[-1], im[-1]) / mpmath.mpf(2) ** 256 - exact**999) < mpmath.mpf(2) ** -236


def test_taylor_polynomials_from_integers_are_those_from_ffts():
    w = np.random.default_rng(1).standard_normal(50) / 8
    symbol = _winding._Symbol(w)
    arcs = symbol.first_arcs()[::13]
    exact = symbol.exact_arcs(arcs)
    assert np.all(np.sum(np.abs(arcs.terms - exact.terms[: len(arcs.terms)]), axis=0) <= arcs.error + exact.error)
    assert np.all(exact.error < 0.1 * arcs.error)


def test_cut_arcs_are_the_same_polynomial():
    w = np.random.default_rng(1).standard_normal(50) / 8
    symbol = _winding._Symbol(w)
    arcs = symbol.first_arcs()[::13]
    halves = _winding._halves(arcs, np.abs(arcs.terms))
    exact = symbol.exact_arcs(halves)
    orders = len(halves.terms)
    assert np.all(np.sum(np.abs(halves.terms - exact.terms[:orders]), axis=0) <= halves.error + exact.error)
    assert np.all(halves.error < 1.2 * np.tile(arcs.error, 2))
    # From polynomials that are taken for exact, what is left is the rounding of the cut.
    arcs = symbol.exact_arcs(arcs)
    halves = _winding._halves(dataclasses.replace(arcs, error=0 * arcs.error), np.abs(arcs.terms))
    found = np.sum(np.abs(halves.terms[: len(exact.terms)] - exact.terms), axis=0)
    assert np.all(found <= halves.error)
    assert np.any(found > 0)


def test_terms_that_are_left_out_count_as_error():
    terms = np.asarray([[1.0], [0.5], [1e-4]], complex)
    arcs = _winding._Arcs(0, np.zeros(1, int), np.zeros(1, int), terms, np.ones(1))
    halves = _winding._halves(arcs, np.abs(terms))
    assert len(halves.terms) == 2
    assert np.all(halves.error >= 1 + 1e-4)


def test_memory_is_linear_in_the_lags():
    rng = np.random.default_rng(0)
    peaks = []
    for k in (1 << 11, 1 << 13, 1 << 15):
        w = rng.standard_normal(k)
        fredholm_index(w[:64])
        tracemalloc.start()
        fredholm_index(w)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0]
    assert peaks[2] < 5 * peaks[1]
    assert peaks[2] < 2048 * (1 << 15)
