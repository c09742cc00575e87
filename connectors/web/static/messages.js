// The elements of messages and their parts. Text of others only ever becomes text nodes.

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const ADDRESS = /https?:\/\/[^\s<>"')\]]+/g;

// Text with its addresses as links.
export function linked(text) {
  const parts = document.createDocumentFragment();
  let end = 0;
  for (const found of String(text).matchAll(ADDRESS)) {
    parts.append(text.slice(end, found.index), link(found[0], found[0]));
    end = found.index + found[0].length;
  }
  parts.append(String(text).slice(end));
  return parts;
}

function safe(url) {
  return typeof url === "string" && (/^https?:\/\//.test(url) || url.startsWith("/api/v1/converger/attachments/")) ? url : null;
}

function link(url, text) {
  const address = safe(url);
  return address === null ? document.createTextNode(text) : element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text);
}

// Chips and buttons; `pick(action)` when one is chosen.
export function choices(actions, pick, { disabled = false } = {}) {
  if (!Array.isArray(actions) || actions.length === 0) return null;
  const made = actions.map((action) =>
    safe(action.url) !== null
      ? element("a", { class: "link-button", href: action.url, target: "_blank", rel: "noopener noreferrer" }, action.label)
      : element("button", { type: "button", disabled, onclick: () => pick(action) }, action.label),
  );
  return element("div", { class: "choices" }, ...made);
}

const PARTS = {
  "quick-reply": (data, pick) => [bubble(linked(data.text)), choices(data.actions, pick)],
  buttons: (data, pick) => [data.text ? bubble(linked(data.text)) : null, choices(data.buttons, pick)],
  card: (data, pick) => [card(data, pick)],
  carousel: (data, pick) => [element("div", { class: "cards" }, ...(data.cards ?? []).map((each) => card(each, pick)))],
  image: (data) => [bubble(picture(data.src ?? data.url, data.alt ?? data.caption ?? "picture"), data.caption ? element("div", {}, data.caption) : null)],
  video: (data) => [bubble(element("video", { src: safe(data.src ?? data.url), controls: true }), data.caption ?? null)],
  audio: (data) => [bubble(element("audio", { src: safe(data.src ?? data.url), controls: true }))],
  file: (data) => [bubble("📎 ", link(data.url ?? data.src, data.name ?? "file"))],
  location: (data) => [bubble("📍 ", link(`https://www.openstreetmap.org/?mlat=${Number(data.latitude)}&mlon=${Number(data.longitude)}`, data.name ?? data.address ?? `${data.latitude}, ${data.longitude}`))],
  contact: (data) => [bubble(`👤 ${data.name ?? ""} ${(data.phones ?? []).map((each) => each.number ?? each).join(", ")}`.trim())],
};

// What is inside one message, by its type; a type that nobody here knows shows its text, or that it cannot be shown.
export function contentOf(item, pick) {
  const data = item.data ?? {};
  const made = PARTS[item.type]?.(data, pick) ?? [bubble(data.text ? linked(data.text) : `(${item.type}: this page cannot show it)`)];
  return [...made, PARTS[item.type] ? null : choices(item.actions, pick)].filter((part) => part !== null);
}

export function bubble(...children) {
  return element("div", { class: "bubble" }, ...children);
}

function picture(url, alt) {
  const address = safe(url);
  return address === null ? alt : element("img", { src: address, alt, loading: "lazy" });
}

function card(data, pick) {
  return element("article", { class: "card" },
    data.image ? picture(data.image, "") : null, element("h3", {}, data.title ?? ""), data.subtitle ? element("p", {}, data.subtitle) : null,
    data.text ? element("p", {}, linked(data.text)) : null, choices(data.buttons, pick));
}
