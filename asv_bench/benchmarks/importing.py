"""What `import tmm_core` takes in a new process."""

from __future__ import annotations


class Import:
    """Seconds of an import, each in a new process: the second would find everything in place."""

    number = 1
    repeat = 9
    rounds = 1

    def timeraw_tmm_core(self) -> str:
        """Import nothing but the core."""
        return "import tmm_core"
