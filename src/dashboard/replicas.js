// Replicas: the living first, and those that are gone for a while after.

import { get } from "./api.js";
import { badge, command, empty, errorBox, fill, h, rest } from "./dom.js";
import { number, span, time } from "./format.js";
import { on } from "./live.js";
import { table } from "./table.js";

export const title = "Replicas";

export function render(main, params, page) {
  const problem = h("div");
  const lines = table({
    label: "Replicas",
    key: (one) => one.dispatcher,
    columns: [
      { title: "Replica", cell: (one) => [one.name, one.answers ? h("span", { class: "soft" }, " (answers here)") : null] },
      { title: "Identity", number: true, cell: (one) => one.dispatcher },
      { title: "State", cell: (one) => [badge(one.state), one.held_back ? badge("held", "held back by a quota") : null] },
      { title: "Release", cell: (one) => one.version },
      { title: "Workers", number: true, cell: (one) => number(one.workers) },
      { title: "Slots", number: true, cell: (one) => `${number(one.busy)} of ${number(one.slots)}` },
      { title: "Has", number: true, cell: (one) => `${number(one.claimed)}${one.claimed >= 10000 ? "+" : ""}` },
      { title: "Last beat", number: true, cell: (one) => (one.dead_at ? "" : `${span(one.silent_ms)} ago`) },
      { title: "Since", cell: (one) => time(one.since) },
      { title: "Gone", cell: (one) => time(one.dead_at) },
    ],
    empty: () => empty("No replica has registered.", ["This one has not either, so its database does not answer or is not migrated: ", command("fencepost migrate"), ", then ", command("fencepost doctor")]),
  });

  async function load() {
    try {
      const { replicas, more } = await get("replicas", {}, page.signal);
      fill(problem, rest(more));
      lines.update(replicas);
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  fill(main, h("h1", null, title), h("p", { class: "soft" }, "Every start of a replica has an identity of its own. One that is dead shows its successors took over; its row is forgotten after an hour, once it owns nothing."), problem, lines.element);
  page.ends(on("replica", load));
  page.every(3000, load);
  return load();
}
