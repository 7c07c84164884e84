from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from replicator.runtime.log_fields import VALUE_MAX, LogFields


def test_words_are_plain_and_all_else_is_quoted() -> None:
    fields = LogFields({"mid": "<a=b@x>", "from": '<"a b"@x>', "size": 3, "client": None, "to": "", "name": "ü\n"})
    assert str(fields) == r'mid=<a=b@x> from="<\"a b\"@x>" size=3 to="" name="\u00fc\n"'


def test_a_long_value_is_cut() -> None:
    assert str(LogFields({"a": "x" * 5000})) == "a=" + "x" * VALUE_MAX


@given(st.text(max_size=60))
def test_no_value_looks_like_another_pair(value: str) -> None:
    printed = str(LogFields({"a": value, "b": 1}))
    [(quoted, plain)] = re.findall(r'\Aa=(?:("(?:[^"\\]|\\.)*")|(\S+)) b=1\Z', printed)
    assert (json.loads(quoted) if quoted else plain) == value
