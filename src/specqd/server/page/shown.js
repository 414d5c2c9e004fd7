/** Elements, numbers and scrolling for the whole page. Inserts text only as text. */

const STYLES = 4; // of drafting levels; further levels repeat them
const COMPOSING = 229; // the code of keys that belong to the composition of a word

export const at = (id) => document.getElementById(id);
export const copyOf = (id) => at(id).content.cloneNode(true).firstElementChild;
export const classOf = (depth) => (depth ? `d${((depth - 1) % STYLES) + 1}` : "d0");

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Returns a token in its level's style. Spaces at its ends are outside the highlight. */
export function tokenElement({ text, depth }) {
  const span = element("span", `token ${classOf(depth)}`);
  const [, before, word, after] = /^(\s*)(.*?)(\s*)$/s.exec(text);
  if (word) span.append(before, element("span", "ink", word), after);
  else span.append(text);
  return span;
}

/** Changes the page, and scrolls to the end if it was in view. */
export function following(change) {
  const page = document.documentElement;
  const follows = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (follows) page.scrollTop = page.scrollHeight;
}

/** Announces a text to screen readers. */
export function announce(text) {
  at("announcement").textContent = text;
}

/** Shows what a button did, or could not do, on the button itself. */
export function answerOn(button, text) {
  const before = (button.dataset.label ??= button.textContent);
  button.textContent = text;
  announce(text);
  setTimeout(() => (button.textContent = before), 2000);
}

/** Whether a key ends a message. Safari ends the composition of a word before the key is heard. */
export const isSending = ({ key, shiftKey, isComposing, keyCode }) =>
  key === "Enter" && !shiftKey && !isComposing && keyCode !== COMPOSING;

/** Copies a text, and shows on the button whether that worked. */
export async function copyText(text, button) {
  let result = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    result = "Copying needs HTTPS or localhost"; // browsers forbid it otherwise
  }
  answerOn(button, result);
}

export const count = (many, what) => `${many} ${what}${many === 1 ? "" : "s"}`;

export const grouped = (whole) => whole.toLocaleString("en");

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

export function number(value) {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(value >= 10 ? 3 : 2);
}
