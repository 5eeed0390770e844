// Who works on what: sources, sinks, consumers, keys and relays.

import * as api from "./api.js";
import { sure, toast } from "./dialog.js";
import { empty, facts, h, show } from "./dom.js";
import { table } from "./table.js";
import { ago, badge, bytes, number, plural, span } from "./words.js";

const head = (title, context, lead, of = context.pipeline) => [
  h("div", { class: "head" }, h("h1", {}, title), h("span", { class: "quiet" }, of)),
  lead && h("p", { class: "lead head" }, lead),
];

const seconds = (duration) => duration.secs + duration.nanos / 1e9;

export const sources = async (root, context) => {
  const summary = context.summary();
  const found = await api.workings(context.pipeline);
  const { log } = found;
  const why = summary.polling_because ? " · " + summary.polling_because : "";
  const messages = log?.slot?.startsWith("semel_messages_") ?? false;
  const tails = Boolean(log?.active) && !messages;
  const how = tails ? "the log tells it of new events" : "it looks for new events at its poll interval";
  const behind = found.written !== null && found.settled !== null ? Math.max(0, found.written - found.settled) : null;
  const retained = log?.retained_bytes ?? null;
  show(root, head("Sources", context),
    h("section", { class: "card" }, facts([
      ["database", h("code", {}, summary.from || "–")],
      ["mode", [h("strong", {}, summary.mode || "–"), h("span", { class: "quiet" }, summary.mode ? " · " + how : "")]],
      ["now", [badge(tails ? "good" : "idle", tails ? "tailing" : "polling"),
        h("span", { class: "quiet" }, tails ? "" : why)]],
      ["moved last", ago(found.moved_at)],
      behind !== null && ["behind", number(behind) + " events of the log"],
      ["outbox on disk", bytes(found.bytes)],
      log?.slot && ["replication slot", h("code", {}, log.slot)],
    ])),
    retained !== null && h("section", { class: "card block" },
      h("div", { class: "head" }, h("h2", {}, "Log the server keeps for it"),
        h("span", { class: "quiet" }, bytes(retained) + (log.limit_bytes === null ? "" : ` of at most ${bytes(log.limit_bytes)}`))),
      log.limit_bytes !== null && h("meter", { min: "0", max: String(log.limit_bytes), low: String(log.limit_bytes / 2), high: String(log.limit_bytes * 0.8),
        optimum: "0", value: String(Math.min(retained, log.limit_bytes)), "aria-label": "Retained log" }),
      h("p", { class: "quiet small" }, messages
        ? "It is kept for messages until a relay has carried them into the outbox. Beyond a limit they are lost."
        : "Beyond the limit the relay lets the log go and polls: no event is lost.")));
};

// Whether a sink is reached, as the relays of its pipeline tell the database; of one that cannot be asked nobody knows.
const reach = ({ outages, working, trouble }, name) => {
  if (trouble) return badge("idle", "not known");
  const mine = outages.find(({ sink }) => sink === null || sink === name);
  if (mine) {
    const state = badge("bad", "outage");
    return [state, h("span", { class: "quiet" }, " since ", ago(mine.since))];
  }
  if (outages.length) return badge("idle", "waits with " + outages[0].sink);
  if (working === null) return badge("idle", "not known");
  return working ? badge("good", "reached") : badge("idle", "no relay works");
};

const why = ({ pipeline, works, relay, sink, code, error, fix }) =>
  h("section", { class: "card block", "aria-label": "Outage" },
    h("div", { class: "head" }, h("h2", {}, pipeline + " cannot reach " + (sink || "its sink")), h("code", {}, code)),
    h("p", { class: "wrap" }, error),
    facts([
      ["to run", fix || "nothing here: look after the broker"],
      ["meanwhile", "events wait, no attempt is counted and none is lost; " + (works ? "it goes on by itself" : "no relay works on them now")],
      relay && ["relay", h("code", { class: "wrap" }, relay)],
    ]));

export const sinks = async (root, context) => {
  const { pipelines } = context.overview;
  const rows = pipelines.flatMap((pipeline) => pipeline.to.map((sink) => ({ ...sink, pipeline })));
  const asked = pipelines.filter(({ trouble }) => !trouble);
  const outages = asked.flatMap(({ name, working, outages: all }) => all.map((outage) => ({ ...outage, pipeline: name, works: working !== 0 })));
  show(root, head("Sinks", context, "Where events go, and whether the relays reach it: each tells the database while it does not.", "of all pipelines"),
    rows.length === 0 ? empty("No sinks are named.") : table("Sinks", [
      ["sink", ({ name }) => h("strong", {}, name)],
      ["type", ({ kind }) => kind],
      ["pipeline", ({ pipeline }) => pipeline.name],
      ["state", ({ name, pipeline }) => reach(pipeline, name)],
      ["published", ({ pipeline }) => (pipeline.point?.published === null || !pipeline.point ? "–" : pipeline.point.published.toFixed(1) + "/s"), "end"],
      ["p99", ({ pipeline }) => span(pipeline.point?.latency?.[2] ?? null), "end"],
      ["failed", ({ pipeline }) => number(pipeline.states?.failed), "end"],
      ["dead", ({ pipeline }) => number(pipeline.states?.dead), "end"],
    ], rows, ({ name, pipeline }) => pipeline.name + "/" + name),
    outages.map(why));
};

export const consumers = async (root, context) => {
  const found = await api.consumers(context.pipeline);
  show(root, head("Consumers", context, "Consumers whose inbox is in this database. Each message took effect once; what comes again is dropped. They tell the database every few seconds how many it was."),
    found.length === 0
      ? empty("No consumer keeps its inbox here.", "A consumer elsewhere has a database and a page of its own.")
      : table("Consumers", [
        ["consumer", ({ name }) => h("strong", {}, name)],
        ["took effect", ({ applied }) => number(applied), "end"],
        ["duplicates dropped", ({ duplicates }) => number(duplicates), "end"],
        ["last", ({ last }) => ago(last)],
      ], found, ({ name }) => name));
};

export const keys = async (root, context, { query }) => {
  const after = query.get("after");
  const page = await api.keys(context.pipeline, after);
  const free = async (key) => {
    const words = ["The next request with this key runs the operation again, and an owner that still runs is fenced off.", "That you did this is written down."];
    if (!(await sure("Free this key?", words, "Free the key", true))) return;
    try {
      const { freed } = await api.freeKey(context.pipeline, key);
      toast(freed ? "The key is free" : "It was free already");
      context.refresh();
    } catch (failure) {
      toast(failure.message, "bad");
    }
  };
  const kinds = { RUNNING: "pending", ABANDONED: "failed", SUCCEEDED: "good", FAILED: "failed", UNCERTAIN: "dead" };
  const state = (name, words = name.toLowerCase()) => badge(kinds[name] || "idle", words);
  const list = (label, rows) => table(label, [
    ["key", ({ key }) => h("code", { title: key }, key.slice(0, 16) + "…")],
    ["state", (row) => state(row.state)],
    ["attempt", ({ attempt }) => (attempt === null ? "" : String(attempt)), "end"],
    ["lasts", (row) => (row.state === "ABANDONED" ? "lease ran out" : span(row.remaining_seconds)), "end nowrap"],
    ["result", ({ bytes: size }) => (size ? bytes(size) : ""), "end nowrap"],
    ["", (row) => (row.state === "RUNNING" || row.state === "ABANDONED") && h("div", { class: "acts" },
      h("button", { type: "button", class: "tiny danger", disabled: !context.may("admin"), onclick: () => free(row.key) }, "Free"))],
  ], rows, ({ key }) => key);
  const { survey } = page;
  const open = survey?.open || [];
  show(root, head("Idempotency", context, "Keys in this database: one operation each. Results are never shown."),
    page.keys.length === 0
      ? empty("No key is held.", "Services that use this database for idempotency keys show up here.")
      : [
        survey && h("section", { "aria-label": "Outcomes" },
          h("div", { class: "chips" }, survey.states.map(([name, count]) => state(name, name.toLowerCase() + " " + number(count)))),
          h("p", { class: "quiet small head" }, survey.whole
            ? plural(survey.keys, "key") + " in all."
            : `Of ${number(survey.keys)} keys, by chance; there are more.`)),
        open.length > 0 && h("section", {},
          h("div", { class: "head" }, h("h2", {}, "Not finished"),
            h("span", { class: "quiet small" }, "abandoned ones first, then those whose lease ends soonest")),
          list("Not finished", open)),
        survey && h("div", { class: "head block" }, h("h2", {}, "All keys")),
        list("Keys", page.keys),
        page.next && h("div", { class: "more" },
          h("button", { type: "button", onclick: () => context.go("keys", "", { after: page.next }) }, "More")),
      ]);
};

export const relays = async (root, context) => {
  const { relays: found } = await api.workings(context.pipeline);
  const work = ({ shares, of }) => (shares.length === 0 ? "stands by" : of === 1 ? "everything" : `${shares.length} of ${of} shares: ${shares.join(", ")}`);
  show(root, head("Relays", context, "Processes that work on this pipeline, as the database knows them. When one falls silent, another takes over as soon as its lease ends."),
    found.length === 0
      ? empty("No relay works on it.", h("code", {}, "semel relay --config semel.toml"))
      : table("Relays", [
        ["relay", ({ name }) => h("code", { class: "wrap" }, name), "wrap"],
        ["state", ({ shares }) => badge(shares.length ? "good" : "idle", shares.length ? "works" : "stands by")],
        ["on", work],
        ["lease lasts", ({ lease_left }) => span(seconds(lease_left)), "end nowrap"],
      ], found, ({ name }) => name));
};
