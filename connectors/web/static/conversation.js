// What a person sees of one conversation, made of the protocol's frames alone: no page, no socket, no clock.
//
// Numbered frames are taken in order: the next seq, or nothing. A frame that is not the next one says whether it is old
// or leaves a gap, so that whoever holds the socket can ask for what is missing.

export const Taken = Object.freeze({ NEXT: "next", OLD: "old", GAP: "gap", UNNUMBERED: "unnumbered" });

const AGENT = "bot";

export class Conversation {
  // `changed(item)` is called for every item that is to be drawn again; `state()` for the rest. An item's `place` is the
  // seq by which it is ordered: that of its first frame; without one it is not stored yet, and comes last.
  constructor({ changed = () => {}, state = () => {} } = {}) {
    this.watermark = 0;
    this.items = [];
    this.working = false;
    this.closed = false;
    this.typing = new Map(); // sender -> true while that one types
    this._changed = changed;
    this._state = state;
    this._byKey = new Map();
    this._bySeq = new Map(); // seq -> item that the frame went into
    this._superseded = new Set(); // seqs, also of frames that are still to come
  }

  // One frame of the server; says how a numbered one fits.
  take(frame) {
    if (Number.isInteger(frame.seq) && frame.seq > 0 && frame.type !== "ack") {
      if (frame.seq <= this.watermark) return Taken.OLD;
      if (frame.seq > this.watermark + 1) return Taken.GAP;
      this.watermark = frame.seq;
      if (frame.superseded) this._superseded.add(frame.seq);
      this._numbered(frame);
      return Taken.NEXT;
    }
    this._unnumbered(frame);
    return Taken.UNNUMBERED;
  }

  // The person's own message, before the server has it; `more`: the frame's other fields, for it to be said again.
  say(clientId, text, time, more = {}) {
    this._put({ key: `mine:${clientId}`, kind: "message", mine: true, type: "text", data: { text }, more, time, clientId, delivery: "sending" });
  }

  // The server has it: at `seq`, which may be the next one. A gap before it is filled by its replay.
  acked(clientId, seq) {
    const item = this._byKey.get(`mine:${clientId}`);
    if (seq === this.watermark + 1) this.watermark = seq;
    if (!item) return;
    const twin = this._bySeq.get(seq);
    if (twin && twin !== item) {
      this._remove(item); // a replay brought it first
      return;
    }
    item.delivery = "sent";
    item.seq = item.place = seq;
    this._bySeq.set(seq, item);
    this._changed(item);
  }

  // It was refused, or its fate is unknown and nobody will try again.
  failed(clientId, why) {
    const item = this._byKey.get(`mine:${clientId}`);
    if (!item) return;
    item.delivery = "failed";
    item.why = why;
    this._changed(item);
  }

  // Take back a message that failed.
  withdraw(clientId) {
    const item = this._byKey.get(`mine:${clientId}`);
    if (item) this._remove(item);
  }

  // The person's answer to a question; it goes with those to the others that wait.
  answer(ask, value) {
    ask.answered = true;
    ask.given = value;
    this._changed(ask);
  }

  // The answers to all questions that wait, by their ids, once each has one; they count as sent. Else null.
  takeAnswers() {
    const waiting = this.openAsks().filter((ask) => !ask.sent);
    if (waiting.length === 0 || !waiting.every((ask) => ask.answered)) return null;
    for (const ask of waiting) ask.sent = true;
    return Object.fromEntries(waiting.map((ask) => [ask.id, ask.given]));
  }

  // A person's answer was not taken: the questions wait for another one.
  reopen(ids) {
    for (const id of ids) {
      const item = this._byKey.get(`ask:${id}`);
      if (!item || !item.answered) continue;
      item.answered = item.sent = false;
      this._changed(item);
    }
  }

  // A connection begins: who works and who types is told anew, and the end of it may have been missed.
  rest() {
    this.working = false;
    this.typing.clear();
    this._state();
  }

  openAsks() {
    return this.items.filter((item) => item.kind === "ask" && !item.resolved && !item.hidden);
  }

  notice(text) {
    this._put({ key: `notice:${this.items.length}:${text}`, kind: "notice", text });
  }

  _numbered(frame) {
    const data = frame.data ?? {};
    switch (frame.type) {
      case "genui":
        return this._chunk(frame);
      case "tool_call":
        return this._upsert(frame, `tool:${data.id}`, toolOf(data));
      case "skill":
        return this._upsert(frame, `skill:${data.id ?? data.name}`, { status: "completed", ...toolOf(data) });
      case "interrupt":
        return this._upsert(frame, `ask:${frame.id}`, { kind: "ask", id: frame.id, data, resolved: false, answered: false, sent: false });
      case "interrupt_resolved":
        return this._resolved(frame);
      case "conversationUpdate":
        return this._updated(frame, data);
      case "event":
        return data.text ? this._upsert(frame, `seq:${frame.seq}`, { kind: "notice", text: data.text }) : undefined;
      default:
        return this._message(frame, data);
    }
  }

  _message(frame, data) {
    const mine = frame.from === "user";
    if (!mine) this.typing.delete(frame.sender?.id ?? AGENT);
    const key = mine && frame.clientId && this._byKey.has(`mine:${frame.clientId}`) ? `mine:${frame.clientId}` : `seq:${frame.seq}`;
    this._upsert(frame, key, {
      kind: "message", mine, type: frame.type, data, actions: frame.actions, sender: frame.sender, time: frame.timestamp, delivery: "sent", edited: frame.editedAt !== undefined,
    });
    this._state();
  }

  _chunk(frame) {
    const key = `stream:${frame.streamId}`;
    const known = this._byKey.get(key);
    const item = known ?? { key, kind: "stream", parts: [], done: false };
    if (frame.superseded || this._superseded.has(frame.seq)) item.hidden = true;
    item.place ??= frame.seq;
    item.seqs = [...(item.seqs ?? []), frame.seq];
    item.done = item.done || frame.done;
    const chunk = frame.chunk ?? {};
    if (chunk.type === "text") addPart(item.parts, chunk.id, "text", chunk.content);
    else if (chunk.type === "ui") addPart(item.parts, chunk.id, "ui", chunk);
    this._bySeq.set(frame.seq, item);
    this._store(item, !known);
  }

  _resolved(frame) {
    const item = this._byKey.get(`ask:${frame.id}`);
    if (!item) return;
    item.resolved = true;
    item.answer = frame.data?.answer;
    this._bySeq.set(frame.seq, item);
    this._changed(item);
  }

  _updated(frame, data) {
    if (data.status) this.closed = data.status === "closed";
    const said = { conversation_closed: "The conversation was closed.", conversation_reopened: "The conversation is open again.",
      conversation_handed_over: `${data.to && data.to !== "human" ? data.to : "A person"} takes over.`, conversation_handed_back: "The assistant is back." };
    const text = data.text ?? said[data.event] ?? `The conversation changed: ${data.event ?? data.status ?? "update"}.`;
    this._upsert(frame, `seq:${frame.seq}`, { kind: "notice", text });
    this._state();
  }

  _unnumbered(frame) {
    const data = frame.data ?? {};
    if (frame.type === "run") {
      this.working = data.status === "started";
      if (Array.isArray(data.superseded)) this._supersede(data.superseded);
      this._state();
    } else if (frame.type === "superseded") {
      this._supersede(data.seqs ?? []);
    } else if (frame.type === "edited") {
      const item = this._bySeq.get(data.seq);
      if (item?.kind === "message") {
        item.data = data.data;
        item.edited = true;
        item.announced = false; // it is news again
        this._changed(item);
      }
    } else if (frame.type === "typing" && frame.from !== "user") {
      const who = frame.sender?.id ?? AGENT;
      if (frame.isTyping) this.typing.set(who, true);
      else this.typing.delete(who);
      this._state();
    }
  }

  // What another process begins anew is not part of the answer any more.
  _supersede(seqs) {
    for (const seq of seqs) {
      this._superseded.add(seq);
      const item = this._bySeq.get(seq);
      if (item && !item.hidden && (item.seqs ?? [item.seq]).every((each) => this._superseded.has(each))) {
        item.hidden = true;
        this._changed(item);
      }
    }
  }

  _upsert(frame, key, fields) {
    const known = this._byKey.get(key);
    const item = Object.assign(known ?? { key }, fields, { seq: frame.seq });
    if (item.hidden) item.place = frame.seq; // what was superseded is said anew: there, not where it was
    item.hidden = this._superseded.has(frame.seq);
    item.place ??= frame.seq;
    this._bySeq.set(frame.seq, item);
    this._store(item, !known);
  }

  _put(item) {
    this._store(item, true);
  }

  _store(item, isNew) {
    if (isNew) {
      this._byKey.set(item.key, item);
      this.items.push(item);
    }
    this._changed(item);
  }

  _remove(item) {
    this._byKey.delete(item.key);
    this.items.splice(this.items.indexOf(item), 1);
    item.removed = true;
    this._changed(item);
  }
}

// Text whose id is on screen goes on there, and text without an id where the text before it ended: an answer streams in
// pieces that share an id. A component whose id is on screen is updated in place.
function addPart(parts, id, kind, content) {
  const known = id === undefined ? undefined : parts.find((part) => part.id === id);
  const last = parts.at(-1);
  if (known?.kind === "text" && kind === "text") known.content += content;
  else if (known) Object.assign(known, { kind, content });
  else if (id === undefined && kind === "text" && last?.kind === "text" && last.id === undefined) last.content += content;
  else parts.push({ id, kind, content });
}

// What of a tool call is shown; fields of others' making must not become an item's own.
function toolOf(data) {
  const { name, status, params, result, error } = data;
  const given = Object.entries({ name, status, params, result, error }).filter(([, value]) => value !== undefined);
  return { kind: "tool", ...Object.fromEntries(given) };
}

export function textOf(item) {
  if (item.kind === "stream") return item.parts.filter((part) => part.kind === "text").map((part) => part.content).join("");
  return item.data?.text ?? item.text ?? "";
}
