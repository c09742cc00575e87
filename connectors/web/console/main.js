// Signing in, and which view the address names. The address never holds the token.

import { ask, isSendable, SignedOut, token } from "./api.js";
import { members, partitions } from "./cluster.js";
import { conversation } from "./conversation.js";
import { by, el } from "./dom.js";
import { search } from "./search.js";

let leaving = new AbortController();

const say = (text) => { by("status").textContent = text; };

/** The address after `#`: the path's parts, and its parameters. */
function address() {
  const [path, query] = location.hash.slice(1).split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decoded), params: new URLSearchParams(query ?? "") };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const lsnOf = (params) => (/^\d{1,15}$/.test(params.get("at") ?? "") ? Number(params.get("at")) : null);

function opened(view, { parts, params }, tools) {
  switch (parts[0]) {
    case undefined:
      return search(view, params, tools);
    case "conversation":
      if (parts[1]) return conversation(view, parts[1], lsnOf(params), tools);
      break;
    case "members":
      return members(view, tools);
    case "partitions":
      return partitions(view, tools);
    default:
  }
  throw new Error("the console has no such page");
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  if (token.get() === null) return signIn("");
  const view = by("view");
  const where = address();
  by("sign-in").hidden = true;
  for (const part of ["view", "nav", "who"]) by(part).hidden = false;
  const current = where.parts[0] === "conversation" || where.parts.length === 0 ? "#/" : `#/${where.parts[0]}`;
  for (const link of by("nav").children) {
    if (link.getAttribute("href") === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.replaceChildren(el("p", { class: "notice" }, "Reading…"));
  try {
    if (!by("operator").textContent) by("operator").textContent = (await ask("/me", {}, { signal })).name;
    await opened(view, where, { say, signal });
    document.title = `${view.querySelector("h1")?.textContent ?? "Console"} · Turnlog console`;
  } catch (error) {
    if (signal.aborted) return undefined;
    if (error instanceof SignedOut) return signIn("The token is not, or no longer, an operator's.");
    view.replaceChildren(el("h1", {}, "That could not be shown"), el("p", { class: "problem", role: "alert" }, error.message),
      el("p", {}, el("button", { type: "button", onclick: show }, "Try again")));
  }
  return undefined;
}

function signIn(why) {
  token.forget();
  by("operator").textContent = "";
  for (const part of ["view", "nav", "who"]) by(part).hidden = true;
  by("view").replaceChildren();
  by("sign-in").hidden = false;
  by("sign-in-why").textContent = why;
  by("token").value = "";
  by("token").focus();
}

by("sign-in-form").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const given = by("token").value.trim();
  if (!isSendable(given)) return signIn("That is no operator's token.");
  try {
    by("operator").textContent = (await ask("/me", {}, { by: given })).name;
  } catch (error) {
    return signIn(error instanceof SignedOut ? "That is no operator's token, or it was revoked."
      : `The gateway does not answer: ${error.message}`);
  }
  token.keep(given);
  const shown = show();
  by("content").focus();  // before anything is there to be typed into: later, the focus would be taken from a field
  return shown;
});
by("sign-out").addEventListener("click", () => { leaving.abort(); signIn(""); });
by("skip").addEventListener("click", (clicked) => { clicked.preventDefault(); by("content").focus(); });
addEventListener("hashchange", show);
show();
