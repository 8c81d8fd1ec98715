/** Requests to the server that this page comes from. */

import { eventData } from "./stream.js";

const KEY = "tinychat.key";

/** An answer that tells of a fault. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The server. Where it wants a key, `askKey` is called, which returns one, or null if the user gives none. */
export class Server {
  #askKey;
  #asking = null;

  constructor(askKey) {
    this.#askKey = askKey;
  }

  /** Return the models that it serves; those in memory have `meta`. */
  async models() {
    return (await (await this.#send("v1/models")).json()).data;
  }

  /** Return the defaults of a model's requests. */
  async defaults(model) {
    const answer = await this.#send(`props?model=${encodeURIComponent(model)}`);
    return (await answer.json()).default_generation_settings.params;
  }

  /** Return whether it is still loading its first model. */
  async isLoading() {
    return (await fetch("health", { cache: "no-store" })).status === 503;
  }

  /**
   * Yield the chunks of a chat completion.
   * @throws {ServerError} If the server refuses, or the reply breaks off.
   */
  async *chat(body, signal) {
    const headers = { "Content-Type": "application/json" };
    const answer = await this.#send("v1/chat/completions", {
      method: "POST",
      headers,
      body: JSON.stringify(body),
      signal,
    });
    for await (const data of eventData(answer.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message);
      yield chunk;
    }
    throw new ServerError("the connection ended before the reply did");
  }

  async #send(path, options = {}) {
    for (;;) {
      const key = sessionStorage.getItem(KEY);
      const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
      const answer = await fetch(path, { ...options, headers, cache: "no-store" });
      if (answer.ok) return answer;
      const error = new ServerError(await problemOf(answer), answer.status);
      if (answer.status !== 401 || !(await this.#hasNewKey(key))) throw error;
    }
  }

  /** Ask for a key, once for all requests that wait for it; return whether there is one to try. */
  async #hasNewKey(refused) {
    if (sessionStorage.getItem(KEY) !== refused) return true;
    this.#asking ??= this.#askKey(refused !== null).finally(() => (this.#asking = null));
    const key = await this.#asking;
    if (key) sessionStorage.setItem(KEY, key);
    return Boolean(key);
  }
}

async function problemOf(answer) {
  const body = await answer.json().catch(() => null);
  return body?.error?.message ?? `status ${answer.status}`;
}
