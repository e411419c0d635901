"""Whatever moment a training process is killed at, nothing is lost, and the run ends as one that was left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.training_runs import ONE_THREAD

KILLS = int(os.environ.get("TMM_TEST_KILLS", "6"))
SEED = int(os.environ.get("TMM_TEST_KILLS_SEED", "0"))


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize(("framework", "kills"), [("torch", KILLS), ("jax", -(-KILLS // 20))])
def test_killed_runs_are_equal_to_one_left_alone(framework: str, kills: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "support.kills", framework, str(kills), str(SEED), str(tmp_path)]
    tests = Path(__file__).parent.parent
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**ONE_THREAD, "PYTHONPATH": str(tests)}
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kills} kills of" in done.stdout
