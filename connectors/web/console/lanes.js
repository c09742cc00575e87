// Ownership lanes: one lane a member, one bar for each time that it held a run.

import { el, svg } from "./dom.js";
import { lanes } from "./fold.js";
import { sentence } from "./sentences.js";

const STEP_MIN = 22;
const STEP_MAX = 72;
const MARGIN = 16;
const BAR = 14;
const GAP = 4;
const PAD = 9;

/** Gives each bar of a lane the first row that is free; the number of rows. */
function stacked(bars, last) {
  const until = [];
  for (const bar of bars) {
    let row = until.findIndex((end) => end <= bar.from);
    if (row < 0) row = until.push(0) - 1;
    until[row] = bar.to ?? last;
    bar.row = row;
  }
  return Math.max(1, until.length);
}

/**
 * The picture, and `show(count)`, which moves its cursor to the count-th event. `pick` is called with a count. It fills
 * `room` where there are few events, and scrolls where there are many.
 */
export function drawn(events, room, pick) {
  const found = lanes(events);
  const last = Math.max(0, events.length - 1);
  const step = Math.min(STEP_MAX, Math.max(STEP_MIN, (room - 3 * MARGIN) / Math.max(1, last)));
  const at = (index) => MARGIN + index * step;
  let top = 22;
  const places = new Map();
  for (const lane of found.lanes) {
    const rows = stacked(lane.bars, last + 1);
    const height = rows * (BAR + GAP) - GAP + 2 * PAD;
    places.set(lane.name, { top, height, middle: top + height / 2 });
    top += height;
  }
  const [width, height] = [Math.max(room, at(last) + MARGIN + 12), top + 4];
  const members = found.lanes.length - 1;
  const runs = found.lanes.reduce((sum, lane) => sum + lane.bars.length, 0);
  const told = `Ownership lanes: ${members} members or waiting lines, ${runs} holdings of runs, ${found.moves.length} moves. `
    + "The list of events says the same in words.";
  const picture = svg("svg", { role: "img", "aria-label": told, width, height, viewBox: `0 0 ${width} ${height}` });

  found.lanes.forEach((lane, number) => {
    const place = places.get(lane.name);
    picture.append(svg("rect", {
      class: `lane ${number % 2 ? "odd" : "even"}`, x: 0, y: place.top, width, height: place.height,
    }));
  });
  for (const writer of found.writers) {
    picture.append(svg("line", { class: "writer", x1: at(writer.index), x2: at(writer.index), y1: 20, y2: height },
      svg("title", {}, `writer epoch ${writer.epoch}: ${writer.worker}`)));
  }
  for (const lane of found.lanes) {
    for (const bar of lane.bars) picture.append(barOf(bar, places.get(lane.name), [at(bar.from), at(bar.to ?? last)]));
  }
  for (const move of found.moves) {
    const [from, to] = [places.get(move.from).middle, places.get(move.to).middle];
    const tip = to > from ? -1 : 1;
    picture.append(
      svg("line", { class: "move", x1: at(move.index), x2: at(move.index), y1: from, y2: to + 6 * tip },
        svg("title", {}, `moves to ${move.to}: ${move.reason}`)),
      svg("path", {
        class: "tip", d: `M${at(move.index) - 5},${to + 7 * tip} L${at(move.index) + 5},${to + 7 * tip} L${at(move.index)},${to} Z`,
      }),
    );
  }
  for (const lane of found.lanes) {
    for (const mark of lane.marks) picture.append(markOf(at(mark.index), mark.kind, places.get(lane.name), events[mark.index]));
  }
  events.forEach((event, index) => {
    if (index % 10 === 0) picture.append(svg("text", { class: "tick", x: at(index), y: 13 }, String(event.lsn)));
  });
  const later = svg("rect", { class: "later", y: 0, height });
  const cursor = svg("line", { class: "cursor", y1: 16, y2: height });
  picture.append(later, cursor);
  picture.addEventListener("click", (clicked) => {
    const place = (clicked.clientX - picture.getBoundingClientRect().left - MARGIN) / step;
    pick(Math.min(events.length, Math.max(1, Math.round(place) + 1)));
  });

  const labels = el("div", { class: "labels", "aria-hidden": "true" },
    el("div", { class: "label axis" }, "lsn"),
    found.lanes.map((lane) => labelOf(lane, places.get(lane.name))));
  const scroller = el("div", { class: "scroller" }, picture);
  const show = (count) => {
    const x = at(Math.max(0, count - 1));
    later.setAttribute("x", x);
    later.setAttribute("width", Math.max(0, count < events.length ? width - x : 0));
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const [left, seen] = [scroller.scrollLeft, scroller.clientWidth];
    if (x < left + 40 || x > left + seen - 40) scroller.scrollLeft = x - seen / 2;
  };
  return { element: el("div", { class: "lanes" }, labels, scroller), show };
}

function labelOf(lane, place) {
  const label = el("div", { class: "label", title: lane.group ? `${lane.name} in ${lane.group}` : lane.name },
    el("span", {}, lane.name));
  label.style.height = `${place.height}px`;
  return label;
}

function barOf(bar, place, [from, to]) {
  const y = place.top + PAD + bar.row * (BAR + GAP);
  const width = Math.max(8, to - from) + (bar.to === null ? 10 : 0);
  const group = svg("g", { class: `bar ${bar.end ?? "open"}` },
    svg("title", {}, `turn ${bar.turn} in ${bar.group}, epoch ${bar.epoch}: ${bar.end ?? "open"}`),
    svg("rect", { x: from, y, width, height: BAR, rx: 4 }));
  if (width > 26) group.append(svg("text", { x: from + 5, y: y + BAR - 3 }, `${bar.turn}`));
  return group;
}

function markOf(x, kind, place, event) {
  const y = place.middle;
  const title = svg("title", {}, sentence(event));
  switch (kind) {
    case "turn":
      return svg("circle", { class: "mark turn", cx: x, cy: y, r: 5 }, title);
    case "refused":
      return svg("path", { class: "mark refused", d: `M${x - 5},${y - 5} l10,10 m0,-10 l-10,10` }, title);
    default:
      return svg("rect", { class: "mark frame", x: x - 1.5, y: y - 4, width: 3, height: 8 }, title);
  }
}
