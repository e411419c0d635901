"""The frameworks that train: what each of them provides, and which is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from tmm_adapters.architecture import Framework, get_architecture
from tmm_adapters.extras import how_to_install
from tmm_core.errors import InputError, NotFoundError, did_you_mean

from ..progress import waiting
from ..slow_imports import TITLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..evaluation.measure import Batch, Model
    from .job import Job
    from .options import TrainingOptions

__all__ = ["Runtime", "Trainer", "choose", "load", "open_model"]

T = TypeVar("T")

# By name: what a model needs, and what training needs besides.
FRAMEWORKS: dict[Framework, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "torch": (("torch",), ("accelerate",)),
    "jax": (("jax", "optax"), ("orbax.checkpoint",)),
}


class Trainer(Protocol):
    """A model in training."""

    def step(self, batch: Batch, factor: float) -> tuple[Any, Any]:
        """Train on a batch of (accumulate, rows, context), at this share of the peak learning rate.

        Returns
        -------
        loss, grad_norm
            Of this process's share, before the step; numbers that may be waited for.
        """

    def load(self, checkpoint: Path, *, optimizer: bool) -> None:
        """Take the parameters of a checkpoint, and what the optimiser knows."""

    def write(self, folder: Path) -> None:
        """Write the model and all that training needs to go on into `folder`."""

    def parameters(self, wanted: Callable[[str], bool] = ...) -> dict[str, NDArray[Any]]:
        """Return the parameters whose names are wanted, by default all, as NumPy arrays."""

    def model(self) -> Model:
        """Return the model as it is now, to be measured and to write; it serves until the next step."""


class Runtime(Protocol):
    """The devices and processes of one framework that compute a run."""

    @property
    def local_devices(self) -> int:
        """Devices of this process; each computes a batch at a time."""

    @property
    def processes(self) -> int:
        """How many processes share the work."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def first(self) -> bool:
        """Whether this process is the one that speaks and writes."""

    def device_name(self) -> str:
        """Return the device, and how many share the work."""

    def device_memory(self) -> str:
        """Return the most memory held on the device, as the end of a sentence; empty where it is the computer's."""

    def engine_name(self) -> str:
        """Return the engine that Toeplitz products will be computed by.

        Raises
        ------
        LookupError, ValueError
            If the engine that the user chose is unknown, is not installed, or cannot serve the device.
        """

    def in_first_process(self, function: Callable[[], T]) -> T:
        """Return what `function` returns in the first process, in every process; the others wait for it."""

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of the processes' numbers, each over the processes."""

    def trainer(self, job: Job) -> Trainer:
        """Return the model of `job`, ready to be trained here."""

    def end(self) -> None:
        """Let the processes end together: one that leaves while another still talks to it is aborted."""


class TrainingFramework(Protocol):
    """The module `runtime` of a framework."""

    def fast_at_bfloat16(self, device: str) -> bool:
        """Return whether `--device` has instructions for bfloat16."""

    def settings(self, options: TrainingOptions) -> AbstractContextManager[None]:
        """Keep what the libraries are told by the environment from a run with `options`, which says it itself.

        Raises
        ------
        ValueError
            If what the environment says cannot be overruled.
        """

    def make_runtime(self, options: TrainingOptions) -> Runtime:
        """Return the runtime of a run with `options`.

        Raises
        ------
        ValueError
            If an option cannot be served, such as a device that is not there.
        """


def choose(name: str, architecture: str, *, training: bool = False) -> Framework:
    """Return the framework that `--framework name` stands for; none is imported.

    Parameters
    ----------
    name : str
        A framework, or `auto` for the first that is installed.
    architecture : str
        The name of the model's architecture.
    training : bool
        Whether it is to train, which needs more libraries.

    Raises
    ------
    LookupError
        If it is not installed, or `auto` finds none.
    ValueError
        If there is no framework of that name, or it does not compute the architecture.
    """
    able = get_architecture(architecture).frameworks
    if name != "auto" and name not in FRAMEWORKS:
        raise InputError(
            f"--framework must be auto, {' or '.join(FRAMEWORKS)}, and is {name!r}{did_you_mean(name, FRAMEWORKS)}"
        )
    if name != "auto" and name not in able:
        others = " or ".join(f"--framework {known}" for known in able)
        raise InputError(f"--framework {name} does not compute the architecture {architecture!r}: choose {others}")
    usable = [known for known in FRAMEWORKS if known in able and not missing(known, training)]
    if name == "auto":
        if not usable:
            remedies = " or ".join(how_to_install(*needed(known, training)) for known in FRAMEWORKS if known in able)
            raise NotFoundError(f"none of the frameworks {', '.join(able)} is installed: {remedies}")
        return usable[0]
    known = cast(Framework, name)
    if known not in usable:
        instead = f", or take --framework {usable[0]}" if usable else ""
        raise NotFoundError(
            f"--framework {name} needs {', '.join(missing(known, training))}: "
            f"{how_to_install(*needed(known, training))}{instead}"
        )
    return known


def missing(name: Framework, training: bool) -> list[str]:
    """Return the libraries that a framework needs and this Python lacks."""
    return [library for library in needed(name, training) if not _installed(library)]


def needed(name: Framework, training: bool) -> tuple[str, ...]:
    """Return the libraries that a framework needs."""
    model, more = FRAMEWORKS[name]
    return (*model, *(more if training else ()))


def load(name: Framework) -> TrainingFramework:
    """Import what trains with the framework called `name`."""
    _import_library(name)
    return cast("TrainingFramework", import_module(f".{name}.runtime", __package__))


def open_model(name: Framework, folder: Path, *, device: str) -> Model:
    """Return the model in a model folder, in the framework called `name`.

    Raises
    ------
    FileNotFoundError, ValueError
        As `pretrained.load_params`, and if the device is not there.
    """
    _import_library(name)
    module = import_module(f"tmm_lab.evaluation.{name}_model")
    with waiting("loading the model"):
        model: Model = module.open_model(folder, device=device)
    return model


def _import_library(name: Framework) -> None:
    """Import a framework's own library, which reads the environment then.

    Raises
    ------
    ValueError
        If it does not take what is there.
    """
    try:
        import_module(name)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{TITLES[name]} cannot be loaded ({type(error).__name__}: {error}): where that means a variable of the "
            f"environment, correct or unset it (env | grep -i {name}); else install {TITLES[name]} again"
        ) from error


def _installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except (ModuleNotFoundError, ValueError):  # the package that it is a part of is not there
        return False
