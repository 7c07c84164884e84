"""Forks: other branches of a history in the log are found (`branches`, `fork_point`), and merged (`merging`).

What forks of a user's tree of folders leave behind is `stray_mail`. Other modules use all of it from here.
"""

from replicator.store.log.forks.branches import Branch, branch_heads, is_history_doubted, replay_branch, waiting_chains
from replicator.store.log.forks.fork_point import check_apart
from replicator.store.log.forks.merging import (
    MergePlan,
    MiscountedError,
    carry_out,
    merge_branch,
    merge_histories,
    plan_merge,
)
from replicator.store.log.forks.stray_mail import StrayMail, stray_folder_count, strays, users_with_strays

__all__ = [
    "Branch",
    "MergePlan",
    "MiscountedError",
    "StrayMail",
    "branch_heads",
    "carry_out",
    "check_apart",
    "is_history_doubted",
    "merge_branch",
    "merge_histories",
    "plan_merge",
    "replay_branch",
    "stray_folder_count",
    "strays",
    "users_with_strays",
    "waiting_chains",
]
