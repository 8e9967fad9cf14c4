// Addresses with due tasks that nobody serves.

import { get, query } from "./api.js";
import { command, empty, errorBox, fill, h, rest } from "./dom.js";
import { count, span, time, words } from "./format.js";
import { on } from "./live.js";
import { table } from "./table.js";

export const title = "Unserved";

export function render(main, params, page) {
  const problem = h("div");
  const lines = table({
    label: "Unserved addresses",
    key: (one) => JSON.stringify([one.namespace, one.task_queue, one.task_type, one.node]),
    open: (one) => `#/tasks${query({ namespace: one.namespace, task_queue: one.task_queue, task_type: one.task_type, state: "ready" })}`,
    columns: [
      { title: "Namespace", cell: (one) => one.namespace },
      { title: "Queue", cell: (one) => h("a", { href: `#/tasks${query({ namespace: one.namespace, task_queue: one.task_queue, task_type: one.task_type, state: "ready" })}` }, one.task_queue) },
      { title: "Type", cell: (one) => one.task_type },
      { title: "Node", cell: (one) => one.node ?? "" },
      { title: "Node last seen", cell: (one) => (one.node_seen === undefined ? "" : one.node_seen === null ? "never" : time(one.node_seen)) },
      { title: "Waiting", number: true, cell: (one) => count(one.waiting) },
      { title: "Oldest", number: true, cell: (one) => span(one.oldest_ms) },
      { title: "Since", cell: (one) => (one.since ? time(one.since) : "not judged yet") },
      { title: "Why", cell: (one) => [h("b", null, words(one.reason)), h("div", { class: "soft" }, one.detail)] },
    ],
    empty: () => empty("Everything with due tasks is served.", ["What nobody serves would show here with the reason. A worker says what it serves when it starts: ", command("fencepost worker --connect URL --queue emails --type welcome --exec 'cat'")]),
  });

  async function load() {
    try {
      const { unserved, next } = await get("queues/unserved", {}, page.signal);
      fill(problem, rest(next));
      lines.update(unserved);
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  fill(main, h("h1", null, title), problem, lines.element);
  page.ends(on("unserved", load), on("worker", load));
  page.every(5000, load);
  return load();
}
