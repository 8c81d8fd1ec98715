/** Markdown as nodes, block by block. Whatever else a text contains is text: no markup of it becomes an element. */

import { ColouredCode } from "./code.js";
import { append, button, copy, make } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})[ \t]*(\S*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( {1,4}(?=\S)| *$|(?= ))/;
const DEEPEST = 8;

/** Return the nodes of a text. */
export function markdown(text) {
  return render(text.split("\n"), 0);
}

/** A text that grows, in an element: of each state only the last blocks are made anew. */
export class GrowingMarkdown {
  #text = "";
  #start = 0;
  #tail = [];
  #code = null; // The block of code that is the tail, if it is one.

  constructor(element) {
    this.element = element;
  }

  /** Show a text, which goes on where the one before ended. */
  update(text) {
    if (text === this.#text) return;
    this.#text = text;
    const lines = text.slice(this.#start).split("\n");
    const blocks = parse(lines, 0);
    if (blocks.length === 1 && blocks[0].kind === "fence" && blocks[0].language === this.#code?.language) {
      this.#code.colours.update(blocks[0].text);
      return;
    }
    for (const node of this.#tail) node.remove();
    const nodes = blocks.map((block) => block.render());
    append(this.element, nodes);
    // A block that begins in the last line may yet turn out to belong to the one before.
    const last = Math.max(
      0,
      blocks.findLastIndex((block) => block.at < lines.length - 1),
    );
    this.#tail = nodes.slice(last);
    this.#code = this.#tail.length === 1 && blocks[last].kind === "fence" ? blocks[last] : null;
    if (blocks.length) this.#start += lines.slice(0, blocks[last].at).reduce((sum, line) => sum + line.length + 1, 0);
  }
}

function render(lines, depth) {
  return parse(lines, depth).map((block) => block.render());
}

/** Return the blocks of lines: kind, first line, the line behind the last, and how each is rendered. */
function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const block = Object.assign(blockAt(lines, at, depth), { at });
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const kinds = depth < DEEPEST ? [fence, heading, rule, quote, list, table] : [fence];
  for (const kind of kinds) {
    const block = kind(lines, at, depth);
    if (block) return block;
  }
  return paragraph(lines, at, depth);
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !interrupts(lines, end, depth)) end += 1;
  const text = lines
    .slice(at, end)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
  return { kind: "paragraph", end, render: () => append(make("p"), inline(text)) };
}

/** Return whether a line begins another block though the one before has not ended. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return true;
  if (depth >= DEEPEST) return false;
  const item = ITEM.exec(line);
  const isItem = item && item[3] && (item[2].length === 1 || item[2].startsWith("1"));
  return HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isItem || isTable(lines, at);
}

function fence(lines, at) {
  const found = FENCE.exec(lines[at]);
  if (!found) return null;
  const [, mark, language] = found;
  const indent = lines[at].indexOf(mark[0]);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], mark)) end += 1;
  const text = lines
    .slice(at + 1, end)
    .map((line) => line.slice(Math.min(indent, indentOf(line))))
    .join("\n");
  const block = { kind: "fence", end: Math.min(end + 1, lines.length), text, language };
  block.render = () => codeBlock(text, language, (colours) => (block.colours = colours));
  return block;
}

function closes(line, mark) {
  const text = line.trim();
  return indentOf(line) < 4 && text.length >= mark.length && text === mark[0].repeat(text.length);
}

function codeBlock(text, language, keep) {
  const code = make("code");
  const colours = new ColouredCode(code, language);
  colours.update(text);
  keep(colours);
  const copying = button("Copy", "Copy this code", () => copy(code.textContent), "small");
  const bar = make("div", { className: "code-bar" }, make("span", { textContent: language || "text" }), copying);
  const label = language ? `Code in ${language}` : "Code";
  return make(
    "div",
    { className: "code" },
    bar,
    make("pre", { tabIndex: 0, role: "region", "aria-label": label }, code),
  );
}

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  const text = lines[at]
    .slice(found[0].length)
    .trim()
    .replace(/(^|[ \t])#+$/, "");
  // The page has a heading of its own above them.
  const level = Math.min(6, found[1].length + 2);
  return { kind: "heading", end: at + 1, render: () => append(make(`h${level}`), inline(text)) };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { kind: "rule", end: at + 1, render: () => make("hr") } : null;
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  if (end === at) return null;
  const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { kind: "quote", end, render: () => append(make("blockquote"), render(inside, depth + 1)) };
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first || first[1].length > 3) return null;
  const isOrdered = first[2].length > 1;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[2].length > 1 !== isOrdered || item[1].length > first[1].length + 1) break;
    if (!isOrdered && RULE.test(lines[end])) break;
    const found = itemAt(lines, end, item);
    items.push(found);
    end = found.end;
  }
  const isLoose = items.some((item, index) => item.isLoose || (item.hasGap && index < items.length - 1));
  const start = isOrdered ? Number.parseInt(first[2], 10) : 1;
  return { kind: "list", end, render: () => listNode(items, isOrdered, start, isLoose, depth) };
}

/** Return the lines of an item, without their indent, and whether blank lines stand between its blocks. */
function itemAt(lines, at, item) {
  const width = item[0].length;
  const least = Math.min(width, item[1].length + 2);
  const inside = [lines[at].slice(width)];
  let end = at + 1;
  let last = end;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) {
      inside.push("");
      continue;
    }
    const isInside = indentOf(line) >= least;
    const isLazy = end === last && !ITEM.test(line) && !interrupts(lines, end, 0);
    if (!isInside && !isLazy) break;
    inside.push(line.slice(Math.min(width, indentOf(line))));
    last = end + 1;
  }
  inside.length = last - at;
  return {
    end,
    lines: inside,
    isLoose: inside.includes("") && !inside.some((line) => FENCE.test(line)),
    hasGap: last < end,
  };
}

function listNode(items, isOrdered, start, isLoose, depth) {
  const node = make(isOrdered ? "ol" : "ul", isOrdered && start !== 1 ? { start } : {});
  return append(
    node,
    items.map((item) => itemNode(item.lines, isLoose, depth)),
  );
}

function itemNode(lines, isLoose, depth) {
  const task = /^\[([ xX])\] /.exec(lines[0]);
  const text = task ? [lines[0].slice(4), ...lines.slice(1)] : lines;
  const node = make("li", task ? { className: "task" } : {});
  if (task)
    node.append(make("input", { type: "checkbox", checked: task[1] !== " ", disabled: true, "aria-label": "Done" }));
  for (const child of render(text, depth + 1)) {
    if (!isLoose && child.tagName === "P") append(node, [...child.childNodes]);
    else node.append(child);
  }
  return node;
}

function isTable(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return false;
  const sides = cells(lines[at + 1]);
  return sides.length === cells(lines[at]).length && sides.every((side) => /^:?-+:?$/.test(side));
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const sides = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "",
  );
  const row = (line, tag) => {
    const found = cells(line);
    return append(
      make("tr"),
      sides.map((side, index) => append(make(tag, { className: side }), inline(found[index] ?? ""))),
    );
  };
  const rendered = () => {
    const body = append(
      make("tbody"),
      lines.slice(at + 2, end).map((line) => row(line, "td")),
    );
    const whole = make("table", {}, make("thead", {}, row(lines[at], "th")), body);
    return make("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, whole);
  };
  return { kind: "table", end, render: rendered };
}

function cells(line) {
  const inside = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}
