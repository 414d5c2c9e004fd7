/** Shows answers: tokens by the level that proposed them, and figures below. Knows nothing of
 * requests. Inserts all text as text, never as markup. */

const DRAW_MS = 80;
const STYLES = 4; // drafting levels with different styles; then they repeat

const origins = new WeakMap(); // by a token's element

export const classOf = (depth) => (depth ? `d${((depth - 1) % STYLES) + 1}` : "d0");

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Changes the page, and scrolls to its end if the end was in view. */
export function following(change) {
  const page = document.documentElement;
  const follows = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (follows) page.scrollTop = page.scrollHeight;
}

/** The text of one run. Draws at most once in DRAW_MS, so that the browser leaves the cores to the
 * model. */
export class AnswerText {
  text = "";
  #waiting = [];
  #timer = 0;

  constructor(box) {
    this.box = box;
  }

  add(tokens) {
    this.#waiting.push(...tokens);
    this.#timer ||= setTimeout(() => this.flush(), DRAW_MS);
  }

  flush() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const drawn = document.createDocumentFragment();
    for (const token of this.#waiting.splice(0)) {
      this.text += token.text;
      if (!token.text) continue; // a part of a character, which a later token completes
      const span = element("span", `token ${classOf(token.depth)}`, token.text);
      if (!token.text.trim()) span.classList.add("blank");
      origins.set(span, token);
      drawn.append(span);
    }
    following(() => this.box.append(drawn));
  }
}

/** One line: tokens/s, GB/s with its share of the bandwidth, tokens. */
export function showFigures(line, meter, limits, ending = "", seed = null) {
  const traffic = meter.traffic(limits);
  const speed = meter.tokensPerSecond;
  const parts = [
    speed && element("strong", "", `${number(speed)} tokens/s`),
    traffic && `${number(traffic.speed)} GB/s, ${percent(traffic.share)} of bandwidth`,
    meter.isShared && "shared with other requests",
    count(meter.tokens, "token") + ending,
    seed !== null && `seed ${seed}`,
  ];
  const shown = parts.filter(Boolean).map((part) => {
    const item = element("span");
    item.append(part);
    return item;
  });
  line.replaceChildren(...shown);
}

/** The levels of a chain; with a meter, the share of tokens that each proposed first, and the share
 * of its drafter's tokens that it accepted. */
export function showLevels(list, chain, meter) {
  list.replaceChildren(
    ...chain.flatMap((name, depth) => {
      const proposed = meter?.byDepth[depth] ?? 0;
      if (meter && !proposed) return [];
      const item = element("li");
      item.append(element("span", `name ${classOf(depth)}`, depth ? name : `${name} itself`));
      if (meter) item.append(` ${percent(proposed / meter.tokens)}`);
      const accepted = meter?.acceptance(name) ?? null;
      if (accepted !== null) {
        const below = chain.slice(depth + 1, depth + 2);
        const aside = element("span", "aside", `accepts ${percent(accepted)} of drafts`);
        aside.title = `share of ${below}’s drafts that ${name} accepted`;
        item.append(aside);
      }
      return [item];
    }),
  );
}

/** Shows level and confidence of the token under the pointer, or reached by the arrow keys. */
export function inspectTokens(turns, tip, told, chainOf) {
  let current = null;

  function show(token) {
    current?.classList.remove("inspected");
    current = token;
    tip.hidden = !token;
    if (!token) return;
    token.classList.add("inspected");
    tip.textContent = described(origins.get(token), chainOf());
    place();
  }

  function place() {
    if (!current) return;
    if (!current.isConnected) {
      show(null);
      return;
    }
    const [at] = current.getClientRects();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 8 ? above : at.bottom + 6}px`;
  }

  turns.addEventListener("pointerover", (event) => show(event.target.closest(".token")));
  turns.addEventListener("pointerleave", () => show(null));
  turns.addEventListener("focusout", () => show(null));
  addEventListener("scroll", place, { passive: true });
  turns.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const box = event.target.closest(".text");
    if (!step || !box || event.ctrlKey || event.metaKey || event.altKey) return;
    const tokens = [...box.querySelectorAll(".token")];
    const at = tokens.indexOf(current);
    const next = tokens[at < 0 ? (step > 0 ? 0 : tokens.length - 1) : at + step];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    show(next);
    told.textContent = `${next.textContent}: ${tip.textContent}`;
  });
}

function described(origin, chain) {
  const [model] = chain;
  const sure = origin.probability === null ? "unknown" : percent(origin.probability, 1);
  const who = origin.depth ? `proposed by ${origin.level}` : `${model} itself`;
  return `${who} \u00b7 confidence ${sure}`;
}

export const count = (many, what) => `${many} ${what}${many === 1 ? "" : "s"}`;

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}

export function number(value) {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(value >= 10 ? 3 : 2);
}
