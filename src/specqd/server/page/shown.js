/** Elements, numbers and scrolling for the whole page. Inserts text only as text. */

const STYLES = 4; // of drafting levels; further levels repeat them

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

/** Copies a text, and shows on the button whether that worked. */
export async function copyText(text, button) {
  const before = (button.dataset.label ??= button.textContent);
  let result = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    result = "Copying needs HTTPS or localhost"; // browsers forbid it otherwise
  }
  button.textContent = result;
  announce(result);
  setTimeout(() => (button.textContent = before), 2000);
}

export const count = (many, what) => `${many} ${what}${many === 1 ? "" : "s"}`;

export const grouped = (whole) => whole.toLocaleString("en");

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

export function number(value) {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(value >= 10 ? 3 : 2);
}
