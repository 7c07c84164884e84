"""Tables of grammars beside the bytecode: used while they fit, and built anew otherwise."""

from __future__ import annotations

import os
import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest
from lark import Token, Transformer, UnexpectedInput, v_args

from protocol import grammar_tables
from protocol.grammar_tables import parser_of

NUMBERS = """
numbers: NUMBER (_SP NUMBER)*
%import lexical.NUMBER
%import lexical.SP -> _SP
"""


@v_args(inline=True)
class Sum(Transformer[Token, object]):
    NUMBER = int

    def numbers(self, *members: int) -> int:
        return sum(members)


class Grammar:
    """A package with one grammar. `read` tells whether kept tables were used, and what the parser makes of a text."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "some_grammars" / "numbers.lark"
        self.path.parent.mkdir()
        (self.path.parent / "__init__.py").touch()
        self.path.write_text(NUMBERS)

    def read(self, text: str) -> tuple[bool, object]:
        given = Sum()
        parser = parser_of("some_grammars", "numbers.lark", ["numbers"], given)
        return parser.options.transformer is not given, parser.parse(text)

    @property
    def tables(self) -> Path:
        (path,) = (self.path.parent / "__pycache__").glob("numbers.*.tables")
        return path


@pytest.fixture
def grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grammar:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delitem(sys.modules, "some_grammars", raising=False)
    made = Grammar(tmp_path)
    invalidate_caches()
    return made


def test_tables_are_used_from_the_second_time_on(grammar: Grammar) -> None:
    assert grammar.read("1 2 3") == (False, 6)
    assert grammar.read("1 2 3") == (True, 6)
    with pytest.raises(UnexpectedInput):
        grammar.read("1 two")
    assert list(grammar.tables.parent.glob("numbers.*")) == [grammar.tables]  # nothing else is left there


def test_another_grammar_gets_tables_of_its_own(grammar: Grammar) -> None:
    grammar.read("1")
    grammar.path.write_text(NUMBERS.replace("_SP", '","', 1))
    assert grammar.read("1,2") == (False, 3)
    assert grammar.read("1,2") == (True, 3)


def test_other_options_get_tables_of_their_own(grammar: Grammar, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar.read("1")
    monkeypatch.setattr(grammar_tables, "OPTIONS", {"parser": "lalr", "lexer": "basic"})
    assert grammar.read("1 2") == (False, 3)
    assert grammar.read("1 2") == (True, 3)


@pytest.mark.parametrize("at", [0, 40, -1])
def test_damaged_tables_are_replaced(grammar: Grammar, at: int) -> None:
    grammar.read("1")
    content = bytearray(grammar.tables.read_bytes())
    content[at] ^= 1
    grammar.tables.write_bytes(content)
    assert grammar.read("1 2") == (False, 3)
    assert grammar.read("1 2") == (True, 3)


def test_tables_that_a_crash_cut_off_are_replaced(grammar: Grammar) -> None:
    grammar.read("1")
    os.truncate(grammar.tables, 20)
    assert grammar.read("1 2") == (False, 3)


def test_other_users_can_read_the_tables_of_a_node_with_a_strict_umask(grammar: Grammar) -> None:
    before = os.umask(0o077)
    try:
        grammar.read("1")
    finally:
        os.umask(before)
    assert grammar.tables.stat().st_mode & 0o777 == 0o644


def test_where_nothing_can_be_written_the_tables_are_built(grammar: Grammar) -> None:
    (grammar.path.parent / "__pycache__").touch()  # root may write into any directory, but not into a file
    assert grammar.read("1 2") == (False, 3)
    assert grammar.read("1 2") == (False, 3)


def test_without_bytecode_there_are_no_tables(grammar: Grammar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert grammar.read("1 2") == (False, 3)
    assert not (grammar.path.parent / "__pycache__").exists()
