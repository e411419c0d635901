"""The laws of streaming: a prompt and then steps are the layer's forward pass, however the tokens are split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import streaming
from ..streaming import StreamState
from .layers import LEAF, Layer, layers
from .libraries import Library
from .oracles import Numbers, check_close, check_equal, normal
from .streams import split, step_of, stream, stream_error_bound

__all__ = ["STREAMING_LAWS"]


def check_streaming(library: Library, backend: str) -> None:
    """A prompt of p tokens and then steps give what the layer gives, for every p, layer and dtype."""
    n = 19
    for dtype in library.dtypes:
        for name, layer in layers(dtype, n).items():
            every = dtype == "float32" and name in ("kernel", "mean")
            plan, x = layer.plan(library, backend), layer.arrays(library)[1]
            expected, bound = layer.expected()
            for prompt in range(n + 1) if every else (0, 1, 6, n):
                y, _ = stream(library, plan, layer.begin(plan, library), x, split(n, prompt))
                check_close(y, expected, bound, f"{name}, {dtype}, a prompt of {prompt} tokens")


def check_chunks(library: Library, backend: str) -> None:
    """So do several prompts with steps between them."""
    n = 27
    for name, layer in layers("float32", n).items():
        plan, x = layer.plan(library, backend), layer.arrays(library)[1]
        expected, bound = layer.expected()
        for chunks in ([0] * 11 + [9] + [0] * 7, [7, 0, 0, 1, 0, 5, 11], [0] * 8 + [3, 3, *[0] * 13], [1] * n):
            y, _ = stream(library, plan, layer.begin(plan, library), x, chunks)
            check_close(y, expected, bound, f"{name}, chunks of {chunks}")


def check_own_leaf(library: Library, backend: str) -> None:
    """The leaf that is chosen by capacity changes nothing, for capacities that a text fills or not."""
    n = 150
    layer = layers("float32", n)["mean"]
    expected, bound = layer.expected()
    x = layer.arrays(library)[1]
    for capacity, prompt in ((n, 0), (n, 70), (4 * n, 5)):
        longer = replace(layer, bias=np.pad(layer.bias, ((0, 0), (0, 4 * n))))  # type: ignore[arg-type]
        plan = longer.plan(library, backend, capacity, leaf=None)
        y, _ = stream(library, plan, layer.begin(plan, library), x, split(n, prompt))
        check_close(y, expected, bound * math.log2(capacity) / math.log2(n), f"{capacity=}, {prompt=}")


def check_error_law(library: Library, backend: str) -> None:
    """Errors against exact arithmetic stay below the bound for white, alternating, heavy-tailed and scaled signals."""
    n = 131
    rng = np.random.default_rng(21)
    t = np.arange(n)
    signals = np.stack([rng.standard_normal(n), (-1.0) ** t, rng.standard_cauchy(n) ** 3,
                        np.exp(rng.uniform(-20, 20, n)), np.ones(n)], axis=-1)  # fmt: skip
    filters = {"white": rng.standard_normal(n), "ones": np.ones(n), "heavy-tailed": rng.standard_cauchy(n) ** 3}
    for dtype in [name for name in ("float32", "float64") if name in library.dtypes]:
        x = signals.astype(dtype).astype(np.longdouble)
        for name, lags in filters.items():
            w = lags.astype(dtype).astype(np.longdouble)
            expected = np.stack([np.convolve(w, a)[:n] for a in x.T], axis=-1)
            layer = Layer(w.astype(float), x.astype(float), dtype=dtype)
            for leaf, prompt in ((LEAF, 0), (None, 37)):
                plan = layer.plan(library, backend, leaf=leaf)
                array = layer.arrays(library)[1]
                y, _ = stream(library, plan, layer.begin(plan, library), array, split(n, prompt))
                bound = stream_error_bound(w[None, None], x, dtype)
                check_close(y, expected, bound, f"error law of {dtype}, {name} filter, {leaf=} {prompt=}")


def check_padding(library: Library, backend: str) -> None:
    """A row after padding gives what it gives alone, whatever the padding holds; outputs at padding are finite."""
    n, prompt, pads = 21, 8, (0, 7, 3)
    for name in ("mean", "kernel"):
        layer = layers("float32", n)[name]
        rows = layer.x[:1] if name == "mean" else layer.x
        x = np.concatenate([rows, rows + 1, rows - 2])[: len(pads)]
        layer = replace(layer, x=x)
        plan = layer.plan(library, backend)
        padding = library.asarray(np.asarray(pads), "int32")
        first = np.empty(0)
        for inside in (7.0, 3e38, math.inf, math.nan):
            padded = x.copy()
            for row, pad in enumerate(pads):
                padded[row, :pad] = inside
            state = layer.begin(plan, library)
            y, state = stream(
                library, plan, state, library.asarray(padded, "float32"), [prompt, *[0] * 5, 4, 0, 0, 0, 0], padding
            )
            first = first if first.size else y
            check_equal(y, first, f"{name}: outputs with {inside} in the padding")
        for row, pad in enumerate(pads):
            expected, bound = replace(layer, x=x[row : row + 1, pad:]).expected()
            # Tiles fall otherwise than in a stream of this row alone, which the bound allows for.
            check_close(first[row : row + 1, pad:], expected, 2 * bound, f"{name}: row {row} after {pad} of padding")
            if not np.isfinite(first[row]).all():
                raise AssertionError(f"{name}: outputs at padding are not finite")


def check_independence_of_streams(library: Library, backend: str) -> None:
    """Copies, chosen rows and other streams of a plan do not disturb each other, to the bit; inputs are left alone."""
    n, before = 23, 9
    layer = layers("float32", n)["mean"]
    plan, (_, x, _) = layer.plan(library, backend), layer.arrays(library)
    other = library.asarray(layer.x[:, ::-1].copy(), "float32")
    alone, _ = stream(library, plan, layer.begin(plan, library), x, split(n, 5))
    alone_other, _ = stream(library, plan, layer.begin(plan, library), other, split(n, 5))

    first, state = stream(library, plan, layer.begin(plan, library), x, split(before, 5))
    copy = streaming.stream_copy(state)
    order = np.asarray([2, 0, 0])
    beams = streaming.stream_reorder(state, library.asarray(order, "int32"))
    states = {"copy": copy, "state": state, "beams": beams, "other": layer.begin(plan, library)}
    _, states["other"] = stream(library, plan, states["other"], other, split(before, 5))
    outputs: dict[str, list[Numbers]] = {name: [] for name in states}
    for t in range(before, n):
        token = x[:, t, :]
        turned = library.asarray(layer.x[order, t], "float32")
        for name, given in (("copy", token), ("other", other[:, t, :]), ("beams", turned), ("state", token)):
            y, states[name] = step_of(library)(plan, states[name], given)
            outputs[name].append(library.to_numpy(y))
    found = {name: np.stack(parts, axis=1) for name, parts in outputs.items()}
    check_equal(first, alone[:, :before], "outputs before a copy")
    check_equal(found["copy"], alone[:, before:], "a copy")
    check_equal(found["state"], alone[:, before:], "a stream that was copied")
    check_equal(found["beams"], alone[order][:, before:], "rows in another order")
    check_equal(found["other"], alone_other[:, before:], "another stream of the plan")
    check_equal(library.to_numpy(x), layer.x, "inputs after a stream")


def check_stream_non_finite(library: Library, backend: str) -> None:
    """A non-finite input or lag makes NaN where it does in a product, and counts as zero elsewhere."""
    n = 22
    rng = np.random.default_rng(22)
    for at_w, at_x in ((None, (0, 9, 1)), ((1, 1, 5), None), ((0, 0, 3), (1, n - 2, 5)), (None, (0, 2, 4))):
        w, x = normal(rng, 2, 2, 7, dtype="float32"), normal(rng, 2, n, 6, dtype="float32")
        if at_w is not None:
            w[at_w] = -math.inf
        if at_x is not None:
            x[at_x] = math.inf
        layer = Layer(w, x)
        expected, bound = layer.expected()
        nans = np.isnan(expected)
        plan, array = layer.plan(library, backend), layer.arrays(library)[1]
        for chunks in (split(n, 0), split(n, 4), [*[0] * 13, 5, *[0] * 4]):
            y, _ = stream(library, plan, layer.begin(plan, library), array, chunks)
            what = f"non-finite w{at_w} x{at_x}, chunks of {chunks}"
            check_equal(np.isnan(y), nans, what)
            check_close(y[~nans], expected[~nans], bound[~nans], what)
    # A lag that is not finite counts from the document, not from its padding.
    w[0, 0, 3] = math.nan
    layer = Layer(w, np.nan_to_num(x, posinf=0))
    plan, array = layer.plan(library, backend), layer.arrays(library)[1]
    y, _ = stream(
        library,
        plan,
        layer.begin(plan, library),
        array,
        [6, *[0] * (n - 6)],
        library.asarray(np.asarray([0, 5]), "int32"),
    )
    expected_nan = np.zeros(y.shape, bool)
    expected_nan[0, 3:, :3] = expected_nan[1, 8:, :3] = True
    check_equal(np.isnan(y), expected_nan, "a NaN lag beside padding")


def check_stream_memory(library: Library, backend: str) -> None:
    """A stream holds one number a time to come and channel: nothing of a prompt, and no more with each token."""
    layer = layers("bfloat16" if "bfloat16" in library.dtypes else "float32", 20)["kernel"]
    plan, x = layer.plan(library, backend), layer.arrays(library)[1]
    rows, d = 2, 8
    state = layer.begin(plan, library)
    sizes = [math.prod(state.cache.shape)]
    for chunks in ([7], [0] * 4, [3]):
        at = state.position
        _, state = stream(library, plan, state, x[:, at:, :], chunks)
        sizes.append(math.prod(state.cache.shape))
    if sizes != [rows * left * d for left in (20, 13, 13, 6)]:
        raise AssertionError(f"caches of {sizes} numbers")
    if state.position != 14 or not str(state.cache.dtype).endswith("float32"):
        raise AssertionError(f"{state.position} tokens in a cache of {state.cache.dtype}")


def check_stream_refusals(library: Library, backend: str) -> None:
    """What a stream cannot do is refused, and leaves it as it was."""
    n = 9
    layer = layers("float32", n)["kernel"]
    plan, (_, x, _) = layer.plan(library, backend), layer.arrays(library)
    padding = library.asarray(np.asarray([0, 2]), "int32")
    expected = stream(library, plan, layer.begin(plan, library), x, split(n, 4))[0]
    _, state = stream(library, plan, layer.begin(plan, library), x, [4])
    prefill, step, token = streaming.stream_prefill, streaming.stream_step, x[:, 4, :]
    others = [library.asarray(layer.x[:, 4], dtype) for dtype in library.dtypes if dtype != "float32"]
    refused: tuple[tuple[type[Exception], str, Callable[[], Any]], ...] = (
        (ValueError, "4 tokens have come and 6 would follow", lambda: prefill(plan, state, x[:, :6, :])),
        (ValueError, "another plan", lambda: step(layer.plan(library, backend), state, token)),
        (ValueError, "another plan", lambda: prefill(layer.plan(library, backend), state, x)),
        (ValueError, "shape", lambda: step(plan, state, token[:1, :])),
        (ValueError, "shape", lambda: step(plan, state, token[:, :4])),
        (ValueError, "shape", lambda: prefill(plan, state, x[:1, :2, :])),
        *((TypeError, "dtype", lambda other=other: step(plan, state, other)) for other in others),
        (TypeError, "array", lambda: step(plan, state, [1.0])),
        (TypeError, "array", lambda: prefill(plan, state, [[1.0]])),
        (TypeError, "array", lambda: prefill(plan, fresh(), x, padding=[0, 2])),
        (TypeError, "array", lambda: streaming.stream_reorder(state, [0, 1])),
        (ValueError, "padding", lambda: prefill(plan, state, x[:, :3, :], padding=padding)),
        (ValueError, "rows without tokens", lambda: prefill(plan, fresh(), x[:, :2, :], padding=padding)),
        (ValueError, "rows without tokens", lambda: prefill(plan, fresh(), x, padding=padding - 1)),
        (ValueError, "the batch's shape", lambda: prefill(plan, fresh(), x, padding=padding[:1])),
        (TypeError, "integers", lambda: prefill(plan, fresh(), x, padding=x[:, 0, 0])),
        (ValueError, "rows of the batch", lambda: streaming.stream_reorder(state, padding)),
        (TypeError, "integers", lambda: streaming.stream_reorder(state, x[:, 0, 0])),
        (ValueError, "heads", lambda: streaming.stream_init(plan, (2,), 7)),
        (ValueError, "capacity", lambda: layer.plan(library, backend, -1)),
        (ValueError, "bias must have the shape", lambda: replace(layer, bias=layer.x[0]).plan(library, backend)),
    )

    def fresh() -> StreamState:
        return layer.begin(plan, library)

    for kind, words, call in refused:
        check_refused(kind, words, call)
    y, state = stream(library, plan, state, x[:, 4:, :], [0] * (n - 4))
    check_equal(y, expected[:, 4:], "a stream after refusals")
    check_refused(ValueError, f"the stream is full: {n} tokens", lambda: step(plan, state, token))
    # A bias of fewer positions than the capacity: the stream ends with it, padding not counted.
    short = replace(layer, bias=np.ones((2, 6)))
    plan = short.plan(library, backend)
    _, state = stream(library, plan, layer.begin(plan, library), x, split(6, 2))
    check_refused(ValueError, "position bias ends at max_len=6", lambda: step(plan, state, token))
    check_refused(ValueError, "position bias ends at max_len=6", lambda: prefill(plan, fresh(), x))
    _, state = stream(library, plan, fresh(), x, split(7, 2), library.asarray(np.asarray([1, 1]), "int32"))
    check_refused(ValueError, "position bias ends at max_len=6", lambda: step(plan, state, token))


def check_refused(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        if words not in str(error):
            raise AssertionError(f"refused, but not for {words!r}: {error}") from error
        return
    raise AssertionError(f"not refused: {words}")


STREAMING_LAWS: tuple[Callable[[Library, str], None], ...] = (
    check_streaming,
    check_chunks,
    check_own_leaf,
    check_error_law,
    check_padding,
    check_independence_of_streams,
    check_stream_non_finite,
    check_stream_memory,
    check_stream_refusals,
)
"""Those of streams, as functions of a library and the name of a backend; a broken one raises AssertionError."""
