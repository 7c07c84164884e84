// A history drawn as lanes: dots are entries, lines lead down to what they stand on. Forks and merges show as such.

import { s } from "./build.js";

const LANE = 18; // width of a lane
const DOT = 5;
const LANES_MAX = 10; // lanes that are told apart: more lie on each other

/** Return the entry of each drawing and its drawing; `history` has the newest entry first. */
export function drawn(history) {
  const rows = rowsOf(history);
  const lanes = Math.min(LANES_MAX, Math.max(1, ...rows.map(({ width }) => width)));
  return rows.map((row) => [row.entry, drawing(row, lanes * LANE)]);
}

/** Return where each entry's dot is, and which lines its row has: `[lane above, height, lane below, height, kind]`. */
function rowsOf(history) {
  const known = new Set(history.map(({ entry }) => entry));
  let lanes = []; // the entry to which each lane leads down; null: the lane is free
  return history.map((one) => {
    const place = lanes.indexOf(one.entry);
    const at = place < 0 ? freeLane(lanes) : place;
    const lines = lanes.flatMap((name, lane) => {
      if (name === null) return [];
      return [name === one.entry ? [lane, 0, at, 50, ""] : [lane, 0, lane, 100, ""]];
    });
    lanes = lanes.map((name) => (name === one.entry ? null : name));
    const taken = [...lanes]; // in this row: a line that ends with it takes a place, too
    const lead = (to, name) => {
      taken[to] = name;
      if (known.has(name)) lanes[to] = name;
      lines.push([at, 50, to, 100, known.has(name) ? "" : "absent"]);
    };
    const [first, ...others] = new Set(one.predecessors);
    if (first !== undefined) lead(at, first);
    for (const name of others) lead(lanes.includes(name) ? lanes.indexOf(name) : freeLane(taken), name);
    const width = Math.max(lanes.length, taken.length, at + 1);
    lanes = Array.from(lanes, (name) => name ?? null);
    while (lanes.length && lanes.at(-1) === null) lanes.pop();
    return { entry: one, at, lines, width };
  });
}

function freeLane(lanes) {
  const free = Array.from(lanes).findIndex((name) => name === null || name === undefined);
  return free < 0 ? lanes.length : free;
}

/** Heights are shares of the row's, which is as high as its words. */
function drawing({ entry, at, lines }, width) {
  const x = (lane) => (Math.min(lane, LANES_MAX - 1) + 0.5) * LANE;
  const line = ([from, y1, to, y2, kind]) => s("line", { x1: x(from), y1: `${y1}%`, x2: x(to), y2: `${y2}%`, class: kind || null });
  return [
    s("svg", { class: "room", width, height: 1 }),
    s("svg", { class: "lanes", width, height: "100%" }, lines.map(line), s("circle", { cx: x(at), cy: "50%", r: DOT, class: entry.state })),
  ];
}
