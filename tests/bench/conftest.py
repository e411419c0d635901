"""Lets tests import what asv imports; the variables that choose threads are for the processes that asv starts."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "asv_bench"))
_before = dict(os.environ)
import benchmarks  # noqa: F401

os.environ.clear()
os.environ.update(_before)
