"""Commands of the session itself: those of any state, and of logging in."""

from __future__ import annotations

from lark import Token, v_args

from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.text_values import octets
from replicator.imap.wire.commands.builders.values import ValueBuilder


@v_args(inline=True)
class SessionBuilder(ValueBuilder):
    """Builds the commands of any state, those before authentication, and ENABLE and IDLE."""

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

    def compress(self, mechanism: Token) -> c.Command:
        return c.Compress(mechanism.upper())

    def authenticate(self, mechanism: Token, initial: Token | None) -> c.Command:
        return c.Authenticate(mechanism.upper(), None if initial is None else octets(initial))

    def login(self, user: bytes, password: bytes) -> c.Command:
        return c.Login(user, password)

    def namespace(self) -> c.Command:
        return c.Namespace()

    def enable(self, *extensions: Token) -> c.Command:
        return c.Enable(tuple(extension.upper() for extension in extensions))

    def idle(self) -> c.Command:
        return c.Idle()

    def check(self) -> c.Command:
        return c.Check()
