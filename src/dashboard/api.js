// The JSON API of the replica that served the page.

/** An answer that is none, with a sentence for people. */
export class Problem extends Error {
  constructor(message, { status = 0, code = "", field = "", slug = "" } = {}) {
    super(message);
    Object.assign(this, { status, code, field, slug });
  }
}

async function ask(method, path, body, signal) {
  const request = { method, signal, headers: { accept: "application/json" }, cache: "no-store" };
  if (body !== undefined) {
    request.headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("This replica does not answer. It may be restarting, or the network is away; the page goes on when it is back.");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text === "" ? null : JSON.parse(text);
  } catch {
    throw new Problem(`${path} answered something that is no JSON (status ${answer.status}).`, { status: answer.status });
  }
  if (answer.ok) return value;
  throw new Problem(value?.detail ?? `${path} was refused (status ${answer.status}).`, { ...value, status: answer.status });
}

/** Parameters that are empty are left out. */
export function query(params) {
  const given = Object.entries(params ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return text === "" ? "" : `?${text}`;
}

export function get(path, params, signal) {
  return ask("GET", `v1/${path}${query(params)}`, undefined, signal);
}

export function post(path, body = {}) {
  return ask("POST", `v1/${path}`, body);
}

export function segment(text) {
  return encodeURIComponent(text);
}
