// The socket of one conversation: hello, replay, live frames, sends that are repeated until they are answered.
//
//   CONNECTING ──welcome──▶ OPEN ──close, silence──▶ WAITING ──delay──▶ CONNECTING
//        └───────────────────┴──── 4400, 4401 without a fresh token, 4403 ────▶ ENDED

import { Taken } from "./conversation.js";

export const State = Object.freeze({ CONNECTING: "connecting", OPEN: "open", WAITING: "waiting", ENDED: "ended" });

const SOCKET = "/socket/converger/v1";
const API = "/api/v1/converger";
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 30_000;
const REFRESH_BEFORE_MS = 60_000;
const REFRESH_EVERY_MS = 10_000; // at most, however wrong this machine's clock is
const REFRESH_AGAIN_MS = 5_000;
const LONGEST_TIMER_MS = 2 ** 31 - 1; // a longer one fires at once
const WELCOME_WITHIN_MS = 15_000;
const OPEN_WITHIN_MS = 30_000;
const DEFAULT_IDLE_MS = 60_000;

export class Session {
  // `credentials`: { conversation, token() , renew(token) }; `outbox` keeps sends over a reload: { load(), save(sends) }.
  constructor(conversation, { credentials, outbox, state = () => {}, caughtUp = () => {}, refused = () => {}, origin = location.origin }) {
    this._conversation = conversation;
    this._credentials = credentials;
    this._outbox = outbox;
    this._state = state;
    this._caughtUp = caughtUp;
    this._refused = refused;
    this._origin = origin;
    this._socket = null;
    this._delay = FIRST_DELAY_MS;
    this._sends = new Map(outbox.load().map((frame) => [frame.clientId, frame])); // clientId -> frame, in order
    this._synced = -1; // the watermark that was asked for last: once, until it moves
    this._timers = {};
    this.state = State.WAITING;
  }

  unsent() {
    return [...this._sends.values()];
  }

  connect() {
    clearTimeout(this._timers.again);
    this._enter(State.CONNECTING);
    const socket = new WebSocket(this._origin.replace(/^http/, "ws") + SOCKET, "converger.v1");
    this._socket = socket;
    this._expectWithin(WELCOME_WITHIN_MS);
    socket.onopen = () =>
      this._write({
        type: "hello", protocol: "converger/1", token: this._credentials.token(), conversationId: this._credentials.conversation,
        watermark: this._conversation.watermark, capabilities: ["superseded", "edited"],
      });
    socket.onmessage = (message) => socket === this._socket && this._received(message.data);
    socket.onclose = (event) => socket === this._socket && this._lost(event);
  }

  // A frame that is answered by an ack: kept until then, whatever happens to this connection or page.
  send(frame) {
    this._sends.set(frame.clientId, frame);
    this._outbox.save(this.unsent());
    if (this.state === State.OPEN) this._write(frame);
  }

  // A frame that is worth nothing later.
  tell(frame) {
    if (this.state === State.OPEN) this._write(frame);
  }

  forget(clientId) {
    this._sends.delete(clientId);
    this._outbox.save(this.unsent());
  }

  // The page may have slept: look at once whether the connection still lives.
  wake() {
    if (this.state === State.WAITING) this.connect();
    else if (this.state === State.OPEN) this._ping();
  }

  _write(frame) {
    this._socket.send(JSON.stringify(frame));
  }

  // Silence for so long is a loss. The socket's own close may take minutes to be told where the network is gone.
  _expectWithin(ms) {
    clearTimeout(this._timers.silence);
    this._timers.silence = setTimeout(() => {
      const silent = this._socket;
      this._socket = null;
      silent.close();
      this._lost({ code: 1006, reason: "" });
    }, ms);
  }

  _received(text) {
    clearTimeout(this._timers.silence); // something came: the peer lives until a ping is not answered
    const frame = parsed(text);
    if (frame === null) return;
    if (frame.type === "welcome") this._welcomed(frame.data ?? {});
    else if (frame.type === "ack") this._acked(frame);
    else if (frame.type === "error") this._errored(frame.data ?? {});
    else if (frame.type === "heartbeat") this._compare(frame.headSeq);
    else if (frame.type === "replayTruncated") this._sync();
    else if (frame.type === "tokenRefreshed") this._expect(frame.data?.expiresAt);
    else if (this._conversation.take(frame) === Taken.GAP) this._sync();
    if (this.state === State.OPEN && this._conversation.watermark >= this._head) this._caughtUp();
  }

  _welcomed(data) {
    this._conversation.rest();
    this._enter(State.OPEN);
    this._delay = FIRST_DELAY_MS;
    this._synced = -1;
    this._head = data.watermark ?? 0;
    this._idleMs = data.limits?.idleTimeoutMs ?? DEFAULT_IDLE_MS;
    this._expect(data.expiresAt);
    for (const frame of this._sends.values()) this._write(frame);
    clearInterval(this._timers.ping);
    this._timers.ping = setInterval(() => this._ping(), this._idleMs / 2);
  }

  _ping() {
    this.tell({ type: "ping" });
    this._expectWithin(this._idleMs / 4);
  }

  _acked(frame) {
    if (Number.isInteger(frame.seq) && frame.seq > this._conversation.watermark + 1) this._sync();
    this.forget(frame.clientId);
    this._conversation.acked(frame.clientId, frame.seq);
  }

  _errored(error) {
    const sent = this._sends.get(error.clientId);
    if (error.code === "invalid_watermark" && !error.clientId) this._restart();
    else if (error.code === "replay_unavailable" || (error.frameType === "sync" && Number.isFinite(error.retryAfterMs)))
      this._timers.sync = setTimeout(() => this._sync(true), error.retryAfterMs ?? 1000);
    else if (sent && Number.isFinite(error.retryAfterMs)) setTimeout(() => this._again(error.clientId), error.retryAfterMs);
    else if (error.clientId) {
      this.forget(error.clientId);
      this._conversation.failed(error.clientId, error.message);
      this._refused(error, sent);
    } else this._refused(error, undefined);
  }

  _again(clientId) {
    const frame = this._sends.get(clientId);
    if (frame) this.tell(frame); // a connection that is lost meanwhile repeats it by itself
  }

  _compare(headSeq) {
    if (Number.isInteger(headSeq) && headSeq > this._conversation.watermark) this._sync();
  }

  _sync(repeat = false) {
    if (!repeat && this._synced === this._conversation.watermark) return;
    this._synced = this._conversation.watermark;
    this.tell({ type: "sync", watermark: this._conversation.watermark });
  }

  // The server does not know as much as this page has seen: only the page's own memory can be wrong.
  _restart() {
    location.reload();
  }

  _expect(expiresAt) {
    clearTimeout(this._timers.refresh);
    if (!Number.isFinite(expiresAt)) return;
    const left = expiresAt - Date.now();
    const delay = Math.max(left - REFRESH_BEFORE_MS, left / 2, REFRESH_EVERY_MS);
    this._timers.refresh = setTimeout(() => this._refresh(), Math.min(delay, LONGEST_TIMER_MS));
  }

  async _refresh() {
    const { token, later } = await freshToken(this._origin, this._credentials.token());
    if (token) {
      this._credentials.renew(token);
      this.tell({ type: "auth", token });
    } else if (later && this.state !== State.ENDED) {
      clearTimeout(this._timers.refresh);
      this._timers.refresh = setTimeout(() => this._refresh(), REFRESH_AGAIN_MS);
    }
  }

  _lost(event) {
    for (const timer of Object.values(this._timers)) clearTimeout(timer);
    clearInterval(this._timers.ping);
    const reason = parsed(event.reason) ?? {};
    if ([4400, 4401, 4403].includes(event.code)) {
      this._enter(State.ENDED, event.code);
      return;
    }
    const delay = reason.retryAfterMs ?? this._delay * (0.5 + Math.random());
    this._delay = Math.min(this._delay * 2, LONGEST_DELAY_MS);
    this._timers.again = setTimeout(() => this.connect(), delay);
    this._enter(State.WAITING);
  }

  _enter(state, detail) {
    this.state = state;
    this._state(state, detail);
  }
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" ? value : null;
  } catch {
    return null; // not a frame of this protocol: receivers ignore what they do not know
  }
}

// { token } for the same conversation that lasts longer; { later }: it may be had later; neither: the old one is used to
// its end.
async function freshToken(origin, token) {
  try {
    const answer = await fetch(`${origin}${API}/tokens/refresh`, { method: "POST", headers: { Authorization: `Bearer ${token}` } });
    return answer.ok ? { token: (await answer.json()).token } : { later: answer.status >= 500 || answer.status === 429 };
  } catch {
    return { later: true }; // the network is away
  }
}

// A new conversation of the token's user: { conversationId, token }. `key` makes a repeat the same conversation.
// What cannot be done now is tried again as the gateway asks for.
export async function openConversation(origin, token, key) {
  const until = Date.now() + OPEN_WITHIN_MS;
  for (;;) {
    const answer = await fetch(`${origin}${API}/conversations`, {
      method: "POST", headers: { Authorization: `Bearer ${token}`, "X-Idempotency-Key": key },
    });
    const body = await answer.json();
    if (answer.ok) return body;
    const delay = body.error?.details?.retryAfterMs;
    if (!Number.isFinite(delay) || Date.now() + delay > until) throw new Error(body.error?.message ?? `the gateway answered ${answer.status}`);
    await new Promise((resolve) => setTimeout(resolve, delay));
  }
}
