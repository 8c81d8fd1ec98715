/** Server-sent events of a response (https://html.spec.whatwg.org/multipage/server-sent-events.html). */

/**
 * Yield the data of each event as it comes; comments are skipped.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* eventData(body) {
  let data = [];
  for await (const line of linesOf(body)) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line === "" && data.length) {
      yield data.join("\n");
      data = [];
    }
  }
}

/** Yield the lines of a response; what stands behind the last end of a line is not whole, and left out. */
async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
