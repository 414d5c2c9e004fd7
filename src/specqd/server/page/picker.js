/** The choice among the server's models. Choosing one loads it. */

import * as api from "./api.js";
import { announce, at, element } from "./shown.js";
import { choices, choose } from "./store.js";

const picker = at("picker");
let isLoading = false;
let isAllowed = true;

/** Offers the server's models, and returns the facts of the latest choice, else of the first. */
export async function chosenFacts() {
  const { data } = await api.json("/v1/models");
  const names = data.map(({ id }) => id);
  picker.replaceChildren(...names.map((name) => element("option", "", name)));
  picker.hidden = names.length < 2;
  at("model").hidden = !picker.hidden;
  const { model } = choices();
  picker.value = names.includes(model) ? model : names[0];
  return factsOf(picker.value);
}

/** Calls wait(name) when a model is chosen, then use(facts), or fail(error) if it cannot be loaded. */
export function onChoice({ wait, use, fail }) {
  picker.addEventListener("change", async () => {
    const name = picker.value;
    announce(`Loading ${name}.`);
    wait(name);
    try {
      use(await factsOf(name));
      choose({ model: name });
      announce(`${name} is ready.`);
    } catch (error) {
      fail(error);
    }
  });
}

/** Lets the reader choose, or not while a model works. */
export function allowChoice(may) {
  isAllowed = may;
  picker.disabled = isLoading || !isAllowed;
}

async function factsOf(name) {
  isLoading = true;
  allowChoice(isAllowed);
  try {
    return await api.json(`/page/facts?model=${encodeURIComponent(name)}`);
  } finally {
    isLoading = false;
    allowChoice(isAllowed);
  }
}
