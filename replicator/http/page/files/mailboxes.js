// A user's folders. All that is shown of them was chosen by somebody who sends mail.

import { h, show } from "./build.js";
import { inspector } from "./inspector.js";
import { Refused, mailboxes } from "./node.js";
import { UNKNOWN, count, counted, size } from "./words.js";

const SHOWN_MAX = 500; // more rows make the browser slow

const form = document.getElementById("look-up");
const problem = document.getElementById("user-problem");
const folders = document.getElementById("folders");

let asked = 0; // number of the last question: answers to those before it are not shown any more

/** Answer the form. `refused` is called with the error if the token does not hold. */
export function lookUp(refused) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const user = form.querySelector("input").value.trim();
    const number = (asked += 1);
    show(problem);
    try {
      const found = await mailboxes(user);
      if (number === asked) folders.replaceChildren(...list(user, found, refused));
    } catch (error) {
      if (number !== asked) return;
      folders.replaceChildren();
      if (error instanceof Refused && error.status === 401) refused(error);
      else show(problem, error instanceof Refused ? error.message : "The node does not answer.");
    }
  });
}

/** Show nothing of anybody. */
export function forgetFolders() {
  asked += 1;
  form.reset();
  show(problem);
  folders.replaceChildren();
}

function list(user, found, refused) {
  const messages = found.reduce((sum, mailbox) => sum + mailbox.messages, 0);
  const left = found.length > SHOWN_MAX ? ` The first ${count(SHOWN_MAX)} are shown.` : "";
  const said = `${user}: ${counted(found.length, "folder")}, ${counted(messages, "message")}.${left}`;
  const heads = ["Folder", "Messages", "Unseen", "Size", "Master"].map((name) => h("span", {}, name));
  return [
    h("p", { class: "quiet", role: "status" }, said),
    found.length ? h("div", { class: "folder heads", "aria-hidden": "true" }, heads) : null,
    ...found.sort(inboxFirst).slice(0, SHOWN_MAX).map((mailbox) => folder(mailbox, refused)),
  ].filter(Boolean);
}

function inboxFirst(one, other) {
  return (other.name === "INBOX") - (one.name === "INBOX");
}

function folder(mailbox, refused) {
  const cell = (label, value) => h("span", { "data-label": label }, value);
  const details = h(
    "details",
    {},
    h(
      "summary",
      { class: "folder" },
      h("span", { class: "folder-name" }, mailbox.name),
      cell("messages", count(mailbox.messages)),
      cell("unseen", count(mailbox.unseen)),
      cell("size", size(mailbox.size_bytes)),
      cell("master", mailbox.master ?? UNKNOWN),
    ),
    numbers(mailbox),
  );
  details.append(inspector(details, mailbox, refused));
  return details;
}

/** Return the numbers and names of one mailbox. */
function numbers(mailbox) {
  const rows = [
    ["UIDVALIDITY", String(mailbox.uidvalidity)],
    ["UIDNEXT", String(mailbox.uidnext)],
    ["HIGHESTMODSEQ", String(mailbox.highestmodseq)],
    ["Last entry", mailbox.head ?? "none"],
    ["Mailbox id", mailbox.mailbox_id],
    ["Digest", mailbox.digest],
  ];
  return h("dl", { class: "numbers" }, rows.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, h("code", {}, value)))));
}
