// What happened, in one line.

const who = (name) => name ?? "nobody";
const because = (reason) => (reason ? ` (${reason})` : "");
const SHOWN = 160;

function words(fields, masked, where) {
  const said = fields.text ?? fields.data;
  if (said !== undefined) return `: “${said.length > SHOWN ? `${said.slice(0, SHOWN)}…` : said}”`;
  const length = masked[`${where}text`] ?? masked[`${where}data`];
  return length === undefined ? "" : ` (${length} characters)`;
}

const TOLD = {
  ConversationOpened: (f) => `opened in channel ${f.channel} by ${f.participant ?? "someone"}`,
  ConversationClosed: (f) => `closed by ${f.by}${because(f.reason)}`,
  ConversationReopened: (f) => `reopened by ${f.by}`,
  ConversationErased: (f) => `erased by ${f.by}${because(f.reason)}: the keys of its words are destroyed`,
  ConversationHandedOver: (f) => `${f.by} hands it to ${f.to}: no agent is heard${because(f.reason)}`,
  ConversationHandedBack: (f) => `${f.by} gives it back to agents${because(f.reason)}`,
  ConversationMoved: (f) => (f.to
    ? `operator ${f.by} gives it to ${f.to}${because(f.reason)}`
    : `operator ${f.by} releases it${f.group ? ` in ${f.group}` : ""}${because(f.reason)}`),
  TurnCommitted: (f, event) => {
    const to = (f.assigned ?? []).map((each) => `${each.member ?? "the first to join"} in ${each.group}`);
    if (f.joins_run) to.push("the run that asked");
    if (f.queued?.length) to.push(`in line in ${f.queued.join(", ")}`);
    if (f.waiting?.length) to.push(`waits for an agent of ${f.waiting.join(", ")}`);
    return `${f.turn.sender} says${words(f.turn, event.masked, "turn.")}${to.length ? ` → ${to.join("; ")}` : ""}`;
  },
  TurnEdited: (f, event) => `${f.by} changes turn ${f.turn_seq}${words(f, event.masked, "")}`,
  TurnRegenerated: (f) => `${f.by} wants another answer to turn ${f.turn_seq}`,
  TurnUnassigned: (f) => `turn ${f.turn_seq} waits for ${f.channel} no more${because(f.reason)}`,
  FrameCommitted: (f, event) => `${f.member} sends ${f.frame.type}${words(f.frame, event.masked, "frame.")}`,
  PersonFrameCommitted: (f, event) => `${f.sender} sends ${f.frame.type}${words(f.frame, event.masked, "frame.")}`,
  OwnerChanged: (f) => `owner in ${f.group}: ${who(f.previous)} → ${who(f.owner)}${because(f.reason)}`,
  RunOpened: (f) => (f.queued
    ? `turn ${f.turn_seq} waits in line in ${f.group}`
    : `turn ${f.turn_seq} is given to ${f.member ?? "whoever joins"} in ${f.group}`),
  RunStarted: (f) => `${f.member} works on turn ${f.turn_seq}`,
  RunMoved: (f) => {
    const how = f.adopted ? "is adopted by" : f.continued ? "is continued by" : "moves to";
    const hidden = f.superseded?.length ? `; superseded: seq ${f.superseded.join(", ")}` : "";
    return `turn ${f.turn_seq} ${how} ${who(f.to_member)} from ${who(f.from_member)}, epoch ${f.run_epoch}`
      + `${because(f.reason)}${hidden}`;
  },
  RunCancelling: (f) => `${f.by} wants turn ${f.turn_seq} to stop${because(f.reason)}`,
  RunEnded: (f) => `turn ${f.turn_seq} is ${f.status} by ${who(f.member)}${because(f.reason)}`,
  Refused: (f) => `refused as ${f.reason}${f.member ? `, from ${f.member}` : ""}${f.detail ? `: ${f.detail}` : ""}`,
  Duplicate: (f) => `a repeat of seq ${f.of_seq}: stored once`,
  Rejected: (f) => `${f.origin} went to the dead letters${because(f.reason)}`,
  WriterOpened: (f) => `the partition is written by ${f.worker}, writer epoch ${f.writer_epoch}`,
};

export function sentence(event) {
  return TOLD[event.type]?.(event.fields, event) ?? event.type;
}

/** How an event is coloured. */
export function tone(event) {
  switch (event.type) {
    case "RunMoved":
    case "OwnerChanged":
    case "ConversationMoved":
    case "WriterOpened":
      return "moved";
    case "Refused":
    case "Duplicate":
    case "Rejected":
    case "TurnUnassigned":
      return "refused";
    case "RunEnded":
      return event.fields.status === "answered" ? "answered" : "refused";
    case "TurnCommitted":
      return "turn";
    default:
      return "plain";
  }
}
