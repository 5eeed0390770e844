// Dead letters: why, how many, which aggregates wait, and what to do about it.

import * as api from "./api.js";
import { change } from "./dialog.js";
import { empty, h, show } from "./dom.js";
import { table } from "./table.js";
import { ago, aggregate, badge, number, plural, word } from "./words.js";

export const dead = async (root, context) => {
  const { groups, lanes } = await api.dead(context.pipeline);
  const act = (action, what, chosen, words, kind = "tiny") => h("button", {
    type: "button", class: kind + (action === "discard" ? " danger" : ""), disabled: !context.may("operator"), "data-action": action,
    onclick: async () => { if (await change(context.pipeline, action, what, chosen)) context.refresh(); },
  }, words);
  const both = (what, chosen) => h("div", { class: "acts" },
    act("retry", what, chosen, "Retry"), act("discard", what, chosen, "Discard"));
  const count = (state) => groups.filter((group) => group.state === state).reduce((sum, group) => sum + group.events, 0);
  const total = context.summary()?.states?.dead ?? count("dead");
  const everything = { q: "state:dead" };

  const reasons = table("Reasons", [
    ["state", ({ state }) => badge(state)],
    ["error", ({ error }) => error || h("span", { class: "quiet" }, "no reason was given"), "error"],
    ["event", ({ event_type, sample }) => h("a", { href: context.link("event", sample), title: "the newest of them" }, event_type), "wrap"],
    ["events", ({ events, state, event_type }) =>
      h("a", { href: context.link("events", "", { q: `state:${state} event:${word(event_type)}` }) }, number(events)), "end"],
    ["oldest", ({ oldest }) => ago(oldest)],
    ["newest", ({ newest }) => ago(newest)],
    ["", ({ state, error, event_type }) =>
      both(`${event_type}: ${error}`, { q: `state:${state} event:${word(event_type)}`, error })],
  ], groups, ({ state, event_type, error }) => [state, event_type, error].join(" "));

  const waiting = table("Parked aggregates", [
    ["aggregate", (lane) => h("a", { href: context.link("events", "", { q: aggregate(lane) }) },
      lane.aggregate_type + " " + lane.aggregate_id), "wrap"],
    ["state", ({ state }) => badge(state)],
    ["waits because", ({ error }) => error, "error"],
    ["behind it", ({ waiting }) => plural(waiting, "event"), "end nowrap"],
    ["", (lane) => both(`The failed event of ${lane.aggregate_type} ${lane.aggregate_id}`,
      { q: aggregate(lane) })],
  ], lanes, (lane) => lane.aggregate_type + "/" + lane.aggregate_id);

  show(root,
    h("div", { class: "head" }, h("h1", {}, "Dead letters"), h("span", { class: "quiet" }, context.pipeline),
      total > 0 && h("div", { class: "acts" },
        act("retry", "All dead letters of " + context.pipeline, everything, "Retry all", ""),
        act("discard", "All dead letters of " + context.pipeline, everything, "Discard all", ""))),
    groups.length
      ? [h("p", { class: "lead head" }, "Events that failed, by reason. A dead letter waits for you; a failed one is tried again by itself."), reasons]
      : empty("No dead letters.", "Every event was published, or is on its way."),
    lanes.length > 0 && h("section", { class: "block" },
      h("div", { class: "head" }, h("h2", {}, "Parked aggregates"),
        h("span", { class: "quiet small" }, "their later events wait, so that the order is kept" + (lanes.length === 100 ? "; the first 100" : ""))),
      waiting));
};
