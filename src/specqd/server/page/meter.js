/** How fast one answer is written, by the server's clock and its count of what the levels did. */

export class Meter {
  tokens = 0;
  byDepth = []; // tokens
  #early = 0; // tokens that came first: the clock and the counts begin with them
  #progress = null;

  /** What a chunk brought: the depths of its tokens, and what was done since the first of all. */
  add(depths, progress) {
    if (!this.#progress) this.#early = depths.length;
    this.#progress = progress;
    this.tokens += depths.length;
    for (const depth of depths) this.byDepth[depth] = (this.byDepth[depth] ?? 0) + 1;
  }

  /** Whether the levels worked for other requests, too. */
  get isShared() {
    return this.#progress?.is_shared ?? false;
  }

  get tokensPerSecond() {
    const seconds = this.#progress?.seconds ?? 0;
    return seconds > 0 ? (this.tokens - this.#early) / seconds : null;
  }

  /** Of what was drafted for a level, the share that it accepted. */
  acceptance(name) {
    const level = this.#progress?.levels.find((each) => each.name === name);
    return level?.drafted > 0 ? level.accepted / level.drafted : null;
  }

  /** The levels' forwards together: GB/s, and the time that the bandwidth would need for their
   * bytes as a share of the time they took. limits: GB/s by level. */
  reading(limits) {
    let [gigabytes, seconds, needed] = [0, 0, 0];
    for (const level of this.#progress?.levels ?? []) {
      const limit = limits[level.name];
      if (!limit) continue;
      const moved = level.gigabytes + level.cache_gigabytes;
      gigabytes += moved;
      seconds += level.seconds;
      needed += moved / limit;
    }
    return seconds > 0 ? { speed: gigabytes / seconds, share: needed / seconds } : null;
  }
}
