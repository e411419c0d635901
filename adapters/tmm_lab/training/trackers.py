"""The trackers that follow a run, such as TensorBoard: accelerate's, whichever framework trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tmm_adapters.architecture import config_to_dict
from tmm_adapters.extras import how_to_install
from tmm_core.errors import InputError, NotFoundError, did_you_mean

if TYPE_CHECKING:
    from .job import Job

__all__ = ["Trackers", "check_trackers"]


def check_trackers(report_to: str) -> None:
    """Refuse `--report-to` where accelerate does not know a tracker of that name, or its library is not installed.

    Raises
    ------
    LookupError
        If accelerate is not installed.
    ValueError
        If a tracker is unknown, or cannot be used here.
    """
    names = _names(report_to)
    if not names:
        return
    try:
        from accelerate.tracking import (  # type: ignore[import-untyped]
            LOGGER_TYPE_TO_CLASS,
            get_available_trackers,
        )
    except ImportError as error:
        raise NotFoundError(f"--report-to {report_to} needs accelerate: {how_to_install('accelerate')}") from error
    usable = [str(name) for name in get_available_trackers()]
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            known = [str(known) for known in LOGGER_TYPE_TO_CLASS]
            raise InputError(
                f"--report-to {name} is not available, there is no such tracker: choose from {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )
        if name not in usable:
            instead = f", or choose from {', '.join(usable)}" if usable else ""
            raise InputError(
                f"--report-to {name} is not available, its library is not installed: pip install {name}{instead}"
            )


class Trackers:
    """What a run's metrics are told to besides its own files.

    Parameters
    ----------
    job : Job
        Its options name the trackers; those that write files do so in the run's folder.
    on : bool
        Whether this process is the one that tells them.
    """

    def __init__(self, job: Job, *, on: bool) -> None:
        """Begin, and tell them the options and the model's configuration."""
        self._trackers: list[Any] = []
        names = _names(job.options.report_to) if on else []
        if not names:
            return
        from accelerate.state import PartialState  # type: ignore[import-untyped]
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # they ask it which process they are in; there is one already where PyTorch trains
        told = {**job.options.to_dict(), **config_to_dict(job.config)}
        for name in names:
            kind = LOGGER_TYPE_TO_CLASS[name]
            tracker = kind("tmm", str(job.run.folder)) if kind.requires_logging_directory else kind("tmm")
            tracker.start()
            # TensorBoard takes nothing else
            plain = {key: value if isinstance(value, (bool, int, float)) else str(value) for key, value in told.items()}
            tracker.store_init_configuration(plain)
            self._trackers.append(tracker)

    def report(self, metrics: Mapping[str, float], step: int) -> None:
        """Tell them of the metrics of a step."""
        for tracker in self._trackers:
            tracker.log(dict(metrics), step=step)

    def end(self) -> None:
        """Tell them that the session ends."""
        for tracker in self._trackers:
            tracker.finish()


def _names(report_to: str) -> list[str]:
    return [name.strip() for name in report_to.split(",") if name.strip() not in ("", "none")]
