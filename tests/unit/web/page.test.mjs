// The page's parts without a page: node --test page.test.mjs

import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";

import { Conversation, Taken, textOf } from "../../../connectors/web/static/conversation.js";
import { Session, State, openConversation } from "../../../connectors/web/static/session.js";

class FakeSocket {
  static made = [];
  constructor() {
    this.sent = [];
    this.closed = false;
    FakeSocket.made.push(this);
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close() {
    this.closed = true; // as where the network is gone: nobody says that it is closed
  }
  hear(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }
}

const told = () => FakeSocket.made.at(-1);
const sent = (kind) => told().sent.filter((frame) => frame.type === kind);
let requests;
let answers;

beforeEach(() => {
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: 1_750_000_000_000 });
  FakeSocket.made = [];
  requests = [];
  answers = [];
  globalThis.WebSocket = FakeSocket;
  globalThis.fetch = async (url) => {
    requests.push(url);
    return answers.shift() ?? { ok: true, status: 200, json: async () => ({ token: "fresh" }) };
  };
});

afterEach(() => mock.timers.reset());

function begun({ expiresIn = 1_800_000, ...more } = {}) {
  const conversation = new Conversation();
  const credentials = { conversation: "c", token: () => "old", renew: () => {} };
  const session = new Session(conversation, { credentials, outbox: { load: () => [], save: () => {} }, origin: "http://there", ...more });
  session.connect();
  told().onopen();
  told().hear({ type: "welcome", data: { watermark: 0, expiresAt: Date.now() + expiresIn } });
  return { conversation, session };
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a connection that gets no welcome is given up, and another one made", () => {
  const { session } = begun();
  told().onclose({ code: 1006, reason: "" });
  mock.timers.tick(1_000);
  told().onopen();
  const silent = told();
  mock.timers.tick(15_000);
  assert.equal(silent.closed, true);
  assert.equal(session.state, State.WAITING);
  mock.timers.tick(2_000);
  assert.notEqual(told(), silent);
});

test("a peer that answers no ping is lost at once, though nobody says so", () => {
  const { session } = begun();
  mock.timers.tick(30_000);
  mock.timers.tick(15_000);
  assert.equal(session.state, State.WAITING);
});

test("a wrong clock is no reason to ask for tokens without end", async () => {
  begun({ expiresIn: -3_600_000 });
  mock.timers.tick(9_999);
  assert.equal(requests.length, 0);
  mock.timers.tick(1);
  assert.equal(requests.length, 1);
});

test("a token that lasts for months is not renewed at once", () => {
  begun({ expiresIn: 90 * 24 * 3_600_000 });
  mock.timers.tick(29_000);
  assert.equal(requests.length, 0);
});

test("a token that cannot be renewed now is renewed later", async () => {
  begun({ expiresIn: 120_000 });
  answers.push({ ok: false, status: 503 });
  for (const ms of [20_000, 20_000, 20_000]) { // the peer answers, or it would be lost
    mock.timers.tick(ms);
    told().hear({ type: "heartbeat" });
  }
  await settled();
  assert.deepEqual([requests.length, sent("auth").length], [1, 0]);
  mock.timers.tick(5_000);
  await settled();
  assert.deepEqual([requests.length, sent("auth").length], [2, 1]);
});

test("a sync that is refused for its rate is asked for again", () => {
  begun();
  told().hear({ type: "text", from: "bot", seq: 2, data: { text: "two" } });
  assert.equal(sent("sync").length, 1);
  told().hear({ type: "error", data: { code: "rate_limited", frameType: "sync", retryAfterMs: 200 } });
  mock.timers.tick(200);
  assert.equal(sent("sync").length, 2);
});

test("text that shares an id is joined, and a component that has one is updated in place", () => {
  const conversation = new Conversation();
  const chunks = [
    { type: "text", content: "One ", id: 1 }, { type: "ui", component: "card", props: { n: 1 }, id: 2 },
    { type: "text", content: "two ", id: 1 }, { type: "ui", component: "card", props: { n: 2 }, id: 2 },
    { type: "text", content: "three.", id: 1 }, { type: "event", name: "stream_done", id: 3 },
  ];
  chunks.forEach((chunk, at) => conversation.take({ type: "genui", seq: at + 1, streamId: "s", done: at === chunks.length - 1, chunk }));
  assert.equal(conversation.items.length, 1);
  assert.equal(textOf(conversation.items[0]), "One two three.");
  assert.deepEqual(conversation.items[0].parts.map((part) => part.content.props?.n), [undefined, 2]);
});

test("a message that failed keeps what it answers, for it to be said again", () => {
  const conversation = new Conversation();
  conversation.say("c-1", "Yes", 1, { replyTo: { seq: 4 } });
  conversation.failed("c-1", "gone");
  assert.deepEqual(conversation.items[0].more, { replyTo: { seq: 4 } });
});

test("who takes over is named where that is told", () => {
  const conversation = new Conversation();
  const update = (seq, to) => conversation.take({ type: "conversationUpdate", seq, data: { event: "conversation_handed_over", to } });
  update(1, "human");
  update(2, "Eve, second line");
  assert.deepEqual(conversation.items.map((item) => item.text), ["A person takes over.", "Eve, second line takes over."]);
});

test("nobody works or types any more when a connection begins", () => {
  const { conversation } = begun();
  told().hear({ type: "run", data: { status: "started" } });
  told().hear({ type: "typing", isTyping: true, from: "bot" });
  assert.equal(conversation.working, true);
  told().onclose({ code: 1006, reason: "" });
  mock.timers.tick(1_000);
  told().onopen();
  told().hear({ type: "welcome", data: { watermark: 0 } });
  assert.deepEqual([conversation.working, conversation.typing.size], [false, 0]);
});

test("a conversation is opened when the gateway can again", async () => {
  const refused = { error: { message: "stopping", details: { retryAfterMs: 500 } } };
  answers.push({ ok: false, status: 503, json: async () => refused }, { ok: true, status: 201, json: async () => ({ conversationId: "c" }) });
  const opening = openConversation("http://there", "t", "k");
  await settled();
  mock.timers.tick(500);
  assert.deepEqual(await opening, { conversationId: "c" });
  answers.push({ ok: false, status: 401, json: async () => ({ error: { message: "no" } }) });
  await assert.rejects(openConversation("http://there", "t", "k"), /no/);
});

const ask = (id, seq) => ({ type: "interrupt", from: "bot", id, seq, data: { payload: {} } });

test("a question that comes while another answer is on its way is answered by itself", () => {
  const conversation = new Conversation();
  conversation.take(ask("one", 1));
  conversation.answer(conversation.openAsks()[0], "yes");
  assert.deepEqual(conversation.takeAnswers(), { one: "yes" });
  assert.equal(conversation.takeAnswers(), null, "once");
  conversation.take(ask("two", 2));
  assert.equal(conversation.takeAnswers(), null);
  conversation.answer(conversation.openAsks()[1], "no");
  assert.deepEqual(conversation.takeAnswers(), { two: "no" });
});

test("an answer waits for those to the other questions, also when one is answered elsewhere", () => {
  const conversation = new Conversation();
  conversation.take(ask("one", 1));
  conversation.take(ask("two", 2));
  conversation.answer(conversation.openAsks()[0], "yes");
  assert.equal(conversation.takeAnswers(), null);
  conversation.take({ type: "interrupt_resolved", id: "two", seq: 3, data: { answer: "no" } });
  assert.deepEqual(conversation.takeAnswers(), { one: "yes" });
});

test("a question whose answer was refused can be answered again", () => {
  const conversation = new Conversation();
  conversation.take(ask("one", 1));
  conversation.answer(conversation.openAsks()[0], "yes");
  conversation.takeAnswers();
  conversation.reopen(["one"]);
  assert.equal(conversation.openAsks()[0].answered, false);
  conversation.answer(conversation.openAsks()[0], "no");
  assert.deepEqual(conversation.takeAnswers(), { one: "no" });
});

test("a question that was superseded and is asked anew is shown, where it is asked anew", () => {
  const conversation = new Conversation();
  conversation.take(ask("one", 1));
  conversation.answer(conversation.openAsks()[0], "yes");
  conversation.takeAnswers();
  conversation.take({ type: "superseded", data: { seqs: [1] } });
  assert.deepEqual(conversation.openAsks(), []);
  conversation.take(ask("one", 2));
  const [shown] = conversation.openAsks();
  assert.deepEqual([shown.hidden, shown.place, shown.answered], [false, 2, false]);
});

test("who was away while a message was edited is shown what it says now, its own too", () => {
  const { conversation } = begun();
  conversation.say("mine", "pin 1234", 1);
  conversation.acked("mine", 1);
  conversation.take({ type: "text", id: "m2", seq: 2, from: "user", data: { text: "theirs" }, sender: { id: "bob" } });
  told().onclose({ code: 1006, reason: "" });
  mock.timers.tick(1_000);
  told().onopen();
  assert.deepEqual(sent("hello").map((hello) => [hello.watermark, hello.capabilities]), [[2, ["superseded", "edited"]]]);
  told().hear({ type: "welcome", data: { watermark: 2 } });
  told().hear({ type: "edited", data: { messageId: "m1", seq: 1, data: { text: "pin 5678" } } });
  told().hear({ type: "edited", data: { messageId: "m2", seq: 2, data: { text: "theirs too" } } });
  assert.deepEqual(conversation.items.map(textOf), ["pin 5678", "theirs too"]);
  assert.deepEqual(conversation.items.map((item) => item.edited), [true, true]);
});

test("what was edited before the page came is marked as such, and nothing else", () => {
  const conversation = new Conversation();
  conversation.take({ type: "text", id: "m1", seq: 1, from: "user", data: { text: "pin 5678" }, editedAt: 7 });
  conversation.take({ type: "text", id: "m2", seq: 2, from: "bot", data: { text: "yes" } });
  assert.deepEqual(conversation.items.map((item) => item.edited), [true, false]);
});

test("fields of a tool's own making do not become the item's", () => {
  const conversation = new Conversation();
  const data = { id: "t", name: "get", status: "running", params: { a: 1 }, kind: "nothing", key: "x", hidden: true, place: 99 };
  assert.equal(conversation.take({ type: "tool_call", seq: 1, data }), Taken.NEXT);
  conversation.take({ type: "tool_call", seq: 2, data: { id: "t", name: "get", status: "completed", result: 3 } });
  const [item] = conversation.items;
  assert.deepEqual([item.kind, item.key, item.hidden, item.place], ["tool", "tool:t", false, 1]);
  assert.deepEqual([item.status, item.params, item.result], ["completed", { a: 1 }, 3]);
});
