"""The command loop: read a command, check that it is legal now, run it, answer. `RULES` defines what is legal.

Commands run one at a time, in order; commands sent ahead wait in the socket. After each command the client is told of
changes in its mailbox, but of expunged messages only where sequence numbers may change (RFC 3501 section 7.4.1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from protocol.framing import ContinuationNeeded, Frame, FramingError, LargeLiteral
from protocol.framing import Event as ConnectionEvent
from replicator.errors import MailError
from replicator.imap.handlers import auth, idle, resync
from replicator.imap.handlers.authenticate import authenticate
from replicator.imap.handlers.folders import folders, listing, metadata, notify, quota
from replicator.imap.handlers.messages import message_changes
from replicator.imap.handlers.messages.append import append, appended
from replicator.imap.handlers.messages.fetch import fetch
from replicator.imap.handlers.searches import updates
from replicator.imap.handlers.searches.search import search
from replicator.imap.handlers.searches.sort import sort
from replicator.imap.handlers.searches.thread import thread
from replicator.imap.handlers.telling import tell_others, tell_wished, told_meanwhile
from replicator.imap.session import Completion, Session, State
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.command_parser import CommandSyntaxError, tag_of, verb_of
from replicator.imap.wire.large_literal import IncomingLiteral
from replicator.imap.wire.refusals import CommandFailedError, code_of
from replicator.imap.wire.responses import continuation, status_line, tagged
from replicator.imap.wire.search_keys import has_numbers

NAME_SHOWN = 32  # octets of a command's name that operators are shown: none is longer
MAX_BAD_COMMANDS = 10  # in a row: the client does not speak IMAP

Run = Callable[[Session, c.Command], Awaitable[Completion]]
C = TypeVar("C", bound=c.Command)


@dataclass(frozen=True, slots=True)
class Rule:
    """The states in which a command is legal, and the function that runs it."""

    states: frozenset[State]
    run: Run


def _rule(
    kind: type[C], states: frozenset[State], run: Callable[[Session, C], Awaitable[Completion]]
) -> tuple[type[object], Rule]:
    async def run_command(session: Session, command: c.Command) -> Completion:
        assert isinstance(command, kind)
        return await run(session, command)

    return kind, Rule(states, run_command)


# RFC 3501 section 3.
_ANY = frozenset({State.NOT_AUTHENTICATED, State.AUTHENTICATED, State.SELECTED})
_STRANGER = frozenset({State.NOT_AUTHENTICATED})
_USER = frozenset({State.AUTHENTICATED, State.SELECTED})
_SELECTED = frozenset({State.SELECTED})

RULES: Mapping[type[object], Rule] = MappingProxyType(
    dict(
        (
            _rule(c.Capability, _ANY, auth.capability),
            _rule(c.Noop, _ANY, auth.noop),
            _rule(c.Logout, _ANY, auth.logout),
            _rule(c.Id, _ANY, auth.identify),
            _rule(c.StartTls, _STRANGER, auth.starttls),
            _rule(c.Authenticate, _STRANGER, authenticate),
            _rule(c.Login, _STRANGER, auth.login),
            _rule(c.Compress, _USER, auth.compress),
            _rule(c.Namespace, _USER, folders.namespace),
            _rule(c.Enable, _USER, resync.enable),
            _rule(c.Select, _USER, folders.select),
            _rule(c.Create, _USER, folders.create),
            _rule(c.Delete, _USER, folders.delete),
            _rule(c.Rename, _USER, folders.rename),
            _rule(c.Subscribe, _USER, folders.subscribe),
            _rule(c.ListMailboxes, _USER, listing.list_folders),
            _rule(c.ListSubscriptions, _USER, listing.list_subscriptions),
            _rule(c.Status, _USER, folders.status),
            _rule(c.Notify, _USER, notify.notify),
            _rule(c.GetQuota, _USER, quota.get_quota),
            _rule(c.GetQuotaRoot, _USER, quota.get_quota_root),
            _rule(c.SetQuota, _USER, quota.set_quota),
            _rule(c.GetMetadata, _USER, metadata.get_metadata),
            _rule(c.SetMetadata, _USER, metadata.set_metadata),
            _rule(c.Append, _USER, append),
            _rule(c.Idle, _USER, idle.idle),
            _rule(c.Check, _SELECTED, message_changes.check),
            _rule(c.Close, _SELECTED, message_changes.close),
            _rule(c.Unselect, _SELECTED, message_changes.unselect),
            _rule(c.Expunge, _SELECTED, message_changes.expunge),
            _rule(c.Search, _SELECTED, search),
            _rule(c.Sort, _SELECTED, sort),
            _rule(c.Thread, _SELECTED, thread),
            _rule(c.CancelUpdate, _SELECTED, updates.cancel_update),
            _rule(c.Fetch, _SELECTED, fetch),
            _rule(c.Store, _SELECTED, message_changes.store),
            _rule(c.Copy, _SELECTED, message_changes.copy),
        )
    )
)


async def converse(session: Session) -> None:
    """Greet the client and serve it until the session ends. Raises the exceptions that end a connection."""
    name, sid = session.services.name, session.services.sid
    await session.write([status_line("OK", f"{name} at {sid}", f"CAPABILITY {session.capabilities()}")])
    await session.connection.flush()
    bad_commands = 0
    while not session.ended:
        session.does(None)
        understood = await _serve_next(session)
        bad_commands = 0 if understood else bad_commands + 1
        if bad_commands == MAX_BAD_COMMANDS:
            session.ended = True
            await session.write(
                [status_line("BYE", f"{MAX_BAD_COMMANDS} invalid commands in a row; this is an IMAP server")]
            )
        await session.connection.flush()


async def _serve_next(session: Session) -> bool:
    """Serve the client's next command. Return False if it was not a valid one."""
    try:
        event = await _next_event(session)
        if isinstance(event, LargeLiteral):
            return await _serve_large(session, event)
        if isinstance(event, ContinuationNeeded):
            return await _serve_waiting(session, event)
    except FramingError as error:
        await _refuse_frame(session, error)
        return error.recoverable
    assert isinstance(event, Frame), "whoever meets a large literal reads all of it"
    session.does(_name_of(event.text))
    try:
        command = await session.parsed(event)
    except CommandSyntaxError as error:
        await session.write([tagged(error.tag or "*", "BAD", str(error))])
        return False
    session.check_login()
    return await _run(session, command, verb_of(event.text).decode("ascii"))


async def _next_event(session: Session) -> ConnectionEvent:
    """Return what the client sends next; meanwhile, tell it what its NOTIFY asks for. Raises FramingError."""
    if session.notifications is None:
        return await session.connection.next_event()
    return await told_meanwhile(session, session.connection.next_event, tell_wished, tell_others)


def _name_of(text: bytes) -> str:
    """Return the command's name for people, such as `UID FETCH`; the beginning of what stands there if it is unknown.

    What clients send may be as large as a frame, and have codes that an operator's terminal would obey.
    """
    verb = verb_of(text)
    name = verb + b" " + text.split(b" ", 3)[2].upper() if verb == b"UID" and text.count(b" ") > 1 else verb
    return "".join(chr(octet) if 0x20 <= octet < 0x7F else "?" for octet in name[:NAME_SHOWN])


async def _serve_waiting(session: Session, begun: ContinuationNeeded) -> bool:
    """Run an APPEND before its client sends the message for which it waits; let it send any other literal."""
    if verb_of(begun.frame.text) == b"APPEND":
        literal = IncomingLiteral(session.connection, begun)
        with suppress(CommandSyntaxError):  # this literal is another part of the command
            command = await appended(session, begun, literal)
            session.does("APPEND")
            session.check_login()
            return await _run(session, command, "APPEND", literal)
    await session.write([continuation("Send the literal")])
    return True


async def _serve_large(session: Session, begun: LargeLiteral) -> bool:
    """Serve a command whose large literal is still arriving. Answer the command once the literal is complete."""
    literal = IncomingLiteral(session.connection, begun)
    session.does(_name_of(begun.frame.text))
    if verb_of(begun.frame.text) == b"SETMETADATA":
        return await _refuse_value(session, begun, literal)
    try:
        command = await appended(session, begun, literal)
    except CommandSyntaxError as error:
        await literal.skip()
        await session.write([tagged(error.tag or "*", "BAD", str(error))])
        return False
    session.check_login()
    return await _run(session, command, "APPEND", literal)


async def _refuse_value(session: Session, begun: LargeLiteral, literal: IncomingLiteral) -> bool:
    """Refuse a SETMETADATA that would not fit into memory, without the octets that its client has yet to send."""
    await literal.skip()
    error = metadata.too_large(session)
    session.services.metrics.command("SETMETADATA", error.condition)
    await session.write([tagged(tag_of(begun.frame.text) or "*", error.condition, str(error), error.code)])
    return True


async def _refuse_frame(session: Session, error: FramingError) -> None:
    """Answer a framing error, such as an oversized literal. End the session if no further command can be parsed."""
    is_append = verb_of(error.text) == b"APPEND"
    # RFC 7889 section 4: NO, if the client waits for permission. Else RFC 7888 sections 4 and 5: BAD, and BYE.
    condition = "NO" if is_append and error.recoverable else "BAD"
    await session.write([tagged(tag_of(error.text) or "*", condition, str(error), "TOOBIG" if is_append else None)])
    if not error.recoverable:
        session.ended = True
        await session.write([status_line("BYE", str(error), "TOOBIG" if error.oversized else None)])


async def _run(session: Session, command: c.Tagged, verb: str, literal: IncomingLiteral | None = None) -> bool:
    """Run one command and answer it. Return False if it was illegal. Skips the unread rest of `literal`."""
    condition, text, code, after = "OK", "", None, None
    session.tag = command.tag
    try:
        completion = await _run_if_legal(session, command, verb)
        text, code, after = completion.text, completion.code, completion.after
    except CommandFailedError as error:
        condition, text, code = error.condition, str(error), error.code
    except MailError as error:
        condition, text, code = "NO", str(error), code_of(error)
    if literal is not None:
        await literal.skip()
    if session.state is State.SELECTED:
        await updates.announce(
            session,
            expunges=_may_renumber(command.command),
            with_uid=_is_by_uid(command.command),
            is_own_expunge=_expunges(command.command),
        )
        await session.write(await session.selection.claim_recent())
        if modseq_code := session.selection.modseq_code_due():
            if condition == "OK" and code is None:
                code = modseq_code
            else:
                await session.write([status_line("OK", "Highest MODSEQ", modseq_code)])
    await notify.tell_folders(session, command.command if condition == "OK" else None)
    session.services.metrics.command(verb, condition)
    await session.write([tagged(command.tag, condition, text, code)])
    if after is not None:
        await session.connection.flush()
        await after()
    return condition != "BAD"


async def _run_if_legal(session: Session, command: c.Tagged, verb: str) -> Completion:
    rule = RULES[type(command.command)]
    if session.state not in rule.states:
        raise CommandFailedError(f"{verb} {_what_it_needs(session, rule)}", condition="BAD")
    if command.bad_name is not None:
        raise CommandFailedError(command.bad_name, "CANNOT")
    return await rule.run(session, command.command)


def _what_it_needs(session: Session, rule: Rule) -> str:
    if rule.states == _STRANGER:
        return "is allowed only before login"
    if session.state is State.NOT_AUTHENTICATED:
        return "needs a login; log in first"
    return "needs a selected mailbox; SELECT one first"


def _may_renumber(command: c.Command) -> bool:
    """Return False if EXPUNGE and VANISHED are forbidden now, so that sequence numbers must not change.

    See RFC 3501 section 7.4.1, and for a UID SEARCH by sequence numbers RFC 7162 section 3.2.10.2.
    """
    if isinstance(command, c.Search | c.Sort | c.Thread):
        return command.by_uid and not has_numbers(command.program.key)
    return not isinstance(command, c.Fetch | c.Store) or command.by_uid


def _expunges(command: c.Command) -> bool:
    """Return True if the client expects to hear of messages that the command itself has expunged."""
    return isinstance(command, c.Expunge) or (isinstance(command, c.Copy) and command.remove)


def _is_by_uid(command: c.Command) -> bool:
    if isinstance(command, c.Expunge):
        return command.uids is not None
    return isinstance(command, c.Fetch | c.Store | c.Search | c.Sort | c.Thread | c.Copy) and command.by_uid
