// Queues with live rates, the charts, and what happened.

import { get, post, query } from "./api.js";
import { chart } from "./chart.js";
import { badge, button, command, confirm, empty, errorBox, fill, h, rest, panel, toast } from "./dom.js";
import { address, count, number, rate, span, time, words } from "./format.js";
import { on, seen } from "./live.js";
import { table } from "./table.js";

export const title = "Queues";

const routeKey = (one) => JSON.stringify([one.namespace, one.task_queue, one.task_type, one.node ?? null]);

export function render(main, params, page) {
  let queues = null;
  const filter = h("input", {
    type: "search", "data-filter": "", placeholder: "namespace, queue, type or node", value: params.get("filter") ?? "",
    oninput: () => show(),
  });
  const problem = h("div");
  const depth = chart({
    title: "Depth",
    show: number,
    least: 10,
    series: [
      { name: "ready", of: (point) => point.ready.tasks },
      { name: "later", of: (point) => point.later.tasks },
      { name: "running", of: (point) => point.claimed },
    ],
  });
  const rates = chart({
    title: "Rates",
    show: rate,
    least: 1,
    series: [
      { name: "enqueued", of: (point) => point.enqueued_per_s },
      { name: "done", of: (point) => point.done_per_s },
      { name: "failed", of: (point) => point.failed_per_s },
    ],
  });
  const latency = chart({
    title: "Latency",
    show: span,
    least: 100,
    series: [
      { name: "oldest due", of: (point) => point.oldest_ms ?? 0 },
      { name: "run, median", of: (point) => point.run_p50_ms },
      { name: "run, 95 %", of: (point) => point.run_p95_ms },
    ],
  });
  const lines = table({
    label: "Queues",
    key: routeKey,
    open: (one) => `#/tasks${query({ namespace: one.namespace, task_queue: one.task_queue, task_type: one.task_type })}`,
    columns: [
      { title: "Namespace", cell: (one) => one.namespace },
      { title: "Queue", cell: (one) => h("a", { href: `#/tasks${query({ namespace: one.namespace, task_queue: one.task_queue })}` }, one.task_queue) },
      { title: "Type", cell: (one) => [one.task_type, one.node ? h("span", { class: "soft" }, ` on ${one.node}`) : null] },
      { title: "Ready", number: true, cell: (one) => count(one.ready) },
      { title: "Oldest", number: true, cell: (one) => span(one.oldest_ms) },
      { title: "Later", number: true, cell: (one) => count(one.later) },
      { title: "Held", number: true, cell: (one) => held(one.held) },
      { title: "Running", number: true, cell: (one) => number(one.claimed) },
      { title: "In", number: true, cell: (one) => rate(one.enqueued_per_s) },
      { title: "Done", number: true, cell: (one) => rate(one.done_per_s) },
      { title: "Failed", number: true, cell: (one) => rate(one.failed_per_s) },
      { title: "State", cell: (one) => states(one) },
      { title: "", cell: (one) => (one.paused ? h("a", { href: "#/pauses" }, "Pauses") : button("Pause", () => pause(one), { "aria-label": `Pause ${address(one)}` })) },
    ],
    empty: () =>
      filter.value
        ? empty("No queue matches.", "Clear the filter to see all.")
        : empty("No queue yet.", ["A queue is there with its first task: ", command("fencepost enqueue --queue emails --type welcome --payload '{}'"), ", or declare it ahead: ", command("fencepost queue declare --queue emails --type welcome")]),
  });
  const happened = h("ul", { class: "happened" });

  function pause(one) {
    const reason = h("input", { name: "reason", maxlength: 200 });
    confirm({
      title: `Pause ${address(one)}?`,
      body: [h("p", null, "None of its tasks starts until somebody resumes it. What runs runs on."), h("label", null, "Why ", reason)],
      yes: "Pause it",
      act: async () => {
        await post("pause", { namespace: one.namespace, task_queue: one.task_queue, task_type: one.task_type, ...(one.node ? { node: one.node } : {}), reason: reason.value, by: "dashboard" });
        toast(`Paused: ${address(one)}.`);
        await load();
      },
    });
  }

  function show() {
    if (queues === null) return;
    const live = new Map((seen.queues?.queues ?? []).map((one) => [routeKey(one), one]));
    const whole = seen.queues !== null && !seen.queues.more;
    const idle = { ready: { tasks: 0 }, later: { tasks: 0 }, held: {}, claimed: 0, oldest_ms: null };
    const known = new Set(queues.map(routeKey));
    const fresh = [...live.entries()].filter(([key]) => !known.has(key)).map(([, one]) => one);
    const merged = [...queues, ...fresh].map((one) => {
      const now = live.get(routeKey(one));
      if (now) {
        return { ...one, ...now };
      }
      return whole ? { ...one, ...idle } : one;
    });
    const wanted = filter.value.trim().toLowerCase();
    lines.update(merged.filter((one) => routeKey(one).toLowerCase().includes(wanted)));
  }

  async function load() {
    try {
      const found = await get("queues", { count_to: 1000 }, page.signal);
      queues = found.queues;
      fill(problem, rest(found.next));
      show();
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  function draw() {
    for (const one of [depth, rates, latency]) one.update(seen.past);
    show();
  }

  function tell() {
    const shown = seen.happened.slice(0, 12);
    fill(happened, shown.length ? shown.map((one) => h("li", null, h("time", null, time(one.at)), " ", sentence(one))) : h("li", { class: "soft" }, "Nothing since this page was opened: replicas and workers that come and go, pauses, dead letters and unserved addresses show here."));
  }

  fill(
    main,
    h("h1", null, title),
    problem,
    h("div", { class: "charts" }, depth.element, rates.element, latency.element),
    h("div", { class: "bar" }, h("label", null, "Filter ", filter)),
    lines.element,
    panel("What happened", happened),
  );
  draw();
  tell();
  page.ends(on("queues", draw), on("history", draw), on("happened", tell));
  page.every(10000, load);
  return load();
}

function held(one) {
  const all = (one.workflow_paused ?? 0) + (one.key_busy ?? 0) + (one.throttled ?? 0);
  return all === 0 ? "0" : h("span", { title: `workflow paused ${one.workflow_paused}, key busy ${one.key_busy}, throttled ${one.throttled}` }, number(all));
}

function states(one) {
  return [
    one.paused ? badge("paused") : null,
    one.unserved_reason ? h("a", { href: "#/unserved" }, badge("failed", "unserved")) : null,
    one.throttled_until ? badge("held", "throttled") : null,
  ];
}

/** An operator event as a sentence. */
function sentence({ name, data }) {
  switch (name) {
    case "replica":
      return `Replica ${data.name} (${data.dispatcher}) is ${data.state}.`;
    case "worker":
      return `Worker ${data.identity} is ${data.state}, on replica ${data.replica}.`;
    case "pause":
      return data.paused ? `Paused: ${address(data)}${data.by ? ` by ${data.by}` : ""}${data.reason ? ` (${data.reason})` : ""}.` : `Resumed: ${address(data)}.`;
    case "dead_letters":
      return h("span", null, `${number(data.letters)} dead ${data.letters === 1 ? "letter" : "letters"} (${words(data.cause)}, last ${data.error_class}): ${address(data)}. `, h("a", { href: `#/letter/${data.last}` }, "The last one"));
    case "unserved":
      return data.unserved ? `Nobody serves ${address(data)}: ${words(data.reason)}.` : `Served again: ${address(data)}.`;
    case "database":
      return data.answers ? "The database answers again." : `The database does not answer: ${data.detail}`;
    case "lagged":
      return `This page was slow and missed ${number(data.missed)} events.`;
    default:
      return words(name);
  }
}
