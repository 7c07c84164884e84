"""URLs of messages (RFC 5092), as CATENATE has them (RFC 4469 section 3)."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.wire.fetch_items import Partial
from replicator.imap.wire.message_urls import URL_SHOWN, MessageUrl, MessageUrlError, printed_url
from replicator.mail.mailstore import canonical_name

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("url", "selected", "meaning"),
    [
        (b"/INBOX/;UID=20", None, MessageUrl("INBOX", 20)),
        (b"/inbox;uidvalidity=385759045/;uid=20", None, MessageUrl("INBOX", 20, 385759045)),
        (b"/a/b;UIDVALIDITY=1/;UID=2/;SECTION=1.MIME", None, MessageUrl("a/b", 2, 1, "1.MIME")),
        (b"/a%2Fb/;UID=2/;section=HEADER", None, MessageUrl("a/b", 2, section="HEADER")),
        (b"/%C3%A4%20%25%3B%3F/;UID=4294967295", None, MessageUrl("ä %;?", 4294967295)),
        (b"/a&b/;UID=1", None, MessageUrl("a&b", 1)),
        (
            b"/a/;UID=1/;SECTION=HEADER.FIELDS%20(To%20%22x%22)",
            None,
            MessageUrl("a", 1, None, 'HEADER.FIELDS (To "x")'),
        ),
        (b"/a/;UID=1/;PARTIAL=0.1024", None, MessageUrl("a", 1, partial=Partial(0, 1024))),
        (b"/a/;UID=1/;SECTION=2/;PARTIAL=7", None, MessageUrl("a", 1, section="2", partial=Partial(7, 10**18))),
        # relative to imap://user@server/a/b
        (b"/c/;UID=1", "a/b", MessageUrl("c", 1)),
        (b"c/;UID=1", "a/b", MessageUrl("a/c", 1)),
        (b"c/;UID=1", "b", MessageUrl("c", 1)),
        (b"inbox/x/;UID=1", "b", MessageUrl("INBOX/x", 1)),
        (b";UID=1/;SECTION=1", "a/b", MessageUrl("a/b", 1, section="1")),
        (b"/../;UID=1", "a/b", MessageUrl("..", 1)),
    ],
)
def test_url_names_a_message(url: bytes, selected: str | None, meaning: MessageUrl) -> None:
    assert MessageUrl.parse(url, selected) == meaning


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (b"imap://alice@example.org/INBOX/;UID=1", "must be relative"),
        (b"IMAP:/INBOX/;UID=1", "must be relative"),
        (b"file:///etc/passwd", "must be relative"),
        (b"//example.org/INBOX/;UID=1", "must be relative"),
        (b"INBOX/;UID=1", "none is selected"),
        (b";UID=1", "none is selected"),
        (b"/;UID=1", "not the URL of a message"),
        (b"//;UID=1", "must be relative"),
        (b"", "not the URL of a message"),
        (b"/", "not the URL of a message"),
        (b"/INBOX", "not the URL of a message"),
        (b"/INBOX;UID=1", "not the URL of a message"),
        (b"/INBOX/;UID=0", "not the URL of a message"),
        (b"/INBOX/;UID=01", "not the URL of a message"),
        (b"/INBOX/;UID=4294967296", "is more than 4294967295"),
        (b"/INBOX;UIDVALIDITY=4294967296/;UID=1", "is more than 4294967295"),
        (b"/INBOX/;UID=1/", "not the URL of a message"),
        (b"/INBOX/;UID=1/;SECTION=", "not the URL of a message"),
        (b"/INBOX/;UID=1;SECTION=1", "not the URL of a message"),
        (b"/INBOX/;UID=1/;PARTIAL=1/;SECTION=1", "not the URL of a message"),
        (b"/INBOX/;UID=1/;PARTIAL=1.0", "not the URL of a message"),
        (b"/INBOX/;UID=1/;PARTIAL=" + b"9" * 19, "not the URL of a message"),
        (b"/INBOX/;UID=1;URLAUTH=anonymous", "not the URL of a message"),
        (b"/INBOX/;UID=1?x", "not the URL of a message"),
        (b"/INBOX?ALL/;UID=1", "not the URL of a message"),
        (b"/IN BOX/;UID=1", "not the URL of a message"),
        (b"/IN%4/;UID=1", "not the URL of a message"),
        (b"/IN%zz/;UID=1", "not the URL of a message"),
        (b"/\xc3\xa4/;UID=1", "not the URL of a message"),
        (b"/%ff/;UID=1", "not percent-encoded UTF-8"),
        (b"/a/;UID=1/;SECTION=1%0d%0a", "no control characters"),
        (b"/a/;UID=1/;SECTION=HEADER.FIELDS%20(%7B3%7D%0D%0A)", "no control characters"),
        (b"/a\r\n/;UID=1", "not the URL of a message"),
    ],
)
def test_other_urls_are_refused(url: bytes, why: str) -> None:
    with pytest.raises(MessageUrlError, match=why):
        MessageUrl.parse(url, None)


@given(NAMES, st.integers(1, 2**32 - 1), st.none() | st.integers(1, 2**32 - 1))
def test_every_name_has_a_url(name: str, uid: int, uidvalidity: int | None) -> None:
    validity = "" if uidvalidity is None else f";UIDVALIDITY={uidvalidity}"
    for safe in ("", "&=:@!$'()*+,"):
        url = f"/{quote(name, safe=safe)}{validity}/;UID={uid}".encode()
        assert MessageUrl.parse(url, "other") == MessageUrl(canonical_name(name), uid, uidvalidity)


@given(st.binary())
def test_url_in_an_answer_stays_within_its_response_code(url: bytes) -> None:
    """RFC 4469 section 5: TEXT-CHAR without "]"."""
    shown = printed_url(url)
    assert shown.isascii()
    assert shown.isprintable()
    assert not set(shown) & set("\\]")
    assert len(shown) <= 3 * URL_SHOWN + len("...")
    assert shown == printed_url(url[:URL_SHOWN]) + "..." * (len(url) > URL_SHOWN)


def test_long_url_is_cut_in_an_answer() -> None:
    assert printed_url(b"/x" * 4000) == "/x" * (URL_SHOWN // 2) + "..."


def test_long_hostile_urls_take_no_long_time() -> None:
    for hostile in (b"/" + b"a/" * 4000, b"/" + b"%41" * 2700, b"/a" + b";UID=1/" * 1100, b"/" + b"//;UID=1" * 1000):
        with pytest.raises(MessageUrlError):
            MessageUrl.parse(hostile, None)
