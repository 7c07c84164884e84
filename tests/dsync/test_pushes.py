"""Syncs that the node begins by itself with Debian's Dovecot: after changes, in rounds, and after failures."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
import trio
import trustme
from prometheus_client import CollectorRegistry

from replicator.config import Address, Config, DovecotConfig
from replicator.dsync.conversation import peer
from replicator.dsync.pushes.dovecot import Dovecot as RemoteDovecot
from replicator.dsync.pushes.dovecot import DovecotUnreachableError
from replicator.dsync.users import Syncing
from replicator.errors import UnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.runtime.environment import wall_clock_ms
from replicator.users.directory import UserDirectory
from tests.dsync.beside_replicator import play
from tests.dsync.dovecot import PASSWORD, SDBOX, Dovecot, dovecot, needs_dovecot
from tests.dsync.pushed import (
    LISTENER,
    QUIET_S,
    WITHIN_S,
    config_of,
    listening_dovecot,
    no_tls,
    pusher_of,
    running,
    syncs,
    until,
    until_equal,
)
from tests.dsync.sides import USER, DovecotSide, NodeSide, password
from tests.end_to_end.helpers.in_process import free_ports
from tests.end_to_end.helpers.in_process import running as running_nodes
from tests.end_to_end.helpers.two_nodes import client_of, configs
from tests.one_node import Names, one_node


@needs_dovecot
async def test_changes_are_pushed_and_their_echo_ends(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail, running(pusher_of(mail, address, registry=registry)):
            side = NodeSide(mail)
            for number in range(3):
                await side.append(b"Subject: %d\r\n\r\n" % number)
            await until_equal(server, mail)
            await side.flag(2, "\\Seen", is_set=True)
            await side.expunge(1)
            await until_equal(server, mail)
            assert len(await side.shown()) == 2
            server.save(USER, b"Subject: there\r\n\r\n")
            await mail.create_folder(USER, "Work")  # brings the mail that has come there
            await until_equal(server, mail)
            assert len(await side.shown()) == 3
            await trio.sleep(QUIET_S)
            before = syncs(registry, address)
            await trio.sleep(QUIET_S)
            assert syncs(registry, address) == before, "an echo of changes by syncs goes on"
            assert {*server.folders(USER)} == {"Work"}


@needs_dovecot
async def test_mail_of_a_user_with_another_log_in_name_is_pushed(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"renamed:{{PLAIN}}secret::::::user={USER}\n", "utf-8")
    users = UserDirectory(tmp_path / "users")
    await users.load()
    assert users.find(USER) is None
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail, running(pusher_of(mail, address, users=users)):
            await NodeSide(mail).append(b"Subject: here\r\n\r\n")
            await until_equal(server, mail)


@needs_dovecot
async def test_pushes_and_dovecots_replicator_together(tmp_path: Path) -> None:
    await play(tmp_path, SDBOX)


@needs_dovecot
async def test_rounds_find_what_only_the_dovecot_knows(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        server.save(USER, b"Subject: there\r\n\r\n")
        async with one_node(tmp_path) as mail:
            await mail.folder(USER, "INBOX")
            async with running(pusher_of(mail, address, config=replace(config_of(address), sync_every_s=0.5))):
                await until_equal(server, mail)
                await trio.sleep(QUIET_S)  # the echo of that sync looks at the mailbox, too
                await DovecotSide(server).flag(1, "\\Flagged", is_set=True)
                await until_equal(server, mail)
            assert [flags for _, _, flags in await NodeSide(mail).shown()] == [{"\\Flagged"}]


@needs_dovecot
async def test_full_syncs_outlast_restarts(tmp_path: Path) -> None:
    """Only a full sync sees that a Dovecot has gone on from an older copy, since its numbers have grown again."""
    now_ms, day_ms = wall_clock_ms(), 86_400_000
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:

            async def start(*, at_ms: int) -> None:
                """Run the pusher until its first round is over."""
                registry = CollectorRegistry()
                pusher = pusher_of(mail, address, registry=registry, clock_ms=lambda: at_ms)

                async def is_over() -> bool:
                    await trio.sleep(0.01)
                    return syncs(registry, address) == 1

                async with running(pusher):
                    await until(is_over)

            here, there = NodeSide(mail), DovecotSide(server)
            for number in range(2):
                await here.append(b"Subject: %d\r\n\r\n" % number)
            await start(at_ms=now_ms)
            server.back_up(USER, tmp_path / "copy")
            await there.flag(1, "\\Flagged", is_set=True)
            for _ in range(3):  # the first one brings the flag, the others find that both sides have it
                await start(at_ms=now_ms + 1)
            assert await here.shown() == await there.shown()
            server.restore(USER, tmp_path / "copy")
            for number in range(10):
                await there.flag(2, "\\Answered", is_set=number % 2 == 0)
            await start(at_ms=now_ms + day_ms - 1)
            assert [flags for _, _, flags in await there.shown()] == [set(), set()]
            assert [flags for _, _, flags in await here.shown()] == [{"\\Flagged"}, set()], "no sync was full"
            await start(at_ms=now_ms + day_ms)
            assert await here.shown() == await there.shown()


@needs_dovecot
async def test_the_log_says_why_there_is_no_connection(tmp_path: Path) -> None:
    async def why(address: Address, context: ssl.SSLContext | None = None) -> str:
        async def context_now() -> ssl.SSLContext | None:
            await trio.lowlevel.checkpoint()
            return context

        with pytest.raises(DovecotUnreachableError) as error:
            async with RemoteDovecot(address, password, context_now).begin_sync(USER):
                pass
        return str(error.value)

    [closed] = free_ports(1)
    assert await why(Address("127.0.0.1", closed)) == "it cannot be reached: Connection refused"
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    no_tls_there = "TLS does not begin there: its listener needs `ssl = yes`, or [[dovecot]] `tls = false`"
    with listening_dovecot() as (_, address):
        assert await why(address, trusting) == f"it cannot be reached: {no_tls_there}"
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "pem", append=True)
    [port] = free_ports(1)
    listener = LISTENER.format(port=f"{port}\n    ssl = yes")
    files = f"ssl = yes\nssl_cert = <{tmp_path}/pem\nssl_key = <{tmp_path}/pem\n"
    with dovecot(SDBOX, listener + files):
        address = Address("127.0.0.1", port)
        assert "if its listener has `ssl = yes`, write `tls = true`" in await why(address)
        assert "CERTIFICATE_VERIFY_FAILED" in await why(address, ssl.create_default_context())
        assert "CERTIFICATE_VERIFY_FAILED" in await why(address, ssl.create_default_context())


@pytest.mark.parametrize("greeting", ["* OK [CAPABILITY IMAP4rev1] ready.", "220 mail LMTP ready", "HTTP/1.1 400 Bad"])
async def test_the_port_of_another_server_is_told_at_once(greeting: str) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(f"{greeting}\r\n".encode())
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        with pytest.raises(DovecotUnreachableError, match="needs the port of its `service doveadm`"):
            async with RemoteDovecot(Address("127.0.0.1", port), password, no_tls).begin_sync(USER):
                pass
        nursery.cancel_scope.cancel()


@needs_dovecot
async def test_a_dovecot_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            [elsewhere] = free_ports(1)
            pusher = pusher_of(mail, Address("127.0.0.1", elsewhere))
            side = NodeSide(mail)
            async with running(pusher), trio.open_nursery() as nursery:
                await side.append(b"Subject: 1\r\n\r\n")

                async def is_told() -> bool:
                    await trio.lowlevel.checkpoint()
                    return any("cannot be reached" in problem for problem in pusher.problems())

                await until(is_told)

                async def forward(stream: trio.SocketStream) -> None:
                    async with await trio.open_tcp_stream(address.host, address.port) as there:
                        await join(stream, there)

                await nursery.start(trio.serve_tcp, forward, elsewhere)
                await until_equal(server, mail)
                assert pusher.problems() == []
                nursery.cancel_scope.cancel()


@needs_dovecot
async def test_a_full_disk_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / "scratch", Path("/dev/full")]

    def open_scratch() -> BinaryIO:
        return (files.pop() if len(files) > 1 else files[0]).open("w+b")

    with listening_dovecot() as (server, address):
        for number in range(3):
            server.save(USER, b"Subject: there %d\r\n\r\n" % number)
        async with one_node(tmp_path) as mail:
            await NodeSide(mail).append(b"Subject: here\r\n\r\n")
            async with running(pusher_of(mail, address, open_scratch=open_scratch)):
                await until_equal(server, mail)
    assert "the disk of this node takes no more: No space left on device" in caplog.text


@needs_dovecot
async def test_a_defect_ends_one_sync_and_not_the_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    defects = [RuntimeError("can't start new thread")]

    def open_scratch() -> BinaryIO:
        if defects:
            raise defects.pop()
        return (tmp_path / "scratch").open("w+b")

    with listening_dovecot() as (server, address):
        for number in range(3):
            server.save(USER, b"Subject: there %d\r\n\r\n" % number)
        async with one_node(tmp_path) as mail:
            await NodeSide(mail).append(b"Subject: here\r\n\r\n")
            async with running(pusher_of(mail, address, open_scratch=open_scratch)):
                await until_equal(server, mail)
    assert "a sync ended because of a defect in this program\nTraceback" in caplog.text
    assert f'sync result=failed user={USER} dovecot={address} reason="a defect in this program: Runtime' in caplog.text


@needs_dovecot
@pytest.mark.parametrize("after_bytes", [10, 1300, 1800])
async def test_a_dovecot_that_falls_silent_half_way_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, after_bytes: int
) -> None:
    """Its connection stays open, and takes all that is said: in its hello, and between and within mailboxes."""
    monkeypatch.setattr(peer, "IDLE_S", 2.0)
    rooms = [after_bytes]
    with listening_dovecot() as (server, address):
        server.save(USER, b"Subject: there\r\n\r\n" + 2000 * b"x")
        async with one_node(tmp_path) as mail, trio.open_nursery() as nursery:
            [elsewhere] = free_ports(1)

            async def forward(stream: trio.SocketStream) -> None:
                async with await trio.open_tcp_stream(address.host, address.port) as there:
                    if rooms:
                        await join_for(rooms.pop(), stream, there)
                    else:
                        await join(stream, there)

            await nursery.start(trio.serve_tcp, forward, elsewhere)
            await NodeSide(mail).append(b"Subject: here\r\n\r\n")
            async with running(pusher_of(mail, Address("127.0.0.1", elsewhere))):
                await until_equal(server, mail)
            nursery.cancel_scope.cancel()
    assert "nothing has come from the peer for 2 seconds" in caplog.text


async def join_for(most_bytes: int, one: trio.SocketStream, other: trio.SocketStream) -> None:
    """Bring bytes both ways, but only so many from the other side, until the first side ends."""

    async def copy_some() -> None:
        left = most_bytes
        async for data in other:
            await one.send_all(data[:left])
            left -= min(left, len(data))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy_some)
        async for data in one:
            await other.send_all(data)
        nursery.cancel_scope.cancel()


@needs_dovecot
@pytest.mark.parametrize("trouble", ["held", "unknown for now"])
async def test_what_a_round_owes_is_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """A round that meets a user in another sync, or a directory that is down, leaves what it was to look at."""
    users, met = Names(USER), trio.Event()
    ask = users.ask

    async def ask_in_vain(name: str) -> str | None:
        if trouble == "unknown for now" and not met.is_set():
            met.set()
            raise UnavailableError("the directory is down")
        return await ask(name)

    class Watched(Syncing):
        """Tells that somebody has asked in vain."""

        @contextmanager
        def held(self, user: str) -> Iterator[bool]:
            with super().held(user) as is_free:
                if not is_free:
                    met.set()
                yield is_free

    syncing = Watched()

    with listening_dovecot() as (server, address):
        async with one_node(tmp_path) as mail:
            await mail.folder(USER, "INBOX")
            async with running(pusher_of(mail, address)):
                await NodeSide(mail).append(b"Subject: 1\r\n\r\n")
                await until_equal(server, mail)
                await trio.sleep(QUIET_S)
            server.do("flags", "add", "-u", USER, "\\Flagged", "mailbox", "INBOX", "all")
            monkeypatch.setattr(users, "ask", ask_in_vain)
            async with trio.open_nursery() as nursery:
                held = ExitStack()
                if trouble == "held":
                    held.enter_context(syncing.held(USER))
                nursery.start_soon(pusher_of(mail, address, users=users, syncing=syncing).run)
                with trio.fail_after(WITHIN_S):
                    await met.wait()
                held.close()
                await until_equal(server, mail)
                nursery.cancel_scope.cancel()
            assert [flags for _, _, flags in await NodeSide(mail).shown()] == [{"\\Flagged"}]


async def join(one: trio.SocketStream, other: trio.SocketStream) -> None:
    """Bring bytes both ways until one side ends."""

    async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in source:
                await target.send_all(data)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy, one, other)
        nursery.start_soon(copy, other, one)


@needs_dovecot
async def test_users_are_chosen_and_strangers_passed_over(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with listening_dovecot(more="auth_username_chars = abcu12\n") as (server, address):
        async with one_node(tmp_path) as mail:
            config = replace(config_of(address), users=("u*", "stranger"))
            users = Names("u1", "other", "stranger")
            async with running(pusher_of(mail, address, users=users, config=config, registry=registry)):
                for user in ("other", "stranger", "former-u", "u1"):
                    await mail.save(await mail.folder(user, "INBOX"), NewMessage(b"Subject: 1\r\n\r\n"))
                await until_equal(server, mail)
                assert {path.name for path in (server.directory / "mail").iterdir()} == {"u1"}

                async def is_counted() -> bool:
                    await trio.lowlevel.checkpoint()
                    return syncs(registry, address, "unknown") == 1

                await until(is_counted)


@needs_dovecot
async def test_a_cluster_pushes_what_comes_to_any_node(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{PASSWORD}\n", "utf-8")
    with listening_dovecot() as (server, address):
        one, other = configs(tmp_path)
        one = replace(one, dovecots=(DovecotConfig(address, tmp_path / "secret"),))
        async with running_nodes([one, other]):
            await trio.to_thread.run_sync(use, server, one, other)


def use(server: Dovecot, one: Config, other: Config) -> None:
    clients = [client_of(one), client_of(other)]
    for number, client in enumerate(clients):
        client.append("INBOX", "(\\Flagged)", "", b"Subject: %d\r\n\r\n" % number)

    async def is_there() -> bool:
        mails = await trio.to_thread.run_sync(server.mails, "alice")
        return [flags for _, _, flags in mails] == [frozenset({"\\Flagged"})] * 2

    trio.from_thread.run(until, is_there)
    for client in clients:
        client.logout()
