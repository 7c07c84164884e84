// The picture of the cluster: nodes on a circle, links as lines. A broken one is dashed, and has a cross.

import { s } from "./build.js";
import { roundTrip } from "./words.js";

const WIDTH = 480;
const NODE_HEIGHT = 46;
const LETTER = 9; // width of a letter of a node's name, about
const NAME_MAX = 12; // letters of a name that are shown; the whole name is in the title
const LABELLED_MAX = 6; // nodes among which round trips can be told apart

/** Links as `{one, other, state, label}`; `state` is `up`, `down`, or `unknown` between nodes that nobody hears. */
export function linksOf(status, seen) {
  const reached = new Set(status.component);
  const links = new Map();
  const key = (one, other) => [one, other].sort().join(" ");
  for (const link of status.links) {
    const label = link.up ? roundTrip(link.round_trip_us) : link.since_ms === null ? "never up" : "down";
    const state = link.up ? "up" : "down";
    links.set(key(status.sid, link.peer), { one: status.sid, other: link.peer, state, label });
  }
  for (const [one, others] of Object.entries(status.edges)) {
    for (const other of others) {
      if (links.has(key(one, other))) continue;
      const state = reached.has(one) && reached.has(other) ? "up" : "unknown";
      links.set(key(one, other), { one, other, state, label: state === "up" ? "" : "not known" });
      if (state === "up") seen.add(key(one, other));
    }
  }
  for (const pair of seen) {
    const [one, other] = pair.split(" ");
    if (!links.has(pair)) links.set(pair, { one, other, state: "down", label: "down" });
  }
  return [...links.values()];
}

/** Return the picture of these links as this node knows them. */
export function picture(status, links) {
  const others = new Set(links.flatMap(({ one, other }) => [one, other]).concat(status.component));
  others.delete(status.sid);
  const sids = [status.sid, ...[...others].sort()];
  const height = sids.length === 1 ? 110 : sids.length === 2 ? 140 : sids.length <= LABELLED_MAX ? 320 : 480;
  const places = new Map(sids.map((sid, at) => [sid, place(at, sids.length, height)]));
  const down = links.filter(({ state }) => state === "down").map(({ one, other }) => `${one} and ${other}`);
  const what = `${sids.length === 1 ? "One node" : `${sids.length} nodes`}: ${sids.join(", ")}. `;
  const hasLabels = sids.length <= LABELLED_MAX;
  // What is drawn last is on top.
  const drawn = [...links].sort((one, other) => (one.state === "down") - (other.state === "down"))
    .map((link) => (hasLabels || link.state === "down" ? link : { ...link, label: "" }));
  const broken = down.length ? `No link between ${down.join("; ")}.` : "No link is down.";
  return s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": what + broken, class: "picture" },
    drawn.map((link) => line(link, places)),
    drawn.map((link) => middle(link, places)),
    sids.map((sid) => node(sid, status, places.get(sid))),
  );
}

function place(at, total, height) {
  if (total === 1) return [WIDTH / 2, height / 2];
  if (total === 2) return [at === 0 ? 80 : WIDTH - 80, height / 2];
  const angle = (2 * Math.PI * at) / total - Math.PI / 2;
  const [across, down] = [WIDTH / 2 - 75, height / 2 - 32];
  // A triangle's lowest corners are above the circle's lowest point.
  return [WIDTH / 2 + across * Math.cos(angle), height / 2 + down * Math.sin(angle) * (total === 3 && at ? 1.9 : 1)];
}

function line({ one, other, state }, places) {
  const [[x1, y1], [x2, y2]] = [places.get(one), places.get(other)];
  return s("line", { x1, y1, x2, y2, class: `edge ${state}` });
}

function middle({ one, other, state, label }, places) {
  const [[x1, y1], [x2, y2]] = [places.get(one), places.get(other)];
  // Links of this node begin at one place, so their labels are beyond the middle.
  const far = places.size > 2 ? 0.55 : 0.5;
  const [x, y] = [x1 + (x2 - x1) * far, y1 + (y2 - y1) * far];
  const width = label.length * 7.4 + 14;
  const text = label
    ? [
        s("rect", { x: x - width / 2, y: y + (state === "down" ? 14 : -11), width, height: 22, rx: 11, class: "label-back" }),
        s("text", { x, y: y + (state === "down" ? 30 : 4.5), class: `label ${state}` }, label),
      ]
    : null;
  const cross =
    state === "down"
      ? [
          s("circle", { cx: x, cy: y, r: 12, class: "cross-back" }),
          s("path", { d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10`, class: "cross" }),
        ]
      : null;
  return s("g", {}, s("title", {}, `${one} – ${other}: ${state}`), text, cross);
}

function node(sid, status, [x, y]) {
  const isOwn = sid === status.sid;
  const isReached = status.component.includes(sid);
  const shown = sid.length > NAME_MAX ? `${sid.slice(0, NAME_MAX - 1)}…` : sid;
  const roles = [isOwn ? "this node" : null, sid === status.root ? "root" : null, isReached ? null : "out of reach"];
  const role = roles.filter(Boolean).join(", ");
  const width = Math.max(80, Math.max(shown.length * LETTER, role.length * 6.6) + 28);
  return s(
    "g",
    { class: `node ${isOwn ? "own" : isReached ? "reached" : "lost"}` },
    s("title", {}, role ? `${sid}: ${role}` : sid),
    s("rect", { x: x - width / 2, y: y - NODE_HEIGHT / 2, width, height: NODE_HEIGHT, rx: 12 }),
    s("text", { x, y: role ? y - 2 : y + 5.5, class: "sid" }, shown),
    role ? s("text", { x, y: y + 14, class: "role" }, role) : null,
  );
}
