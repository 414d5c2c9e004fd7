/** Charts the last minute of the server's /metrics: each level's acceptance rate, and the share of
 * memory bandwidth in use. */

import * as api from "./api.js";
import { at, classOf, element, number, percent } from "./shown.js";

const EVERY_MS = 1000;
const SECONDS = 60; // the width of the chart
const WINDOW = 10; // seconds over which a share is averaged, as in the server's own shares
const [WIDTH, HEIGHT] = [600, 100];
const SVG = "http://www.w3.org/2000/svg";

/** Parses Prometheus's text of a model into values[name][level]. The level is "" for metrics without
 * one. */
function parsed(text, model) {
  const values = {};
  const own = `model_name="${model.replace(/[\\"]/g, "\\$&")}"`;
  for (const [, name, labels, value] of text.matchAll(/^([\w:]+)(?:\{(.*)\})? (\S+)$/gm)) {
    if (!labels?.includes(own)) continue;
    const level = /level="((?:[^"\\]|\\.)*)"/.exec(labels ?? "")?.[1] ?? "";
    (values[name] ??= {})[level] = Number(value);
  }
  return values;
}

export class Live {
  #chain = [];
  #model = "";
  #samples = []; // {seconds, values}
  #points = new Map(); // a line's label -> its points, {seconds, share}
  #timer = 0;

  /** facts: about the model to show. */
  start({ model, chain }) {
    if (model !== this.#model) {
      this.#samples = [];
      this.#points.clear();
    }
    this.#model = model;
    this.#chain = chain;
    at("live").hidden = false;
    this.#look();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    at("live").hidden = true;
  }

  async #look() {
    clearTimeout(this.#timer);
    let problem = "";
    try {
      if (!document.hidden) await this.#ask();
    } catch (error) {
      problem = error.message;
    }
    if (at("live").hidden) return;
    at("live-problem").textContent = problem;
    this.#timer = setTimeout(() => this.#look(), EVERY_MS);
  }

  async #ask() {
    const model = this.#model;
    const text = await api.text("/metrics");
    if (model === this.#model) this.#add(performance.now() / 1000, parsed(text, model));
  }

  #add(seconds, values) {
    const kept = this.#samples.filter((each) => seconds - each.seconds <= WINDOW);
    this.#samples = [...kept, { seconds, values }];
    const [first] = this.#samples;
    const grown = (name, level = "") => values[name]?.[level] - first.values[name]?.[level];
    for (const [depth, level] of this.#chain.entries()) {
      const drafted = grown("specqd:level_draft_tokens_total", level);
      const accepted = grown("specqd:level_accepted_tokens_total", level);
      const drafter = this.#chain[depth + 1];
      if (!drafter) continue;
      this.#point(drafter, seconds, drafted > 0 ? accepted / drafted : null);
    }
    const isBusy = grown("vllm:generation_tokens_total") > 0;
    this.#point("", seconds, isBusy ? (values["specqd:bandwidth_share"]?.[""] ?? null) : null);
    const speed = grown("vllm:generation_tokens_total") / (seconds - first.seconds);
    this.#draw(seconds, { speed, running: values["vllm:num_requests_running"]?.[""] ?? 0 });
  }

  #point(label, seconds, share) {
    const points = this.#points.get(label) ?? [];
    const kept = points.filter((point) => seconds - point.seconds <= SECONDS);
    this.#points.set(label, [...kept, { seconds, share }]);
  }

  #draw(now, { speed, running }) {
    const lines = [...this.#points].flatMap(([label, points]) =>
      pieces(points).map((piece) => this.#line(label, piece, now)),
    );
    at("live-lines").replaceChildren(...lines);
    const items = [...this.#points].map(([label, points]) => this.#item(label, points.at(-1)));
    const rate = element("li", "", speed > 0 ? `${number(speed)} tokens/s` : "idle");
    if (running > 1) rate.append(` \u00b7 ${running} requests`);
    at("live-legend").replaceChildren(...items, rate);
  }

  #line(label, piece, now) {
    const line = document.createElementNS(SVG, "polyline");
    const place = ({ seconds, share }) =>
      `${WIDTH * (1 - (now - seconds) / SECONDS)},${HEIGHT * (1 - Math.min(1, share))}`;
    line.setAttribute("points", piece.map(place).join(" "));
    line.setAttribute("class", `line ${this.#classOf(label)}`);
    return line;
  }

  #item(label, { share }) {
    const item = element("li");
    const verifier = this.#chain[this.#chain.indexOf(label) - 1];
    item.append(element("span", `name ${this.#classOf(label)}`, label || "bandwidth"));
    const value = share === null ? "\u2013" : percent(share);
    item.append(label ? ` accepted by ${verifier} ${value}` : ` ${value}`);
    return item;
  }

  #classOf(label) {
    return label ? classOf(this.#chain.indexOf(label)) : "all";
  }
}

/** Returns the runs of points that have a share. A single point becomes a short line. */
function pieces(points) {
  const found = [[]];
  for (const point of points) {
    if (point.share === null) found.push([]);
    else found.at(-1).push(point);
  }
  const single = ({ seconds, share }) => [{ seconds: seconds - 0.5, share }, { seconds, share }];
  return found.filter((piece) => piece.length).map((p) => (p.length > 1 ? p : single(p[0])));
}
