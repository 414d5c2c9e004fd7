/** Replays two runs side by side at their measured speed. The clock of each starts with its first
 * tokens. The display depends only on the time, so it can move in both directions. */

import { at, copyOf, count, element, number, tokenElement } from "./shown.js";
import { Meter } from "./meter.js";

const SHORTEST_MS = 4000; // a shorter race is shown in slow motion
const PACES = [1, 2, 4, 8, 16, 32, 64]; // how many times slower than measured

/** One run: its track, its clock and its text. */
class Lane {
  shown = 0;

  constructor(run) {
    this.run = run;
    this.milliseconds = 1000 * new Meter(run).seconds;
    this.section = copyOf("lane-template");
    this.section.querySelector("h3").textContent = run.name;
    this.clock = this.section.querySelector(".clock");
    this.figure = this.section.querySelector(".pace");
    this.text = this.section.querySelector(".lane-text");
    this.text.ariaLabel = `Text, ${run.name}`;
    this.marks = run.tokens.map(({ depth }) => element("i", depth ? `mark d${depth}` : "mark d0"));
    this.words = run.tokens.map(tokenElement);
    this.section.querySelector(".track").append(...this.marks);
    this.text.append(...this.words);
  }

  show(milliseconds) {
    const now = Math.min(milliseconds, this.milliseconds);
    const shown = this.#tokensBy(now);
    const [low, high] = [Math.min(shown, this.shown), Math.max(shown, this.shown)];
    for (let i = low; i < high; i += 1) {
      this.marks[i].classList.toggle("reached", shown > i);
      this.words[i].classList.toggle("reached", shown > i);
    }
    this.shown = shown;
    this.clock.textContent = `${(now / 1000).toFixed(2)}\u00a0s`;
    const speed = now > 0 ? (1000 * (shown - this.run.steps[0][1])) / now : 0;
    this.figure.textContent = `${count(shown, "token")} \u00b7 ${number(speed)} tokens/s`;
    this.section.classList.toggle("done", milliseconds >= this.milliseconds);
    const last = this.words[Math.max(0, shown - 1)];
    if (last) this.text.scrollTop = last.offsetTop - this.text.clientHeight + 40;
  }

  #tokensBy(milliseconds) {
    let tokens = 0;
    for (const [seconds, by] of this.run.steps) {
      if (1000 * seconds <= milliseconds) tokens = by;
    }
    return tokens;
  }
}

let lanes = [];
let length = 0; // milliseconds of the slower run
let now = 0;
let playing = 0; // the requested animation frame
let before = 0; // the time of the previous one

const dialog = at("race");
const play = at("race-play");
const winder = at("race-winder");
const pace = at("race-pace");

/** Opens the race of two runs with the same tokens: with drafts, and plain. */
export function openRace(runs) {
  lanes = runs.map((run) => new Lane(run));
  at("race-lanes").replaceChildren(...lanes.map((lane) => lane.section));
  length = Math.max(...lanes.map((lane) => lane.milliseconds));
  winder.max = Math.ceil(length); // a fraction could be rounded down, and the end never reached
  pace.value = String(PACES.find((times) => length * times >= SHORTEST_MS) ?? PACES.at(-1));
  dialog.showModal();
  play.focus();
  show(0);
  start();
}

function show(milliseconds) {
  now = Math.min(milliseconds, length);
  for (const lane of lanes) lane.show(now);
  winder.value = now;
  winder.ariaValueText = `${(now / 1000).toFixed(2)} seconds`;
  const [drafted, plain] = lanes;
  const lead = drafted.shown - plain.shown;
  const side = lead < 0 ? "behind" : "ahead";
  at("race-lead").textContent = `${count(Math.abs(lead), "token")} ${side}`;
  const isOver = now >= length;
  const ratio = new Meter(drafted.run).tokensPerSecond / new Meter(plain.run).tokensPerSecond;
  const same = count(drafted.run.ids.length, "token");
  at("race-verdict").textContent = isOver
    ? `${number(ratio)} times as fast \u00b7 the same ${same}`
    : "";
  at("race-lead").hidden = isOver;
}

function start() {
  if (now >= length) show(0);
  play.textContent = "Pause";
  before = performance.now();
  playing = requestAnimationFrame(step);
}

function pause() {
  cancelAnimationFrame(playing);
  playing = 0;
  play.textContent = now >= length ? "Again" : "Play";
}

function step() {
  const time = performance.now();
  show(now + (time - before) / Number(pace.value));
  before = time;
  if (now >= length) pause();
  else playing = requestAnimationFrame(step);
}

play.addEventListener("click", () => (playing ? pause() : start()));
winder.addEventListener("input", () => {
  const wanted = Number(winder.value);
  show(wanted);
  pause();
});
at("race-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", pause);
for (const times of PACES) {
  pace.append(new Option(times > 1 ? `1/${times} speed` : "measured speed", times));
}
