"""A real Chromium without a window, driven by the Chrome DevTools Protocol over two pipes.

With `--remote-debugging-pipe`, Chromium reads commands from descriptor 3 and writes answers and events to descriptor 4:
JSON, with a zero octet after each. So nobody else on the machine can reach the browser.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias, cast

import pytest
import trio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="the page in a browser: chromium is not installed: apt-get install chromium"
)

Document: TypeAlias = Mapping[str, object]

END = b"\0"
WITHIN_S = 180.0  # for anything the page is waited for; a loaded machine takes long to start a killed node
_ON_3_AND_4 = """
import os, sys
from fcntl import F_DUPFD, fcntl
ours = [fcntl(int(end), F_DUPFD, 10) for end in sys.argv[1:3]]  # one of them may be 3 or 4
for end, given in zip((3, 4), ours):
    os.dup2(given, end)
os.execv(sys.argv[3], sys.argv[3:])
"""
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
)


class PageError(Exception):
    """A command that the browser refused, or a script that threw."""


class Tab:
    """One page of the browser. `requests` are the URLs that it asked for, `complaints` what its console has of errors.

    Network errors are not among the complaints: the browser reports each answer from 400 up as one.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.complaints: list[str] = []

    async def command(self, method: str, **parameters: object) -> Document:
        return await self._browser.command(method, self._session, **parameters)

    async def begin(self) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.command(f"{domain}.enable")

    def note(self, method: str, parameters: Document) -> None:
        """Take note of an event."""
        if method == "Network.requestWillBeSent":
            self.requests.append(cast("str", cast("Document", parameters["request"])["url"]))
        elif method == "Runtime.exceptionThrown" or (
            method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert")
        ):
            self.complaints.append(json.dumps(parameters))
        elif method == "Log.entryAdded":
            entry = cast("Document", parameters["entry"])
            if entry["level"] in ("error", "warning") and entry["source"] != "network":
                self.complaints.append(json.dumps(entry))

    async def open(self, url: str) -> None:
        await self.command("Page.navigate", url=url)
        await self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    async def evaluate(self, script: str) -> object:
        """Return the value of a JavaScript expression, awaited if it is a promise."""
        answer = await self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise PageError(json.dumps(answer["exceptionDetails"]))
        return cast("Document", answer["result"]).get("value")

    async def until(self, script: str) -> object:
        """Wait until the expression is true of the page, and return its value. While it throws, it is not true."""
        try:
            with trio.fail_after(WITHIN_S):
                while True:
                    with suppress(PageError):
                        if value := await self.evaluate(script):
                            return value
                    await trio.sleep(0.05)
        except trio.TooSlowError:
            text = await self.evaluate("document.body?.innerText")
            raise AssertionError(f"never true: {script}\nThe page:\n{text}\n{self.complaints}") from None

    async def text(self, selector: str) -> str:
        """Return the text that a reader sees there, with one space for any white space."""
        return " ".join(str(await self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText")).split())

    async def press(self, key: str) -> None:
        """Press a key that has a name, such as Tab, and let it go."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        named = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key]}
        await self.command("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        await self.command("Input.dispatchKeyEvent", type="keyUp", **named)

    async def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        await self.command("Input.insertText", text=text)

    async def look(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Set the colour scheme that the reader prefers, and the size of the window."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def screenshot(self) -> bytes:
        """Return a picture of the whole page, as PNG."""
        answer = await self.command("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(cast("str", answer["data"]))


@dataclass
class Chromium:
    """A running Chromium, and what one `Browser` leaves to the next one."""

    commands: int
    answers: int
    sent: int = 0
    rest: bytes = b""  # the beginning of a message


class Browser:
    """The browser: sends commands, and gives answers and events to whom they are for."""

    def __init__(self, running: Chromium, commands: trio.abc.SendStream) -> None:
        self._running = running
        self._commands = commands
        self._answers: dict[int, trio.MemorySendChannel[Document]] = {}
        self._tabs: dict[str, Tab] = {}
        self._contexts: list[object] = []

    async def command(self, method: str, session: str | None = None, **parameters: object) -> Document:
        self._running.sent += 1
        number = self._running.sent
        send, receive = trio.open_memory_channel[Document](1)
        self._answers[number] = send
        command = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        await self._commands.send_all(json.dumps(command).encode() + END)
        with trio.fail_after(WITHIN_S):
            answer = await receive.receive()
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        return cast("Document", answer["result"])

    async def tab(self) -> Tab:
        """Open a tab with data of its own: no other tab's storage."""
        context = (await self.command("Target.createBrowserContext"))["browserContextId"]
        self._contexts.append(context)
        target = await self.command("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.command("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        session = cast("str", attached["sessionId"])
        self._tabs[session] = tab = Tab(self, session)
        await tab.begin()
        return tab

    async def close(self) -> None:
        """Close all tabs, and forget their data."""
        self._tabs.clear()
        for context in self._contexts:
            await self.command("Target.disposeBrowserContext", browserContextId=context)

    async def hear(self, answers: trio.abc.ReceiveStream) -> None:
        async for chunk in answers:
            *whole, self._running.rest = (self._running.rest + chunk).split(END)
            for message in whole:
                self._take(cast("Document", json.loads(message)))

    def _take(self, message: Document) -> None:
        if "id" in message:
            if (waiting := self._answers.pop(cast("int", message["id"]), None)) is not None:
                waiting.send_nowait(message)
        elif (tab := self._tabs.get(cast("str", message.get("sessionId")))) is not None:
            tab.note(cast("str", message["method"]), cast("Document", message["params"]))


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Run a Chromium until the block ends. Starting it costs more than what most tests do with it."""
    assert CHROMIUM is not None
    (their_commands, our_commands), (our_answers, their_answers) = os.pipe(), os.pipe()
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options = [*_OPTIONS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        line = [sys.executable, "-c", _ON_3_AND_4, str(their_commands), str(their_answers), CHROMIUM, *options]
        with (Path(profile) / "log").open("wb") as log:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(their_commands, their_answers),
            )
        os.close(their_commands)
        os.close(their_answers)
        running = Chromium(our_commands, our_answers)
        try:
            yield running
        finally:
            with suppress(BrokenPipeError):
                os.write(our_commands, json.dumps({"id": running.sent + 1, "method": "Browser.close"}).encode() + END)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            os.close(our_commands)
            os.close(our_answers)


@asynccontextmanager
async def driven(running: Chromium) -> AsyncIterator[Browser]:
    """Drive the Chromium until the block ends, which closes all its tabs."""
    async with (
        trio.lowlevel.FdStream(os.dup(running.commands)) as commands,
        trio.lowlevel.FdStream(os.dup(running.answers)) as answers,
        trio.open_nursery() as nursery,
    ):
        one = Browser(running, commands)
        nursery.start_soon(one.hear, answers)
        try:
            yield one
        finally:
            with trio.move_on_after(5, shield=True):
                await one.close()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run a Chromium of its own until the block ends."""
    with chromium() as running:
        async with driven(running) as one:
            yield one
