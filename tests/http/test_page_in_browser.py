"""The page in a real Chromium, of a node whose figures the test sets."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
import trio

from replicator.errors import DatabaseFailedError
from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.http.tokens import Role, Tokens, add_token, delete_token
from replicator.runtime.files.disk_room import DiskRoom
from replicator.status import CertificateStatus, LinkStatus, MailboxStatus, NodeStatus
from replicator.tasks import CheckOptions
from tests.browser import Chromium, Tab, chromium, driven, needs_chromium
from tests.http.fixed_jobs import FixedJobs
from tests.http.fixed_report import FixedReport
from tests.http.fixed_stories import FixedStories

pytestmark = needs_chromium

HOSTILE = '"><img src=x onerror="document.title=1"><script>document.title=1</script>'
SHOWN = "!document.getElementById('node').hidden"
ASKED = "!document.getElementById('log-in').hidden"
AXE = "axe-core@4.10.3"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
FOCUS = "(document.activeElement.id || document.activeElement.innerText || document.activeElement.tagName)"


@dataclass
class Figures(FixedReport):
    """A report that has everything the page can show."""

    word: str = "connection refused"
    is_up: bool = False
    knows_nobody: bool = False
    fails: bool = False
    released: trio.Event = field(default_factory=trio.Event)

    async def node_status(self) -> NodeStatus:
        if self.fails:
            raise DatabaseFailedError("the disk is broken")
        up, down = (await super().node_status()).links
        links: tuple[LinkStatus, ...] = (up, replace(down, up=self.is_up, since_ms=2_000, error=self.word))
        return replace(
            await super().node_status(),
            links=links,
            edges={"dc1": ("dc2",), "dc2": ("dc1", "dc4"), "dc4": ("dc2",)},
            component=("dc1", "dc2", "dc4"),
            disks=(DiskRoom(f"/srv/{self.word}", 1 << 30, 100 << 30, is_short=True),),
            certificates=(CertificateStatus("/etc/dc1.pem", self.word, 20 * 86_400_000),),
            overdue={self.word: 3},
        )

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        if self.knows_nobody:
            return []
        if user == "slow":
            await self.released.wait()
            user = "alice"
        [inbox] = await super().mailboxes(user)
        return [replace(inbox, name=f"Folder {self.word}"), inbox]


@pytest.fixture
def report() -> Figures:
    return Figures()


@pytest.fixture(scope="module")
def running() -> Iterator[Chromium]:
    with chromium() as running:
        yield running


@asynccontextmanager
async def opened(running: Chromium, services: HttpServices, access: Access | None = None) -> AsyncIterator[Tab]:
    """Serve on loopback, and open the page. Nothing that the page does may leave the node or complain."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, HttpServer(services, access or Access()).serve, [listener])
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        async with driven(running) as browser:
            tab = await browser.tab()
            await tab.look()
            await tab.open(url)
            yield tab
            assert [asked for asked in tab.requests if not asked.startswith(url)] == []
            assert tab.complaints == []
        nursery.cancel_scope.cancel()


async def look_up(tab: Tab, user: str) -> None:
    await tab.evaluate("document.getElementById('user').focus()")
    await tab.type(user)
    await tab.press("Enter")
    await tab.until("document.querySelector('#folders details, #user-problem:not(:empty)') !== null")


async def inspect(tab: Tab) -> None:
    """Open the first folder, and wait until the node has told its story and its history."""
    await tab.evaluate("document.querySelector('#folders details').open = true")
    await tab.until("document.querySelectorAll('.inspector h3').length === 3")


async def test_hostile_words_of_mail_and_peers_stay_words(
    running: Chromium, services: HttpServices, report: Figures
) -> None:
    report.word, report.reasons = HOSTILE, [HOSTILE]
    services = replace(services, stories=FixedStories(HOSTILE))
    async with opened(running, services) as tab:
        await tab.until(SHOWN)
        await look_up(tab, "alice")
        await inspect(tab)
        for place in ("#health", "#links", "#store", "#upkeep", "#folders", ".inspector", ".history"):
            assert HOSTILE in await tab.text(place)
        assert await tab.evaluate("document.querySelectorAll('img').length") == 1
        assert await tab.evaluate("document.querySelectorAll('script').length") == 1
        assert str(await tab.evaluate("document.title")).startswith("dc1")


async def test_policy_stops_what_a_mistake_in_the_scripts_would_let_in(
    running: Chromium, services: HttpServices
) -> None:
    async with opened(running, services) as tab:
        await tab.until(SHOWN)
        tried = "(() => { try { document.body.innerHTML = '<p>'; return 'read' } catch (e) { return e.name } })()"
        assert await tab.evaluate(tried) == "TypeError"
        tab.complaints.clear()  # about this


async def test_broken_link_is_told_by_more_than_its_colour(
    running: Chromium, services: HttpServices, report: Figures
) -> None:
    async with opened(running, services) as tab:
        await tab.until(SHOWN)
        assert "✕ down for" in await tab.text("tr[data-peer=dc3]")
        assert "✓ up for" in await tab.text("tr[data-peer=dc2]")
        assert "connection refused" in await tab.text("tr[data-peer=dc3]")
        label = "document.querySelector('.picture').getAttribute('aria-label')"
        assert str(await tab.evaluate(label)).endswith("No link between dc1 and dc3.")
        assert await tab.evaluate("document.querySelectorAll('.picture .cross').length") == 1
        assert "Between other nodes, as they say dc2" in await tab.text("#links")
        report.is_up = True
        await tab.until("document.querySelector('tr[data-peer=dc3]').textContent.includes('✓up for')")
        assert await tab.evaluate("document.querySelectorAll('.picture .cross').length") == 0
        assert await tab.text("#news") == "The link to dc3 is up."


async def test_node_of_which_nothing_is_known_now_is_not_called_healthy(
    running: Chromium, services: HttpServices, report: Figures
) -> None:
    async with opened(running, services) as tab:
        await tab.until(SHOWN)
        assert "Healthy: mail can be read and changed here" in await tab.text("#health")
        report.fails = True
        await tab.until("document.getElementById('line').textContent.includes('the disk is broken')")
        assert "Not known now; before, the node was healthy" in await tab.text("#health")
        assert "can be read" not in await tab.text("#health")
        report.fails = False
        await tab.until("document.querySelector('#health').textContent.includes('can be read')")


async def test_token_is_asked_for_and_a_wrong_one_is_told_in_words(
    running: Chromium, services: HttpServices, tmp_path: Path
) -> None:
    file = tmp_path / "http.tokens"
    secret = add_token(file, "laptop", Role.READ)
    async with opened(running, services, Access(Tokens(file))) as tab:
        await tab.until(ASKED)
        assert await tab.evaluate(FOCUS) == "token"
        assert await tab.text("#refusal") == ""
        for wrong, why in (("wrong", "there is no such token"), ("two words", "a token has no spaces")):
            await tab.type(wrong)
            await tab.press("Enter")
            await tab.until(f"document.getElementById('refusal').innerText.includes({json.dumps(why)})")
        await tab.type(secret)
        await tab.press("Enter")
        await tab.until(SHOWN)
        assert await tab.evaluate("document.getElementById('log-in').hidden")
        await look_up(tab, "alice")
        await tab.command("Page.reload")
        await tab.until(f"performance.getEntriesByType('navigation')[0].type === 'reload' && {SHOWN}")

        delete_token(file, "laptop")
        await tab.until(ASKED)
        assert "there is no such token" in await tab.text("#refusal")
        assert await tab.evaluate("document.querySelector('#health div').childNodes.length") == 0
        assert await tab.evaluate("sessionStorage.length + localStorage.length") == 0
        assert not any(secret in asked for asked in tab.requests)


async def test_log_out_forgets_the_token_and_what_was_shown(
    running: Chromium, services: HttpServices, tmp_path: Path
) -> None:
    secret = add_token(tmp_path / "http.tokens", "laptop", Role.READ)
    async with opened(running, services, Access(Tokens(tmp_path / "http.tokens"))) as tab:
        await tab.until(ASKED)
        await tab.type(secret)
        await tab.press("Enter")
        await tab.until(SHOWN)
        await look_up(tab, "alice")
        await tab.evaluate("document.getElementById('log-out').click()")
        await tab.until(ASKED)
        assert (await tab.text("#refusal"), await tab.text("#folders")) == ("", "")
        assert await tab.evaluate("sessionStorage.length + localStorage.length") == 0


async def test_late_answer_is_not_shown_any_more(
    running: Chromium, services: HttpServices, report: Figures, tmp_path: Path
) -> None:
    """After another question, and after a log-out, when somebody else may be about to log in."""
    secret = add_token(tmp_path / "http.tokens", "laptop", Role.READ)
    has_come = "performance.getEntriesByName(new URL('/api/v1/mailboxes?user=slow', location).href).length === {}"
    async with opened(running, services, Access(Tokens(tmp_path / "http.tokens"))) as tab:
        await tab.until(ASKED)
        await tab.type(secret)
        await tab.press("Enter")
        await tab.until(SHOWN)
        for answers, then, left in ((1, "alice", "alice: 2 folders"), (2, None, "")):
            report.released = trio.Event()
            await tab.evaluate("document.getElementById('look-up').reset()")
            await tab.evaluate("document.getElementById('user').focus()")
            await tab.type("slow")
            await tab.press("Enter")
            await tab.evaluate("document.getElementById('look-up').reset()")
            if then is not None:
                await look_up(tab, then)
            else:
                await tab.evaluate("document.getElementById('log-out').click()")
                await tab.until(ASKED)
            report.released.set()
            await tab.until(has_come.format(answers))
            await tab.evaluate("fetch('/healthz').then((answer) => answer.text())")
            assert (await tab.text("#folders")).startswith(left)
            assert "slow" not in await tab.text("#folders")


async def test_forks_and_merges_are_drawn_and_told(running: Chromium, services: HttpServices) -> None:
    async with opened(running, replace(services, stories=FixedStories())) as tab:
        await tab.until(SHOWN)
        await look_up(tab, "alice")
        await inspect(tab)
        rows = "[...document.querySelectorAll('.history li')]"
        told = cast("list[str]", await tab.evaluate(f"{rows}.map(r => r.innerText)"))
        assert [words.partition("\n")[0].strip() for words in told] == [
            "merge: UID 4 became 9, 1 expunged on a branch",
            "1 mail arrived: UID 1",
            "merge: UID 4 became 9, 1 expunged on a branch",
            "word on UID 1-3, 7",
            "1 mail arrived: UID 1",
            "renamed word to word",
        ]
        assert ["waits" in words for words in told] == [False, True, False, False, False, False]
        lanes = "[...r.querySelectorAll('circle')].map(c => Math.floor(c.getAttribute('cx') / 18))[0]"
        assert await tab.evaluate(f"{rows}.map(r => {lanes})") == [0, 1, 0, 2, 0, 0]
        shown = "['x1', 'y1', 'x2', 'y2'].map(n => parseInt(l.getAttribute(n)))"
        lines = f"{rows}.map(r => [...r.querySelectorAll('line')].map(l => {shown}))"
        assert await tab.evaluate(lines) == [
            [[9, 50, 9, 100]],
            [[9, 0, 9, 100], [27, 50, 27, 100]],
            [[9, 0, 9, 50], [27, 0, 27, 100], [9, 50, 9, 100], [9, 50, 45, 100]],
            [[9, 0, 9, 100], [27, 0, 27, 100], [45, 0, 45, 50], [45, 50, 45, 100]],
            [[9, 0, 9, 50], [27, 0, 27, 100], [45, 0, 45, 100], [9, 50, 9, 100]],
            [[9, 0, 9, 50], [27, 0, 9, 50], [45, 0, 9, 50], [9, 50, 9, 100]],
        ]
        assert await tab.evaluate("document.querySelectorAll('.lanes .absent').length") == 1
        story = await tab.text(".inspector")
        for words in ("dc2 ✓ the same", "dc3 ! forked", "cannot be asked", "1 entry on 1 branch", "Cannot join word"):
            assert words in story


async def test_older_history_is_shown_when_it_is_asked_for(running: Chromium, services: HttpServices) -> None:
    stories = FixedStories(is_cut=True)
    async with opened(running, replace(services, stories=stories)) as tab:
        await tab.until(SHOWN)
        await look_up(tab, "alice")
        await inspect(tab)
        await tab.evaluate("document.querySelector('.inspector button').click()")
        await tab.until(
            "document.querySelector('.history') !== null && document.querySelector('.inspector button') === null"
        )
        assert stories.asked == [50, 500]


async def test_history_needs_a_token_that_may_operate(
    running: Chromium, services: HttpServices, tmp_path: Path
) -> None:
    """It tells what a user has read; the rest of the mailbox's story does not."""
    secret = add_token(tmp_path / "http.tokens", "laptop", Role.READ)
    async with opened(
        running, replace(services, stories=FixedStories()), Access(Tokens(tmp_path / "http.tokens"))
    ) as tab:
        await tab.until(ASKED)
        await tab.type(secret)
        await tab.press("Enter")
        await tab.until(SHOWN)
        await look_up(tab, "alice")
        await tab.evaluate("document.querySelector('#folders details').open = true")
        await tab.until(
            "document.querySelector('.inspector h3') !== null && document.querySelector('.inspector .bad') !== null"
        )
        assert "this needs one with the role operate" in await tab.text(".inspector .bad")
        assert "dc3 ! forked" in await tab.text(".inspector")


async def test_history_of_a_folder_that_was_closed_is_not_shown(running: Chromium, services: HttpServices) -> None:
    stories = FixedStories("late", released=trio.Event())
    has_come = "performance.getEntriesByType('resource').filter(one => one.name.includes('/log?')).length === {}"
    async with opened(running, replace(services, stories=stories)) as tab:
        await tab.until(SHOWN)
        await look_up(tab, "alice")
        await tab.evaluate("document.querySelector('#folders details').open = true")
        await tab.until("document.querySelectorAll('.inspector h3').length === 2")
        await tab.evaluate("document.querySelector('#folders details').open = false")
        assert stories.released is not None
        stories.released.set()
        await tab.until(has_come.format(1))
        await tab.evaluate("fetch('/healthz').then((answer) => answer.text())")
        assert await tab.evaluate("document.querySelector('.history')") is None
        stories.word = "now"
        await inspect(tab)
        assert "now on UID" in await tab.text(".history")


async def test_everything_is_reached_by_the_keyboard_and_keeps_the_focus(
    running: Chromium, services: HttpServices, report: Figures
) -> None:
    async with opened(running, services) as tab:
        await tab.until(SHOWN)
        reached = []
        for then in ("Enter", "alice", "", "", ""):
            await tab.press("Tab")
            reached.append(str(await tab.evaluate(FOCUS)).partition("\n")[0])
            assert await tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            if then == "Enter":
                await tab.press("Enter")
            elif then:
                await look_up(tab, then)
        assert reached == ["Skip to the mailboxes", "user", "Show folders", "INBOX", f"Folder {report.word}"]
        every = "[...document.querySelectorAll('a, input, button, summary, [tabindex=\"0\"]')]"
        assert await tab.evaluate(f"{every}.filter(one => one.checkVisibility()).length") == len(reached)
        await tab.press("Enter")
        assert await tab.evaluate("document.activeElement.parentElement.open")
        assert "UIDVALIDITY 77" in await tab.text("details[open]")

        report.log_entries += 1
        await tab.until(f"document.querySelector('#store').innerText.includes('{report.log_entries} entries')")
        assert await tab.evaluate("document.activeElement.parentElement.open")


async def test_unknown_user_is_told_in_words(running: Chromium, services: HttpServices, report: Figures) -> None:
    async with opened(running, services) as tab:
        await tab.until(SHOWN)

        report.knows_nobody = True
        await look_up(tab, "nobody")
        assert "there is no user 'nobody'" in await tab.text("#user-problem")


@pytest.mark.long
async def test_page_that_is_not_seen_leaves_its_stream_to_others(running: Chromium, services: HttpServices) -> None:
    async with opened(running, services) as tab:
        await tab.until(SHOWN)
        asked = sum(request.endswith("/events") for request in tab.requests)
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
        change = "document.dispatchEvent(new Event('visibilitychange'))"
        await tab.evaluate(hide % "true" + change)
        await tab.until("document.getElementById('line').innerText.includes('old')")
        await tab.evaluate(hide % "false" + change)
        await tab.until("document.getElementById('line').innerText.includes('live')")
        assert sum(request.endswith("/events") for request in tab.requests) == asked + 1


@pytest.mark.parametrize("width", [1280, 320])
async def test_nothing_is_wider_than_the_window(
    running: Chromium, services: HttpServices, report: Figures, width: int
) -> None:
    report.word = "x" * 300
    async with opened(running, replace(services, stories=FixedStories(report.word))) as tab:
        await tab.look(width=width)
        await tab.until(SHOWN)
        await look_up(tab, "alice")
        await inspect(tab)
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the source of axe-core, which npm gets for this test alone."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core is left out: npm is not installed: apt-get install npm")
    directory = tmp_path_factory.mktemp("axe")
    line = [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund", "--ignore-scripts", AXE]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip(f"axe-core is left out: npm cannot get {AXE}: {done.stderr.strip().splitlines()[-1:]}")
    return (directory / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


async def violations(tab: Tab, axe: str) -> list[object]:
    await tab.evaluate(f"(window.axe || (() => {{ {axe} }})()) && 0")
    rules = json.dumps({"resultTypes": ["violations"], "runOnly": RULES})
    listed = "r.violations.map(v => [v.id, v.nodes.map(n => [n.html, n.failureSummary])])"
    return cast("list[object]", await tab.evaluate(f"axe.run(document, {rules}).then(r => {listed})"))


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing(
    running: Chromium, services: HttpServices, report: Figures, axe: str, width: int, *, dark: bool
) -> None:
    jobs = FixedJobs()
    services = replace(services, tasks=jobs.tasks(), stories=FixedStories(is_cut=True))
    async with opened(running, services) as tab:
        await tab.command("Page.setBypassCSP", enabled=True)  # axe reads HTML, which the policy forbids
        await tab.command("Page.reload")
        await tab.look(dark=dark, width=width)
        await tab.until(SHOWN)
        assert await tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark
        await look_up(tab, "alice")
        await inspect(tab)
        assert await violations(tab, axe) == []
        report.reasons, report.overdue, report.is_up = ["the disk is full"], ("a predecessor",), True
        assert services.tasks.start(CheckOptions()) is not None
        await tab.until("document.querySelector('#health').innerText.includes('Not healthy')")
        assert await violations(tab, axe) == []


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_axe_finds_nothing_at_the_log_in(
    running: Chromium, services: HttpServices, tmp_path: Path, axe: str, *, dark: bool
) -> None:
    async with opened(running, services, Access(Tokens(tmp_path / "http.tokens"))) as tab:
        await tab.command("Page.setBypassCSP", enabled=True)
        await tab.command("Page.reload")
        await tab.look(dark=dark)
        await tab.until(ASKED)
        await tab.type("wrong")
        await tab.press("Enter")
        await tab.until("document.getElementById('refusal').innerText")
        assert await violations(tab, axe) == []
