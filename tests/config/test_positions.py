import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.config.positions import KeyPath, key_lines, line_of

EVERYTHING = '''\
# a comment with = and [brackets] and "quotes
title = "first"   # trailing ] comment

[node]
id = "dc1" # "not a string
"quoted key" = 'literal # not a comment'
dotted . "key" = 1
text = """
[fake]
id = "in a string"
ends with quotes"""""
literal = \'\'\'
[[fake]]
\\\'\'\'
after = true

[[peer]]
id = "a"
list = [
  1, # ] in a comment
  [ 2, "]" ],
  { x = 1 },
]
last = 2

[[ peer ]]
id = "b"
[peer.nested]
deep = 1
[[peer.array]]
x = 1
[[peer.array]]
x = 2
[other]
nested=[[1],[2]]
inline = { a = 1, b = { c = 2 } }
end = "escaped \\" quote" '''


def test_each_key_has_its_line() -> None:
    tomllib.loads(EVERYTHING)
    lines = key_lines(EVERYTHING)
    assert lines["title",] == 2
    assert lines["node",] == 4
    assert lines["node", "id"] == 5
    assert lines["node", "quoted key"] == 6
    assert lines["node", "dotted"] == 7
    assert lines["node", "dotted", "key"] == 7
    assert lines["node", "text"] == 8
    assert lines["node", "after"] == 15
    assert lines["peer",] == 17
    assert lines["peer", 0] == 17
    assert lines["peer", 0, "list"] == 19
    assert lines["peer", 0, "last"] == 24
    assert lines["peer", 1] == 26
    assert lines["peer", 1, "id"] == 27
    assert lines["peer", 1, "nested", "deep"] == 29
    assert lines["peer", 1, "array", 1, "x"] == 33
    assert lines["other", "nested"] == 35
    assert lines["other", "end"] == 37
    assert ("fake",) not in lines


def test_key_without_a_line_gets_that_of_its_table() -> None:
    lines = key_lines(EVERYTHING)
    assert line_of(lines, ("other", "inline", "b", "c")) == 36
    assert line_of(lines, ("peer", 1, "absent")) == 26
    assert line_of(lines, ("absent",)) == 1


def test_end_of_a_string_that_ends_in_quotes_is_found() -> None:
    assert key_lines('a = ["""x"""", "]"]\nb = ["""y""""", \'[\']\nc = 1') == {("a",): 1, ("b",): 2, ("c",): 3}


def test_dates_numbers_and_windows_line_ends_are_scanned() -> None:
    text = "a = 1979-05-27T07:32:00.5Z\r\nb = -1.5e+3\r\n[c]\r\nd = 0x_1f\r\n".replace("0x_1f", "0x1f")
    assert key_lines(text) == {("a",): 1, ("b",): 2, ("c",): 3, ("c", "d"): 4}


VALUES = st.sampled_from(
    ['"a#b"', "'[x]'", '"""\n[a]\n"""', "'''\n\n= '''", "[1,\n 2, # ]\n]", "{a = 1}", "1.5", "true # = [", '"\\""']
)
NAMES = st.sampled_from(["a", "b", '"x.y"', "'#'", "c-d", "1"])


@given(st.lists(st.tuples(NAMES, VALUES), unique_by=lambda pair: pair[0], min_size=1), st.data())
def test_key_lines_agree_with_the_toml_parser(pairs: list[tuple[str, str]], data: st.DataObject) -> None:
    text, expected = "", {}
    for name, value in pairs:
        text += data.draw(st.sampled_from(["", "\n", "# x = [\n", "   \n\t"]))
        expected[tomllib.loads(f"n = {name}" if name[0] in "\"'" else f"n = '{name}'")["n"]] = text.count("\n") + 1
        text += f"{name} = {value}\n"
    assert set(tomllib.loads(text)) == set(expected)
    lines = key_lines(text)
    assert {name: lines[name,] for name in expected} == expected


def paths(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from paths(inner, (*path, key))
    elif isinstance(value, list) and value and all(isinstance(table, dict) for table in value):
        for number, table in enumerate(value):
            yield (*path, number)
            yield from paths(table, (*path, number))


@pytest.mark.parametrize("path", [path for path in paths(tomllib.loads(EVERYTHING)) if "inline" not in path])
def test_every_parsed_key_is_found(path: KeyPath) -> None:
    assert path in key_lines(EVERYTHING) or path[:3] == ("peer", 0, "list")
