"""Kill `tmm train` by SIGKILL at random moments, go on as a script would, and hold the run against one left alone.

    python -m support.kills FRAMEWORK KILLS SEED FOLDER

Libraries are imported once, and each command is a fork of this process, so that the moments fall into what a run does.
The first run that differs ends it, and is left in the folder.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from support.training_runs import COMMON, traces, write_words

from tmm_lab.cli import main

OPTIONS = [*COMMON, "--steps", "30", "--evaluations", "5", "--checkpoint-steps", "4", "--log-every", "7"]
OPTIONS += ["--vocab", "300", "--accumulate", "2"]
MOST_KILLS = 4  # of one run
LIBRARIES = {"torch": ["accelerate"], "jax": ["optax", "orbax.checkpoint"]}


def command(arguments: list[str], *, kill_after: float | None = None) -> int | None:
    """Run `tmm` in a process of its own; return its exit code, None if it was killed."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            code = main(arguments)
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def train(options: list[str], out: Path, *, kill_after: float | None = None) -> int | None:
    """Do as a script does that knows of no kill: begin the run, and if that is refused, resume it."""
    begin = time.monotonic()
    code = command(["train", *options, "--out", str(out)], kill_after=kill_after)
    if code == 2:
        rest = None if kill_after is None else max(0.0, kill_after - (time.monotonic() - begin))
        code = command(["train", "--resume", str(out)], kill_after=rest)
    return code


def state(run: Path) -> dict[str, object]:
    """Return all that must not depend on whether a run was killed."""
    description = json.loads((run / "run.json").read_text())
    for name in ("started", "sha256"):
        del description[name]
    files = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        timed = name in ("metrics.jsonl", "run.json") or path.name in ("loop.json", "SHA256SUMS") or ".orbax" in name
        if path.is_file() and not timed:
            files[name] = path.read_bytes()
    counted = json.loads(sorted((run / "checkpoints").glob("step-*/loop.json"))[-1].read_text())
    del counted["seconds"]
    return {"description": description, **files, "traces": traces(run), "loop": counted}


def different(run: Path, whole: dict[str, object]) -> list[str]:
    """Return the names of what differs between a run and the one left alone."""
    found = state(run)
    return sorted(name for name in found.keys() | whole.keys() if found.get(name) != whole.get(name))


def run(framework: str, kills: int, seed: int, folder: Path) -> int:
    """Kill so many times; return 1 where a run then differs, or does not come through."""
    rng, options = random.Random(seed), ["--framework", framework, *OPTIONS, "--text", str(write_words(folder))]
    for library in ("matplotlib.figure", *LIBRARIES[framework], f"tmm_lab.training.{framework}.runtime"):
        importlib.import_module(library)
    assert train(options, folder / "first") == 0  # compiles, perhaps
    begin = time.monotonic()
    assert train(options, folder / "whole") == 0
    usual, whole = time.monotonic() - begin, state(folder / "whole")
    done = runs = 0
    print(f"a run left alone: {usual:.1f} s", flush=True)
    while done < kills:
        out, moments = folder / f"run-{runs}", []
        code: int | None = None
        while code is None:
            after = None
            if done < kills and len(moments) < MOST_KILLS:
                after = rng.uniform(0, 1.1 * usual)
                moments.append(round(after, 3))
            code = train(options, out, kill_after=after)
            done += code is None
        wrong = different(out, whole) if code == 0 else [f"exit code {code}"]
        runs += 1
        if wrong:
            print(f"{out}, killed after {moments} s: {', '.join(wrong)} (seed {seed})")
            return 1
        shutil.rmtree(out)
        print(f"{done} of {kills} kills, the last run after {moments} s", flush=True)
    print(f"{done} kills of {runs} runs in {time.monotonic() - begin:.0f} s: every run is equal to one left alone")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
