// Workflows, and one run of one as a tree: the run, its members by how they stand, what it continued as.

import { get, post, query } from "./api.js";
import { badge, button, command, confirm, empty, errorBox, facts, fill, h, panel, toast } from "./dom.js";
import { number, time, words } from "./format.js";
import { table } from "./table.js";

export const title = "Workflows";

const MODES = { all: "ends when all have ended", race: "ends with the first that is done", fail_fast: "ends with the first dead letter" };

export function render(main, params, page) {
  const rows = [];
  let next = null;
  const values = new Map();
  const text = (name, label, first) => {
    const input = h("input", { name, placeholder: "any", value: params.get(name) ?? "", ...(first ? { "data-filter": "" } : {}) });
    values.set(name, () => input.value.trim());
    return h("label", null, label, " ", input);
  };
  const state = h("select", { name: "state" }, [["", "any"], ["running", "running"], ["done", "done"], ["failed", "failed"], ["cancelled", "cancelled"]].map(([value, shown]) => h("option", { value, selected: (params.get("state") ?? "") === value }, shown)));
  values.set("state", () => state.value);
  const form = h("form", {
    class: "bar",
    onsubmit: (event) => {
      event.preventDefault();
      const wanted = `#/workflows${query(Object.fromEntries([...values].map(([name, value]) => [name, value()])))}`;
      if (location.hash === wanted) page.again();
      else location.hash = wanted;
    },
  }, text("namespace", "Namespace", true), text("name", "Name"), h("label", null, "State ", state), h("button", { type: "submit", class: "primary" }, "Show"), h("a", { href: "#/workflows" }, "Clear"));
  const filters = Object.fromEntries([...params].filter(([, value]) => value !== ""));
  const problem = h("div");
  const foot = h("div", { class: "bar foot" });
  const leads = (one) => `#/workflow/${one.workflow_id}?run=${one.run_id}`;
  const lines = table({
    label: "Workflows",
    key: (one) => one.run_id,
    open: leads,
    columns: [
      { title: "Workflow", cell: (one) => h("a", { href: leads(one) }, one.name || one.workflow_id) },
      { title: "Run", number: true, cell: (one) => number(one.run_number) },
      { title: "State", cell: (one) => [badge(one.state), one.paused ? badge("paused") : null] },
      { title: "Mode", cell: (one) => words(one.mode) },
      { title: "Namespace", cell: (one) => one.namespace },
      { title: "Started", cell: (one) => time(one.created_at) },
      { title: "Ended", cell: (one) => time(one.ended_at) },
    ],
    empty: () =>
      Object.keys(filters).length
        ? empty(next ? "Nothing matches so far." : "No workflow matches.", next ? "Look further back." : h("a", { href: "#/workflows" }, "Look at all of them."))
        : empty("No workflow yet.", ["A workflow is a group of tasks that end together: ", command("fencepost workflow start FILE"), " stages one."]),
  });

  async function load(before) {
    try {
      const found = await get("workflows", { ...filters, before, limit: 100 }, page.signal);
      rows.push(...found.workflows);
      next = found.next;
      fill(problem);
      lines.update(rows);
      fill(foot, h("p", null, `${number(rows.length)} shown.`), next === null ? null : button("Show more", () => load(next)));
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  fill(main, h("h1", null, title), form, problem, lines.element, foot);
  return load();
}

/** One run. */
export function renderWorkflow(main, params, page) {
  const id = params.get("id");
  const run = params.get("run") ?? undefined;
  const problem = h("div");
  const top = h("div");
  const tree = h("div");
  const story = h("div");
  const members = [];
  let whole = false;
  let before = null;
  const opened = new Map();
  fill(main, h("p", null, h("a", { href: "#/workflows" }, "Workflows"), " ›"), h("h1", null, `Workflow ${id}`), problem, top, tree, story);

  async function load() {
    try {
      const [flow, events] = await Promise.all([get(`workflows/${id}`, { run }, page.signal), get(`workflows/${id}/events`, { run, limit: 200 }, page.signal)]);
      await refresh();
      fill(problem);
      const now = JSON.stringify([flow, events, members, whole]);
      if (now === before) return;
      before = now;
      head(flow);
      fill(tree, panel("Members", branches(flow)));
      fill(story, panel("History", events.events.length ? h("ol", { class: "timeline" }, events.events.map(event)) : h("p", { class: "soft" }, "Nothing has happened to this run yet.")));
      if (flow.state !== "running" && flow.members.unfinished === 0) page.rest();
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  /** Reads what is shown again, a page at a time. */
  async function refresh() {
    const shown = Math.max(200, members.length);
    const found = [];
    while (found.length < shown) {
      const part = await get(`workflows/${id}/members`, { run, after: found.at(-1)?.ordinal, limit: 200 }, page.signal);
      found.push(...part.members);
      whole = part.members.length < 200;
      if (whole) break;
    }
    members.splice(0, members.length, ...found);
  }

  async function further() {
    try {
      const found = await get(`workflows/${id}/members`, { run, after: members.at(-1)?.ordinal, limit: 200 }, page.signal);
      members.push(...found.members);
      await load();
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  function head(flow) {
    const order = (action, yes, body, danger) => button(yes, () => {
      const reason = h("input", { name: "reason", maxlength: 200 });
      confirm({
        title: `${yes}: ${flow.name || id}?`,
        body: [h("p", null, body), h("label", null, "Why ", reason)],
        yes,
        danger,
        act: async () => {
          const now = await post(`workflows/${id}/${action}`, { reason: reason.value, by: "dashboard" });
          toast(`${flow.name || id}: ${now.paused ? "paused" : now.state}.`);
          if (action === "re-run") location.hash = `#/workflow/${id}`;
          await page.again();
        },
      });
    });
    const running = flow.state === "running";
    fill(
      top,
      h("p", { class: "lead" }, badge(flow.state), flow.paused ? [" ", badge("paused"), ` by ${flow.paused.by || "somebody"}${flow.paused.reason ? ` (${flow.paused.reason})` : ""}`] : null),
      h(
        "div",
        { class: "actions" },
        running && !flow.paused ? order("pause", "Pause", "No member starts until it is resumed; what runs runs on.") : null,
        running && flow.paused ? order("resume", "Resume", "Its members start again.") : null,
        running ? order("cancel", "Cancel", "It ends as cancelled, and its members with it.", true) : null,
        order("re-run", "Run again", "A new run begins with copies of the members that are not done; what is done is kept."),
      ),
      panel(null, facts([["Name", flow.name], ["Namespace", flow.namespace], ["Run", `${flow.run_number} (${flow.run_id})`], ["Mode", `${words(flow.mode)}: ${MODES[flow.mode]}`], ["Started", time(flow.created_at)], ["Ended", time(flow.ended_at)]])),
    );
  }

  function branches(flow) {
    const counts = flow.members;
    const order = ["running", "ready", "held", "scheduled", "failed", "cancelled", "done"];
    const groups = order.map((state) => [state, members.filter((one) => one.state === state)]).filter(([, list]) => list.length);
    const others = members.filter((one) => !order.includes(one.state));
    if (others.length) groups.push(["unknown", others]);
    return [
      h("p", null, `${number(counts.total)} members: ${number(counts.unfinished)} unfinished, ${number(counts.done)} done, ${number(counts.failed)} failed, ${number(counts.cancelled)} cancelled.`),
      members.length === 0
        ? empty("No members.", "Members can be added until the workflow ends.")
        : h(
            "ul",
            { class: "tree" },
            h(
              "li",
              null,
              h("span", null, h("b", null, flow.name || `workflow ${id}`), ` run ${flow.run_number} `, badge(flow.state)),
              h(
                "ul",
                null,
                groups.map(([state, list]) =>
                  h("li", null, h("details", { open: opened.get(state) ?? (state !== "done" || groups.length === 1), ontoggle: (event) => opened.set(state, event.target.open) }, h("summary", null, badge(state), ` ${number(list.length)}`), h("ul", null, list.map((one) => h("li", null, h("a", { href: `#/task/${one.task_id}` }, `member ${one.ordinal}`), " ", badge(one.state), one.attempt ? h("span", { class: "soft" }, ` ${one.attempt} failed ${one.attempt === 1 ? "try" : "tries"}`) : null, one.error_class ? h("span", { class: "soft" }, ` ${one.error_class}`) : null))))),
                ),
                flow.continued_as ? h("li", null, "continued as ", h("a", { href: `#/task/${flow.continued_as}` }, `task ${flow.continued_as}`)) : null,
              ),
            ),
          ),
      whole || members.length === 0 ? null : button("Show more members", further),
    ];
  }

  function event(one) {
    const detail = one.detail && Object.keys(one.detail).length ? Object.entries(one.detail).map(([name, value]) => `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ") : "";
    return h("li", { class: /failed|refused/.test(one.kind) ? "bad" : one.kind === "ended" ? "good" : null }, h("time", null, time(one.recorded_at)), h("div", null, h("div", null, words(one.kind), one.task_id ? [" ", h("a", { href: `#/task/${one.task_id}` }, one.ordinal === undefined ? `task ${one.task_id}` : `member ${one.ordinal}`)] : null), detail ? h("div", { class: "soft" }, detail) : null));
  }

  page.every(3000, load);
  return load();
}
