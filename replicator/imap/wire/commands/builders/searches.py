"""SEARCH, SORT and THREAD, their result options, and search keys."""

from __future__ import annotations

from dataclasses import dataclass

from lark import Token, v_args

from protocol.values import UID_MAX
from replicator.imap.wire import search_keys as keys
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.fetch_items import FetchItemBuilder, Items, items_after
from replicator.imap.wire.commands.builders.text_values import (
    MeaninglessError,
    field_name,
    latin,
    modseq_number,
    octet_count,
    parsed_date,
)
from replicator.imap.wire.search_keys import ReturnOption, Returns, SearchKey, SearchProgram
from replicator.imap.wire.sequence_set import MessageSet, SavedResult
from replicator.imap.wire.sort_keys import SortCriterion, SortKey

MAX_SEARCH_DEPTH = 50  # of NOT, OR and parentheses: evaluation recurses, and no person nests that deep


@dataclass(frozen=True, slots=True)
class _Places:
    """The first and last places that PARTIAL names."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Nested:
    """A search key with its depth of nesting."""

    key: SearchKey
    depth: int = 1


@v_args(inline=True)
class SearchBuilder(FetchItemBuilder):
    """Builds the commands that search, with their keys and the updates of results."""

    def search(self, returns: Returns | None, charset: bytes | None, program: _Nested) -> c.Command:
        return c.Search(SearchProgram(program.key, None if charset is None else latin(charset)), returns)

    def sort(self, returns: Returns | None, *rest: SortCriterion | bytes | _Nested) -> c.Command:
        *criteria, charset, program = rest
        assert isinstance(charset, bytes)
        assert isinstance(program, _Nested)
        keys_of_sort = [criterion for criterion in criteria if isinstance(criterion, SortCriterion)]
        return c.Sort(tuple(keys_of_sort), SearchProgram(program.key, latin(charset)), returns)

    def sort_criterion(self, reverse: Token | None, key: Token) -> SortCriterion:
        return SortCriterion(SortKey(key.upper()), reverse=reverse is not None)

    def thread(self, algorithm: Token, charset: bytes, program: _Nested) -> c.Command:
        return c.Thread(c.ThreadAlgorithm(algorithm.upper()), SearchProgram(program.key, latin(charset)))

    def return_options(self, *named: ReturnOption | _Places | Items | None) -> Returns:
        options = [option for option in named if isinstance(option, ReturnOption)]
        partials = [option for option in named if isinstance(option, _Places)]
        items = items_after(ReturnOption.UPDATE, named)
        if len(partials) + (ReturnOption.ALL in options) > 1:  # RFC 5267 section 4.4
            raise MeaninglessError("RETURN may have one PARTIAL or ALL")
        if not options and not partials:
            options = [ReturnOption.ALL]  # RFC 4731 section 3.1
        return Returns(frozenset(options), (partials[0].first, partials[0].last) if partials else None, items or ())

    def result_option(self, name: Token, last: Token | None = None) -> ReturnOption | _Places:
        if last is None:
            return ReturnOption(name.upper())
        return _Places(*sorted((_place(name), _place(last))))  # 500:400 is the same as 400:500 (RFC 5267 section 5)

    def cancel_update(self, *tags: Token) -> c.Command:
        return c.CancelUpdate(tuple(latin(self.quoted(tag)) for tag in tags))

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
        return _Nested(keys.Received(keys.RECEIVED_KEYS[relation.upper()], parsed_date(date)))

    def sent_key(self, relation: Token, date: Token) -> _Nested:
        return _Nested(keys.Sent(keys.SENT_KEYS[relation.upper()], parsed_date(date)))

    def saved_key(self, relation: Token, date: Token) -> _Nested:
        return _Nested(keys.SaveDate(keys.SAVED_KEYS[relation.upper()], parsed_date(date)))

    def within_key(self, name: Token, seconds: Token) -> _Nested:
        return _Nested(keys.ReceivedWithin(int(seconds), younger=name.upper() == "YOUNGER"))

    def header(self, name: bytes, text: bytes) -> _Nested:
        return _Nested(keys.HeaderContains(field_name(name), text))

    def body(self, text: bytes) -> _Nested:
        return _Nested(keys.BodyContains(text))

    def text(self, text: bytes) -> _Nested:
        return _Nested(keys.TextContains(text))

    def keyword(self, name: Token) -> _Nested:
        return _Nested(keys.Flagged(str(name)))

    def unkeyword(self, name: Token) -> _Nested:
        return _Nested(keys.not_flagged(str(name)))

    def larger(self, size: Token) -> _Nested:
        return _Nested(keys.Larger(octet_count(size)))

    def smaller(self, size: Token) -> _Nested:
        return _Nested(keys.Smaller(octet_count(size)))

    def emailid(self, name: Token) -> _Nested:
        return _Nested(keys.EmailId(str(name)))

    def threadid(self, name: Token) -> _Nested:
        return _Nested(keys.ThreadId(str(name)))

    def modseq(self, _entry: Token | None, _type: Token | None, modseq: Token) -> _Nested:
        return _Nested(keys.ModSeq(modseq_number(modseq)))

    def uids(self, uids: MessageSet) -> _Nested:
        return _Nested(keys.Saved() if isinstance(uids, SavedResult) else keys.Uids(uids))

    def numbers(self, numbers: MessageSet) -> _Nested:
        return _Nested(keys.Saved() if isinstance(numbers, SavedResult) else keys.SequenceNumbers(numbers))


def _place(digits: str) -> int:
    if (place := int(digits)) > UID_MAX:
        raise MeaninglessError(f"{digits} is more than {UID_MAX}, the largest number of results")
    return place


def _deeper(key: SearchKey, *inside: _Nested) -> _Nested:
    depth = 1 + max(nested.depth for nested in inside)
    if depth > MAX_SEARCH_DEPTH:
        raise MeaninglessError(f"the search keys nest deeper than {MAX_SEARCH_DEPTH}")
    return _Nested(key, depth)
