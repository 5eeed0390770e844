// Small charts of the last half hour, as SVG.

import { h, show, svg } from "./dom.js";

const HEIGHT = 152, LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 20;

// The next round number, so that the scale does not jump about.
const ceiling = (value) => {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * size).find((step) => step >= value * 0.999);
};

// series: [{ name, hue, of: point => number | null }]; options: stacked areas, the least that the scale
// reaches to, and how the scale is written
export const chart = (title, format, series, { stacked = false, least = 0, axis = format } = {}) => {
  const legend = h("div", { class: "legend" });
  const picture = svg("svg", { role: "img", "aria-label": title });
  const root = h("section", { class: "card chart" }, h("div", { class: "head" }, h("h3", {}, title), legend), picture);
  let points = [], pointed = null;

  const tell = (point) =>
    show(legend, series.map(({ name, hue, of }) => {
      const value = point ? of(point) : null;
      return h("span", { class: "h-" + hue }, name + " ", h("b", {}, value === null || value === undefined ? "–" : format(value)));
    }));

  const draw = () => {
    const width = picture.clientWidth || 480;
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const first = points.length ? Date.parse(points[0].at) : 0;
    const last = points.length ? Date.parse(points.at(-1).at) : 1;
    const length = Math.max(last - first, 60000);
    const total = (point) => series.reduce((sum, { of }) => sum + (of(point) || 0), 0);
    const highest = points.flatMap((point) => (stacked ? [total(point)] : series.map(({ of }) => of(point) || 0)));
    const top = ceiling(Math.max(least, ...highest));
    const x = (point) => LEFT + ((Date.parse(point.at) - (last - length)) / length) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const rules = [0, 0.5, 1].map((part) => [
      svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(top * part), y2: y(top * part) }),
      svg("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, part === 0 ? "0" : axis(top * part)),
    ]);
    const minutes = Math.round(length / 60000);
    const times = [
      svg("text", { x: LEFT, y: HEIGHT - 4 }, minutes + " min ago"),
      svg("text", { x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "now"),
    ];
    show(picture, rules, times, stacked ? stacks(x, y) : lines(x, y), cross(x, y));
    tell(pointed || points.at(-1));
  };

  const runs = (of) => {
    const found = [[]];
    for (const point of points) {
      const value = of(point);
      if (value === null || value === undefined) { if (found.at(-1).length) found.push([]); }
      else found.at(-1).push([point, value]);
    }
    return found.filter((run) => run.length);
  };

  const lines = (x, y) => series.flatMap(({ hue, of }, place) => runs(of).flatMap((run) => {
    const path = run.map(([point, value]) => x(point).toFixed(1) + "," + y(value).toFixed(1));
    const area = place === 0 && run.length > 1 &&
      svg("polygon", { class: "area h-" + hue, points: `${x(run[0][0])},${y(0)} ${path.join(" ")} ${x(run.at(-1)[0])},${y(0)}` });
    return [area, svg("polyline", { class: "line h-" + hue, points: path.length === 1 ? path[0] + " " + path[0] : path.join(" ") })];
  }));

  const stacks = (x, y) => {
    const below = points.map(() => 0);
    return series.map(({ hue, of }) => {
      const low = points.map((point, i) => `${x(point).toFixed(1)},${y(below[i]).toFixed(1)}`);
      points.forEach((point, i) => { below[i] += of(point) || 0; });
      const high = points.map((point, i) => `${x(point).toFixed(1)},${y(below[i]).toFixed(1)}`);
      return svg("polygon", { class: "stack h-" + hue, points: [...low, ...high.reverse()].join(" ") });
    });
  };

  const cross = (x, y) => pointed &&
    svg("line", { class: "cross", x1: x(pointed), x2: x(pointed), y1: TOP, y2: HEIGHT - BOTTOM });

  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const first = Date.parse(points[0]?.at), last = Date.parse(points.at(-1)?.at);
    if (!(last > first)) return;
    const length = Math.max(last - first, 60000);
    const time = last - length + ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * length;
    const distance = (point) => Math.abs(Date.parse(point.at) - time);
    pointed = points.reduce((best, point) => (distance(point) < distance(best) ? point : best));
    draw();
  });
  picture.addEventListener("pointerleave", () => { pointed = null; draw(); });
  new ResizeObserver(draw).observe(root);
  return { root, show: (found) => { points = found; draw(); } };
};
