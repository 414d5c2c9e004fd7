/** The browser's storage, or one that lasts until the page is closed where the browser forbids it. */

export const local = storage("localStorage");
export const session = storage("sessionStorage");

/** Returns the keys of all items. */
export const keysOf = (store) => Array.from({ length: store.length }, (_, at) => store.key(at));

function storage(name) {
  try {
    const found = window[name];
    found.getItem("");
    return found;
  } catch {
    return inMemory();
  }
}

function inMemory() {
  const items = new Map();
  return {
    getItem: (key) => items.get(key) ?? null,
    setItem: (key, text) => items.set(key, text),
    removeItem: (key) => items.delete(key),
    key: (at) => [...items.keys()][at] ?? null,
    get length() {
      return items.size;
    },
  };
}
