/** Conversations in the browser: in IndexedDB, or in memory where there is none. */

const HEADS = "heads";
const WHOLE = "conversations";

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
    const request = indexedDB.open("tinychat", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(HEADS, { keyPath: "id" });
      request.result.createObjectStore(WHOLE, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Conversations that outlast the page. A head is what a list shows, so that it need not read them all. */
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
  get(id) {
    return this.#run([WHOLE], "readonly", (whole) => whole.get(id));
  }

  /** Return all conversations. */
  all() {
    return this.#run([WHOLE], "readonly", (whole) => whole.getAll());
  }

  /** Write a conversation; rejects with a QuotaExceededError where the browser gives no more room. */
  put(conversation) {
    return this.#run([HEADS, WHOLE], "readwrite", (heads, whole) => {
      heads.put(headOf(conversation));
      return whole.put(conversation);
    });
  }

  /** Remove a conversation. */
  remove(id) {
    return this.#run([HEADS, WHOLE], "readwrite", (heads, whole) => {
      heads.delete(id);
      return whole.delete(id);
    });
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

function headOf({ id, title, updated }) {
  return { id, title, updated };
}
