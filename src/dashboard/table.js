// Tables that arrow keys walk: one row at a time is in the tab order, Enter opens it.

import { fill, h } from "./dom.js";

/**
 * columns: [{ title, cell(row), number }]; key(row) names a row over updates; open(row) is the hash that Enter leads to.
 * Returns { element, update(rows) }: `empty` stands in place of a table without rows.
 */
export function table({ label, columns, key, open, empty }) {
  const head = h("tr", null, columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.title)));
  const body = h("tbody", { onkeydown: (event) => walk(event, body) });
  const grid = h("div", { class: "scroll" }, h("table", { "aria-label": label }, h("thead", null, head), body));
  const element = h("div", { class: "list" });

  function update(rows) {
    if (rows.length === 0) {
      fill(element, empty());
      return;
    }
    // What somebody is marking to copy stays.
    const marked = getSelection();
    if (!marked.isCollapsed && body.contains(marked.anchorNode)) return;
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const at = focused?.closest("tr")?.dataset.key;
    const nth = focused && focused.tagName !== "TR" ? [...focused.closest("tr").querySelectorAll("a, button, input")].indexOf(focused) : -1;
    const lines = rows.map((row, index) => line(row, index === 0));
    fill(body, lines);
    if (grid.parentNode !== element) fill(element, grid);
    const again = at === undefined ? null : lines.find((one) => one.dataset.key === at);
    if (again) {
      choose(body, again);
      (nth >= 0 ? again.querySelectorAll("a, button, input")[nth] ?? again : again).focus();
    }
  }

  function line(row, first) {
    const leads = open?.(row);
    const cells = columns.map((column) => h("td", { class: column.number ? "number" : null }, column.cell(row)));
    const one = h("tr", { tabindex: first ? "0" : "-1" }, cells);
    one.dataset.key = key(row);
    if (leads) one.dataset.open = leads;
    return one;
  }

  update([]);
  return { element, update };
}

function choose(body, row) {
  for (const other of body.querySelectorAll('tr[tabindex="0"]')) other.tabIndex = -1;
  row.tabIndex = 0;
}

function walk(event, body) {
  const row = event.target.closest("tr");
  const rows = [...body.rows];
  const at = rows.indexOf(row);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (to !== undefined && !event.target.matches("input, select")) {
    event.preventDefault();
    const next = rows[Math.min(Math.max(to, 0), rows.length - 1)];
    choose(body, next);
    next.focus();
  } else if (event.key === "Enter" && event.target === row && row.dataset.open) {
    location.hash = row.dataset.open;
  }
}
