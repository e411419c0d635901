"""The sources of the kernels: CUDA C++ in the form of CuPy's elementwise and reduction kernels.

Each does in one pass what array calls would do in several. Numbers are read and written in their own dtypes, T and Y,
and computed in R or complex<R>; halves are converted. `i` is the index of CuPy's loop over entries, in C order.
"""

from __future__ import annotations

__all__ = ["APPLY_FILTERS", "COLUMN", "CROSS_SPECTRUM", "LOAD", "PREAMBLE", "STORE", "SURVEY", "WRITE_NAN"]

PREAMBLE = """
template <typename R, typename T> __device__ inline complex<R> tmm_read(const T& v) {
    return complex<R>(static_cast<R>(v), R(0));
}
template <typename R, typename S> __device__ inline complex<R> tmm_read(const complex<S>& v) {
    return complex<R>(static_cast<R>(v.real()), static_cast<R>(v.imag()));
}
template <typename T, typename R> __device__ inline void tmm_write(T& out, const complex<R>& v) {
    out = T(v.real());
}
template <typename S, typename R> __device__ inline void tmm_write(complex<S>& out, const complex<R>& v) {
    out = complex<S>(static_cast<S>(v.real()), static_cast<S>(v.imag()));
}
template <typename R> __device__ inline bool tmm_finite(const complex<R>& v) {
    return isfinite(v.real()) && isfinite(v.imag());
}
template <typename R> __device__ inline R tmm_size(const complex<R>& v) {
    return fmax(fabs(v.real()), fabs(v.imag()));
}
template <typename R> __device__ inline complex<R> tmm_power(const complex<R>& v, int exponent) {
    return complex<R>(ldexp(v.real(), exponent), ldexp(v.imag(), exponent));
}
// Quotient and remainder, of 32 bits where they suffice: a division of 64 bits takes longer than a read of memory.
__device__ inline void tmm_split(ptrdiff_t i, ptrdiff_t by, ptrdiff_t& quotient, ptrdiff_t& remainder) {
    if (i <= 0x7fffffff && by <= 0x7fffffff) {
        quotient = static_cast<unsigned int>(i) / static_cast<unsigned int>(by);
    } else {
        quotient = i / by;
    }
    remainder = i - quotient * by;
}
// t[m] = exp(i pi m / 2N), computed where it is used: a table would be one more read, and made on another stream.
__device__ inline void tmm_modulation(complex<float>& t, ptrdiff_t m, ptrdiff_t length) {
    float sine, cosine;
    sincospif(float(m) / float(2 * length), &sine, &cosine);
    t = complex<float>(cosine, sine);
}
__device__ inline void tmm_modulation(complex<double>& t, ptrdiff_t m, ptrdiff_t length) {
    double sine, cosine;
    sincospi(double(m) / double(2 * length), &sine, &cosine);
    t = complex<double>(cosine, sine);
}
"""

# Loop over the tables: one thread reads the times of one block of a column.
SURVEY = (
    "raw T x, int64 block, bool last",
    "R peak, R square, int32 mark",
    """
    const ptrdiff_t times = x.shape()[0], rows = x.shape()[1], heads = x.shape()[2], width = x.shape()[3];
    ptrdiff_t own, column, line, r, h, c;
    tmm_split(i, rows * heads * width, own, column);
    tmm_split(column, width, line, c);
    tmm_split(line, heads, r, h);
    const ptrdiff_t begin = own * block;
    const ptrdiff_t end = begin + block < times ? begin + block : times;
    R most = 0, total = 0;
    int found = -1;
    for (ptrdiff_t t = begin; t < end; ++t) {
        const ptrdiff_t at[4] = {t, r, h, c};
        const complex<R> v = tmm_read<R>(x[at]);
        if (!tmm_finite(v)) {
            if (last || found < 0) found = int(t);
            continue;
        }
        const R size = tmm_size(v);
        if (size > most) {  // squares of ratios: those of the entries themselves may be out of range
            const R ratio = most / size;
            total *= ratio * ratio;
            most = size;
        }
        if (most > 0) {
            const R re = v.real() / most, im = v.imag() / most;
            total += re * re + im * im;
        }
    }
    peak = most;
    square = total;
    mark = found >= 0 || last ? found : 1 << 30;
    """,
)

# Loop over the columns: reduce the tables to the statistics of each.
COLUMN = (
    "raw R peak, raw R square, raw int32 mark, int64 blocks, int64 columns, bool last",
    "int32 exponent, R norm, int32 nearest",
    """
    R most = 0;
    int found = last ? -1 : 1 << 30;
    for (ptrdiff_t b = 0; b < blocks; ++b) {
        most = fmax(most, R(peak[b * columns + i]));
        const int m = mark[b * columns + i];
        found = last ? max(found, m) : min(found, m);
    }
    int power = 0;
    frexp(most, &power);
    R total = 0;
    for (ptrdiff_t b = 0; b < blocks; ++b) {
        const R part = ldexp(R(peak[b * columns + i]), -power);
        total += square[b * columns + i] * part * part;
    }
    exponent = most > 0 ? power : -10000;
    norm = sqrt(total);
    nearest = found;
    """,
)

# Loop over the entries of a buffer that have a time of the signals.
LOAD = (
    "T x, int32 exponent, int64 columns, int64 length, bool modulate",
    "C y",
    """
    typedef typename C::value_type R;
    complex<R> v = tmm_read<R>(x);
    v = tmm_finite(v) ? tmm_power(v, -exponent) : complex<R>(0, 0);
    if (modulate) {
        complex<R> t;
        ptrdiff_t m, column;
        tmm_split(i, columns, m, column);
        tmm_modulation(t, m, length);
        v = complex<R>(v.real() * t.real(), v.real() * t.imag());
    }
    y = v;
    """,
)

# Loop over the result, which has `width` channels; the spectra have `block`.
APPLY_FILTERS = (
    "raw C x, raw C w, raw int32 scale, int64 rows, int64 heads, int64 width, int64 block, int64 missing, "
    "int64 kernel_size, bool adjoint",
    "C y",
    """
    typedef typename C::value_type R;
    ptrdiff_t line, m, owner, r, h, c;
    tmm_split(i, width, line, c);
    tmm_split(line, heads * rows, m, owner);
    tmm_split(owner, heads, r, h);
    complex<R> total(0, 0);
    for (ptrdiff_t k = 0; k < kernel_size; ++k) {
        const ptrdiff_t source = c + (adjoint ? kernel_size - 1 - k : k) - missing;
        if (source < 0 || source >= block) continue;
        const C product = x[line * block + source] * w[(m * heads + h) * kernel_size + k];
        total += tmm_power(product, scale[(owner * width + c) * kernel_size + k]);
    }
    y = total;
    """,
)

# Sum over rows and channels.
CROSS_SPECTRUM = ("C x, C g, int32 scale", "C y", "tmm_power(conj(x) * g, scale)", "a + b", "y = a", "0")

# Loop over signals.
STORE = (
    "C y, int32 exponent, R noise, int64 columns, int64 length, bool modulate",
    "Y out",
    """
    complex<R> v(y.real() / R(length), y.imag() / R(length));
    if (modulate) {
        complex<R> t;
        ptrdiff_t m, column;
        tmm_split(i, columns, m, column);
        tmm_modulation(t, m, length);
        v = complex<R>(v.real() * t.real() + v.imag() * t.imag(), 0);
    }
    complex<R> result = tmm_power(v, exponent);
    if (!tmm_finite(result)) {
        const R size = hypot(v.real(), v.imag());
        const R nearer = size > noise ? 1 - noise / size : R(0);
        result = tmm_power(complex<R>(v.real() * nearer, v.imag() * nearer), exponent);
    }
    tmm_write(out, result);
    """,
)

# Loop over signals; of a column that is finite, only one number is read, and nothing is written.
WRITE_NAN = (
    "raw T x, raw int32 marks, raw int32 nearest, raw int32 first, raw int32 reach, bool known, int64 lags, "
    "int64 block, int64 kernel_size, bool adjoint",
    "Y y",
    """
    const ptrdiff_t times = x.shape()[0], rows = x.shape()[1], heads = x.shape()[2], width = x.shape()[3];
    const ptrdiff_t columns = rows * heads * width, blocks = (times + block - 1) / block, step = adjoint ? 1 : -1;
    ptrdiff_t t, column, line, r, h, c, own, rest;
    tmm_split(i, columns, t, column);
    tmm_split(column, width, line, c);
    tmm_split(line, heads, r, h);
    tmm_split(t, block, own, rest);
    const int none = adjoint ? 1 << 30 : -1;
    ptrdiff_t far = known ? ptrdiff_t(reach[r * times + t]) : adjoint ? times - 1 - t : t;
    bool bad = far >= first[h];
    far = far < lags - 1 ? far : lags - 1;
    for (ptrdiff_t k = 0; k < kernel_size && !bad; ++k) {
        const ptrdiff_t s = c + step * k, read = column + step * k;
        if (s < 0 || s >= width) break;
        if (nearest[read] == none) continue;
        if (marks[own * columns + read] != none) {
            const ptrdiff_t begin = own * block, end = begin + block < times ? begin + block : times;
            for (ptrdiff_t u = t; u >= begin && u < end && step * (u - t) <= far && !bad; u += step) {
                const ptrdiff_t at[4] = {u, r, h, s};
                bad = !tmm_finite(tmm_read<double>(x[at]));
            }
        }
        for (ptrdiff_t b = own + step; b >= 0 && b < blocks && !bad; b += step) {
            const int mark = marks[b * columns + read];
            if (mark == none) continue;
            bad = step * (mark - t) <= far;
            break;
        }
    }
    if (bad) tmm_write(y, complex<float>(nanf(""), 0));
    """,
)
