/** The page: sends requests, one after another, and shows each answer. */

import * as api from "./api.js";
import {
  AnswerText,
  count,
  following,
  inspectTokens,
  number,
  showFigures,
  showLevels,
} from "./answer.js";
import { Meter } from "./meter.js";

const FIGURES_MS = 250; // between updates of the figures
const MOST_TOKENS = 512; // default
const LARGEST_SEED = 2 ** 32;

const at = (id) => document.getElementById(id);
const [turns, prompt, send, stop, clear] = ["turns", "prompt", "send", "stop", "clear"].map(at);

let facts = null; // about the model
let history = []; // messages of the chat
let running = null; // AbortController of the current request

// --- Asking ------------------------------------------------------------------------------------

async function ask(text) {
  const turn = addTurn(text);
  const controller = new AbortController();
  setRunning(controller);
  const views = [addRun(turn, text, hasComparison() ? "With drafts" : "")];
  if (hasComparison()) views.push(addRun(turn, text, "Plain"));
  const runs = [];
  try {
    const body = await bodyOf(text, controller.signal);
    for (const [i, view] of views.entries()) {
      if (i && controller.signal.aborted) break;
      const asked = i ? { ...body, draft: "none" } : body;
      runs.push(await write(view, asked, controller.signal));
      if (runs.at(-1).problem) break;
    }
  } finally {
    if (controller === running) setRunning(null);
  }
  let verdict = "";
  if (runs.length > 1) following(() => (verdict = showVerdict(turn, runs)));
  if (!turn.isConnected) return; // cleared meanwhile
  const [{ answer, problem }] = runs;
  at("told").textContent = [problem ?? answer, verdict].filter(Boolean).join(" \u2014 ");
  if (!problem) {
    history.push({ role: "user", content: text }, { role: "assistant", content: answer });
  } else if (!prompt.value) {
    prompt.value = text;
    send.disabled = false;
  }
}

/** Runs a request and shows its answer as it arrives. */
async function write(view, body, signal) {
  const { text, meter, section } = view;
  const run = { tokens: [], answer: "", ending: null, problem: null, meter };
  section.ariaBusy = "true";
  const timer = setInterval(() => following(() => show(view)), FIGURES_MS);
  try {
    const path = facts.has_chat_template ? "/v1/chat/completions" : "/v1/completions";
    for await (const event of api.events(path, body, signal)) {
      for (const choice of event.choices) {
        if (!choice.origins) continue; // the first chunk of a chat's answer
        run.tokens.push(...choice.token_ids);
        meter.add(
          choice.origins.map((origin) => origin.depth),
          choice.progress,
        );
        text.add(choice.origins);
        run.ending = choice.finish_reason;
      }
    }
  } catch (error) {
    if (signal.aborted) run.ending = "cancelled";
    else run.problem = error.message;
  } finally {
    clearInterval(timer);
  }
  text.flush();
  run.answer = text.text;
  following(() => finish(view, run, body));
  return run;
}

async function bodyOf(text, signal) {
  const value = (id) => (at(id).value === "" ? undefined : Number(at(id).value));
  const asked = facts.has_chat_template
    ? { messages: [...history, { role: "user", content: text }] }
    : { prompt: text };
  return {
    ...asked,
    stream: true,
    return_token_ids: true,
    return_origins: true,
    return_progress: true,
    temperature: value("temperature"),
    max_tokens: value("max-tokens") ?? Math.min(mostTokens(), await roomAfter(asked, signal)),
    seed: value("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0] % LARGEST_SEED,
  };
}

/** Tokens that the context has left for an answer; 1 where none is left, Infinity where the server
 * does not say: then the request is refused with the cause. */
async function roomAfter(asked, signal) {
  try {
    const { count, max_model_len } = await api.json("/tokenize", asked, signal);
    return Math.max(1, max_model_len - count);
  } catch {
    return Infinity;
  }
}

const mostTokens = () => Math.min(MOST_TOKENS, Math.floor(facts.max_context / 2));
const hasComparison = () => at("compare").checked && facts.chain.length > 1;

// --- Showing -----------------------------------------------------------------------------------

const copyOf = (id) => at(id).content.cloneNode(true).firstElementChild;

function addTurn(text) {
  at("welcome").hidden = true;
  const turn = copyOf("turn-template");
  turn.querySelector(".asked p").textContent = text;
  turn.classList.toggle("completion", !facts.has_chat_template);
  turns.append(turn);
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
  return turn;
}

function addRun(turn, text, name) {
  const section = copyOf("run-template");
  const [title, box] = section.children;
  title.textContent = name;
  title.hidden = !name;
  box.ariaLabel = `${name || "Answer"}: left and right arrows step through its tokens`;
  if (!facts.has_chat_template) {
    const before = document.createElement("span");
    before.className = "before";
    before.textContent = text;
    box.append(before);
  }
  turn.querySelector(".runs").append(section);
  return { section, text: new AnswerText(box), meter: new Meter() };
}

function show({ section, meter }, ending, seed) {
  showFigures(section.querySelector(".figures"), meter, facts.bandwidth, ending, seed);
  if (facts.chain.length > 1) showLevels(section.querySelector(".levels"), facts.chain, meter);
}

function finish(view, run, body) {
  const { section } = view;
  section.ariaBusy = "false";
  const endings = { length: ", cut", cancelled: ", stopped" };
  show(view, endings[run.ending], body.draft ? null : body.seed);
  if (!run.problem) return;
  const problem = section.querySelector(".problem");
  problem.textContent = run.problem;
  problem.hidden = false;
}

/** Whether both runs have the same tokens, and the ratio of their speeds. */
function showVerdict(turn, [drafted, plain]) {
  const [ours, theirs] = [drafted.tokens, plain.tokens];
  const line = turn.querySelector(".verdict");
  const isWhole = [drafted, plain].every((run) => run.ending && run.ending !== "cancelled");
  const length = (isWhole ? Math.max : Math.min)(ours.length, theirs.length);
  let first = 0;
  while (first < length && ours[first] === theirs[first]) first += 1;
  const isEqual = first === length;
  const ratio = drafted.meter.tokensPerSecond / plain.meter.tokensPerSecond;
  const parts = [
    isEqual
      ? `${isWhole ? "Equal" : "Equal so far"}: ${count(length, "token")}`
      : `Different from token ${first + 1} on: ${ours[first] ?? "none"} and ${theirs[first] ?? "none"}`,
    isEqual && Number.isFinite(ratio) && ratio > 0 && `${number(ratio)} times as fast as plain`,
  ];
  line.textContent = parts.filter(Boolean).join(" \u00b7 ");
  line.classList.toggle("equal", isEqual);
  line.hidden = false;
  return line.textContent;
}

function setRunning(controller) {
  running = controller;
  stop.hidden = !controller;
  send.hidden = Boolean(controller);
  clear.disabled = !turns.querySelector(".turn");
}

// --- The composer ------------------------------------------------------------------------------

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value;
  if (running || !facts || !text.trim()) return;
  prompt.value = "";
  send.disabled = true;
  prompt.focus();
  ask(text);
});

prompt.addEventListener("input", () => {
  send.disabled = !facts || !prompt.value.trim();
});

prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("composer").requestSubmit();
});

addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

stop.addEventListener("click", () => {
  running?.abort();
  prompt.focus();
});

clear.addEventListener("click", () => {
  running?.abort();
  setRunning(null);
  history = [];
  for (const turn of turns.querySelectorAll(".turn")) turn.remove();
  at("welcome").hidden = false;
  at("told").textContent = "The conversation is cleared.";
  clear.disabled = true;
  prompt.focus();
});

function showSettings(shows) {
  at("settings").hidden = !shows;
  at("settings-button").ariaExpanded = String(shows);
}

at("settings-button").addEventListener("click", () => showSettings(at("settings").hidden));
at("settings").addEventListener("invalid", () => showSettings(true), true); // shows the message

// --- The start ---------------------------------------------------------------------------------

async function open() {
  try {
    facts = await api.json("/page/facts");
  } catch (error) {
    if (error.status === 401) askForKey();
    else at("model").textContent = error.message;
    return;
  }
  at("key-dialog").close();
  const kind = facts.has_chat_template ? "Message" : "Text to continue";
  document.title = `${facts.model} \u00b7 SpecQD`;
  at("model").textContent = facts.model;
  document.querySelector("label[for=prompt]").textContent = kind;
  prompt.placeholder = facts.has_chat_template ? `Message ${facts.model}` : kind;
  prompt.classList.toggle("code", !facts.has_chat_template);
  at("temperature").placeholder = facts.temperature;
  at("max-tokens").placeholder = mostTokens();
  at("max-tokens").max = facts.max_context;
  at("compare-label").hidden = facts.chain.length < 2;
  const does = facts.has_chat_template ? "answers" : "continues your text";
  at("welcome").querySelector("h2").textContent = `${facts.model} ${does}`;
  showLevels(at("welcome").querySelector(".levels"), facts.chain);
  at("welcome").hidden = false;
  prompt.dispatchEvent(new Event("input"));
  prompt.focus();
}

function askForKey() {
  const dialog = at("key-dialog");
  at("key-problem").textContent = at("key").value ? "That key is not the server\u2019s." : "";
  if (!dialog.open) dialog.showModal();
  at("key").select();
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.keepKey(at("key").value);
  open();
});
at("key-dialog").addEventListener("cancel", (event) => event.preventDefault());

inspectTokens(turns, at("tip"), at("told"), () => facts.chain);
open();
