/** One chat: sends its requests one after another, shows its turns and stores them. */

import { RunView, verdictOf } from "./answer.js";
import * as api from "./api.js";
import { newRun } from "./meter.js";
import { openRace } from "./race.js";
import { announce, copyOf, copyText, element, following } from "./shown.js";
import { keep, newChat } from "./store.js";

const MOST_TOKENS = 512; // per answer, by default
const LARGEST_SEED = 2 ** 32;

export class Conversation {
  chat = newChat();
  #running = null; // the AbortController of the current request

  /** facts: about the server's model. settings: returns {temperature, maxTokens, seed, system,
   * compares}. on: handlers {running(is), refused(text), changed(chat)}. */
  constructor(box, facts, settings, on) {
    Object.assign(this, { box, facts, settings, on });
  }

  get isRunning() {
    return Boolean(this.#running);
  }

  get mostTokens() {
    return Math.min(MOST_TOKENS, Math.floor(this.facts.max_context / 2));
  }

  stop() {
    this.#running?.abort();
  }

  /** Shows another chat, or a new one. */
  open(chat = newChat()) {
    this.stop();
    this.#setRunning(null);
    this.chat = chat;
    for (const each of this.box.querySelectorAll(".turn")) each.remove();
    for (const turn of chat.turns) {
      this.#addTurn(turn);
      for (const run of turn.runs) this.#addRun(turn, run).finish();
      this.#end(turn);
    }
    this.#afterwards();
  }

  async ask(text) {
    const turn = { asked: text, runs: [] };
    this.chat.turns.push(turn);
    this.#addTurn(turn);
    await this.#answer(turn);
  }

  /** Answers the last message again. */
  async regenerate() {
    const turn = this.chat.turns.at(-1);
    turn.runs = [];
    turn.element.querySelector(".runs").replaceChildren();
    turn.element.querySelector(".verdict").hidden = true;
    await this.#answer(turn);
  }

  /** Replays drafted and plain decoding side by side. Runs plain decoding first if needed. */
  async race(turn) {
    const [drafted] = turn.runs;
    const length = drafted.ids.length;
    if (drafted.steps.length < 2) return announce("This answer is too short for a race.");
    if (turn.runs[1]?.ids.length !== length) {
      turn.element.querySelectorAll(".run")[1]?.remove();
      turn.runs.length = 1;
      const asked = { ...drafted.asked, draft: "none" };
      if (drafted.ending === "cancelled") asked.max_tokens = length;
      await this.#run(turn, (signal) => this.#write(turn, "Plain", asked, signal));
    }
    const isEqual = turn.runs[1].ids.length === length && verdictOf(turn.runs).isEqual;
    if (isEqual && turn.element.isConnected) openRace(turn.runs);
    else announce(turn.element.querySelector(".verdict").textContent);
  }

  async #answer(turn) {
    const { compares, system } = this.settings();
    if (this.facts.has_chat_template && turn === this.chat.turns[0]) this.chat.system = system;
    const isCompared = compares && this.facts.chain.length > 1;
    await this.#run(turn, async (signal) => {
      const asked = await this.#settingsOf(turn, signal);
      const run = await this.#write(turn, isCompared ? "With drafts" : "", asked, signal);
      if (!isCompared || run.problem || signal.aborted) return;
      await this.#write(turn, "Plain", { ...asked, draft: "none" }, signal);
    });
    const [{ answer, problem }] = turn.runs;
    const verdict = turn.runs.length > 1 ? verdictOf(turn.runs).text : "";
    if (!turn.element.isConnected) return; // another chat is open
    announce([problem ?? answer, verdict].filter(Boolean).join(" \u2014 "));
    if (!problem) return;
    this.chat.turns.splice(this.chat.turns.indexOf(turn), 1);
    this.on.refused(turn.asked);
  }

  /** Runs requests of a turn, and stores the chat. */
  async #run(turn, work) {
    const { chat } = this;
    const controller = new AbortController();
    this.#setRunning(controller);
    try {
      await work(controller.signal);
    } finally {
      if (controller === this.#running) this.#setRunning(null);
    }
    if (chat === this.chat) following(() => this.#end(turn));
    if (turn.runs[0].problem) return;
    const kept = { ...chat, turns: chat.turns.map(({ asked, runs }) => ({ asked, runs })) };
    if (!keep(kept)) announce("The browser has no space left to store this chat.");
    this.#afterwards();
  }

  /** Sends a request, and shows its answer as it arrives. */
  async #write(turn, name, asked, signal) {
    const run = newRun(name, this.facts.chain, asked);
    turn.runs.push(run);
    if (turn.runs.length > 1) this.#rename(turn);
    const view = this.#addRun(turn, run);
    view.section.ariaBusy = "true";
    const path = this.facts.has_chat_template ? "/v1/chat/completions" : "/v1/completions";
    const { model } = this.facts;
    const body = { model, ...this.#promptOf(turn), ...asked, stream: true, ...WITH_DETAILS };
    try {
      for await (const event of api.events(path, body, signal)) {
        run.reading = event.prompt_progress ?? run.reading;
        for (const choice of event.choices) add(run, choice);
        view.update();
      }
    } catch (error) {
      if (signal.aborted) run.ending = "cancelled";
      else run.problem = error.message;
    }
    run.reading = null;
    following(() => view.finish());
    return run;
  }

  #promptOf(turn) {
    if (!this.facts.has_chat_template) return { prompt: turn.asked };
    const { system, turns } = this.chat;
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const { asked, runs } of turns.slice(0, turns.indexOf(turn))) {
      messages.push({ role: "user", content: asked });
      messages.push({ role: "assistant", content: runs[0].answer });
    }
    return { messages: [...messages, { role: "user", content: turn.asked }] };
  }

  async #settingsOf(turn, signal) {
    const { temperature, maxTokens, seed } = this.settings();
    const room = maxTokens ?? (await this.#roomAfter(this.#promptOf(turn), signal));
    return {
      model: this.facts.model,
      temperature,
      max_tokens: maxTokens ?? Math.min(this.mostTokens, room),
      seed: seed ?? crypto.getRandomValues(new Uint32Array(1))[0] % LARGEST_SEED,
    };
  }

  /** Returns how many tokens the context has left for an answer, at least 1. Returns Infinity if
   * the server does not say; it then rejects the request and says why. */
  async #roomAfter(prompt, signal) {
    try {
      const asked = { model: this.facts.model, ...prompt };
      const { count, max_model_len } = await api.json("/tokenize", asked, signal);
      return Math.max(1, max_model_len - count);
    } catch {
      return Infinity;
    }
  }

  // --- Showing ---------------------------------------------------------------------------------

  #addTurn(turn) {
    const made = copyOf("turn-template");
    made.querySelector(".asked p").textContent = turn.asked;
    made.classList.toggle("completion", !this.facts.has_chat_template);
    this.box.append(made);
    turn.element = made;
    this.#afterwards();
    document.documentElement.scrollTop = document.documentElement.scrollHeight;
  }

  #addRun(turn, run) {
    const prompt = this.facts.has_chat_template ? undefined : turn.asked;
    const { model, bandwidth } = this.facts;
    const isOfModel = (run.asked.model ?? model) === model; // else its bandwidth is not known
    const view = new RunView(run, isOfModel ? bandwidth : {}, prompt);
    const tools = view.find(".tools");
    const add = (label, name, work) => {
      const button = element("button", `quiet ${name}`, label);
      button.type = "button";
      button.addEventListener("click", () => work(button));
      tools.append(button);
    };
    add("Copy", "copy", (button) => copyText(run.answer, button));
    if (!run.asked.draft) {
      const addRequest = (label, name, work) => add(label, name, () => this.isRunning || work());
      addRequest("Regenerate", "regenerate", () => this.regenerate());
      if (run.chain.length > 1) addRequest("Race plain decoding", "race", () => this.race(turn));
    }
    turn.element.querySelector(".runs").append(view.section);
    return view;
  }

  /** Names the first run once there is a second one. */
  #rename(turn) {
    turn.runs[0].name = "With drafts";
    const title = turn.element.querySelector(".run h3");
    title.textContent = "With drafts";
    title.classList.remove("unseen");
  }

  #end(turn) {
    const line = turn.element.querySelector(".verdict");
    line.hidden = turn.runs.length < 2;
    if (line.hidden) return;
    const { text, isEqual } = verdictOf(turn.runs);
    line.textContent = text;
    line.classList.toggle("equal", isEqual);
  }

  #setRunning(controller) {
    this.#running = controller;
    this.box.classList.toggle("running", Boolean(controller));
    this.on.running(Boolean(controller));
  }

  #afterwards() {
    this.on.changed(this.chat);
  }
}

const WITH_DETAILS = { return_token_ids: true, return_origins: true, return_progress: true };

/** Adds a chunk's choice to a run. */
function add(run, choice) {
  if (!choice.origins) return; // the first chunk of a chat's answer, or progress of its prompt
  run.reading = null;
  run.ids.push(...choice.token_ids);
  for (const { text, depth, probability } of choice.origins) {
    run.tokens.push({ text, depth, probability });
  }
  run.answer += choice.text ?? choice.delta.content ?? "";
  run.thought += choice.delta?.reasoning_content ?? "";
  run.progress = choice.progress;
  run.steps.push([choice.progress.seconds, run.tokens.length]);
  run.ending = choice.finish_reason;
}
