"""`replicator expunge`: removes mail of a user's folder, as a client of the user would.

The node tells first what would go, page by page. The command removes just that, in batches. It holds no more of the
mail than its UIDs, as ranges.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from itertools import islice
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from protocol.values import UidSet
from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.output import console, counted, echo_json, echo_lines, json_option, printable, size
from replicator.cli.target import CommandError, node_options, one_node
from replicator.cli.times import local, parse_since
from replicator.mail.lookup import parse_uids
from replicator.mail.mailstore import canonical_name
from replicator.status import ChosenMail

AT_ONCE = 1000  # messages of a batch
RANGES_AT_ONCE = 300  # of a request: 7 KB of its head, which may have 16 KiB

Choice = Mapping[str, str]


@dataclass(slots=True)
class ExpungeReport:
    """The mail that was chosen, and what came of it; see `ChosenMail` and `ExpungeResult`.

    `expunged` of the `messages` are gone; `missing` had gone before, or have other UIDs now. `unchecked`: see
    `ChosenMail`. `stopped`: why the rest stays. `uncertain`: so many of the rest may be gone, since the node was asked
    to expunge them and its answer is not known.
    """

    user: str
    mailbox: str
    dry_run: bool
    messages: int
    size_bytes: int
    oldest_ms: int | None
    newest_ms: int | None
    unchecked: int
    expunged: int = 0
    missing: int = 0
    until_ms: int | None = None
    stopped: str | None = None
    uncertain: int = 0


@click.command()
@click.argument("user")
@click.argument("mailbox")
@click.option(
    "--uid",
    "uids",
    metavar="SET",
    help="The mail with these UIDs: 7,30:39,100:* (all from 100 on). A bare * is refused.",
)
@click.option(
    "--before",
    metavar="WHEN",
    help="The mail that was received before then: 90d, or a local date or time (2026-11-20, 2026-11-20T10:00).",
)
@click.option("--message-id", metavar="ID", help="The mail with this Message-ID.")
@click.option("--all", "everything", is_flag=True, help="All mail of the folder; the folder stays.")
@click.option("--dry-run", is_flag=True, help="Tell what would go, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@node_options
@json_option
def expunge(
    user: str,
    mailbox: str,
    config_file: Path | None,
    url: str | None,
    *,
    uids: str | None,
    before: str | None,
    message_id: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Expunge mail of USER's MAILBOX at all nodes, as a client of the user would.

    Name the mail by one of --uid, --before, --message-id and --all. The command tells how much it is, and asks. What
    it has not counted it does not remove, such as mail that arrives meanwhile. The nodes keep expunged mail for
    `content.keep_expunged`, and `replicator undelete` brings it back until then. An interrupt ends the command; the
    batch of up to 1000 mails that is on its way then may go all the same. Exit code 0 if all is gone that was chosen,
    1 otherwise.
    """
    if "" in {user, mailbox}:
        raise click.UsageError("USER and MAILBOX must not be empty")
    choices = _choices(uids, before, message_id, everything=everything)
    with NodeClient(one_node(config_file, url)) as client:
        seen = _look(client, user, canonical_name(mailbox), choices)
        report = ExpungeReport(
            user=seen.user,
            mailbox=seen.mailbox,
            dry_run=dry_run,
            messages=seen.messages,
            size_bytes=seen.size_bytes,
            oldest_ms=seen.oldest_ms,
            newest_ms=seen.newest_ms,
            unchecked=seen.unchecked,
        )
        if seen.messages and not dry_run:
            if not yes:
                _ask(seen)
            _expunge(client, seen, report)
    if as_json:
        echo_json(asdict(report))
    else:
        echo_lines([_told(seen, report)])
    if problems := list(_problems(report)):
        for problem in problems:
            click.echo(f"Error: {printable(problem)}", err=True)
        raise click.exceptions.Exit(1)


def _choices(uids: str | None, before: str | None, message_id: str | None, *, everything: bool) -> list[Choice]:
    """Return what to ask the node for, one after the other. Raises click.UsageError."""
    if [uids, before, message_id, everything or None].count(None) != 3:
        raise click.UsageError("say which mail: give one of --uid, --before, --message-id and --all")
    if uids is not None:
        try:
            ranges = parse_uids(uids).ranges
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--uid") from error
        parts = (ranges[start : start + RANGES_AT_ONCE] for start in range(0, len(ranges), RANGES_AT_ONCE))
        return [{"uids": str(UidSet(part))} for part in parts]
    if before is not None:
        return [{"before_ms": str(parse_since(before, time.time(), "--before"))}]
    if message_id is not None:
        bare = message_id.strip().removeprefix("<").removesuffix(">")
        if not bare:
            raise click.BadParameter("it must not be empty", param_hint="--message-id")
        return [{"message_id": bare}]
    return [{}]


def _look(client: NodeClient, user: str, mailbox: str, choices: Sequence[Choice]) -> ChosenMail:
    """Return all that is chosen, as one page. Raises CommandError if the folder is another one meanwhile."""
    pages = list(_pages(client, user, mailbox, choices))
    first = pages[0]
    if any((page.node, page.uidvalidity) != (first.node, first.uidvalidity) for page in pages):
        raise CommandError(
            f"{mailbox} has got another UIDVALIDITY, or another node answers; nothing is removed, try again"
        )
    oldest = [page.oldest_ms for page in pages if page.oldest_ms is not None]
    newest = [page.newest_ms for page in pages if page.newest_ms is not None]
    ranges = (one for page in pages if page.uids for one in parse_uids(page.uids).ranges)
    return replace(
        first,
        uids=str(UidSet.of_ranges(ranges)),
        messages=sum(page.messages for page in pages),
        size_bytes=sum(page.size_bytes for page in pages),
        oldest_ms=min(oldest, default=None),
        newest_ms=max(newest, default=None),
        unchecked=sum(page.unchecked for page in pages),
        after=None,
    )


def _pages(client: NodeClient, user: str, mailbox: str, choices: Sequence[Choice]) -> Iterator[ChosenMail]:
    for choice in choices:
        after: int | None = 0
        while after is not None:
            page = client.chosen(user, mailbox, choice, after)
            yield page
            after = page.after


def _expunge(client: NodeClient, seen: ChosenMail, report: ExpungeReport) -> None:
    """Expunge what was seen, and note in the report what came of it."""
    uids = iter(parse_uids(seen.uids))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("Expunging", total=seen.messages)
            while some := list(islice(uids, AT_ONCE)):
                report.uncertain = len(some)
                result = client.expunge(seen, UidSet.of(some))
                report.uncertain = 0
                report.expunged += result.messages
                report.missing += result.missing
                report.until_ms = result.until_ms
                progress.advance(task, len(some))
    except UnreachableError as error:
        report.stopped = error.message
        if not error.is_connected:
            report.uncertain = 0
    except RefusedError as error:
        report.stopped = error.message
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # others come of what may have happened all the same
            report.uncertain = 0
    except KeyboardInterrupt:
        report.stopped = "interrupted"


def _ask(seen: ChosenMail) -> None:
    """Ask whether to expunge this. Raises CommandError without a terminal, and click.Abort."""
    what = f"{printable(_mail(seen))}; {printable(_kept(seen))}"
    if not sys.stdin.isatty():
        raise CommandError(f"this expunges {what}; say --yes")
    click.confirm(f"Expunge {what}. Go on?", abort=True, err=True)


def _mail(seen: ChosenMail) -> str:
    """Return the mail in words. There is some."""
    oldest, newest = (local(time_ms or 0, "minutes") for time_ms in (seen.oldest_ms, seen.newest_ms))
    when = oldest if oldest == newest else f"{oldest} to {newest}"
    return f"{counted(seen.messages, 'mail')} of {seen.user}'s {seen.mailbox}, {size(seen.size_bytes)}, received {when}"


def _kept(seen: ChosenMail) -> str:
    if not seen.keep_expunged_s:
        return "nodes do not keep it, since `content.keep_expunged` is 0"
    until = local(int((time.time() + seen.keep_expunged_s) * 1000), "minutes")
    return f"nodes keep it until {until}, for `{_undelete(seen)}`"


def _undelete(seen: ChosenMail) -> str:
    return shlex.join(["replicator", "undelete", seen.user, seen.mailbox])


def _told(seen: ChosenMail, report: ExpungeReport) -> str:
    """Return what was done, or would be."""
    if not seen.messages:
        return f"there is no such mail in {seen.user}'s {seen.mailbox}"
    if report.dry_run:
        return f"would be expunged (dry run): {_mail(seen)}"
    done = f"expunged {counted(report.expunged, 'mail')} of {seen.user}'s {seen.mailbox}"
    if not report.expunged or not seen.keep_expunged_s or report.until_ms is None:
        return done
    return f"{done}; until {local(report.until_ms, 'minutes')}, `{_undelete(seen)}` brings it back"


def _problems(report: ExpungeReport) -> Iterator[str]:
    """Yield why not all is gone that was chosen."""
    if report.unchecked:
        yield f"{counted(report.unchecked, 'mail')} could not be looked at: its body is not here, or takes long"
    if report.missing:
        gone = counted(report.missing, "mail")
        yield f"{gone} had gone by then, or a merge has given them other UIDs; run the command again to see"
    if report.stopped is not None:
        left = report.messages - report.expunged - report.missing
        yield f"stopped: {report.stopped}; {counted(left, 'mail')} of those chosen may still be there"
    if report.uncertain:
        yield (
            f"no answer tells whether {counted(report.uncertain, 'mail')} of these went; the node may still be at it:"
            " run the command again to see"
        )
