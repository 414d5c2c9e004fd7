/** Chats and choices that this browser keeps. Nothing of them leaves it. */

const CHOICES = "specqd-page";
const CHAT = "specqd-chat-";
const MOST_CHATS = 50;

export const choices = () => JSON.parse(localStorage.getItem(CHOICES) ?? "{}");

export function choose(changed) {
  localStorage.setItem(CHOICES, JSON.stringify({ ...choices(), ...changed }));
}

/** A chat without turns. */
export function newChat() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), turns: [] };
}

/** All chats, the latest first. */
export function chats() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(CHAT));
  return keys.map(read).filter(Boolean).sort((a, b) => b.changed - a.changed);
}

/** Keeps a chat, and drops the oldest where there are too many or too little room. Returns whether
 * there was room. */
export function keep(chat) {
  chat.changed = Date.now();
  const written = JSON.stringify({ ...chat, turns: chat.turns.map(packedTurn) });
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
    return { ...chat, turns: chat.turns.map(unpackedTurn) };
  } catch {
    return null; // another version's
  }
}

// A token is an array here: a chat of 500 tokens then takes some 15 KB.
const packedTurn = (turn) => ({ ...turn, runs: turn.runs.map(packedRun) });
const packedRun = (run) => ({
  ...run,
  tokens: run.tokens.map(({ text, depth, probability }) => [text, depth, rounded(probability)]),
});
const rounded = (probability) => probability && Number(probability.toFixed(4));
const unpackedTurn = (turn) => ({ ...turn, runs: turn.runs.map(unpackedRun) });
const unpackedRun = (run) => ({
  ...run,
  tokens: run.tokens.map(([text, depth, probability]) => ({ text, depth, probability })),
});
