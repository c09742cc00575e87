// Draws the conversation. One list element an item; an item that changed is drawn anew in its place.

import { textOf } from "./conversation.js";
import { bubble, choices, contentOf, element, linked } from "./messages.js";

const NEAR_END_PX = 80;
const DEFAULT_CHOICES = [{ label: "Approve", value: { approved: true } }, { label: "Cancel", value: { approved: false } }];
const TOOL_STATES = { running: "running…", completed: "done", error: "failed", failed: "failed" };

export class View {
  // `on`: { pick(action, item), answer(ask, value), retry(item), withdraw(item) }
  constructor(page, on) {
    this._log = page.getElementById("log");
    this._activity = page.getElementById("activity");
    this._newest = page.getElementById("newest");
    this._announcer = page.getElementById("announcer");
    this._on = on;
    this._drawn = new Map();
    this._quiet = true; // nothing is announced while the past is replayed
    this._newest.addEventListener("click", () => this._toEnd());
    this._log.addEventListener("scroll", () => this._atEnd() && (this._newest.hidden = true));
  }

  // From now on what comes is news.
  live() {
    this._quiet = false;
  }

  changed(item) {
    const follow = this._atEnd();
    const known = this._drawn.get(item.key);
    if (item.removed || item.hidden) {
      known?.remove();
      this._drawn.delete(item.key);
      return;
    }
    const made = this._draw(item);
    known?.remove();
    this._place(made);
    this._drawn.set(item.key, made);
    if (follow) this._toEnd();
    else if (!known && !item.mine) this._newest.hidden = false;
    this._announce(item);
  }

  activity(conversation) {
    const waits = conversation.openAsks().length > 0;
    this._activity.textContent = waits ? "Waiting for your answer" : conversation.working || conversation.typing.size ? "Writing…" : "";
  }

  say(text) {
    this._announcer.textContent = text;
  }

  _draw(item) {
    const made = { message: () => this._message(item), stream: () => this._stream(item), tool: () => this._tool(item),
      ask: () => this._ask(item), notice: () => element("li", { class: "notice" }, item.text) }[item.kind]();
    if (item.place) made.dataset.place = item.place;
    return made;
  }

  // By seq, as in every other tab; what is not stored yet comes last.
  _place(made) {
    let before = this._log.lastElementChild;
    if (made.dataset.place)
      while (before && !(Number(before.dataset.place) <= Number(made.dataset.place))) before = before.previousElementSibling;
    if (before) before.after(made);
    else this._log.prepend(made);
  }

  _message(item) {
    const state = { sending: "pending", failed: "failed" }[item.delivery] ?? "";
    const made = element("li", { class: `${item.mine ? "mine" : "theirs"} ${state}`.trim() },
      element("span", { class: "unseen" }, item.mine ? "You: " : `${item.sender?.name ?? "Answer"}: `),
      ...contentOf(item, (action) => this._on.pick(action, item)));
    if (item.delivery === "sending") made.append(element("p", { class: "byline" }, "Sending…"));
    if (item.delivery === "failed")
      made.append(element("p", { class: "byline" }, `Not sent: ${item.why} `,
        element("button", { type: "button", onclick: () => this._on.retry(item) }, "Try again"), " ",
        element("button", { type: "button", onclick: () => this._on.withdraw(item) }, "Remove")));
    else if (item.time || item.edited)
      made.append(element("p", { class: "byline" }, item.time ? element("time", { datetime: new Date(item.time).toISOString() }, clock(item.time)) : null,
        item.edited ? element("span", { class: "edited" }, item.time ? " · edited" : "edited") : null));
    return made;
  }

  _stream(item) {
    const parts = item.parts.map((part) => (part.kind === "text" ? linked(part.content) : component(part.content)));
    return element("li", { class: item.done ? "theirs" : "theirs streaming", "aria-busy": item.done ? undefined : "true" },
      element("span", { class: "unseen" }, "Answer: "), bubble(...parts));
  }

  _tool(item) {
    const state = TOOL_STATES[item.status] ?? item.status ?? "";
    const details = element("details", { class: `tool ${state === "failed" ? "failed" : ""}`.trim() },
      element("summary", {}, `${item.name ?? "tool"} `, element("span", { class: "state" }, state)));
    for (const [name, value] of [["Input", item.params], ["Result", item.result], ["Error", item.error]])
      if (value !== undefined && value !== null) details.append(element("div", {}, name), element("pre", {}, pretty(value)));
    return element("li", { class: "theirs" }, details);
  }

  _ask(item) {
    const payload = item.data.payload ?? {};
    const title = payload.title ?? payload.text ?? payload.question ?? (Object.keys(payload).length ? pretty(payload) : "Your answer is needed");
    const offered = item.data.actions ?? (item.data.event || item.data.tool ? [] : DEFAULT_CHOICES);
    const closed = item.resolved || item.answered;
    const outcome = item.resolved ? `Answered: ${answerText(item.answer, offered)}` : item.answered ? "Sent…" : null;
    return element("li", { class: "theirs" },
      element("div", { class: closed ? "ask closed" : "ask", role: "group", "aria-label": String(title) },
        element("p", {}, linked(String(title))),
        closed ? element("p", { class: "byline" }, outcome) : choices(offered, (action) => this._on.answer(item, "value" in action ? action.value : action.label))));
  }

  _announce(item) {
    if (this._quiet || item.mine || item.announced) return;
    if (item.kind === "stream" && !item.done) return;
    if (item.kind === "tool") return;
    item.announced = true;
    const asked = item.data?.payload;
    this.say(item.kind === "ask" ? `Question: ${asked?.title ?? asked?.text ?? "your answer is needed"}` : `${item.edited ? "Edited: " : ""}${textOf(item)}`);
  }

  _atEnd() {
    return this._log.scrollHeight - this._log.scrollTop - this._log.clientHeight < NEAR_END_PX;
  }

  _toEnd() {
    this._log.scrollTop = this._log.scrollHeight;
    this._newest.hidden = true;
  }
}

// A component of the application's own: this page shows what it was given.
function component(chunk) {
  return element("div", { class: "card" }, element("h3", {}, chunk.component), element("pre", {}, pretty(chunk.props ?? {})));
}

function answerText(answer, offered) {
  const same = offered.find((action) => JSON.stringify("value" in action ? action.value : action.label) === JSON.stringify(answer));
  if (same) return same.label;
  if (answer === null || answer === undefined) return "no longer needed";
  return typeof answer === "string" ? answer : (answer.text ?? pretty(answer));
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function clock(time) {
  return new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}
