// Questions before something is changed, and short words after.

import * as api from "./api.js";
import { at, h } from "./dom.js";
import { plural } from "./words.js";

export const toast = (words, kind = "") => {
  const made = h("div", { class: "toast " + kind }, words);
  at("toasts").append(made);
  setTimeout(() => made.remove(), 6000);
};

const open = (title, content, acts) =>
  new Promise((resolve) => {
    const close = (answer) => { dialog.close(); dialog.remove(); resolve(answer); };
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", oncancel: () => close(false) },
      h("h2", { id: "dialog-title" }, title), content,
      h("div", { class: "acts" }, acts(close)));
    document.body.append(dialog);
    dialog.showModal();
  });

export const tell = (title, content) =>
  open(title, content, (close) => h("button", { type: "button", class: "main", onclick: () => close(true) }, "Close"));

const confirm = (title, words, act, danger) =>
  open(title, words.map((word) => h("p", { class: "quiet" }, word)), (close) => [
    h("button", { type: "button", onclick: () => close(false) }, "Cancel"),
    h("button", { type: "button", class: "main" + (danger ? " danger" : ""), id: "confirm", onclick: () => close(true) }, act),
  ]);

const ACTS = {
  retry: {
    name: "Retry",
    means: (it) => `${it} due at once, with all attempts ahead. What waits behind follows in order.`,
    verb: "is",
    done: (n) => plural(n, "event") + " will be tried again",
  },
  discard: {
    name: "Discard",
    danger: true,
    means: (it) => `${it} never be published. What waits behind goes on without. This cannot be taken back.`,
    verb: "will",
    done: (n) => plural(n, "event") + " discarded",
  },
  replay: {
    name: "Publish again",
    means: (it) => `${it} published again with the same id. Consumers that remember ids drop what they know.`,
    verb: "is",
    done: (n) => plural(n, "event") + " will be published again",
  },
};

// Counts first, asks, does it, and says how many it was. Answers whether something was changed.
export const change = async (pipeline, action, what, chosen) => {
  const act = ACTS[action];
  try {
    const { events } = await api.change(pipeline, { action, ...chosen, dry_run: true });
    if (events === 0) {
      toast("Nothing to do: no event is in the right state any more");
      return false;
    }
    const subject = (events === 1 ? "It " : "They ") + (act.verb === "is" && events !== 1 ? "are" : act.verb);
    const words = [what, act.means(subject), "Who did this, and to how many, is written down."];
    const title = act.name + " " + plural(events, "event") + "?";
    if (!(await confirm(title, words, act.name + " " + plural(events, "event"), act.danger))) return false;
    const done = await api.change(pipeline, { action, ...chosen });
    toast(act.done(done.events));
    return true;
  } catch (failure) {
    toast((failure.code ? failure.code + ": " : "") + failure.message, "bad");
    return failure.events > 0;
  }
};

export const sure = confirm;
