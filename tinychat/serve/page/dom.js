/** Nodes, numbers and files: what every part of the page needs. */

/**
 * Return a new element. Names with a hyphen and `role` become attributes, the others properties; there is no markup.
 * @param {string} tag
 * @param {Object} properties Those without a value are left out.
 * @param {...(Node|string|null)} children
 */
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Append nodes, of which there may be more than a call takes arguments; return the parent. */
export function append(parent, nodes) {
  for (const node of nodes) parent.append(node);
  return parent;
}

/** Return a button with a text that does something. */
export function button(text, label, action, className = "") {
  return make("button", {
    type: "button",
    textContent: text,
    title: label,
    "aria-label": label,
    onclick: action,
    className,
  });
}

/** Return the element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Return a number with separators, and at most so many digits behind the point. */
export function shown(number, digits = 0) {
  return number.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Return a time such as "8 s" or "2 min 5 s". */
export function shownSeconds(seconds) {
  const whole = Math.max(1, Math.round(seconds));
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** Return text with a count: "1 file", "2 files". */
export function counted(count, noun) {
  return `${shown(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Return an identity that no other has; pages of plain http from another machine have no randomUUID. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Copy a text; where the browser gives pages of plain http no clipboard, by a selection. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { value: text, className: "hidden", "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Give a text to the user as a file. */
export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Return whether the page is as narrow as a phone. */
export function isNarrow() {
  return matchMedia("(max-width: 760px)").matches;
}
