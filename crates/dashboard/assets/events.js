// Events: found by words, newest first, a page at a time.

import * as api from "./api.js";
import { empty, h, show } from "./dom.js";
import { table } from "./table.js";
import { ago, aggregate, badge, number, span, split } from "./words.js";

const STATES = ["pending", "publishing", "published", "failed", "dead", "discarded"];

const took = (event) =>
  event.published_at ? span(Math.max(0, (Date.parse(event.published_at) - Date.parse(event.created_at)) / 1000)) : "";

export const list = (context, events) =>
  table("Events", [
    ["written", (event) => ago(event.created_at)],
    ["event", (event) => h("a", { href: context.link("event", event.id) }, event.event_type), "wrap"],
    ["aggregate", (event) => h("a", { href: context.link("events", "", { q: aggregate(event) }), class: "quiet" },
      event.aggregate_type + " " + event.aggregate_id), "wrap"],
    ["state", (event) => badge(event.state)],
    ["attempts", (event) => (event.attempts ? String(event.attempts) : ""), "end"],
    ["took", took, "end nowrap"],
  ], events, ({ id }) => id);

export const events = async (root, context, { query }) => {
  const q = query.get("q") || "", before = query.get("before");
  const page = await api.events(context.pipeline, q, before);
  const field = h("input", {
    type: "search", id: "search", value: q, "aria-label": "Search events", autocomplete: "off", spellcheck: "false",
    placeholder: "state:dead type:order aggregate:42 event:OrderPlaced since:1h",
  });
  const search = h("form", { class: "search", "data-kept": true, role: "search", onsubmit: (submit) => {
    submit.preventDefault();
    context.go("events", "", { q: field.value.trim() });
  } }, field, h("button", { type: "submit", class: "main" }, "Search"));
  const words = split(q), rest = words.filter((word) => !word.startsWith("state:")).join(" ");
  const counts = context.summary()?.states;
  const chip = (name, search, count) => {
    const current = name ? words.includes("state:" + name) : !words.some((word) => word.startsWith("state:"));
    return h("a", { href: context.link("events", "", { q: search }), "aria-current": current ? "true" : null },
      name || "all", count === undefined || count === null ? "" : " " + number(count));
  };
  const chips = h("div", { class: "chips", role: "group", "aria-label": "States" },
    chip("", rest), STATES.map((state) => chip(state, ("state:" + state + " " + rest).trim(), counts?.[state])));
  const found = page.events.length
    ? list(context, page.events)
    : page.next
      ? empty("None among the newest of these.", "Older events were not looked at yet.")
      : empty(q ? "No event matches." : "No events yet.", q ? "Try fewer words." : "They appear here as soon as a transaction that wrote one commits.");
  const more = h("div", { class: "more" },
    before && h("a", { href: context.link("events", "", { q }) }, "Newest"),
    page.next !== null && h("button", { type: "button", id: "older", onclick: () => context.go("events", "", { q, before: page.next }) }, "Older"),
    page.events.length > 0 && h("span", { class: "quiet small" }, number(page.events.length) + " shown" + (page.next === null ? ", no more" : "")));
  show(root, h("div", { class: "head" }, h("h1", {}, "Events"), h("span", { class: "quiet" }, context.pipeline)), search, chips, found, more);
  if (query.get("focus")) requestAnimationFrame(() => field.focus());
};
