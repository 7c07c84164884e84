from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicator.errors import (
    ContentUnavailableError,
    DiskFullError,
    DurabilityError,
    FolderNotFoundError,
    InvalidNameError,
    MailError,
    MessageTooLargeError,
    QuotaExceededError,
    UnavailableError,
    UserNotLearnedError,
    UsersUnavailableError,
)
from replicator.lmtp.events import (
    Envelope,
    Event,
    MessageBegun,
    MessageData,
    MessageEnded,
    Recipient,
    TlsAccepted,
    UserAsked,
)
from replicator.lmtp.machine import LEGAL, RECIPIENTS_MAX, LmtpMachine
from replicator.lmtp.replies import reply_for
from replicator.lmtp.syntax import Address
from replicator.users import Recipients
from tests.lmtp.machine_client import DELIVERED, LIMIT, USERS, MachineClient


@pytest.fixture
def client() -> MachineClient:
    client = MachineClient()
    assert client.machine.take_output() == b"220 dc1 LMTP ready\r\n"
    return client


SESSION = (
    b"LHLO mx.example\r\n"
    b"MAIL FROM:<s@example> SIZE=20 BODY=8BITMIME\r\n"
    b"RCPT TO:<alice@here>\r\n"
    b"RCPT TO:<nobody@here>\r\n"
    b"RCPT TO:<bob>\r\n"
    b"DATA\r\n"
    b"Subject: x\r\n\r\n..dot\r\n...\r\nend\r\n.\r\n"
    b"MAIL FROM:<>\r\n"
    b"RCPT TO:<carol@EXAMPLE.org>\r\n"
    b"DATA\r\n"
    b".\r\n"
    b"QUIT\r\n"
    b"NOOP\r\n"
)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 50])
def test_session_does_not_depend_on_the_pieces_of_input(client: MachineClient, size: int | None) -> None:
    answer = client.send(SESSION, size)
    assert answer == (
        "250-dc1\r\n250-PIPELINING\r\n250-ENHANCEDSTATUSCODES\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE 1000\r\n"
        "250 2.1.0 sender OK\r\n"
        "250 2.1.5 recipient OK\r\n"
        "550 5.1.1 no such user here\r\n"
        "250 2.1.5 recipient OK\r\n"
        "354 send the message, end with <CRLF>.<CRLF>\r\n"
        "250 2.0.0 <alice> INBOX uid 1 stored\r\n"
        "250 2.0.0 <alice> INBOX uid 1 stored\r\n"
        "250 2.1.0 sender OK\r\n"
        "250 2.1.5 recipient OK\r\n"
        "354 send the message, end with <CRLF>.<CRLF>\r\n"
        "250 2.0.0 <alice> INBOX uid 1 stored\r\n"
        "221 2.0.0 bye\r\n"
    )
    first, second = client.messages
    assert first.body == b"Subject: x\r\n\r\n.dot\r\n..\r\nend\r\n"
    assert first.envelope.users == ("alice", "bob")
    assert str(first.envelope.sender) == "s@example"
    assert first.envelope.client == "mx.example"
    assert second.body == b""
    assert second.envelope.users == ("carol@example.org",)
    assert second.envelope.sender is None
    assert client.machine.closed


def dot_stuffed(body: bytes) -> bytes:
    """Add dots to lines as RFC 5321 section 4.5.2 requires, in a slow and simple way."""
    lines = body.split(b"\r\n")
    return b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines)


TRICKY = st.lists(st.sampled_from([b".", b"\r", b"\n", b"\r\n", b"\r\n.", b"\0", b"a", b"\xff"])).map(b"".join)
START = b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice>\r\n"


@given(st.binary(max_size=80) | TRICKY, st.integers(1, 40))
@example(b".\r\n.\r\n", 1)
def test_body_is_preserved_byte_for_byte(octets: bytes, size: int) -> None:
    body = octets + b"\r\n"
    client = MachineClient()
    assert client.codes(START + b"DATA\r\n" + dot_stuffed(body) + b".\r\nNOOP\r\n", size)[-2:] == [
        "250 2.0.0",
        "250 2.0.0",
    ]
    assert [message.body for message in client.messages] == [body]


@pytest.mark.parametrize(
    "end", [b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r\n.\r", b"\r.\r\n", b"\r\n\0.\r\n", b"\n.\r\n.\r"]
)
def test_no_other_end_of_data_is_accepted(client: MachineClient, end: bytes) -> None:
    attack = b"first" + end + b"MAIL FROM:<evil>\r\nRCPT TO:<bob>\r\nDATA\r\nsecond"
    codes = client.codes(START + b"DATA\r\n" + attack + b"\r\n.\r\n")
    assert codes == ["250 ", "250 2.1.0", "250 2.1.5", "354 ", "250 2.0.0"]
    assert len(client.messages) == 1
    assert client.messages[0].envelope.users == ("alice",)


IN_STATE = {
    "GREETED": b"",
    "READY": b"LHLO x\r\n",
    "SENDER": b"LHLO x\r\nMAIL FROM:<>\r\n",
    "RECIPIENTS": START,
}
COMMANDS = {
    "LHLO": b"LHLO x\r\n",
    "MAIL": b"MAIL FROM:<>\r\n",
    "RCPT": b"RCPT TO:<alice>\r\n",
    "DATA": b"DATA\r\n",
    "RSET": b"RSET\r\n",
    "NOOP": b"NOOP\r\n",
    "VRFY": b"VRFY alice\r\n",
    "HELP": b"HELP\r\n",
    "QUIT": b"QUIT\r\n",
}


@pytest.mark.parametrize("state", IN_STATE)
@pytest.mark.parametrize("verb", COMMANDS)
def test_command_is_accepted_only_in_its_legal_states(client: MachineClient, state: str, verb: str) -> None:
    client.send(IN_STATE[state])
    [code] = client.codes(COMMANDS[verb])
    assert (code == "503 5.5.1") == (state not in {legal.name for legal in LEGAL[verb]})
    assert code[0] in "235"


def test_legal_states_are_those_of_the_rfc() -> None:
    wrong = {
        (state, verb)
        for state, before in IN_STATE.items()
        for verb, command in COMMANDS.items()
        if MachineClient().codes(before + command)[-1].startswith("503")
    }
    assert wrong == {
        ("GREETED", "MAIL"), ("GREETED", "RCPT"), ("GREETED", "DATA"),
        ("READY", "RCPT"), ("READY", "DATA"),
        ("SENDER", "MAIL"), ("SENDER", "DATA"),
        ("RECIPIENTS", "MAIL"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"EHLO x\r\n", "500 5.5.1"),
        (b"helo x\r\n", "500 5.5.1"),
        (b"BDAT 3\r\n", "500 5.5.1"),
        (b"\r\n", "500 5.5.1"),
        (b"NOOP\n", "500 5.5.2"),
        (b"NOOP \xff\r\n", "500 5.5.2"),
        (b"noop whatever\r\n", "250 2.0.0"),
        (b"LHLO\r\n", "501 5.5.4"),
        (b"LHLO a b\r\n", "501 5.5.4"),
        (b"LHLO (x)\r\n", "501 5.5.4"),
        (b"LHLO a\rb\r\n", "501 5.5.4"),
        (b"LHLO " + b"x" * 256 + b"\r\n", "501 5.5.4"),
        (b"RSET x\r\n", "501 5.5.4"),
        (b"QUIT x\r\n", "501 5.5.4"),
        (b"RCPT TO:<alice>\r\n", "503 5.5.1"),
        (b"MAIL\r\n", "501 5.1.7"),
        (b"MAIL TO:<x>\r\n", "501 5.1.7"),
        (b"MAIL FROM:x@y\r\n", "501 5.1.7"),
        (b"MAIL FROM:<x@>\r\n", "501 5.1.7"),
        (b"MAIL FROM:<a b@c>\r\n", "501 5.1.7"),
        (b"MAIL FROM:<a\rb@c>\r\n", "501 5.1.7"),
        (b"MAIL FROM:<" + b"x" * 513 + b">\r\n", "501 5.1.7"),
        (b"MAIL FROM:<x> SIZE=abc\r\n", "555 5.5.4"),
        (b"MAIL FROM:<x> SIZE\r\n", "555 5.5.4"),
        (b"MAIL FROM:<x> BODY=BINARYMIME\r\n", "555 5.5.4"),
        (b"MAIL FROM:<x> SMTPUTF8=1\r\n", "555 5.5.4"),
        (b"MAIL FROM:<x> RET=FULL\r\n", "555 5.5.4"),
        (b"MAIL FROM:<x> SIZE=1001\r\n", "552 5.3.4"),
        (b"MAIL FROM:<x> SIZE=" + b"9" * 99 + b"\r\n", "552 5.3.4"),
        ("MAIL FROM:<é@x>\r\n".encode(), "553 5.6.7"),
        ("MAIL FROM:<é@x> SMTPUTF8\r\n".encode(), "250 2.1.0"),
        (b"mail from: <x@y>  body=8bitmime size=1000 \r\n", "250 2.1.0"),
        (b"MAIL FROM:<@a,@b:x@y>\r\n", "250 2.1.0"),
        (b'MAIL FROM:<"a \\" > b"@[IPv6:::1]>\r\n', "250 2.1.0"),
    ],
)
def test_command_arguments_are_checked(client: MachineClient, line: bytes, code: str) -> None:
    client.send(b"LHLO x\r\n")
    assert client.codes(line) == [code]


@pytest.mark.parametrize(
    ("line", "code", "user"),
    [
        (b"RCPT TO:<alice>\r\n", "250 2.1.5", "alice"),
        (b"rcpt to: <Alice@Somewhere.org>\r\n", "250 2.1.5", "alice"),
        (b"RCPT TO:<alice+spam@x>\r\n", "250 2.1.5", "alice"),
        (b"RCPT TO:<carol+a+b@example.org>\r\n", "250 2.1.5", "carol@example.org"),
        (b"RCPT TO:<x+y@example.org>\r\n", "250 2.1.5", "x+y"),
        (b'RCPT TO:<"a b"@x>\r\n', "250 2.1.5", "a b"),
        (b'RCPT TO:<"a\\lice"@x>\r\n', "250 2.1.5", "alice"),
        (b"RCPT TO:<@relay:bob@x>\r\n", "250 2.1.5", "bob"),
        (b"RCPT TO:<carol@other.org>\r\n", "550 5.1.1", None),
        (b"RCPT TO:<+alice@x>\r\n", "550 5.1.1", None),
        (b"RCPT TO:<x@y>\r\n", "550 5.1.1", None),
        (b"RCPT TO:<>\r\n", "501 5.1.3", None),
        (b"RCPT FROM:<alice>\r\n", "501 5.1.3", None),
        (b"RCPT TO:<alice> NOTIFY=NEVER\r\n", "555 5.5.4", None),
        ("RCPT TO:<mülller@exämple.org>\r\n".encode(), "553 5.6.7", None),
    ],
)
def test_recipients_are_resolved_to_users(client: MachineClient, line: bytes, code: str, user: str | None) -> None:
    client.send(b"LHLO x\r\nMAIL FROM:<>\r\n")
    assert client.codes(line) == [code]
    client.send(b"DATA\r\n.\r\n")
    assert [message.envelope.users for message in client.messages] == ([(user,)] if user else [])


def test_non_ascii_addresses_are_accepted_with_smtputf8(client: MachineClient) -> None:
    client.send("LHLO x\r\nMAIL FROM:<é@x> SMTPUTF8\r\nRCPT TO:<mülller@exämple.org>\r\nDATA\r\n.\r\n".encode())
    assert client.messages[0].envelope.users == ("mülller@exämple.org",)
    assert client.messages[0].envelope.utf8


def test_data_is_refused_with_arguments_or_without_recipients(client: MachineClient) -> None:
    client.send(b"LHLO x\r\nMAIL FROM:<>\r\n")
    assert client.send(b"DATA\r\n") == "503 5.5.1 there is no valid recipient\r\n"
    client.send(b"RCPT TO:<alice>\r\n")
    assert client.codes(b"DATA x\r\n") == ["501 5.5.4"]
    assert client.codes(b"DATA\r\n") == ["354 "]


def test_rset_and_lhlo_reset_the_transaction(client: MachineClient) -> None:
    for command in (b"RSET\r\n", b"LHLO y\r\n"):
        client.send(START + command)
        assert client.codes(b"DATA\r\n") == ["503 5.5.1"]
        assert client.codes(b"MAIL FROM:<>\r\n") == ["250 2.1.0"]
        assert client.codes(b"DATA\r\n") == ["503 5.5.1"]


def test_number_of_recipients_is_limited(client: MachineClient) -> None:
    client.send(b"LHLO x\r\nMAIL FROM:<>\r\n" + b"RCPT TO:<alice>\r\n" * RECIPIENTS_MAX)
    assert client.codes(b"RCPT TO:<bob>\r\n") == ["452 4.5.3"]
    assert client.codes(b"DATA\r\n.\r\n") == ["354 ", *["250 2.0.0"] * RECIPIENTS_MAX]


@pytest.mark.parametrize("size", [None, 1, 100])
def test_size_limit_is_exact_and_the_session_continues(client: MachineClient, size: int | None) -> None:
    dots = b"..\r\n" * (LIMIT // 4)
    for length, outcome in ((LIMIT, "250 2.0.0"), (LIMIT + 1, "552 5.3.4"), (5 * LIMIT, "552 5.3.4")):
        body = b"x" * (length - 2) + b"\r\n"
        codes = client.codes(START + b"RCPT TO:<bob>\r\nDATA\r\n" + body + b".\r\nNOOP\r\n", size)
        assert codes[-4:] == ["354 ", outcome, outcome, "250 2.0.0"]
    assert client.codes(START + b"DATA\r\n" + dots + b".\r\n", size)[-1] == "250 2.0.0"
    assert [len(message.body) for message in client.messages] == [LIMIT, 3 * (LIMIT // 4)]
    assert client.dropped == 2


def test_too_large_messages_do_not_end_the_session(client: MachineClient) -> None:
    for _ in range(10):
        assert client.codes(START + b"DATA\r\n" + b"x" * 5 * LIMIT + b"\r\n.\r\n", 100)[-1] == "552 5.3.4"


def test_stuffed_dots_do_not_count_for_the_size_limit(client: MachineClient) -> None:
    body = b".\r\n" * (LIMIT // 3)
    assert client.codes(START + b"DATA\r\n" + dot_stuffed(body) + b".\r\n", 10)[-1] == "250 2.0.0"
    assert client.messages[0].body == body


def test_endless_message_ends_the_session_in_bounded_memory(client: MachineClient) -> None:
    client.send(START + b"DATA\r\n")
    largest, answer = 0, ""
    for _ in range(1000):
        if client.machine.closed:
            break
        answer = client.send(b"x" * 100)
        largest = max(largest, client.machine.buffered_bytes)
    assert client.machine.closed
    assert answer == "421 4.3.4 the message is far too large; closing\r\n"
    assert largest <= 100 + 4
    assert client.incoming is None


def test_endless_line_ends_the_session(client: MachineClient) -> None:
    assert client.codes(b"NOOP " + b"x" * 4089 + b"\r\n") == ["250 2.0.0"]
    assert client.codes(b"NOOP " + b"x" * 4092) == ["421 4.5.2"]
    assert client.machine.closed
    assert client.machine.buffered_bytes == 0


def test_too_many_errors_end_the_session_but_unknown_users_do_not(client: MachineClient) -> None:
    client.send(b"LHLO x\r\nMAIL FROM:<>\r\n")
    assert set(client.codes(b"RCPT TO:<nobody>\r\n" * 50)) == {"550 5.1.1"}
    assert client.codes(b"BAD\r\n" * 25) == [*["500 5.5.1"] * 20, "421 4.7.0"]
    assert client.machine.closed


def test_no_answer_is_given_before_delivery(client: MachineClient) -> None:
    client.send(START)
    client.machine.receive(b"DATA\r\nx\r\n.\r\nNOOP\r\n")
    assert [client.machine.advance() for _ in range(4)] == [
        MessageBegun(Envelope("x", None, (Recipient(Address("alice", ""), ("alice",)),))),
        MessageData(b"x\r\n"),
        MessageEnded(),
        None,
    ]
    assert client.machine.take_output().startswith(b"354 ")
    assert client.machine.take_output() == b""
    client.machine.delivered([DELIVERED])
    assert client.machine.advance() is None
    assert client.machine.take_output() == b"250 2.0.0 <alice> INBOX uid 1 stored\r\n250 2.0.0 OK\r\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (DurabilityError("too few nodes"), b"451 4.3.0 too few nodes\r\n"),
        (DiskFullError("full"), b"452 4.3.1 full\r\n"),
        (QuotaExceededError("full"), b"552 5.2.2 full\r\n"),
        (QuotaExceededError("full", defer=True), b"452 4.2.2 full\r\n"),
        (UnavailableError("later"), b"451 4.4.1 later\r\n"),
        (MessageTooLargeError("big"), b"552 5.2.3 big\r\n"),
        (InvalidNameError("n"), b"550 5.1.1 n\r\n"),
        (FolderNotFoundError("gone"), b"451 4.2.0 gone\r\n"),
        (ContentUnavailableError("parts are lacking"), b"451 4.4.1 parts are lacking\r\n"),
        (MailError("x\r\n250 ok\xe9"), b"554 5.2.0 x??250 ok?\r\n"),
    ],
)
def test_errors_become_single_line_replies(error: MailError, line: bytes) -> None:
    assert reply_for(error).encode() == line


def test_long_reply_is_cut_to_the_line_limit() -> None:
    assert len(reply_for(UnavailableError("x" * 2000)).encode()) <= 512


PIECES = st.sampled_from([*COMMANDS.values(), b"\r\n", b".\r\n", b"x", b"\xff", b"MAIL FROM:<", b">", b"\n"])


@given(st.lists(PIECES))
def test_answers_do_not_depend_on_the_pieces_of_input(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    whole, bytewise = MachineClient(), MachineClient()
    assert whole.send(data) == bytewise.send(data, 1)
    assert whole.messages == bytewise.messages


DATA_PIECES = st.sampled_from([b".", b"\r", b"\n", b"\r\n", b"\r\n.\r\n", START + b"DATA\r\n", b"x" * 7])


@given(st.lists(DATA_PIECES, max_size=20), st.lists(st.integers(1, 12), min_size=1))
def test_limits_do_not_depend_on_the_pieces_of_input(pieces: list[bytes], sizes: list[int]) -> None:
    stream = START + b"DATA\r\n" + b"".join(pieces)
    whole, cut = MachineClient(limit=10), MachineClient(limit=10)
    expected = whole.send(stream)
    said, at, size = "", 0, cycle(sizes)
    while at < len(stream):
        end = at + next(size)
        said += cut.send(stream[at:end])
        at = end
    assert said == expected
    assert cut.messages == whole.messages
    assert cut.machine.closed or cut.dropped == whole.dropped


@pytest.mark.parametrize("unit", [b"x" * 76 + b"\r\n", b"..\r\n", b"\r\n", b"\r", b"\r\n..\r\n\r"])
@pytest.mark.parametrize("piece", [1000, 1001])
def test_large_message_passes_in_bounded_memory(unit: bytes, piece: int) -> None:
    client = MachineClient(limit=1_000_000)
    client.send(START + b"DATA\r\n")
    data = unit * (300_000 // len(unit)) + b"\r\n"
    for start in range(0, len(data), piece):
        client.send(data[start : start + piece])
        assert client.machine.buffered_bytes <= 4
    assert client.codes(b".\r\n") == ["250 2.0.0"]
    [message] = client.messages
    assert message.body == data.replace(b"\r\n.", b"\r\n").removeprefix(b".")
    assert message.largest_piece <= piece + 4


def test_machine_closes_when_its_client_disconnects(client: MachineClient) -> None:
    client.send(START + b"DATA\r\nhalf a message\r\n")
    client.machine.disconnected()
    assert client.machine.advance() is None
    assert client.machine.closed
    assert client.machine.take_output() == b""


def machine_with_tls() -> LmtpMachine:
    machine = LmtpMachine("dc1", LIMIT, Recipients(USERS).find, offers_tls=True)
    machine.take_output()
    return machine


def said(machine: LmtpMachine, line: str) -> tuple[Event | None, str]:
    machine.receive(line.encode() + b"\r\n")
    return machine.advance(), machine.take_output().decode()


def test_starttls_begins_the_dialogue_again() -> None:
    machine = machine_with_tls()
    assert "250-STARTTLS" in said(machine, "LHLO before.example")[1]
    assert said(machine, "STARTTLS now")[1].startswith("501 ")
    assert said(machine, "STARTTLS") == (TlsAccepted(), "220 2.0.0 begin TLS now\r\n")
    machine.tls_began()
    assert machine.take_output() == b""
    assert said(machine, "MAIL FROM:<>")[1].startswith("503 ")
    assert "STARTTLS" not in said(machine, "LHLO after.example")[1]
    assert said(machine, "STARTTLS")[1].startswith("502 5.5.1 TLS is already in use")
    said(machine, "MAIL FROM:<>")
    said(machine, "RCPT TO:<alice>")
    begun, _ = said(machine, "DATA")
    assert isinstance(begun, MessageBegun)
    assert (begun.envelope.client, begun.envelope.secure) == ("after.example", True)


def test_starttls_waits_for_lhlo_and_for_the_end_of_a_transaction() -> None:
    machine = machine_with_tls()
    assert said(machine, "STARTTLS")[1].startswith("503 ")
    said(machine, "LHLO x")
    said(machine, "MAIL FROM:<>")
    assert said(machine, "STARTTLS")[1].startswith("503 ")


def test_nothing_is_processed_between_starttls_and_tls() -> None:
    machine = machine_with_tls()
    said(machine, "LHLO x")
    machine.receive(b"STARTTLS\r\nMAIL FROM:<injected@x>\r\n")
    assert machine.advance() == TlsAccepted()
    assert machine.advance() is None
    assert machine.take_output() == b"220 2.0.0 begin TLS now\r\n"
    assert machine.buffered_bytes > 0


def test_starttls_is_not_offered_without_certificates() -> None:
    client = MachineClient()
    assert "STARTTLS" not in client.send(b"LHLO x\r\n")
    assert client.send(b"STARTTLS\r\n").startswith("502 ")


@pytest.mark.parametrize("size", [None, 1, 7])
def test_unknown_recipients_are_asked_for_and_answered_in_order(size: int | None) -> None:
    answers: dict[str, tuple[str, ...] | MailError] = {
        "alice@here": ("alice",),
        "nobody@here": (),
        "slow@here": UsersUnavailableError("try again"),
    }
    asked = []

    def find(name: str) -> tuple[str, ...]:
        raise UserNotLearnedError(name)

    machine = LmtpMachine("dc1", LIMIT, find)
    data = (
        b"LHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<alice@here>\r\nRCPT TO:<nobody@here>\r\nRCPT TO:<alice@here>\r\n"
        b"RCPT TO:<slow@here>\r\nRCPT TO:<slow@here>\r\nRSET\r\n"
    )
    for start in range(0, len(data), size or len(data)):
        machine.receive(data[start : start + (size or len(data))])
        while (event := machine.advance()) is not None:
            assert isinstance(event, UserAsked)
            asked.append(event.name)
            machine.tell(answers[event.name])
    codes = [line[:4] for line in machine.take_output().split(b"\r\n") if line[3:4] == b" "]
    assert asked == ["alice@here", "nobody@here", "alice@here", "slow@here", "slow@here"], "once for each line"
    assert codes[-7:] == [b"250 ", b"250 ", b"550 ", b"250 ", b"451 ", b"451 ", b"250 "]
