// Elements made in code. Text goes in as text nodes only: nothing that a task, worker or operator named can become markup.

const SVG = "http://www.w3.org/2000/svg";

function put(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function h(tag, props, ...children) {
  return put(document.createElement(tag), props, children);
}

export function s(tag, props, ...children) {
  return put(document.createElementNS(SVG, tag), props, children);
}

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** What a list without lines says: that there is nothing, and what to do next. */
export function empty(title, next) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, next));
}

/** A refusal or failure, as the sentence of its problem. */
export function errorBox(problem) {
  const code = problem.code ? h("span", { class: "code" }, problem.code) : null;
  return h("div", { class: "error", role: "alert" }, h("span", null, problem.message), code);
}

export function command(text) {
  return h("code", { class: "command" }, text);
}

export function badge(state, text = state) {
  return h("span", { class: `badge badge-${kind(state)}` }, text);
}

function kind(state) {
  const kinds = {
    good: ["done", "up", "ready", "redriven"],
    busy: ["running"],
    wait: ["scheduled", "held", "opening", "draining", "cordoned", "paused", "stopped", "unfinished"],
    bad: ["failed", "dead", "silent", "unreachable", "halted", "lost", "gone", "stuck"],
  };
  return Object.keys(kinds).find((name) => kinds[name].includes(state)) ?? "plain";
}

export function panel(title, ...children) {
  return h("section", { class: "panel" }, title ? h("h2", null, title) : null, children);
}

/** Pairs of a name and a value; those without a value are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

export function button(text, onclick, props) {
  return h("button", { type: "button", onclick, ...props }, text);
}

/** What stands above a list that has more than one page of lines. */
export function rest(next) {
  return next ? h("p", { class: "soft" }, "Only the first 1,000 are shown; the command line and the API list them all.") : null;
}

export function toast(text) {
  const place = document.getElementById("toasts");
  const line = h("p", { class: "toast" }, text);
  place.append(line);
  setTimeout(() => line.remove(), 6000);
}

/** Asks before something is done. `body` may be nodes; `act` runs on yes, and its error is shown in the dialog. */
export function confirm({ title, body, yes, act, danger }) {
  const problem = h("div");
  const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, yes);
  const no = button("Leave it", () => dialog.close());
  const form = h("form", {
    method: "dialog",
    onsubmit: async (event) => {
      event.preventDefault();
      go.disabled = true;
      try {
        await act();
        dialog.close();
      } catch (error) {
        fill(problem, errorBox(error));
        go.disabled = false;
      }
    },
  }, h("h2", null, title), body, problem, h("div", { class: "actions" }, go, no));
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();
  no.focus();
  return dialog;
}
