"""Previews: what of a message's text is shown, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.units import KIB
from replicator.imap.rendering.preview import MAX_CHARACTERS, preview
from replicator.imap.text.html_text import MAX_TAGS, html_lines
from replicator.mime.skeleton import BEGIN_BYTES, Gap, Skeleton
from replicator.mime.structure import parse
from tests.imap_data.corpus import corpus
from tests.imap_data.hard_mails import HARD_MAILS, PGP, SIGNATURE, file, mail, parts, text

HTML = "html; charset=utf-8"


def shown(raw: bytes) -> str:
    """Return the preview of a message that is all in memory."""
    found = preview(parse(raw), Skeleton(raw))
    assert isinstance(found, str)
    return found


def plain(content: str, *fields: str) -> str:
    return shown(text(content.replace("\n", "\r\n").encode(), "plain; charset=utf-8", *fields))


def html(content: str) -> str:
    return shown(text(content.encode(), HTML))


PLAIN = {
    "spaces": ("  Hello\n\n\tthere ,\u00a0\u3000  all\n", "Hello there , all"),
    "quotation at the end": ("Yes.\n\nOn Monday, Ann wrote:\n> Shall we?\n", "Yes."),
    "quotation first": ("On 1 May 2024, Ann <a@x> wrote:\n\n> Shall we?\n> Or not?\nYes.\n", "Yes."),
    "introduction in two lines": ("On 1 May 2024, Ann <a@x>\nwrote:\n> Shall we?\nYes.\n", "Yes."),
    "introduction after a sentence": (
        "Thanks for 2 of them.\n\nAm Montag schrieb Ann:\n> Ja?\n",
        "Thanks for 2 of them.",
    ),
    "lines before an introduction": ("One\ntwo\nthree\nAnn wrote:\n> Shall we?\nfour\n", "One two three four"),
    "answers between": ("> One?\nYes.\n> Two?\nNo.\n", "Yes. No."),
    "no introduction": ("See below.\n> One?\n", "See below."),
    "colon that introduces no quotation": ("What we need:\n\nflour\n", "What we need: flour"),
    "nothing but a quotation": ("> Shall we?\n>> Or not?\n", "Shall we? Or not?"),
    "signature": ("Hello\n-- \nAnn\nExample Ltd.\n", "Hello"),
    "nothing but a signature": ("-- \nAnn\n", "-- Ann"),
    "earlier message below": ("Yes.\n-----Original Message-----\nFrom: Ann\nShall we?\n", "Yes."),
    "earlier message below a line": ("Yes.\n________________________________\nFrom: Ann\n", "Yes."),
    "forwarded": (
        "---------- Forwarded message ---------\nFrom: Ann\nDate: today\n*Subject:* x\n\nLunch: at noon?\n",
        "Lunch: at noon?",
    ),
    "signed": ("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nHello\n" + SIGNATURE.decode(), "Hello"),
    "encrypted": (PGP.decode(), ""),
    "ornaments": ("====\n*****\nNews\n----\nof today\n...\n", "News of today"),
    "signs alone": ("👍\n", "👍"),
    "empty": ("\n \n", ""),
    "unseen characters": ("\ufeffA\u00ad\u200bB \u200d\u200c\u034f \u2800C\x07\u202eD\n", "AB CD"),
    "joiners that count": ("👩\u200d🚀 क\u200cष \u200d\n", "👩\u200d🚀 क\u200cष"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_preview_of_plain_text(name: str) -> None:
    content, expected = PLAIN[name]
    assert plain(content) == expected


HTML_TEXTS = {
    "tags": ("<html><body><p>Hello <b>there</b>,<br>all</p></body></html>", "Hello there, all"),
    "words stay apart only where they are shown apart": ("<p>a<i>b</i>c</p><p>d</p><td>e<td>f", "abc d e f"),
    "entities": ("a &lt;b&gt; &amp;amp; &nbsp;&eacute;&#8364; &none; &#0; &#xD800;x", "a <b> &amp; é€ &none; � �x"),
    "styles and scripts": (
        "<head><title>T</title><STYLE type=x>p > a {}</STYLE><script>if (a<b) '</p>'</script></head><p>Hello", "Hello",
    ),
    "style without an end": ("Hello<style>p {", "Hello"),
    "comments": ("<!-- <p>no</p> --><!--[if mso]>no<![endif]--><![if !mso]>Hello<![endif]><!-->Hi", "Hello"),
    "declarations": ("<!DOCTYPE html><?xml version='1.0'?></>Hello", "Hello"),
    "sign in attributes": ("<a title='a > b' alt=\"</p>\">Hello</a>", "Hello"),
    "quote without an end": ('<a title="x>Hello', '"x>Hello'),
    "no tags": ("a < b, 3 <4 and <", "a < b, 3 <4 and <"),
    "hidden by its style": ("<div style='color:red; DISPLAY : none'>no <div>no</div> no</div>Hello", "Hello"),
    "hidden by its height": ('<span style="max-height:0px;overflow:hidden">no</span>Hello', "Hello"),
    "hidden by its opacity": ('<span style="opacity: 0 !important">no</span>Hello', "Hello"),
    "hidden by an attribute": ("<p hidden>no<p>Hello", "Hello"),
    "not hidden": ('<td style="font-size:0px;opacity:0.9"><p style="max-height:05em">Hello</td>', "Hello"),
    "overflow": ("<p style='overflow: hidden !important' class='hidden'>Hello", "Hello"),
    "hidden image": ("<img style='display:none'>Hello<svg/> there", "Hello there"),
    "padding": ("Hello<div>&nbsp;&zwnj;&#847;&shy;&#8199;" * 30 + "</div>there", "Hello" + " Hello" * 29 + " there"),
    "quotation at the end": ("Yes.<div>On Monday, Ann wrote:<br></div><blockquote>No?</blockquote>", "Yes."),
    "quotation first": ("<p>Ann wrote:</p><blockquote><p>No?<blockquote>x</blockquote>y</blockquote>Yes.", "Yes."),
    "nothing but a quotation": ("<blockquote>No?<br>Yes?</blockquote>", "No? Yes?"),
    "no text": ("<img src=x><br><hr>", ""),
    "elements without text for people": ("<select><option>no</select><svg><text>no</text></svg>Hello", "Hello"),
}  # fmt: skip


@pytest.mark.parametrize("name", HTML_TEXTS)
def test_preview_of_html(name: str) -> None:
    content, expected = HTML_TEXTS[name]
    assert html(content) == expected[:MAX_CHARACTERS].rstrip()


MESSAGES = {
    "plain text counts first": (parts("alternative", text(b"<p>No", "html"), text(b"Yes\r\n")), "Yes"),
    "empty plain text": (parts("alternative", text(b"\r\n"), text(b"<p>Yes", "html")), "Yes"),
    "first text": (parts("mixed", text(b"One\r\n"), text(b"Two\r\n")), "One"),
    "attachments do not count": (
        parts("mixed", text(b"No\r\n", "plain", "Content-Disposition: ATTACHMENT; filename=a"), text(b"Yes\r\n")),
        "Yes",
    ),
    "forwarded as a part": (parts("mixed", file(), mail(text(b"Yes\r\n"), "Content-Type: message/rfc822")), "Yes"),
    "forwarded as an attachment": (
        parts("mixed", mail(text(b"No\r\n"), "Content-Type: message/rfc822", "Content-Disposition: attachment")), "",
    ),
    "related": (parts("related", parts("alternative", text(b"Yes\r\n"), boundary="c"), file()), "Yes"),
    "encrypted": (HARD_MAILS["PGP encrypted"], ""),
    "encrypted part with text": (parts("encrypted", text(b"No\r\n")), ""),
    "enveloped": (HARD_MAILS["S/MIME encrypted"], ""),
    "signed": (HARD_MAILS["PGP signed"], "Hello"),
    "other kinds of text": (mail(b"BEGIN:VCALENDAR\r\n", "Content-Type: text/calendar"), ""),
    "unknown encoding": (HARD_MAILS["encoding unknown"], ""),
    "image": (file(), ""),
    "empty": (b"", ""),
    "quoted-printable": (text(b"Gr=C3=BC=\r\n=C3=9Fe", HTML, "Content-Transfer-Encoding: quoted-printable"), "Grüße"),
    "base64": (text(b"PHA+R3L8339l\r\n", "html; charset=iso-8859-1", "Content-Transfer-Encoding: base64"), "Grüße"),
    "wrong charset": (text("Grüße\r\n".encode(), "plain; charset=us-ascii"), "Grüße"),
    "half of a character": (text(b"a+2AA-b\r\n", "plain; charset=utf-7"), None),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_preview_of_message(name: str) -> None:
    raw, expected = MESSAGES[name]
    assert expected is None or shown(raw) == expected


@pytest.mark.parametrize("raw", [*HARD_MAILS.values(), *corpus().values()])
def test_preview_is_one_line_within_its_limit(raw: bytes) -> None:
    assert len(shown(raw)) <= MAX_CHARACTERS
    assert " ".join(shown(raw).split()) == shown(raw)


@pytest.mark.parametrize("word", ["a ", "日本語 ", "😀 "])
def test_preview_ends_after_200_characters(word: str) -> None:
    found = plain(word * 300)
    assert 200 - len(word) <= len(found) <= MAX_CHARACTERS == 200
    assert (word * 300).startswith(found)
    assert html(f"<b>{word}</b>" * 300) == found


# ---- texts that are not in memory --------------------------------------------------------------------------------


def cut(raw: bytes, content: bytes) -> tuple[Skeleton, Gap]:
    """Return a message's skeleton without this content."""
    at = raw.index(content)
    gap = Gap(at, len(content), content.count(b"\n"))
    return Skeleton(raw[:at] + raw[at + len(content) :], (gap,)), gap


def test_text_that_was_cut_out_is_wanted() -> None:
    content = b"Hello " + b"x" * 100 * KIB
    skeleton, gap = cut(parts("mixed", text(content), file()), content)
    body = parse(skeleton.raw)
    assert preview(body, skeleton) == gap
    found = preview(body, skeleton.knowing(gap, content[:BEGIN_BYTES]))
    assert found == "Hello " + "x" * (MAX_CHARACTERS - 6)
    assert preview(body, skeleton.knowing(gap, b"<br>")) == "<br>"


def test_other_parts_that_were_cut_out_are_not_wanted() -> None:
    for raw, content in ((parts("mixed", text(), file()), b"AAECAwQF"), (parts("mixed", text(), text(b"Two")), b"Two")):
        skeleton, _ = cut(raw, content)
        assert preview(parse(skeleton.raw), skeleton) == "Hello"


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_text_whose_last_character_is_cut_is_read_by_its_charset(lost: int) -> None:
    content = "日" * (BEGIN_BYTES // 3 + 1)
    raw = text(b"x" * lost + content.encode() + b"\r\n", "plain")
    assert shown(raw).lstrip("x")[:100] == content[:100]


# ---- what anyone may send ----------------------------------------------------------------------------------------

UNITS = [
    *(b"<", b"<b>", b"<a ", b'<a "', b"<a '>\"", b"<!--", b"<!-->", b"<!", b"</", b"<script>", b"<style></style>"),
    *(b"&a", b"&nbsp;&zwnj;", b"&#9", b"9", b"&#x", b"<p>", b"<p\n", b'<i style="display:none">', b"<blockquote>"),
    *(b"<i a=b c=d ", b" a=", b"style ", b"display ", b".0", b"\xe2\x80\x8d", b"> ", b">\n", b"a:\n>\n", b"--\n"),
    *(b"---", b"---x", b"_", b"*", b"\n", b" ", b"- ", b"x: y\n", b"---x---\n", b"\xff", b"\0"),
]
HEADS = [b"", b'<i style="display', b'<i style="opacity:0', b"<a b='", b"&#", b"---x---\n", b"---x", b"a:\n"]


@pytest.mark.parametrize("head", HEADS)
def test_preview_takes_linear_time(head: bytes) -> None:
    """With quadratic time, this test would take hours."""
    for unit in UNITS:
        content = head + unit * (1_000_000 // len(unit))
        shown(text(content, "plain; charset=utf-8"))
        shown(text(content, HTML))
        for _ in html_lines(content.decode("utf-8", "replace")):
            pass


def tags(count: int) -> Iterator[str]:
    yield from html_lines("<br>" * count + "Hello")


def test_tags_beyond_the_limit_are_not_looked_at() -> None:
    assert "".join(tags(MAX_TAGS - 1)) == "Hello"
    assert "".join(tags(MAX_TAGS)) == ""


pieces = st.sampled_from([unit.decode("latin-1") for unit in (*UNITS, *HEADS)])


@settings(deadline=None)
@given(st.lists(st.one_of(pieces, st.text(max_size=3)), max_size=40).map("".join), st.sampled_from(["plain", "html"]))
def test_no_text_raises_an_error(content: str, kind: str) -> None:
    found = shown(text(content.encode("utf-8", "replace"), f"{kind}; charset=utf-8"))
    assert len(found) <= MAX_CHARACTERS
    assert not {"\r", "\n", "\0", "\u200b"} & {*found}
