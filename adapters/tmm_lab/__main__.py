"""The program `tmm`, also as `python -m tmm_lab`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; Ctrl-C is answered from the first import on."""
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        print("\ntmm: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
