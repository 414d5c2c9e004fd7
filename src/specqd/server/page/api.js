/** The server's paths: requests out, answers and events in. Knows nothing of the display. */

const KEY = "specqd-api-key";

export class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Keeps the key for this tab until it is closed. */
export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** GET, or POST where there is a body. */
export async function json(path, body, signal) {
  return (await call(path, body, signal)).json();
}

export async function text(path) {
  return (await call(path)).text();
}

/** Parsed events of a streamed answer. */
export async function* events(path, body, signal) {
  const response = await call(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) throw new RefusedError(0, "The connection ended before the answer did.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new RefusedError(0, event.error.message);
      yield event;
    }
  }
}

async function call(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  const asked = { headers, signal, cache: "no-store" };
  if (body) {
    headers["Content-Type"] = "application/json";
    Object.assign(asked, { method: "POST", body: JSON.stringify(body) });
  }
  const response = await fetch(path, asked).catch(() => {
    throw new RefusedError(0, "The server cannot be reached. Is it still running?");
  });
  if (!response.ok) throw new RefusedError(response.status, await problemOf(response));
  return response;
}

async function problemOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}
