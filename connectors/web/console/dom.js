// Elements out of plain values. Text is always text: nothing here, or anywhere else in the console, takes markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

export const by = (id) => document.getElementById(id);

/** A table with a caption, named columns, and rows of values or elements. */
export function table(caption, columns, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, shown(cell))))))));
}

const shown = (cell) => (cell === null || cell === undefined || cell === "" ? "–" : cell instanceof Node ? cell : String(cell));

/** A moment in UTC, as `clock` and the command line tell it, with the exact one behind. */
export function moment(iso) {
  return el("time", { datetime: iso, title: iso }, `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`);
}

/** A number and what there are so many of. */
export const counted = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

/** The time of day, UTC, to the millisecond. */
export const clock = (iso) => iso.slice(11, 23);

export const conversationLink = (id, at) =>
  `#/conversation/${encodeURIComponent(id)}${at === undefined ? "" : `?at=${at}`}`;
