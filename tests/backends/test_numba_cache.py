"""The machine code that the Numba engine keeps on disk: what is kept, for how long, and where it cannot be kept."""

import compileall
import os
import shutil
import tempfile
import textwrap
from pathlib import Path

import pytest
from support.processes import run_python
from support.requirements import import_or_skip, system_or_skip

import_or_skip("numba")

import tmm_backends
from tmm_backends._numba import machine_code

PRODUCT = """
    import tmm_core
    def call():
        return tmm_core.causal_toeplitz_matmul(np.float32([1, 2]), np.float32([1, 10, 100]), backend="numba").tolist()
    """

# A kernel that takes little time to compile, and a function in another file that it calls.
FACTOR = """
from .compile import device_function

@device_function
def multiply(x):
    return 2 * x
"""
SMALL = """
from .compile import kernel
from .factor import multiply

@kernel
def small(dtype_tags, x):
    return multiply(x)
"""
KERNEL = """
    from tmm_backends._numba.small import small
    def call():
        return small((np.float32(0),), 21.0)
    """

RECORD = """
    from numba.core.event import install_recorder
    with install_recorder("numba:compile") as compiled:
        result = call()
    print("compiled" if compiled.buffer else "loaded", result)
    """


def call(package, code=KERNEL, **environment):
    """Call a kernel in a process of its own, by a copy of the package; return the lines that it printed."""
    begin = "import logging, sys\nimport numpy as np\nlogging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
    paths = {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error"}
    source = begin + textwrap.dedent(code) + textwrap.dedent(RECORD)
    return run_python(source, **paths, **environment).stdout.splitlines()


@pytest.fixture
def sources(tmp_path):
    """The folder of the Numba backend in a copy of the backends, which may be edited."""
    return shutil.copytree(Path(tmm_backends.__file__).parent, tmp_path / "package" / "tmm_backends") / "_numba"


@pytest.fixture
def package(sources):
    """A copy of the backends with a small kernel."""
    (sources / "factor.py").write_text(FACTOR)
    (sources / "small.py").write_text(SMALL)
    return sources.parents[1]


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_product_is_compiled_once(package, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    *logged, result = call(package, PRODUCT, **cache)
    assert result == "compiled [1.0, 12.0, 120.0]"
    assert len(logged) == 1
    assert "compiling the Numba kernel product_along_time for float32" in logged[0]
    assert f"kept in {tmp_path / 'cache'}" in logged[0]
    files = files_of(tmp_path / "cache")
    assert call(package, PRODUCT, **cache) == ["loaded [1.0, 12.0, 120.0]"]
    assert files_of(tmp_path / "cache") == files


def test_a_kernel_is_compiled_anew_when_any_source_changes(package, sources, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert call(package, **cache)[-1] == "compiled 42.0"
    assert call(package, **cache) == ["loaded 42.0"]
    (sources / "factor.py").write_text(FACTOR.replace("2 * x", "3 * x"))
    assert call(package, **cache)[-1] == "compiled 63.0"


def test_without_a_writable_folder_kernels_are_compiled_in_each_process(package, tmp_path):
    # Python finds a temporary folder all the same; here it finds none.
    (package / "sitecustomize.py").write_text("import tempfile\ntempfile._candidate_tempdir_list = lambda: []\n")
    (tmp_path / "file").write_text("")
    folders = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "TMPDIR", "TEMP", "TMP")
    logged, result = call(package, **dict.fromkeys(folders, str(tmp_path / "file" / "folder")))
    assert "no folder to keep it in can be written" in logged
    assert result == "compiled 42.0"


def test_a_full_disk_is_no_error(package, tmp_path):
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    (package / "sitecustomize.py").write_text(limit)
    for _ in range(2):
        logged = call(package, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert any("could not be kept on disk" in line for line in logged)
        assert logged[-1] == "compiled 42.0"


def flipped(content, at):
    changed = bytearray(content)
    changed[at] ^= 1 << at % 8
    return bytes(changed)


def test_what_is_damaged_is_compiled_anew(package, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    call(package, **cache)
    (file,) = files_of(tmp_path / "cache")
    file.write_bytes(flipped(file.read_bytes(), file.stat().st_size // 2))
    *logged, result = call(package, **cache)
    assert any(f"damaged: {file}" in line for line in logged)
    assert result == "compiled 42.0"
    assert call(package, **cache) == ["loaded 42.0"]


def test_no_damage_is_overlooked(tmp_path):
    code, file = bytes(range(256)) * 4, tmp_path / "kernel"
    content = machine_code.HASH(code).digest() + code
    file.write_bytes(content)
    assert machine_code._read(file) == code
    damages = [flipped(content, at) for at in range(0, len(content), 7)]
    damages += [content[:size] for size in (0, 10, machine_code.DIGEST, 100, len(content) - 1)]
    damages += [bytes(len(content)), content[:500] + bytes(512) + content[1012:], content + b"\n"]
    for damaged in damages:
        file.write_bytes(damaged)
        assert machine_code._read(file) is None


def test_a_file_that_cannot_be_read_or_replaced_is_no_error(package, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    call(package, **cache)
    (file,) = files_of(tmp_path / "cache")
    file.unlink()
    file.mkdir()
    *logged, result = call(package, **cache)
    assert any("cannot be read" in line for line in logged)
    assert result == "compiled 42.0"


def test_byte_code_alone_is_enough(package, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert compileall.compile_dir(package, legacy=True, quiet=1)
    for source in package.rglob("*.py"):
        source.unlink()
    assert call(package, **cache)[-1] == "compiled 42.0"
    assert call(package, **cache) == ["loaded 42.0"]


def test_nothing_is_kept_where_nothing_tells_the_sources(places, monkeypatch):
    monkeypatch.setattr(machine_code, "_sources", list)
    assert machine_code._folder() is None


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
        folder = machine_code._folder()
        assert place in folder.parents
        assert folder.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(place)
        place.mkdir()
        block(place)
    assert machine_code._folder() is None


def test_a_home_stands_for_the_users_cache(places, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(places[1]))
    assert places[1] / ".cache" in machine_code._folder().parents


def test_a_folder_that_others_can_write_is_not_trusted(places):
    system_or_skip("posix", "permissions are POSIX's")
    first = machine_code._folder()
    for mode in (0o777, 0o720, 0o702):
        first.chmod(mode)
        assert places[1] in machine_code._folder().parents
    first.chmod(0o700)
    assert machine_code._folder() == first


def test_a_link_is_not_followed(places, tmp_path):
    system_or_skip("posix", "links need no rights on POSIX only")
    first = machine_code._folder()
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")
    assert places[1] in machine_code._folder().parents


def test_a_folder_of_somebody_else_is_not_trusted(places, monkeypatch):
    system_or_skip("posix", "owners are POSIX's")
    first = machine_code._folder()
    monkeypatch.setattr(os, "getuid", lambda: first.stat().st_uid + 1)
    assert machine_code._folder() is None


def test_the_name_of_the_folder_tells_the_sources(places, monkeypatch):
    name, sources = machine_code._folder().name, machine_code._sources()
    assert len(sources) == len(list(Path(machine_code.__file__).parent.glob("*.py")))
    for i in range(len(sources)):
        monkeypatch.setattr(machine_code, "_sources", lambda i=i: [*sources[:i], sources[i] + b"\n", *sources[i + 1 :]])
        assert machine_code._folder().name != name
