// One conversation: its lanes, its events, and what they come to at any of them.

import { ask } from "./api.js";
import { clock, conversationLink, el, moment, table } from "./dom.js";
import { countAt, fold, fromOpening, isOpen } from "./fold.js";
import { drawn } from "./lanes.js";
import { sentence, tone } from "./sentences.js";

const LOADED_AT_ONCE = 3000;
const PAGE = 500;
// Of a partition with much else in it: then it is for the reader to say whether to read on.
const PAGES_AT_ONCE = 30;
const LABELS_PX = 190;

/** The view. `say` tells who does not look; `signal` is set off when another view is opened. */
export async function conversation(view, id, wantedLsn, { say, signal }) {
  const path = `/conversations/${encodeURIComponent(id)}`;
  const overview = await ask(path, {}, { signal });
  const journal = new Journal(id, path, signal);
  const parts = frame(view, overview);
  const screen = new Screen(journal, parts, say);

  const load = async (wanted) => {
    parts.more.hidden = true;
    parts.progress.textContent = "Reading the journal…";
    await journal.load(wanted, () => { parts.progress.textContent = journal.progress(); });
    parts.progress.textContent = journal.progress();
    parts.more.hidden = false;
    parts.more.textContent = journal.done ? "Look for new events" : "Read on";
    screen.draw();
  };
  parts.more.addEventListener("click", () => guarded(parts, async () => {
    const stay = screen.count < journal.events.length ? screen.count : null;
    await load(null);
    screen.show(stay ?? journal.events.length);
  }));
  parts.words.addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    const why = new FormData(parts.words).get("why");
    guarded(parts, async () => {
      const lsn = screen.lsn();
      journal.restart(why);
      await load(lsn);
      screen.show(countAt(journal.events, lsn));
      parts.words.replaceChildren(el("p", { class: "notice" }, "What was said is shown; the journal notes that you were shown it."));
    });
  });
  await load(wantedLsn);
  screen.show(countAt(journal.events, wantedLsn));
}

async function guarded(parts, work) {
  parts.problem.textContent = "";
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    parts.problem.textContent = `That could not be read: ${error.message}`;
    parts.more.hidden = false;
  }
}

/** The events that were read so far. */
class Journal {
  constructor(id, path, signal) {
    Object.assign(this, { id, path, signal });
    this.restart(null);
  }

  restart(why) {
    Object.assign(this, { read: [], events: [], next: null, first: 0, done: false, why });
  }

  /** Reads on: to the end, or as many as are read at once; in any case to the lsn that is wanted. */
  async load(wantedLsn, told) {
    let [found, pages] = [0, 0];
    const goesOn = () => pages < PAGES_AT_ONCE
      && (found < LOADED_AT_ONCE || (wantedLsn !== null && (this.read.at(-1)?.lsn ?? 0) < wantedLsn));
    do {
      const shown = this.why === null ? {} : { showText: 1, why: this.why };
      const page = await ask(`${this.path}/events`, { limit: PAGE, offset: this.next, ...shown }, { signal: this.signal });
      this.read.push(...page.events);
      found += page.events.length;
      pages += 1;
      Object.assign(this, { next: page.next, first: page.first, end: page.end, done: page.done });
      this.events = fromOpening(this.read);
      told();
    } while (!this.done && goesOn());
  }

  /** Whether Kafka has lost how it began. */
  cut() {
    return this.events.length > 0 && this.events[0].type !== "ConversationOpened";
  }

  progress() {
    const count = `${this.events.length} events`;
    if (this.done) return `${count}: all that is committed.`;
    return `${count} so far: read to offset ${this.next} of ${this.end}.`;
  }
}

/** The unchanging parts of the view. */
function frame(view, overview) {
  const parts = {
    progress: el("p", { class: "notice", role: "status" }),
    problem: el("p", { class: "problem", role: "alert" }),
    more: el("button", { type: "button", hidden: true }),
    lanes: el("div", {}),
    slider: el("input", { type: "range", id: "at", min: 1, value: 1, step: 1 }),
    place: el("output", { for: "at" }),
    steps: Object.fromEntries([["first", "First"], ["back", "Back"], ["on", "On"], ["last", "Last"], ["move", "Next move"]].map(
      ([name, label]) => [name, el("button", { type: "button" }, label)])),
    state: el("div", { class: "state" }),
    list: el("ol", { class: "events", "aria-label": "Events", tabindex: "0" }),
    fields: el("pre", { tabindex: "0", "aria-label": "Fields of the event" }),
    words: wordsForm(),
  };
  const facts = [
    ["Status", overview.status], ["Channel", overview.channel], ["Participant", overview.participant],
    ["External id", overview.external_id], ["Partition", overview.partition], ["Head seq", overview.head_seq],
    ["Opened", moment(overview.opened_at)], ["Last activity", moment(overview.updated_at)],
  ];
  view.replaceChildren(
    el("h1", {}, "Conversation ", el("code", {}, overview.id)),
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name),
      el("dd", {}, value === null || value === undefined ? "–" : value instanceof Node ? value : String(value))))),
    el("div", { class: "bar-line" }, parts.progress, parts.more), parts.problem,
    el("section", { "aria-labelledby": "lanes-title" }, el("h2", { id: "lanes-title" }, "Who held it"), parts.lanes, legend()),
    el("section", { class: "replay", "aria-labelledby": "replay-title" },
      el("h2", { id: "replay-title" }, "Replay"),
      el("div", { class: "slide" }, el("label", { for: "at" }, "As of event"), parts.slider, parts.place),
      el("div", { class: "steps" }, Object.values(parts.steps))),
    el("div", { class: "columns" },
      el("section", { "aria-labelledby": "events-title" }, el("h2", { id: "events-title" }, "Events"), parts.words, parts.list),
      el("section", { "aria-labelledby": "state-title" }, el("h2", { id: "state-title" }, "State as of then"), parts.state,
        el("h3", {}, "The event"), parts.fields)));
  return parts;
}

function wordsForm() {
  return el("form", { class: "words" },
    el("details", {},
      el("summary", {}, "Show what was said"),
      el("label", { for: "why" }, "Why? The journal notes it with your name"),
      el("input", { id: "why", name: "why", required: true, maxlength: 200, autocomplete: "off" }),
      el("button", { type: "submit" }, "Show it")));
}

const legend = () => el("ul", { class: "legend" },
  [["answered", "answered"], ["open", "open"], ["moved", "moved away"], ["failed", "ended otherwise"]].map(([kind, label]) =>
    el("li", {}, el("span", { class: `swatch ${kind}` }), label)),
  el("li", {}, el("span", { class: "sign turn" }, "●"), "turn"),
  el("li", {}, el("span", { class: "sign refused" }, "✕"), "refused or repeated"),
  el("li", {}, el("span", { class: "sign writer" }, "┊"), "another writer"));

/** What changes as one goes from event to event. */
class Screen {
  constructor(journal, parts, say) {
    Object.assign(this, { journal, parts, say, count: 0, picture: null, buttons: [] });
    parts.slider.addEventListener("input", () => this.show(Number(parts.slider.value)));
    parts.steps.first.addEventListener("click", () => this.show(1));
    parts.steps.back.addEventListener("click", () => this.show(this.count - 1));
    parts.steps.on.addEventListener("click", () => this.show(this.count + 1));
    parts.steps.last.addEventListener("click", () => this.show(this.journal.events.length));
    parts.steps.move.addEventListener("click", () => this.show(this.nextMove() ?? this.count));
  }

  lsn() {
    return this.journal.events[this.count - 1]?.lsn ?? null;
  }

  nextMove() {
    const found = this.journal.events.findIndex((event, index) => index >= this.count && event.type === "RunMoved");
    return found < 0 ? null : found + 1;
  }

  /** Draws what does not depend on the place. */
  draw() {
    const { events } = this.journal;
    const { parts } = this;
    if (events.length === 0) {
      parts.lanes.replaceChildren(el("p", { class: "notice" }, "Kafka has no event of this conversation any more: an archive may."));
      return;
    }
    this.picture = drawn(events, parts.lanes.clientWidth - LABELS_PX, (count) => this.show(count));
    parts.lanes.replaceChildren(...(this.journal.cut() ? [el("p", { class: "problem" },
      `Kafka has deleted how it began (before offset ${this.journal.first}): what is shown begins in the middle.`)] : []),
      this.picture.element);
    parts.slider.max = events.length;
    this.buttons = events.map((event, index) => this.line(event, index + 1));
    parts.list.replaceChildren(...this.buttons.map((button) => el("li", {}, button)));
  }

  line(event, count) {
    return el("button", { type: "button", class: `event ${tone(event)}`, onclick: () => this.show(count) },
      el("span", { class: "lsn" }, String(event.lsn)), el("span", { class: "when" }, clock(event.at)),
      el("span", { class: "seq" }, event.seq ? `#${event.seq}` : ""), el("span", { class: "told" }, sentence(event)));
  }

  /** Shows all as of the count-th event. */
  show(wanted) {
    const { events, id } = this.journal;
    const { parts } = this;
    if (events.length === 0) return;
    const count = Math.min(events.length, Math.max(1, wanted));
    this.buttons[this.count - 1]?.removeAttribute("aria-current");
    this.count = count;
    const event = events[count - 1];
    const told = `event ${count} of ${events.length}, lsn ${event.lsn}: ${sentence(event)}`;
    parts.slider.value = count;
    parts.slider.setAttribute("aria-valuetext", told);
    parts.place.textContent = `${count} of ${events.length} · lsn ${event.lsn} · ${clock(event.at)}`;
    parts.steps.first.disabled = parts.steps.back.disabled = count === 1;
    parts.steps.last.disabled = parts.steps.on.disabled = count === events.length;
    parts.steps.move.disabled = this.nextMove() === null;
    const button = this.buttons[count - 1];
    button.setAttribute("aria-current", "true");
    const [list, item] = [parts.list, button.parentElement];
    const top = item.offsetTop - list.offsetTop;
    if (top < list.scrollTop || top + item.offsetHeight > list.scrollTop + list.clientHeight) {
      list.scrollTop = top - list.clientHeight / 2;
    }
    this.picture.show(count);
    parts.state.replaceChildren(...stateOf(fold(events, count)));
    parts.fields.textContent = JSON.stringify({ type: event.type, lsn: event.lsn, seq: event.seq, at: event.at,
      offset: event.offset, writer_epoch: event.writer_epoch, ...event.fields, masked: event.masked }, null, 2);
    history.replaceState(null, "", conversationLink(id, event.lsn));
    this.say(told);
  }
}

function stateOf(state) {
  const runs = [...state.runs.values()];
  const open = runs.filter(isOpen);
  const facts = [
    ["Status", state.handedTo ? `${state.status}, answered by ${state.handedTo}` : state.status], ["Turns", state.turns],
    ["Head seq", state.headSeq], ["Moves", state.moves], ["Refused", state.refused], ["Repeats", state.duplicates],
    ["Superseded", state.superseded.size],
  ];
  return [
    el("dl", { class: "facts" }, facts.map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    table("Owners", ["Group", "Next turn goes to"], [...state.owners]),
    table(`Runs: ${open.length} open of ${runs.length}`, ["Turn", "Group", "Member", "Epoch", "State"],
      runs.slice(-12).reverse().map((run) => [run.turn, run.group, run.member, run.epoch, run.state])),
  ];
}
