"""What is Torch's own: differentiation, batching, compilation, memory. The laws themselves run in `test_laws.py`."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support import bridges
from support.processes import run_python
from support.requirements import import_or_skip, library_or_skip
from torch.autograd import forward_ad
from torch.func import hessian, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import tmm_core
from tmm_core._arrays import properties as arrays
from tmm_core.errors import InputError
from tmm_core.testing import accuracy, products

# PyTorch's own, when forward mode is first used
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

product, correlate = tmm_core.causal_toeplitz_matmul, tmm_core.causal_toeplitz_correlate
N, D, H = 5, 4, 2


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def draw(*shape, dtype=torch.float64, grad=False):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def cubed(w, x):
    """A function with derivatives of every order in both factors."""
    return (product(w, x) ** 3).sum()


dense = functools.partial(bridges.dense, torch)


def dense_cubed(w, x):
    return (dense(w, x) ** 3).sum()


# Differentiation -----------------------------------------------------------------------------------------------------


def test_exact_products_have_exact_gradients():
    w, x = draw(H, 3, grad=True), draw(N, D, grad=True)
    got = torch.autograd.grad(product(w, x, method="direct").square().sum(), (w, x))
    torch.testing.assert_close(got, torch.autograd.grad(dense(w, x).square().sum(), (w, x)))


def test_dual_numbers():
    w, x = draw(H, 3), draw(N, D)
    dw, dx = torch.randn_like(w), torch.randn_like(x)
    with forward_ad.dual_level():
        y = product(forward_ad.make_dual(w, dw), forward_ad.make_dual(x, dx))
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, dense(dw, x) + dense(w, dx))


class Subclass(torch.Tensor):
    """A class of tensors that adds nothing."""


def dual_beside_a_subclass(f, a, b):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(a, a), b.as_subclass(Subclass))).tangent


# Forward mode where operations are recorded or batched in other ways, and the same by other means.
jacobian, second = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
FORWARD = {
    "linearize": (
        lambda f, *pair: torch.func.linearize(f, *pair)[1](*pair),
        lambda f, *pair: jvp(f, pair, pair)[1],
    ),
    "dual": (dual_beside_a_subclass, lambda f, a, b: jvp(lambda a: f(a, b), (a,), (a,))[1]),
    "jacobian": (
        lambda f, *pair: jacobian(f, pair, vectorize=True, strategy="forward-mode"),
        lambda f, *pair: jacobian(f, pair),
    ),
    "hessian": (
        lambda f, *pair: second(
            lambda *pair: f(*pair).sum(), pair, vectorize=True, outer_jacobian_strategy="forward-mode"
        ),
        lambda f, *pair: second(lambda *pair: f(*pair).sum(), pair),
    ),
    "func": (lambda f, a, b: hessian(lambda a: f(a, b).sum())(a), lambda f, a, b: second(lambda a: f(a, b).sum(), a)),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
@pytest.mark.parametrize("mode", [contextlib.nullcontext, functools.partial(FlopCounterMode, display=False)])
@pytest.mark.parametrize("way", FORWARD)
def test_forward_mode_while_operations_are_recorded(way, mode):
    recorded, plain = FORWARD[way]
    w, x, g = draw(H, 3), draw(N, D), draw(N, D)

    def dense_relate(x, g):
        columns = [dense(torch.eye(3)[j].expand(H, 3).to(x), x) * g for j in range(3)]
        return torch.stack([column.unflatten(-1, (H, -1)).sum((0, 2)) for column in columns], -1)

    for engine in ("torch", "numpy"):
        multiply = functools.partial(product, backend=engine)
        relate = functools.partial(correlate, lags=3, heads=H, backend=engine)
        for function, oracle, pair in ((multiply, dense, (w, x)), (relate, dense_relate, (x, g))):
            with mode():
                found = recorded(lambda *pair, f=function: f(*pair) ** 3, *pair)
            torch.testing.assert_close(found, plain(lambda *pair, f=oracle: f(*pair) ** 3, *pair))


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_programs_recorded_by_make_fx_hold_no_results():
    import_or_skip(engine := "numba")
    w, x, bias, ids = draw(H, 3), draw(2, N, D), draw(H, N), torch.tensor([0, 0, 1, 1, 1])
    plan = tmm_core.stream_plan(w, 8, backend=engine)
    states = [tmm_core.stream_init(plan, (2,), D)]

    def mix(x):
        return tmm_core.mix_tokens(w, x, bias[:, :3], mean=True, segment_ids=ids, backend=engine)

    def step(x):
        return tmm_core.stream_step(plan, states[0], x)[0]

    torch.testing.assert_close(make_fx(mix)(x)(2 * x), mix(2 * x))
    program, other = make_fx(step)(x[:, 0]), tmm_core.stream_copy(states[0])
    torch.testing.assert_close(program(x[:, 1]), tmm_core.stream_step(plan, other, x[:, 1])[0])
    with pytest.raises(InputError, match="take prompts uncompiled"):
        make_fx(lambda x: tmm_core.stream_prefill(plan, states[0], x)[0])(x)
    with pytest.raises(InputError, match="make it outside of compiled programs"):
        make_fx(lambda w: tmm_core.stream_plan(w, 8, backend=engine).lags)(w)
    states.clear()
    with pytest.raises(InputError, match="is gone: keep its state"):
        program(x[:, 2])


def test_operations_are_counted():
    w, x = draw(H, 8, grad=True), draw(3, 8, D, grad=True)
    transforms = 5 * 3 * 8  # of length 8: 5 n log2 n operations for each row and channel, there and back, and a filter
    product(w, x)
    with FlopCounterMode(display=False) as counter:
        y = product(w, x)
        assert counter.get_total_flops() == transforms * (2 * 3 * D + H)
        y.sum().backward()
    assert counter.get_total_flops() == 3 * transforms * (2 * 3 * D + H)


# Batching ------------------------------------------------------------------------------------------------------------


def test_batched_cotangents():
    w, x = draw(H, 3, grad=True), draw(N, D)
    y, cotangents = product(w, x), draw(3, N, D)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this kind of batching loops over operations, and says so
        (batched,) = torch.autograd.grad(y, w, cotangents, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, w, g, retain_graph=True)[0] for g in cotangents]
    torch.testing.assert_close(batched, torch.stack(each))


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_batches_of_none(engine):
    w, x, none = draw(H, 3), draw(N, D), slice(0, 0)

    def multiply(w, x, ids):
        return product(w, x, segment_ids=ids, backend=engine)

    def relate(w, x, ids):
        return correlate(x, x * w[:1, :1], lags=3, heads=H, segment_ids=ids, backend=engine)

    def summed(batch, *arguments):
        return batch(*arguments).sum()

    wholes = (w[None][none], x[None][none], torch.zeros(0, N, dtype=torch.int64))
    for batched in itertools.product((0, None), repeat=3):
        if batched == (None,) * 3:
            continue
        one = (w, x, torch.zeros(N, dtype=torch.int64))
        arguments = [a if dim is None else none_of for a, none_of, dim in zip(one, wholes, batched, strict=True)]
        for function in (multiply, relate):
            batch = vmap(function, batched)
            assert batch(*arguments).shape == (0, *function(*one).shape)
            if batched[0] is None:  # a sum over nothing
                assert not torch.func.grad(summed, 1)(batch, *arguments).any()
    lags, signals = draw(2, H, 3), draw(0, N, D)
    together = vmap(vmap(lambda w, x: product(w, x, backend=engine), (0, None)), (None, 0))
    assert together(lags, signals).shape == (0, 2, N, D)
    assert together(lags[none], signals.new_zeros(2, N, D)).shape == (2, 0, N, D)


# Compilation ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled():
    """Compile as a whole, counting the graphs."""
    import torch._dynamo.testing

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def compile_whole(function, **options):
        return torch.compile(function, fullgraph=True, backend=counter, **options)

    compile_whole.counter = counter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about its internals
        yield compile_whole
    torch._dynamo.reset()


def test_compiled_training_of_any_length_is_one_graph(compiled):
    def loss(w, x, bias, ids):
        y = tmm_core.mix_tokens(w, x, bias, softplus=True, mean=True)
        c = correlate(x, y, lags=3, heads=H, segment_ids=ids)
        return product(w, y, segment_ids=ids, backend="numpy").square().sum() + c.square().sum()

    w, bias, fast = draw(H, 6, grad=True), draw(H, 700, grad=True), compiled(loss, dynamic=True)
    for n in (9, 21, 600, 601):
        x, ids = draw(2, n, D, grad=True), torch.arange(n) // 5
        got, expected = (torch.autograd.grad(f(w, x, bias, ids), (w, x, bias)) for f in (fast, loss))
        torch.testing.assert_close(got, expected)
    assert compiled.counter.frame_count == 1


def test_transforms_inside_compiled_code(compiled):
    w, x = draw(H, 3), draw(N, D)
    for transform in (
        lambda f: lambda w, x: jvp(lambda w: f(w, x), (w,), (w,))[1],
        lambda f: hessian(f),
        lambda f: lambda w, x: vmap(lambda w: f(w, x))(torch.stack([w, 2 * w])),
    ):
        torch.testing.assert_close(compiled(transform(cubed))(w, x), transform(dense_cubed)(w, x))


def test_what_the_compiler_cannot_do_is_refused(compiled):
    w, x, fast = draw(H, 3), draw(N, D), compiled(cubed)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="jvp"):
        jvp(lambda w: fast(w, x), (w,), (w,))
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match=r"compiled code has no forward mode.*uncompiled"),
    ):
        fast(forward_ad.make_dual(w, w), x)
    w.requires_grad_()
    bent = compiled(lambda w, x: cubed(w.sin(), x))
    with pytest.raises(RuntimeError, match=r"create_graph|double backward"):
        torch.autograd.grad(torch.autograd.grad(bent(w, x), w, create_graph=True)[0].sum(), w)

    def choose_inside(w, x):
        with tmm_core.use_backend("numpy"):
            return product(w, x)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="use_backend"):
        compiled(choose_inside)(w, x)


@pytest.mark.slow
def test_the_first_call_may_be_compiled():
    run_python(
        """
        import torch, tmm_core
        w, x = torch.randn(2, 3), torch.randn(5, 4)
        f = torch.compile(lambda w, x: tmm_core.causal_toeplitz_matmul(w, x), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(f(w, x), tmm_core.causal_toeplitz_matmul(w, x))
        """
    )


def test_eager_use_loads_no_compiler():
    run_python(
        """
        import sys, torch, tmm_core
        tmm_core.causal_toeplitz_matmul(torch.randn(2, 3, requires_grad=True), torch.randn(5, 4)).sum().backward()
        assert "torch._dynamo" not in sys.modules
        """
    )


# Devices -------------------------------------------------------------------------------------------------------------


class Unseen(TorchDispatchMode):
    """Refuses operations that wait for the values of a device: none of them can be captured in a graph of CUDA."""

    WAITING = ("_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "_unique2", "allclose")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        by_count = (
            name == "repeat_interleave" and func._overloadname == "Tensor" and not (kwargs or {}).get("output_size")
        )
        if name in self.WAITING or by_mask or by_count:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


HARD = [
    products.check_products,
    products.check_correlations,
    products.check_causality,
    products.check_segments,
    products.check_decreasing_segments,
    accuracy.check_non_finite,
    accuracy.check_non_finite_correlation,
    accuracy.check_range,
    accuracy.check_errors,
    accuracy.check_independence,
]


@pytest.mark.parametrize("law", HARD, ids=[law.__name__.removeprefix("check_") for law in HARD])
def test_laws_hold_where_values_are_not_looked_at(law, monkeypatch):
    engine, calls = tmm_core.get_backend("torch").engine, []
    # As of a tensor on a device
    monkeypatch.setattr(arrays, "_has_no_values", lambda torch, array: isinstance(array, torch.Tensor))

    def unseen(operation):
        def compute(*arrays, **options):
            calls.append(operation)
            with Unseen():
                return operation(*arrays, **options)

        return compute

    for name in ("matmul", "correlate"):
        monkeypatch.setattr(engine, name, unseen(getattr(engine, name)))
    law(dataclasses.replace(library_or_skip("torch"), name="torch-unseen", traced=True), "torch")
    assert calls


@pytest.mark.parametrize("look", [bool, torch.Tensor.item, lambda t: t[t], lambda t: torch.equal(t, t)])
def test_looking_at_values_is_noticed(look):
    with Unseen(), pytest.raises(AssertionError, match="waits"):
        look(torch.ones((), dtype=torch.bool))


# What surrounds training ---------------------------------------------------------------------------------------------


def test_autocast_changes_nothing():
    w, x = draw(H, 300, dtype=torch.float32), draw(3, 300, 128, dtype=torch.float32)
    expected = product(w, x)
    with torch.autocast("cpu", torch.bfloat16):
        for backend in ("torch", "array_api"):
            torch.testing.assert_close(product(w, x, backend=backend), expected, rtol=1e-5, atol=1e-4)


def test_matrix_products_of_fewer_bits_are_not_used():
    from tmm_backends._torch.pieces import choose_algorithm
    from tmm_backends._torch.transforms import Direct

    def is_direct(dtype):
        return isinstance(choose_algorithm(torch.Size((3, 300, 2, 64)), 300, dtype, torch.device("cpu")), Direct)

    before = torch.backends.mkldnn.matmul.fp32_precision
    assert is_direct(torch.float32)
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        assert not is_direct(torch.float32)
        assert is_direct(torch.float64)
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def test_only_the_factors_are_kept_for_the_backward_pass():
    w, x, kept = draw(H, 600, grad=True), draw(600, D, grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        product(w, x, segment_ids=torch.arange(600) // 100)
    storages = {t.untyped_storage().data_ptr() for t in kept}
    assert {w.untyped_storage().data_ptr(), x.untyped_storage().data_ptr()} < storages
    assert sum(t.numel() for t in kept) <= w.numel() + x.numel() + 600


@pytest.mark.parametrize(
    ("heads", "lags"),
    [
        pytest.param(1, 65536, id="one head"),
        *(pytest.param(*size, marks=pytest.mark.slow) for size in ((4, 65536), (64, 4096), (64, 65536), (1, 16))),
    ],
)
def test_memory_of_a_long_product(heads, lags):
    done = run_python(
        f"""
        import resource, torch, tmm_core
        torch.set_num_threads(2)
        w = torch.randn({heads}, {lags}, requires_grad=True)
        small = torch.randn(1, 2048, 64, requires_grad=True)
        tmm_core.causal_toeplitz_matmul(w, small).sum().backward()  # libraries loaded, pools filled
        x = torch.randn(4, 65536, 64, requires_grad=True)
        g = torch.randn(4, 65536, 64)
        y = torch.zeros_like(g)
        w.grad, x.grad = torch.zeros_like(w), torch.zeros_like(g)
        size = (w.numel() + x.numel()) * 4 / 2**20

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        before = peak()
        del y
        y = tmm_core.causal_toeplitz_matmul(w, x)
        forward = peak() - before
        w.grad = x.grad = None
        y.backward(g)
        print(forward / size, (peak() - before) / size)
        """
    )
    forward, both = map(float, done.stdout.split())
    assert forward <= 1.5
    assert both <= 1.5


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_recomputes_the_same_gradients(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    w, x = draw(H, 3, grad=True), draw(N, D, grad=True)
    expected = torch.autograd.grad(cubed(w, x), (w, x))
    checkpoint(cubed, w, x, use_reentrant=use_reentrant).backward()
    torch.testing.assert_close((w.grad, x.grad), expected, rtol=0, atol=0)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    script = f"""
        import os, torch, tmm_core
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.checkpoint import checkpoint

        class Mixer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lags = torch.nn.Parameter(torch.randn({H}, {N}))

            def forward(self, x):
                return checkpoint(tmm_core.mix_tokens, self.lags, x, use_reentrant=False)

        torch.manual_seed(0)
        mixer, x = Mixer(), torch.randn(4, {N}, {D})
        (expected,) = torch.autograd.grad(mixer(x).square().mean(), mixer.lags)
        rank = int(os.environ["RANK"])
        torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
        parallel = DistributedDataParallel(mixer)
        parallel(x[2 * rank :][:2]).square().mean().backward()
        torch.testing.assert_close(mixer.lags.grad, expected)
        torch.distributed.destroy_process_group()
        """
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda rank: run_python(script, RANK=rank), "01"))


def test_results_do_not_depend_on_threads_or_runs():
    threads = torch.get_num_threads()
    try:
        for n in (300, 700):
            w, x = draw(H, n, dtype=torch.float32, grad=True), draw(2, n, 128, dtype=torch.float32, grad=True)
            results = []
            for count in (1, 2, 2):
                torch.set_num_threads(count)
                y = product(w, x)
                results.append((y, *torch.autograd.grad(y.square().sum(), (w, x))))
            torch.testing.assert_close(results[1], results[2], rtol=0, atol=0)
            torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-3)
    finally:
        torch.set_num_threads(threads)


def test_tensors_of_every_kind():
    w, x = draw(H, 3), draw(N, D)
    expected = dense(w, x)
    parameter = torch.nn.Parameter(w)
    for dw, dx in ((w, x.mT.contiguous().mT), (parameter, x), (w, torch.stack([x, x], 1)[:, 0])):
        torch.testing.assert_close(product(dw, dx), expected)
    torch.testing.assert_close(product(w, x.expand(3, 2, N, D)), expected.expand(3, 2, N, D))
    with torch.inference_mode():
        y = product(parameter, x)
    assert y.is_inference()
    torch.testing.assert_close(product(w, x).requires_grad, False)
    assert product(parameter, x).requires_grad
    with torch.no_grad():
        assert not product(parameter, x).requires_grad
    torch.testing.assert_close(
        product(w, torch.ones(N, D, dtype=torch.float64) * 1j).imag, dense(w, torch.ones_like(x))
    )


def test_tensors_without_values_have_the_shape_of_the_result():
    from torch._subclasses.fake_tensor import FakeTensorMode

    w, x = (
        torch.empty(H, 3, device="meta", requires_grad=True),
        torch.empty(2, N, D, device="meta", dtype=torch.bfloat16),
    )
    y = product(w, x, segment_ids=torch.empty(N, dtype=torch.int64, device="meta"))
    y.sum().backward()
    assert (y.shape, y.dtype, y.device.type) == ((2, N, D), torch.float32, "meta")
    assert (w.grad.shape, w.grad.device.type) == ((H, 3), "meta")
    with FakeTensorMode():
        c = correlate(torch.empty(N, D), torch.empty(N, D), lags=7, heads=H, kernel_size=2)
    assert c.shape == (H, 2, 7)


class Mixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lags = torch.nn.Parameter(torch.randn(H, N))

    def forward(self, x):
        return tmm_core.mix_tokens(self.lags, x)


def test_modules_are_copied_pickled_and_exported():
    mixer, x = Mixer(), draw(2, N, D, dtype=torch.float32)
    for other in (copy.deepcopy(mixer), pickle.loads(pickle.dumps(mixer)), torch.export.export(mixer, (x,)).module()):
        torch.testing.assert_close(other(x), mixer(x))
