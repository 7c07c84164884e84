// The page: asks for a token if the node does, and keeps what is shown up to date.

import { badge, show } from "./build.js";
import { forgetFolders, lookUp } from "./mailboxes.js";
import { Refused, events, token } from "./node.js";
import { showOverview } from "./overview.js";
import { span } from "./words.js";

const AGAIN_MS = 2_000;
const TICK_MS = 1_000;
const OLD_MS = 12_000; // two beats of the node, and some

const byId = (id) => document.getElementById(id);
const form = byId("log-in");

let overview = null;
let heardAt = 0; // by the browser's clock that never goes back
let takenAt = 0; // when the overview came for the first time: a node may tell an old one again
let trouble = null; // why there is nothing new
let listening = null; // AbortController of the stream

// ---- the stream

async function listen() {
  listening?.abort();
  const control = new AbortController();
  listening = control;
  while (!control.signal.aborted) {
    try {
      await events(hear, control.signal);
    } catch (error) {
      if (control.signal.aborted) return;
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
        askForToken(error);
        return;
      }
      trouble = error instanceof Refused ? error.message : "the node does not answer";
    }
    tick();
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

function hear(name, document) {
  if (name === "problem") {
    trouble = document.detail;
  } else {
    announce(overview, document);
    if (overview?.status.clock_ms !== document.status.clock_ms) takenAt = performance.now();
    overview = document;
    heardAt = performance.now();
    trouble = null;
    form.hidden = true;
    byId("node").hidden = false;
    byId("log-out").hidden = token.get() === null;
  }
  tick();
}

/** Say in words what has changed, for those who do not look. */
function announce(before, after) {
  if (before === null) return;
  const links = new Map(before.status.links.map((link) => [link.peer, link.up]));
  const news = after.status.links
    .filter((link) => links.has(link.peer) && links.get(link.peer) !== link.up)
    .map((link) => `The link to ${link.peer} is ${link.up ? "up" : "down"}.`);
  if (before.reasons.length === 0 && after.reasons.length > 0) news.push("The node is not healthy.");
  if (before.reasons.length > 0 && after.reasons.length === 0) news.push("The node is healthy.");
  if (news.length) show(byId("news"), news.join(" "));
}

function tick() {
  const age = performance.now() - heardAt;
  const isOld = trouble !== null || (overview !== null && age > OLD_MS);
  // Of a node that is silent, nothing grows older.
  const now = isOld ? heardAt : performance.now();
  if (overview !== null) showOverview(overview, overview.status.clock_ms + now - takenAt, isOld);
  if (overview === null) show(byId("line"), trouble === null ? null : badge("bad", trouble));
  else if (isOld) show(byId("line"), badge("bad", `${trouble ?? "the node is silent"}; this is ${span(age)} old`));
  else show(byId("line"), badge("good", "live"));
  document.body.classList.toggle("old", overview !== null && isOld);
}

// ---- log-in

function askForToken(error) {
  const given = token.get();
  token.forget();
  overview = null;
  trouble = null;
  tick();
  forgetFolders();
  for (const part of document.querySelectorAll("#node section > div")) show(part);
  byId("node").hidden = true;
  byId("log-out").hidden = true;
  form.hidden = false;
  show(byId("refusal"), given === null || error === null ? null : `Not accepted: ${error.message}.`);
  byId("token").focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  show(byId("refusal"));
  listen();
});

byId("log-out").addEventListener("click", () => {
  listening?.abort();
  askForToken(null);
});

// A page that nobody sees leaves its stream to others.
document.addEventListener("visibilitychange", () => {
  if (!form.hidden) return;
  if (document.hidden) listening?.abort();
  else listen();
});

lookUp(askForToken);
setInterval(tick, TICK_MS);
listen();
