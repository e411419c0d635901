"""Python code in a process of its own."""

import os
import subprocess
import sys
import textwrap


def run_python(code: str, *, fails: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code, and check whether it fails as it should."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=280,
    )
    assert bool(done.returncode) == fails, done.stderr[-3000:]
    return done
