// Numbers, times and names as people read them.

import { h } from "./dom.js";

export const number = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

export const plural = (count, one, many = one + "s") => number(count) + " " + (count === 1 ? one : many);

export const rate = (value) => {
  if (value === null || value === undefined) return "–";
  return (value >= 100 || value === 0 ? number(value) : value.toFixed(1)) + "/s";
};

export const span = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return seconds === 0 ? "0 ms" : "< 1 ms";
  if (seconds < 0.01) return (seconds * 1000).toFixed(1) + " ms";
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  let left = Math.floor(seconds);
  const parts = units.slice(first, first + 2).map(([unit, size]) => {
    const count = Math.floor(left / size);
    left -= count * size;
    return count ? count + " " + unit : "";
  });
  return parts.filter(Boolean).join(" ");
};

// In one unit, where there is little room.
export const brief = (seconds) => {
  if (seconds === null || seconds === undefined || seconds < 60) return span(seconds);
  const [unit, size] = [["d", 86400], ["h", 3600], ["min", 60]].find(([, length]) => seconds >= length);
  const value = seconds / size;
  return (value < 10 ? Number(value.toFixed(1)) : Math.round(value)) + " " + unit;
};

export const bytes = (value) => {
  if (value === null || value === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return (unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)) + " " + units[unit];
};

// Relative, with the whole of it on hover.
export const ago = (stamp) => {
  if (!stamp) return "–";
  const date = new Date(stamp);
  const seconds = (Date.now() - date.getTime()) / 1000;
  const whole = (value) => (value < 60 ? Math.floor(value) + " s" : span(value));
  const words = seconds < -1 ? "in " + whole(-seconds) : seconds < 1 ? "just now" : whole(seconds) + " ago";
  return h("time", { datetime: stamp, title: date.toLocaleString() + "  (" + stamp + ")", class: "nowrap" }, words);
};

export const moment = (stamp) => {
  const date = new Date(stamp);
  const two = (part) => String(part).padStart(2, "0");
  const text = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
  return h("time", { datetime: stamp, title: stamp }, text);
};

export const badge = (state, words = state) => h("span", { class: "badge " + state }, words);

// A word of a search, quoted where it has to be. A slash outside quotes parts a type from an id, and
// U+0085 is a space to the server.
export const word = (text) => (/[\s\u0085"/]/.test(text) ? '"' + text.replace(/["\\]/g, "\\$&") + '"' : text);

// The search for one aggregate, and for no other.
export const aggregate = (of) => "aggregate:" + word(of.aggregate_type) + "/" + word(of.aggregate_id);

// The words of a search, as they are written.
export const split = (search) => search.match(/(?:"(?:\\.|[^"\\])*"?|[^\s\u0085"])+/gs) || [];
