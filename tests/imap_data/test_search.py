from __future__ import annotations

import datetime as dt
import hashlib
from bisect import bisect_left
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.values import Dot, UidSet
from replicator.imap.matching.bounds import contains
from replicator.imap.matching.phases import STEP_WORK, Basis, Search
from replicator.imap.rendering import header_columns
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.header_columns import Columns
from replicator.imap.rendering.outline import outline_of
from replicator.imap.rendering.search_text import search_text_of
from replicator.imap.wire import search_keys as keys
from replicator.imap.wire.sequence_set import SequenceSet
from replicator.imap.work_meter import WorkExceededError, WorkMeter
from replicator.mail.view import MailboxView, Message, ViewChange
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import Part
from tests.effort import examples

FLAGS = ["\\Seen", "\\Deleted", "work", "WORK"]
WORDS = ["", "ann", "bob", "x"]
DAYS = [dt.date(2024, 2, day) for day in (27, 28, 29)]
DAY_MS = 86_400_000
EPOCH = dt.date(1970, 1, 1)
THREADS = st.sampled_from([None, "a", "b"])
NOW_MS = (dt.date(2024, 3, 1) - EPOCH).days * DAY_MS


@dataclass(frozen=True)
class Mail:
    """A message and the facts that its body is written from."""

    row: Message
    subject: str | None
    sender: str
    body: str
    sent: dt.date | None
    thread: str | None = None

    @property
    def octets(self) -> bytes:
        lines = [f"From: {self.sender}", f"Received: {self.sender}"]
        lines += [] if self.subject is None else [f"Subject: {self.subject}"]
        lines += [] if self.thread is None else [f"Message-ID: <{self.thread}@x>"]
        lines += [] if self.sent is None else [f"Date: {self.sent:%d %b %Y} 23:59:59 -1200"]
        return "\r\n".join([*lines, "", self.body]).encode()


@dataclass(frozen=True)
class Mailbox:
    """Messages in a mailbox, and the UIDs that a session has announced.

    There may be newer messages than those announced, and announced messages may be gone.
    """

    mails: list[Mail]
    announced: list[int]
    recent: UidSet
    saved: tuple[int, ...] = ()
    is_whole: bool = False

    @property
    def basis(self) -> Basis:
        return Basis(self.announced, self.recent, self.saved, NOW_MS, self.is_whole)

    @property
    def view(self) -> MailboxView:
        rows = [mail.row for mail in self.mails]
        return MailboxView.build(
            mailbox_id=bytes(16), user="ann", uidvalidity=1, uidnext=99, highestmodseq=9, rows=rows
        )


@st.composite
def mailboxes(draw: st.DrawFn) -> Mailbox:
    uids = sorted(draw(st.sets(st.integers(1, 20), max_size=10)))
    gone = draw(st.sets(st.sampled_from(uids), max_size=2)) if uids else set()
    mails = [draw(mail(uid)) for uid in uids if uid not in gone]
    announced = uids[: len(uids) - draw(st.integers(0, 2))]
    recent = UidSet.of(uid for uid in uids if uid >= draw(st.integers(1, 20)))
    saved = draw(st.sets(st.sampled_from(announced))) if announced else set()
    return Mailbox(mails, announced, recent, tuple(sorted(saved)), draw(st.booleans()))


@st.composite
def mail(draw: st.DrawFn, uid: int) -> Mail:
    day = draw(st.sampled_from(DAYS))
    row = Message(
        uid=uid,
        guid=bytes([draw(st.integers(0, 2))] * 16),
        modseq=draw(st.integers(1, 5)),
        flags=frozenset(draw(st.sets(st.sampled_from(FLAGS)))),
        received_ms=(day - EPOCH).days * DAY_MS + draw(st.sampled_from([0, 1, DAY_MS - 1])),
        size_bytes=draw(st.integers(0, 5)),
        content_hash=uid.to_bytes(32),
        dot=Dot("dc1.1", uid),
        change=0,
        saved_ms=draw(st.none() | st.sampled_from(DAYS).map(lambda saved: (saved - EPOCH).days * DAY_MS)),
    )
    word = st.sampled_from(WORDS).map(str.upper)
    return Mail(
        row, draw(st.none() | word), draw(word), draw(word), draw(st.none() | st.sampled_from(DAYS)), draw(THREADS)
    )


def named(thread: str) -> str:
    """Return the THREADID of the messages whose first message has this id, without `@x`."""
    return "T" + hashlib.blake2b(f"{thread}@x".encode(), digest_size=16).hexdigest()


numbers = st.none() | st.integers(1, 21)
sequence_sets = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3).map(
    lambda ranges: SequenceSet(tuple(ranges))
)
words = st.sampled_from(WORDS).map(str.encode)
relations = st.sampled_from(keys.Relation)
days = st.sampled_from(DAYS)
single_keys = st.one_of(
    st.sampled_from(list(keys.PLAIN_KEYS.values())),
    sequence_sets.map(keys.SequenceNumbers),
    sequence_sets.map(keys.Uids),
    st.just(keys.Saved()),
    st.integers(0, 2).map(lambda octet: keys.EmailId("M" + bytes([octet] * 16).hex())),
    st.integers(0, 2).map(lambda octet: keys.ThreadId("T" + bytes([octet] * 16).hex())),
    st.sampled_from(["a", "b", "c"]).map(lambda thread: keys.ThreadId(named(thread))),
    st.sampled_from([*FLAGS, "Work", "none"]).map(keys.Flagged),
    st.integers(0, 6).map(keys.ModSeq),
    st.integers(0, 5).map(keys.Larger),
    st.integers(0, 5).map(keys.Smaller),
    st.builds(keys.Received, relations, days),
    st.builds(keys.Sent, relations, days),
    st.builds(keys.SaveDate, relations, days),
    st.builds(keys.ReceivedWithin, st.integers(1, 4).map(lambda days: days * DAY_MS // 1000), st.booleans()),
    st.builds(keys.HeaderContains, st.sampled_from(["SUBJECT", "From", "Received", "X-None"]), words),
    st.builds(keys.AddressContains, st.sampled_from(["FROM", "CC"]), words),
    words.map(keys.BodyContains),
    words.map(keys.TextContains),
)
search_keys: st.SearchStrategy[keys.SearchKey] = st.recursive(
    single_keys,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: keys.And(tuple(parts))),
        st.builds(keys.Or, inner, inner),
        st.builds(keys.Not, inner),
    ),
    max_leaves=8,
)


def matches_naively(key: keys.SearchKey, mail: Mail, mailbox: Mailbox) -> bool:
    """Return True if one message matches one key, by RFC 3501 section 6.4.4 taken literally."""
    row = mail.row
    match key:
        case keys.All():
            return True
        case keys.And(parts):
            return all(matches_naively(part, mail, mailbox) for part in parts)
        case keys.Or(left, right):
            return matches_naively(left, mail, mailbox) or matches_naively(right, mail, mailbox)
        case keys.Not(inner):
            return not matches_naively(inner, mail, mailbox)
        case keys.SequenceNumbers(wanted):
            return in_set(mailbox.announced.index(row.uid) + 1, wanted, len(mailbox.announced))
        case keys.Uids(wanted):
            return in_set(row.uid, wanted, mailbox.announced[-1])
        case keys.Saved():
            return row.uid in mailbox.saved
        case keys.EmailId(email_id):
            return email_id == f"M{row.guid.hex()}"
        case keys.ThreadId(thread_id):
            return thread_id == (f"T{row.guid.hex()}" if mail.thread is None else named(mail.thread))
        case keys.Flagged(flag):
            return flag.lower() in {found.lower() for found in row.flags}
        case keys.Recent():
            return row.uid in set(mailbox.recent)
        case keys.ModSeq(modseq):
            return row.modseq >= modseq
        case keys.Larger(size):
            return row.size_bytes > size
        case keys.Smaller(size):
            return row.size_bytes < size
        case keys.Received(relation, day):
            return is_in_relation(EPOCH + dt.timedelta(milliseconds=row.received_ms), relation, day)
        case keys.SaveDate(relation, day):
            saved_ms = row.received_ms if row.saved_ms is None else row.saved_ms
            return is_in_relation(EPOCH + dt.timedelta(milliseconds=saved_ms), relation, day)
        case keys.Sent(relation, day):
            return mail.sent is not None and is_in_relation(mail.sent, relation, day)
        case keys.ReceivedWithin(seconds, younger):
            return (NOW_MS - row.received_ms <= 1000 * seconds) is younger
        case keys.HeaderContains(name, text):
            value = {"SUBJECT": mail.subject, "FROM": mail.sender, "RECEIVED": mail.sender}.get(name.upper())
            return value is not None and text.decode() in value.lower()
        case keys.AddressContains(name, text):
            return name == "FROM" and text.decode() in mail.sender.lower()
        case keys.BodyContains(text):
            return text.decode() in mail.body.lower()
        case keys.TextContains(text):
            return text.decode() in mail.octets.decode().lower()


def is_in_relation(day: dt.date, relation: keys.Relation, other: dt.date) -> bool:
    return {"BEFORE": day < other, "ON": day == other, "SINCE": day >= other}[relation.value]


def in_set(number: int, wanted: SequenceSet, largest: int) -> bool:
    ends = [(largest if a is None else a, largest if b is None else b) for a, b in wanted.ranges]
    return any(min(a, b) <= number <= max(a, b) for a, b in ends)


@settings(max_examples=examples(150, 500), deadline=None)
@given(
    mailbox=mailboxes(),
    key=search_keys,
    at_once=st.integers(1, 10),
    outlined=st.sets(st.integers(1, 20)),
    with_text=st.sets(st.integers(1, 20)),
)
def test_search_finds_the_same_as_a_naive_search(
    mailbox: Mailbox, key: keys.SearchKey, at_once: int, outlined: set[int], with_text: set[int]
) -> None:
    work = WorkMeter(10_000)
    search = Search(keys.SearchProgram(key), mailbox.view, mailbox.basis, work)
    by_uid = {mail.row.uid: mail for mail in mailbox.mails}
    with patch("replicator.imap.matching.phases.STEP_WORK", at_once * keys.count_keys(key)):
        found, undecided = decided(search)
    assert undecided == sorted(undecided)
    assert found.isdisjoint(undecided)
    assert search.columns or search.reads_bodies or not undecided
    if undecided and not search.reads_bodies:
        messages = [by_uid[uid].row for uid in undecided]
        headers = [ParsedBody(Skeleton(by_uid[uid].octets)).header for uid in undecided]
        values = {one: [one.make(header, one.field) for header in headers] for one in search.columns}
        columns = Columns(values, dict.fromkeys(values, 0))
        matching = search.by_columns(messages, columns)
        assert matching == search.by_columns_apart(messages, columns)
        assert matching == {one for one in undecided if matches_naively(key, by_uid[one], mailbox)}
    if undecided:
        bodies = {by_uid[uid].row.content_hash: Skeleton(by_uid[uid].octets) for uid in undecided}
        outlines = {one: outline_of(body) for one, body in bodies.items() if one[-1] in outlined}
        texts = {one: search_text_of(body) for one, body in bodies.items() if one[-1] in with_text}
        more, undecided = search.narrow([by_uid[uid].row for uid in undecided], outlines, texts)
        assert search.columns or search.reads_bodies or not more
        assert not outlined & with_text & {uid for uid in undecided if is_told(key)}
        assert found.isdisjoint(more)
        assert more.isdisjoint(undecided)
        found |= more
    found |= {uid for uid in undecided if search.matches(by_uid[uid].row, ParsedBody(Skeleton(by_uid[uid].octets)))}
    announced = [mail for mail in mailbox.mails if mail.row.uid in mailbox.announced]
    assert found == {mail.row.uid for mail in announced if matches_naively(key, mail, mailbox)}


def is_told(key: keys.SearchKey) -> bool:
    """Return True if outlines and search texts always tell what the key asks for."""
    match key:
        case keys.And(parts):
            return all(map(is_told, parts))
        case keys.Or(left, right):
            return is_told(left) and is_told(right)
        case keys.Not(inner):
            return is_told(inner)
        case keys.HeaderContains(name, _):
            return name.upper() != "RECEIVED"
        case _:
            return True


def decided(search: Search) -> tuple[set[int], list[int]]:
    """Return the results of the first phase for all messages."""
    steps = list(search.decide())
    return set().union(*(step.sure for step in steps)), [uid for step in steps for uid in step.doubtful]


def row(uid: int, *flags: str) -> Message:
    return Message(uid, bytes(16), 1, frozenset(flags), 0, 10 * uid, bytes(32), Dot("dc1.1", uid), 0)


def search_of(key: keys.SearchKey, *rows: Message, charset: str | None = None) -> Search:
    mails = [Mail(one, None, "", "", None) for one in rows]
    mailbox = Mailbox(mails, [one.uid for one in rows], UidSet(), is_whole=True)
    program = keys.SearchProgram(key, charset)
    return Search(program, mailbox.view, mailbox.basis, WorkMeter(1_000_000))


SEEN = keys.Flagged("\\Seen")
TEXT = keys.TextContains(b"x")
ROWS = (row(1), row(2, "\\Seen"), row(3), row(4, "\\Seen"))


@pytest.mark.parametrize(
    ("key", "found", "undecided"),
    [
        (TEXT, set(), [1, 2, 3, 4]),
        (keys.And((TEXT, SEEN)), set(), [2, 4]),
        (keys.And((SEEN, keys.Larger(30), TEXT)), set(), [4]),
        (keys.Or(TEXT, SEEN), {2, 4}, [1, 3]),
        (keys.Not(keys.And((TEXT, SEEN))), {1, 3}, [2, 4]),
        (keys.Not(keys.Or(TEXT, SEEN)), set(), [1, 3]),
        (keys.And((TEXT, keys.Not(keys.Or(TEXT, SEEN)))), set(), [1, 3]),
        (keys.Or(keys.All(), TEXT), {1, 2, 3, 4}, []),
        (keys.And((keys.Not(keys.All()), TEXT)), set(), []),
    ],
)
def test_bodies_are_needed_only_where_they_decide(key: keys.SearchKey, found: set[int], undecided: list[int]) -> None:
    assert decided(search_of(key, *ROWS)) == (found, undecided)


@pytest.mark.parametrize(
    ("key", "found", "undecided"),
    [
        (keys.HeaderContains("Subject", b"x"), {2}, [3]),
        (keys.AddressContains("From", b"ann@"), {1, 2}, [3]),
        (keys.HeaderContains("X-None", b"x"), set(), [3]),
        (keys.HeaderContains("Received", b"x"), set(), [1, 2, 3]),
        (keys.And((TEXT, keys.HeaderContains("Subject", b"x"))), set(), [2, 3]),
        (keys.Or(TEXT, keys.HeaderContains("Subject", b"x")), {2}, [1, 3]),
        (keys.Not(keys.HeaderContains("Subject", b"x")), {1}, [3]),
        (keys.Sent(keys.Relation.SINCE, DAYS[0]), {1, 2}, [3]),
        (keys.And((keys.Sent(keys.Relation.BEFORE, DAYS[0]), TEXT)), set(), [3]),
    ],
)
def test_outlines_decide_what_they_tell(key: keys.SearchKey, found: set[int], undecided: list[int]) -> None:
    """The third message has no outline."""
    mails = [
        Mail(row(uid)._replace(content_hash=bytes([uid])), subject, "Ann <ann@example.org>", "", DAYS[2])
        for uid, subject in ((1, "y"), (2, "x"), (3, "x"))
    ]
    outlines = {mail.row.content_hash: outline_of(Skeleton(mail.octets)) for mail in mails[:2]}
    search = search_of(key, *(mail.row for mail in mails))
    assert search.narrow([mail.row for mail in mails], outlines, {}) == (found, undecided)


@pytest.mark.parametrize(
    ("key", "found", "undecided"),
    [
        (keys.BodyContains(b"x"), {2}, [3]),
        (keys.Not(keys.BodyContains(b"x")), {1}, [3]),
        (keys.TextContains(b"ann@"), {1, 2}, [3]),
        (keys.And((keys.BodyContains(b"x"), keys.HeaderContains("Subject", b"x"))), set(), [2, 3]),
        (keys.Or(keys.BodyContains(b"x"), keys.Sent(keys.Relation.SINCE, DAYS[0])), {2}, [1, 3]),
        (keys.And((keys.BodyContains(b"x"), keys.AddressContains("From", b"ann"))), set(), [2, 3]),
    ],
)
def test_search_texts_decide_what_they_tell(key: keys.SearchKey, found: set[int], undecided: list[int]) -> None:
    """The third message has no search text, and none has an outline."""
    mails = [
        Mail(row(uid)._replace(content_hash=bytes([uid])), None, "Ann <ann@example.org>", body, DAYS[2])
        for uid, body in ((1, "y"), (2, "x"), (3, "x"))
    ]
    texts = {mail.row.content_hash: search_text_of(Skeleton(mail.octets)) for mail in mails[:2]}
    search = search_of(key, *(mail.row for mail in mails))
    assert search.narrow([mail.row for mail in mails], {}, texts) == (found, undecided)


class HeaderOnly(ParsedBody):
    @property
    def structure(self) -> Part:
        raise AssertionError("the header decides")


@pytest.mark.parametrize(
    ("key", "matches"),
    [
        (keys.And((keys.BodyContains(b"x"), keys.HeaderContains("Subject", b"y"))), False),
        (keys.Or(keys.BodyContains(b"x"), keys.HeaderContains("Subject", b"x")), True),
        (keys.Not(keys.And((keys.And((keys.TextContains(b"y"),)), keys.HeaderContains("Subject", b"y")))), True),
        (keys.TextContains(b"x"), True),
    ],
)
def test_body_is_parsed_only_where_the_header_does_not_decide(key: keys.SearchKey, *, matches: bool) -> None:
    assert search_of(key, row(1)).matches(row(1), HeaderOnly(Skeleton(b"Subject: x\r\n\r\n"))) is matches


@pytest.mark.parametrize(
    ("relation", "days"),
    [(keys.Relation.BEFORE, [27]), (keys.Relation.ON, [28]), (keys.Relation.SINCE, [28, 29])],
)
def test_date_keys_compare_whole_days(relation: keys.Relation, days: list[int]) -> None:
    day = dt.date(2024, 2, 28)
    for each in DAYS:
        start = (each - EPOCH).days * DAY_MS
        for received_ms in (start, start + DAY_MS - 1):
            received = search_of(keys.Received(relation, day), row(1)._replace(received_ms=received_ms))
            assert decided(received) == ({1} if each.day in days else set(), [])
            saved = search_of(keys.SaveDate(relation, day), row(1)._replace(received_ms=0, saved_ms=received_ms))
            assert decided(saved) == decided(received)
        parsed = ParsedBody(Skeleton(f"Date: {each:%d %b %Y} 23:00:00 -0800\r\n\r\n".encode()))
        assert search_of(keys.Sent(relation, day), row(1)).matches(row(1), parsed) is (each.day in days)


@pytest.mark.parametrize("charset", [None, "utf-8", "UTF-8"])
def test_search_text_in_utf_8_ignores_case(charset: str | None) -> None:
    search = search_of(keys.BodyContains("GRÜN".encode()), row(1), charset=charset)
    assert search.matches(row(1), ParsedBody(Skeleton("\r\nHellgrün".encode())))


@pytest.mark.parametrize(
    ("charset", "text"),
    [("ISO-8859-1", b"x"), ("", b"x"), ("us-ascii", b"\xc3\xa4"), ("UTF-8", b"\xe4"), (None, b"\xe4")],
)
def test_unsupported_charset_is_refused(charset: str | None, text: bytes) -> None:
    for key in (keys.BodyContains(text), keys.TextContains(text), keys.HeaderContains("A", text)):
        with pytest.raises(keys.BadCharsetError):
            search_of(keys.Not(key), row(1), charset=charset)


def test_unsupported_charset_is_refused_without_any_text() -> None:
    with pytest.raises(keys.BadCharsetError, match="US-ASCII or UTF-8"):
        search_of(keys.All(), charset="koi8-r")


def test_sequence_numbers_count_announced_messages() -> None:
    uids = [3, 5, 8, 13]
    wanted = keys.SequenceNumbers(SequenceSet(((2, 3), (4, 9), (50, 60))))
    found, _ = decided(search_of(wanted, *map(row, uids)))
    assert sorted(bisect_left(uids, uid) + 1 for uid in found) == [2, 3, 4]


@pytest.mark.parametrize("keys_in_all", [1, 7, 500])
def test_work_between_two_pauses_has_a_limit(keys_in_all: int) -> None:
    many = keys.And(tuple(keys.Smaller(10**6 + number) for number in range(keys_in_all)))
    work = WorkMeter(10**9)
    rows = list(map(row, range(1, 2001)))
    mailbox = Mailbox([Mail(one, None, "", "", None) for one in rows], [one.uid for one in rows], UidSet())
    before = found = 0
    for sure, _ in Search(keys.SearchProgram(many), mailbox.view, mailbox.basis, work).decide():
        assert work.done - before <= STEP_WORK
        before, found = work.done, found + len(sure)
    assert found == len(rows)
    assert work.done == len(rows) * keys_in_all


def test_search_beyond_its_limit_of_work_ends() -> None:
    program = keys.SearchProgram(keys.And((keys.Larger(1), keys.Larger(2))))
    mailbox = Mailbox([Mail(one, None, "", "", None) for one in ROWS], [one.uid for one in ROWS], UidSet())
    for limit, ends in ((8, False), (7, True)):
        search = Search(program, mailbox.view, mailbox.basis, WorkMeter(limit))
        if ends:
            with pytest.raises(WorkExceededError):
                list(search.decide())
        else:
            assert decided(search) == ({1, 2, 3, 4}, [])


def test_equal_keys_are_tested_once() -> None:
    key = keys.Not(keys.Smaller(25))
    work = WorkMeter(100)
    mailbox = Mailbox([Mail(one, None, "", "", None) for one in ROWS], [one.uid for one in ROWS], UidSet())
    search = Search(keys.SearchProgram(keys.And((key,) * 50)), mailbox.view, mailbox.basis, work)
    assert decided(search) == ({3, 4}, [])
    assert work.done == len(ROWS)


def test_header_is_decoded_once_however_many_keys_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bytes]()

    def value_text(value: bytes) -> str:
        decoded.append(value)
        return value.decode()

    monkeypatch.setattr(header_columns, "value_text", value_text)
    many = keys.And(tuple(keys.Not(keys.HeaderContains("X", b"q%d" % number)) for number in range(300)))
    assert search_of(many, row(1)).matches(row(1), ParsedBody(Skeleton(b"X: y\r\n" * 1000 + b"\r\n")))
    assert len(decoded) == 1000


def test_flags_leave_no_doubt() -> None:
    rows = row(1, "\\Seen"), row(2, "\\Seen", "\\Flagged"), row(3, "\\flagged"), row(4)
    flagged = keys.Flagged("\\Flagged")
    assert decided(search_of(keys.And((SEEN, flagged)), *rows)) == ({2}, [])
    assert decided(search_of(keys.Or(SEEN, flagged), *rows)) == ({1, 2, 3}, [])
    assert decided(search_of(keys.And((keys.Not(SEEN), flagged)), *rows)) == ({3}, [])


def test_messages_that_go_or_change_meanwhile_are_tested_as_they_are_at_one_moment() -> None:
    """Whatever other sessions do between two steps, a message passes a test or its opposite, and never both."""
    rows = list(map(row, range(1, 11)))
    view = Mailbox([Mail(one, None, "", "", None) for one in rows], [], UidSet()).view
    uids = [one.uid for one in rows]
    either = keys.Or(keys.Flagged("\\Seen"), keys.Not(keys.Flagged("\\seen")))
    with patch("replicator.imap.matching.phases.STEP_WORK", 2):
        steps = Search(keys.SearchProgram(either), view, Basis(uids), WorkMeter(1000)).decide()
        found = set(next(steps).sure)
        view.apply(ViewChange(bytes(16), 10, 12, changed=(row(5, "\\SEEN"), row(11)), expunged=(1, 9)))
        for step in steps:
            found |= step.sure
    assert found == set(uids) - {9}


@given(st.lists(st.text("ab", max_size=15), max_size=4), st.text("ab", max_size=5), st.integers(1, 8))
def test_text_is_found_across_pieces(text: list[str], wanted: str, piece: int) -> None:
    with patch("replicator.imap.matching.bounds._PIECE", piece):
        assert contains(text, wanted) is (wanted in "".join(text))


@pytest.mark.parametrize(
    "value",
    [
        b"Ann Bee <ann@example.org>",
        b"Ann (of the post) Bee <ann@example.org>",
        b"ann(x)@(y)example.org (Ann Bee)",
        b"Ann\r\n Bee <ann @ example . org>",
        b'"Ann \\Bee" <"ann"@example.org>',
        b"=?utf-8?q?Ann?= Bee <@relay.example,@b:ann@example.org>",
        b"Friends: bob@x, Ann Bee <ann@example.org>, carl@x;",
    ],
)
@pytest.mark.parametrize("name", ["FROM", "TO", "CC", "BCC"])
def test_address_is_found_however_it_is_written(name: str, value: bytes) -> None:
    """RFC 3501 section 6.4.4: these keys look into the envelope, which has no comments and no obsolete syntax."""
    octets = name.encode() + b": " + value + b"\r\n\r\n"
    for wanted in (b"ann@example.org", b"ANN", b"ann bee", b"@example.org", b""):
        key = keys.AddressContains(name, wanted)
        assert search_of(key, row(1)).matches(row(1), ParsedBody(Skeleton(octets))), wanted
    for key in (keys.AddressContains(name, b"bob@example.org"), keys.AddressContains("Sender", b"")):
        assert not search_of(key, row(1)).matches(row(1), ParsedBody(Skeleton(octets)))


def test_address_keys_look_at_the_text_of_the_field_too() -> None:
    octets = b"From: ann@example.org (of the post)\r\n\r\n"
    for wanted in (b"(of the post)", b"ORG (of"):
        assert search_of(keys.AddressContains("FROM", wanted), row(1)).matches(row(1), ParsedBody(Skeleton(octets)))


def test_header_key_looks_at_the_text_of_the_field_alone() -> None:
    octets = b"From: ann(x)@example.org\r\n\r\n"
    for key, found in ((b"ann@example.org", False), (b"ann(x)@example", True)):
        search = search_of(keys.HeaderContains("From", key), row(1))
        assert search.matches(row(1), ParsedBody(Skeleton(octets))) is found
