// Elements without markup: whatever the server sends becomes text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

const make = (element, properties, children) => {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
};

export const h = (name, properties, ...children) => make(document.createElement(name), properties, children);
export const svg = (name, properties, ...children) => make(document.createElementNS(SVG, name), properties, children);
export const at = (id) => document.getElementById(id);
export const show = (root, ...children) => root.replaceChildren(...children.flat(3).filter(Boolean));

export const empty = (title, ...words) => h("div", { class: "card empty" }, h("strong", {}, title), ...words);

export const trouble = (failure) =>
  h("div", { class: "card trouble", role: "alert" },
    h("p", {}, h("strong", {}, failure.code || "error"), " ", failure.message),
    failure.fix && h("p", {}, failure.fix));

export const facts = (pairs, kind = "list") =>
  h("dl", { class: kind }, pairs.filter(Boolean).map(([name, value, hot]) =>
    kind === "facts"
      ? h("div", {}, h("dt", {}, name), h("dd", { class: hot ? "hot" : null }, value))
      : [h("dt", {}, name), h("dd", {}, value)]));
