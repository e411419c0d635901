"""What streams refuse, in the same words for layers and models of every framework."""

from __future__ import annotations

from ..errors import InputError

__all__ = ["no_room", "other_plan"]


def other_plan() -> ValueError:
    """Return the error for a state that another plan's streams go on with."""
    return InputError("the state belongs to another plan: expected a state that stream_init made with this one")


def no_room(position: int, count: int, capacity: int, max_len: int | None = None) -> ValueError:
    """Return the error for `count` more tokens than a stream has places for, of its own or of the position bias."""
    came = f"{position} tokens have come and {count} would follow"
    if position + count > capacity or max_len is None:
        return InputError(f"the stream is full: {came}, with {capacity=}: plan with a larger capacity")
    return InputError(
        f"the position bias ends at {max_len=}, and {came}: end the stream there, "
        "or use a model without position bias (position_bias=False), which runs on"
    )
