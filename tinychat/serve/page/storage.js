/** Conversations in the browser: in IndexedDB, or in memory where there is none. */

const HEADS = "heads";
const WHOLE = "conversations";
const IMAGES = "images";

/** The images of a conversation could not be written, for a `cause`; the rest of it is. */
export class ImagesError extends Error {}

/** Return the storage of this browser. */
export async function openStorage() {
  try {
    return new Database(await open());
  } catch {
    return new Memory();
  }
}

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("tinychat", 2);
    request.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) {
        request.result.createObjectStore(HEADS, { keyPath: "id" });
        request.result.createObjectStore(WHOLE, { keyPath: "id" });
      }
      request.result.createObjectStore(IMAGES, { keyPath: ["conversation", "id"] });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/**
 * Conversations that outlast the page. A head is what a list shows, so that it need not read them all; images lie
 * apart, so that they are written once and not each time that a reply has grown.
 */
class Database {
  #database;

  isLasting = true;

  constructor(database) {
    this.#database = database;
    // A page of a later version may change the tables: it waits for this one.
    database.onversionchange = () => database.close();
  }

  /** Return id, title and time of each conversation. */
  heads() {
    return this.#run([HEADS], "readonly", (heads) => heads.getAll());
  }

  /** Return a conversation, undefined if there is none. */
  async get(id) {
    const conversation = await this.#run([WHOLE], "readonly", (whole) => whole.get(id));
    return conversation && this.#withImages(conversation);
  }

  /** Return all conversations. */
  async all() {
    const conversations = await this.#run([WHOLE], "readonly", (whole) => whole.getAll());
    return Promise.all(conversations.map((conversation) => this.#withImages(conversation)));
  }

  /**
   * Write a conversation; rejects with a QuotaExceededError where the browser gives no more room.
   * @throws {ImagesError} If there was none for the images alone.
   */
  async put(conversation) {
    await this.#run([HEADS, WHOLE], "readwrite", (heads, whole) => {
      heads.put(headOf(conversation));
      return whole.put(changeImages(conversation, (image) => ({ ...image, url: "" })));
    });
    await this.#putImages(conversation).catch((cause) => {
      throw new ImagesError("images", { cause });
    });
  }

  /** Remove a conversation. */
  remove(id) {
    return this.#run([HEADS, WHOLE, IMAGES], "readwrite", (heads, whole, images) => {
      heads.delete(id);
      images.delete(imagesOf(id));
      return whole.delete(id);
    });
  }

  async #withImages(conversation) {
    if (!hasImages(conversation)) return conversation;
    const found = await this.#run([IMAGES], "readonly", (images) => images.getAll(imagesOf(conversation.id)));
    const urls = new Map(found.map(({ id, url }) => [id, url]));
    return changeImages(conversation, (image) => ({ ...image, url: urls.get(image.id) ?? "" }));
  }

  /** Write the images that are not there yet: another tab may have deleted them. */
  async #putImages(conversation) {
    if (!hasImages(conversation)) return;
    const there = await this.#run([IMAGES], "readonly", (images) => images.getAllKeys(imagesOf(conversation.id)));
    const missing = new Map();
    for (const { images = [] } of conversation.messages.values()) {
      for (const { id, url } of images) if (url) missing.set(id, { conversation: conversation.id, id, url });
    }
    for (const [, id] of there) missing.delete(id);
    if (!missing.size) return;
    await this.#run([IMAGES], "readwrite", (images) => [...missing.values()].map((image) => images.put(image))[0]);
  }

  #run(names, mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(names, mode);
      const request = work(...names.map((name) => transaction.objectStore(name)));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error ?? request.error);
    });
  }
}

/** Conversations of this page alone. */
class Memory {
  #conversations = new Map();

  isLasting = false;

  async heads() {
    return [...this.#conversations.values()].map(headOf);
  }

  async get(id) {
    return this.#conversations.get(id);
  }

  async all() {
    return [...this.#conversations.values()];
  }

  async put(conversation) {
    this.#conversations.set(conversation.id, conversation);
  }

  async remove(id) {
    this.#conversations.delete(id);
  }
}

/** Return the keys of a conversation's images: a list stands behind all texts in the order of keys. */
function imagesOf(id) {
  return IDBKeyRange.bound([id], [id, []]);
}

function hasImages({ messages }) {
  return [...messages.values()].some((message) => message.images);
}

/** Return a conversation whose images are what `change` makes of them. */
function changeImages(conversation, change) {
  if (!hasImages(conversation)) return conversation;
  const changed = (message) => (message.images ? { ...message, images: message.images.map(change) } : message);
  const messages = new Map([...conversation.messages].map(([id, message]) => [id, changed(message)]));
  return { ...conversation, messages };
}

function headOf({ id, title, updated }) {
  return { id, title, updated };
}
