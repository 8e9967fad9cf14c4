// A line chart of the last five minutes, drawn as SVG.

import { fill, h, s } from "./dom.js";

const WIDTH = 560;
const HEIGHT = 170;
const LEFT = 56;
const BOTTOM = 22;
const TOP = 8;
const MINUTES = 5;
/** Looks come once a second; where they are further apart nobody was looking, and there is no line. */
const GAP = 8000;

function top(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** series: [{ name, of(point) }]; show(value) is a value for people; the scale ends at `least` or above. Answers { element, update(points) }. */
export function chart({ title, series, show, least }) {
  const legend = h("p", { class: "legend" });
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart" });
  const element = h("figure", { class: "panel chart-panel" }, h("figcaption", null, h("h2", null, title)), picture, legend);

  function update(points) {
    const now = Date.now();
    const from = now - MINUTES * 60000;
    const shown = points.filter((point) => point.at >= from);
    const values = shown.flatMap((point) => series.map((one) => one.of(point) ?? 0));
    const highest = top(Math.max(least, ...values));
    const x = (at) => LEFT + ((at - from) / (now - from)) * (WIDTH - LEFT - 6);
    const y = (value) => HEIGHT - BOTTOM - (value / highest) * (HEIGHT - BOTTOM - TOP);
    const last = shown.at(-1);
    const latest = (one) => {
      const value = last ? one.of(last) : null;
      return value === null || value === undefined ? "–" : show(value);
    };
    const words = series.map((one) => `${one.name} ${latest(one)}`).join(", ");
    picture.setAttribute("aria-label", `${title}: ${words}`);
    fill(
      picture,
      [0, 0.5, 1].map((part) => [
        s("line", { class: "grid", x1: LEFT, x2: WIDTH - 6, y1: y(part * highest), y2: y(part * highest) }),
        s("text", { class: "axis", x: LEFT - 6, y: y(part * highest) + 4, "text-anchor": "end" }, show(part * highest)),
      ]),
      [4, 3, 2, 1].map((minutes) =>
        s("text", { class: "axis", x: x(now - minutes * 60000), y: HEIGHT - 6, "text-anchor": "middle" }, `−${minutes} min`),
      ),
      s("text", { class: "axis", x: WIDTH - 6, y: HEIGHT - 6, "text-anchor": "end" }, "now"),
      series.map((one, index) => s("path", { class: `line line-${index}`, d: path(shown, one, x, y) })),
    );
    fill(
      legend,
      series.map((one, index) =>
        h("span", { class: `key key-${index}` }, one.name, " ", h("b", null, latest(one))),
      ),
    );
  }

  update([]);
  return { element, update };
}

function path(points, one, x, y) {
  let before = null;
  let d = "";
  for (const point of points) {
    const value = one.of(point);
    if (value === null || value === undefined) {
      before = null;
      continue;
    }
    d += `${before === null || point.at - before > GAP ? "M" : "L"}${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
    before = point.at;
  }
  return d;
}
