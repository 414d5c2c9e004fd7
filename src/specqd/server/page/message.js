/** Shows what a message of the chat offers: its versions and its editor. Knows no requests. */

import { copyOf, element, isSending } from "./shown.js";

/** Adds buttons to a message. fork: of its turn, if it has several versions. work: handlers
 * {edit(), show(steps)}. */
export function addVersions(box, fork, work) {
  const add = (label, name, handle) => {
    const button = element("button", "quiet", label);
    button.type = "button";
    if (name) button.ariaLabel = name;
    button.addEventListener("click", handle);
    box.append(button);
    return button;
  };
  if (fork) {
    const { at, tails } = fork;
    add("\u2039", "Earlier version", () => work.show(-1)).disabled = at === 0;
    box.append(element("span", "", `${at + 1} of ${tails.length}`));
    add("\u203a", "Later version", () => work.show(1)).disabled = at === tails.length - 1;
  }
  add("Edit", "", () => work.edit()).classList.add("edit");
}

/** Moves the focus to the button that goes on in the same direction, if it can. */
export function focusVersions(box, steps) {
  const [back, forth] = box.querySelectorAll("button[aria-label]");
  const [wanted, other] = steps < 0 ? [back, forth] : [forth, back];
  (wanted.disabled ? other : wanted).focus();
}

/** Puts an editor in the place of a message. problem: why its text was refused, or "". send: called
 * with the new text. */
export function openEditor(message, text, problem, send) {
  const form = copyOf("editor-template");
  const field = form.querySelector("textarea");
  const line = form.querySelector(".problem");
  const close = () => {
    form.replaceWith(message);
    message.querySelector(".edit").focus();
  };
  field.value = text;
  line.textContent = problem;
  line.hidden = !problem;
  form.querySelector(".cancel").addEventListener("click", close);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.target !== field || !isSending(event)) return;
    event.preventDefault();
    form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) send(field.value);
  });
  message.replaceWith(form);
  field.focus();
}
