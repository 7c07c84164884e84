// What the node says of itself, in words and tables.

import { badge, facts, h, show } from "./build.js";
import { linksOf, picture } from "./picture.js";
import { UNKNOWN, clockTime, count, counted, roundTrip, size, span } from "./words.js";

const CERTIFICATE_DAYS = 30; // before a certificate expires, the page says so
const DAY_MS = 86_400_000;
const DIGEST_SHOWN = 8;

const part = (name) => document.querySelector(`#${name} > div`);
const seen = new Set(); // links between other nodes that were up while this page was open

/** Show an overview as of `nowMs`, by the node's clock. `isOld`: the node has told nothing since. */
export function showOverview({ status, reasons, task }, nowMs, isOld) {
  document.title = `${status.sid} · mail-replicator`;
  show(document.getElementById("name"), status.sid);
  show(document.getElementById("about"), `cluster ${status.cluster} · version ${status.version}`);
  const links = linksOf(status, seen);
  show(part("health"), health(status, reasons, nowMs, isOld));
  show(part("cluster"), figure(status, links));
  show(part("facts"), ownFacts(status, nowMs));
  show(part("links"), linkTable(status, nowMs), betweenOthers(status, links));
  show(part("store"), storeFacts(status, nowMs));
  show(part("upkeep"), taskPart(task, nowMs), certificates(status, nowMs));
}

// ---- health

function health(status, reasons, nowMs, isOld) {
  const troubles = [...reasons.map((text) => ["bad", text]), ...troublesOf(status, nowMs)];
  const rows = troubles.map(([kind, text]) => h("li", { class: kind }, h("span", { "aria-hidden": "true" }, kind === "bad" ? "✕" : "!"), h("span", {}, text)));
  return [h("p", { class: "verdict" }, verdict(reasons, isOld)), rows.length ? h("ul", { class: "troubles" }, rows) : null];
}

function verdict(reasons, isOld) {
  const isWell = reasons.length === 0;
  if (isOld) return badge("warn", `Not known now; before, the node was ${isWell ? "" : "not "}healthy`);
  if (isWell) return badge("good", "Healthy: mail can be read and changed here");
  return badge("bad", "Not healthy: clients are better served by another node");
}

function* troublesOf(status, nowMs) {
  for (const link of status.links) {
    if (!link.up) {
      const since = link.since_ms === null ? "since this node started" : `for ${span(nowMs - link.since_ms)}`;
      yield ["bad", `No link to ${link.peer} ${since}: ${link.error ?? "not tried yet"}`];
    }
    if (link.needs_sync) {
      yield ["warn", `${link.peer} lacks entries that have left this node's log; ${link.up ? "it" : "once linked, it"} fetches them elsewhere, or takes over what differs`];
    }
  }
  if (status.copies_reachable < status.copies) {
    const then = status.when_short === "refuse" ? "changes are refused" : "changes are accepted with fewer copies";
    yield ["warn", `${status.copies_reachable} of ${status.copies} copies can be made: ${then}`];
  }
  if (status.transfer_total) {
    yield ["warn", `This node lacks entries that have left its peers' logs; it has taken over ${count(status.transfer_done)} of ${count(status.transfer_total)} mailboxes and folder trees`];
  }
  if (status.postponed) {
    yield ["bad", `${counted(status.postponed, "mailbox or folder tree differs", "mailboxes or folder trees differ")} from a peer's; the node compares again every minute, and its log names them`];
  }
  for (const [why, entries] of Object.entries(status.overdue)) {
    yield ["bad", `${counted(entries, "entry has", "entries have")} waited too long with all nodes linked: ${why}`];
  }
  if (status.texts_lacking) {
    yield ["warn", `${counted(status.texts_lacking, "body", "bodies")} of messages shown here are yet to be fetched from other nodes`];
  }
  if (status.attachments_to_heal) {
    yield ["warn", `${counted(status.attachments_to_heal, "attachment is", "attachments are")} damaged or missing; other nodes supply them`];
  }
  if (status.checkpoint.error !== null) {
    yield ["warn", `No checkpoints can be written, so the whole log is kept: ${status.checkpoint.error}`];
  }
  for (const disk of status.disks.filter((room) => room.is_short)) {
    yield ["warn", `Little room on the disk of ${disk.directory}: ${size(disk.free_bytes)} free`];
  }
  for (const text of status.dovecots) yield ["warn", `Syncs with Dovecots: ${text}`];
  for (const certificate of status.certificates) {
    const days = daysLeft(certificate, nowMs);
    if (days < 0) yield ["bad", `The certificate ${certificate.file} has expired; renew it, and run replicator reload`];
    else if (days < CERTIFICATE_DAYS) yield ["warn", `The certificate ${certificate.file} expires in ${counted(days, "day")}; renew it, and run replicator reload`];
  }
}

// ---- the cluster

function figure(status, links) {
  const isBroken = links.some(({ state }) => state === "down");
  const others = status.component.filter((sid) => sid !== status.sid);
  const reaches = others.length ? `${status.sid} reaches ${others.join(", ")}.` : `${status.sid} reaches no other node.`;
  return h("figure", {}, picture(status, links), h("figcaption", {}, reaches, isBroken ? " Dashed with a cross: no link." : " Numbers: round trips."));
}

function ownFacts(status, nowMs) {
  const isEnough = status.copies_reachable >= status.copies;
  return facts([
    ["Root", status.root ?? UNKNOWN, status.root === status.sid ? "this node" : null],
    ["Term", count(status.term)],
    ["Masters", `${count(status.mastered)} of ${counted(status.mailboxes, "mailbox", "mailboxes")}`],
    ["Copies", badge(isEnough ? "good" : "warn", `${status.copies_reachable} can be made, ${status.copies} wanted`), "nodes that can store a change now"],
    ["Up for", span(nowMs - status.started_ms), `since ${clockTime(status.started_ms)}`],
    ["State", h("code", { title: status.digest }, status.digest.slice(0, DIGEST_SHOWN)), "equal at nodes that show the same mail"],
  ]);
}

const LINK_COLUMNS = [
  ["Peer", ""],
  ["Link", ""],
  ["Round trip", "number"],
  ["Entries behind", "number"],
  ["Size", "number"],
  ["Seconds", "number"],
];

function linkTable(status, nowMs) {
  if (!status.links.length) return h("p", { class: "quiet" }, "This node has no peers.");
  const row = (link) => {
    const since = link.since_ms === null ? "never up" : `${link.up ? "up" : "down"} for ${span(nowMs - link.since_ms)}`;
    const cells = [
      [h("strong", {}, link.peer), h("span", { class: "note" }, link.address)],
      [badge(link.up ? "good" : "bad", since), link.up ? null : h("span", { class: "note" }, link.error ?? "not tried yet")],
      roundTrip(link.round_trip_us),
      link.lag_entries === null ? UNKNOWN : count(link.lag_entries),
      link.lag_bytes === null ? UNKNOWN : size(link.lag_bytes),
      link.lag_s === null ? UNKNOWN : link.lag_s.toFixed(1),
    ];
    return h("tr", { role: "row", "data-peer": link.peer }, cells.map((cell, at) => {
      const [label, kind] = LINK_COLUMNS[at];
      const attributes = { class: kind, "data-label": label };
      return at === 0 ? h("th", { ...attributes, role: "rowheader", scope: "row" }, cell) : h("td", { ...attributes, role: "cell" }, h("div", {}, cell));
    }));
  };
  const heads = LINK_COLUMNS.map(([label, kind]) => h("th", { role: "columnheader", scope: "col", class: kind }, label));
  return h(
    "table",
    { role: "table", class: "links" },
    h("caption", {}, "Links of this node, and what the peer has not confirmed to have on disk"),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
    h("tbody", { role: "rowgroup" }, status.links.map(row)),
  );
}

function betweenOthers(status, links) {
  const others = links.filter(({ one, other }) => one !== status.sid && other !== status.sid);
  if (!others.length) return null;
  const words = { up: ["good", "up"], down: ["bad", "down"], unknown: ["none", "not known: both are out of reach"] };
  const rows = others.map(({ one, other, state }) => h("li", {}, `${one} – ${other} `, badge(...words[state])));
  return [h("h3", {}, "Between other nodes, as they say"), h("ul", { class: "pairs" }, rows)];
}

// ---- log, disks, upkeep

function storeFacts(status, nowMs) {
  const { checkpoint } = status;
  const overdue = Object.values(status.overdue).reduce((sum, entries) => sum + entries, 0);
  const made = checkpoint.made_ms === null ? "none yet" : `${span(nowMs - checkpoint.made_ms)} ago`;
  const waits = checkpoint.waits_for.length ? `waits for ${checkpoint.waits_for.join(", ")}` : "in force";
  const rows = facts([
    ["Log", counted(status.log_entries, "entry", "entries"), `${size(checkpoint.log_bytes)} of ${size(status.log_max_size_bytes)}`],
    ["Waiting", status.waiting_entries ? badge("warn", counted(status.waiting_entries, "entry", "entries")) : "none", "in the log, not shown yet"],
    ["Overdue", overdue ? badge("bad", counted(overdue, "entry", "entries")) : "none"],
    ["Checkpoints", made, checkpoint.made_ms === null ? null : waits],
    ["Expunged, kept", counted(status.expunged_messages, "message"), size(status.expunged_bytes)],
    status.attachments === null ? null : ["Attachments", count(status.attachments), size(status.attachments_bytes)],
  ]);
  return [rows, status.disks.map(disk)];
}

function disk(room) {
  const used = room.all_bytes - room.free_bytes;
  const words = `${size(room.free_bytes)} free of ${size(room.all_bytes)}`;
  return h(
    "div",
    { class: `gauge ${room.is_short ? "short" : ""}` },
    h("p", {}, h("span", { class: "path" }, `Disk of ${room.directory}`), room.is_short ? badge("warn", words) : h("span", {}, words)),
    h("progress", { value: Math.round((1000 * used) / room.all_bytes), max: 1000, "aria-label": `Used of the disk of ${room.directory}` }),
  );
}

const TASK_STATES = { running: ["busy", "running"], done: ["good", "done"], cancelled: ["none", "cancelled"], failed: ["bad", "failed"] };

function taskPart(task, nowMs) {
  if (task === null) return h("p", { class: "quiet" }, "No task has run since the node started.");
  const isRunning = task.state === "running";
  const when = isRunning ? `for ${span(nowMs - task.started_ms)}` : `${span(nowMs - task.ended_ms)} ago`;
  const far = task.total ? { value: task.done, max: task.total } : {};
  return h(
    "div",
    { class: "gauge" },
    h("p", {}, h("strong", {}, task.task), h("span", {}, badge(...TASK_STATES[task.state]), ` ${when}`)),
    isRunning ? h("progress", { ...far, "aria-label": `Progress of the ${task.task}` }) : null,
    h("p", { class: "note" }, task.error ?? (isRunning ? `${count(task.done)} of ${task.total ? count(task.total) : "an unknown number"}` : task.summary)),
  );
}

function certificates(status, nowMs) {
  if (!status.certificates.length) return h("p", { class: "quiet" }, "This node uses no certificates.");
  const row = (certificate) => {
    const days = daysLeft(certificate, nowMs);
    const kind = days < 0 ? "bad" : days < CERTIFICATE_DAYS ? "warn" : "good";
    return [certificate.name || certificate.file, badge(kind, days < 0 ? "expired" : `${counted(days, "day")} left`), certificate.file];
  };
  return [h("h3", {}, "Certificates"), h("div", { class: "certificates" }, facts(status.certificates.map(row)))];
}

function daysLeft(certificate, nowMs) {
  return Math.floor((certificate.expires_ms - nowMs) / DAY_MS);
}
