/** Stores chats and choices in this browser only. */

import { keysOf, local } from "./storage.js";

const CHOICES = "specqd-page";
const CHAT = "specqd-chat-";
const MOST_CHATS = 50;

export const choices = () => JSON.parse(local.getItem(CHOICES) ?? "{}");

export function choose(changed) {
  try {
    local.setItem(CHOICES, JSON.stringify({ ...choices(), ...changed }));
  } catch {
    // No space: the choice lasts until the page is closed.
  }
}

/** Returns a chat without turns. */
export function newChat() {
  return { id: newId(), turns: [] };
}

/** Returns all chats, latest first. */
export function chats() {
  const keys = keysOf(local).filter((key) => key.startsWith(CHAT));
  return keys.map(read).filter(Boolean).sort((a, b) => b.changed - a.changed);
}

/** Returns the chat with this id; undefined if none is stored. */
export const chatOf = (id) => read(CHAT + id) ?? undefined;

/** Stores a chat, and deletes the oldest ones if there are too many or too little space. Returns
 * whether there was enough space; if not, all others are still there.
 *
 * If another tab has stored the chat since, this one gets an id of its own, and both stay. */
export function keep(chat) {
  const stored = chatOf(chat.id);
  if (stored && stored.changed !== chat.changed) chat.id = newId();
  const changed = Date.now();
  const turns = chat.turns.map((turn) => turnWith(packedRun, turn));
  const written = JSON.stringify({ ...chat, changed, turns });
  const others = chats().filter((each) => each.id !== chat.id);
  const dropped = [];
  while (!set(CHAT + chat.id, written)) {
    if (!others.length) {
      for (const [key, text] of dropped) set(key, text);
      return false;
    }
    const oldest = others.pop();
    dropped.push([CHAT + oldest.id, local.getItem(CHAT + oldest.id)]);
    drop(oldest);
  }
  for (const old of others.splice(MOST_CHATS - 1)) drop(old);
  chat.changed = changed;
  return true;
}

export function drop(chat) {
  local.removeItem(CHAT + chat.id);
}

const newId = () => crypto.getRandomValues(new Uint32Array(2)).join("-");

/** Returns whether there was enough space. */
function set(key, text) {
  try {
    local.setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

function read(key) {
  try {
    const chat = JSON.parse(local.getItem(key));
    return { ...chat, turns: chat.turns.map((turn) => turnWith(unpackedRun, turn)) };
  } catch {
    return null; // stored by another version
  }
}

// Stores each token as an array, so that a chat of 500 tokens takes about 15 KB.
const packedRun = (run) => ({
  ...run,
  tokens: run.tokens.map(({ text, depth, probability }) => [text, depth, rounded(probability)]),
});
const rounded = (probability) => probability && Number(probability.toFixed(4));
const unpackedRun = (run) => ({
  ...run,
  tokens: run.tokens.map(([text, depth, probability]) => ({ text, depth, probability })),
});

/** Returns what is stored of a turn and of the other branches that begin with it. */
const turnWith = (ofRun, { asked, files, dropped, runs, fork }) => ({
  asked,
  files,
  dropped,
  runs: runs.map(ofRun),
  fork: fork && {
    ...fork,
    tails: fork.tails.map((tail) => tail && tail.map((turn) => turnWith(ofRun, turn))),
  },
});
