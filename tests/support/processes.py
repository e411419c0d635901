"""Python code in a process of its own."""

import os
import subprocess
import sys
import textwrap


def run_python(code: str, *, fails: bool = False, timeout: float = 120, **environment: str) -> tuple[str, str]:
    """Run code, and check whether it fails as it should.

    Returns
    -------
    tuple of str
        What it printed to the standard output and to the standard error.
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=timeout,
    )
    assert bool(done.returncode) == fails, done.stderr[-3000:]
    return done.stdout, done.stderr
