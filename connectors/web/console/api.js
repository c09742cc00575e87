// What the console asks of its gateway. The token lies in this tab's session storage and nowhere else.

const KEPT = "turnlog-operator";
const BASE = "../v1/operator";

export class SignedOut extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  keep: (value) => sessionStorage.setItem(KEPT, value),
  forget: () => sessionStorage.removeItem(KEPT),
};

/** The answer to a question; throws `SignedOut`, or an `Error` that says what is wrong. `signal` gives it up. */
export async function ask(path, params = {}, { signal, by = token.get() } = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  const answer = await fetch(`${BASE}${path}${query}`, {
    headers: { authorization: `Bearer ${by}` }, cache: "no-store", credentials: "omit", signal,
  });
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401) throw new SignedOut(body.error?.message ?? "the token is refused");
  if (!answer.ok) throw new Error(body.error?.message ?? `the gateway answers ${answer.status}`);
  return body;
}

/** A token is sent in a header, which takes no others. */
export const isSendable = (value) => /^[\x21-\x7e]+$/.test(value);
