// The frame: which page is shown, what is live, and which keys do what.

import * as api from "./api.js";
import { at, become, h, show, trouble } from "./dom.js";
import { tell } from "./dialog.js";
import { number } from "./words.js";
import { overview } from "./overview.js";
import { events } from "./events.js";
import { event } from "./event.js";
import { dead } from "./dead.js";
import { consumers, keys, relays, sinks, sources } from "./work.js";
import { activity } from "./activity.js";

const PAGES = [
  ["overview", "Overview", "o", overview],
  ["events", "Events", "e", events],
  ["dead", "Dead letters", "d", dead],
  ["sources", "Sources", "s", sources],
  ["sinks", "Sinks", "i", sinks],
  ["consumers", "Consumers", "c", consumers],
  ["keys", "Idempotency", "k", keys],
  ["relays", "Relays", "r", relays],
  ["activity", "Activity", "a", activity],
];
const HIDDEN = [["event", "Event", "", event]];

// Every view is an address: #/pipeline/page/rest?q=words
const here = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [pipeline, page, ...rest] = path.split("/").map(decodeURIComponent);
  return { pipeline, page: page || "overview", rest: rest.join("/"), query: new URLSearchParams(query) };
};

// With the path, since the base of the page may be one step further down.
const link = (page, rest = "", query = {}) => {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  const parts = [context.pipeline, page, rest].filter(Boolean).map(encodeURIComponent);
  return location.pathname + "#/" + parts.join("/") + (words && "?" + words);
};

const context = {
  pipeline: "",
  overview: null,
  link,
  go: (...place) => { location.href = link(...place); },
  refresh: () => render(),
  may: (role) => ["viewer", "operator", "admin"].indexOf(context.overview?.you.role) >= ["viewer", "operator", "admin"].indexOf(role),
  summary: () => context.overview?.pipelines.find(({ name }) => name === context.pipeline),
  choose: (name) => { context.pipeline = name; context.go(here().page === "event" ? "events" : here().page); },
};

// What the view that is shown can do; null where it could not be made.
let shown = null;
let turn = 0, making = 0;

const render = async () => {
  const mine = ++turn;
  const place = here();
  const names = context.overview?.pipelines.map(({ name }) => name) || [];
  context.pipeline = names.includes(place.pipeline) ? place.pipeline : names[0] || "";
  const [id, title, , view] = [...PAGES, ...HIDDEN].find(([name]) => name === place.page) || PAGES[0];
  document.title = title + " · semel";
  frame(id === "event" ? "events" : id);
  const root = h("div", {});
  let made = null;
  making += 1;
  try {
    if (!context.pipeline && context.overview) throw new api.Refusal("", "no pipeline is shown here", "give the dashboard one");
    made = await view(root, context, place);
  } catch (failure) {
    show(root, h("div", { class: "head" }, h("h1", {}, title)), trouble(failure));
  }
  making -= 1;
  // One that took long may come after another that is wanted now.
  if (mine !== turn) return;
  shown = made;
  show(at("main"), root);
};

// How much longer than a look the pause after it is: many who look must not slow the relays down.
const LEISURE = 20;
let looking = false, rested = 0;

// Somebody is about to copy something, or to answer a question.
const isHeld = () => {
  const chosen = getSelection();
  return document.querySelector("dialog[open]") || (!chosen.isCollapsed && at("main").contains(chosen.anchorNode));
};

// Looks again at what is shown, without taking away what somebody is at. Further pages stay as they are.
const again = async () => {
  const [mine, place, began] = [turn, here(), performance.now()];
  if (looking || began < rested || isHeld() || place.query.get("before") || place.query.get("after")) return;
  const [, , , view] = [...PAGES, ...HIDDEN].find(([name]) => name === place.page) || PAGES[0];
  const root = h("div", {});
  looking = true;
  try {
    await view(root, context, place);
    if (mine === turn && !isHeld()) become(at("main").firstElementChild, root);
  } catch {
    if (mine === turn) pulse("lost", "not fresh");
  }
  looking = false;
  rested = performance.now() + LEISURE * (performance.now() - began);
};

// On a narrow screen the pages are beside each other, and not all of them in sight.
const bringIntoSight = () => {
  const [nav, now] = [at("nav"), document.querySelector("#nav [aria-current]")];
  if (now) nav.scrollLeft = now.offsetLeft - nav.offsetLeft - (nav.clientWidth - now.offsetWidth) / 2;
};
addEventListener("resize", bringIntoSight);

// Only what differs is changed: what has the focus keeps it.
const frame = (current) => {
  if (!at("nav").firstChild) {
    show(at("nav"), PAGES.map(([id, title, key]) =>
      h("a", { id: "to-" + id, title: "g " + key }, title, id === "dead" && h("span", { class: "count", hidden: true }))));
  }
  for (const [id] of PAGES) {
    at("to-" + id).setAttribute("href", link(id));
    if (id !== current) at("to-" + id).removeAttribute("aria-current");
    else if (!at("to-" + id).hasAttribute("aria-current")) {
      at("to-" + id).setAttribute("aria-current", "page");
      bringIntoSight();
    }
  }
  const letters = context.summary()?.states?.dead || 0;
  const count = at("to-dead").querySelector(".count");
  count.hidden = letters === 0;
  count.textContent = number(letters);
  at("brand").setAttribute("href", link("overview"));
  at("skip").setAttribute("href", location.pathname + location.hash);
  const names = context.overview?.pipelines.map(({ name }) => name) || [];
  at("source-label").hidden = names.length < 2;
  const options = [...at("source").options].map(({ value }) => value);
  if (options.join("\n") !== names.join("\n")) show(at("source"), names.map((name) => h("option", { value: name }, name)));
  at("source").value = context.pipeline;
};

const pulse = (state, words) => {
  at("pulse").className = "pulse " + state;
  at("pulse").lastElementChild.textContent = words;
};

let stop = null, paused = false;

// Looks come every ten seconds at least. A stream may be open and silent, or end for good: so it is asked anew.
const LATE = 15000;
let late = 0;

const isLate = () => {
  pulse("lost", "not fresh");
  late = setTimeout(listen, LATE);
};

// What was heard is from a look so many seconds ago; another has to come in time.
const vouch = (age) => {
  clearTimeout(late);
  const left = LATE - 1000 * (age ?? 0);
  if (left <= 0) return isLate();
  pulse("on", "live");
  late = setTimeout(isLate, left);
  return undefined;
};

const heard = (fresh) => {
  const first = context.overview === null;
  context.overview = fresh;
  vouch(fresh.age);
  if (first) render();
  else {
    frame(here().page === "event" ? "events" : here().page);
    if (shown?.update) shown.update(fresh);
    else if (shown !== null) again();
    else if (making === 0) render();
  }
};

const listen = () => {
  stop?.();
  stop = null;
  clearTimeout(late);
  if (paused) return pulse("", "paused");
  if (document.hidden) return undefined;
  late = setTimeout(isLate, LATE);
  stop = api.listen(heard, () => pulse("lost", "reconnecting"));
  return undefined;
};

const toggle = () => { paused = !paused; listen(); };

const theme = (chosen) => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
};

const remembered = () => { try { return localStorage.getItem("semel-theme"); } catch { return null; } };

const turnTheme = () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("semel-theme", next); } catch { /* private windows forget */ }
  theme(next);
};

const help = () => tell("Keys", h("dl", { class: "list" }, [
  ["/", "search events"], ["g, then a letter", PAGES.map(([, title, key]) => key + " " + title.toLowerCase()).join(" · ")],
  ["r", "look again"], ["p", "pause or go on"], ["t", "light or dark"], ["?", "these keys"],
].map(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)])));

let going = false;

document.addEventListener("keydown", (press) => {
  const target = press.target;
  if (press.ctrlKey || press.metaKey || press.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) || document.querySelector("dialog[open]")) return;
  const page = going && PAGES.find(([, , key]) => key === press.key);
  const acts = { "/": () => context.go("events", "", { focus: "1" }), r: render, p: toggle, t: turnTheme, "?": help };
  if (page) context.go(page[0]);
  else if (!going && acts[press.key]) acts[press.key]();
  else if (press.key !== "g") { going = false; return; }
  press.preventDefault();
  going = press.key === "g" && !going;
});

theme(remembered());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(remembered()));
at("theme").addEventListener("click", turnTheme);
at("help").addEventListener("click", help);
at("pulse").addEventListener("click", toggle);
at("source").addEventListener("change", (change) => context.choose(change.target.value));
at("skip").addEventListener("click", (click) => { click.preventDefault(); at("main").focus(); });
addEventListener("hashchange", () => { render(); scrollTo(0, 0); });
document.addEventListener("visibilitychange", listen);

try {
  context.overview = await api.overview();
  await render();
} catch (failure) {
  show(at("main"), trouble(failure));
}
listen();
