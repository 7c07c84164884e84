from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.wire.mailbox_names import _SHIFTED, MailboxNameError, decode_name, encode_name
from replicator.mail.mailstore import canonical_name

ANY_NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("INBOX", b"INBOX"),
        ("Tom & Jerry", b"Tom &- Jerry"),
        ("~peter/mail/台北/日本語", b"~peter/mail/&U,BTFw-/&ZeVnLIqe-"),
        ("Entwürfe", b"Entw&APw-rfe"),
        ("😀", b"&2D3eAA-"),
        ("&&ä&", b"&-&-&AOQ-&-"),
        ("", b""),
    ],
)
def test_names_are_encoded_and_decoded(name: str, encoded: bytes) -> None:
    assert encode_name(name) == encoded
    assert decode_name(encoded) == name


@given(ANY_NAME)
def test_encoded_names_are_read_back(name: str) -> None:
    assert decode_name(encode_name(name)) == canonical_name(name)


@given(st.binary(max_size=40))
def test_hostile_bytes_give_an_error_or_a_canonical_name(encoded: bytes) -> None:
    try:
        name = decode_name(encoded)
    except MailboxNameError:
        return
    assert canonical_name(name) == name
    assert (encode_name(name) if encoded.isascii() else name.encode()).lower() == encoded.lower()


@pytest.mark.parametrize(
    "encoded",
    [
        b"&",  # no shift back
        b"&AOQ",
        b"&AGE-",  # a letter that needs no encoding
        b"&AOQ-&AOQ-",  # one shift is enough
        b"&AOR-",  # bits after the last character
        b"&2D0-",  # half a surrogate pair
        b"&AO/-",  # base64's own alphabet
        "Entwürfe".encode("latin-1"),
        b"tab\tbed",
    ],
)
def test_other_encodings_of_a_name_are_refused(encoded: bytes) -> None:
    with pytest.raises(MailboxNameError):
        decode_name(encoded)


@pytest.mark.parametrize("name", ["Entwürfe", "R&D Entwürfe", "&AOQ- ist ä"])
def test_name_with_octets_above_127_is_utf_8_as_a_whole(name: str) -> None:
    """RFC 9051 section 5.1."""
    assert decode_name(name.encode()) == name


def test_error_shows_a_name_as_people_write_it() -> None:
    with pytest.raises(MailboxNameError, match=r'the mailbox name "Entw\?rfe" is not UTF-8'):
        decode_name("Entwürfe".encode("latin-1"))


@pytest.mark.parametrize(("spelled", "canonical"), [("inBox", "INBOX"), ("inbox/a", "INBOX/a"), ("inboxes", "inboxes")])
def test_inbox_ignores_case(spelled: str, canonical: str) -> None:
    assert decode_name(spelled.encode()) == canonical


def test_search_for_a_shift_ends_at_the_next_one() -> None:
    """A search that went on from each of 65,536 ampersands to the end of the name held the event loop for 21 s."""
    found = _SHIFTED.search(b"&" * 9 + b"AOQ-")
    assert found is not None
    assert found[0] == b"&AOQ-"
    with pytest.raises(MailboxNameError):
        decode_name(b"&" * 65_536)
