"""Texts as people have them: plain or in rows, compressed, in folders, from standard input."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.requirements import import_or_skip, skip_without, system_or_skip

from tmm_core.errors import TMMError
from tmm_lab.data.config import DataConfig, TextConfig
from tmm_lab.data.files import read_documents, text_files

TEXTS = ["first\r\n文\x01 file\n", "a second, ended by two lines\n\n", "🙂" * 70_000 + " é", "l'été"]


def zstd(data: bytes) -> bytes:
    return import_or_skip("zstandard").ZstdCompressor().compress(data)


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def json_lines(texts: list[Any], field: str) -> bytes:
    return "\n".join(json.dumps({"id": i, field: text}, ensure_ascii=i % 2) for i, text in enumerate(texts)).encode()


def parquet(texts: list[Any], field: str) -> bytes:
    pyarrow, file = import_or_skip("pyarrow"), io.BytesIO()
    import_or_skip("pyarrow.parquet").write_table(
        pyarrow.table({"id": range(len(texts)), field: texts}), file, row_group_size=2
    )
    return file.getvalue()


ROWS = {".jsonl": json_lines, ".ndjson": json_lines, ".parquet": parquet}


def documents(*paths: Path, **options: Any) -> list[str]:
    return [d if isinstance(d, str) else "".join(d) for d in read_documents(paths, **options)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", ["", ".txt", *ROWS])
def test_a_text_is_the_same_however_it_is_kept(kind: str, compression: str, tmp_path: Path) -> None:
    compress, file = COMPRESSIONS[compression], tmp_path / f"text.1{kind.upper()}{compression}"
    if kind in ROWS:
        file.write_bytes(compress(ROWS[kind]([TEXTS[0], None, *TEXTS[1:]], "body")))
        assert documents(file, field="body") == TEXTS, "a row without text is passed over"
    else:
        parts = ["", *TEXTS]
        file.write_bytes(compress("<|end|>".join(parts).encode()))
        assert documents(file) == ["<|end|>".join(parts)]
        assert documents(file, separator="<|end|>") == parts


@pytest.mark.parametrize("compression", [c for c in COMPRESSIONS if c])
def test_compressed_files_are_whole_or_refused(compression: str, tmp_path: Path) -> None:
    file, data = tmp_path / f"text{compression}", COMPRESSIONS[compression](os.urandom(400).hex().encode())
    file.write_bytes(data + data)  # two, one after the other
    assert len(documents(file)[0]) == 1600
    for damaged in (data[:-9], data + data[:-9], data[:3], b"plain text", data + b"plain text", bytes(99) + data[-99:]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"text\{compression} (is damaged|was cut short)"):
            documents(file)
    file.write_bytes(COMPRESSIONS[compression](b""))
    with pytest.raises(ValueError, match="is empty: leave it out"):
        documents(file)


@settings(deadline=None, max_examples=50)
@given(texts=st.lists(st.text("ab", max_size=9), min_size=1, max_size=5), separator=st.sampled_from(["ab", "aba", "c"]))
def test_documents_are_what_stands_between_separators(
    texts: list[str], separator: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("text") / "text"
    whole = separator.join(["x", *texts])
    file.write_text(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tmm_lab.data.files._READ", 3)
        assert documents(file, separator=separator) == whole.split(separator)


def test_separators_are_typed_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\n\n\ntwo\tthree")
    for separator, found in ((r"\n\n\n", ["one", "two\tthree"]), (r"\t", ["one\n\n\ntwo", "three"])):
        source = TextConfig(text=(str(tmp_path / "text"),), separator=separator)
        assert ["".join(document) for document in source.documents()] == found
    with pytest.raises(ValueError, match="--separator is empty"):
        TextConfig(separator="")


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/b/c.jsonl", ".hidden", ".git/config", "a/empty.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if "empty" in name else json.dumps({"text": name}))
    found = documents(tmp_path)
    assert found == ["a/b/c.jsonl", *(json.dumps({"text": name}) for name in ("a/z.txt", "b.txt"))]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="none holds no text"):
        documents(tmp_path / "none")


def test_what_lies_in_a_folder_is_read_refused_or_no_file(tmp_path: Path) -> None:
    system_or_skip("posix", "pipes with names and modes are POSIX's")
    folder, elsewhere = tmp_path / "texts", tmp_path / "elsewhere"
    for file in (folder / "b", elsewhere / "inner" / "a"):
        file.parent.mkdir(parents=True)
        file.write_text(file.name)
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "a-link").symlink_to(elsewhere)
    assert documents(folder) == ["a", "b"], "links are followed, and a pipe or a device is waited for by nobody"
    (elsewhere / "inner" / "up").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="inner/up is a link to a folder that it is in"):
        documents(folder)
    (elsewhere / "inner" / "up").unlink()
    (folder / "lost").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="texts/lost"):
        documents(folder)


def test_standard_input_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é ".encode() * 300_000), encoding="ascii"))
    assert documents(Path("-")) == ["é " * 300_000]
    assert DataConfig(text=("-",)).name == "standard input"
    with pytest.raises(ValueError, match="standard input is empty"):
        documents(Path("-"))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="standard input is closed"):
        documents(Path("-"))


@pytest.mark.parametrize("name", ["./-", ".", "{}/-", "{}"])
def test_a_file_may_have_the_name_of_standard_input(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "-").write_text("a file")
    monkeypatch.chdir(tmp_path)
    source = DataConfig(text=(name.format(tmp_path),))
    assert ["".join(document) for document in source.documents()] == ["a file"]
    assert source.size() == 6
    assert source.name != "standard input"


def test_files_that_are_none_are_refused_before_any_is_read(tmp_path: Path) -> None:
    good, empty = tmp_path / "good", tmp_path / "empty"
    good.write_text("good")
    empty.touch()
    with pytest.raises(FileNotFoundError, match=r"no text file .*missing: check the path"):
        read_documents([good, tmp_path / "missing"])
    with pytest.raises(ValueError, match=r"empty is empty: leave it out"):
        read_documents([good, empty])
    with pytest.raises(ValueError, match="name at least one"):
        read_documents([])


@pytest.mark.parametrize("name", ["hard", "soft", "again", "folder"])
def test_one_file_is_no_two_texts(name: str, tmp_path: Path) -> None:
    """What is held out of one would be trained on in the other."""
    file, other = tmp_path / "text", tmp_path / "more" / name
    other.parent.mkdir()
    file.write_text("a text")
    second = {"hard": other, "soft": other, "again": tmp_path / "more" / ".." / "text", "folder": other.parent}[name]
    if name in ("hard", "folder"):
        other.hardlink_to(file)
    elif name == "soft":
        other.symlink_to(file)
    with pytest.raises(ValueError, match=r"text file .* are one, so what is held out is trained on: name one"):
        read_documents([file, second])


@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.parametrize("before", [0, 5, (1 << 18) - 1, (1 << 20) + 3])
@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\x80", b"\0", "é".encode()[:1], "漢".encode()[:2] + b"x"])
def test_what_is_no_text_is_refused_with_its_place_or_replaced(
    tmp_path: Path, before: int, bad: bytes, compression: str
) -> None:
    file = tmp_path / f"binary{compression}"
    text = b"\n" * min(before, 2) + b"x" * max(0, before - 2)
    file.write_bytes(COMPRESSIONS[compression](text + bad))
    place = f"byte {before} in line {1 + min(before, 2)} shows, which is {bad[0]:#04x}"
    with pytest.raises(ValueError, match=rf"binary\S* is not UTF-8 text, as {place}: .*--text-errors replace"):
        documents(file)
    replaced = bad.decode(errors="replace").replace("\0", "\ufffd")
    assert documents(file, errors="replace") == [text.decode() + replaced]


def test_rows_that_hold_no_text_are_named(tmp_path: Path) -> None:
    for suffix, write in ROWS.items():
        file = tmp_path / f"rows{suffix}"
        file.write_bytes(write(["a", "b"], "body"))
        with pytest.raises(LookupError, match=rf"row 1 of .*rows\{suffix} has no text in a field 'text': .* 'body'"):
            documents(file)
        file.write_bytes(write([1, 2], "text"))
        with pytest.raises(LookupError, match=r"row 1 of .* has no text in a field 'text': leave it out"):
            documents(file)
        file.write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match=r"line 1 of .* is not JSON|is no whole Parquet file"):
            documents(file)
    lines = tmp_path / "lines.jsonl"
    for line in ("[1]", "3", '{"other": "x"}', '{"text": ["x"]}'):
        lines.write_text('{"text": "fine"}\n\n' + line)
        with pytest.raises(LookupError, match=r"row 2 of .*lines\.jsonl has no text in a field 'text'"):
            documents(lines)


@pytest.mark.parametrize(("kind", "bad"), [*((kind, "\0") for kind in ROWS), (".jsonl", "\ud83d")])
def test_what_is_no_text_is_refused_in_rows_as_in_plain_files(kind: str, bad: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows{kind}"
    file.write_bytes(ROWS[kind](["fine 🙂", f"half {bad} a pair"], "text"))
    with pytest.raises(ValueError, match=rf"row 2 of \S*rows\{kind} holds U\+{ord(bad):04X}, .*--text-errors replace"):
        documents(file)
    assert documents(file, errors="replace") == ["fine 🙂", "half \ufffd a pair"]


@pytest.mark.parametrize(("library", "file"), [("zstandard", "a.zst"), ("pyarrow.parquet", "a.parquet")])
def test_what_a_missing_library_is_needed_for_is_said(
    library: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / file).write_bytes(b"anything")
    with pytest.raises(
        LookupError, match=rf"need the library '{library.split('.')[0]}'.*pip install 'tmm-core\[texts\]'"
    ):
        documents(tmp_path / file)


def test_names_need_be_no_text(tmp_path: Path) -> None:
    if sys.platform != "linux":
        skip_without("linux", "other systems have no such names")
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    (folder / os.fsdecode(b"n\xfe.jsonl")).write_bytes(json_lines(["a"], "text"))
    source = TextConfig(text=(str(folder),))
    assert list(source.documents()) == ["a"]
    assert TextConfig.from_dict(json.loads(json.dumps(source.to_dict()))) == source


@pytest.mark.parametrize("options", [{"dataset_subset": "x"}, {"dataset_split": "test"}, {"max_bytes": 3}])
def test_options_of_a_data_set_ask_for_one(options: dict[str, Any]) -> None:
    with pytest.raises(TMMError, match="is of a data set, and there is none: add --dataset NAME"):
        DataConfig(**options)


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("a text")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="a text has an empty name"):
        text_files([""])
