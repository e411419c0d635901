"""How to write a backend, and everything that one needs of `tmm_core`.

A *backend* has an engine, a bridge, or both. An *engine* computes products on concrete buffers. A *bridge* surrounds
any engine with what an array library needs: differentiation, tracing, batching, laziness. The library of the arrays
selects the bridge, the choice of backend selects the engine. To add one:

1. Write a class with the members of `Engine`; `Streamer`, `Writer` and `Queued` are what it may do besides.
2. Describe it by a `Backend`, in a module that imports no array library: descriptions are read to list what there is.
   Its `ranks` say for which arrays `auto` takes it.
3. Name that object in the metadata of your distribution, under the name by which users choose the backend::

       [project.entry-points."tmm_core.backends"]
       mine = "my_module:backend"

4. Put it through the laws: `tmm_core.testing.check_backend("mine")`.

`tests/backends/stranger` in the repository is such a distribution, complete, over `scipy.fft`. A backend imports this
module and nothing else of `tmm_core`. What it holds:

- protocols, in `_protocols.py`: `Engine`, `Writer`, `Queued`, `Streamer`; `Bridge`, `LazyBridge`, `StreamBridge`,
  `StreamRecorder`, `FunctionalStream`;
- descriptions, in `_registry.py`: `Backend`, `Rank`, `Request`; `get_backend` finds one by its name;
- engines on arrays of any library, in `_run.py`: `run_matmul` and `run_correlate`, for bridges;
- arrays: `share` and `share_like` hand buffers over, `plain_memory` makes them readable by address, `library_of`,
  `namespace_of`, `device_kind`, `dtype_name`, `result_dtype`, `computed_in` and `surely_all` ask about
  them; `with_jax_defaults` computes in spite of JAX's strict modes, and of explicit axes of its meshes;
- the definition, to which an engine may hand what it does not compute: `definition_matmul`, `definition_correlate`,
  `LayerStream`, and its parts: documents (`by_segments`, …), non-finite entries (`split_finite`, `nan_mask_of_outputs`,
  …), pieces (`cut_into_pieces`), lengths of transforms (`fast_length`) and the error law (`error_factor`).
"""

from .._arrays.exchange import (
    Array,
    cuda_stream_of,
    device_kind,
    dtype_name,
    library_of,
    namespace_of,
    plain_memory,
    share,
    share_like,
)
from .._arrays.properties import (
    computed_in,
    conj,
    is_real,
    nan_where,
    result_dtype,
    result_dtype_name,
    shift_channels,
    surely_all,
)
from .._arrays.strictness import with_jax_defaults
from .._definition import tiles
from .._definition.fourier import ERROR_CONSTANT, error_factor, fast_length
from .._definition.masks import (
    by_segments,
    check_ordered,
    correlate_by_segments,
    nan_mask_of_lags,
    nan_mask_of_outputs,
    nan_mask_up_to,
    numbered,
    positions,
    split_finite,
)
from .._definition.pieces import Piece, cut_into_pieces
from .._definition.streaming import ExchangedStream, LayerStream, StreamLayer
from .._definition.toeplitz import Method
from .._definition.toeplitz import causal_toeplitz_correlate as definition_correlate
from .._definition.toeplitz import causal_toeplitz_matmul as definition_matmul
from ..errors import InputError, InputTypeError, NotFoundError, UnsupportedError
from ._protocols import (
    Bridge,
    Engine,
    FunctionalStream,
    LazyBridge,
    Queued,
    Request,
    StreamBridge,
    Streamer,
    StreamRecorder,
    Writer,
)
from ._registry import Backend, Rank, available_backends, described_backends, get_backend, registered_backends
from ._run import run_correlate, run_matmul
from ._states import Stepper, StreamState

__all__ = [
    "ERROR_CONSTANT",
    "Array",
    "Backend",
    "Bridge",
    "Engine",
    "ExchangedStream",
    "FunctionalStream",
    "InputError",
    "InputTypeError",
    "LayerStream",
    "LazyBridge",
    "Method",
    "NotFoundError",
    "Piece",
    "Queued",
    "Rank",
    "Request",
    "Stepper",
    "StreamBridge",
    "StreamLayer",
    "StreamRecorder",
    "StreamState",
    "Streamer",
    "UnsupportedError",
    "Writer",
    "available_backends",
    "by_segments",
    "check_ordered",
    "computed_in",
    "conj",
    "correlate_by_segments",
    "cuda_stream_of",
    "cut_into_pieces",
    "definition_correlate",
    "definition_matmul",
    "described_backends",
    "device_kind",
    "dtype_name",
    "error_factor",
    "fast_length",
    "get_backend",
    "is_real",
    "library_of",
    "namespace_of",
    "nan_mask_of_lags",
    "nan_mask_of_outputs",
    "nan_mask_up_to",
    "nan_where",
    "numbered",
    "plain_memory",
    "positions",
    "registered_backends",
    "result_dtype",
    "result_dtype_name",
    "run_correlate",
    "run_matmul",
    "share",
    "share_like",
    "shift_channels",
    "split_finite",
    "surely_all",
    "tiles",
    "with_jax_defaults",
]
