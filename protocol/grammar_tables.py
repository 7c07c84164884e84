"""Parsers of the project's grammars, whose tables are kept beside the bytecode of the grammar's package.

Lark needs most of a second to build the tables of a grammar, and a few hundredths of a second to read them. So they are
kept as Python keeps bytecode: in `__pycache__`, for one version of Python, made by whoever can write there, and made
anew when the grammar, `lexical.lark`, Lark, its options or the transformer's class is another one. Whoever can write
there can run code in this process anyway, by the bytecode.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import cache_from_source
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import lark
from lark import Lark, Token, Transformer
from lark.load_grammar import FromPackageLoader

T = TypeVar("T")

SUFFIX = ".tables"

OPTIONS: Mapping[str, str] = {"parser": "lalr", "lexer": "contextual"}
"""Options of Lark, which the tables depend on."""


def parser_of(package: str, name: str, starts: list[str], transformer: Transformer[Token, T]) -> Lark:
    """Return the parser of the grammar `name` in a package; it may import terminals from `lexical.lark`.

    The parser's transformer is `options.transformer`: this one or, with kept tables, an equal one made by pickle.
    """
    grammar = files(package).joinpath(name)
    text = grammar.read_text("utf-8")
    lexical = files("protocol").joinpath("lexical.lark").read_text("utf-8")
    maker = f"{type(transformer).__module__}.{type(transformer).__qualname__}"
    key = "\0".join([text, lexical, *starts, maker, lark.__version__, repr(OPTIONS)]).encode()
    place = _place(grammar)
    if place is not None and (kept := _kept(place, key)) is not None:
        return Lark.load(BytesIO(kept))
    parser = Lark(
        text,
        start=starts,
        transformer=transformer,
        import_paths=[FromPackageLoader("protocol", ("",))],
        **OPTIONS,
    )
    if place is not None and not sys.dont_write_bytecode:
        tables = BytesIO()
        parser.save(tables)
        with suppress(OSError):  # as with bytecode: whoever may not write here builds the tables at each start
            _keep(place, key, tables.getvalue())
    return parser


def _place(grammar: Traversable) -> Path | None:
    """Return the file of the tables; None where Python keeps no bytecode either."""
    if not isinstance(grammar, Path):  # as in a zipped package
        return None
    try:
        return Path(cache_from_source(str(grammar))).with_suffix(SUFFIX)
    except NotImplementedError:
        return None


def _check(key: bytes, tables: bytes) -> bytes:
    return sha256(sha256(key).digest() + tables).digest()


def _kept(place: Path, key: bytes) -> bytes | None:
    """Return the tables that belong to the key, unaltered; None if there are none."""
    try:
        content = place.read_bytes()
    except OSError:
        return None
    check, tables = content[:32], content[32:]
    return tables if check == _check(key, tables) else None


def _keep(place: Path, key: bytes, tables: bytes) -> None:
    """Put the tables in their place, whole, readable for all. Raises OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=place.name, dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_check(key, tables) + tables)
        Path(temporary).chmod(0o644)  # a node's umask would keep them from other users' processes
        Path(temporary).replace(place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
