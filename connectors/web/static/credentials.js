// Where the page keeps its token: one entry a conversation, shared by the tabs of this browser.
//
// The address has `#token=…` (fragments never reach a server or its logs), and `&conversation=…` for an existing one. The
// token leaves the address as soon as it is stored: what people copy from there is `#conversation=…` alone.

const PREFIX = "turnlog.chat.";

export function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  return { token: given.get("token"), conversation: given.get("conversation") };
}

export function keep(conversation, token) {
  localStorage.setItem(PREFIX + conversation, token);
  history.replaceState(null, "", `#conversation=${encodeURIComponent(conversation)}`);
}

export function credentialsFor(conversation) {
  return {
    conversation,
    token: () => localStorage.getItem(PREFIX + conversation),
    renew: (token) => localStorage.setItem(PREFIX + conversation, token),
    end: () => localStorage.removeItem(PREFIX + conversation),
  };
}

// Sends that nobody acknowledged yet; of this tab alone, so that two tabs do not send each other's.
export function outboxFor(conversation) {
  const key = `${PREFIX}outbox.${conversation}`;
  return {
    load: () => JSON.parse(sessionStorage.getItem(key) ?? "[]"),
    save: (frames) => sessionStorage.setItem(key, JSON.stringify(frames)),
  };
}

// The same until a conversation was opened with it: a reload in that moment opens no second one.
export function openingKey() {
  const key = `${PREFIX}opening`;
  const known = sessionStorage.getItem(key) ?? crypto.randomUUID();
  sessionStorage.setItem(key, known);
  return known;
}

export function opened() {
  sessionStorage.removeItem(`${PREFIX}opening`);
}
