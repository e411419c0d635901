"""The CuPy backend where there is no GPU: what it says, how it keeps plans, and how work is cut."""

import importlib.util
import threading
import types

import numpy as np
import pytest
from support.requirements import import_or_skip, skip_without

import tmm_core
from tmm_core._arrays import exchange
from tmm_core._definition import masks
from tmm_core.backend import Request
from tmm_lab.cli import main

cupy = import_or_skip("cupy")

from tmm_backends._cupy import gpu
from tmm_backends._cupy.pieces import Window
from tmm_backends._cupy.plans import CufftPlan, PlanKey, Plans

ENGINE = tmm_core.get_backend("cupy").engine
REQUEST = Request("float32", "cuda")
KEY = PlanKey(0, 0, 8, 4, "complex64")


@pytest.fixture
def no_gpu(monkeypatch):
    """Be a machine without a GPU, whatever this one has."""

    def count():
        raise RuntimeError("no driver")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", count)
    gpu.missing.cache_clear()
    yield
    gpu.missing.cache_clear()


@pytest.fixture
def a_gpu(monkeypatch):
    """Be a machine with a GPU, as far as refusals go."""
    monkeypatch.setattr(gpu, "missing", lambda: None)


# What it says --------------------------------------------------------------------------------------------------------


def test_without_a_gpu_the_backend_is_listed_and_refuses(no_gpu):
    x = np.ones((3, 2), np.float32)
    assert "cupy" in tmm_core.available_backends()
    for choose in (lambda: tmm_core.causal_toeplitz_matmul(x[:, 0], x, backend="cupy"),
                   lambda: tmm_core.causal_toeplitz_correlate(x, x, lags=2, backend="cupy")):  # fmt: skip
        with pytest.raises(ValueError, match=r"'cupy' cannot serve this call: there is no GPU here.*no driver"):
            choose()
    with tmm_core.use_backend("cupy"), pytest.raises(ValueError, match="no GPU here"):
        tmm_core.causal_toeplitz_matmul(x[:, 0], x)


def test_no_device_is_no_gpu_either(monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    assert "no GPU here" in gpu.missing.__wrapped__()


def test_a_missing_cufft_names_what_to_install(monkeypatch):
    class Cuda(types.ModuleType):
        runtime = types.SimpleNamespace(getDeviceCount=lambda: 1)

        def __getattr__(self, name):
            raise ImportError("libcufft.so.12")

    monkeypatch.setattr(gpu, "cupy", types.SimpleNamespace(cuda=Cuda("cuda")))
    assert "libcufft.so.12" in gpu.missing.__wrapped__()
    assert "pip install 'cupy-cuda13x[ctk]'" in gpu.missing.__wrapped__()


def test_the_command_says_that_there_is_no_gpu(capsys):
    if gpu.missing() is None:
        skip_without("no_gpu", "there is a GPU here")
    assert main(["backends"]) == 0
    assert f"cupy {cupy.__version__}: cannot run here\n    there is no" in capsys.readouterr().out


def test_refusals_say_what_to_do(a_gpu, monkeypatch):
    assert ENGINE.unsupported(REQUEST) is None
    refused = {
        "cpu": "arrays are on 'cpu': move them there, for example by cupy.asarray",
        "traced": "being traced",
        "tpu": "on 'tpu'",
    }
    for device, reason in refused.items():
        assert reason in ENGINE.unsupported(Request("float32", device))
    half = Request("bfloat16", "cuda")
    assert ENGINE.unsupported(half) is None
    monkeypatch.setattr(cupy, "__version__", "13.6.0")
    assert "CuPy 13.6.0 has no bfloat16: install CuPy 14" in ENGINE.unsupported(half)


def test_arrays_on_gpus_are_served_by_the_engine_under_auto(a_gpu, monkeypatch):
    for library in ("cupy", "dask"):
        assert tmm_core.choose_engine("auto", library, REQUEST) is ENGINE
    monkeypatch.setattr(gpu, "missing", lambda: "there is no GPU here")
    assert tmm_core.choose_engine("auto", "cupy", REQUEST).name == "array_api"


def test_arrays_that_are_no_cupys_are_not_its_own():
    assert not ENGINE.owns(np.ones(3))
    assert exchange.cuda_stream_of(np.ones(3)) is None


def test_work_is_queued_on_the_stream_of_its_arrays(monkeypatch):
    entered = []

    class Block:
        def __init__(self, *what):
            self.what = what

        def __enter__(self):
            entered.append(self.what)

        def __exit__(self, *_):
            entered.append(("left", *self.what))

    stand_in = types.SimpleNamespace(
        Device=lambda number: Block("device", number),
        ExternalStream=lambda pointer: Block("stream", pointer),
        Stream=types.SimpleNamespace(null=Block("null")),
    )
    monkeypatch.setattr(gpu, "cupy", types.SimpleNamespace(cuda=stand_in, ndarray=np.ndarray))
    array = types.SimpleNamespace(__dlpack_device__=lambda: (2, 3))
    for stream, block in ((None, ()), (0, ("null",)), (99, ("stream", 99))):
        monkeypatch.setattr(gpu, "cuda_stream_of", lambda array, stream=stream: stream)
        entered.clear()
        with gpu.on_stream_of(array):
            assert entered == [("device", 3)] + [block] * bool(block)
        assert entered[-1] == ("left", "device", 3)


def test_torch_queues_work_on_the_stream_of_cupys_arrays(monkeypatch):
    torch = import_or_skip("torch")
    on_stream_of = tmm_core.get_backend("torch").engine.on_stream_of
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda pointer, device: (pointer, device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    array = types.SimpleNamespace(__dlpack_device__=lambda: (2, 3), device=types.SimpleNamespace(id=3))
    monkeypatch.setattr(exchange.compat, "is_cupy_array", lambda a: a is array)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda device: types.SimpleNamespace(ptr=90 + device))
    assert on_stream_of(array) == (93, 3)
    for other in (torch.ones(3), np.ones(3)):
        with on_stream_of(other) as nothing:
            assert nothing is None


# Plans ---------------------------------------------------------------------------------------------------------------


def use(plans, key, size=1):
    """Borrow a plan once, and return it."""
    with plans.borrowed(key, lambda: CufftPlan(object(), size)) as plan:
        return plan


def test_plans_are_made_once_for_what_they_are_good_for():
    plans = Plans(most_bytes=100)
    first = use(plans, KEY)
    assert use(plans, KEY) is first
    others = [KEY._replace(**{field: value}) for field, value in
              (("stream", 7), ("thread", 1), ("length", 9), ("columns", 5), ("dtype", "complex128"))]  # fmt: skip
    assert len({first, *(use(plans, key) for key in others)}) == 6


def test_plans_are_bounded_in_number_and_in_bytes():
    plans = Plans(most_bytes=10, most_plans=3)
    keys = [KEY._replace(length=length) for length in range(1, 6)]
    made = [use(plans, key) for key in keys[:3]]
    assert plans.held == (3, 3)
    assert use(plans, keys[0]) is made[0]  # the second is now the one least recently used
    use(plans, keys[3])
    assert plans.held == (3, 3)
    assert use(plans, keys[0]) is made[0]
    assert use(plans, keys[1]) is not made[1]
    use(plans, keys[4], size=9)
    assert plans.held == (2, 10)
    use(plans, keys[4]._replace(columns=1), size=11)  # more than may be kept at all
    assert plans.held == (0, 0)


def test_a_plan_that_is_used_is_lent_to_nobody_else():
    plans, both = Plans(most_bytes=100), threading.Barrier(2)
    seen = []

    def work():
        with plans.borrowed(KEY, lambda: CufftPlan(object(), 1)) as plan:
            seen.append(plan)
            both.wait(10)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] is not seen[1]
    assert plans.held == (2, 2)


def test_a_plan_comes_back_after_an_error():
    plans = Plans(most_bytes=100)
    with pytest.raises(RuntimeError, match="inside"), plans.borrowed(KEY, lambda: CufftPlan("plan", 1)):
        raise RuntimeError("inside")
    assert plans.held == (1, 1)


# Pieces --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("channels", [slice(0, 2), slice(2, 5), slice(5, 6), slice(0, 6)])
def test_windows_read_neighbours_within_the_head(channels, adjoint):
    width, kernel_size = 6, 3
    window = Window(channels, kernel_size, width, adjoint)
    numbers = np.arange(1, width + 1)  # none is the zero of missing channels
    rows = window.rows(numbers[None, window.read], 0)
    for i, row in enumerate(rows):
        read = [
            c + (kernel_size - 1 - i if adjoint else i - kernel_size + 1) for c in range(channels.start, channels.stop)
        ]
        assert row[0].tolist() == [c + 1 if 0 <= c < width else 0 for c in read]
        if not adjoint:
            sources, targets = window.pairs(i)
            there = [c for c in read if c >= 0]
            assert numbers[window.read][sources].tolist() == [c + 1 for c in there]
            assert list(range(window.count))[targets] == list(range(window.count - len(there), window.count))


def test_documents_are_numbered_anew():
    ids = np.asarray([[3, 3, 1 << 40], [-5, 0, 0]])
    numbered = masks.numbered(ids)
    assert numbered.dtype == np.int32
    assert numbered.tolist() == [[0, 0, 1], [0, 1, 1]]
    assert masks.numbered(ids[:, :0]).shape == (2, 0)


def test_the_library_is_found_by_the_extra():
    assert importlib.util.find_spec("cupy") is not None
    assert tmm_core.get_backend("cupy").load_bridge is None
