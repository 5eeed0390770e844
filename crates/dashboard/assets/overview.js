// How everything is: one sentence, a card for each pipeline, and the last half hour of one of them.

import * as api from "./api.js";
import { chart } from "./chart.js";
import { facts, h, show } from "./dom.js";
import { brief, number, plural, rate, span } from "./words.js";

const health = ({ level, sentence }) =>
  h("section", { class: "card health", "aria-label": "Health" }, h("i", { class: "dot " + level }), h("p", { id: "sentence" }, sentence));

const card = (pipeline, context) => {
  const { name, level, point, states } = pipeline;
  const waits = states ? states.pending + states.publishing : null;
  const to = pipeline.to.map((sink) => sink.name + (sink.kind && sink.kind !== sink.name ? ` (${sink.kind})` : "")).join(" and ");
  const outage = pipeline.working === 0 ? null : pipeline.outages[0];
  const fix = (pipeline.trouble ?? outage)?.fix;
  const way = [pipeline.from, to].filter(Boolean).join("  →  ");
  return h("button", {
    type: "button", class: "card pipeline", "aria-pressed": String(name === context.pipeline),
    onclick: () => context.choose(name),
  },
  h("div", { class: "title" }, h("i", { class: "dot " + level }), name),
  h("p", { class: "way" }, level === "bad" ? pipeline.complaint : way),
  fix && h("p", { class: "way" }, "To run: " + fix),
  facts([
    ["waiting", number(waits)],
    ["published", rate(point?.published)],
    ["oldest due", point?.oldest === null || point?.oldest === undefined ? "none" : brief(point.oldest)],
    ["dead", number(states?.dead), states?.dead > 0],
  ], "facts"),
  point?.parked > 0 && h("p", { class: "parked" }, parked(point, waits)));
};

// What is behind a failed event waits for it, however long: it is not due, and has no part in the age of the oldest.
const parked = (point, waits) => {
  const those = plural(point.parked, "aggregate") + " parked";
  const isDue = point.oldest !== null && point.oldest !== undefined;
  return isDue || !waits ? those : `nothing that waits is due: ${those}`;
};

const charts = () => {
  const latency = (place) => (point) => point.latency?.[place] ?? null;
  return [
    chart("Events per second", (v) => (v >= 10 || v === 0 ? number(v) : v.toFixed(1)), [
      { name: "written", hue: "busy", of: (point) => point.written },
      { name: "published", hue: "good", of: (point) => point.published },
    ], { least: 1 }),
    chart("Time to publish", span, [
      { name: "p50", hue: "good", of: latency(0) },
      { name: "p95", hue: "warn", of: latency(1) },
      { name: "p99", hue: "bad", of: latency(2) },
    ], { least: 0.01, axis: brief }),
    chart("Not published, by state", number, [
      { name: "dead", hue: "bad", of: (point) => point.dead },
      { name: "failed", hue: "warn", of: (point) => point.failed },
      { name: "publishing", hue: "move", of: (point) => point.publishing },
      { name: "pending", hue: "busy", of: (point) => point.pending },
    ], { stacked: true, least: 4 }),
    chart("Age of the oldest event that is due", span, [
      { name: "oldest", hue: "busy", of: (point) => point.oldest ?? 0 },
    ], { least: 1, axis: brief }),
  ];
};

export const overview = async (root, context) => {
  const now = h("div", {});
  const rest = h("p", { class: "quiet small block" });
  const whose = h("span", { class: "quiet small", id: "whose" });
  const all = charts();
  let points = (await api.history(context.pipeline)).points;
  const paint = (fresh) => {
    show(now, health(fresh.health), h("div", { class: "grid pipelines" }, fresh.pipelines.map((one) => card(one, context))));
    const states = context.summary()?.states;
    show(rest, states && `${number(states.published)} published and ${number(states.discarded)} discarded events are kept in ${context.pipeline}.`);
    const measured = points.findLast((point) => point.measured !== null)?.measured;
    show(whose, "as the database has it, looked at since this process began" + (measured === undefined ? "" : measured
      ? "; times to publish as this relay measured them"
      : "; times to publish of the newest 100 events of all relays, to about a second"));
    for (const one of all) one.show(points);
  };
  show(root,
    h("h1", { class: "head" }, "Overview"), now,
    h("section", { class: "block" },
      h("div", { class: "head" }, h("h2", {}, context.pipeline + ", the last half hour"), whose),
      h("div", { class: "grid charts" }, all.map((one) => one.root))),
    rest);
  paint(context.overview);
  return {
    update: (fresh) => {
      // A card that is rebuilt under a finger or a key loses it.
      const held = now.contains(document.activeElement);
      const point = context.summary()?.point;
      if (point && point.at !== points.at(-1)?.at) points = [...points, point].slice(-900);
      const place = [...now.querySelectorAll("button")].indexOf(document.activeElement);
      paint(fresh);
      if (held) now.querySelectorAll("button")[place]?.focus();
    },
  };
};
