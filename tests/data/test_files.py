"""Files and folders are under their names whole, or as they were before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tmm_adapters.files import WriteError, atomic_folder, atomic_write, require_empty

Writer = Callable[[Path, bytes], None]


def write_file(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)
        if data == b"broken":
            raise OSError(28, "No space left on device")


def write_folder(path: Path, data: bytes) -> None:
    with atomic_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "data").write_bytes(data)
        if data == b"broken":
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("write", "data"), [(write_file, "."), (write_folder, "inner/data")])
def test_what_is_written_appears_whole_or_not_at_all(write: Writer, data: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "new", b"broken")
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "new", b"whole")
    assert (tmp_path / "new" / data).read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_file_is_replaced_and_kept_where_that_fails(tmp_path: Path) -> None:
    for data in (b"first", b"second"):
        write_file(tmp_path / "file", data)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", b"broken")
    assert (tmp_path / "file").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_takes_the_place_of_an_empty_one_only(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_folder(tmp_path / "folder", b"first")
    with pytest.raises(OSError, match="folder"):
        write_folder(tmp_path / "folder", b"second")
    assert (tmp_path / "folder" / "inner" / "data").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("writer", [atomic_write, atomic_folder])
def test_the_name_is_free_until_the_end(writer: Callable[[Path], AbstractContextManager[Any]], tmp_path: Path) -> None:
    with writer(tmp_path / "name"):
        assert not (tmp_path / "name").exists()
    assert (tmp_path / "name").exists()


@pytest.mark.parametrize("name", ["folder", "x" * 255])
def test_a_failure_is_told_of_the_name_that_was_asked_for(name: str, tmp_path: Path) -> None:
    """Not of a temporary file's, however deep what failed lies; and a name may be as long as the system allows."""
    full = OSError(28, "No space left on device")
    with (
        pytest.raises(WriteError, match=rf"^cannot write \S*/{name}: No space left on device; make room$") as failed,
        atomic_folder(tmp_path / name) as folder,
        atomic_write(folder / "inner"),
    ):
        raise full
    assert failed.value.errno == full.errno
    with pytest.raises(WriteError, match="cannot write elsewhere: No space left"), atomic_folder(tmp_path / name):
        raise WriteError(Path("elsewhere"), full)
    write_file(tmp_path / name, b"whole")
    with pytest.raises(WriteError, match=r"cannot write \S*/xx+: File name too long; choose a shorter name"):
        write_file(tmp_path / ("x" * 256), b"whole")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_only_an_empty_folder_or_none_is_taken(tmp_path: Path) -> None:
    require_empty(tmp_path)
    require_empty(tmp_path / "new" / "inner")
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="is not empty: choose another folder"):
        require_empty(tmp_path)
    with pytest.raises(FileExistsError, match="file is a file: choose another name"):
        require_empty(tmp_path / "file" / "inner")
