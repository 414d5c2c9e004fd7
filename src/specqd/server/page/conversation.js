/** One chat: sends its requests one after another, shows its turns and stores them. */

import { RunView, verdictOf } from "./answer.js";
import * as api from "./api.js";
import { branch, step, withdraw } from "./branches.js";
import { messageOf, showFiles } from "./files.js";
import { addVersions, focusVersions, openEditor } from "./message.js";
import { newRun } from "./meter.js";
import { openRace } from "./race.js";
import { roomAfter, shifted } from "./room.js";
import { announce, answerOn, copyOf, copyText, count, element, following } from "./shown.js";
import { keep, newChat } from "./store.js";

const MOST_TOKENS = 512; // per answer, by default
const LARGEST_SEED = 2 ** 32;

export class Conversation {
  chat = newChat();
  #running = null; // {controller, turn, earlier}: the current requests, see #answer
  #isLoading = false;

  /** facts: about the server's model. settings: returns {sampling, maxTokens, seed, system,
   * compares, shifts}. on: handlers {running(is), begun(), refused(turn), stored(is),
   * changed(chat)}. */
  constructor(box, facts, settings, on) {
    Object.assign(this, { box, facts, settings, on });
  }

  get isRunning() {
    return Boolean(this.#running);
  }

  /** Whether nothing can be asked now. */
  get isBusy() {
    return this.isRunning || this.#isLoading;
  }

  /** Whether another model is being loaded. */
  setLoading(is) {
    this.#isLoading = is;
    this.#showBusy();
  }

  get mostTokens() {
    return Math.min(MOST_TOKENS, Math.floor(this.facts.max_context / 2));
  }

  stop() {
    this.#running?.controller.abort();
  }

  /** Stores a chat whose answer has not ended, because the page may not come back. */
  leave() {
    if (!this.isRunning || this.chat.isDeleted) return;
    const { turn, earlier } = this.#running;
    const asked = { model: this.facts.model };
    const begun = turn.runs.length ? turn.runs : [newRun("", this.facts.chain, asked)];
    const stopped = begun.map((run) => ({ ...run, ending: run.ending ?? "cancelled" }));
    const runs = earlier && !begun[0].tokens.length ? earlier : stopped;
    const turns = this.chat.turns.map((each) => (each === turn ? { ...each, runs } : each));
    const copy = { ...this.chat, turns };
    if (keep(copy)) Object.assign(this.chat, { id: copy.id, changed: copy.changed });
  }

  /** Shows another chat, or a new one. */
  open(chat = newChat()) {
    this.stop();
    this.#setRunning(null);
    this.chat = chat;
    this.#draw(0);
    this.#afterwards();
  }

  /** Shows a new chat if the open one is among those that were deleted. */
  close(deleted) {
    if (!deleted.some(({ id }) => id === this.chat.id)) return;
    this.chat.isDeleted = true; // not stored again, whatever still arrives
    this.open();
  }

  /** files: those that go with the message. */
  async ask(asked, files = []) {
    const { turns } = this.chat;
    const turn = { asked, files, dropped: this.#droppedBefore(turns.length), runs: [] };
    turns.push(turn);
    this.#addTurn(turn);
    if (!(await this.#answer(turn))) return;
    turns.splice(turns.indexOf(turn), 1);
    for (const each of turn.element.querySelectorAll(".tools, .versions")) each.hidden = true;
    this.on.refused(turn);
  }

  /** Answers a message in another wording, in a branch of its own. If that fails, the chat is as
   * before, and the editor is open. */
  async #edit(turn, asked) {
    const { turns } = this.chat;
    const index = turns.indexOf(turn);
    const shown = turn.fork?.at ?? 0;
    const edited = { asked, files: turn.files, dropped: this.#droppedBefore(index), runs: [] };
    branch(turns, index, edited);
    this.#draw(index);
    this.on.begun();
    const problem = await this.#answer(edited);
    if (!problem) return;
    withdraw(turns, index, shown);
    this.#draw(index);
    this.#openEditor(turn, asked, problem);
  }

  #showBranch(turn, steps) {
    const { turns } = this.chat;
    const index = turns.indexOf(turn);
    step(turns, index, steps);
    this.#draw(index);
    this.#store();
    const { fork, element: shown } = turns[index];
    announce(`Version ${fork.at + 1} of ${fork.tails.length}: ${turns[index].asked}`);
    focusVersions(shown.querySelector(".versions"), steps);
  }

  /** Answers the last message again. */
  async regenerate() {
    const index = this.chat.turns.length - 1;
    const turn = this.chat.turns[index];
    const { runs } = turn;
    turn.runs = [];
    turn.element.querySelector(".runs").replaceChildren();
    turn.element.querySelector(".verdict").hidden = true;
    turn.element.querySelector(":scope > .problem")?.remove();
    this.on.begun();
    const problem = await this.#answer(turn, runs);
    if (!problem) return;
    this.#draw(index);
    turn.element.append(element("p", "problem", problem));
  }

  /** Replays drafted and plain decoding side by side. Runs plain decoding first if needed. */
  async race(turn, button) {
    const [drafted] = turn.runs;
    const length = drafted.ids.length;
    if (drafted.steps.length < 2) return answerOn(button, "Too short for a race");
    if (turn.runs[1]?.ids.length !== length) {
      turn.element.querySelectorAll(".run")[1]?.remove();
      turn.runs.length = 1;
      const asked = { ...drafted.asked, draft: "none" };
      if (drafted.ending === "cancelled") asked.max_tokens = length;
      await this.#run({ turn }, (signal) => this.#write(turn, "Plain", asked, signal));
    }
    const isEqual = turn.runs[1].ids.length === length && verdictOf(turn.runs).isEqual;
    if (isEqual && turn.element.isConnected) openRace(turn.runs);
    else announce(turn.runs[1].problem ?? turn.element.querySelector(".verdict").textContent);
  }

  /** Returns the problem that prevents an answer, if there is one and the chat is still open. An
   * answer that a problem cuts off stays, as one that is stopped.
   * earlier: runs that stay if there is a problem, or if the answer is stopped before it begins. */
  async #answer(turn, earlier) {
    const { chat } = this;
    let failure;
    const { compares, system } = this.settings();
    if (this.facts.has_chat_template && turn === chat.turns[0]) chat.system = system;
    const isCompared = compares && this.facts.chain.length > 1;
    await this.#run({ turn, earlier }, async (signal) => {
      const asked = await this.#settingsOf(turn, signal);
      const run = await this.#write(turn, isCompared ? "With drafts" : "", asked, signal);
      if (earlier && (run.problem || (signal.aborted && !run.tokens.length))) {
        turn.runs = earlier;
        failure = run.problem ?? "Stopped before the new answer began.";
      }
      if (!isCompared || run.problem || signal.aborted) return;
      await this.#write(turn, "Plain", { ...asked, draft: "none" }, signal);
    });
    if (chat !== this.chat) return undefined;
    if (failure) {
      announce(failure);
      return failure;
    }
    const [run] = turn.runs;
    const verdict = isComparable(turn) ? verdictOf(turn.runs).text : "";
    announce([run.answer, run.problem, verdict].filter(Boolean).join(" \u2014 "));
    return isRefused(run) ? run.problem : undefined;
  }

  /** Runs requests of a turn, and stores the chat. */
  async #run({ turn, earlier }, work) {
    const { chat } = this;
    const controller = new AbortController();
    const running = { controller, turn, earlier };
    this.#setRunning(running);
    try {
      await work(controller.signal);
    } finally {
      if (running === this.#running) this.#setRunning(null);
    }
    if (chat === this.chat) following(() => this.#end(turn));
    if (!isRefused(turn.runs[0])) this.#store(chat);
  }

  #store(chat = this.chat) {
    if (chat.isDeleted) return;
    this.on.stored(keep(chat));
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
    const body = { ...this.#promptOf(turn), ...asked, stream: true, ...WITH_DETAILS };
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

  /** Returns the prompt of a turn, without the oldest turns, `dropped` in number. */
  #promptOf(turn, dropped = turn.dropped) {
    const { model } = this.facts;
    if (!this.facts.has_chat_template) return { model, prompt: turn.asked };
    const { system, turns } = this.chat;
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const earlier of turns.slice(dropped, turns.indexOf(turn))) {
      messages.push({ role: "user", content: messageOf(earlier) });
      messages.push({ role: "assistant", content: earlier.runs[0].answer });
    }
    return { model, messages: [...messages, { role: "user", content: messageOf(turn) }] };
  }

  async #settingsOf(turn, signal) {
    const { sampling, maxTokens, seed, shifts } = this.settings();
    const most = maxTokens ?? this.mostTokens;
    const room = shifts ? await this.#makeRoom(turn, most, signal) : null;
    return {
      model: this.facts.model,
      ...sampling,
      max_tokens: maxTokens ?? (await this.#tokensFor(turn, room, signal)),
      seed: seed ?? crypto.getRandomValues(new Uint32Array(1))[0] % LARGEST_SEED,
    };
  }

  /** Returns how many tokens an answer may have by default. */
  async #tokensFor(turn, room, signal) {
    const left = room ?? (await roomAfter(this.#promptOf(turn), signal));
    return Math.min(this.mostTokens, Math.max(1, left));
  }

  /** Drops the oldest turns if the context is full, and returns the room for the answer. */
  async #makeRoom(turn, most, signal) {
    const last = this.chat.turns.indexOf(turn);
    const first = this.#droppedBefore(last);
    const limits = { first, last, most, context: this.facts.max_context };
    const promptOf = (dropped) => this.#promptOf(turn, dropped);
    const { dropped, room } = await shifted(promptOf, limits, signal);
    turn.dropped = dropped;
    following(() => this.#showDropped(turn));
    return room;
  }

  /** How many turns the prompt before this place leaves out. */
  #droppedBefore(index) {
    return this.chat.turns[index - 1]?.dropped ?? 0;
  }

  // --- Showing ---------------------------------------------------------------------------------

  /** Draws the turns from `index` on. */
  #draw(index) {
    const kept = this.chat.turns.slice(0, index).map((turn) => turn.element);
    for (const each of this.box.querySelectorAll(".turn")) if (!kept.includes(each)) each.remove();
    for (const turn of this.chat.turns.slice(index)) {
      this.#addTurn(turn);
      for (const run of turn.runs) this.#addRun(turn, run).finish();
      this.#end(turn);
    }
  }

  #addTurn(turn) {
    const made = copyOf("turn-template");
    made.querySelector(".asked p").textContent = turn.asked;
    showFiles(made.querySelector(".files"), turn.files ?? []);
    made.classList.toggle("completion", !this.facts.has_chat_template);
    this.box.append(made);
    turn.element = made;
    addVersions(made.querySelector(".versions"), turn.fork, {
      edit: () => this.isBusy || this.#openEditor(turn, turn.asked, ""),
      show: (steps) => this.isBusy || this.#showBranch(turn, steps),
    });
    this.#showDropped(turn);
    this.#afterwards();
    document.documentElement.scrollTop = document.documentElement.scrollHeight;
  }

  /** Names the turns that were dropped before a turn. */
  #showDropped(turn) {
    const { turns } = this.chat;
    const first = this.#droppedBefore(turns.indexOf(turn));
    const names = turns.slice(first, turn.dropped).map(({ asked }) => quoted(asked));
    const line = turn.element.querySelector(".dropped");
    line.hidden = !names.length;
    const which = names.length > 1 ? `${names[0]} to ${names.at(-1)}` : names[0];
    const what = count(names.length, "turn");
    line.textContent = `The context is full. Dropped the oldest ${what}: ${which}`;
  }

  #openEditor(turn, text, problem) {
    const message = turn.element.querySelector(".asked");
    openEditor(message, text, problem, (asked) => this.isBusy || this.#edit(turn, asked));
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
      const addRequest = (label, name, work) =>
        add(label, name, (button) => this.isBusy || work(button));
      addRequest("Regenerate", "regenerate", () => this.regenerate());
      if (run.chain.length > 1) {
        addRequest("Race plain decoding", "race", (button) => this.race(turn, button));
      }
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
    line.hidden = !isComparable(turn);
    if (line.hidden) return;
    const { text, isEqual } = verdictOf(turn.runs);
    line.textContent = text;
    line.classList.toggle("equal", isEqual);
  }

  #setRunning(running) {
    this.#running = running;
    this.#showBusy();
    this.on.running(this.isRunning);
  }

  #showBusy() {
    this.box.classList.toggle("running", this.isBusy);
  }

  #afterwards() {
    this.on.changed(this.chat);
  }
}

const isRefused = (run) => Boolean(run.problem) && !run.tokens.length;

const isComparable = ({ runs }) => runs.length > 1 && !runs.some(({ problem }) => problem);

const quoted = (text) => `\u201c${text.length > 40 ? `${text.slice(0, 37)}\u2026` : text}\u201d`;

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
