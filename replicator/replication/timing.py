"""All durations of replication, in seconds, by the module that uses them; docs/timing.md is generated from this.

Relations between them are asserted in tests/replication/test_timing.py.
"""

from __future__ import annotations

# ---- links/expected_replies.py

LINK_REPLY_S = 45.0
"""Until a reply is overdue: longer than a peer takes to answer, plus the reply's time on the line."""
LINK_REPLY_LARGE_S = 75.0
"""The same for replies that may queue behind other large ones."""
LINK_REPLY_LONG_S = 600.0
"""The same for requests that hash all rows anew, or that bring large attachments."""

# ---- links/link.py

LINK_SLOW_S = 2.0
"""Until a PING without a reply is stuck behind other traffic, as other replies may be."""

# ---- links/handshake.py

HANDSHAKE_TIMEOUT_S = 10.0
"""For a connection to become a link."""

# ---- links/connections.py

REDIAL_FIRST_S = 0.2
"""First pause before a peer is dialled again; it doubles."""
REDIAL_MAX_S = 10.0
"""Longest pause before a peer is dialled again."""

# ---- links/rival_runs.py

RIVAL_RUNS_GRACE_S = 0.5
"""Added to `mastership.timeout`, for a link that ends exactly then."""
RIVAL_RUNS_LOOK_AGAIN_S = 0.05
"""Between checks if another run of a peer is gone."""

# ---- links/object_entries.py

OBJECT_ENTRIES_TIMEOUT_S = 10.0
"""For one object: the peer's log waits for it."""
OBJECT_ENTRIES_CONNECT_S = 2.0
"""For a connection to the object store."""
OBJECT_ENTRIES_SILENCE_S = 5.0
"""Without an octet from the object store, until it is given up."""
OBJECT_ENTRIES_REST_S = 60.0
"""After a failure, before an object is written again."""
OBJECT_ENTRIES_INLINE_S = 600.0
"""After a failure to read, during which the peer sends all entries on the link."""

# ---- bodies/bodies.py

BODIES_FETCH_PATIENCE_S = 300.0
"""For a body or its recipe: several neighbours may each take long to refuse."""
BODIES_PATIENCE_S = 25.0
"""The same, where a client or operator waits."""

# ---- bodies/from_peers/peer_fetch.py

PEER_FETCH_NEXT_AFTER_S = 8.0
"""Until the next neighbour is asked as well; a slow link has had its time."""

# ---- bodies/from_peers/small_fetch.py

SMALL_FETCH_PATIENCE_S = 8.0
"""For a reply with many small bodies; then the next neighbour is asked."""
SMALL_FETCH_SLOW_S = 60.0
"""Until a neighbour that was slow is asked for many bodies again."""

# ---- bodies/from_peers/download.py

DOWNLOAD_FLUSH_TIMEOUT_S = 30.0
"""For the writer's queue, which may still record a holding; before that, none is released."""
DOWNLOAD_UNKNOWN_RETRY_S = 60.0
"""Between attempts to release holdings of unknown state."""

# ---- bodies/from_peers/partial_downloads.py

PARTIAL_DOWNLOADS_KEPT_S = 600.0
"""For which the beginning of an interrupted download is kept."""
PARTIAL_DOWNLOADS_LOOK_EVERY_S = 60.0
"""Between looks for such beginnings that are too old."""

# ---- bodies/attachments.py

ATTACHMENTS_CHUNK_TIMEOUT_S = 60.0
"""For one chunk from another node: at least 2 KB/s."""
ATTACHMENTS_READ_TIMEOUT_S = 20.0
"""For one chunk from this node's disk, which may have to spin up; a peer waits longer."""
ATTACHMENTS_LET_GO_TIMEOUT_S = 10.0
"""For releasing holdings without an owner; a scrub releases the rest."""

# ---- bodies/from_peers/backfill.py

BACKFILL_PATIENCE_S = 5.0
"""Before a look for bodies: most bodies of a merge arrive with the entries of its branches."""
BACKFILL_RETRY_S = 30.0
"""Between full looks, unless the last one left nothing missing."""

# ---- bodies/upkeep/retention.py

RETENTION_LEAST_S = 10.0
"""Least interval between rounds."""
RETENTION_MOST_S = 3600.0
"""Longest interval between rounds."""
RETENTION_REST_S = 0.02
"""Minimum rest between two slices; otherwise as long as the last slice took."""
RETENTION_UNNAMED_EVERY_S = 86_400.0
"""Between searches for orphans: the retention time, but at most this and at least `RETENTION_MOST_S`."""

# ---- bodies/upkeep/orphan_sweep.py

ORPHAN_SWEEP_FIRST_S = 600.0
"""After the start: catching up with peers comes first."""
ORPHAN_SWEEP_EVERY_S = 86_400.0
"""Between two sweeps."""
ORPHAN_SWEEP_REST_S = 0.02
"""Minimum rest between two slices."""

# ---- bodies/upkeep/spare_time.py

SPARE_TIME_QUIET_S = 0.2
"""Without a new entry in the log: clients and peers write nothing."""
SPARE_TIME_PATIENCE_S = 1.0
"""For such a pause, before each turn of a task that makes something of bodies."""
SPARE_TIME_REST_S = 0.02
"""Minimum rest after a turn; otherwise as long as the turn took."""

# ---- bodies/upkeep/outlines.py

OUTLINES_EVERY_S = 60.0
"""Between two looks at the bodies if the log does not grow, and after a failure."""

# ---- bodies/upkeep/search_texts.py

SEARCH_TEXTS_EVERY_S = 60.0
"""Between two looks at the bodies if the log does not grow, and after a failure."""
SEARCH_TEXTS_COMPARE_S = 3600.0
"""Between two comparisons of all bodies with all search texts."""

# ---- mastership/elections.py

ELECTIONS_REFRESH_S = 30.0
"""Between two advertisements of links that have not changed."""

# ---- mastership/mastership.py

MASTERSHIP_RETRY_S = 0.05
"""Before an unanswered question is asked again."""

# ---- mastership/handover.py

HANDOVER_JOIN_INTERVAL_S = 10.0
"""Between checks for parts of a scope that are no longer in use."""

# ---- writes/read_your_writes.py

READ_YOUR_WRITES_PATIENCE_S = 0.25
"""For other nodes to say which heads they show, and for these to come: a client waits that long to see a mailbox."""

# ---- writes/requests/messages.py

TRANSFER_MAX_S = 480.0
"""For the transfer of a large message's attachments. RFC 5321 section 4.5.3.2.6: a client waits ten minutes for the
reply to the end of DATA.
"""

# ---- writes/router.py

REQUEST_TIMEOUT_S = 30.0
"""Limit of one change, from the client's command to its durability; longer for a large message."""
LONGEST_WAIT_S = REQUEST_TIMEOUT_S + TRANSFER_MAX_S
"""Longest wait of a client for copies of a numbered change of any size."""
ROUTER_ASK_TIMEOUT_S = 5.0
"""For all nodes to say whether they have an entry."""
ROUTER_ASK_EVERY_S = 0.5
"""Pause before other nodes are asked for an entry whose ACKs may go to another node."""
ROUTER_SHOW_TIMEOUT_S = 10.0
"""For this node to show the change."""
ROUTER_SOURCE_TIMEOUT_S = 3.0
"""For the head or message that a request names to arrive at the mailbox's master."""

# ---- writes/prestage.py

PRESTAGE_HELD_S = TRANSFER_MAX_S / 2 + 60.0
"""For which offered attachments are kept: the slowest neighbour takes so long; then the entry comes or was refused."""
PRESTAGE_LOOK_EVERY_S = 5.0
"""Between looks for entries that have come."""
PRESTAGE_NUMBERING_S = 5.0
"""Left for numbering an entry whose attachments are there, and for its ACKs."""

# ---- coordinator.py

LEAVE_S = 1.0
"""For a node that stops, until its peers have all that it has numbered."""
STALLED_S = REQUEST_TIMEOUT_S + 10.0
"""Without an ACK until a node counts as lagging; longer than the entry's client waits."""

# ---- log/feeds.py

ACK_REPEAT_S = 30.0
"""Between repetitions of all acknowledgements."""
LACK_S = 10.0
"""First pause before the log is requested again."""
LACK_MAX_S = 600.0
"""Longest pause before the log is requested again."""

# ---- log/sender.py

SENDER_DAMAGED_RETRY_S = 30.0
"""Pause before entries that the damaged database did not give are read again."""

# ---- log/receiver.py

RECEIVER_DISK_FULL_RETRY_S = 1.0
"""Pause before an entry is written again that met a full disk or a damaged page."""

# ---- log/body_completion.py

COMPLETION_LOST_RETRY_S = 5.0
"""Pause before attachments that no node had are asked for again."""
COMPLETION_RETRY_S = 1.0
"""Pause before attachments are asked for again; with a full disk it doubles each time."""
COMPLETION_FULL_RETRY_MOST_S = 60.0
"""Longest such pause."""
COMPLETION_LOST_MARGIN_S = 10.0
"""Added to the wait for attachments."""
COMPLETION_UNAVAILABLE_S = 600.0
"""Until unavailable attachments count as lost: the disk that has them may never recover."""

# ---- log/gap_recovery.py

GAPS_PATIENCE_S = LONGEST_WAIT_S
"""Until an entry that the log cannot give counts as lost: a client may still wait for its copies."""
GAPS_RETRY_MAX_S = 600.0
"""Longest pause between attempts to make the log begin after a gap."""

# ---- log/settled.py

SETTLED_SAY_EVERY_S = 10.0
"""Between statements of what is settled: a checkpoint, which waits for them, takes minutes to come into force anyway.
"""

# ---- checkpoints/checkpoint_writer.py

CHECKPOINT_WRITER_SAVE_TIMEOUT_S = 1800.0
"""For one object: a mailbox of a million messages over a slow line."""

# ---- checkpoints/checkpoint_reader.py

CHECKPOINT_READER_READ_TIMEOUT_S = 300.0
"""For one checkpoint of any size."""

# ---- checkpoints/bootstrap.py

BOOTSTRAP_AGE_MIN_S = LONGEST_WAIT_S + 300.0
"""Minimum age of a manifest, allowing for clock skew: while a client may wait for copies of its mail, a copy counts
only with its body, which checkpoints do not bring.
"""
BOOTSTRAP_FIND_TIMEOUT_S = 30.0
"""For finding a manifest; a node with peers can do without."""
BOOTSTRAP_READ_TIMEOUT_S = 300.0
"""For reading one checkpoint, or a slice of a manifest."""

# ---- checkpoints/log_truncation.py

LOG_TRUNCATION_AGE_MIN_S = LONGEST_WAIT_S
"""Minimum age of a manifest before entries leave the log: a client may still wait for their copies."""
LOG_TRUNCATION_LOOK_EVERY_S = 10.0
"""Between looks: as often as nodes tell each other their settled contexts."""
LOG_TRUNCATION_ROUND_EVERY_S = 3600.0
"""Most time between rounds, so that replays stay short, unless more came than the limits allow."""
LOG_TRUNCATION_RETRY_MAX_S = 600.0
"""Longest pause after failures of the object store."""

# ---- convergence/fork_merge.py

FORK_MERGE_DAMAGED_EVERY_S = 60.0
"""Between tries to join a mailbox whose rows do not add up to its head's counts."""
FORK_MERGE_APART_S = 30.0
"""First pause before a branch that could not be joined is tried again."""
FORK_MERGE_APART_MAX_S = 3600.0
"""Longest pause before a branch that could not be joined is tried again."""

# ---- convergence/fork_scheduler.py

FORK_SCHEDULER_CATCH_UP_S = 300.0
"""For one reported mailbox; a million messages take a minute or two."""
FORK_SCHEDULER_STRAYS_EVERY_S = 60.0
"""Between looks for mail in deleted folders."""
FORK_SCHEDULER_RETRY_S = 5.0
"""After a failed read."""
FORK_SCHEDULER_LOST_EVERY_S = 60.0
"""Between tries for a mailbox whose row is lost, if no node shows all that was shown here."""
FORK_SCHEDULER_PATIENCE_S = 0.05
"""Before a look: an entry whose predecessor arrives by another link is no fork."""
FORK_SCHEDULER_QUIET_S = 0.2
"""Without a new entry, until a growing branch is joined: joined too early, it would have to be joined again."""
FORK_SCHEDULER_GROWING_MAX_S = 10.0
"""Until a growing branch is joined as far as it is here."""

# ---- convergence/reconciliation.py

RECONCILIATION_LOG_FIRST_S = 0.5
"""Wait for entries in transit, which need no SYNC."""
RECONCILIATION_FIND_TIMEOUT_S = 5.0
"""For finding a mailbox's master; an unsettled term must not hold up other mailboxes."""

# ---- convergence/overdue_entries.py

OVERDUE_S = 30.0
"""For which an entry may wait with all nodes linked; joins take less, and a longer one is not interrupted."""
OVERDUE_AMONG_OTHERS_S = 600.0
"""The same, while others are joined: after a long separation, thousands of mailboxes wait for their turn."""
OVERDUE_LOOK_EVERY_S = 5.0
"""Between looks for overdue entries."""
OVERDUE_PAUSE_MIN_S = OVERDUE_S / 2
"""First pause between tries for one mailbox."""
OVERDUE_PAUSE_MAX_S = 600.0
"""Longest pause between tries for one mailbox."""
OVERDUE_ABANDON_S = 120.0
"""Age from which entries are abandoned and their mail saved again, if no node shows them."""
OVERDUE_COMPARE_S = 60.0
"""Per comparison with one node; a longer one continues at the next try."""

# ---- convergence/state_transfer.py

STATE_TRANSFER_RETRY_S = 1.0
"""After a failure, and between looks at mailboxes that other nodes are joining."""
STATE_TRANSFER_LEFT_EVERY_S = 60.0
"""Between looks at postponed mailboxes, which an operator may have repaired."""

# ---- convergence/anti_entropy.py

ANTI_ENTROPY_LOOK_EVERY_S = 5.0
"""Between looks whether there was an election."""
ANTI_ENTROPY_QUIET_S = 30.0
"""After an election, in which logs bring most of what differs."""
ANTI_ENTROPY_PAUSE_MAX_S = 600.0
"""Longest pause between comparisons with a neighbour while something is left; the first is `ANTI_ENTROPY_QUIET_S`."""

# ---- convergence/diff.py

DIFF_LOOK_AGAIN_S = 0.2
"""Before a second look: most entries in transit arrive in this time."""

# ---- startup/node_admission.py

ADMISSION_TOLD_EVERY_S = 60.0
"""Between log lines about what a new node waits for."""
ADMISSION_RETRY_S = 1.0
"""After a failed write."""

# ---- startup/mailbox_readiness.py

READINESS_PATIENCE_S = 5.0
"""For which a client waits until its mailbox is compared; the comparison goes on after that."""
READINESS_LOOK_EVERY_S = 0.05
"""Between looks whether a mailbox may be shown."""
READINESS_LEFT_EVERY_S = 1.0
"""Once the log is here: between two looks at the mailboxes that it has not completed."""
READINESS_COMPARE_EVERY_S = 60.0
"""Between comparisons of the whole state, while the log lacks what peers said they have."""
READINESS_COMPARE_S = 60.0
"""Longest time of such a comparison; then it is tried again later."""

# ---- tasks/pacing.py

PACING_SHOW_TIMEOUT_S = 30.0
"""For a node to show a result."""
PACING_SLOW_TIMEOUT_S = 2.0
"""For a node that exceeded that before: there may be a million mailboxes."""
PACING_SHOW_EVERY_S = 0.2
"""Between looks whether a node shows a result."""

# ---- tasks/resync.py

RESYNC_BUSY_EVERY_S = 0.5
"""Between comparisons of a mailbox that is too busy to be compared."""
RESYNC_MEND_TIMEOUT_S = 300.0
"""Per mailbox: a million messages are joined in a minute or two."""

# ---- tasks/undelete.py

UNDELETE_FOLDER_EVERY_S = 0.5
"""Between tries for a folder that is replaced meanwhile."""
UNDELETE_BUSY_EVERY_S = 5.0
"""Between tries for a message that is unavailable because its master moves or a neighbour is busy."""

# ---- tasks/repair_plan.py

REPAIR_PLAN_ASK_TIMEOUT_S = 60.0
"""For answers about heads: nodes may be reading much."""
REPAIR_PLAN_MAILBOX_TIMEOUT_S = 300.0
"""Per mailbox, once it is its turn: a million messages are joined in a minute or two."""
REPAIR_PLAN_BODIES_TIMEOUT_S = 60.0
"""Without any body arriving: two rounds of `Backfill`."""
REPAIR_PLAN_BODIES_EVERY_S = 0.5
"""Between looks whether bodies have come."""

# ---- tasks/inventory.py

INVENTORY_KILLED_S = 5.0
"""For its exit after a kill; a process that is blocked by a disk exits when the disk responds."""

# ---- stories/mail.py

STORY_READ_S = 30.0
"""For a node to read what one story is made of; it tells what it has read by then."""

# ---- stories/mailbox.py

STORY_ASK_S = 3.0
"""For each other node, and the root, to say what it shows of a mailbox: an operator waits."""

# ---- node_status.py

NODE_STATUS_TRY_EVERY_S = 5.0
"""Between two trial writes, if the last one succeeded: health checks are frequent."""
NODE_STATUS_RETRY_EVERY_S = 1.0
"""The same, if it failed: whoever waits for the disk is told soon, and however many ask, they hardly load it."""
NODE_STATUS_WRITE_TIMEOUT_S = 5.0
"""For a trial write: a working disk is faster, however busy, and health checks wait for it."""
NODE_STATUS_COUNT_S = 5.0
"""For the writer to count 200 mailboxes, if nobody has counted all; then a status counts for itself, beside it."""
NODE_STATUS_COUNT_FIRST_S = 3600.0
"""From the start to the first count of what the node shows, if it knows the sum from before."""
NODE_STATUS_COUNT_ANEW_S = 86_400.0
"""From one count to the next, lest damage that came after the last one stays hidden."""
NODE_STATUS_LOOK_EVERY_S = 60.0
"""Between looks whether the sum is unknown, as after a repair."""
NODE_STATUS_DISKS_S = 1.0
"""For file systems to tell their free space; then a status has none."""

# ---- node_metrics/node_metrics.py

NODE_METRICS_TRY_EVERY_S = 30.0
"""Between two trial writes for the metric of health, if nobody else asks and the last one succeeded."""
NODE_METRICS_START_S = 2.0
"""For what the first metrics need: what peers had settled, and the room on disks; then a node starts without."""
NODE_METRICS_COUNT_EVERY_S = 10.0
"""Between two looks at the room on disks and, at least, between two counts of what waits in the database."""

# ---- rebuild/rebuilder.py

REBUILD_REACH_S = 60.0
"""For reaching a source: links are dialled at least every 10 s."""
REBUILD_ALL_REACH_S = 15.0
"""After that, for reaching the other peers."""
REBUILD_STUCK_S = 90.0
"""Without anything new from reachable sources until the rebuild gives up: missing bodies are looked for every 30 s."""
REBUILD_JOIN_S = 30.0
"""Without a branch being joined: once running, the node continues with that."""
REBUILD_LOOK_EVERY_S = 1.0
"""Between looks at the progress."""
