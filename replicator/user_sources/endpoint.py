"""An endpoint over HTTP that knows users: each question is a POST of a JSON document, each answer one.

A look-up says `{"request": "look_up", "user": NAME}`, a check `{"request": "check", "user": NAME, "password": ...,
"address": ..., "protocol": "imap"}`. The answers are in docs/operations.md.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import trio

from protocol.units import KIB
from replicator.config import EndpointConfig
from replicator.oauth.https_get import HttpsError, post_json
from replicator.user_sources.certificates import TlsContext, key_of_refusal
from replicator.user_sources.limits import quota_of_all
from replicator.users import Found, SourceError, Verdict

ANSWER_BYTES_MAX = 16 * KIB
TOKEN_BYTES_MAX = 4096

Document = dict[str, object]


class EndpointError(SourceError):
    """Lack of a usable answer. `key`: the key of [endpoint] to look at first."""

    def __init__(self, text: str, key: str = "url") -> None:
        super().__init__(text)
        self.key = key


class EndpointSource:
    """The configured endpoint. Belongs to the event loop."""

    def __init__(self, config: EndpointConfig, context: TlsContext) -> None:
        self._config = config
        self._context = context
        self.name = config.name

    async def look_up(self, name: str) -> Found | None:
        """Return the user that the endpoint knows by this name. Raises SourceError."""
        answer = await self._asked({"request": "look_up", "user": name})
        user, disabled = answer.get("user", ""), answer.get("disabled", False)
        if user is None:
            return None
        if not isinstance(user, str) or not user or not isinstance(disabled, bool):
            raise EndpointError(f"{self.name}: `user` must be a name or null, and `disabled` true or false")
        quota = answer.get("quota")
        return Found(user.lower(), user, disabled, *quota_of_all(() if quota is None else (str(quota),)))

    async def check(self, found: Found | None, password: str, address: str | None) -> Verdict:
        """Return whether the endpoint says that the password is right. Raises SourceError."""
        user = secrets.token_hex(8) if found is None else found.entry  # a name that nobody has
        question = {"request": "check", "user": user, "password": password, "address": address, "protocol": "imap"}
        answer = await self._asked(question)
        right = answer.get("right")
        if not isinstance(right, bool):
            raise EndpointError(f"{self.name}: `right` must be true or false in the answer about a password")
        return Verdict(right, f"the endpoint answers {json.dumps(right)}")

    async def rehearse(self) -> None:
        """Ask about somebody who is not there. Raises SourceError."""
        await self.look_up(f"{secrets.token_hex(8)}@example.invalid")

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    async def _asked(self, question: Mapping[str, object]) -> Document:
        """Return the answer. Raises SourceError, after `timeout` at the latest.

        A status but 200 is no answer: a wrong URL (404) must not make all users unknown.
        """
        config = self._config
        try:
            with trio.fail_after(config.timeout_s):
                status, body = await post_json(
                    config.url,
                    self._context(),
                    json.dumps(question).encode("utf-8", "replace"),
                    headers=self._headers(),
                    body_bytes_max=ANSWER_BYTES_MAX,
                )
        except HttpsError as error:
            raise EndpointError(f"{self.name}: {error}", key_of_refusal(str(error))) from error
        except trio.TooSlowError:
            raise EndpointError(f"{self.name}: there was no answer within {config.timeout_s:g} s", "timeout") from None
        if status != 200:
            raise EndpointError(
                f"{self.name}: the answer has the status {status}", "token_file" if status in {401, 403} else "url"
            )
        return self._document(body)

    def _document(self, body: bytes) -> Document:
        """Return the object of an answer. Raises SourceError."""
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise EndpointError(f"{self.name}: the answer is no JSON object")
        return answer

    def _headers(self) -> dict[str, str]:
        """Return the header with the token, which is read anew each time. Raises SourceError."""
        file = self._config.token_file
        return {} if file is None else {"Authorization": f"Bearer {self._token(file)}"}

    def _token(self, file: Path) -> str:
        try:
            with file.open("rb") as stream:
                token = stream.read(TOKEN_BYTES_MAX).split(b"\n", 1)[0].strip().decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise EndpointError(f"{file} cannot be read: {error}", "token_file") from error
        if not token.isprintable() or not token:
            raise EndpointError(f"the first line of {file} is no token", "token_file")
        return token
