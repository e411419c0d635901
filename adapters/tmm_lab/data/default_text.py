"""The default training text: the documentation that comes with this Python."""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from tmm_core.errors import NotFoundError

__all__ = ["default_documents"]

_SKIPPED = {"__pycache__", "idle_test", "idlelib", "lib2to3", "pydoc_data", "test", "tests", "turtledemo"}
_PARAGRAPH = 64  # characters from which a paragraph met before is a duplicate; shorter ones are headings and examples


def default_documents() -> list[str]:
    """Return the English documentation that every CPython carries: the default training text.

    The help topics of `pydoc_data.topics` in alphabetical order, then for each module of the standard library, in the
    order of their names, the docstrings of the module, its classes and its functions. A paragraph of 64 characters or
    more that has occurred before is dropped, and so are documents left empty: help topics quote each other, and what
    is held out must not be found in the training part.

    Returns
    -------
    list of str
        About 600 documents, 2 MB in all; the same on every call of one Python.

    Raises
    ------
    LookupError
        If this Python comes without the sources of its standard library.

    Notes
    -----
    Modules are parsed, not imported, so nothing runs. Takes about 3 seconds.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    library = Path(sysconfig.get_path("stdlib"))
    texts = [topics[name] for name in sorted(topics)]
    texts += ["\n\n".join(_docstrings(path)) for path in _modules(library)]
    documents = [document for text in texts if (document := _without_duplicates(text, seen))]
    if len(documents) <= len(topics):
        raise NotFoundError(f"no sources of the standard library in {library}: give a text of your own (--text FILE)")
    return documents


def _modules(library: Path) -> Iterator[Path]:
    """Yield the sources of the standard library in the order of their names, without its tests and applications."""
    for path in sorted(library.iterdir()):
        if path.stem not in sys.stdlib_module_names or path.name in _SKIPPED:
            continue
        if path.suffix == ".py":
            yield path
        elif path.is_dir():
            for folder, folders, files in os.walk(path):
                folders[:] = sorted(set(folders) - _SKIPPED)
                yield from (Path(folder, file) for file in sorted(files) if file.endswith(".py"))


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions in the order of its source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sources may hold escapes that are deprecated
        nodes: list[ast.AST] = [ast.parse(path.read_bytes())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
        if not isinstance(node, ast.expr):
            nodes += reversed(list(ast.iter_child_nodes(node)))


def _without_duplicates(text: str, seen: set[str]) -> str:
    """Return `text` without the long paragraphs in `seen`, adding its own to them."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        words = " ".join(paragraph.split())
        if len(words) >= _PARAGRAPH:
            if words in seen:
                continue
            seen.add(words)
        kept.append(paragraph)
    return "\n\n".join(kept)
