"""Commands built from parsed text: one method for each rule of `imap.lark`, called as the rule is reduced.

Also checks what the grammar cannot express: ranges of numbers, valid dates, depth of nesting, names.
"""
# ruff: noqa: D102 (the grammar says what each rule is)

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from lark import Token, Transformer, v_args

from protocol.values import UID_MAX, UidSet
from replicator.flags import RECENT
from replicator.imap.wire import command_types as c
from replicator.imap.wire import event_groups
from replicator.imap.wire import search_keys as keys
from replicator.imap.wire.event_groups import Event, EventGroup, MailboxFilter
from replicator.imap.wire.fetch_items import (
    ALL,
    FAST,
    FULL,
    Attribute,
    BinarySection,
    BodySection,
    FetchItem,
    Partial,
    SectionText,
)
from replicator.imap.wire.mailbox_names import MailboxNameError, decode_pattern
from replicator.imap.wire.search_keys import ReturnOption, Returns, SearchKey, SearchProgram
from replicator.imap.wire.sequence_set import MessageSet, SavedResult, SequenceSet
from replicator.imap.wire.sort_keys import SortCriterion, SortKey
from replicator.mailstore import SEPARATOR, canonical_name

MAX_SEARCH_DEPTH = 50  # of NOT, OR and parentheses: evaluation recurses, and no person nests that deep
MAX_OCTETS = 2**63 - 1  # RFC 9051 number64: sizes and offsets; the store has signed 64 bits

MODSEQ_MAX = 2**63 - 1  # RFC 7162 section 7

_SelectParameters: TypeAlias = tuple[bool, c.Resync | None]
"""CONDSTORE, and the argument of QRESYNC."""

_OF_NO_NAME = 2 * SEPARATOR  # no folder's name has an empty level

_MACROS = {"ALL": ALL, "FAST": FAST, "FULL": FULL}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ESCAPED = re.compile(rb'\\(["\\])')


_MessageParts: TypeAlias = tuple[bytes | c.StoredPart, ...]

_ListReturns: TypeAlias = tuple[Iterable[c.ListReturn], tuple[c.StatusItem, ...]]
"""Return options of LIST, and the items of the one called STATUS."""


_Items: TypeAlias = tuple[FetchItem, ...]
"""FETCH items that are wanted of new messages."""


class _Part(NamedTuple):
    """The first and last places that PARTIAL names."""

    first: int
    last: int


class MeaninglessError(Exception):
    """Text that matches the grammar but has no meaning. The message says what and why."""


@dataclass(frozen=True, slots=True)
class _BegunMessage:
    """A message of which more is to come."""

    message: c.AppendedMessage
    within: c.Within


@dataclass(frozen=True, slots=True)
class _Nested:
    """A search key with its depth of nesting."""

    key: SearchKey
    depth: int = 1


@v_args(inline=True)
class CommandBuilder(Transformer[Token, c.Tagged]):
    """Builds the command of one text at a time in each thread. Call `begin` before each."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def begin(self, literals: Iterable[bytes] = (), *, utf8: bool = False) -> None:
        """Prepare for the next text of this thread, with its literals in order. `utf8`: all names are UTF-8."""
        self._of_thread.utf8 = utf8
        self._of_thread.literals = iter(literals)
        self._of_thread.bad_name = None

    @property
    def literals(self) -> Iterator[bytes]:
        """The literals that were not used yet, of the text that this thread parses."""
        left: Iterator[bytes] = self._of_thread.literals
        return left

    def tagged(self, tag: Token, command: c.Command) -> c.Tagged:
        return c.Tagged(str(tag), command, self._of_thread.bad_name)

    # ---- commands in any state, and before authentication ----

    def capability(self) -> c.Command:
        return c.Capability()

    def noop(self) -> c.Command:
        return c.Noop()

    def logout(self) -> c.Command:
        return c.Logout()

    def starttls(self) -> c.Command:
        return c.StartTls()

    def id(self, _parameters: object) -> c.Command:
        return c.Id()

    def id_parameters(self, *_values: object) -> None:
        return None

    def nil(self) -> None:
        return None

    def compress(self, mechanism: Token) -> c.Command:
        return c.Compress(mechanism.upper())

    def authenticate(self, mechanism: Token, initial: Token | None) -> c.Command:
        return c.Authenticate(mechanism.upper(), None if initial is None else _octets(initial))

    def login(self, user: bytes, password: bytes) -> c.Command:
        return c.Login(user, password)

    # ---- folders ----

    def namespace(self) -> c.Command:
        return c.Namespace()

    def enable(self, *extensions: Token) -> c.Command:
        return c.Enable(tuple(extension.upper() for extension in extensions))

    def select(self, mailbox: str, parameters: _SelectParameters | None) -> c.Command:
        condstore, resync = parameters or (False, None)
        return c.Select(mailbox, condstore=condstore, resync=resync)

    def examine(self, mailbox: str, parameters: _SelectParameters | None) -> c.Command:
        condstore, resync = parameters or (False, None)
        return c.Select(mailbox, read_only=True, condstore=condstore, resync=resync)

    def select_parameters(self, *given: c.Resync | None) -> _SelectParameters:
        if len(given) != len({type(one) for one in given}):
            raise MeaninglessError("each parameter may stand once")
        return None in given, next((one for one in given if one is not None), None)

    def condstore(self) -> None:
        return None

    def resync(self, uidvalidity: Token, modseq: Token, known: UidSet | None, sample: c.MatchData | None) -> c.Resync:
        number = _number(uidvalidity)
        assert number is not None
        return c.Resync(number, _modseq(modseq), known, sample)

    def match_data(self, numbers: UidSet, uids: UidSet) -> c.MatchData:
        if len(numbers) != len(uids):
            raise MeaninglessError(f"there are {len(numbers)} sequence numbers and {len(uids)} UIDs to match")
        return c.MatchData(numbers, uids)

    def create(self, mailbox: str, uses: tuple[str, ...] | None) -> c.Command:
        return c.Create(mailbox, uses or ())

    def delete(self, mailbox: str) -> c.Command:
        return c.Delete(mailbox)

    def rename(self, mailbox: str, new_name: str) -> c.Command:
        return c.Rename(mailbox, new_name)

    def subscribe(self, mailbox: str) -> c.Command:
        return c.Subscribe(mailbox)

    def unsubscribe(self, mailbox: str) -> c.Command:
        return c.Subscribe(mailbox, subscribed=False)

    def list(
        self,
        selection: frozenset[c.ListSelection] | None,
        reference: bytes,
        patterns: bytes | tuple[bytes, ...],
        options: _ListReturns | None,
    ) -> c.Command:
        returned, status = options or ((), ())
        return c.ListMailboxes(
            self._pattern(reference),
            tuple(map(self._pattern, [patterns] if isinstance(patterns, bytes) else patterns)),
            selection or frozenset(),
            frozenset(returned),
            status,
            extended=selection is not None or options is not None or not isinstance(patterns, bytes),
        )

    def list_selection(self, *options: Token | None) -> frozenset[c.ListSelection]:
        selection = frozenset(c.ListSelection(option.upper()) for option in options if option is not None)
        if c.ListSelection.RECURSIVEMATCH in selection and not selection & c.LIST_CRITERIA:  # RFC 5258 section 3.1
            raise MeaninglessError("RECURSIVEMATCH needs another selection option beside it: SUBSCRIBED or SPECIAL-USE")
        return selection

    def list_patterns(self, *patterns: bytes) -> tuple[bytes, ...]:
        return patterns

    def list_return(self, *options: c.ListReturn | tuple[c.StatusItem, ...] | None) -> _ListReturns:
        status = [items for items in options if isinstance(items, tuple)]
        return [one for one in options if isinstance(one, c.ListReturn)], status[-1] if status else ()

    def return_option(self, name: Token) -> c.ListReturn:
        return c.ListReturn(name.upper())

    def lsub(self, reference: bytes, pattern: bytes) -> c.Command:
        return c.ListSubscriptions(self._pattern(reference), self._pattern(pattern))

    def list_mailbox(self, pattern: bytes) -> bytes:
        return pattern

    def get_quota(self, root: bytes) -> c.Command:
        return c.GetQuota(root)

    def get_quota_root(self, mailbox: str) -> c.Command:
        return c.GetQuotaRoot(mailbox)

    def set_quota(self, root: bytes, *_limits: None) -> c.Command:
        return c.SetQuota(root)

    def quota_limit(self, _resource: Token, _limit: Token) -> None:
        return None

    def get_metadata(
        self, options: tuple[int | float, ...] | None, mailbox: str, entries: tuple[str, ...]
    ) -> c.Command:
        sizes = [one for one in options or () if isinstance(one, int)]
        depths = [one for one in options or () if isinstance(one, float)]
        if len(sizes) > 1 or len(depths) > 1:
            raise MeaninglessError("each option may stand once")
        return c.GetMetadata(mailbox, entries, sizes[0] if sizes else None, depths[0] if depths else 0.0)

    def get_metadata_of(self, mailbox: str, options: tuple[int | float, ...], entries: tuple[str, ...]) -> c.Command:
        return self.get_metadata(options, mailbox, entries)

    def metadata_options(self, *options: float) -> tuple[int | float, ...]:
        return options

    def metadata_max_size(self, size: Token) -> int:
        return _octet_count(size)

    def metadata_depth(self, depth: Token) -> float:
        return float(depth)

    def metadata_entries(self, *entries: str) -> tuple[str, ...]:
        return entries

    def metadata_entry(self, name: bytes) -> str:
        if b"*" in name or b"%" in name:  # RFC 5464 section 5
            raise MeaninglessError("the name of an annotation has no * and no %")
        return _latin(name).lower()

    def set_metadata(self, mailbox: str, *values: tuple[str, bytes | None]) -> c.Command:
        if len({name for name, _ in values}) < len(values):
            raise MeaninglessError("each annotation may stand once")
        return c.SetMetadata(mailbox, values)

    def metadata_value(self, name: str, value: bytes | None) -> tuple[str, bytes | None]:
        return name, value

    def literal8(self, _marker: Token) -> bytes:
        return next(self.literals)

    def status(self, mailbox: str, items: tuple[c.StatusItem, ...]) -> c.Command:
        return c.Status(mailbox, items)

    def status_items(self, *items: Token) -> tuple[c.StatusItem, ...]:
        return tuple(c.StatusItem(item.upper()) for item in items)

    def notify_none(self) -> c.Command:
        return c.Notify()

    def notify_set(self, status: str | None, *groups: EventGroup) -> c.Command:
        if why := event_groups.problem(groups):
            raise MeaninglessError(why)
        return c.Notify(groups, status=status is not None)

    def status_indicator(self) -> str:
        return "STATUS"

    def event_group(
        self, mailboxes: tuple[MailboxFilter, tuple[str, ...]], events: tuple[tuple[str, ...], _Items | None]
    ) -> EventGroup:
        return EventGroup(*mailboxes, *events)

    def event_mailboxes(self, name: Token, *mailboxes: str) -> tuple[MailboxFilter, tuple[str, ...]]:
        return MailboxFilter(name.upper()), mailboxes

    def events(self, *given: str | _Items) -> tuple[tuple[str, ...], _Items | None]:
        names = tuple(one for one in given if isinstance(one, str))
        return names, _items_after(Event.MESSAGE_NEW.value.upper(), given)

    def event(self, name: Token) -> str:
        return name.upper()

    def new_message_items(self, *items: FetchItem) -> _Items:
        return items

    def append(
        self, mailbox: str, messages: tuple[c.AppendedMessage, ...] | None, begun: _BegunMessage | None = None
    ) -> c.Command:
        if begun is None:
            return c.Append(mailbox, messages or ())
        return c.Append(mailbox, (*(messages or ()), begun.message), begun.within)

    def append_messages(self, *messages: c.AppendedMessage | tuple[c.AppendedMessage, ...]) -> tuple[object, ...]:
        return _joined(messages)

    def append_message(
        self, flags: tuple[str, ...] | None, received: Token | None, parts: _MessageParts
    ) -> c.AppendedMessage:
        return c.AppendedMessage(flags or (), None if received is None else _date_time_ms(received), parts)

    def append_data(self, data: bytes | _MessageParts) -> _MessageParts:
        return (data,) if isinstance(data, bytes) else data

    def begun_message(
        self, flags: tuple[str, ...] | None, received: Token | None, begun: tuple[_MessageParts, c.Within]
    ) -> _BegunMessage:
        parts, within = begun
        return _BegunMessage(self.append_message(flags, received, parts), within)

    def begun_parts(self, parts: _MessageParts) -> tuple[_MessageParts, c.Within]:
        return parts, c.Within.CATENATE

    def begun_parts_and_utf8(self, parts: _MessageParts | None, text: bytes) -> tuple[_MessageParts, c.Within]:
        return (*(parts or ()), text), c.Within.CATENATE_UTF8

    def begun_utf8(self, text: bytes) -> tuple[_MessageParts, c.Within]:
        return (text,), c.Within.UTF8

    def cat_parts(self, *parts: object) -> tuple[object, ...]:
        return _joined(parts)

    def stored_part(self, url: bytes) -> c.StoredPart:
        return c.StoredPart(url)

    def message_text(self, _marker: Token) -> bytes:
        return next(self.literals)

    begun_utf8_text = message_text

    def utf8_text(self, text: bytes) -> bytes:
        return text

    # ---- the selected mailbox ----

    def idle(self) -> c.Command:
        return c.Idle()

    def check(self) -> c.Command:
        return c.Check()

    def close(self) -> c.Command:
        return c.Close()

    def unselect(self) -> c.Command:
        return c.Unselect()

    def expunge(self, uids: MessageSet | None = None) -> c.Command:
        return c.Expunge(uids)

    def fetch(
        self, numbers: MessageSet, items: tuple[FetchItem, ...], modifiers: tuple[int | None, bool] | None
    ) -> c.Command:
        changed_since, vanished = modifiers or (None, False)
        return c.Fetch(numbers, items, changed_since, vanished)

    def fetch_modifiers(self, *given: int | None) -> tuple[int | None, bool]:
        if len(given) != len({type(one) for one in given}):
            raise MeaninglessError("each modifier may stand once")
        return next((one for one in given if one is not None), None), None in given

    def changed_since(self, modseq: Token) -> int:
        return _modseq(modseq)

    def vanished(self) -> None:
        return None

    def store(self, numbers: MessageSet, unchanged_since: int | None, item: Token, flags: tuple[str, ...]) -> c.Command:
        if any(flag.lower() == RECENT.lower() for flag in flags):  # not a flag that STORE takes, RFC 3501 section 9
            raise MeaninglessError(f"only the server sets {RECENT}")
        action, _, silent = item.upper().partition(".")
        return c.Store(numbers, c.StoreAction(action), flags, bool(silent), unchanged_since)

    def unchanged_since(self, modseq: Token) -> int:
        return _modseq(modseq)

    def copy(self, numbers: MessageSet, mailbox: str) -> c.Command:
        return c.Copy(numbers, mailbox)

    def move(self, numbers: MessageSet, mailbox: str) -> c.Command:
        return c.Copy(numbers, mailbox, remove=True)

    def search(self, returns: Returns | None, charset: bytes | None, program: _Nested) -> c.Command:
        return c.Search(SearchProgram(program.key, None if charset is None else _latin(charset)), returns)

    def sort(self, returns: Returns | None, *rest: SortCriterion | bytes | _Nested) -> c.Command:
        *criteria, charset, program = rest
        assert isinstance(charset, bytes)
        assert isinstance(program, _Nested)
        keys_of_sort = [criterion for criterion in criteria if isinstance(criterion, SortCriterion)]
        return c.Sort(tuple(keys_of_sort), SearchProgram(program.key, _latin(charset)), returns)

    def sort_criterion(self, reverse: Token | None, key: Token) -> SortCriterion:
        return SortCriterion(SortKey(key.upper()), reverse=reverse is not None)

    def thread(self, algorithm: Token, charset: bytes, program: _Nested) -> c.Command:
        return c.Thread(c.ThreadAlgorithm(algorithm.upper()), SearchProgram(program.key, _latin(charset)))

    def return_options(self, *named: ReturnOption | _Part | _Items | None) -> Returns:
        options = [option for option in named if isinstance(option, ReturnOption)]
        partials = [option for option in named if isinstance(option, _Part)]
        items = _items_after(ReturnOption.UPDATE, named)
        if len(partials) + (ReturnOption.ALL in options) > 1:  # RFC 5267 section 4.4
            raise MeaninglessError("RETURN may have one PARTIAL or ALL")
        if not options and not partials:
            options = [ReturnOption.ALL]  # RFC 4731 section 3.1
        return Returns(frozenset(options), partials[0] if partials else None, items or ())

    def result_option(self, name: Token, last: Token | None = None) -> ReturnOption | _Part:
        if last is None:
            return ReturnOption(name.upper())
        return _Part(*sorted((_place(name), _place(last))))  # 500:400 is the same as 400:500 (RFC 5267 section 5)

    def cancel_update(self, *tags: Token) -> c.Command:
        return c.CancelUpdate(tuple(_latin(self.quoted(tag)) for tag in tags))

    def by_uid(self, command: c.Fetch | c.Store | c.Copy | c.Search | c.Sort | c.Thread) -> c.Command:
        return replace(command, by_uid=True)

    # ---- FETCH items ----

    def fetch_items(self, *items: FetchItem) -> tuple[FetchItem, ...]:
        return items

    def fetch_macro(self, macro: Token) -> tuple[FetchItem, ...]:
        return _MACROS[macro.upper()]

    def attribute(self, name: Token) -> FetchItem:
        return Attribute(name.upper())

    def lazy_preview(self, _item: Token) -> FetchItem:
        return Attribute.PREVIEW_LAZY

    def body_section(
        self, opening: Token, section: BodySection, origin: Token | None, length: Token | None
    ) -> FetchItem:
        return replace(section, partial=_partial(origin, length), peek="." in opening)

    def binary_section(
        self, opening: Token, part: Token | None, origin: Token | None, length: Token | None
    ) -> FetchItem:
        return BinarySection(_part(part) if part else (), _partial(origin, length), peek="." in opening)

    def binary_size(self, _opening: Token, part: Token | None) -> FetchItem:
        return BinarySection(_part(part) if part else (), peek=True, size_only=True)

    def section_whole(self, part: Token | None) -> BodySection:
        return BodySection(() if part is None else _part(part))

    def section_of_message(self, text: BodySection) -> BodySection:
        return text

    def section_of_part(self, part: Token, text: BodySection) -> BodySection:
        return replace(text, part=_part(part))

    def section_mime(self, part: Token, _mime: Token) -> BodySection:
        return BodySection(_part(part), SectionText.MIME)

    def section_text(self, name: Token, *fields: bytes) -> BodySection:
        return BodySection(text=SectionText(name.upper()), fields=tuple(_field_name(field) for field in fields))

    # ---- SEARCH keys ----

    def search_keys(self, *found: _Nested) -> _Nested:
        if len(found) == 1:
            return found[0]
        return _Nested(keys.And(tuple(nested.key for nested in found)), max(nested.depth for nested in found))

    def all_keys(self, nested: _Nested) -> _Nested:
        return _deeper(nested.key, nested)

    def not_key(self, nested: _Nested) -> _Nested:
        return _deeper(keys.Not(nested.key), nested)

    def or_key(self, left: _Nested, right: _Nested) -> _Nested:
        return _deeper(keys.Or(left.key, right.key), left, right)

    def plain_key(self, name: Token) -> _Nested:
        return _Nested(keys.PLAIN_KEYS[name.upper()])

    def address_key(self, name: Token, text: bytes) -> _Nested:
        return _Nested(keys.AddressContains(name.upper(), text))

    def subject_key(self, text: bytes) -> _Nested:
        return _Nested(keys.HeaderContains("SUBJECT", text))

    def received_key(self, relation: Token, date: Token) -> _Nested:
        return _Nested(keys.Received(keys.RECEIVED_KEYS[relation.upper()], _date(date)))

    def sent_key(self, relation: Token, date: Token) -> _Nested:
        return _Nested(keys.Sent(keys.SENT_KEYS[relation.upper()], _date(date)))

    def saved_key(self, relation: Token, date: Token) -> _Nested:
        return _Nested(keys.SaveDate(keys.SAVED_KEYS[relation.upper()], _date(date)))

    def within_key(self, name: Token, seconds: Token) -> _Nested:
        return _Nested(keys.ReceivedWithin(int(seconds), younger=name.upper() == "YOUNGER"))

    def header(self, name: bytes, text: bytes) -> _Nested:
        return _Nested(keys.HeaderContains(_field_name(name), text))

    def body(self, text: bytes) -> _Nested:
        return _Nested(keys.BodyContains(text))

    def text(self, text: bytes) -> _Nested:
        return _Nested(keys.TextContains(text))

    def keyword(self, name: Token) -> _Nested:
        return _Nested(keys.Flagged(str(name)))

    def unkeyword(self, name: Token) -> _Nested:
        return _Nested(keys.not_flagged(str(name)))

    def larger(self, size: Token) -> _Nested:
        return _Nested(keys.Larger(_octet_count(size)))

    def smaller(self, size: Token) -> _Nested:
        return _Nested(keys.Smaller(_octet_count(size)))

    def emailid(self, name: Token) -> _Nested:
        return _Nested(keys.EmailId(str(name)))

    def threadid(self, name: Token) -> _Nested:
        return _Nested(keys.ThreadId(str(name)))

    def modseq(self, _entry: Token | None, _type: Token | None, modseq: Token) -> _Nested:
        return _Nested(keys.ModSeq(_modseq(modseq)))

    def uids(self, uids: MessageSet) -> _Nested:
        return _Nested(keys.Saved() if isinstance(uids, SavedResult) else keys.Uids(uids))

    def numbers(self, numbers: MessageSet) -> _Nested:
        return _Nested(keys.Saved() if isinstance(numbers, SavedResult) else keys.SequenceNumbers(numbers))

    # ---- values ----

    def mailbox(self, encoded: bytes) -> str:
        """Decode a name. No folder has a name that makes no sense, so its command is valid, but fails."""
        try:
            return canonical_name(decode_pattern(encoded, utf8=self._of_thread.utf8))
        except MailboxNameError as error:
            self._of_thread.bad_name = str(error)
            return ""

    def _pattern(self, encoded: bytes) -> str:
        """Decode a pattern of LIST, or its beginning. One that makes no sense matches nothing (RFC 5258 section 3)."""
        try:
            return decode_pattern(encoded, utf8=self._of_thread.utf8)
        except MailboxNameError:
            return _OF_NO_NAME

    def atom(self, text: Token) -> bytes:
        return _octets(text)

    def quoted(self, text: Token) -> bytes:
        octets = _octets(text)
        try:
            octets.decode("utf-8")
        except UnicodeDecodeError as error:  # RFC 6855 section 3, RFC 9051 section 9
            raise MeaninglessError("a quoted string must be UTF-8") from error
        return _ESCAPED.sub(rb"\1", octets[1:-1])

    def literal(self, _marker: Token) -> bytes:
        return next(self.literals)

    def sequence_set(self, text: Token) -> SequenceSet:
        return SequenceSet(tuple(_range(item) for item in text.split(",")))

    def saved_result(self) -> SavedResult:
        return SavedResult()

    def uid_set(self, text: Token) -> UidSet:
        if "*" in text:
            raise MeaninglessError("what a client knows already has no *")
        ends = [_range(item) for item in text.split(",")]
        return SequenceSet(tuple(ends)).resolve(0)

    def flags(self, *flags: Token) -> tuple[str, ...]:
        return tuple(str(flag) for flag in flags)

    def flag_list(self, *flags: Token | None) -> tuple[str, ...]:
        return tuple(str(flag) for flag in flags if flag is not None)


def _joined(items: tuple[object, ...]) -> tuple[object, ...]:
    """Return the items of a rule that recurs on its left: one item, or those so far and one more."""
    before, *more = items
    return (*before, *more) if isinstance(before, tuple) else items


def _items_after(owner: object, given: Sequence[object]) -> _Items | None:
    """Return the FETCH items behind `owner`, if there are any."""
    items = None
    for before, one in zip((None, *given), given):  # noqa: B905 - the last has none behind it
        if isinstance(one, tuple) and not isinstance(one, _Part):
            if before != owner or items is not None:
                raise MeaninglessError("FETCH items stand once, behind MessageNew or UPDATE")
            items = one
    return items


def _octets(text: str) -> bytes:
    return text.encode("latin-1")


def _latin(text: bytes) -> str:
    return text.decode("latin-1")


def _field_name(name: bytes) -> str:
    """Return a header field's name, checked by RFC 5322 section 2.2: printable ASCII except the colon."""
    if not name or not all(0x21 <= octet <= 0x7E and octet != 0x3A for octet in name):
        raise MeaninglessError(f"{name!r} is not the name of a header field")
    return name.decode("ascii")


def _octet_count(digits: str) -> int:
    if (count := int(digits)) > MAX_OCTETS:
        raise MeaninglessError(f"{digits} is more than {MAX_OCTETS}, the largest number of octets")
    return count


def _partial(origin: str | None, length: str | None) -> Partial | None:
    return None if origin is None or length is None else Partial(_octet_count(origin), _octet_count(length))


def _place(digits: str) -> int:
    if (place := int(digits)) > UID_MAX:
        raise MeaninglessError(f"{digits} is more than {UID_MAX}, the largest number of results")
    return place


def _modseq(digits: str) -> int:
    if (modseq := int(digits)) > MODSEQ_MAX:
        raise MeaninglessError(f"{digits} is more than {MODSEQ_MAX}, the largest MODSEQ")
    return modseq


def _part(numbers: str) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers.split("."))


def _range(text: str) -> tuple[int | None, int | None]:
    low, _, high = text.partition(":")
    return _number(low), _number(high or low)


def _number(text: str) -> int | None:
    if text == "*":
        return None
    if (number := int(text)) > UID_MAX:
        raise MeaninglessError(f"{text} is more than {UID_MAX}, the largest number of a message")
    return number


def _date(text: str) -> dt.date:
    day, month, year = text.strip('"').split("-")
    try:
        return dt.date(int(year), _MONTHS.index(month.lower()) + 1, int(day))
    except ValueError as error:
        raise MeaninglessError(f"{text} is not a valid date") from error


def _date_time_ms(text: str) -> int:
    """Convert a `date-time` of RFC 3501 to milliseconds since the epoch."""
    date, time, zone = text.strip('"').strip().split(" ")
    hour, minute, second = (int(part) for part in time.split(":"))
    offset = (int(zone[1:3]) * 60 + int(zone[3:5])) * (-1 if zone[0] == "-" else 1)
    try:
        moment = dt.datetime.combine(_date(date), dt.time(hour, minute, min(second, 59)), dt.UTC)
    except ValueError as error:
        raise MeaninglessError(f"{text} is not a valid time") from error
    return (int(moment.timestamp()) - offset * 60) * 1000


def _deeper(key: SearchKey, *inside: _Nested) -> _Nested:
    depth = 1 + max(nested.depth for nested in inside)
    if depth > MAX_SEARCH_DEPTH:
        raise MeaninglessError(f"the search keys nest deeper than {MAX_SEARCH_DEPTH}")
    return _Nested(key, depth)
