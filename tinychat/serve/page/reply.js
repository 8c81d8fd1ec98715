/** A reply that is written: what each chunk of the stream adds to its message. */

/** The writing of one reply; `progress` tells how far the prompt is read, null from the first text on. */
export class Run {
  progress = null;
  #deltas = 0;
  #promptTokens = 0;

  /**
   * @param {import("./tree.js").Message} message
   */
  constructor(message) {
    this.message = message;
    this.controller = new AbortController();
  }

  /** Take a chunk of a chat completion. */
  take(chunk) {
    const choice = chunk.choices?.[0];
    if (chunk.model) this.message.model = chunk.model;
    if (chunk.prompt_progress) {
      this.progress = chunk.prompt_progress;
      this.#promptTokens = chunk.prompt_progress.total;
    }
    if (choice?.delta) this.#add(choice.delta);
    if (choice?.finish_reason) this.message.finish = choice.finish_reason;
    if (chunk.timings) this.message.stats = statsOf(chunk);
  }

  /** Note that it was ended by the user, or by an error. */
  breakOff(error) {
    if (this.controller.signal.aborted) this.message.finish = "stopped";
    else this.message.error = error.message;
    // A token is a delta or more: without the server's last word this is what is known.
    this.message.stats ??= { prompt: this.#promptTokens, written: this.#deltas, isEstimate: true };
  }

  #add(delta) {
    const message = this.message;
    if (delta.content) message.content += delta.content;
    if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
    for (const part of delta.tool_calls ?? []) addCall((message.calls ??= []), part);
    if (!delta.content && !delta.reasoning_content && !delta.tool_calls) return;
    this.#deltas += 1;
    this.progress = null;
  }
}

function addCall(calls, { index, id, function: named }) {
  calls[index] ??= { id: "", name: "", arguments: "" };
  if (id) calls[index].id = id;
  calls[index].name += named?.name ?? "";
  calls[index].arguments += named?.arguments ?? "";
}

function statsOf({ timings }) {
  return {
    prompt: timings.cache_n + timings.prompt_n,
    cached: timings.cache_n,
    written: timings.predicted_n,
    promptRate: timings.prompt_per_second,
    rate: timings.predicted_per_second,
    isEstimate: false,
  };
}
