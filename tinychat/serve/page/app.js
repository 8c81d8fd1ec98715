/** The page: conversations with the model of the server that it comes from. */

import { Server } from "./api.js";
import { Composer } from "./composer.js";
import { button, byId, download, make, newId, shown } from "./dom.js";
import { readFile, writeFile } from "./exchange.js";
import { Messages } from "./messages.js";
import { Run } from "./reply.js";
import { askKey, readSettings, requestFields, SettingsDialog } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { ImagesError, openStorage } from "./storage.js";
import { add, asRequest, branch, endBefore, newConversation, openCall, switchVersion, withFiles } from "./tree.js";

const SAVE_SECONDS = 1;
const NOTICE_SECONDS = 10;
const RETRY_SECONDS = 2;
const LAST_SETTINGS = "tinychat.settings";

class App {
  #server = new Server(askKey);
  #messages = new Messages({
    again: (message) => this.#again(message),
    edit: (message, text) => this.#edit(message, text),
    switchVersion: (message, step) => this.#switch(message, step),
  });
  #composer = new Composer({
    send: (text, files, images) => this.#send(text, files, images),
    editLast: () => this.#editLast(),
    say: (text) => this.#say(text),
  });
  #sidebar = new Sidebar((id) => this.#remove(id));
  #settings = new SettingsDialog((title, settings) => this.#change(title, settings));
  // Other tabs with this page change the same conversations.
  #tabs = new BroadcastChannel("tinychat");
  #storage;
  #models = [];
  #conversation;
  #runs = new Map();
  #isDrawing = false;
  #isStale = false;

  /** Begin: show the conversation of the address, and look for the server. */
  async start() {
    this.#storage = await openStorage();
    this.#bind();
    await this.#openAddress();
    if (!this.#storage.isLasting) this.#say("This browser stores nothing for this page: conversations end with it.");
    this.#composer.focus();
    await this.#connect();
  }

  #bind() {
    addEventListener("hashchange", () => this.#openAddress());
    addEventListener("keydown", (event) => this.#key(event));
    addEventListener("pagehide", () => this.#runs.has(this.#conversation.id) && this.#save(this.#conversation));
    this.#tabs.onmessage = ({ data }) => this.#readAgain(data);
    byId("new").addEventListener("click", () => this.#begin());
    byId("stop").addEventListener("click", () => this.#stop());
    byId("open-settings").addEventListener("click", () => this.#showSettings());
    byId("model").addEventListener("change", (event) => this.#choose(event.target.value));
    byId("export").addEventListener("click", () => this.#export([this.#conversation]));
    byId("export-all").addEventListener("click", async () => this.#export(await this.#storage.all()));
    const file = byId("import-file");
    byId("import").addEventListener("click", () => file.click());
    file.addEventListener("change", async () => {
      if (file.files.length) await this.#import(file.files[0]);
      file.value = "";
    });
  }

  #key(event) {
    if (document.querySelector("dialog[open]")) return;
    const isCommand = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey;
    if (isCommand && event.key === "k") this.#begin();
    else if (isCommand && event.key === "b") this.#sidebar.toggle();
    else if (event.key === "Escape" && this.#runs.has(this.#conversation.id)) this.#stop();
    else return;
    event.preventDefault();
  }

  // The server

  async #connect() {
    try {
      this.#models = await this.#server.models();
      this.#showModels();
      this.#showContext();
      if (!this.#model()?.meta && (await this.#server.isLoading())) {
        this.#say("The server is loading the model.");
        setTimeout(() => this.#connect(), 1000 * RETRY_SECONDS);
      }
    } catch (error) {
      this.#say(`The server does not answer: ${error.message}`);
      if (error.status !== 401) setTimeout(() => this.#connect(), 1000 * RETRY_SECONDS);
    }
  }

  /** Return the model of this conversation, or the first one. */
  #model() {
    return this.#models.find(({ id }) => id === this.#conversation.settings.model) ?? this.#models[0];
  }

  #showModels() {
    const options = this.#models.map(({ id }) => make("option", { value: id, textContent: id }));
    byId("model").replaceChildren(...options);
    byId("model").value = this.#model()?.id ?? "";
    this.#describeNext();
  }

  #choose(model) {
    this.#change(this.#conversation.title, { ...this.#conversation.settings, model });
  }

  // Conversations

  async #openAddress() {
    const id = /^#c=([\w-]+)$/.exec(location.hash)?.[1];
    if (id && id === this.#conversation?.id) return;
    await this.#open(id);
  }

  async #open(id) {
    const running = this.#runs.get(id)?.conversation;
    const found = running ?? (id && (await this.#storage.get(id)));
    if (id && !found) this.#say("This conversation is not in this browser.");
    this.#conversation = found || newConversation(lastSettings());
    this.#messages.toEnd();
    this.#show();
  }

  #begin() {
    this.#conversation = newConversation(lastSettings());
    history.pushState(null, "", location.pathname + location.search);
    this.#show();
    this.#composer.focus();
  }

  async #remove(id) {
    const removed = await this.#storage.get(id);
    this.#runs.get(id)?.run.controller.abort();
    this.#runs.delete(id);
    await this.#storage.remove(id);
    this.#tabs.postMessage(id);
    if (this.#conversation.id === id) this.#begin();
    const restore = () => removed && this.#save(removed);
    this.#say(`Deleted: ${removed?.title || "Untitled"}.`, button("Undo", "Undo the deletion", restore));
    await this.#showList();
  }

  /** Take what another tab has written, unless a reply is written here. */
  async #readAgain(id) {
    if (id === this.#conversation.id && !this.#runs.has(id)) {
      this.#conversation = (await this.#storage.get(id)) ?? this.#conversation;
      this.#show();
    } else await this.#showList();
  }

  /** Write a conversation; where the browser has no room, say so and go on. */
  async #save(conversation) {
    try {
      await this.#storage.put(conversation);
    } catch (error) {
      const cause = error instanceof ImagesError ? error.cause : error;
      const isFull = cause?.name === "QuotaExceededError";
      const reason = isFull ? "the browser gives no more room: delete conversations, or export them" : cause?.message;
      this.#say(`${cause === error ? "Not saved" : "Saved without its images"}: ${reason}.`);
    }
    this.#tabs.postMessage(conversation.id);
    await this.#showList();
  }

  #change(title, settings) {
    const conversation = this.#conversation;
    Object.assign(conversation, { title, settings });
    localStorage.setItem(LAST_SETTINGS, JSON.stringify(settings));
    this.#show();
    if (conversation.messages.size) this.#save(conversation);
  }

  #export(conversations) {
    const name = conversations.length === 1 ? conversations[0].title.replace(/[^\p{L}\p{N}]+/gu, "-") : "conversations";
    download(`${name || "conversation"}.json`, writeFile(conversations), "application/json");
  }

  async #import(file) {
    try {
      const found = readFile(await file.text());
      for (const conversation of found) {
        if (await this.#storage.get(conversation.id)) conversation.id = newId();
        await this.#save(conversation);
      }
      if (found.length) location.hash = `c=${found[0].id}`;
    } catch (error) {
      this.#say(`${file.name} is not imported: ${error.message}.`);
    }
  }

  // Replies

  async #send(text, files, images) {
    const conversation = this.#conversation;
    const path = branch(conversation);
    const parent = path.at(-1)?.id ?? "";
    const call = openCall(path);
    if (call) add(conversation, parent, { role: "tool", call: call.id, content: withFiles(text, files) });
    else add(conversation, parent, { role: "user", content: text, ...attached(files, images) });
    if (location.hash !== `#c=${conversation.id}`) history.pushState(null, "", `#c=${conversation.id}`);
    this.#messages.toEnd();
    // The next of several calls has no result yet.
    if (!openCall(branch(conversation))) return this.#reply(conversation);
    this.#show();
    await this.#save(conversation);
  }

  async #reply(conversation) {
    const path = branch(conversation);
    const message = add(conversation, path.at(-1).id, { role: "assistant", model: this.#model()?.id });
    const run = new Run(message);
    this.#runs.set(conversation.id, { run, conversation });
    this.#show();
    this.#save(conversation);
    try {
      await this.#stream(conversation, path, run);
    } catch (error) {
      run.breakOff(error);
    }
    // It may have been deleted meanwhile.
    if (!this.#runs.delete(conversation.id)) return;
    this.#show();
    this.#messages.announce(message);
    await this.#save(conversation);
    this.#refreshModels();
  }

  async #stream(conversation, path, run) {
    const body = {
      ...requestFields(conversation.settings),
      model: this.#model()?.id,
      messages: asRequest(conversation.settings.system, path, seesImages(this.#model())),
      stream: true,
      stream_options: { include_usage: true },
      return_progress: true,
    };
    let saved = performance.now();
    for await (const chunk of this.#server.chat(body, run.controller.signal)) {
      run.take(chunk);
      if (conversation === this.#conversation) this.#draw();
      if (performance.now() - saved < 1000 * SAVE_SECONDS) continue;
      saved = performance.now();
      this.#save(conversation);
    }
  }

  /** Show what is new in the next frame: chunks come faster than frames. */
  #draw() {
    this.#isStale = true;
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => this.#drawNow());
  }

  #drawNow() {
    const begin = performance.now();
    const run = this.#runs.get(this.#conversation.id)?.run;
    this.#isStale = false;
    if (run) this.#messages.update(run);
    // What takes long is drawn less often: the page answers in between.
    const rest = () => {
      this.#isDrawing = false;
      if (this.#isStale) this.#draw();
    };
    setTimeout(rest, 3 * (performance.now() - begin));
  }

  #stop() {
    this.#runs.get(this.#conversation.id)?.run.controller.abort();
    this.#composer.focus();
  }

  async #again(message) {
    const conversation = this.#conversation;
    endBefore(conversation, message);
    await this.#reply(conversation);
  }

  async #edit(message, text) {
    const { content, files = [], images = [], role } = message;
    if (!text || text === content) return;
    const conversation = this.#conversation;
    add(conversation, message.parent, { role, content: text, ...attached(files, images) });
    await this.#reply(conversation);
  }

  #editLast() {
    const last = branch(this.#conversation).findLast((message) => message.role === "user");
    if (last && !this.#runs.has(this.#conversation.id)) this.#messages.edit(last);
  }

  #switch(message, step) {
    const other = switchVersion(this.#conversation, message, step);
    this.#show();
    this.#messages.focusSwitcher(other, step);
    this.#save(this.#conversation);
  }

  // The rest of the page

  #show() {
    const conversation = this.#conversation;
    const run = this.#runs.get(conversation.id)?.run;
    this.#messages.show(conversation, run);
    this.#composer.setRunning(Boolean(run));
    this.#describeNext();
    byId("title").textContent = conversation.title || "New conversation";
    document.title = conversation.title ? `${conversation.title} – tinychat` : "tinychat";
    byId("model").value = this.#model()?.id ?? "";
    this.#showContext();
    this.#showList();
  }

  /** Show what the next message is, and whether it may have images. */
  #describeNext() {
    const { id } = this.#conversation;
    const call = this.#runs.has(id) ? undefined : openCall(branch(this.#conversation));
    const model = this.#model();
    if (call) this.#composer.describe(`Result of ${call.name}`, "the result of a call is a text");
    else if (!model) this.#composer.describe("Message", "the server has not answered yet");
    else this.#composer.describe("Message", seesImages(model) ? "" : `${model.id} reads text alone`);
  }

  async #showList() {
    this.#sidebar.show(await this.#storage.heads(), this.#conversation.id, this.#runs);
  }

  #showContext() {
    const size = this.#model()?.meta?.n_ctx;
    const { prompt = 0, written = 0 } = branch(this.#conversation).findLast((message) => message.stats)?.stats ?? {};
    const used = prompt + written;
    byId("context").hidden = !size;
    if (!size) return;
    Object.assign(byId("meter"), { max: size, high: 0.9 * size, value: used });
    byId("used").textContent = `${shown(used)} / ${shown(size)} tokens`;
  }

  /** A model that was loaded for a reply has a context now. */
  async #refreshModels() {
    if (this.#model()?.meta) return;
    this.#models = await this.#server.models().catch(() => this.#models);
    this.#showModels();
    this.#showContext();
  }

  async #showSettings() {
    const model = this.#model();
    // The server would load a model for its defaults.
    const defaults = model?.meta ? await this.#server.defaults(model.id).catch(() => ({})) : {};
    this.#settings.show(this.#conversation, defaults);
  }

  #say(text, ...others) {
    const notice = byId("notice");
    notice.replaceChildren(text, ...others);
    notice.hidden = false;
    clearTimeout(this.#fading);
    this.#fading = setTimeout(() => (notice.hidden = true), 1000 * NOTICE_SECONDS);
  }

  #fading = 0;
}

/** Return whether a model sees images; of one that is not in memory only a request can tell. */
function seesImages(model) {
  return !model?.meta || model.architecture.input_modalities.includes("image");
}

/** Return the fields of what a message has beside its text. */
function attached(files, images) {
  return { ...(files.length && { files }), ...(images.length && { images }) };
}

function lastSettings() {
  try {
    return readSettings(JSON.parse(localStorage.getItem(LAST_SETTINGS)));
  } catch {
    return {};
  }
}

await new App().start();
