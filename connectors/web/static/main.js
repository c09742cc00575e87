// The page: its parts put together, and what the person does.

import { Conversation } from "./conversation.js";
import { credentialsFor, fromAddress, keep, opened, openingKey, outboxFor } from "./credentials.js";
import { Session, State, openConversation } from "./session.js";
import { View } from "./view.js";

const at = (id) => document.getElementById(id);
const WHY = { 4400: "The conversation is not there.", 4401: "Your session has ended.", 4403: "This chat is closed to this token." };
const TYPING_EVERY_MS = 2000;

async function begin() {
  const given = fromAddress();
  try {
    if (given.conversation && given.token) keep(given.conversation, given.token);
    else if (given.token) {
      const made = await openConversation(location.origin, given.token, openingKey());
      keep(made.conversationId, made.token);
      opened();
    }
  } catch (error) {
    return signIn(`The chat could not be opened: ${error.message}`);
  }
  const { conversation } = fromAddress();
  if (!conversation || credentialsFor(conversation).token() === null)
    return signIn("Open it by the link that you were given, or paste its token.");
  chat(credentialsFor(conversation));
}

function signIn(why) {
  at("connection").textContent = "Not connected";
  at("chat").hidden = at("composer").hidden = true;
  at("sign-in").hidden = false;
  at("sign-in-why").textContent = why;
  at("sign-in-form").onsubmit = (event) => {
    event.preventDefault();
    const given = new URLSearchParams(location.hash.slice(1));
    given.set("token", at("token").value.trim());
    location.hash = given.toString();
    location.reload();
  };
}

function chat(credentials) {
  at("chat").hidden = at("composer").hidden = false;
  const view = new View(document, {
    pick, retry, answer: (ask, value) => conversation.answer(ask, value), withdraw: (item) => conversation.withdraw(item.clientId),
  });
  const conversation = new Conversation({ changed, state: drawState });
  const session = new Session(conversation, {
    credentials, outbox: outboxFor(credentials.conversation), state: connectionChanged,
    caughtUp: () => view.live(), refused,
  });
  for (const { type, clientId, data, ...more } of session.unsent())
    if (type === "text") conversation.say(clientId, data.text, Date.now(), more);

  function say(text, more = {}) {
    const clientId = crypto.randomUUID();
    conversation.say(clientId, text, Date.now(), more);
    session.send({ type: "text", clientId, data: { text }, ...more });
  }

  function pick(action, item) {
    say(typeof action.value === "string" ? action.value : action.label, item.seq ? { replyTo: { seq: item.seq } } : {});
  }

  // All open questions are answered by one frame: also when the last one without an answer was answered elsewhere.
  function changed(item) {
    view.changed(item);
    const answers = item.kind === "ask" ? conversation.takeAnswers() : null;
    if (answers !== null) session.send({ type: "resume", clientId: crypto.randomUUID(), answers });
  }

  function refused(error, sent) {
    if (sent?.type === "resume") conversation.reopen(Object.keys(sent.answers));
    conversation.notice(error.message);
  }

  function retry(item) {
    conversation.withdraw(item.clientId);
    say(item.data.text, item.more);
  }

  function drawState() {
    view.activity(conversation);
    at("stop").hidden = !conversation.working;
    at("composer-text").disabled = at("send").disabled = conversation.closed;
    at("composer-text").placeholder = conversation.closed ? "This conversation is closed" : "Write a message";
  }

  function connectionChanged(state, code) {
    const words = { [State.CONNECTING]: "Connecting…", [State.OPEN]: "Connected", [State.WAITING]: "Connection lost. Trying again…" };
    at("connection").textContent = words[state] ?? "Not connected";
    at("connection").className = state === State.OPEN ? "" : "away";
    if (state !== State.ENDED) return;
    credentials.end();
    signIn(WHY[code] ?? "The chat has ended.");
  }

  composer(say, session);
  at("stop").onclick = () => session.tell({ type: "abort" });
  addEventListener("online", () => session.wake());
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && session.wake());
  session.connect();
}

function composer(say, session) {
  const field = at("composer-text");
  let told = 0;
  const send = () => {
    if (field.value.trim() === "") return;
    say(field.value);
    field.value = "";
    fit();
  };
  const fit = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  };
  at("composer-form").onsubmit = (event) => {
    event.preventDefault();
    send();
    field.focus();
  };
  field.onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  field.oninput = () => {
    fit();
    if (Date.now() - told < TYPING_EVERY_MS) return;
    told = Date.now();
    session.tell({ type: "typing", isTyping: true });
  };
  field.focus();
}

begin();
