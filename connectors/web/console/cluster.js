// Members and partitions, as they are now.

import { ask } from "./api.js";
import { counted, el, table } from "./dom.js";

export async function members(view, { say, signal }) {
  const { members: found, partitions } = await ask("/members", {}, { signal });
  const groups = new Map();
  for (const each of found) groups.set(each.group, [...(groups.get(each.group) ?? []), each]);
  view.replaceChildren(el("h1", {}, "Members"), again(), found.length ? "" : el("p", { class: "notice" }, "No agent is connected."));
  for (const [group, those] of [...groups].sort()) {
    view.append(table(`${group}: ${counted(those.length, "member")}`, ["Member", "Gateway", "State", "Known to"], those.map((each) => [
      each.member, each.gateway, each.draining ? `draining in ${each.draining}` : "takes turns",
      `${each.partitions} of ${partitions} partitions`,
    ])));
  }
  say(counted(found.length, "member"));
}

export async function partitions(view, { say, signal }) {
  const { partitions: found } = await ask("/partitions", {}, { signal });
  const held = found.filter((each) => each.live).length;
  view.replaceChildren(el("h1", {}, "Partitions"), again(), table(
    `${found.length} partitions, ${held} with a live lease`,
    ["Partition", "Lease", "Worker", "Writer epoch", "Ends in", "Head lsn", "Read model", "Behind"],
    found.map((each) => [
      each.partition, el("span", { class: each.live ? "good" : "bad" }, each.live ? "live" : "nobody's"), each.worker,
      each.writer_epoch, each.live ? `${(each.expires_in_ms / 1000).toFixed(1)} s` : null, each.head_lsn, each.read_model_lsn,
      el("span", { class: each.lag ? "bad" : "good" }, each.lag ? `${each.lag} events` : "level"),
    ])));
  say(`${held} of ${found.length} partitions have a live lease`);
}

const again = () => el("p", {}, el("button", {
  type: "button", onclick: () => dispatchEvent(new HashChangeEvent("hashchange")),
}, "Look again"));
