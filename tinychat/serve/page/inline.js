/** Markdown within a line, as nodes: emphasis, code, links. Markup in it is text. */

import { append, make } from "./dom.js";

const SPECIAL = /[\\`*_~[\]!&\nh]/g;
const ADDRESS = /https?:\/\/[^\s<>"'`\]}]+/y;
// An address without spaces, with one level of brackets, and perhaps a title.
const TARGET = /\([ \t]*<?([^\s<>()]*(?:\([^\s()<>]*\)[^\s<>()]*)*)>?(?:[ \t]+(?:"[^"\n]*"|'[^'\n]*'))?[ \t]*\)/y;
const ENTITY = /&(lt|gt|amp|quot|apos|nbsp|#39);/y;
const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };
// Brackets stay with their backslash: they begin formulas.
const ESCAPABLE = "\\`*_{}#+-.!|<>&~\"'$:;=?@%^,/";
const BEHIND_ADDRESS = ".,;:!?*_~";
const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
// Openers of a kind at once: deeper nodes take the browser long, and nobody writes them.
const MOST_OPEN = 20;

/** Return the nodes of a text. */
export function inline(text) {
  const parts = [];
  const brackets = [];
  let plain = "";
  let at = 0;
  const push = (part) => {
    if (plain) parts.push({ node: document.createTextNode(plain) });
    plain = "";
    if (part) parts.push(part);
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const found = special(text, at, parts, brackets, push, plain);
    if (found === null) plain += text[at++];
    else if (typeof found.text === "string") [plain, at] = [plain + found.text, found.end];
    else at = found.end;
  }
  push(null);
  return emphasised(parts);
}

/** Take what begins at a special character: returns its end, with the text that it is, or null where it is nothing. */
function special(text, at, parts, brackets, push, plain) {
  const char = text[at];
  switch (char) {
    case "\\":
      return escape(text, at, push);
    case "`":
      return code(text, at, push);
    case "&":
      return entity(text, at);
    case "\n":
      return lineEnd(text, at, plain, push);
    case "h":
      return address(text, at, push);
    case "!":
    case "[":
      return openBracket(text, at, parts, brackets, push);
    case "]":
      return closeBracket(text, at, parts, brackets, push);
    default:
      return delimiter(text, at, push);
  }
}

function escape(text, at, push) {
  const next = text[at + 1];
  if (next === "\n") {
    push({ node: make("br") });
    return { end: at + 2 };
  }
  return next && ESCAPABLE.includes(next) ? { end: at + 2, text: next } : null;
}

function code(text, at, push) {
  const run = runLength(text, at);
  for (let end = text.indexOf("`", at + run); end >= 0; end = text.indexOf("`", end)) {
    const closing = runLength(text, end);
    if (closing === run) {
      const inside = text.slice(at + run, end).replace(/\n/g, " ");
      const isPadded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim();
      push({ node: make("code", { textContent: isPadded ? inside.slice(1, -1) : inside }) });
      return { end: end + run };
    }
    end += closing;
  }
  return { end: at + run, text: text.slice(at, at + run) };
}

function entity(text, at) {
  ENTITY.lastIndex = at;
  const found = ENTITY.exec(text);
  return found && { end: ENTITY.lastIndex, text: ENTITIES[found[1]] };
}

/** A line ends in a space, unless two spaces before it ask for more. */
function lineEnd(text, at, plain, push) {
  if (!plain.endsWith("  ")) return { end: at + 1, text: "\n" };
  push({ node: make("br") });
  return { end: at + 1 };
}

function address(text, at, push) {
  ADDRESS.lastIndex = at;
  if (/\w/.test(text[at - 1] ?? " ") || !ADDRESS.test(text)) return null;
  const end = endOfAddress(text, at, ADDRESS.lastIndex);
  const link = linkTo(text.slice(at, end));
  if (!link) return null;
  link.textContent = text.slice(at, end);
  push({ node: link });
  return { end };
}

/** Return the end of an address without the punctuation behind it, and without brackets that it does not open. */
function endOfAddress(text, at, end) {
  let unopened = 0;
  for (const char of text.slice(at, end)) unopened += char === ")" ? 1 : char === "(" ? -1 : 0;
  for (; ; end -= 1) {
    const last = text[end - 1];
    if (last === ")" && unopened > 0) unopened -= 1;
    else if (!BEHIND_ADDRESS.includes(last)) return end;
  }
}

function openBracket(text, at, parts, brackets, push) {
  const isImage = text[at] === "!";
  if (isImage && text[at + 1] !== "[") return null;
  push({ node: document.createTextNode(isImage ? "![" : "[") });
  brackets.push(parts.length - 1);
  return { end: at + (isImage ? 2 : 1) };
}

/** Make a link of what stands between brackets; an image is one, too: nothing is fetched for a text. */
function closeBracket(text, at, parts, brackets, push) {
  const opener = brackets.pop();
  TARGET.lastIndex = at + 1;
  const target = opener === undefined ? null : TARGET.exec(text);
  const link = target && linkTo(target[1]);
  if (!link) return null;
  push(null);
  const inside = parts.splice(opener).slice(1);
  append(link, emphasised(inside));
  if (!link.textContent.trim()) link.textContent = target[1];
  parts.push({ node: link });
  // There are no links in links.
  brackets.length = 0;
  return { end: TARGET.lastIndex };
}

/** Return a link to another place on the web, null for any other kind of address. */
function linkTo(address) {
  let parsed;
  try {
    parsed = new URL(address);
  } catch {
    return null;
  }
  if (!PROTOCOLS.has(parsed.protocol)) return null;
  return make("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer nofollow" });
}

/** Push a run of emphasis marks: it may open and close according to what stands beside it. */
function delimiter(text, at, push) {
  const char = text[at];
  const count = runLength(text, at);
  const [before, after] = [text[at - 1] ?? " ", text[at + count] ?? " "];
  let canOpen = /\S/.test(after) && (!isPunctuation(after) || /\s/.test(before) || isPunctuation(before));
  let canClose = /\S/.test(before) && (!isPunctuation(before) || /\s/.test(after) || isPunctuation(after));
  if (char === "_") [canOpen, canClose] = [canOpen && !/\w/.test(before), canClose && !/\w/.test(after)];
  if (char === "~" && count !== 2) [canOpen, canClose] = [false, false];
  push({ char, count, canOpen, canClose });
  return { end: at + count };
}

function isPunctuation(char) {
  return /[\p{P}\p{S}]/u.test(char);
}

function runLength(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** Return the nodes of parts, with what stands between matching delimiters in elements. */
function emphasised(parts) {
  const out = [];
  const openers = { "*": [], _: [], "~": [] };
  for (const part of parts) {
    if (part.canClose) close(part, out, openers);
    if (part.count === 0) continue;
    out.push(part);
    const open = openers[part.char];
    if (part.canOpen && open.length < MOST_OPEN) open.push(out.length - 1);
  }
  return nodesOf(out);
}

/** Wrap what stands between an opener and this closer, as often as they match. */
function close(closer, out, openers) {
  const own = openers[closer.char];
  while (closer.count && own.length) {
    const at = own.at(-1);
    const opener = out[at];
    const inside = out.splice(at + 1);
    for (const stack of Object.values(openers)) while (stack.at(-1) > at) stack.pop();
    const used = closer.count >= 2 && opener.count >= 2 ? 2 : 1;
    const tag = closer.char === "~" ? "del" : used === 2 ? "strong" : "em";
    opener.count -= used;
    closer.count -= used;
    if (opener.count === 0) {
      out.pop();
      own.pop();
    }
    out.push({ node: append(make(tag), nodesOf(inside)) });
  }
}

function nodesOf(parts) {
  return parts.map((part) => part.node ?? document.createTextNode(part.char.repeat(part.count)));
}
