// The frame around the pages: which one is shown, the theme, the keyboard, the state of the stream.

import { errorBox, fill, h } from "./dom.js";
import { keys } from "./keys.js";
import * as letters from "./letters.js";
import { connect, connection, on } from "./live.js";
import * as pauses from "./pauses.js";
import * as queues from "./queues.js";
import * as replicas from "./replicas.js";
import * as task from "./task.js";
import * as tasks from "./tasks.js";
import * as tenants from "./tenants.js";
import * as unserved from "./unserved.js";
import * as workers from "./workers.js";
import * as workflows from "./workflows.js";

const PAGES = { queues, tasks, letters, workers, tenants, workflows, pauses, unserved, replicas };
/** Pages of one thing, by the page that they belong to. */
const INNER = {
  task: { render: task.render, title: task.title, of: "tasks" },
  letter: { render: letters.renderLetter, title: "Dead letter", of: "letters" },
  workflow: { render: workflows.renderWorkflow, title: "Workflow", of: "workflows" },
};
const THEME = "fencepost-theme";

const main = document.getElementById("main");
let shown = null;

/** What a page may use: it loads again and again until it is left, and gives up what it has begun. */
class Page {
  #abort = new AbortController();
  #timers = [];
  #ends = [];
  #busy = false;

  get signal() {
    return this.#abort.signal;
  }

  ends(...calls) {
    this.#ends.push(...calls);
  }

  every(ms, load) {
    const tick = async () => {
      // A hidden page asks nothing, and no question is asked over one that is open.
      if (document.hidden || this.#busy || document.querySelector("dialog[open]")) return;
      this.#busy = true;
      await load();
      this.#busy = false;
    };
    this.#timers.push(setInterval(tick, ms));
  }

  /** Nothing changes any more. */
  rest() {
    for (const timer of this.#timers.splice(0)) clearInterval(timer);
  }

  again() {
    return route();
  }

  leave() {
    this.rest();
    this.#abort.abort();
    for (const end of this.#ends) end();
  }
}

async function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, id] = path.split("/");
  const known = PAGES[name] ?? INNER[name];
  const page = known ?? queues;
  const params = new URLSearchParams(search);
  if (INNER[name]) params.set("id", (id ?? "").replace(/\D/g, ""));
  shown?.leave();
  shown = new Page();
  const own = shown;
  document.title = INNER[name] ? `${page.title} ${params.get("id")} · fencepost` : `${page.title} · fencepost`;
  const current = INNER[name]?.of ?? (PAGES[name] ? name : "queues");
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  delete main.dataset.loaded;
  try {
    await page.render(main, params, own);
  } catch (error) {
    if (own.signal.aborted) return;
    fill(main, errorBox(error));
  }
  // Told to whoever drives the page.
  if (own === shown) main.dataset.loaded = location.hash;
}

function navigate() {
  const links = Object.entries(PAGES).map(([name, page]) => {
    const link = h("a", { href: `#/${name}` }, page.title);
    link.dataset.page = name;
    return link;
  });
  fill(document.getElementById("nav"), links);
  addEventListener("hashchange", async () => {
    await route();
    if (!main.contains(document.activeElement)) main.focus({ preventScroll: true });
    scrollTo(0, 0);
  });
}

function theme() {
  const choice = document.getElementById("theme");
  const use = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
  };
  const kept = localStorage.getItem(THEME) ?? "auto";
  choice.value = ["auto", "light", "dark"].includes(kept) ? kept : "auto";
  use(choice.value);
  choice.addEventListener("change", () => {
    localStorage.setItem(THEME, choice.value);
    use(choice.value);
  });
}

function live() {
  const place = document.getElementById("live");
  let database = true;
  const show = () => {
    const state = database ? connection() : "database";
    place.dataset.state = state;
    fill(place, { live: "Live", connecting: "Connecting…", away: "Not connected; trying again", database: "The database does not answer" }[state]);
  };
  on("state", show);
  on("database", (data) => {
    database = data.answers;
    show();
  });
  on("queues", () => {
    if (database) return;
    database = true;
    show();
  });
  show();
  connect();
}

theme();
navigate();
keys();
live();
route();
