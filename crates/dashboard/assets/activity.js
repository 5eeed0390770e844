// Who changed what, from this page or the API.

import * as api from "./api.js";
import { empty, h, show } from "./dom.js";
import { table } from "./table.js";
import { ago, number } from "./words.js";

export const activity = async (root, context, { query }) => {
  const before = query.get("before");
  const entries = await api.activity(context.pipeline, before);
  show(root,
    h("div", { class: "head" }, h("h1", {}, "Activity"), h("span", { class: "quiet" }, "who changed what in this database")),
    entries.length === 0
      ? empty("Nobody changed anything.", "Retries, discards, replays and looks at payloads are written down here.")
      : table("Activity", [
        ["when", ({ at }) => ago(at)],
        ["who", ({ who }) => h("strong", {}, who)],
        ["what", ({ what }) => what],
        ["pipeline", ({ pipeline }) => pipeline],
        ["which", ({ filter }) => h("code", {}, filter), "wrap"],
        ["events", ({ events }) => (events === null ? "not known" : number(events)), "end"],
      ], entries, ({ id }) => id),
    entries.length === 100 && h("div", { class: "more" },
      h("button", { type: "button", onclick: () => context.go("activity", "", { before: entries.at(-1).id }) }, "Earlier")));
};
