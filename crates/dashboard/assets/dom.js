// Elements without markup: whatever the server sends becomes text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

const make = (element, properties, children) => {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    // As a property, so that another look can replace it.
    if (name.startsWith("on")) element[name] = value;
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

const key = (node) => node.dataset?.key || node.id || "";
const alike = (one, other) => one.nodeName === other.nodeName && key(one) === key(other);

// Makes an element like another, and touches only what differs: what has the focus, is scrolled or
// written into stays. Rows are known by data-key; what is data-kept stays as it is.
export const become = (old, fresh) => {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of ["onclick", "onsubmit"]) old[name] = fresh[name];
  const wanted = [...fresh.childNodes], known = new Set(wanted.map(key));
  for (const node of [...old.childNodes]) if (key(node) && !known.has(key(node))) node.remove();
  let place = old.firstChild;
  for (const node of wanted) {
    const same = key(node) ? [...old.childNodes].find((one) => alike(one, node)) : place && alike(place, node) ? place : null;
    if (!same) { old.insertBefore(node, place); continue; }
    if (same === place) place = place.nextSibling;
    else old.insertBefore(same, place);
    if (same.nodeType !== Node.ELEMENT_NODE) { if (same.nodeValue !== node.nodeValue) same.nodeValue = node.nodeValue; }
    else if (!("kept" in same.dataset)) become(same, node);
  }
  while (place) { const next = place.nextSibling; place.remove(); place = next; }
};

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
