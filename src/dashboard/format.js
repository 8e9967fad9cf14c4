// Numbers and times for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function number(value) {
  return value === null || value === undefined ? "" : whole.format(value);
}

/** A count that may be an estimate. */
export function count({ tasks, estimated }) {
  return (estimated ? "about " : "") + number(tasks);
}

export function rate(perSecond) {
  if (!perSecond) return "0/s";
  return `${perSecond < 10 ? tenths.format(perSecond) : whole.format(perSecond)}/s`;
}

export function span(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${whole.format(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${tenths.format(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${whole.format(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "";
  if (size < 1024) return `${size} B`;
  if (size < 1048576) return `${tenths.format(size / 1024)} KiB`;
  return `${tenths.format(size / 1048576)} MiB`;
}

/** The local time, with the date where it is another day. */
export function time(iso) {
  if (!iso) return "";
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return iso;
  const clock = at.toLocaleTimeString("en-GB");
  const day = at.toLocaleDateString("en-CA");
  return day === new Date().toLocaleDateString("en-CA") ? clock : `${day} ${clock}`;
}

/** Milliseconds between two times. */
export function between(from, to) {
  return from && to ? Math.max(0, new Date(to) - new Date(from)) : null;
}

/** Words in place of a name of the API. */
export function words(name) {
  return String(name ?? "").replaceAll("_", " ");
}

export function address({ namespace, task_queue, task_type, node }) {
  const parts = [["namespace", namespace], ["queue", task_queue], ["type", task_type], ["node", node]];
  const named = parts.filter(([, value]) => value).map(([what, value]) => `${what} ${value}`);
  return named.length ? named.join(", ") : "everything";
}
