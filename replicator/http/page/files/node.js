// The node's API. The token stays in the tab: other tabs and later visits do not have it.

const KEPT = "token";
const SILENCE_MS = 20_000; // four beats of the node

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const token = {
  get: () => storage().getItem(KEPT),
  set: (secret) => storage().setItem(KEPT, secret),
  forget: () => storage().removeItem(KEPT),
};

const memory = new Map();

/** Return the tab's storage; a browser that is set to keep nothing throws, and then the token ends with the page. */
function storage() {
  try {
    return sessionStorage;
  } catch {
    return { getItem: (key) => memory.get(key) ?? null, setItem: (key, value) => memory.set(key, value), removeItem: (key) => memory.delete(key) };
  }
}

async function ask(path, signal) {
  const secret = token.get();
  // A header takes neither line ends nor letters beyond Latin-1, and no token has them.
  if (secret !== null && !/^[\x21-\x7e]+$/.test(secret)) throw new Refused(401, "this is no token: a token has no spaces");
  const headers = secret === null ? {} : { Authorization: `Bearer ${secret}` };
  const answer = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
  if (!answer.ok) throw new Refused(answer.status, await detailOf(answer));
  return answer;
}

async function detailOf(answer) {
  try {
    return (await answer.json()).detail ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}

/** Return a user's mailboxes. */
export async function mailboxes(user) {
  return (await ask(`/api/v1/mailboxes?user=${encodeURIComponent(user)}`)).json();
}

/** Return what the node knows of a mailbox, and of what other nodes show of it: a `MailboxStory`. */
export async function mailboxStory(user, name) {
  return (await ask(folderPath(user, name))).json();
}

/** Return the last entries of a mailbox's history: a `LoggedHistory`. */
export async function mailboxHistory(user, name, last) {
  return (await ask(`${folderPath(user, name)}/log?last=${last}`)).json();
}

function folderPath(user, name) {
  return `/api/v1/users/${encodeURIComponent(user)}/folders/${encodeURIComponent(name)}`;
}

/** Call `tell(name, document)` for each event until the stream ends. Throws if it breaks or is silent for too long. */
export async function events(tell, signal) {
  const silence = new AbortController();
  const stop = () => silence.abort();
  signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, SILENCE_MS);
  try {
    const { body } = await ask("/api/v1/events", silence.signal);
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      const whole = (rest + value).split("\n\n");
      rest = whole.pop();
      for (const event of whole) {
        const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(event);
        tell(name, JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  }
}
