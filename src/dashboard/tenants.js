// Tenants: what each may have, and what it has now.

import { get, query } from "./api.js";
import { badge, command, empty, errorBox, fill, h, rest, s } from "./dom.js";
import { number } from "./format.js";
import { table } from "./table.js";

export const title = "Tenants";

export function render(main, params, page) {
  let tenants = [];
  const problem = h("div");
  const filter = h("input", { type: "search", "data-filter": "", placeholder: "namespace", oninput: () => show() });
  const lines = table({
    label: "Tenants",
    key: (one) => one.namespace,
    open: (one) => `#/tasks${query({ namespace: one.namespace })}`,
    columns: [
      { title: "Namespace", cell: (one) => h("a", { href: `#/tasks${query({ namespace: one.namespace })}` }, one.namespace) },
      { title: "Weight", number: true, cell: (one) => number(one.weight) },
      { title: "Running", number: true, cell: (one) => number(one.claimed) },
      { title: "Quota", cell: (one) => quota(one) },
      { title: "Share now", cell: (one) => share(one.share) },
      { title: "Rate", cell: (one) => (one.rate ? `${one.rate}, burst ${number(one.burst)}` : "none") },
      { title: "Placement", cell: (one) => placement(one.placement) },
      { title: "Dead letters go to", cell: (one) => one.dead_letter_webhook ?? (one.dead_letter_notify ? "NOTIFY" : "") },
      { title: "State", cell: (one) => [one.paused ? badge("paused") : null, one.throttled_until ? badge("held", "throttled") : null, one.require_declared_queues ? badge("plain", "declared queues only") : null] },
    ],
    empty: () =>
      tenants.length
        ? empty("No namespace matches.", "Clear the filter to see all.")
        : empty("No namespace yet.", ["The first task of one makes it. Weight, quota and rate are set by ", command("fencepost namespace set shop --weight 3 --max-in-flight 40 --rate 100/s")]),
  });

  function show() {
    const wanted = filter.value.trim().toLowerCase();
    lines.update(tenants.filter((one) => one.namespace.toLowerCase().includes(wanted)));
  }

  async function load() {
    try {
      const [{ namespaces, next }, { shares }] = await Promise.all([get("namespaces", {}, page.signal), get("shares", {}, page.signal)]);
      const claimed = new Map(shares.map((one) => [one.namespace, one.claimed]));
      const all = shares.reduce((sum, one) => sum + one.claimed, 0);
      tenants = namespaces.map((one) => ({ ...one, claimed: claimed.get(one.namespace) ?? 0, share: all ? (claimed.get(one.namespace) ?? 0) / all : null }));
      fill(problem, rest(next));
      show();
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  fill(main, h("h1", null, title), h("p", { class: "soft" }, "Tenants with due work share the slots by weight. A quota bounds what runs at the same time over all replicas."), problem, h("div", { class: "bar" }, h("label", null, "Filter ", filter)), lines.element);
  page.every(3000, load);
  return load();
}

function quota(one) {
  if (one.max_in_flight === null) return "none";
  const full = one.claimed >= one.max_in_flight;
  return h("span", { class: full ? "full" : null }, `${number(one.claimed)} of ${number(one.max_in_flight)}${full ? ", used up" : ""}`);
}

function share(part) {
  if (part === null) return h("span", { class: "soft" }, "nothing runs");
  const percent = Math.round(part * 100);
  return h("span", { class: "slots" }, s("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": `${percent} %` }, s("rect", { class: "free", width: 100, height: 8 }), s("rect", { class: "taken", width: percent, height: 8 })), ` ${percent} %`);
}

function placement(one) {
  if (!one || one.mode === "anywhere") return "anywhere";
  return `${one.mode} ${(one.nodes ?? []).join(", ")}`;
}
