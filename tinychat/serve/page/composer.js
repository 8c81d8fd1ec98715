/** The field for a message: its text, its files and images, and the keys in it. */

import { button, byId, counted, isNarrow, make, shown } from "./dom.js";
import { isImageFile, readImage } from "./images.js";

const LARGEST_FILE = 4 << 20;

/** The field; what the user does there calls the function of that name among `actions`. */
export class Composer {
  #field = byId("prompt");
  #files = [];
  #reading = Promise.resolve();
  #noImages = "";
  #actions;
  #isRunning = false;

  /**
   * @param {{send: Function, editLast: function(): void, say: function(string): void}} actions
   *   `send` takes a text, a list of files, and one of images.
   */
  constructor(actions) {
    this.#actions = actions;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#field.addEventListener("input", () => this.#fit());
    this.#field.addEventListener("keydown", (event) => this.#key(event));
    this.#field.addEventListener("paste", (event) => this.#paste(event));
    for (const name of ["attach", "attach-image"]) {
      const chosen = byId(`${name}-file`);
      byId(name).addEventListener("click", () => chosen.click());
      chosen.addEventListener("change", () => {
        this.attach([...chosen.files]);
        chosen.value = "";
      });
    }
    this.#takeDrops();
  }

  focus() {
    this.#field.focus();
  }

  /** Show what the next message is, such as the result of a call, and why it has no images, "" if it may. */
  describe(text, noImages) {
    this.#field.placeholder = text;
    this.#noImages = noImages;
    byId("attach-image").hidden = Boolean(noImages);
  }

  /** Show that a reply is written, or that none is: Stop takes the place of Send. */
  setRunning(isRunning) {
    this.#isRunning = isRunning;
    byId("stop").hidden = !isRunning;
    byId("send").hidden = isRunning;
  }

  /** Add text files and images, behind those that are still read; one that is neither is named. */
  attach(files) {
    this.#reading = this.#reading.then(() => this.#attach(files));
  }

  async #attach(files) {
    for (const file of files) {
      try {
        if (isImageFile(file)) this.#requireImages();
        this.#files.push(isImageFile(file) ? await readImage(file) : { name: file.name, text: await textOf(file) });
      } catch (error) {
        this.#actions.say(`${file.name}: ${error.message}`);
      }
    }
    this.#showFiles();
    this.focus();
  }

  #requireImages() {
    if (this.#noImages) throw new Error(this.#noImages);
  }

  async #send() {
    await this.#reading;
    const text = this.#field.value.trim();
    if (this.#isRunning || (!text && !this.#files.length)) return;
    const [files, images] = [this.#files.filter(isText), this.#files.filter((file) => !isText(file))];
    // The model may be another one by now.
    if (images.length && this.#noImages) return this.#actions.say(`${images[0].name}: ${this.#noImages}`);
    this.#files = [];
    this.#field.value = "";
    this.#showFiles();
    this.#fit();
    this.#actions.send(text, files, images);
  }

  #key(event) {
    if (event.isComposing) return;
    // A keyboard on the screen has no Shift+Enter: its Enter is a new line.
    const hasKeyboard = !matchMedia("(pointer: coarse)").matches;
    if (event.key === "Enter" && !event.shiftKey && hasKeyboard) {
      event.preventDefault();
      this.#send();
    } else if (event.key === "ArrowUp" && !this.#field.value && !event.shiftKey) {
      event.preventDefault();
      this.#actions.editLast();
    }
  }

  #paste(event) {
    const { files, types } = event.clipboardData;
    // Office programs put a picture of a text beside it.
    const isDocument = types.includes("text/plain") && types.includes("text/html");
    if (!files.length || isDocument) return;
    event.preventDefault();
    this.attach([...files]);
  }

  #takeDrops() {
    const dropping = (is) => document.body.classList.toggle("dropping", is);
    addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      dropping(true);
    });
    addEventListener("dragleave", (event) => event.relatedTarget === null && dropping(false));
    addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      dropping(false);
      this.attach([...event.dataTransfer.files]);
    });
  }

  #showFiles() {
    const remove = (file) => {
      this.#files = this.#files.filter((other) => other !== file);
      this.#showFiles();
      this.focus();
    };
    const chips = this.#files.map((file) =>
      make(
        "li",
        {},
        isText(file) ? null : make("img", { src: file.url, alt: "" }),
        `${file.name}, ${sizeOf(file)} `,
        button("×", `Remove ${file.name}`, () => remove(file), "small"),
      ),
    );
    byId("files").replaceChildren(...chips);
  }

  /** Give the field the height of its text, up to a part of the window. */
  #fit() {
    this.#field.style.height = "auto";
    const most = innerHeight * (isNarrow() ? 0.3 : 0.4);
    this.#field.style.height = `${Math.min(this.#field.scrollHeight, most)}px`;
  }
}

function isText(file) {
  return "text" in file;
}

/** Return a size for people: "3 lines" says more of a text than its bytes. */
export function sizeOf(file) {
  return isText(file) ? counted(file.text.split("\n").length, "line") : `${file.width} × ${file.height}`;
}

async function textOf(file) {
  if (file.size > LARGEST_FILE) throw new Error(`larger than ${shown(LARGEST_FILE >> 20)} MiB`);
  const bytes = await file.arrayBuffer();
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error("not a text in UTF-8");
  }
  if (text.includes("\0")) throw new Error("not a text");
  return text.replace(/\r\n/g, "\n");
}
