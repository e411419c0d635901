"""Arrays that nobody thinks of: each gives what a plain copy gives, or an error that says what to do."""

import numpy as np
import pytest
from support.processes import run_python
from support.requirements import import_or_skip, library_or_skip

import tmm_core
from tmm_core.errors import InputError, InputTypeError

RNG = np.random.default_rng(0)
W, X = RNG.standard_normal((2, 3, 5)), RNG.standard_normal((2, 8, 4))
IDS = np.asarray([0] * 3 + [1] * 5)
BIAS = RNG.standard_normal((2, 8))
LIBRARIES = ["numpy", "array_api_strict", "torch", "jax", "dask"]


def swapped(a):
    return a.astype(a.dtype.newbyteorder())


class Metres(np.ndarray):
    """Numbers with a unit, as astropy and unyt make them."""


class Wrapped:
    """What holds an array and hands on what it is asked for, as pint's quantities do."""

    def __init__(self, array):
        self._array = array

    def __getattr__(self, name):
        return getattr(self._array, name)

    def __array__(self, *args, **options):
        return self._array


class Labelled:
    """What can be converted to an array, as data frames can."""

    def __init__(self, array):
        self.values, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self, *args, **options):
        return self.values


@pytest.mark.parametrize(
    "made",
    [
        np.asfortranarray,
        swapped,
        lambda a: np.flip(np.flip(a).copy()),
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.lib.stride_tricks.as_strided(a, a.shape, a.strides, writeable=False),
    ],
    ids=["fortran", "byte-swapped", "negative-strides", "gaps", "read-only"],
)
def test_any_memory_layout_is_read_as_its_values(made, backend):
    w, x, ids = made(W), made(X), made(IDS)
    options = {"segment_ids": IDS, "backend": backend}
    made_options = {"segment_ids": ids, "backend": backend}
    y = tmm_core.causal_toeplitz_matmul(w, x, **made_options)
    assert (type(y), y.dtype) == (np.ndarray, X.dtype)
    np.testing.assert_allclose(y, tmm_core.causal_toeplitz_matmul(W, X, **options), atol=1e-13)
    c = tmm_core.causal_toeplitz_correlate(x, x, lags=3, **made_options)
    np.testing.assert_allclose(c, tmm_core.causal_toeplitz_correlate(X, X, lags=3, **options), atol=1e-13)
    mixed = tmm_core.mix_tokens(w, x, made(BIAS), **made_options)
    np.testing.assert_allclose(mixed, tmm_core.mix_tokens(W, X, BIAS, **options), atol=1e-13)
    np.testing.assert_array_equal(tmm_core.causal_toeplitz(w, 4), tmm_core.causal_toeplitz(W, 4))


def test_constant_signals_without_memory_of_their_own(backend):
    x = np.broadcast_to(X[:1], X.shape)
    y = tmm_core.causal_toeplitz_matmul(W, x, backend=backend)
    np.testing.assert_allclose(y, tmm_core.causal_toeplitz_matmul(W, x.copy(), backend=backend), atol=1e-13)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "uint32", "int64", "uint64"])
def test_documents_are_numbered_in_any_integers(name, dtype):
    library = library_or_skip(name)
    w, x, bias = (library.asarray(a, "float64") for a in (W, X, BIAS))
    ids = library.asarray(IDS, dtype)
    y = tmm_core.mix_tokens(w, x, bias, segment_ids=ids)
    np.testing.assert_allclose(library.to_numpy(y), tmm_core.mix_tokens(W, X, BIAS, segment_ids=IDS), atol=1e-12)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("ids", [IDS - 7, np.asarray(0), np.zeros((1, 1), int), np.stack([IDS, IDS * 0])])
def test_numbers_of_documents_are_broadcast(name, ids):
    library = library_or_skip(name)
    w, x, bias = (library.asarray(a, "float64") for a in (W, X, BIAS))
    y = tmm_core.mix_tokens(w, x, bias, segment_ids=library.asarray(ids, "int64"))
    expected = [tmm_core.mix_tokens(W, X[i], BIAS, segment_ids=np.broadcast_to(ids, (2, 8))[i]) for i in range(2)]
    np.testing.assert_allclose(library.to_numpy(y), np.stack(expected), atol=1e-12)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("shape", [(2, 0, 4), (2, 8, 0), (0, 8, 4), (0, 0, 0)])
@pytest.mark.parametrize("segments", [False, True])
def test_nothing_mixes_to_nothing(name, shape, segments):
    library = library_or_skip(name)
    w, x, bias = (library.asarray(a, "float64") for a in (W, np.zeros(shape), BIAS))
    ids = library.asarray(IDS[: shape[1]], "int64") if segments else None
    assert tmm_core.mix_tokens(w, x, bias, segment_ids=ids).shape == shape
    assert tmm_core.causal_toeplitz_matmul(w, x, segment_ids=ids).shape == shape
    c = tmm_core.causal_toeplitz_correlate(x, x, lags=3, heads=2, segment_ids=ids)
    np.testing.assert_array_equal(library.to_numpy(c), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda a: np.ma.masked_greater(a, 1), "masked array: fill it"),
        (lambda a: a.astype(np.longdouble), "got float128|got longdouble|got float96"),
        (lambda a: a.astype(object), "got object"),
        (lambda a: a.tolist(), "got list"),
        (lambda a: np.float64(1.0) if a is X else a.tolist(), "got list|n, d"),
    ],
    ids=["masked", "longdouble", "object", "list", "scalar"],
)
def test_what_is_no_plain_array_is_refused(made, words):
    for call in (
        lambda: tmm_core.causal_toeplitz_matmul(made(W), X),
        lambda: tmm_core.causal_toeplitz_matmul(W, made(X)),
        lambda: tmm_core.causal_toeplitz_correlate(made(X), X, lags=2),
        lambda: tmm_core.causal_toeplitz(made(W), 2),
        lambda: tmm_core.mix_tokens(W, X, made(BIAS)),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


PLAN = tmm_core.stream_plan(W, 8)
TAKE = {
    "w": lambda a: tmm_core.causal_toeplitz_matmul(a(W), X),
    "x": lambda a: tmm_core.causal_toeplitz_matmul(W, a(X)),
    "segment_ids": lambda a: tmm_core.causal_toeplitz_matmul(W, X, segment_ids=a(IDS)),
    "g": lambda a: tmm_core.causal_toeplitz_correlate(X, a(X), lags=2),
    "column": lambda a: tmm_core.toeplitz_matmul(a(W[0]), W[0], X[0, :5, :3]),
    "row": lambda a: tmm_core.toeplitz_matmul(W[0], a(W[0]), X[0, :5, :3]),
    "y": lambda a: tmm_core.causal_toeplitz_solve(W[0, :2], a(X[0])),
    "w of an inverse": lambda a: tmm_core.causal_toeplitz_inverse(a(W[0]), 3),
    "w of a matrix": lambda a: tmm_core.causal_toeplitz(a(W), 3),
    "w of a layer": lambda a: tmm_core.mix_tokens(a(W), X),
    "bias": lambda a: tmm_core.mix_tokens(W, X, a(BIAS)),
    "w of a plan": lambda a: tmm_core.stream_plan(a(W), 8),
    "bias of a plan": lambda a: tmm_core.stream_plan(W, 8, bias=a(BIAS)),
    "x of a prompt": lambda a: tmm_core.stream_prefill(PLAN, tmm_core.stream_init(PLAN, (2,), 4), a(X)),
    "padding": lambda a: tmm_core.stream_prefill(PLAN, tmm_core.stream_init(PLAN, (2,), 4), X, padding=a(IDS[:2])),
    "x of a token": lambda a: tmm_core.stream_step(PLAN, tmm_core.stream_init(PLAN, (2,), 4), a(X[:, 0])),
    "indices": lambda a: tmm_core.stream_reorder(tmm_core.stream_init(PLAN, (2,), 4), a(IDS[:2])),
    "w of an index": lambda a: tmm_core.fredholm_index(a(W)),
    "w of a symbol": lambda a: tmm_core.toeplitz_symbol(a(W), points=2),
    "theta": lambda a: tmm_core.toeplitz_symbol(W, a(X[0, 0])),
    "segment_ids of positions": lambda a: tmm_core.document_positions(a(IDS)),
    "x of a choice": lambda a: tmm_core.current_backend(a(X)),
}


@pytest.mark.parametrize("argument", TAKE)
def test_what_may_mean_more_than_its_numbers_is_refused_by_its_name(argument):
    name = argument.split()[0]
    for made, words in (
        (lambda a: a.view(Metres), rf"^{name} must be a plain array, and is a .*Metres.*numpy.asarray\({name}\)"),
        (np.ma.asarray, f"^{name} must have all its entries, and is a masked array: fill it"),
        (Wrapped, f"^{name}: expected an array, got .*Wrapped: pass its numbers"),
        (Labelled, f"^{name}: expected an array, got .*Labelled: pass its numbers"),
    ):
        with pytest.raises(InputTypeError, match=words):
            TAKE[argument](made)


def resized(tensor, size):
    """Return a tensor whose storage holds so many bytes."""
    tensor.untyped_storage().resize_(size)
    return tensor


def fake(a):
    torch = import_or_skip("torch")
    return torch._subclasses.FakeTensorMode().from_tensor(torch.tensor(a))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("argument", TAKE)
def test_tensors_without_their_entries_are_refused_by_their_name(argument):
    torch = import_or_skip("torch")
    name = argument.split()[0]
    for made, words in (
        (lambda a: resized(torch.tensor(a), 0), "must have its entries in memory, and its storage has been freed"),
        (lambda a: resized(torch.tensor(a), a.nbytes - 1), "must have its entries in memory"),
        (lambda a: resized(torch.tensor(a).flatten()[:1].expand(a.shape), 0), "must have its entries in memory"),
        (lambda a: torch.tensor(a).to_sparse(), "must be a dense tensor, and is sparse or nested"),
        (lambda a: torch.quantize_per_tensor(torch.tensor(a).float(), 0.1, 0, torch.qint8), "must hold its numbers"),
        (fake, "must have values, and is a FakeTensor outside of its mode"),
    ):
        with pytest.raises((InputError, InputTypeError), match=f"^{name} {words}"):
            TAKE[argument](made)


@pytest.mark.parametrize("argument", TAKE)
def test_arrays_that_were_deleted_or_donated_are_refused_by_their_name(argument):
    jnp = import_or_skip("jax.numpy")

    def deleted(a):
        a = jnp.asarray(a)
        a.delete()
        return a

    with pytest.raises(InputError, match=f"^{argument.split()[0]} must have its entries in memory, and has been delet"):
        TAKE[argument](deleted)


def test_what_transformations_wrap_is_looked_into():
    torch = import_or_skip("torch")
    w, x = resized(torch.ones(3, 2, 4), 0), torch.ones(5, 4)
    with pytest.raises(InputError, match=r"^w must have its entries in memory"):
        torch.func.vmap(lambda w: tmm_core.mix_tokens(w, x, softplus=True))(w)


def test_files_in_memory_are_plain(tmp_path):
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(x, np.memmap)
    np.testing.assert_array_equal(tmm_core.causal_toeplitz_matmul(W, x), tmm_core.causal_toeplitz_matmul(W, X))


def test_meaning_inside_of_lazy_blocks_is_refused():
    da = import_or_skip("dask.array")
    lazy = da.from_array(X, chunks=3).map_blocks(lambda block: block.view(Metres), meta=np.zeros(0).view(Metres))
    with pytest.raises(InputTypeError, match=r"x must be a plain array, and is a .*Metres"):
        tmm_core.causal_toeplitz_matmul(W, lazy)
    plan = tmm_core.stream_plan(W, 8)
    with pytest.raises(InputTypeError, match="make the plan from such a w"):
        tmm_core.stream_step(plan, tmm_core.stream_init(plan, (2,), 4), da.from_array(X[:, 0]))


def test_sparse_and_nested_tensors_are_refused():
    torch = import_or_skip("torch")
    w, x = torch.asarray(W), torch.asarray(X)
    for pair in ((w.to_sparse(), x), (w, x.to_sparse()), (w, torch.nested.nested_tensor(list(x), layout=torch.jagged))):
        with pytest.raises(TypeError, match="to_dense"):
            tmm_core.causal_toeplitz_matmul(*pair)


@pytest.mark.parametrize("name", LIBRARIES)
def test_complex_lags_are_never_truncated(name):
    library = library_or_skip(name)
    w, x = library.asarray(W * (1 + 1j), "complex128"), library.asarray(X, "float64")
    y = library.to_numpy(tmm_core.causal_toeplitz_matmul(w, x))
    np.testing.assert_allclose(y, tmm_core.causal_toeplitz_matmul(W, X) * (1 + 1j), atol=1e-12)
    with pytest.raises(TypeError, match="real where x is"):
        tmm_core.mix_tokens(w, x)
    with pytest.raises(TypeError, match="real lags"):
        tmm_core.mix_tokens(w, library.asarray(X, "complex128"), softplus=True)


def test_counts_are_any_librarys_integers():
    torch = import_or_skip("torch")
    for n in (np.int64(3), np.asarray(3), torch.tensor(3)):
        assert tmm_core.causal_toeplitz(W, n).shape == (2, 3, 3, 3)
    for n in (True, 3.0, "3", None, np.asarray([3]), np.asarray(2.5), np.True_, torch.tensor(2.5), torch.tensor([3])):
        with pytest.raises(InputTypeError, match="n must be an integer"):
            tmm_core.causal_toeplitz(W, n)
    with pytest.raises(InputTypeError, match="n must have all its entries, and is a masked array"):
        tmm_core.causal_toeplitz(W, np.ma.array(3, mask=True))
    with pytest.raises(InputError, match=r"n must be at most \d+, not 10*: no memory has more places"):
        tmm_core.causal_toeplitz(W, 10**30)


FLAGS = {
    "adjoint": lambda flag: tmm_core.causal_toeplitz_matmul(W, X, adjoint=flag),
    "softplus": lambda flag: tmm_core.mix_tokens(W, X, softplus=flag),
    "mean": lambda flag: tmm_core.mix_tokens(W[:, 0], X, mean=flag),
    "softplus of a plan": lambda flag: tmm_core.stream_plan(W, 8, softplus=flag),
    "mean of a plan": lambda flag: tmm_core.stream_plan(W[:, 0], 8, mean=flag),
}


@pytest.mark.parametrize("argument", FLAGS)
def test_flags_are_true_or_false(argument):
    FLAGS[argument](np.True_)
    for flag in ("no", 1, 0, None, [], np.asarray(True)):
        with pytest.raises(InputTypeError, match=f"^{argument.split()[0]} must be True or False, not "):
            FLAGS[argument](flag)


@pytest.mark.parametrize("method", [None, 3, b"auto", ["auto"], np.asarray(["auto"]), "AUTO"])
def test_other_methods_are_refused(method):
    for call in (
        lambda: tmm_core.causal_toeplitz_matmul(W, X, method=method),
        lambda: tmm_core.causal_toeplitz_correlate(X, X, lags=2, method=method),
        lambda: tmm_core.mix_tokens(W, X, method=method),
    ):
        with pytest.raises(InputError, match="method must be 'auto' or 'direct'"):
            call()


INTEGERS = {
    **{name: TAKE[name] for name in ("segment_ids", "padding", "indices", "segment_ids of positions")},
    "positions": lambda a: tmm_core.mix_tokens(W, X, BIAS, segment_ids=IDS, positions=a(IDS)),
}


@pytest.mark.parametrize("argument", INTEGERS)
@pytest.mark.parametrize(
    "dtype", [float, bool, complex, object, str, "datetime64[s]", "timedelta64[s]", "V4", np.dtypes.StringDType()]
)
def test_what_numbers_something_is_integers(argument, dtype):
    with pytest.raises(InputTypeError, match=f"^{argument.split()[0]} must be integers, "):
        INTEGERS[argument](lambda a: np.zeros(a.shape, dtype))


def test_positions_belong_to_their_documents():
    for ids, positions in ((None, IDS), (IDS, IDS[:3]), (IDS, np.stack([IDS, IDS])), (IDS[:1], IDS[:1])):
        with pytest.raises(InputError, match="positions must be those of the 8 times of x"):
            tmm_core.mix_tokens(W, X, BIAS, segment_ids=ids, positions=positions)


def test_arguments_that_changed_places_are_told():
    x, w = np.ones((8, 64, 32)), np.ones((4, 64))
    for call in (tmm_core.causal_toeplitz_matmul, tmm_core.mix_tokens):
        with pytest.warns(UserWarning, match="the filter comes first and the signals second"):
            call(x, w)
    plan = tmm_core.stream_plan(w, 9)
    state = tmm_core.stream_init(plan, (8,), 32)
    for call in (
        lambda: tmm_core.stream_init((8,), 32, plan),
        lambda: tmm_core.stream_prefill(state, plan, x),
        lambda: tmm_core.stream_prefill(plan, x, state),
        lambda: tmm_core.stream_step(state, plan, x[:, 0]),
        lambda: tmm_core.stream_step(plan, plan, x[:, 0]),
        lambda: tmm_core.stream_step(None, None, x[:, 0]),
        lambda: tmm_core.stream_copy(plan),
        lambda: tmm_core.stream_reorder(IDS, state),
    ):
        with pytest.raises(InputTypeError, match=r"must be a Stream(Plan|State), and is a "):
            call()


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_single_number_numbers_no_documents(name):
    library = library_or_skip(name)
    with pytest.raises(InputError, match="one a position, and are a single number"):
        tmm_core.document_positions(library.asarray(np.asarray([3]), "int64")[0])


def test_gradients_that_are_none_are_no_arrays():
    """JAX's gradients of integers have NumPy's class: what is known of one class must not pass for the other."""
    jax = import_or_skip("jax")
    none = np.zeros(3, jax.dtypes.float0)
    code = "import jax, numpy as np, tmm_core\nnone = np.zeros(3, jax.dtypes.float0)\n"
    code += "try:\n    tmm_core.causal_toeplitz_matmul(none, none)\nexcept TypeError as error:\n    print(error)\n"
    code += "print(type(tmm_core.causal_toeplitz_matmul(np.ones(2), np.ones(4))))"
    done = run_python(code)
    assert "got JAX's float0" in done.stdout
    assert "numpy.ndarray" in done.stdout
    with pytest.raises(InputTypeError):
        tmm_core.causal_toeplitz_matmul(none, none)


def test_unknown_chunks_and_masked_blocks_of_dask_are_refused():
    da = import_or_skip("dask.array")
    x = da.from_array(X, chunks=3)
    for unknown in (x[x[:, 0, 0] > -99], x[:, x[0, :, 0] > -99]):
        with pytest.raises(ValueError, match="compute_chunk_sizes"):
            tmm_core.causal_toeplitz_matmul(W, unknown)
    with pytest.raises(TypeError, match="masked"):
        tmm_core.mix_tokens(W, da.ma.masked_greater(x, 1))
    np.testing.assert_allclose(tmm_core.mix_tokens(W, x, BIAS).compute(), tmm_core.mix_tokens(W, X, BIAS), atol=1e-12)


@pytest.mark.parametrize("engine", ["array_api", "numpy", "torch"])
def test_torch_vmap_over_documents(engine):
    torch = import_or_skip("torch")
    w, x = torch.asarray(W), torch.asarray(X)
    ids = torch.asarray(np.stack([IDS, IDS * 0, IDS[::-1]]))

    def product(ids):
        return tmm_core.causal_toeplitz_matmul(w, x, segment_ids=ids, backend=engine)

    def correlation(ids):
        return tmm_core.causal_toeplitz_correlate(x, x, lags=8, segment_ids=ids, backend=engine)

    for function in (product, correlation):
        together = torch.func.vmap(function)(ids)
        for i in range(2):
            torch.testing.assert_close(together[i], function(ids[i]))
        assert together[2].isnan().all(), "documents out of order"


@pytest.mark.parametrize("method", ["auto", "direct"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_terms_far_out_of_range_cancel(method, size, backend):
    w = np.asarray([3e38, -3e38, 0, 0], np.float32)
    x = np.full(300, size, np.float32)
    y = tmm_core.causal_toeplitz_matmul(w, x, method=method, backend=backend)[1:]
    assert np.all(np.abs(y.astype(float)) <= 2 * 2.0**-23 * 9 * 6e38 * size * 300**0.5)
