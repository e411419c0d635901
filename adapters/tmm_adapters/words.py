"""Numbers in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, thing: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "token"), counted(1200, "token")
    ('1 token', '1,200 tokens')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
