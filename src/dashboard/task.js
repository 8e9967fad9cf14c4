// One task: what it is, why it stands where it stands, and its attempts in time.

import { get, post } from "./api.js";
import { badge, button, confirm, errorBox, facts, fill, h, panel, toast } from "./dom.js";
import { between, bytes, number, span, time, words } from "./format.js";

export const title = "Task";

export function render(main, params, page) {
  const id = params.get("id");
  const body = h("div");
  const problem = h("div");
  const carried = h("div");
  let before = null;
  fill(main, h("p", null, h("a", { href: "#/tasks" }, "Tasks"), " ›"), h("h1", null, `Task ${id}`), problem, body, carried);

  async function load() {
    try {
      const [task, history] = await Promise.all([get(`tasks/${id}`, {}, page.signal), get(`tasks/${id}/history`, {}, page.signal)]);
      const why = task.ended ? null : await get(`tasks/${id}/why`, {}, page.signal);
      fill(problem);
      const now = JSON.stringify([task, history, why]);
      if (now === before) return;
      before = now;
      fill(body, head(task, history), why ? reasons(why) : null, timeline(task, history));
      if (task.ended) page.rest();
    } catch (error) {
      if (page.signal.aborted) return;
      fill(problem, errorBox(error));
      if (error.status === 404) {
        page.rest();
        problem.append(h("p", null, "If it died, its dead letter may be kept longer: ", h("a", { href: `#/letter/${id}` }, `dead letter ${id}`), "."));
      }
    }
  }

  function head(task, history) {
    const key = (label, value) => [label, value];
    return h(
      "div",
      null,
      h("p", { class: "lead" }, badge(task.state), " ", task.cancel_requested ? badge("held", "cancel requested") : null, task.error_class ? [" ", h("b", null, task.error_class), ": ", task.error_message ?? ""] : null),
      h(
        "div",
        { class: "actions" },
        task.ended ? null : button("Cancel", () => cancel(task)),
        history.letter_cause ? h("a", { class: "button", href: `#/letter/${id}` }, "Dead letter") : null,
        button("Show payload", () => show()),
      ),
      panel(
        null,
        facts([
          key("Namespace", task.namespace),
          key("Queue", task.task_queue),
          key("Type", task.task_type),
          key("Node", task.node),
          key("Priority", task.priority === undefined ? null : String(task.priority)),
          key("Failed tries", `${number(task.attempt)}${history.max_attempts ? ` of ${number(history.max_attempts)}` : ""}`),
          key("Losses", history.losses === null ? null : number(history.losses)),
          key("Deliveries", history.fence === null ? null : number(history.fence)),
          key("Enqueued", time(task.enqueued_at)),
          key("Due", time(task.visible_after)),
          key("Has to start by", time(history.start_by)),
          key("On replica", history.replica),
          key("Given up at", time(history.deadline)),
          key("Ended", time(task.ended_at)),
          key("Worker", task.worker),
          key("Dispatch key", task.dispatch_key),
          key("Concurrency key", history.concurrency_key),
          key("Run timeout", span(history.run_timeout_ms)),
          key("Heartbeat timeout", span(history.heartbeat_timeout_ms)),
          key("Workflow", history.workflow_id ? h("a", { href: `#/workflow/${history.workflow_id}?run=${history.run_id}` }, `${history.workflow_id}, member ${history.ordinal}`) : null),
          key("Redrive of", history.origin === id ? null : h("a", { href: `#/task/${history.origin}` }, history.origin)),
          key("Redriven as", history.redriven_as ? h("a", { href: `#/task/${history.redriven_as}` }, history.redriven_as) : null),
          key("Payload", `${bytes(history.payload_bytes)}, ${task.content_type}`),
          key("Result", history.result_bytes === null ? (task.result_expired ? "kept no longer" : null) : `${bytes(history.result_bytes)}, ${task.result_content_type}`),
          key("Labels", task.labels && Object.keys(task.labels).length ? Object.entries(task.labels).map(([name, value]) => h("span", { class: "label" }, `${name}=${value}`)) : null),
        ]),
      ),
    );
  }

  function cancel(task) {
    const reason = h("input", { name: "reason", maxlength: 200 });
    confirm({
      title: `Cancel task ${id}?`,
      body: [h("p", null, task.state === "running" ? "Its worker is asked to stop; it ends as cancelled, whatever comes." : "It ends as cancelled and never runs."), h("label", null, "Why ", reason)],
      yes: "Cancel it",
      danger: true,
      act: async () => {
        const answer = await post(`tasks/${id}/cancel`, { reason: reason.value });
        toast(`Task ${id}: ${answer.state}.`);
        await load();
      },
    });
  }

  async function show() {
    try {
      const task = await get(`tasks/${id}`, { payload: true }, page.signal);
      const block = (name, json, base64) => (json === undefined && base64 === undefined ? null : panel(name, h("pre", { tabindex: "0" }, base64 ?? JSON.stringify(json, null, 2))));
      fill(carried, block("Payload", task.payload, task.payload_base64), block("Result", task.result, task.result_base64));
    } catch (error) {
      if (!page.signal.aborted) fill(carried, errorBox(error));
    }
  }

  page.every(3000, load);
  return load();
}

function reasons(why) {
  return panel(
    "Why",
    h("p", { class: "lead" }, h("b", null, words(why.verdict)), ": ", why.detail),
    h("ol", { class: "gates" }, why.gates.map((gate) => h("li", { class: gate.passed === null ? "unknown" : gate.passed ? "passed" : "stopped" }, h("span", { class: "mark", "aria-hidden": "true" }, gate.passed === null ? "–" : gate.passed ? "✓" : "✕"), h("span", null, words(gate.gate), h("span", { class: "soft" }, gate.passed === null ? " not looked at" : gate.passed ? " passed" : `: ${gate.detail ?? "stops it"}`))))),
  );
}

/** What happened in order: enqueued, each failed or lost delivery, the one that runs, the end. */
function timeline(task, history) {
  const points = [{ at: history.enqueued_at, what: "Enqueued" }];
  for (const failed of history.failures) {
    points.push({
      at: failed.failed_at,
      bad: true,
      what: `Attempt ${failed.attempt}, delivery ${failed.fence}: ${words(failed.move)}`,
      detail: [h("b", null, failed.error_class), failed.error_message ? `: ${failed.error_message}` : ""],
      by: failed.worker ? `${failed.worker}${failed.node ? ` on ${failed.node}` : ""}` : null,
      took: between(failed.claimed_at, failed.failed_at),
    });
  }
  if (history.dispatcher) points.push({ at: history.claimed_at, what: `Attempt ${history.attempt + 1}, delivery ${history.fence}: running`, by: history.replica ? `replica ${history.replica}` : null });
  else if (!task.ended) points.push({ at: task.visible_after, what: task.state === "scheduled" ? "Due" : "Waits" });
  if (task.ended) points.push({ at: task.ended_at, bad: task.state === "failed", good: task.state === "done", what: `Ended: ${task.state}`, by: task.worker ?? null, took: between(history.claimed_at, task.ended_at) });
  return panel(
    "Attempts",
    h(
      "ol",
      { class: "timeline" },
      points.map((point) =>
        h(
          "li",
          { class: point.bad ? "bad" : point.good ? "good" : null },
          h("time", null, time(point.at)),
          h("div", null, h("div", null, point.what, point.took === undefined || point.took === null ? null : h("span", { class: "soft" }, ` after ${span(point.took)}`)), point.detail ? h("div", null, point.detail) : null, point.by ? h("div", { class: "soft" }, point.by) : null),
        ),
      ),
    ),
  );
}
