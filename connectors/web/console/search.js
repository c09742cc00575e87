// Conversations: looked for, and listed by pages.

import { ask } from "./api.js";
import { conversationLink, counted, el, moment, table } from "./dom.js";

const COLUMNS = ["Conversation", "Status", "Channel", "Participant", "External id", "Head seq", "Last activity"];

/** The view. What is looked for is in the address, so that it can be passed on. */
export async function search(view, params, { say, signal }) {
  const asked = { q: params.get("q"), channel: params.get("channel"), status: params.get("status") };
  const results = el("div", {});
  view.replaceChildren(el("h1", {}, "Conversations"), form(asked), results);
  const page = await ask("/conversations", { ...asked, cursor: params.get("cursor") }, { signal });
  const rows = page.conversations.map((each) => [
    el("a", { href: conversationLink(each.id) }, each.id), each.status, each.channel, each.participant, each.external_id,
    each.head_seq, moment(each.updated_at),
  ]);
  const caption = `${counted(rows.length, "conversation")}, the latest activity first`;
  results.replaceChildren(rows.length ? table(caption, COLUMNS, rows)
    : el("p", { class: "notice" }, "No conversation is like that. Ids are found by their beginning, people by their whole id."));
  if (page.next !== null) {
    const next = new URLSearchParams(Object.entries({ ...asked, cursor: page.next }).filter(([, value]) => value));
    results.append(el("p", {}, el("a", { class: "next", href: `#/?${next}` }, "Next page")));
  }
  say(caption);
}

function form(asked) {
  const status = el("select", { id: "status-of", name: "status" },
    [["", "any"], ["open", "open"], ["closed", "closed"]].map(([value, label]) =>
      el("option", { value, selected: value === (asked.status ?? "") }, label)));
  const made = el("form", { class: "search", role: "search" },
    el("div", {}, el("label", { for: "q" }, "Conversation, participant or external id"),
      el("input", { id: "q", name: "q", type: "search", value: asked.q ?? "", maxlength: 256, autocomplete: "off" })),
    el("div", {}, el("label", { for: "channel" }, "Channel"),
      el("input", { id: "channel", name: "channel", value: asked.channel ?? "", maxlength: 256, autocomplete: "off" })),
    el("div", {}, el("label", { for: "status-of" }, "Status"), status),
    el("button", { type: "submit" }, "Search"));
  made.addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    const given = [...new FormData(made)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value);
    const wanted = given.length ? `#/?${new URLSearchParams(given)}` : "#/";
    if (location.hash === wanted) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = wanted;
  });
  return made;
}
