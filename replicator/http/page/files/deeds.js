// What an entry did, in words, as `replicator log show` has them.

import { count, counted } from "./words.js";

const RANGES_SHOWN = 6; // of a set of UIDs
const RENUMBERED_SHOWN = 4;

/** Return what an entry did in all. */
export function deedsOf(deeds) {
  return deeds.map((deed) => (WORDS[deed.kind] ?? unknown)(deed)).join("; ");
}

const WORDS = {
  arrived: (deed) => `${counted(deed.messages, "mail")} arrived: ${uids(deed)}`,
  copied: (deed) => `${counted(deed.messages, "mail")} copied here: ${uids(deed)}`,
  expunged: (deed) => `expunged ${uids(deed)}`,
  flags_set: (deed) => `${deed.names.join(" ")} on ${uids(deed)}`,
  flags_cleared: (deed) => `${deed.names.join(" ")} off ${uids(deed)}`,
  raised: (deed) => `UIDNEXT or HIGHESTMODSEQ raised; UIDNEXT ${count(deed.uidnext)}`,
  merged: (deed) => `merge: ${merged(deed).join(", ") || "nothing differed"}`,
  folder_created: (deed) => `created ${deed.folder ?? "?"}`,
  folder_renamed: (deed) => `renamed ${deed.was ?? "a folder"} to ${deed.folder ?? "?"}`,
  folder_deleted: (deed) => `deleted ${deed.folder ?? "?"}`,
  subscribed: (deed) => `subscribed ${deed.folder ?? "?"}`,
  unsubscribed: (deed) => `unsubscribed ${deed.folder ?? "?"}`,
  annotated: (deed) => `annotations of ${deed.folder ?? "the account"}: ${deed.names.join(" ")}`,
  trees_merged: (deed) => `merge: ${counted(deed.changed, "difference")}; folders: ${deed.names.join(", ") || "none"}`,
};

/** A kind of a later version. */
function unknown(deed) {
  return deed.kind;
}

function uids({ uids: text }) {
  const ranges = text.replaceAll(":", "-").split(",");
  return `UID ${ranges.slice(0, RANGES_SHOWN).join(", ")}${ranges.length > RANGES_SHOWN ? ", …" : ""}`;
}

function merged(deed) {
  const shown = deed.renumbered.slice(0, RENUMBERED_SHOWN);
  const more = deed.messages - shown.length;
  return [
    ...shown.map(({ before, after }) => `UID ${before.join("/") || "?"} became ${after}`),
    more > 0 && `${count(more)} more with other UIDs`,
    deed.joined && `${counted(deed.joined, "mail")} of one branch`,
    deed.changed && `${counted(deed.changed, "mail")} whose flags differed`,
    deed.differing && `${counted(deed.differing, "mail")} that differed`,
    deed.removed && `${count(deed.removed)} expunged on a branch`,
    deed.risen && `UIDVALIDITY raised (by ${count(deed.risen)} in all)`,
  ].filter(Boolean);
}
