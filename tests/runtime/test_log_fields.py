from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from replicator.runtime.logs.fields import VALUE_MAX, LogFields


def test_values_other_than_plain_words_are_quoted() -> None:
    fields = LogFields({"mid": "<a=b@x>", "from": '<"a b"@x>', "size": 3, "client": None, "to": "", "name": "ü\n"})
    assert str(fields) == r'mid=<a=b@x> from="<\"a b\"@x>" size=3 to="" name="\u00fc\n"'


def test_long_value_is_truncated() -> None:
    assert str(LogFields({"a": "x" * 5000})) == "a=" + "x" * VALUE_MAX


@given(st.text(max_size=60))
def test_no_value_looks_like_another_field(value: str) -> None:
    printed = str(LogFields({"a": value, "b": 1}))
    [(quoted, plain)] = re.findall(r'\Aa=(?:("(?:[^"\\]|\\.)*")|(\S+)) b=1\Z', printed)
    assert (json.loads(quoted) if quoted else plain) == value
