/** Shows a run: its text, its tokens coloured by the level that proposed them, and figures. Knows
 * nothing of requests. */

import { Prose } from "./markdown.js";
import { Meter } from "./meter.js";
import {
  announce,
  classOf,
  copyOf,
  count,
  element,
  following,
  grouped,
  number,
  percent,
  tokenElement,
} from "./shown.js";

const DRAW_MS = 80; // the shortest interval, which leaves the cores to the model
const FIGURES_MS = 250;
const READING_MS = 5000; // between two announcements of how far a prompt is read
const LEAST_SHOWN_AS_ALL = 0.995; // of the text that a draft reads

const origins = new WeakMap(); // a token's element -> {token, chain}

export class RunView {
  #timer = 0;
  #drawn = 0; // number of tokens
  #figuresAt = -Infinity;
  #announcedAt = performance.now();

  /** limits: GB/s by level. prompt: the text that the run continues; undefined in a chat. */
  constructor(run, limits, prompt) {
    this.run = run;
    this.limits = limits;
    this.section = copyOf("run-template");
    this.find = (query) => this.section.querySelector(query);
    this.tokens = this.find(".text");
    this.prose = prompt === undefined ? new Prose(this.find(".prose")) : null;
    this.find("h3").textContent = run.name || "Answer";
    this.find("h3").classList.toggle("unseen", !run.name);
    const name = run.name ? `${run.name}, tokens` : "Tokens";
    this.tokens.ariaLabel = `${name}: left and right arrows step through them`;
    if (prompt !== undefined) this.tokens.append(element("span", "before", prompt));
  }

  /** Schedules drawing. */
  update() {
    this.#timer ||= setTimeout(() => following(() => this.#draw(false)), DRAW_MS);
  }

  /** Draws a run that has ended, and shows what can be done with it. */
  finish() {
    this.section.ariaBusy = "false";
    this.#draw(true);
    this.find(".tools").hidden = false;
    const problem = this.find(".problem");
    problem.textContent = this.run.problem ?? "";
    problem.hidden = !this.run.problem;
  }

  #draw(isWhole) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const drawn = document.createDocumentFragment();
    for (const token of this.run.tokens.slice(this.#drawn)) {
      if (!token.text) continue; // a part of a character that a later token completes
      const span = tokenElement(token);
      origins.set(span, { token, chain: this.run.chain });
      drawn.append(span);
    }
    this.#drawn = this.run.tokens.length;
    this.tokens.append(drawn);
    this.#drawText(isWhole);
    this.#drawReading();
    if (!isWhole && !this.#drawn) return;
    if (!isWhole && performance.now() - this.#figuresAt < FIGURES_MS) return;
    this.#figuresAt = performance.now();
    this.#drawFigures(isWhole);
  }

  #drawText(isWhole) {
    const thought = this.find(".thought");
    thought.hidden = !this.run.thought;
    thought.querySelector("p").textContent = this.run.thought;
    const isSeen = isWhole || this.prose?.box.checkVisibility();
    if (this.prose && isSeen) this.prose.draw(this.run.answer);
  }

  /** Shows how far the prompt is read. Screen readers hear it only now and then. */
  #drawReading() {
    const { processed, total } = this.run.reading ?? {};
    const line = this.find(".reading");
    line.hidden = !(processed < total);
    if (line.hidden) return;
    line.textContent = `Reading ${grouped(processed)} of ${grouped(total)} tokens`;
    if (performance.now() - this.#announcedAt < READING_MS) return;
    this.#announcedAt = performance.now();
    announce(line.textContent);
  }

  #drawFigures(isWhole) {
    const meter = new Meter(this.run);
    showFigures(this.find(".figures"), meter, this.limits, isWhole);
    if (this.run.chain.length > 1) showLevels(this.find(".levels"), this.run.chain, meter);
  }
}

const ENDINGS = { length: ", cut off", cancelled: ", stopped" };

/** Shows one line: tokens per second, GB/s and the share of the bandwidth, number of tokens. */
function showFigures(line, meter, limits, isWhole) {
  const traffic = meter.traffic(limits);
  const speed = meter.tokensPerSecond;
  const ending = (isWhole && ENDINGS[meter.run.ending]) || "";
  const parts = [
    speed && element("strong", "", `${number(speed)} tokens/s`),
    traffic && `${number(traffic.speed)} GB/s, ${percent(traffic.share)} of bandwidth`,
    meter.isShared && "shared with other requests",
    count(meter.tokens, "token") + ending,
    isWhole && !meter.run.asked.draft && `seed ${meter.run.asked.seed}`,
  ];
  const shown = parts.filter(Boolean).map((part) => {
    const item = element("span");
    item.append(part);
    return item;
  });
  line.replaceChildren(...shown);
}

/** Shows the levels of a chain. With a meter, each has the share of tokens that it proposed first,
 * and the acceptance rate of its drafts. */
export function showLevels(list, chain, meter) {
  const byDepth = meter?.byDepth;
  list.replaceChildren(
    ...chain.flatMap((name, depth) => {
      if (meter && !byDepth[depth]) return [];
      const item = element("li");
      item.append(element("span", `name ${classOf(depth)}`, depth ? name : `${name} itself`));
      if (meter) item.append(` ${percent(byDepth[depth] / meter.tokens)}`);
      const accepted = meter?.acceptance(name) ?? null;
      if (accepted !== null) {
        const below = chain.slice(depth + 1, depth + 2);
        const aside = element("span", "aside", `accepts ${percent(accepted)} of drafts`);
        aside.title = `share of ${below}’s drafts that ${name} accepted`;
        item.append(aside);
      }
      const read = meter?.shareRead(name) ?? 1;
      if (depth && read < LEAST_SHOWN_AS_ALL) {
        const aside = element("span", "aside", `reads ${percent(read)} of the text`);
        aside.title = "share of the keys and values before its tokens that this draft read";
        item.append(aside);
      }
      return [item];
    }),
  );
}

/** Returns whether two runs have the same tokens, and the ratio of their speeds. */
export function verdictOf([drafted, plain]) {
  const [ours, theirs] = [drafted.ids, plain.ids];
  const isWhole = [drafted, plain].every((run) => run.ending && run.ending !== "cancelled");
  const length = (isWhole ? Math.max : Math.min)(ours.length, theirs.length);
  let first = 0;
  while (first < length && ours[first] === theirs[first]) first += 1;
  const isEqual = first === length;
  const ratio = new Meter(drafted).tokensPerSecond / new Meter(plain).tokensPerSecond;
  const different = `${ours[first] ?? "none"} and ${theirs[first] ?? "none"}`;
  const parts = [
    isEqual
      ? `${isWhole ? "Equal" : "Equal so far"}: ${count(length, "token")}`
      : `Different from token ${first + 1} on: ${different}`,
    isEqual && Number.isFinite(ratio) && ratio > 0 && `${number(ratio)} times as fast as plain`,
  ];
  return { isEqual, isWhole, text: parts.filter(Boolean).join(" \u00b7 ") };
}

/** Shows the level and the confidence of the token under the pointer or chosen by arrow keys. */
export function inspectTokens(turns, tip) {
  let current = null;

  function show(token) {
    current?.classList.remove("inspected");
    current = token;
    tip.hidden = !token;
    if (!token) return;
    token.classList.add("inspected");
    tip.textContent = described(origins.get(token));
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
    const place = tokens.indexOf(current);
    const next = tokens[place < 0 ? (step > 0 ? 0 : tokens.length - 1) : place + step];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    show(next);
    announce(`${next.textContent}: ${tip.textContent}`);
  });
}

function described({ token, chain }) {
  const confidence = token.probability === null ? "unknown" : percent(token.probability, 1);
  const level = token.depth ? `proposed by ${chain[token.depth]}` : `${chain[0]} itself`;
  return `${level} \u00b7 confidence ${confidence}`;
}
