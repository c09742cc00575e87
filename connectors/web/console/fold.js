// What events come to. Pure: the same events give the same state, whichever page they came by.

const ENDS_OPEN = new Set(["queued", "given", "working", "stopping"]);

/** A conversation before its first event. */
export const nothing = () => ({
  status: "not opened", headSeq: 0, turns: 0, owners: new Map(), runs: new Map(), superseded: new Set(),
  refused: 0, duplicates: 0, moves: 0, handedTo: null, writer: null,
});

/** The state as of the first `count` events. */
export function fold(events, count) {
  const state = nothing();
  for (let index = 0; index < count; index += 1) apply(state, events[index]);
  return state;
}

export const isOpen = (run) => ENDS_OPEN.has(run.state);

function apply(state, event) {
  const { fields } = event;
  if (event.seq > state.headSeq) state.headSeq = event.seq;
  for (const seq of fields.superseded ?? []) state.superseded.add(seq);
  CHANGES[event.type]?.(state, fields, event);
}

function given(state, fields, seq) {
  state.runs.set(fields.run_id, {
    id: fields.run_id, turn: fields.turn_seq ?? seq, group: fields.group, member: fields.member ?? null,
    epoch: fields.run_epoch ?? 1, state: fields.queued ? "queued" : "given",
  });
  if (fields.member) state.owners.set(fields.group, fields.member);
}

const changed = (state, fields, change) => {
  const run = state.runs.get(fields.run_id);
  if (run) Object.assign(run, change);
};

const CHANGES = {
  ConversationOpened: (state) => { state.status = "open"; },
  ConversationClosed: (state) => { state.status = "closed"; },
  ConversationReopened: (state) => { state.status = "open"; },
  ConversationErased: (state) => { state.status = "erased"; },
  ConversationHandedOver: (state, fields) => { state.handedTo = fields.to ?? "human"; },
  ConversationHandedBack: (state) => { state.handedTo = null; },
  TurnCommitted: (state, fields, event) => {
    state.turns += 1;
    for (const each of fields.assigned ?? []) given(state, each, event.seq);
  },
  RunOpened: (state, fields) => given(state, fields),
  RunStarted: (state, fields) => changed(state, fields, { state: "working" }),
  RunCancelling: (state, fields) => changed(state, fields, { state: "stopping" }),
  RunMoved: (state, fields) => {
    state.moves += 1;
    changed(state, fields, { member: fields.to_member ?? null, epoch: fields.run_epoch, state: "given" });
  },
  RunEnded: (state, fields) => changed(state, fields, { state: fields.status }),
  OwnerChanged: (state, fields) => {
    if (fields.owner) state.owners.set(fields.group, fields.owner);
    else state.owners.delete(fields.group);
  },
  Refused: (state) => { state.refused += 1; },
  Duplicate: (state) => { state.duplicates += 1; },
  WriterOpened: (state, fields) => { state.writer = { worker: fields.worker, epoch: fields.writer_epoch }; },
};

const PERSON = "person";
const waiting = (group) => `nobody yet · ${group}`;

/**
 * Ownership as lanes: who is in them, what each held from which event to which, and what happened in them. Places are
 * indexes of `events`. A bar with `to` null is still open.
 */
export function lanes(events) {
  const named = new Map([[PERSON, { name: PERSON, group: "", bars: [], marks: [] }]]);
  const open = new Map();
  const moves = [];
  const writers = [];
  const lane = (name, group) => {
    if (!named.has(name)) named.set(name, { name, group: group ?? "", bars: [], marks: [] });
    return named.get(name);
  };
  const begin = (index, run, member, group, turn, epoch) => {
    const bar = { run, turn, group, epoch, from: index, to: null, end: null };
    lane(member ?? waiting(group), group).bars.push(bar);
    open.set(run, { bar, name: member ?? waiting(group) });
  };
  const end = (index, run, how) => {
    const held = open.get(run);
    if (!held) return null;
    Object.assign(held.bar, { to: index, end: how });
    open.delete(run);
    return held.name;
  };
  events.forEach((event, index) => {
    const { fields, type } = event;
    switch (type) {
      case "TurnCommitted":
        lane(PERSON).marks.push({ index, kind: "turn" });
        for (const each of fields.assigned ?? []) {
          begin(index, each.run_id, each.member, each.group, event.seq, each.run_epoch);
        }
        break;
      case "RunOpened":
        end(index, fields.run_id, "given");
        begin(index, fields.run_id, fields.member, fields.group, fields.turn_seq, fields.run_epoch ?? 1);
        break;
      case "RunMoved": {
        const from = end(index, fields.run_id, "moved");
        begin(index, fields.run_id, fields.to_member, fields.group, fields.turn_seq, fields.run_epoch);
        const to = fields.to_member ?? waiting(fields.group);
        if (from !== null && from !== to) moves.push({ index, from, to, reason: fields.reason });
        break;
      }
      case "RunEnded":
        end(index, fields.run_id, fields.status);
        break;
      case "FrameCommitted":
        lane(fields.member, fields.group).marks.push({ index, kind: "frame" });
        break;
      case "PersonFrameCommitted":
      case "TurnEdited":
      case "TurnRegenerated":
        lane(PERSON).marks.push({ index, kind: "frame" });
        break;
      case "Refused":
      case "Duplicate":
        lane(fields.member ?? PERSON).marks.push({ index, kind: "refused" });
        break;
      case "WriterOpened":
        writers.push({ index, worker: fields.worker, epoch: fields.writer_epoch });
        break;
      default:
    }
  });
  return { lanes: [...named.values()], moves, writers };
}

/** The place of the last event up to this lsn, as a count of events; all of them without one. */
export function countAt(events, lsn) {
  if (lsn === null) return events.length;
  let count = 0;
  while (count < events.length && events[count].lsn <= lsn) count += 1;
  return Math.max(1, count);
}

/** Events of the conversation from its opening on: of its partition's earlier writers nothing needs to be told. */
export function fromOpening(events) {
  const begun = events.findIndex((event) => event.type !== "WriterOpened");
  return begun < 0 ? [] : events.slice(begun);
}
