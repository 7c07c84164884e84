"""The story, scene by scene. Everything it tells of the nodes' state comes from the nodes, by IMAP and by HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from benchmarks.clients.wire import ImapClient
from benchmarks.clusters.cluster import PASSWORD, Cluster
from benchmarks.clusters.states import are_equal
from benchmarks.demo import account
from benchmarks.demo.account import Ledger, Shown
from benchmarks.demo.clients import USER, ActionError, Desk
from benchmarks.demo.telling import Teller

LEFT, RIGHT = ("dc1", "dc2"), ("dc3",)
PARTED_WITHIN_S, EQUAL_WITHIN_S = 20.0, 30.0


class Story:
    """The play, on a running cluster of dc1, dc2 and dc3 with `USER`, whose links go through proxies."""

    def __init__(self, cluster: Cluster, teller: Teller) -> None:
        self._cluster = cluster
        self._tell = teller
        self._ledger = Ledger()
        self._desks = {node.sid: Desk(node, self._ledger) for node in cluster.nodes}
        self._moments: list[Mapping[str, Shown]] = []  # each node's state after each act

    def play(self) -> bool:
        """Play the story. Return True if every promise was kept."""
        self._opening()
        self._ordinary_day()
        before = len(self._moments) - 1
        with ImapClient(self._desks["dc3"].node.address("imap"), USER, PASSWORD) as watcher:
            watcher.command("SELECT INBOX")
            self._break()
            self._both_sides()
            watcher.command("NOOP")
            apart = self._moments[before:]
            self._heal()
            heard = [line.decode() for line in watcher.command("NOOP")]
        return self._reckon(apart, heard)

    # ---- scenes

    def _opening(self) -> None:
        self._tell.scene(
            "Three data centres",
            "Three processes on this machine, each a whole mail store with its own database. The links between them go "
            "through proxies, so that they can be cut. A client hears OK when two nodes have on disk what it sent.",
        )
        for node in self._cluster.nodes:
            doors = ", ".join(f"{door} {node.ports[door]}" for door in ("lmtp", "imap", "http"))
            self._tell.act(node.sid, f"is ready: ports {doors}")

    def _ordinary_day(self) -> None:
        self._tell.scene("An ordinary day", f"Mail for {USER} comes in at all of them, and each shows all of it.")
        for sid, subject in (
            ("dc1", "Welcome"),
            ("dc2", "Invoice 1041"),
            ("dc3", "Draft contract"),
            ("dc1", "Newsletter"),
        ):
            self._deliver(sid, subject)
        self._desks["dc1"].create("Projects")
        self._desks["dc1"].append("Projects", "Budget")
        self._desks["dc1"].append("Projects", "Timetable")
        self._did("dc1", "makes the folder Projects and files 2 mails in it")
        seconds = self._cluster.wait_until_equal(EQUAL_WITHIN_S)
        self._tell.say(f"All three show the same {seconds:.1f} s later: their digests are equal.")
        self._show_inbox(*self._desks)

    def _break(self) -> None:
        self._cluster.partition(LEFT, RIGHT)
        self._tell.scene(
            "The links to dc3 break",
            'All go on, as their configuration says (when_short = "proceed"). What dc3 takes now is on one disk only, '
            "until a link is back.",
        )
        self._cluster.wait_until(
            lambda statuses: [status["component"] for status in statuses] == [[*LEFT], [*LEFT], [*RIGHT]],
            PARTED_WITHIN_S,
        )
        for status in self._statuses():
            reached = ", ".join(sid for sid in cast("list[str]", status["component"]) if sid != status["sid"])
            copies = f"copies that can be made: {status['copies_reachable']}"
            self._tell.act(
                str(status["sid"]), f"reaches {reached or 'no other node'}; its root is {status['root']}", copies
            )

    def _both_sides(self) -> None:
        self._tell.scene("Both sides carry on", "Neither knows what the other does.")
        self._deliver("dc1", "Flight to Oslo")
        self._deliver("dc2", "Hotel in Oslo")
        self._deliver("dc1", "Parcel delayed")
        self._deliver("dc3", "Dentist")
        self._deliver("dc3", "Concert tickets")
        self._deliver("dc3", "Rent")
        self._expunge("dc1", "Parcel delayed")
        self._flag("dc1", "Welcome", r"\Flagged")
        self._flag("dc3", "Welcome", r"\Answered")
        self._flag("dc2", "Invoice 1041", r"\Seen")
        self._flag("dc3", "Invoice 1041", r"\Seen")
        self._flag("dc3", "Invoice 1041", r"\Seen", is_set=False)
        self._expunge("dc2", "Newsletter")
        self._flag("dc3", "Newsletter", r"\Flagged")
        self._append("dc1", "Projects", "Budget, corrected")
        self._desks["dc3"].delete("Projects")
        self._did("dc3", "deletes the folder Projects and the 2 mails that it sees there")
        for sid, subject in (("dc2", "Packing list"), ("dc3", "Train times")):
            self._desks[sid].create("Travel")
            self._append(sid, "Travel", subject, "makes the folder Travel and files")
        self._cluster.wait_until(lambda statuses: statuses[0]["digest"] == statuses[1]["digest"], EQUAL_WITHIN_S)
        self._show_inbox("dc1", "dc3")

    def _heal(self) -> None:
        self._tell.scene("The links are back", "Nobody does anything. The nodes find what differs and join it.")
        self._cluster.heal()
        seconds = self._cluster.wait_until(are_equal, EQUAL_WITHIN_S)
        self._tell.say(f"After {seconds:.1f} s all show the same and nothing waits to be joined.")
        self._show_inbox(*self._desks)

    def _reckon(self, apart: Sequence[Mapping[str, Shown]], heard: Sequence[str]) -> bool:
        final = self._moments[-1]
        left, right = ([moment[sid] for moment in apart] for sid in ("dc1", "dc3"))
        self._tell.scene("What conflicted, and what became of it", "Found by comparing what IMAP showed on both sides.")
        found = account.conflicts(left, right, final["dc1"])
        if not found:
            raise ActionError("the two sides did nothing that conflicts, so nothing was shown")
        self._tell.conflicts(" and ".join(LEFT), " and ".join(RIGHT), found)
        self._tell.say(
            "New UIDs are above all that either side had given out, so no mail program takes one mail for another. An "
            "expunge removes what its author saw, and nothing else; of each flag the last change counts; two folders "
            "with one name become one, with the mail of both and a UIDVALIDITY above both."
        )
        told = ", ".join(line.removeprefix("* ") for line in heard)
        self._tell.say(f"A mail program that stayed connected to dc3 was told: {told}.")
        statuses = self._statuses()
        self._tell.scene("The promises")
        checks = [
            account.all_alike(
                final,
                {str(status["sid"]): str(status["digest"]) for status in statuses},
                {str(status["sid"]): int(str(status["waiting_entries"])) for status in statuses},
            ),
            account.nothing_lost(self._ledger, final),
            account.nothing_back(self._ledger, final),
            account.flags_kept(self._ledger, final),
            account.uids_mean_one_mail(self._moments),
            account.uidvalidity_kept(left[0], final["dc1"]),
            account.session_is_legal(len(right[-1]["INBOX"].mails), heard, len(final["dc3"]["INBOX"].mails)),
        ]
        self._tell.checks(checks)
        self._tell.say(
            'This was conflict.uid = "renumber", the default. With "uidvalidity" a folder in which UIDs conflict gets '
            "all its UIDs anew, in the order of arrival, under a higher UIDVALIDITY: mail programs fetch it again. "
            "All other promises are the same."
        )
        return all(check.kept for check in checks)

    # ---- acts

    def _deliver(self, sid: str, subject: str) -> None:
        desk = self._desks[sid]
        desk.deliver(subject)
        self._did(sid, f"takes “{subject}”", f"UID {desk.uid(subject)}")

    def _append(self, sid: str, folder: str, subject: str, what: str = "files") -> None:
        self._desks[sid].append(folder, subject)
        self._did(sid, f"{what} “{subject}”" + ("" if folder in what else f" in {folder}"))

    def _flag(self, sid: str, subject: str, flag: str, *, is_set: bool = True) -> None:
        self._desks[sid].flag(subject, flag, is_set=is_set)
        self._did(sid, f"{'sets' if is_set else 'clears'} {flag} on “{subject}”")

    def _expunge(self, sid: str, subject: str) -> None:
        self._desks[sid].expunge(subject)
        self._did(sid, f"expunges “{subject}”")

    def _did(self, sid: str, what: str, came: str = "OK") -> None:
        self._tell.act(sid, what, came)
        self._look()

    # ---- looking

    def _look(self) -> None:
        self._moments.append({sid: desk.shown() for sid, desk in self._desks.items()})

    def _show_inbox(self, *sids: str) -> None:
        self._look()
        self._tell.folders("INBOX", {sid: self._moments[-1][sid]["INBOX"] for sid in sids})

    def _statuses(self) -> list[dict[str, object]]:
        return [node.get("/api/v1/status") for node in self._cluster.nodes]
