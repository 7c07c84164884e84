// One mailbox: who masters it, whether other nodes show the same, and its history from this node's log.

import { badge, facts, h } from "./build.js";
import { deedsOf } from "./deeds.js";
import { drawn } from "./graph.js";
import { Refused, mailboxHistory, mailboxStory } from "./node.js";
import { UNKNOWN, clockTime, count, counted, size, span } from "./words.js";

const LAST = 50; // entries of the history
const LAST_MORE = 500; // when older ones are asked for
const WAITING_SHOWN = 5;

/** Return what shows the mailbox, once `details` is opened. `refused` is called if the token does not hold. */
export function inspector(details, mailbox, refused) {
  const story = h("div", {});
  const history = h("div", {});
  let asked = 0; // number of the last opening: answers to those before it are not shown
  const fill = async (part, answer, shown) => {
    const number = asked;
    part.replaceChildren(h("p", { class: "quiet" }, "The node is asked …"));
    const elements = await told(answer, shown, refused);
    if (number === asked) part.replaceChildren(...elements);
  };
  const showHistory = (last) => fill(history, mailboxHistory(mailbox.user, mailbox.name, last), (found) => historyParts(found, () => showHistory(LAST_MORE), last));
  details.addEventListener("toggle", () => {
    asked += 1;
    if (!details.open) return;
    fill(story, mailboxStory(mailbox.user, mailbox.name), storyParts);
    showHistory(LAST);
  });
  return h("div", { class: "inspector" }, story, history);
}

async function told(answer, shown, refused) {
  try {
    return shown(await answer);
  } catch (error) {
    if (error instanceof Refused && error.status === 401) refused(error);
    return [h("p", { class: "bad" }, error instanceof Refused ? error.message : "The node does not answer.")];
  }
}

// ---- the mailbox at all nodes

const AGREEMENTS = {
  same: ["good", "the same", null],
  behind: ["busy", "behind", "it has yet to get changes that this node shows"],
  ahead: ["busy", "ahead", "it shows changes that this node has yet to get"],
  forked: ["warn", "forked", "both show changes that the other does not; the master joins them once they are linked"],
  differs: ["bad", "differs", "although both show the same changes: run replicator resync and replicator check"],
  nothing: ["warn", "nothing yet", "it does not know the mailbox"],
  unreachable: ["none", "cannot be asked", null],
};

function storyParts(story) {
  const rows = story.nodes.map((node) => {
    const [kind, text, note] = AGREEMENTS[node.shows] ?? ["none", node.shows, null];
    return [node.node, badge(kind, text), node.why ?? note];
  });
  return [
    h("h3", {}, "At other nodes"),
    rows.length ? facts(rows) : h("p", { class: "quiet" }, "No other nodes are configured."),
    h("h3", {}, `At ${story.node}`),
    facts(storyFacts(story)),
  ];
}

function storyFacts(story) {
  const when = (ms) => (ms === null ? "at a time that has left the log" : clockTime(ms));
  const { waiting_entries: waits } = story;
  return [
    story.is_deleted && ["Deleted", story.messages ? "the folder is shown as long as it has mail" : "yes"],
    ["Master", story.master ?? UNKNOWN, story.master_since_ms === null ? "none was needed in this term" : `known since ${clockTime(story.master_since_ms)}`],
    ["Last change", story.head === null ? "none" : when(story.head_ms), story.head !== null && !story.is_head_logged ? "taken over from another node, without its entry" : null],
    ["Checkpoint", story.checkpoint === null ? "none" : story.checkpoint === story.head ? "of the last change" : when(story.checkpoint_ms)],
    ["Waiting", story.waiting ? badge("warn", `${counted(story.waiting, "entry", "entries")} on ${counted(story.branches, "branch", "branches")}`) : "none", story.waiting ? `the first for ${span(story.clock_ms - (story.waiting_since_ms ?? story.clock_ms))}` : null],
    ...waits.slice(0, WAITING_SHOWN).map((one) => ["", h("code", {}, one.entry), one.lacks === null ? "on another branch, which the master joins" : `waits for ${one.lacks}, which is not here`]),
    story.why_apart !== null && ["Cannot join", story.why_apart],
    story.abandoned > 0 && ["Abandoned", badge("bad", counted(story.abandoned, "entry", "entries")), "no node can show them any more"],
    story.is_postponed && ["Postponed", badge("warn", "differs from a peer's"), "the node compares again every minute"],
    story.is_unproven && ["Unproven", "taken over from another node", "the next checkpoint proves it"],
    story.risen > 0 && ["Renumbered", `by merges; UIDVALIDITY raised by ${count(story.risen)}`],
    ["Expunged, kept", story.kept_messages ? counted(story.kept_messages, "message") : "none", story.kept_messages ? size(story.kept_bytes) : null],
  ];
}

// ---- its history

const STATES = { waiting: badge.bind(null, "warn", "waits"), abandoned: badge.bind(null, "bad", "abandoned") };

function historyParts(found, more, last) {
  return [
    h("h3", {}, `History, from the log of ${found.node}`),
    h("ol", { class: "history" }, drawn(found.entries).map(([entry, drawing]) => row(entry, drawing))),
    h("p", { class: "quiet" }, ending(found)),
    found.is_cut && last < LAST_MORE ? moreButton(more) : null,
  ].filter(Boolean);
}

function row(entry, drawing) {
  const words = h(
    "div",
    { class: "entry" },
    h("p", {}, deedsOf(entry.deeds) || "nothing", " ", STATES[entry.state]?.() ?? null),
    h("p", { class: "note" }, `${clockTime(entry.time_ms)} at ${entry.node} · `, h("code", {}, entry.entry)),
  );
  return h("li", {}, h("div", { class: "graph", "aria-hidden": "true" }, drawing), words);
}

function ending(found) {
  const missing = found.absent.filter(({ why }) => why === "missing").length;
  const unreadable = found.absent.filter(({ why }) => why === "unreadable").length;
  const parts = [
    !found.entries.length && found.head === null && "Nothing has happened here yet.",
    found.is_cut && `The last ${counted(found.entries.length, "entry", "entries")} are shown.`,
    !found.is_cut && found.absent.some(({ why }) => why === "left") && "Older entries have left the log: checkpoints have their effects, and tell no history.",
    missing && `${counted(missing, "entry is", "entries are")} not in this log, and may still arrive.`,
    unreadable && `${counted(unreadable, "entry", "entries")} cannot be read: run replicator check --repair.`,
  ];
  return parts.filter(Boolean).join(" ");
}

function moreButton(more) {
  const button = h("button", { type: "button", class: "plain" }, `Show the last ${count(LAST_MORE)}`);
  button.addEventListener("click", more);
  return button;
}
