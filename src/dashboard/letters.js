// Dead letters: looked at, redriven by hand or by filter, with a dry run first and progress after.

import { get, post, query } from "./api.js";
import { badge, button, confirm, empty, errorBox, facts, fill, h, panel, toast } from "./dom.js";
import { between, bytes, number, span, time, words } from "./format.js";
import { on } from "./live.js";
import { table } from "./table.js";

export const title = "Dead letters";

const FIELDS = [["namespace", "Namespace"], ["task_queue", "Queue"], ["task_type", "Type"], ["error_class", "Error class"]];
const CAUSES = ["failed", "lost", "unservable", "schedule_to_start", "unserved"];
const REFUSALS = {
  not_found: "there is no such letter any more",
  already_redriven: "it was redriven already",
  judged: "its owner has taken the matter up; the command line can force it",
  workflow_is_over: "its workflow is over",
  queue_not_declared: "its queue is not declared",
};

export function render(main, params, page) {
  const rows = [];
  const chosen = new Set();
  let next = null;
  const values = new Map();
  const text = ([name, label], index) => {
    const input = h("input", { name, placeholder: "any", value: params.get(name) ?? "", ...(index === 0 ? { "data-filter": "" } : {}) });
    values.set(name, () => input.value.trim());
    return h("label", null, label, " ", input);
  };
  const choice = (name, label, options) => {
    const select = h("select", { name }, options.map(([value, shown]) => h("option", { value, selected: (params.get(name) ?? "") === value }, shown)));
    values.set(name, () => select.value);
    return h("label", null, label, " ", select);
  };
  const form = h("form", {
    class: "bar",
    onsubmit: (event) => {
      event.preventDefault();
      const wanted = `#/letters${query(Object.fromEntries([...values].map(([name, value]) => [name, value()])))}`;
      if (location.hash === wanted) page.again();
      else location.hash = wanted;
    },
  }, FIELDS.map(text), choice("cause", "Cause", [["", "any"], ...CAUSES.map((one) => [one, words(one)])]), choice("redriven", "Redriven", [["", "any"], ["false", "no"], ["true", "yes"]]), h("button", { type: "submit", class: "primary" }, "Show"), h("a", { href: "#/letters" }, "Clear"));
  const filters = Object.fromEntries([...params].filter(([, value]) => value !== ""));
  const filtered = Object.keys(filters).length > 0;
  const problem = h("div");
  const bar = h("div", { class: "actions" });
  const foot = h("div", { class: "bar foot" });
  const progress = h("div");
  const fresh = h("div", { role: "status" });
  const lines = table({
    label: "Dead letters",
    key: (one) => one.task_id,
    open: (one) => `#/letter/${one.task_id}`,
    columns: [
      { title: "", cell: (one) => (one.redriven_as ? null : h("input", { type: "checkbox", "aria-label": `Choose ${one.task_id}`, checked: chosen.has(one.task_id), onchange: (event) => choose(one.task_id, event.target.checked) })) },
      { title: "Task", cell: (one) => h("a", { href: `#/letter/${one.task_id}` }, one.task_id) },
      { title: "Died", cell: (one) => time(one.dead_at) },
      { title: "Namespace", cell: (one) => one.namespace },
      { title: "Queue", cell: (one) => one.task_queue },
      { title: "Type", cell: (one) => one.task_type },
      { title: "Cause", cell: (one) => badge("failed", words(one.cause)) },
      { title: "Error", cell: (one) => one.error_class },
      { title: "Tries", number: true, cell: (one) => number(one.attempt) },
      { title: "", cell: (one) => (one.redriven_as ? h("a", { href: `#/task/${one.redriven_as}` }, "Redriven") : one.judged ? badge("held", "judged") : null) },
    ],
    empty: () => (filtered ? empty(next ? "Nothing matches so far." : "No dead letter matches.", next ? "Look further back." : h("a", { href: "#/letters" }, "Look at all of them.")) : empty("No dead letters.", ["That is good: no task has failed for good. One that does stays here until somebody redrives or discards it; see ", h("a", { href: "#/tasks?state=running" }, "what runs"), "."])),
  });

  function choose(id, on) {
    if (on) chosen.add(id);
    else chosen.delete(id);
    actions();
  }

  function actions() {
    fill(
      bar,
      button(`Redrive chosen (${chosen.size})`, redriveChosen, { disabled: chosen.size === 0, class: "primary" }),
      button(filtered ? "Redrive all that match…" : "Redrive all…", redriveMatching),
      button(`Discard chosen (${chosen.size})`, discardChosen, { disabled: chosen.size === 0 }),
    );
  }

  function redriveChosen() {
    const ids = [...chosen];
    confirm({
      title: `Redrive ${number(ids.length)} dead ${ids.length === 1 ? "letter" : "letters"}?`,
      body: h("p", null, "Each becomes a new task with the same body, due now, with all its tries."),
      yes: "Redrive",
      act: async () => {
        toast(outcome((await post("dead-letters/redrive", { ids })).dead_letters));
        chosen.clear();
        await page.again();
      },
    });
  }

  function discardChosen() {
    const ids = [...chosen];
    confirm({
      title: `Discard ${number(ids.length)} dead ${ids.length === 1 ? "letter" : "letters"}?`,
      body: h("p", null, "The letters are gone for good; what their tasks did stays in history."),
      yes: "Discard",
      danger: true,
      act: async () => {
        const answer = await post("dead-letters/discard", { ids });
        toast(`Discarded: ${number(answer.discarded)}.`);
        chosen.clear();
        await page.again();
      },
    });
  }

  /** A dry run tells how many, and only then the redrive is offered. */
  async function redriveMatching() {
    const filter = Object.fromEntries(Object.entries(filters).map(([name, value]) => [name, name === "redriven" ? value === "true" : value]));
    // The count that is shown before anything happens is what tells whether all are meant.
    const narrows = Object.keys(filter).some((name) => name !== "redriven" && name !== "judged");
    const body = { filter, all: !narrows };
    try {
      const { letters } = await post("dead-letters/redrive", { ...body, dry_run: true });
      if (letters === 0) {
        toast("No letter matches that can be redriven.");
        return;
      }
      const rate = h("input", { name: "rate", type: "number", min: "0.001", step: "any", placeholder: "as fast as it goes" });
      const canary = h("input", { name: "canary", type: "number", min: "1", max: "10000", placeholder: "none" });
      confirm({
        title: `Redrive ${number(letters)} dead ${letters === 1 ? "letter" : "letters"}?`,
        body: [
          h("p", null, `Exactly ${number(letters)} ${letters === 1 ? "letter matches" : "letters match"} now. Letters that die later are left.`),
          h("label", null, "Letters a second ", rate),
          h("label", null, "So many first, and the rest once these live ", canary),
        ],
        yes: "Redrive them",
        act: async () => {
          const more = { by: "dashboard", ...(rate.value ? { rate: Number(rate.value) } : {}), ...(canary.value ? { canary: Number(canary.value) } : {}) };
          const redrive = await post("dead-letters/redrive", { ...body, ...more });
          toast(`Redrive ${redrive.redrive_id} has started.`);
          await redrives();
        },
      });
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  async function load(before) {
    try {
      const found = await get("dead-letters", { ...filters, before, limit: 100 }, page.signal);
      rows.push(...found.dead_letters);
      next = found.next;
      fill(problem);
      lines.update(rows);
      fill(foot, h("p", null, `${number(rows.length)} shown.`), next === null ? null : button("Show more", () => load(next)));
    } catch (error) {
      if (!page.signal.aborted) fill(problem, errorBox(error));
    }
  }

  async function redrives() {
    try {
      const found = await get("redrives", { limit: 5 }, page.signal);
      fill(progress, found.redrives.length ? panel("Redrives", found.redrives.map(one)) : null);
    } catch (error) {
      if (!page.signal.aborted) fill(progress, errorBox(error));
    }
  }

  function one(redrive) {
    const done = redrive.redriven + redrive.skipped;
    const change = (action) => async () => {
      try {
        await post(`redrives/${redrive.redrive_id}/${action}`, {});
      } catch (error) {
        toast(error.message);
      }
      await redrives();
    };
    return h(
      "div",
      { class: "redrive" },
      h("span", null, `Redrive ${redrive.redrive_id} `, badge(redrive.state)),
      h("progress", { max: Math.max(1, redrive.total), value: done, "aria-label": `Redrive ${redrive.redrive_id}` }),
      h("span", null, `${number(redrive.redriven)} of ${number(redrive.total)} redriven${redrive.skipped ? `, ${number(redrive.skipped)} skipped` : ""}`),
      redrive.detail ? h("span", { class: "soft" }, redrive.detail) : null,
      redrive.state === "running" ? button("Stop", change("stop")) : null,
      ["stopped", "halted"].includes(redrive.state) ? button("Go on", change("resume")) : null,
    );
  }

  fill(main, h("h1", null, title), form, problem, bar, progress, fresh, lines.element, foot);
  fill(lines.element, h("p", { class: "soft" }, "Looking…"));
  actions();
  let more = 0;
  page.ends(
    on("dead_letters", (data) => {
      more += data.letters;
      fill(fresh, button(`${number(more)} more ${more === 1 ? "has" : "have"} died: show`, () => page.again()));
    }),
  );
  page.every(2000, redrives);
  return Promise.all([load(), redrives()]);
}

function outcome(answers) {
  const made = answers.filter((one) => one.redriven_as).length;
  const refused = answers.filter((one) => one.refused);
  const why = refused.map((one) => `${one.task_id}: ${REFUSALS[one.refused] ?? words(one.refused)}`);
  return `Redriven: ${number(made)}.${why.length ? ` Not redriven: ${why.join("; ")}.` : ""}`;
}

/** One letter. */
export function renderLetter(main, params, page) {
  const id = params.get("id");
  const body = h("div");
  const carried = h("div");
  fill(main, h("p", null, h("a", { href: "#/letters" }, "Dead letters"), " ›"), h("h1", null, `Dead letter ${id}`), body, carried);

  async function load() {
    try {
      const letter = await get(`dead-letters/${id}`, {}, page.signal);
      fill(
        body,
        h("p", { class: "lead" }, badge("failed", words(letter.cause)), " ", h("b", null, letter.error_class), letter.error_message ? `: ${letter.error_message}` : ""),
        h("div", { class: "actions" }, letter.redriven_as ? null : button("Redrive", redrive, { class: "primary" }), h("a", { class: "button", href: `#/task/${id}` }, "Its task"), button("Show payload", show)),
        panel(null, facts([
          ["Namespace", letter.namespace], ["Queue", letter.task_queue], ["Type", letter.task_type], ["Node", letter.node],
          ["Died", time(letter.dead_at)], ["Enqueued", time(letter.enqueued_at)], ["Failed tries", number(letter.attempt)], ["Losses", number(letter.losses)],
          ["Lost on", letter.lost_on.join(", ")], ["Concurrency key", letter.concurrency_key],
          ["Owner", letter.judged ? "has taken the matter up" : letter.owner.pending ? "is yet to be told" : letter.owner.told_at ? `told at ${time(letter.owner.told_at)}` : letter.owner.error],
          ["Redriven as", letter.redriven_as ? h("a", { href: `#/task/${letter.redriven_as}` }, letter.redriven_as) : null],
          ["Payload", `${bytes(letter.payload_bytes)}, ${letter.content_type}`],
        ])),
        panel("Attempts", letter.failures.length ? h("ol", { class: "timeline" }, letter.failures.map((failed) => h("li", { class: "bad" }, h("time", null, time(failed.failed_at)), h("div", null, h("div", null, `Attempt ${failed.attempt}, delivery ${failed.fence}: ${words(failed.move)}`, failed.claimed_at ? h("span", { class: "soft" }, ` after ${span(between(failed.claimed_at, failed.failed_at))}`) : null), h("div", null, h("b", null, failed.error_class), failed.error_message ? `: ${failed.error_message}` : ""), failed.worker ? h("div", { class: "soft" }, `${failed.worker}${failed.node ? ` on ${failed.node}` : ""}`) : null)))) : h("p", { class: "soft" }, "Its attempts have left history.")),
        letter.chain.length > 1 ? panel("Its redrives", h("ul", null, letter.chain.map((one) => h("li", null, h("a", { href: `#/task/${one.task_id}` }, one.task_id), " ", badge(one.state))))) : null,
      );
    } catch (error) {
      if (!page.signal.aborted) fill(body, errorBox(error));
    }
  }

  function redrive() {
    confirm({
      title: `Redrive dead letter ${id}?`,
      body: h("p", null, "It becomes a new task with the same body, due now, with all its tries."),
      yes: "Redrive it",
      act: async () => {
        toast(outcome((await post("dead-letters/redrive", { ids: [id] })).dead_letters));
        await load();
      },
    });
  }

  async function show() {
    try {
      const letter = await get(`dead-letters/${id}`, { payload: true }, page.signal);
      fill(carried, panel("Payload", h("pre", { tabindex: "0" }, letter.payload_base64 ?? JSON.stringify(letter.payload, null, 2))));
    } catch (error) {
      if (!page.signal.aborted) fill(carried, errorBox(error));
    }
  }

  return load();
}
