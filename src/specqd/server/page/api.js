/** Sends requests to the server's paths and reads answers and events. Knows nothing of display. */

import { session } from "./storage.js";

const KEY = "specqd-api-key";

export class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Stores the key until this tab is closed. */
export function keepKey(key) {
  session.setItem(KEY, key);
}

/** Sends GET, or POST if there is a body, and returns the JSON of the answer. */
export async function json(path, body, signal) {
  return (await call(path, body, signal)).json();
}

export async function text(path) {
  return (await call(path)).text();
}

/** Yields the parsed events of a streamed answer. */
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
  const key = session.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  const request = { headers, signal, cache: "no-store" };
  if (body) {
    headers["Content-Type"] = "application/json";
    Object.assign(request, { method: "POST", body: JSON.stringify(body) });
  }
  const response = await fetch(path, request).catch(() => {
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
