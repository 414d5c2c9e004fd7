/** The page: its buttons, its settings and its start. */

import { inspectTokens, showLevels } from "./answer.js";
import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import { Attachments } from "./files.js";
import { Live } from "./live.js";
import { allowChoice, chosenFacts, onChoice } from "./picker.js";
import { announce, at, count, element, isSending } from "./shown.js";
import { session } from "./storage.js";
import { chatOf, chats, choices, choose, drop } from "./store.js";

const OPEN = "specqd-open"; // the chat of this tab, which a reload shows again

const [turns, prompt, send, stop] = ["turns", "prompt", "send", "stop"].map(at);
const live = new Live();
const attachments = new Attachments();

let facts = null; // about the model
let conversation = null;
let hasSpace = true; // in the browser's storage

// --- The composer ------------------------------------------------------------------------------

function settings() {
  const value = (id) => (at(id).value === "" ? undefined : Number(at(id).value));
  return {
    sampling: { temperature: value("temperature"), top_p: value("top-p"), min_p: value("min-p") },
    maxTokens: value("max-tokens"),
    seed: value("seed"),
    system: at("system").value.trim(),
    compares: at("compare").checked,
    shifts: conversation.facts.has_chat_template && at("on-full").value === "shift",
  };
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value;
  if (!facts || conversation.isRunning || !text.trim()) return;
  prompt.value = "";
  send.disabled = true;
  prompt.focus();
  conversation.ask(text, attachments.take());
});

prompt.addEventListener("input", () => {
  send.disabled = !facts || !prompt.value.trim();
});

prompt.addEventListener("keydown", (event) => {
  if (!isSending(event)) return;
  event.preventDefault();
  at("composer").requestSubmit();
});

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) conversation?.stop();
});

stop.addEventListener("click", () => {
  conversation.stop();
  prompt.focus();
});

// A page in the background may be ended without another event.
addEventListener("pagehide", () => conversation?.leave());
addEventListener("visibilitychange", () => document.hidden && conversation?.leave());

function showSettings(shows) {
  at("settings").hidden = !shows;
  at("settings-button").ariaExpanded = String(shows);
}

at("settings-button").addEventListener("click", () => showSettings(at("settings").hidden));
at("settings").addEventListener("invalid", () => showSettings(true), true); // shows the message

// --- Handlers of the conversation --------------------------------------------------------------

const on = {
  running(is) {
    allowChoice(!is);
    stop.hidden = !is;
    send.hidden = is;
  },
  refused({ asked, files }) {
    if (prompt.value || attachments.files.length) return;
    prompt.value = asked;
    attachments.set(files);
    send.disabled = false;
  },
  changed(chat) {
    const isEmpty = !turns.querySelector(".turn");
    at("welcome").hidden = !isEmpty;
    at("new").disabled = isEmpty;
    session.setItem(OPEN, chat.id);
  },
  begun() {
    prompt.focus();
  },
  stored(is) {
    if (is === hasSpace) return;
    hasSpace = is;
    if (is) at("problem").hidden = true;
    else showProblem("The browser has no space left to store this chat. Delete earlier chats.");
  },
};

// --- The header --------------------------------------------------------------------------------

function openChat(chat, announcement) {
  conversation.open(chat);
  if (chat) at("system").value = chat.system ?? "";
  announce(announcement);
  prompt.focus();
}

at("new").addEventListener("click", () => openChat(undefined, "New chat opened."));

at("chats-button").addEventListener("click", () => {
  showChats();
  at("chats").showModal();
});
at("chats-close").addEventListener("click", () => at("chats").close());
at("chats").addEventListener("click", (event) => {
  if (event.target === at("chats")) at("chats").close(); // a click outside of the list
});
at("forget").addEventListener("click", () => {
  const known = chats();
  const question = `Delete ${count(known.length, "chat")} for good`;
  if (at("forget").textContent === question) remove(known);
  else announce((at("forget").textContent = question));
});

function remove(unwanted) {
  for (const chat of unwanted) drop(chat);
  conversation.close(unwanted);
  showChats();
}

function showChats() {
  const known = chats();
  at("forget").disabled = !known.length;
  at("forget").textContent = "Delete all";
  at("no-chats").hidden = known.length > 0;
  at("chat-list").replaceChildren(
    ...known.map((chat) => {
      const item = element("li");
      const title = chat.turns[0].asked.trim().slice(0, 80);
      const open = element("button", "quiet", title);
      open.append(element("span", "when", new Date(chat.changed).toLocaleString()));
      const cross = element("button", "quiet remove", "\u00d7");
      cross.ariaLabel = `Delete: ${title}`;
      open.type = cross.type = "button";
      open.addEventListener("click", () => {
        at("chats").close();
        if (chat.id === conversation.chat.id) return;
        openChat(chatOf(chat.id) ?? chat, "Earlier chat opened.");
      });
      cross.addEventListener("click", () => {
        remove([chat]);
        at("chats-close").focus();
      });
      item.append(open, cross);
      return item;
    }),
  );
}

at("scheme").addEventListener("change", () => {
  const scheme = at("scheme").value;
  choose({ scheme });
  document.documentElement.dataset.scheme = scheme;
});

function showTokens(shows) {
  turns.classList.toggle("with-tokens", shows);
  at("tokens-button").ariaPressed = String(shows);
}

at("tokens-button").addEventListener("click", () => {
  const shows = at("tokens-button").ariaPressed !== "true";
  choose({ tokens: shows });
  showTokens(shows);
});

function showLive(shows) {
  at("live-button").ariaPressed = String(shows);
  if (shows && facts) live.start(facts);
  else live.stop();
}

at("live-button").addEventListener("click", () => {
  const shows = at("live-button").ariaPressed !== "true";
  choose({ live: shows });
  showLive(shows);
});

// --- The start ---------------------------------------------------------------------------------

async function open() {
  let chosen;
  try {
    chosen = await chosenFacts();
  } catch (error) {
    if (error.status === 401) askForKey();
    else showProblem(error.message);
    return;
  }
  at("key-dialog").close();
  begin(chosen);
}

function begin(chosen) {
  facts = chosen;
  conversation = new Conversation(turns, facts, settings, on);
  showFacts();
  const { tokens, live: isLive } = choices();
  showTokens(tokens ?? matchMedia("(min-width: 60rem)").matches);
  showLive(isLive ?? false);
  openChat(chatOf(session.getItem(OPEN)), "");
  prompt.dispatchEvent(new Event("input"));
}

onChoice({
  wait(name) {
    facts = null;
    conversation?.setLoading(true);
    send.disabled = true;
    prompt.placeholder = `Loading ${name}\u2026`;
  },
  use(chosen) {
    if (!conversation) return begin(chosen);
    const wasChat = conversation.facts.has_chat_template;
    facts = conversation.facts = chosen;
    conversation.setLoading(false);
    showFacts();
    showLive(at("live-button").ariaPressed === "true");
    if (wasChat !== facts.has_chat_template) openChat(undefined, "");
    prompt.dispatchEvent(new Event("input"));
  },
  fail(error) {
    facts = conversation?.facts ?? null;
    if (facts) {
      conversation.setLoading(false);
      at("picker").value = facts.model;
      showFacts();
    }
    showProblem(error.message);
    prompt.dispatchEvent(new Event("input"));
  },
});

function showProblem(text) {
  at("problem").textContent = text;
  at("problem").hidden = false;
}

function showFacts() {
  const isChat = facts.has_chat_template;
  const kind = isChat ? "Message" : "Text to continue";
  document.title = `${facts.model} \u00b7 SpecQD`;
  at("problem").hidden = true;
  at("model").textContent = facts.model;
  document.querySelector("label[for=prompt]").textContent = kind;
  prompt.placeholder = isChat ? `Message ${facts.model}` : kind;
  prompt.classList.toggle("code", !isChat);
  at("system-label").hidden = !isChat;
  for (const id of ["tokens-button", "on-full-label"]) at(id).hidden = !isChat;
  attachments.allow(isChat);
  for (const name of ["temperature", "top_p", "min_p"]) {
    at(name.replace("_", "-")).placeholder = facts.sampling[name];
  }
  at("sampling").textContent = `The server's default: ${shownSampling(facts.sampling)}.`;
  at("max-tokens").placeholder = conversation.mostTokens;
  at("max-tokens").max = facts.max_context;
  at("compare-label").hidden = facts.chain.length < 2;
  const does = isChat ? "answers" : "continues your text";
  at("welcome").querySelector("h2").textContent = `${facts.model} ${does}`;
  showLevels(at("welcome").querySelector(".levels"), facts.chain);
}

/** The temperature, and what else has an effect. */
function shownSampling(sampling) {
  const without = { temperature: null, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 };
  return Object.entries(sampling).filter(([name, value]) => value !== without[name])
    .map(([name, value]) => `${name.replace("_", " ")} ${value}`).join(", ");
}

function askForKey() {
  const dialog = at("key-dialog");
  at("key-problem").textContent = at("key").value ? "The server does not accept that key." : "";
  if (!dialog.open) dialog.showModal();
  at("key").select();
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.keepKey(at("key").value);
  open();
});
at("key-dialog").addEventListener("cancel", (event) => event.preventDefault());

at("on-full").value = choices().onFull ?? "stop";
at("on-full").addEventListener("change", () => choose({ onFull: at("on-full").value }));
at("scheme").value = choices().scheme ?? "auto";
inspectTokens(turns, at("tip"));
open();
