/** Text files that go with a message: read in the browser, listed at the composer and in the chat.
 * Nothing is uploaded but the text, as a part of the message. */

import { announce, at, element } from "./shown.js";

const MOST_BYTES = 1 << 20; // of one file; a longer text would not fit into any context
const FENCES = /`{3,}/g;

/** The files that the next message will have. */
export class Attachments {
  files = []; // {name, text}

  constructor() {
    const input = at("files");
    at("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", async () => {
      await this.#add(input.files);
      input.value = "";
    });
    // The browser would open a file that is dropped beside the composer in place of the page.
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      if (!at("attach").hidden) this.#add(event.dataTransfer.files);
    });
  }

  /** Offers to attach files. A model that does not read them gets none, which the page says. */
  allow(may) {
    at("attach").hidden = !may;
    const isLeft = !may && this.files.length > 0;
    if (isLeft) this.set([]);
    this.#complain(isLeft ? "This model reads no files. They were removed." : "");
  }

  /** Returns the files, and leaves none. */
  take() {
    const { files } = this;
    this.set([]);
    return files;
  }

  set(files) {
    this.files = files;
    showFiles(at("attached"), files, (index) => {
      announce(`${files[index].name} removed.`);
      this.set(files.filter((_, i) => i !== index));
      at("attach").focus();
    });
  }

  async #add(given) {
    const read = await Promise.all([...given].map((file) => textOf(file).catch((error) => error)));
    const files = read.filter((each) => !(each instanceof Error));
    const problems = read.filter((each) => each instanceof Error).map(({ message }) => message);
    this.set([...this.files, ...files]);
    this.#complain(problems.join(" "));
    if (!problems.length) announce(`Attached: ${files.map(({ name }) => name).join(", ")}.`);
    at("prompt").focus();
  }

  #complain(problem) {
    at("file-problem").textContent = problem;
    at("file-problem").hidden = !problem;
  }
}

/** Reads a file. Throws an Error that says why it is no text. */
async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} is larger than 1 MB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name: file.name, text };
  } catch {
    // The message below is for both.
  }
  throw new Error(`${file.name} is not a text in UTF-8.`);
}

/** Lists files. remove: called with the index of a file; without it, files stay. */
export function showFiles(list, files, remove) {
  list.hidden = !files.length;
  list.replaceChildren(
    ...files.map(({ name, text }, index) => {
      const item = element("li", "", name);
      item.append(element("span", "size", sizeOf(text)));
      if (remove) {
        const button = element("button", "quiet", "\u00d7");
        button.type = "button";
        button.ariaLabel = `Remove ${name}`;
        button.addEventListener("click", () => remove(index));
        item.append(button);
      }
      return item;
    }),
  );
}

/** Returns the message as the model reads it: each file in a block of its own, then the text. */
export function messageOf({ asked, files }) {
  const blocks = (files ?? []).map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(FENCES)].map(([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n?$/, "\n")}${fence}\n\n`;
  });
  return blocks.join("") + asked;
}

function sizeOf({ length }) {
  return `${length < 1000 ? length : `${(length / 1000).toFixed(1)}k`} characters`;
}
