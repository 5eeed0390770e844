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
    means: "They are due at once, with all attempts in front of them. What waits behind them follows in order.",
    done: (n) => plural(n, "event") + " will be tried again",
  },
  discard: {
    name: "Discard",
    danger: true,
    means: "They will not be published. What waits behind them goes on without them. This cannot be taken back.",
    done: (n) => plural(n, "event") + " discarded",
  },
  replay: {
    name: "Publish again",
    means: "They are published again with the same ids. Consumers that remember ids drop them.",
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
    const words = [what, act.means, "Who did this, and to how many, is written down."];
    const title = act.name + " " + plural(events, "event") + "?";
    if (!(await confirm(title, words, act.name + " " + plural(events, "event"), act.danger))) return false;
    const done = await api.change(pipeline, { action, ...chosen });
    toast(act.done(done.events));
    return true;
  } catch (failure) {
    toast((failure.code ? failure.code + ": " : "") + failure.message, "bad");
    return false;
  }
};

export const sure = confirm;
