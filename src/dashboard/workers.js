// Workers with their slots and health, and what operators ordered for them.

import { get, post, segment } from "./api.js";
import { badge, button, command, confirm, empty, errorBox, fill, h, rest, s, toast } from "./dom.js";
import { number, time } from "./format.js";
import { on } from "./live.js";
import { table } from "./table.js";

export const title = "Workers";

export function render(main, params, page) {
  let workers = [];
  const problem = h("div");
  const sums = h("p", { class: "lead" });
  const filter = h("input", { type: "search", "data-filter": "", placeholder: "identity, queue, node or replica", oninput: () => show() });
  const lines = table({
    label: "Workers",
    key: (one) => one.worker_id ?? one.identity,
    columns: [
      { title: "Worker", cell: (one) => one.identity },
      { title: "State", cell: (one) => [badge(one.state), one.stuck ? badge("stuck", `${one.stuck} stuck`) : null] },
      { title: "Slots", cell: (one) => (one.worker_id ? slots(one) : "") },
      { title: "Queue", cell: (one) => one.task_queue ?? "" },
      { title: "Node", cell: (one) => one.node ?? "" },
      { title: "Replica", cell: (one) => one.replica ?? "" },
      { title: "Door", cell: (one) => one.transport ?? "" },
      { title: "Build", cell: (one) => one.build_id ?? "" },
      { title: "Since", cell: (one) => time(one.since) },
      { title: "Order", cell: (one) => (one.order ? h("span", { title: one.order.reason }, `${one.order.action}${one.order.by ? ` by ${one.order.by}` : ""}`) : "") },
      { title: "", cell: (one) => h("span", { class: "actions" }, one.order ? button("Uncordon", () => order(one, "uncordon")) : [button("Cordon", () => ask(one, "cordon")), button("Drain", () => ask(one, "drain"))]) },
    ],
    empty: () =>
      workers.length
        ? empty("No worker matches.", "Clear the filter to see all.")
        : empty("No worker is connected.", ["Start one: ", command(`fencepost worker --connect URL --queue emails --type welcome --exec 'cat'`), ", with the address of a replica's gRPC port as URL."]),
  });

  function ask(one, action) {
    const reason = h("input", { name: "reason", maxlength: 200 });
    confirm({
      title: `${action === "drain" ? "Drain" : "Cordon"} ${one.identity}?`,
      body: [h("p", null, action === "drain" ? "It finishes what it has, gets nothing new, and is told to leave." : "It finishes what it has and gets nothing new until it is uncordoned. This holds over its reconnects."), h("label", null, "Why ", reason)],
      yes: action === "drain" ? "Drain it" : "Cordon it",
      act: () => order(one, action, reason.value),
    });
  }

  async function order(one, action, reason = "") {
    try {
      await post(`workers/${segment(one.identity)}/${action}`, { reason, by: "dashboard" });
    } catch (error) {
      fill(problem, errorBox(error));
      return;
    }
    toast(`${one.identity}: ${action} is ordered; its replica takes it up with its next beat.`);
    await load();
  }

  function show() {
    const wanted = filter.value.trim().toLowerCase();
    const text = (one) => [one.identity, one.task_queue, one.node, one.replica].join(" ").toLowerCase();
    lines.update(workers.filter((one) => text(one).includes(wanted)));
    const here = workers.filter((one) => one.worker_id);
    const sum = (name) => here.reduce((total, one) => total + one[name], 0);
    fill(sums, here.length ? `${number(here.length)} connected, ${number(sum("busy"))} of ${number(sum("slots"))} slots busy${sum("stuck") ? `, ${number(sum("stuck"))} stuck` : ""}.` : "");
  }

  async function load() {
    try {
      const found = await get("workers", {}, page.signal);
      workers = found.workers;
      fill(problem, rest(found.next));
      show();
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  fill(main, h("h1", null, title), problem, h("div", { class: "bar" }, h("label", null, "Filter ", filter)), sums, lines.element);
  page.ends(on("worker", load));
  page.every(5000, load);
  return load();
}

/** Slots as a bar: busy ones, of these stuck ones, and free ones. */
function slots(one) {
  const part = (count) => (one.slots ? (100 * count) / one.slots : 0);
  const words = `${one.busy} of ${one.slots} busy${one.stuck ? `, ${one.stuck} stuck` : ""}`;
  return h(
    "span",
    { class: "slots" },
    s("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": words }, s("rect", { class: "free", width: 100, height: 8 }), s("rect", { class: "taken", width: part(one.busy), height: 8 }), s("rect", { class: "jammed", width: part(one.stuck), height: 8 })),
    ` ${one.busy}/${one.slots}`,
  );
}
