// One event: its life, what it is, and its payload for those who ask for it.

import * as api from "./api.js";
import { change, toast } from "./dialog.js";
import { facts, h, show } from "./dom.js";
import { ago, aggregate, badge, bytes, moment, plural, span } from "./words.js";

const step = (hue, title, stamp, ...words) =>
  h("li", { class: "h-" + hue }, h("b", {}, title), stamp && [" ", h("span", { class: "quiet small" }, moment(stamp), " · ", ago(stamp))],
    words.filter(Boolean).map((word) => h("p", { class: "quiet small wrap" }, word)));

const life = (event) => {
  const steps = [step("busy", "Written", event.created_at, "committed with the change it tells of")];
  if (event.available_at) steps.push(step("soft", "Not before", event.available_at, "scheduled by its writer"));
  if (event.attempts > 0) steps.push(step("warn", plural(event.attempts, "failed attempt"), null, event.error));
  const last = {
    pending: () => step("soft", event.next_attempt ? "Waits for its next attempt" : "Waits to be published", event.next_attempt,
      event.attempts === 0 && "a relay takes it in order; behind a failed event of its aggregate it waits for that one"),
    publishing: () => step("move", "A relay has it now", null),
    published: () => step("good", "Published", event.published_at, "confirmed by the sink" + (event.published_at
      ? `, ${span(Math.max(0, (Date.parse(event.published_at) - Date.parse(event.created_at)) / 1000))} after it was written` : "")),
    failed: () => step("warn", "Is tried again", event.next_attempt, `attempt ${event.attempts + 1}`),
    dead: () => step("bad", "Dead letter", null, event.attempts === 0 && event.error, "waits for an operator: retry or discard it"),
    discarded: () => step("soft", "Discarded by an operator", null, "it is never published"),
  }[event.state];
  const effects = event.effects.map(({ consumer, at }) => step("accent", "Applied by " + consumer, at, "took effect once, in its inbox in this database"));
  return h("ol", { class: "life" }, steps, last?.(), effects);
};

const pretty = (text) => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } };

const content = (context, event) => {
  const box = h("div", { id: "payload", "data-kept": true });
  const reveal = async () => {
    try {
      const found = await api.reveal(context.pipeline, event.id);
      const headers = Object.entries(found.headers);
      show(box,
        h("pre", { tabindex: "0", "aria-label": "Payload" }, found.text !== null ? pretty(found.text) : found.base64),
        h("div", { class: "block" }, facts([
          ["idempotency key", h("code", {}, found.idempotency_key)],
          ...headers.map(([name, value]) => [name, h("code", {}, value)]),
        ])));
    } catch (failure) {
      toast(failure.message, "bad");
    }
  };
  show(box, h("div", { class: "hidden-payload" },
    h("p", {}, `${bytes(event.payload_bytes)} of ${event.content_type}, ${plural(event.headers, "header")}. Hidden: it may be nobody's business.`),
    h("button", { type: "button", id: "reveal", disabled: !context.may("operator"), onclick: reveal }, "Reveal payload"),
    h("p", { class: "small" }, context.may("operator") ? "That you looked is written down." : "Only operators may.")));
  return box;
};

export const event = async (root, context, { rest: id }) => {
  const found = await api.event(context.pipeline, id);
  const act = (action, words, role, danger) => h("button", {
    type: "button", class: danger ? "danger" : "", id: action, disabled: !context.may(role),
    onclick: async () => {
      if (await change(context.pipeline, action, `${found.event_type} of ${found.aggregate_type} ${found.aggregate_id}`, { q: "id:" + id })) context.refresh();
    },
  }, words);
  const is = (...states) => states.includes(found.state);
  show(root,
    h("p", { class: "small" }, h("a", { href: context.link("events") }, "← Events")),
    h("div", { class: "head" }, h("h1", { class: "wrap" }, found.event_type), badge(found.state),
      h("div", { class: "acts" },
        is("failed", "dead") && [act("retry", "Retry", "operator"), act("discard", "Discard", "operator", true)],
        is("published") && act("replay", "Publish again", "admin"))),
    h("div", { class: "columns" },
      h("section", { class: "card" }, h("h2", { class: "head" }, "Its life"), life(found)),
      h("section", { class: "card" }, h("h2", { class: "head" }, "What it is"), facts([
        ["aggregate", h("a", { href: context.link("events", "", { q: aggregate(found) }) }, found.aggregate_type + " " + found.aggregate_id)],
        ["id", h("code", {}, found.id)],
        ["pipeline", context.pipeline],
        ["show in a terminal", h("code", {}, "semel events show " + found.id +
          (context.overview.pipelines.length > 1 ? " --pipeline " + context.pipeline : ""))],
      ]))),
    h("section", { class: "card block" }, h("h2", { class: "head" }, "Payload and headers"), content(context, found)));
};
