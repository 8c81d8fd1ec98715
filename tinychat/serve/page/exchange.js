/** Conversations as files: written as JSON, and checked when they are read. */

import { newId } from "./dom.js";
import { isImageUrl } from "./images.js";
import { readSettings } from "./settings.js";

const FORMAT = "tinychat conversations";
const VERSION = 1;
const ROLES = ["user", "assistant", "tool"];
const NUMBERS = ["prompt", "cached", "written", "promptRate", "rate"];

/** Return conversations as the text of a file. */
export function writeFile(conversations) {
  const plain = conversations.map((one) => ({
    ...one,
    messages: [...one.messages.values()],
    chosen: [...one.chosen],
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: plain }, null, 1);
}

/**
 * Return the conversations of a file.
 * @throws {Error} If it is not such a file, or anything in it is not as it should be.
 */
export function readFile(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON");
  }
  require(file?.format === FORMAT && Array.isArray(file.conversations), `the file has no ${FORMAT}`);
  require(file.version === VERSION, `the file has version ${file.version}; this page reads ${VERSION}`);
  return file.conversations.map(readConversation);
}

function readConversation(value, index) {
  const where = `conversation ${index + 1}`;
  require(Array.isArray(value?.messages), `${where} has no messages`);
  const messages = new Map();
  const chosen = new Map();
  for (const [number, item] of value.messages.entries()) {
    const message = readMessage(item, `${where}, message ${number + 1}`);
    // A parent that comes first: so nothing runs in circles.
    require(message.parent === "" || messages.has(message.parent), `${where}: message ${number + 1} has no parent`);
    require(!messages.has(message.id), `${where}: message ${number + 1} has the id of another`);
    messages.set(message.id, message);
    chosen.set(message.parent, message.id);
  }
  for (const pair of Array.isArray(value.chosen) ? value.chosen : []) {
    if (Array.isArray(pair) && messages.get(pair[1])?.parent === pair[0]) chosen.set(pair[0], pair[1]);
  }
  return {
    id: isName(value.id) ? value.id : newId(),
    title: typeof value.title === "string" ? value.title.slice(0, 200) : "",
    created: time(value.created),
    updated: time(value.updated),
    settings: readSettings(value.settings),
    messages,
    chosen,
  };
}

function readMessage(value, where) {
  require(isName(value?.id) && typeof value.parent === "string", `${where} has no id or parent`);
  require(ROLES.includes(value.role), `${where} has a role that is not known`);
  require(typeof value.content === "string", `${where} has no content`);
  const message = { id: value.id, parent: value.parent, role: value.role, content: value.content, at: time(value.at) };
  for (const name of ["reasoning", "call", "model", "finish", "error"]) {
    if (typeof value[name] === "string") message[name] = value[name];
  }
  if (value.calls !== undefined) message.calls = readList(value.calls, ["id", "name", "arguments"], `${where}: a call`);
  if (value.files !== undefined) message.files = readList(value.files, ["name", "text"], `${where}: a file`);
  if (value.images !== undefined) message.images = readImages(value.images, `${where}: an image`);
  if (value.stats) message.stats = readStats(value.stats);
  return message;
}

/** Return objects that have just these texts. */
function readList(value, names, where) {
  require(Array.isArray(value), `${where} is not in a list`);
  return value.map((item) => {
    require(names.every((name) => typeof item?.[name] === "string"), `${where} lacks one of ${names.join(", ")}`);
    return Object.fromEntries(names.map((name) => [name, item[name]]));
  });
}

function readImages(value, where) {
  return readList(value, ["id", "name", "url"], where).map((image, at) => {
    const [width, height] = [value[at].width, value[at].height];
    const hasSize = [width, height].every((side) => Number.isInteger(side) && side > 0);
    require(isName(image.id) && hasSize, `${where} has no id or size`);
    require(image.url === "" || isImageUrl(image.url), `${where} has an address that is none of an image`);
    return { ...image, width, height };
  });
}

function readStats(value) {
  const known = NUMBERS.filter((name) => Number.isFinite(value[name]));
  return { ...Object.fromEntries(known.map((name) => [name, value[name]])), isEstimate: value.isEstimate === true };
}

function isName(value) {
  return typeof value === "string" && /^[\w-]{1,64}$/.test(value);
}

function time(value) {
  return Number.isFinite(value) ? value : Date.now();
}

function require(holds, problem) {
  if (!holds) throw new Error(problem);
}
