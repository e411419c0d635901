"""What a run is, and what it asks of the framework that trains it.

A run is `Work`. A framework says where it computes, as a `Place`, and trains, as a `Learner`; everything else about
runs is done once, for all frameworks, in the modules that take these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from numpy.typing import NDArray

from tmm_adapters.tokenizers import Tokenizer
from tmm_core import TMMConfig

from ..data.dataset import TrainingSamples
from ..data.text import Part
from ..data.tokens import TokenWindows
from ..evaluation.measure import Windows
from .options import TrainingOptions
from .runs import Run

if TYPE_CHECKING:
    from .course import Course

__all__ = ["Framework", "Learner", "Place", "Work"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be trained, on what, and where it is kept."""

    run: Run
    config: TMMConfig
    options: TrainingOptions
    samples: TrainingSamples
    held_out: TokenWindows
    """What to evaluate on; `held_out_part` is its text."""
    held_out_part: Part
    tokenizer: Tokenizer


class Learner(Protocol):
    """A model in training."""

    def train(self, course: Course, checkpoint: Path | None) -> None:
        """Do the steps from `checkpoint` on, until `course` says to stop, and what it decides after each."""

    def load(self, checkpoint: Path) -> None:
        """Take the parameters of a checkpoint: what a run needs that has no steps left to do."""

    def parameters(self, containing: str = "") -> dict[str, NDArray[Any]]:
        """Return the parameters whose names contain a word, by default all, as NumPy arrays."""

    def nats(self, windows: Windows, *, stop: Callable[[], bool] = ...) -> float:
        """Return the cross-entropy (nats) of this process's share of `windows`, summed.

        Raises
        ------
        StoppedError
            When `stop`, asked before each batch, says yes.
        """

    def text(self, prompt: str, n_tokens: int) -> tuple[str, int]:
        """Return how the model continues `prompt`, and how many tokens, at most `n_tokens`, that took."""

    def write_state(self, folder: Path) -> None:
        """Write the model and all that training needs to go on into `folder`."""

    def report(self, figures: dict[str, float]) -> None:
        """Tell services that follow the run, if any, of the figures of a step."""


class Place(Protocol):
    """Where a run is computed: the devices and the processes of one framework."""

    @property
    def batches(self) -> int:
        """How many batches are computed at a time, one on each device."""

    @property
    def processes(self) -> int:
        """How many processes share the work."""

    @property
    def first(self) -> bool:
        """Whether this process is the one that speaks and writes."""

    def device_name(self) -> str:
        """Return the device, and how many share the work."""

    def device_memory(self) -> str:
        """Return the most memory held on the device, as the end of a sentence; empty where it is the computer's."""

    def engine_name(self) -> str:
        """Return the engine that the Toeplitz products will be computed by.

        Raises
        ------
        LookupError, ValueError
            If the engine that the user chose is unknown, is not installed, or cannot serve the device.
        """

    def in_first_process(self, function: Callable[[], T]) -> T:
        """Return what `function` returns in the first process, in every process; the others wait for it."""

    def total(self, number: float) -> float:
        """Return the sum of the processes' numbers."""

    def part(self) -> None:
        """Let the processes end together."""

    def learner(self, work: Work) -> Learner:
        """Return the model of `work`, ready to be trained here."""


class Framework(Protocol):
    """A module that trains with one framework."""

    def fast_at_bfloat16(self, device: str) -> bool:
        """Return whether `--device` has instructions for bfloat16."""

    def place(self, options: TrainingOptions) -> Place:
        """Return where a run with `options` is computed.

        Raises
        ------
        ValueError
            If an option cannot be served, such as a device that is not there.
        """
