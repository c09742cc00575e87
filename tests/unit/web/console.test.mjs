// The console's parts that need no page: what events come to.

import assert from "node:assert/strict";
import { test } from "node:test";

import { countAt, fold, fromOpening, isOpen, lanes } from "../../../connectors/web/console/fold.js";
import { sentence, tone } from "../../../connectors/web/console/sentences.js";

const GROUP = "agents/g";
let lsn = 10;
const event = (type, fields = {}, seq = 0) => ({ type, fields, seq, lsn: (lsn += 2), masked: {} });
const turn = (seq, assigned = []) =>
  event("TurnCommitted", { turn: { sender: "ann" }, assigned }, seq);
const given = (member, run) => ({ group: GROUP, member, run_id: run, run_epoch: 1 });

const STORY = [
  event("WriterOpened", { worker: "wk-0", writer_epoch: 1 }),
  event("ConversationOpened", { channel: "web" }),
  turn(1, [given("m1", "r1")]),
  event("RunStarted", { run_id: "r1", member: "m1", turn_seq: 1 }),
  event("FrameCommitted", { frame: { type: "genui" }, member: "m1", group: GROUP, run_id: "r1" }, 2),
  event("WriterOpened", { worker: "wk-1", writer_epoch: 2 }),
  event("OwnerChanged", { group: GROUP, previous: "m1", owner: "m2", reason: "member_expired" }),
  event("RunMoved", {
    run_id: "r1", turn_seq: 1, group: GROUP, from_member: "m1", to_member: "m2", run_epoch: 2,
    reason: "member_expired", superseded: [2],
  }),
  event("Refused", { reason: "fenced", member: "m1", run_id: "r1" }),
  event("FrameCommitted", { frame: { type: "text" }, member: "m2", group: GROUP, run_id: "r1" }, 3),
  event("RunEnded", { run_id: "r1", turn_seq: 1, group: GROUP, member: "m2", run_epoch: 2, status: "answered" }),
  event("ConversationClosed", { by: "ann" }, 4),
];

test("the state is that of each event, and of no later one", () => {
  const opened = fold(STORY, 2);
  assert.deepEqual([opened.status, opened.turns, opened.runs.size], ["open", 0, 0]);
  const working = fold(STORY, 4);
  assert.deepEqual({ ...working.runs.get("r1") },
    { id: "r1", turn: 1, group: GROUP, member: "m1", epoch: 1, state: "working" });
  assert.equal(working.owners.get(GROUP), "m1");
  assert.ok(isOpen(working.runs.get("r1")));
  const moved = fold(STORY, 8);
  assert.deepEqual([moved.moves, moved.runs.get("r1").member, moved.runs.get("r1").epoch], [1, "m2", 2]);
  assert.deepEqual([...moved.superseded], [2]);
  assert.deepEqual(moved.writer, { worker: "wk-1", epoch: 2 });
  const ended = fold(STORY, STORY.length);
  assert.deepEqual([ended.status, ended.headSeq, ended.refused], ["closed", 4, 1]);
  assert.equal(isOpen(ended.runs.get("r1")), false);
});

test("a run is a bar in the lane of each member that held it", () => {
  const { lanes: found, moves, writers } = lanes(STORY);
  assert.deepEqual(found.map((lane) => lane.name), ["person", "m1", "m2"]);
  assert.deepEqual(found[1].bars.map((bar) => [bar.from, bar.to, bar.end]), [[2, 7, "moved"]]);
  assert.deepEqual(found[2].bars.map((bar) => [bar.from, bar.to, bar.end, bar.epoch]), [[7, 10, "answered", 2]]);
  assert.deepEqual(found[1].marks.map((mark) => mark.kind), ["frame", "refused"]);
  assert.deepEqual(moves, [{ index: 7, from: "m1", to: "m2", reason: "member_expired" }]);
  assert.deepEqual(writers.map((writer) => writer.epoch), [1, 2]);
});

test("a run that waits is in a lane of its own, and open until it ends", () => {
  const { lanes: found } = lanes([turn(1, [given(null, "r1")]), event("RunMoved", {
    run_id: "r1", turn_seq: 1, group: GROUP, from_member: null, to_member: "m1", run_epoch: 2, reason: "member_joined",
  })]);
  assert.deepEqual(found.map((lane) => lane.name), ["person", `nobody yet · ${GROUP}`, "m1"]);
  assert.equal(found[2].bars[0].to, null);
});

test("a link's lsn leads to the last event up to it", () => {
  assert.equal(countAt(STORY, null), STORY.length);
  assert.equal(countAt(STORY, STORY[3].lsn), 4);
  assert.equal(countAt(STORY, STORY[3].lsn + 1), 4);
  assert.equal(countAt(STORY, 0), 1);
  assert.equal(countAt(STORY, 1e9), STORY.length);
});

test("what the partition did before is left out", () => {
  assert.equal(fromOpening(STORY)[0].type, "ConversationOpened");
  assert.deepEqual(fromOpening(STORY.slice(0, 1)), []);
});

test("words are told by their length, unless they are there", () => {
  const masked = { ...turn(1), masked: { "turn.text": 17 } };
  assert.equal(sentence(masked), "ann says (17 characters)");
  const shown = { ...masked, fields: { turn: { sender: "ann", text: "hello" } }, masked: {} };
  assert.equal(sentence(shown), "ann says: “hello”");
  assert.equal(sentence(event("OfALaterRelease")), "OfALaterRelease");
  assert.equal(tone(STORY[7]), "moved");
});
