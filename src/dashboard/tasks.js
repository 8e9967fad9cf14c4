// Tasks by filters. A page reads a bounded part of history and says how far back it looked.

import { get, query } from "./api.js";
import { badge, button, command, empty, errorBox, fill, h } from "./dom.js";
import { number, time } from "./format.js";
import { table } from "./table.js";

export const title = "Tasks";

const STATES = ["scheduled", "ready", "held", "running", "done", "failed", "cancelled"];
const TEXTS = [
  ["namespace", "Namespace", "any"],
  ["task_queue", "Queue", "any"],
  ["task_type", "Type", "any"],
  ["dispatch_key", "Dispatch key", "any"],
  ["concurrency_key", "Concurrency key", "any"],
];
const TIMES = [["enqueued_after", "Enqueued from"], ["enqueued_before", "Enqueued before"]];

/** A time of the form, which is local, for the API. */
function instant(local) {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

function local(iso) {
  const at = new Date(iso ?? "");
  return Number.isNaN(at.getTime()) ? "" : new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

export function render(main, params, page) {
  const rows = [];
  let next = null;
  const fields = new Map();
  const text = ([name, label, placeholder], first) => {
    const input = h("input", { name, placeholder, value: params.get(name) ?? "", ...(first ? { "data-filter": "" } : {}) });
    fields.set(name, () => input.value.trim());
    const note = name === "dispatch_key" ? "The task that the key names now, in the namespace, or in default where none is given" : null;
    return h("label", { title: note }, label, " ", input);
  };
  const state = h("select", { name: "state" }, h("option", { value: "" }, "any"), STATES.map((one) => h("option", { value: one, selected: params.get("state") === one }, one)));
  fields.set("state", () => state.value);
  const when = ([name, label]) => {
    const input = h("input", { name, type: "datetime-local", step: 1, value: local(params.get(name)) });
    fields.set(name, () => (input.value ? instant(input.value) : ""));
    return h("label", null, label, " ", input);
  };
  const form = h("form", {
    class: "bar",
    onsubmit: (event) => {
      event.preventDefault();
      const wanted = `#/tasks${query(Object.fromEntries([...fields].map(([name, value]) => [name, value()])))}`;
      if (location.hash === wanted) page.again();
      else location.hash = wanted;
    },
  }, TEXTS.map((one, index) => text(one, index === 0)), h("label", null, "State ", state), TIMES.map(when), h("button", { type: "submit", class: "primary" }, "Show"), h("a", { href: "#/tasks" }, "Clear"));

  const filters = Object.fromEntries([...params].filter(([, value]) => value !== ""));
  const filtered = Object.keys(filters).length > 0;
  const lines = table({
    label: "Tasks",
    key: (one) => one.task_id,
    open: (one) => `#/task/${one.task_id}`,
    columns: [
      { title: "Task", cell: (one) => h("a", { href: `#/task/${one.task_id}` }, one.task_id) },
      { title: "State", cell: (one) => badge(one.state) },
      { title: "Namespace", cell: (one) => one.namespace },
      { title: "Queue", cell: (one) => one.task_queue },
      { title: "Type", cell: (one) => [one.task_type, one.node ? h("span", { class: "soft" }, ` on ${one.node}`) : null] },
      { title: "Key", cell: (one) => one.dispatch_key ?? one.concurrency_key ?? "" },
      { title: "Failed tries", number: true, cell: (one) => number(one.attempt) },
      { title: "Enqueued", cell: (one) => time(one.enqueued_at) },
      { title: "Ended", cell: (one) => time(one.ended_at) },
      { title: "Error", cell: (one) => one.error_class ?? "" },
    ],
    empty: () => {
      if (filtered && next !== null) return empty("Nothing matches so far.", "Look further back, or narrow the time.");
      if (filtered) return empty("No task matches.", ["Change the filters, or ", h("a", { href: "#/tasks" }, "look at all tasks"), ". A dispatch key names one task of its namespace, while it is remembered."]);
      return empty("No task yet.", ["Enqueue one: ", command("fencepost enqueue --queue emails --type welcome --payload '{}'")]);
    },
  });
  const foot = h("div", { class: "bar foot" });
  const problem = h("div");

  async function load(before) {
    const further = foot.querySelector("button");
    if (further) further.disabled = true;
    try {
      const found = await get("tasks", { ...filters, before, limit: 100 }, page.signal);
      rows.push(...found.tasks);
      next = found.next;
      fill(problem);
      lines.update(rows);
      const reach = found.looked_back_to ? `Nothing younger than ${time(found.looked_back_to)} was left out` : "There was nothing to look at";
      const more = found.tasks.length >= 100 ? "Show more" : "Look further back";
      fill(
        foot,
        h("p", null, `${number(rows.length)} shown. ${reach}; this page looked at ${number(found.looked_at)} ${found.looked_at === 1 ? "task" : "tasks"}.`),
        next === null ? h("p", { class: "soft" }, "That is all.") : button(more, () => load(next)),
      );
    } catch (error) {
      if (page.signal.aborted) return;
      fill(problem, errorBox(error));
      if (further) further.disabled = false;
    }
  }

  fill(main, h("h1", null, title), form, problem, lines.element, foot);
  fill(lines.element, h("p", { class: "soft" }, "Looking…"));
  return load();
}
