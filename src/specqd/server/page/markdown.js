/** Shows Markdown as elements. markdown-it returns a list of tokens, and each becomes an element of
 * TAGS or text. No markup is ever parsed: the page's policy (trusted-types 'none') forbids it. */

import MarkdownIt from "./vendor/markdown-it.min.js";
import { copyText, element } from "./shown.js";

const TAGS = new Set(
  "a blockquote br em h4 h5 h6 hr li ol p s strong table tbody td th thead tr ul".split(" "),
);
const HEADINGS_BELOW = 3; // heading levels that the page itself uses

const parser = new MarkdownIt({ linkify: true }); // HTML stays text
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // "setup.py" is not an address
parser.disable("image"); // "![a](b)" becomes a link, so that nothing is loaded

/** Draws a growing text. Keeps the blocks that have not changed. */
export class Prose {
  #drawn = []; // the tokens of each block, as JSON

  constructor(box) {
    this.box = box;
  }

  draw(text) {
    const blocks = blocksOf(parser.parse(text, {}));
    for (const [i, block] of blocks.entries()) {
      const tokens = JSON.stringify(block);
      if (this.#drawn[i] === tokens) continue;
      this.#drawn[i] = tokens;
      const made = built(block);
      if (this.box.children[i]) this.box.children[i].replaceWith(made);
      else this.box.append(made);
    }
    this.#drawn.length = blocks.length;
    while (this.box.children.length > blocks.length) this.box.lastElementChild.remove();
  }
}

/** Groups the tokens by outermost block. */
function blocksOf(tokens) {
  const blocks = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) blocks.push([]);
    blocks.at(-1).push(token);
  }
  return blocks;
}

function built(tokens) {
  const root = document.createDocumentFragment();
  build(tokens, root);
  return root;
}

function build(tokens, root) {
  let parent = root;
  for (const token of tokens) {
    if (token.type === "inline") build(token.children, parent);
    else if (token.hidden) continue; // a paragraph in a list without blank lines
    else if (token.nesting > 0) parent = opened(token, parent);
    else if (token.nesting < 0) parent = closed(parent);
    else parent.append(leaf(token));
  }
}

function opened(token, parent) {
  const made = document.createElement(tagOf(token.tag));
  if (token.tag === "a") {
    made.href = token.attrGet("href"); // markdown-it has rejected javascript: and similar schemes
    made.target = "_blank";
    made.rel = "noopener noreferrer nofollow";
  }
  if (token.tag === "ol") made.start = token.attrGet("start") ?? 1;
  if (token.attrGet("style")) made.style.textAlign = token.attrGet("style").split(":")[1];
  parent.append(token.tag === "table" ? scrolling("Table", made) : made);
  return made;
}

function closed(element) {
  const parent = element.parentNode;
  return element.tagName === "TABLE" ? parent.parentNode : parent;
}

function tagOf(tag) {
  const shown = tag.replace(/^h([1-6])$/, (_, n) => `h${Math.min(6, +n + HEADINGS_BELOW)}`);
  return TAGS.has(shown) ? shown : "span";
}

function leaf(token) {
  switch (token.type) {
    case "softbreak":
      return "\n";
    case "hardbreak":
    case "hr":
      return document.createElement(token.tag);
    case "code_inline":
      return element("code", "", token.content);
    case "fence":
    case "code_block":
      return code(token.content, token.info.trim().split(/\s/)[0]);
    default:
      return token.content;
  }
}

function code(text, language) {
  const figure = element("figure", "code");
  const head = element("figcaption", "", language || "text");
  const copy = element("button", "quiet", "Copy");
  copy.type = "button";
  copy.ariaLabel = "Copy this code";
  copy.addEventListener("click", () => copyText(text, copy));
  const box = element("pre");
  box.append(element("code", "", text));
  figure.append(head, copy, scrolling(`Code, ${language || "text"}`, box));
  return figure;
}

/** Returns a box that scrolls sideways, also by keyboard. */
function scrolling(name, content) {
  const box = element("div", "scrolling");
  box.tabIndex = 0;
  box.role = "group";
  box.ariaLabel = name;
  box.append(content);
  return box;
}
