/** Room for an answer: how many tokens the context has left, and which turns a prompt leaves out if
 * it has none. The rule is that of `specqd chat --on-full shift`. */

import * as api from "./api.js";

/** Returns how many tokens the context has left after a prompt. Returns Infinity if the server does
 * not say; it then rejects the request and says why. */
export async function roomAfter(prompt, signal) {
  try {
    const { count, max_model_len } = await api.json("/tokenize", prompt, signal);
    return max_model_len - count;
  } catch {
    return Infinity;
  }
}

/** Leaves out the oldest turns if less than `most` tokens and less than a quarter of the context is
 * left for an answer. Then half of the context becomes free, because the whole prompt must be read
 * again. promptOf: makes the prompt without that many turns. first: the turns that are left out
 * already. last: the most that can be. Returns how many are left out, and the room. */
export async function shifted(promptOf, { first, last, most, context }, signal) {
  let dropped = first;
  let room = await roomAfter(promptOf(dropped), signal);
  if (room >= Math.min(most, Math.floor(context / 4))) return { dropped, room };
  while (dropped < last && room < Math.floor(context / 2)) {
    dropped += 1;
    room = await roomAfter(promptOf(dropped), signal);
  }
  return { dropped, room };
}
