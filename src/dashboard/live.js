// One stream of events for all pages.

const KEPT = 300;
const NAMES = ["history", "queues", "replica", "worker", "pause", "dead_letters", "unserved", "database", "lagged"];

const listeners = new Map();
let source = null;
let retry = null;
let state = "connecting";

/** What was last said of the queues, looks that are past ({ at, ...totals }), and what happened ({ at, name, data }), the newest first. */
export const seen = { queues: null, past: [], happened: [] };

/** Calls back at each event of this name; answers what ends that. */
export function on(name, call) {
  const calls = listeners.get(name) ?? new Set();
  calls.add(call);
  listeners.set(name, calls);
  return () => calls.delete(call);
}

function tell(name, data) {
  for (const call of listeners.get(name) ?? []) call(data);
}

function turn(next) {
  if (state === next) return;
  state = next;
  tell("state", state);
}

export function connection() {
  return state;
}

function take(name, data) {
  const at = Date.now();
  if (name === "history") {
    seen.past = data.past.map((one) => ({ ...one, at: at - one.age_ms }));
  } else if (name === "queues") {
    seen.queues = data;
    seen.past.push({ ...data.totals, at });
    if (seen.past.length > KEPT) seen.past.shift();
  } else {
    seen.happened.unshift({ at, name, data });
    seen.happened.length = Math.min(seen.happened.length, 100);
    tell("happened", seen.happened);
  }
  tell(name, data);
}

function again(after) {
  source?.close();
  source = null;
  clearTimeout(retry);
  retry = setTimeout(connect, after);
}

export function connect() {
  source = new EventSource("v1/events");
  source.addEventListener("open", () => turn("live"));
  for (const name of NAMES) {
    source.addEventListener(name, (event) => take(name, JSON.parse(event.data)));
  }
  // The replica drains: another one may stand behind the same address.
  source.addEventListener("bye", () => {
    turn("away");
    again(1000);
  });
  source.addEventListener("error", () => {
    turn("away");
    if (source?.readyState === EventSource.CLOSED) again(5000);
  });
}
