// Numbers and times in words, as `replicator status` has them.

export const UNKNOWN = "–";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** `512 B`, `1.5 MiB`. */
export function size(bytes) {
  let amount = bytes;
  let unit = 0;
  while (amount >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${amount >= 100 || unit === 0 ? Math.round(amount) : Number(amount.toPrecision(3))} ${UNITS[unit]}`;
}

/** `12,345`. */
export function count(number) {
  return number.toLocaleString("en");
}

/** `1 entry`, `3 entries`. */
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** The two largest units of a time in milliseconds: `1 d 2 h`, `5 min 3 s`. */
export function span(ms) {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([amount, unit]) => `${amount} ${unit}`).join(" ");
}

/** `0.25 ms`. */
export function roundTrip(us) {
  return us === null ? UNKNOWN : `${Number((us / 1000).toPrecision(3))} ms`;
}

/** A time of the node's clock as the reader's local time. */
export function clockTime(ms) {
  return new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}
