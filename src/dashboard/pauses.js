// What is kept from starting, by whom and why; and how it goes on.

import { get, post } from "./api.js";
import { badge, button, confirm, empty, errorBox, fill, h, panel, toast } from "./dom.js";
import { address, time } from "./format.js";
import { on } from "./live.js";
import { table } from "./table.js";

export const title = "Pauses";

const PARTS = [["namespace", "Namespace"], ["task_queue", "Queue"], ["task_type", "Type"], ["node", "Node"]];

/** The parts of an address that are named, or that everything is meant. */
function named(one) {
  const parts = Object.fromEntries(PARTS.map(([name]) => [name, one[name]]).filter(([, value]) => value));
  return Object.keys(parts).length ? parts : { everything: true };
}

export function render(main, params, page) {
  const problem = h("div");
  const lines = table({
    label: "Pauses",
    key: address,
    columns: [
      { title: "What", cell: address },
      { title: "Since", cell: (one) => time(one.since) },
      { title: "By", cell: (one) => one.by },
      { title: "Why", cell: (one) => one.reason },
      { title: "", cell: (one) => (one.cancel_running ? badge("failed", "asks what runs to stop") : null) },
      { title: "", cell: (one) => button("Resume", () => resume(one), { "aria-label": `Resume ${address(one)}` }) },
    ],
    empty: () => empty("Nothing is paused.", "Keep something from starting with the form below, or from the list of queues."),
  });

  function resume(one) {
    confirm({
      title: `Resume ${address(one)}?`,
      body: h("p", null, "Its tasks start again at once, as far as no other pause covers them."),
      yes: "Resume it",
      act: async () => {
        await post("resume", named(one));
        toast(`Resumed: ${address(one)}.`);
        await load();
      },
    });
  }

  const inputs = PARTS.map(([name, label]) => [name, label, h("input", { name, placeholder: "any", ...(name === "namespace" ? { "data-filter": "" } : {}) })]);
  const reason = h("input", { name: "reason", maxlength: 200 });
  const stop = h("input", { type: "checkbox", name: "cancel_running" });
  const form = h("form", {
    class: "bar",
    onsubmit: (event) => {
      event.preventDefault();
      const what = named(Object.fromEntries(inputs.map(([name, , input]) => [name, input.value.trim()])));
      confirm({
        title: `Pause ${address(what)}?`,
        body: h("p", null, stop.checked ? "None of its tasks starts, and what runs is asked to stop." : "None of its tasks starts until it is resumed. What runs runs on."),
        yes: "Pause it",
        danger: what.everything || stop.checked,
        act: async () => {
          await post("pause", { ...what, reason: reason.value, by: "dashboard", cancel_running: stop.checked });
          toast(`Paused: ${address(what)}.`);
          form.reset();
          await load();
        },
      });
    },
  }, inputs.map(([, label, input]) => h("label", null, label, " ", input)), h("label", null, "Why ", reason), h("label", { class: "check" }, stop, " ask what runs to stop"), h("button", { type: "submit" }, "Pause…"));

  async function load() {
    try {
      const { pauses } = await get("pauses", {}, page.signal);
      fill(problem);
      lines.update(pauses);
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  fill(main, h("h1", null, title), problem, lines.element, panel("Pause", h("p", { class: "soft" }, "What is left empty is any. Only the very address that was paused resumes."), form));
  page.ends(on("pause", load));
  page.every(10000, load);
  return load();
}
