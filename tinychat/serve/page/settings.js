/** Settings of a conversation: how they are read, asked for, and sent. */

import { byId } from "./dom.js";

const TEXTS = ["system", "reasoning_effort", "extra", "model"];
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens", "seed"];
// As llama-server writes that there is none.
const RANDOM_SEED = 0xffffffff;
const THEME = "tinychat.theme";

/** Return the settings among the fields of any value. */
export function readSettings(value) {
  const settings = {};
  for (const name of TEXTS) if (typeof value?.[name] === "string" && value[name]) settings[name] = value[name];
  for (const name of NUMBERS) if (Number.isFinite(value?.[name])) settings[name] = value[name];
  return settings;
}

/** Return the fields of a request for settings. */
export function requestFields(settings) {
  const fields = readExtra(settings.extra);
  for (const name of [...NUMBERS, "reasoning_effort"]) if (settings[name] !== undefined) fields[name] = settings[name];
  return fields;
}

/**
 * Return the fields that are written as JSON.
 * @throws {Error} If they are no object.
 */
function readExtra(text) {
  if (!text?.trim()) return {};
  let fields;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    throw new Error(`The other fields are not JSON: ${error.message}`);
  }
  if (typeof fields !== "object" || fields === null || Array.isArray(fields)) {
    throw new Error("The other fields are not a JSON object");
  }
  return fields;
}

/** The dialog in which they are changed; `onChange` is called with the title and settings after each change. */
export class SettingsDialog {
  #dialog = byId("settings");
  #form = byId("settings-form");
  #model = undefined;

  constructor(onChange) {
    this.#form.addEventListener("change", (event) => {
      if (!event.target.name || !this.#check()) return;
      onChange(this.#form.elements.title.value.trim(), this.#read());
    });
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#check()) this.#dialog.close();
    });
    const theme = byId("theme");
    theme.value = localStorage.getItem(THEME) ?? "";
    theme.addEventListener("change", () => applyTheme(theme.value));
    applyTheme(theme.value);
  }

  /** Show the dialog; the model's defaults stand where nothing is set. */
  show(conversation, defaults) {
    this.#model = conversation.settings.model;
    const fields = this.#form.elements;
    fields.title.value = conversation.title;
    for (const name of [...TEXTS, ...NUMBERS]) {
      if (!fields[name]) continue;
      fields[name].value = conversation.settings[name] ?? "";
      if (NUMBERS.includes(name)) fields[name].placeholder = defaultOf(defaults[name]);
    }
    this.#check();
    this.#dialog.showModal();
  }

  #read() {
    const values = { model: this.#model };
    for (const name of [...TEXTS, ...NUMBERS]) {
      const field = this.#form.elements[name];
      if (field) values[name] = NUMBERS.includes(name) ? field.valueAsNumber : field.value;
    }
    return readSettings(values);
  }

  /** Say what is wrong with the fields in JSON; return whether nothing is. */
  #check() {
    let problem = "";
    try {
      readExtra(this.#form.elements.extra.value);
    } catch (error) {
      problem = error.message;
    }
    byId("settings-problem").textContent = problem;
    this.#form.elements.extra.setAttribute("aria-invalid", String(Boolean(problem)));
    return !problem && this.#form.reportValidity();
  }
}

function defaultOf(value) {
  if (value === RANDOM_SEED) return "random";
  return Number.isFinite(value) && value >= 0 ? String(Math.round(value * 1000) / 1000) : "";
}

function applyTheme(theme) {
  if (theme) localStorage.setItem(THEME, theme);
  else localStorage.removeItem(THEME);
  document.documentElement.dataset.theme = theme;
}

/** Ask for a key of the server; return null if there is none. */
export function askKey(isWrong) {
  const [dialog, field] = [byId("key"), byId("key-input")];
  if (isWrong) byId("key-problem").textContent = "The server does not take this key.";
  field.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      dialog.close(field.value.trim());
    };
    byId("key-cancel").onclick = () => dialog.close("");
    dialog.oncancel = () => (dialog.returnValue = "");
    dialog.onclose = () => resolve(dialog.returnValue || null);
  });
}
