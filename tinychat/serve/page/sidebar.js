/** The list of conversations, and whether it is shown. */

import { button, byId, isNarrow, make } from "./dom.js";

/** The list; `remove` is called with the id of a conversation that the user deletes. */
export class Sidebar {
  #remove;

  constructor(remove) {
    this.#remove = remove;
    byId("toggle").addEventListener("click", () => this.toggle());
    // Beside it, on a phone, is the conversation: a touch there puts it away.
    document.querySelector("main").addEventListener("click", () => isNarrow() && this.toggle(false));
    matchMedia("(max-width: 760px)").addEventListener("change", () => this.toggle(!isNarrow()));
    this.toggle(!isNarrow());
  }

  /** Show or hide it. */
  toggle(isOpen = !this.#isOpen) {
    document.body.classList.toggle("has-sidebar", isOpen);
    byId("toggle").setAttribute("aria-expanded", String(isOpen));
    byId("sidebar").inert = !isOpen;
  }

  get #isOpen() {
    return document.body.classList.contains("has-sidebar");
  }

  /** Show the conversations, the latest first; `open` is the id of the one that is read, `running` has replies. */
  show(heads, open, running) {
    const latest = heads.toSorted((one, other) => other.updated - one.updated);
    byId("conversations").replaceChildren(
      ...latest.map((head) => this.#entry(head, head.id === open, running.has(head.id))),
    );
  }

  #entry({ id, title }, isOpen, isRunning) {
    const name = title || "Untitled";
    const link = make("a", { href: `#c=${id}`, title: name, textContent: name });
    if (isOpen) link.setAttribute("aria-current", "page");
    link.addEventListener("click", () => isNarrow() && this.toggle(false));
    const busy = isRunning ? make("span", { className: "busy", title: "A reply is written", textContent: "…" }) : null;
    return make(
      "li",
      {},
      link,
      busy,
      button("×", `Delete ${name}`, () => this.#remove(id), "small"),
    );
  }
}
