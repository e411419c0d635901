"""The machine code that the Numba engine keeps on disk: what is kept, for how long, and where it cannot be kept."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from support.requirements import import_or_skip

import_or_skip("numba")

import tmm_backends
from tmm_backends._numba import compile as compiling

CALL = """
    import logging, sys
    import numpy as np
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stdout)
    import tmm_core
    from numba.core.event import install_recorder
    with install_recorder("numba:compile") as compiled:
        y = tmm_core.causal_toeplitz_matmul(np.float32([1, 2]), np.float32([1, 10, 100]), backend="numba")
    print("compiled" if compiled.buffer else "loaded", y.tolist())
    """


def call(package, **environment):
    """Compute a small product in a process of its own, by a copy of the package; return what it said."""
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(CALL)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture
def package(tmp_path):
    """A copy of the backends, whose sources may be edited."""
    copy = tmp_path / "package"
    shutil.copytree(Path(tmm_backends.__file__).parent, copy / "tmm_backends")
    return copy


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_kernel_is_compiled_once_and_anew_when_any_source_changes(package, tmp_path):
    cache = tmp_path / "cache"
    first = call(package, NUMBA_CACHE_DIR=str(cache))
    assert len(first) == 2
    assert first[0].startswith("tmm_core: compiling the Numba kernel product_directly for float32")
    assert f"kept in {cache}" in first[0]
    assert first[1] == "compiled [1.0, 12.0, 120.0]"
    kept = files_of(cache)
    assert kept
    assert call(package, NUMBA_CACHE_DIR=str(cache)) == ["loaded [1.0, 12.0, 120.0]"]
    assert files_of(cache) == kept
    source = package / "tmm_backends" / "_numba" / "passes.py"  # not where the kernel is, whose file Numba watches
    before, after = "write_partial(dtype_tag, address + t * time_step, lanes, count)", "lanes + lanes, count)"
    assert source.read_text().count(before) == 1
    source.write_text(source.read_text().replace(before, before.replace("lanes, count)", after)))
    edited = call(package, NUMBA_CACHE_DIR=str(cache))
    assert len(edited) == 2
    assert "compiling" in edited[0]
    assert edited[1] == "compiled [2.0, 24.0, 240.0]"


def nowhere(tmp_path):
    """Return an environment in which no folder for caches or temporary files can be made."""
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "folder")
    return dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "TMPDIR", "TEMP", "TMP"), below)


def test_nowhere_to_write_is_no_error(package, tmp_path):
    # Python finds a temporary folder all the same; here it finds none.
    (package / "sitecustomize.py").write_text("import tempfile\ntempfile._candidate_tempdir_list = lambda: []\n")
    said = call(package, **nowhere(tmp_path))
    assert "no folder to keep it in can be written" in said[0]
    assert said[1:] == ["compiled [1.0, 12.0, 120.0]"]


def test_a_full_disk_is_no_error(package, tmp_path):
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    (package / "sitecustomize.py").write_text(limit)
    for _ in range(2):
        said = call(package, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert said[-1] == "compiled [1.0, 12.0, 120.0]"


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
def test_files_cut_short_are_compiled_anew(ending, package, tmp_path):
    cache = tmp_path / "cache"
    call(package, NUMBA_CACHE_DIR=str(cache))
    for file in [path for path in cache.rglob("*") if path.suffix == ending]:
        file.write_bytes(file.read_bytes()[:100])
    assert "cannot be read" in call(package, NUMBA_CACHE_DIR=str(cache))[0]
    assert call(package, NUMBA_CACHE_DIR=str(cache))[-1] == "loaded [1.0, 12.0, 120.0]"


@pytest.fixture
def places(monkeypatch, tmp_path):
    """Three places for caches, in the order in which they are tried."""
    made = [tmp_path / name for name in ("numba", "home", "tmp")]
    for place in made:
        place.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(made[0]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(made[1]))
    monkeypatch.setattr(tempfile, "tempdir", str(made[2]))
    return made


def block(place):
    """Let nobody, not even root, make a folder."""
    place.rmdir()
    place.write_text("")


def test_the_first_place_that_can_be_written_is_taken(places):
    for place in places:
        folder = compiling._folder()
        assert place in folder.parents
        assert folder.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(place)
        place.mkdir()
        block(place)
    assert compiling._folder() is None


def test_a_home_stands_for_the_users_cache(places, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(places[1]))
    assert places[1] / ".cache" in compiling._folder().parents


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are POSIX's")
def test_a_folder_that_others_can_write_is_not_trusted(places):
    first = compiling._folder()
    for mode in (0o777, 0o720, 0o702):
        first.chmod(mode)
        assert places[1] in compiling._folder().parents
    first.chmod(0o700)
    assert compiling._folder() == first


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_a_link_is_not_followed(places, tmp_path):
    first = compiling._folder()
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")
    assert places[1] in compiling._folder().parents


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners are POSIX's")
def test_a_folder_of_somebody_else_is_not_trusted(places, monkeypatch):
    first = compiling._folder()
    monkeypatch.setattr(os, "getuid", lambda: first.stat().st_uid + 1)
    assert compiling._folder() is None


def test_the_name_of_the_folder_tells_the_sources(places, monkeypatch, package):
    name = compiling._folder().name
    copied = package / "tmm_backends" / "_numba"
    monkeypatch.setattr(compiling, "__file__", str(copied / "compile.py"))
    assert compiling._folder().name == name
    for source in sorted(copied.glob("*.py")):
        text = source.read_text()
        source.write_text(text + "\n")
        assert compiling._folder().name != name, source
        source.write_text(text)
    assert compiling._folder().name == name
