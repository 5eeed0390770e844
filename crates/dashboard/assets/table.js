// Tables that become lists of cards where the screen is narrow.

import { h } from "./dom.js";

// columns: [label, cell of row, class]; key: what a row is known by when it is looked at again
export const table = (label, columns, rows, key) =>
  h("div", { class: "card table" },
    h("table", { "aria-label": label },
      h("thead", {}, h("tr", {}, columns.map(([name, , kind]) => h("th", { scope: "col", class: kind }, name)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", { "data-key": key(row) }, columns.map(([name, cell, kind]) => {
          const content = cell(row);
          return h("td", { "data-label": name, class: kind }, content === "" ? [] : content);
        }))))));
