/**
 * A conversation: a tree of messages, in which one branch is shown.
 *
 * @typedef {Object} Message
 * @property {string} id
 * @property {string} parent Id of the message before it; "" for a first one.
 * @property {"user"|"assistant"|"tool"} role
 * @property {string} content
 * @property {number} at Milliseconds since 1970.
 * @property {string} [reasoning] What the model thought before.
 * @property {{id: string, name: string, arguments: string}[]} [calls] Calls of tools.
 * @property {string} [call] Id of the call whose result this is.
 * @property {{name: string, text: string}[]} [files] Sent before the content.
 * @property {import("./images.js").Image[]} [images] Sent before the files.
 * @property {string} [model]
 * @property {string} [finish] "stop", "length", "tool_calls" or "stopped"; none while it is written.
 * @property {string} [error]
 * @property {Object} [stats] Counts of tokens, and rates.
 *
 * @typedef {Object} Conversation
 * @property {string} id
 * @property {string} title
 * @property {number} created
 * @property {number} updated
 * @property {Object} settings
 * @property {Map<string, Message>} messages In the order in which they were written.
 * @property {Map<string, string>} chosen The child that is shown, by its parent.
 */

import { newId } from "./dom.js";
import { labelOf } from "./images.js";

const LONGEST_TITLE = 60;

/** Return a conversation without messages. */
export function newConversation(settings = {}) {
  const now = Date.now();
  const trees = { messages: new Map(), chosen: new Map() };
  return { id: newId(), title: "", created: now, updated: now, settings: { ...settings }, ...trees };
}

/** Add a message behind another one, "" for none, and show it. */
export function add(conversation, parent, fields) {
  const message = { id: newId(), parent, at: Date.now(), content: "", ...fields };
  conversation.messages.set(message.id, message);
  conversation.chosen.set(parent, message.id);
  conversation.updated = message.at;
  conversation.title ||= titleOf(message);
  return message;
}

/** End the branch before a message; a reply that ended before it began is removed. */
export function endBefore(conversation, message) {
  const hasText = message.content || message.reasoning || message.calls?.length;
  if (!hasText && !conversation.chosen.has(message.id)) conversation.messages.delete(message.id);
  conversation.chosen.delete(message.parent);
}

/** Return the messages that are shown. */
export function branch(conversation) {
  const path = [];
  for (let id = conversation.chosen.get(""); id !== undefined; id = conversation.chosen.get(id)) {
    path.push(conversation.messages.get(id));
  }
  return path;
}

/** Return the versions of a message: all that have the same parent. */
export function versions(conversation, message) {
  return [...conversation.messages.values()].filter((other) => other.parent === message.parent);
}

/** Show the version so many steps from this one; return it. */
export function switchVersion(conversation, message, step) {
  const all = versions(conversation, message);
  const other = all[all.indexOf(message) + step] ?? message;
  conversation.chosen.set(message.parent, other.id);
  return other;
}

/** Return the first call in a branch that has no result yet; only those of the last reply count. */
export function openCall(path) {
  const asked = path.findLastIndex((message) => message.role === "assistant");
  const answered = new Set(path.slice(asked + 1).map((message) => message.call));
  if (asked < 0 || path.slice(asked + 1).some((message) => message.role === "user")) return undefined;
  return (path[asked].calls ?? []).find((call) => !answered.has(call.id));
}

/** Return messages in OpenAI's form, for a model that sees images or not; replies without anything are left out. */
export function asRequest(system, path, seesImages) {
  const messages = path.filter((message) => message.role !== "assistant" || message.content || message.calls?.length);
  return [
    ...(system ? [{ role: "system", content: system }] : []),
    ...messages.map((message) => fieldsOf(message, seesImages)),
  ];
}

function fieldsOf(message, seesImages) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.call, content: message.content };
  const fields = { role: message.role, content: contentOf(message, seesImages) };
  if (message.reasoning) fields.reasoning_content = message.reasoning;
  if (message.calls?.length) fields.tool_calls = message.calls.map(callFields);
  return fields;
}

function contentOf({ content, files = [], images = [] }, seesImages) {
  const isSeen = ({ url }) => url && seesImages;
  const labels = images.filter((image) => !isSeen(image)).map(labelOf);
  const text = [...labels, withFiles(content, files)].filter(Boolean).join(" ");
  const parts = images.filter(isSeen).map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return parts.length ? [...parts, ...(text ? [{ type: "text", text }] : [])] : text;
}

function callFields(call) {
  return { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } };
}

/** Return a text behind its files, each between fences that are longer than any in it. */
export function withFiles(text, files) {
  return [...files.map(fenced), text].filter(Boolean).join("\n\n");
}

function fenced(file) {
  const longest = Math.max(2, ...(file.text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  const suffix = /\.(\w{1,10})$/.exec(file.name)?.[1] ?? "";
  return `${file.name}:\n${fence}${suffix}\n${file.text.replace(/\n$/, "")}\n${fence}`;
}

function titleOf(message) {
  const text = (message.content || (message.files ?? message.images)?.[0]?.name || "").trim().replace(/\s+/g, " ");
  return text.length > LONGEST_TITLE ? `${text.slice(0, LONGEST_TITLE - 1)}…` : text;
}
