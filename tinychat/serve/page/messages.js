/** The messages of the branch that is shown. */

import { ColouredCode } from "./code.js";
import { sizeOf } from "./composer.js";
import { append, button, byId, copy, counted, make, shown, shownSeconds } from "./dom.js";
import { imageNode } from "./images.js";
import { GrowingMarkdown } from "./markdown.js";
import { branch, versions } from "./tree.js";

const NAMES = { user: "You", assistant: "Model", tool: "Result" };
const FINISHES = new Map([
  ["length", "The reply ended at the limit of its length."],
  ["stopped", "Stopped."],
]);
const NEAR_END = 48;
const LONGEST_ANNOUNCED = 2000;

/** The list; what the user does there calls the function of that name among `actions`. */
export class Messages {
  #list = byId("messages");
  #scroll = byId("scroll");
  #views = [];
  #follows = true;
  #actions;

  /**
   * @param {{again: Function, edit: Function, switchVersion: Function}} actions Each takes the message first.
   */
  constructor(actions) {
    this.#actions = actions;
    const toEnd = byId("to-end");
    this.#scroll.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = this.#scroll;
      this.#follows = scrollHeight - scrollTop - clientHeight < NEAR_END;
      toEnd.hidden = this.#follows;
    });
    toEnd.addEventListener("click", () => this.toEnd());
  }

  /** Show a conversation; `run` is the reply that is written in it, if there is one. */
  show(conversation, run) {
    const path = branch(conversation);
    const same = this.#views.findIndex((view, index) => view.message !== path[index]);
    for (const view of this.#views.splice(same < 0 ? this.#views.length : same)) view.node.remove();
    for (const message of path.slice(this.#views.length)) {
      const view = new MessageView(message, this.#actions);
      this.#views.push(view);
      this.#list.append(view.node);
    }
    for (const view of this.#views) view.refresh(versions(conversation, view.message), run);
    byId("empty").hidden = path.length > 0;
    if (this.#follows) this.toEnd();
  }

  /** Show what was added to the message that is written. */
  update(run) {
    this.#views.find((view) => view.message === run.message)?.update(run);
    if (this.#follows) this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  /** Scroll to the end, and follow it. */
  toEnd() {
    this.#follows = true;
    byId("to-end").hidden = true;
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  /** Let the user edit a message. */
  edit(message) {
    this.#views.find((view) => view.message === message)?.edit();
  }

  /** Give the arrow that was used the focus again, or the other one where it has come to its end. */
  focusSwitcher(message, step) {
    const arrows = [...this.#views.find((view) => view.message === message).node.querySelectorAll(".versions button")];
    (step > 0 ? arrows.reverse() : arrows).find((arrow) => !arrow.disabled)?.focus();
  }

  /** Tell those who do not see it that a reply is finished. */
  announce(message) {
    const text = message.error ?? (message.content || counted(message.calls?.length ?? 0, "call"));
    byId("live").textContent = `Reply: ${text.slice(0, LONGEST_ANNOUNCED)}`;
  }
}

/** One message: its thoughts, images, files, text, calls, and what can be done with it. */
class MessageView {
  #actions;
  #body = make("div", { className: "body prose" });
  #thoughts = new Thoughts();
  #calls = make("div", { className: "calls" });
  #callViews = [];
  #state = make("p", { className: "state", hidden: true });
  #footer = make("footer", { className: "small" });
  #text;

  constructor(message, actions) {
    this.message = message;
    this.#actions = actions;
    const name = make("h2", { textContent: NAMES[message.role] });
    const files = make("div", { className: "attached" });
    append(files, [...(message.images ?? []).map(imageNode), ...(message.files ?? []).map(fileNode)]);
    this.node = make("li", { className: `message ${message.role}` }, name, this.#thoughts.node, files, this.#body);
    append(this.node, [this.#calls, this.#state, this.#footer]);
    // Only what models write is markdown: a text of the user is shown as it was typed.
    if (message.role === "assistant") this.#text = new GrowingMarkdown(this.#body);
    else this.#body.classList.add("plain");
    this.update(null);
  }

  /** Show the message as it is now; while it is written, `run` tells how far it is. */
  update(run) {
    const { content, reasoning, calls } = this.message;
    if (this.#text) this.#text.update(content);
    else this.#body.textContent = content;
    this.#body.hidden = !content;
    this.#thoughts.update(reasoning ?? "", Boolean(run && !content));
    for (const [index, call] of (calls ?? []).entries()) this.#callView(index).update(call, !run);
    this.#showState(run);
  }

  /** Show what can be done with it: nothing that changes the branch while a reply is written. */
  refresh(all, run) {
    const message = this.message;
    this.update(run?.message === message ? run : null);
    if (message.model) this.node.querySelector("h2").textContent = message.model;
    const parts = [make("span", { className: "stats", textContent: message.stats ? statsText(message.stats) : "" })];
    if (all.length > 1) parts.push(this.#switcher(all));
    if (message.content) parts.push(button("Copy", "Copy this message", () => copy(message.content)));
    if (message.role === "user") parts.push(button("Edit", "Edit this message in a new branch", () => this.edit()));
    if (message.role === "assistant")
      parts.push(button("Again", "Again: write another reply", () => this.#actions.again(message)));
    this.#footer.replaceChildren(...parts);
    for (const each of this.#footer.querySelectorAll("button"))
      each.disabled ||= Boolean(run) && each.textContent !== "Copy";
  }

  /** Put a field in the place of the text. */
  edit() {
    const area = make("textarea", { value: this.message.content, rows: 3, "aria-label": "Edited message" });
    const leave = () => {
      form.remove();
      this.#body.hidden = !this.message.content;
      byId("prompt").focus();
    };
    const save = () => {
      leave();
      this.#actions.edit(this.message, area.value.trim());
    };
    const buttons = make(
      "div",
      { className: "row" },
      button("Cancel", "Cancel (Esc)", leave),
      button("Send", "Send (Ctrl+Enter)", save),
    );
    const form = make("div", { className: "editor" }, area, buttons);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        leave();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    this.node.querySelector(".editor")?.remove();
    this.#body.hidden = true;
    this.#body.after(form);
    area.focus();
  }

  #switcher(all) {
    const at = all.indexOf(this.message);
    const step = (mark, label, by) => {
      const one = button(mark, label, () => this.#actions.switchVersion(this.message, by));
      one.disabled = !all[at + by];
      return one;
    };
    const count = make("span", { textContent: `${at + 1}/${all.length}` });
    return make(
      "span",
      { className: "versions" },
      step("‹", "Version before", -1),
      count,
      step("›", "Version after", 1),
    );
  }

  #callView(index) {
    while (this.#callViews.length <= index) {
      const view = new CallView();
      this.#callViews.push(view);
      this.#calls.append(view.node);
    }
    return this.#callViews[index];
  }

  #showState(run) {
    const { error, finish } = this.message;
    const isWaiting = run && !this.message.content && !this.message.reasoning && !this.message.calls?.length;
    this.#state.classList.toggle("problem", Boolean(error));
    if (isWaiting) this.#state.replaceChildren(...progressNodes(run.progress));
    else this.#state.textContent = error ?? (run ? "" : (FINISHES.get(finish) ?? ""));
    this.#state.hidden = !this.#state.hasChildNodes();
    this.node.setAttribute("aria-busy", String(Boolean(run)));
  }
}

/** What the model thought, folded. */
class Thoughts {
  #summary = make("summary", {});
  #body = make("div", { className: "prose" });
  #text = new GrowingMarkdown(this.#body);

  node = make("details", { className: "thoughts", hidden: true }, this.#summary, this.#body);

  update(text, isThinking) {
    this.node.hidden = !text;
    this.#summary.textContent = isThinking ? "Thinking …" : "Thoughts";
    this.#text.update(text);
  }
}

/** A call of a tool. */
class CallView {
  #name = make("strong");
  #code = make("code");
  #colours = new ColouredCode(this.#code, "json");

  constructor() {
    const label = make("div", { className: "code-bar" }, make("span", {}, "calls ", this.#name));
    const text = make("pre", { tabIndex: 0, role: "region", "aria-label": "Arguments" }, this.#code);
    this.node = make("div", { className: "code call" }, label, text);
  }

  update(call, isWhole) {
    this.#name.textContent = call.name;
    this.#colours.update(isWhole ? laidOut(call.arguments) : call.arguments);
  }
}

function laidOut(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function fileNode(file) {
  const text = make("pre", { tabIndex: 0, role: "region", "aria-label": file.name, textContent: file.text });
  return make(
    "details",
    { className: "file" },
    make("summary", { textContent: `${file.name}, ${sizeOf(file)}` }),
    text,
  );
}

function progressNodes(progress) {
  if (!progress) return ["Waiting …"];
  const { processed, total, seconds_left: left } = progress;
  const bar = make("progress", { max: total, value: processed, "aria-label": "Prompt that is read" });
  const time = left === null || processed === total ? "" : `, ${shownSeconds(left)} left`;
  return [bar, ` Reading the prompt: ${shown(processed)} of ${counted(total, "token")}${time}`];
}

function statsText(stats) {
  if (stats.isEstimate) return stats.written === 0 ? "" : `about ${counted(stats.written, "token")}`;
  const rate = stats.rate ? `, ${shown(stats.rate, 1)}/s` : "";
  const cached = stats.cached ? `, ${shown(stats.cached)} cached` : "";
  const read = stats.promptRate ? `, ${shown(stats.promptRate, 1)}/s` : "";
  return `${counted(stats.written, "token")}${rate}; prompt ${shown(stats.prompt)}${cached}${read}`;
}
