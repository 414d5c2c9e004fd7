/** Stores chats and choices in this browser only. */

const CHOICES = "specqd-page";
const CHAT = "specqd-chat-";
const MOST_CHATS = 50;

export const choices = () => JSON.parse(localStorage.getItem(CHOICES) ?? "{}");

export function choose(changed) {
  localStorage.setItem(CHOICES, JSON.stringify({ ...choices(), ...changed }));
}

/** Returns a chat without turns. */
export function newChat() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), turns: [] };
}

/** Returns all chats, latest first. */
export function chats() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(CHAT));
  return keys.map(read).filter(Boolean).sort((a, b) => b.changed - a.changed);
}

/** Stores a chat, and deletes the oldest ones if there are too many or too little space. Returns
 * whether there was enough space. */
export function keep(chat) {
  chat.changed = Date.now();
  const turns = chat.turns.map((turn) => turnWith(packedRun, turn));
  const written = JSON.stringify({ ...chat, turns });
  const others = chats().filter((each) => each.id !== chat.id);
  for (const old of others.splice(MOST_CHATS - 1)) drop(old);
  for (;;) {
    try {
      localStorage.setItem(CHAT + chat.id, written);
      return true;
    } catch {
      if (!others.length) return false;
      drop(others.pop());
    }
  }
}

export function drop(chat) {
  localStorage.removeItem(CHAT + chat.id);
}

function read(key) {
  try {
    const chat = JSON.parse(localStorage.getItem(key));
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
