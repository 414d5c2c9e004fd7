/** Speed of one answer, from the server's clock and its counts of the levels' work. */

export class Meter {
  tokens = 0;
  byDepth = []; // tokens by the depth of their first proposer
  #early = 0; // tokens of the first chunk, which the clock and the counts do not include
  #progress = null;

  /** Adds a chunk: its tokens' depths, and the progress since the first chunk. */
  add(depths, progress) {
    if (!this.#progress) this.#early = depths.length;
    this.#progress = progress;
    this.tokens += depths.length;
    for (const depth of depths) this.byDepth[depth] = (this.byDepth[depth] ?? 0) + 1;
  }

  /** Whether the counts include other requests. */
  get isShared() {
    return this.#progress?.is_shared ?? false;
  }

  get tokensPerSecond() {
    const seconds = this.#progress?.seconds ?? 0;
    return seconds > 0 ? (this.tokens - this.#early) / seconds : null;
  }

  /** The share of its drafter's tokens that a level accepted. */
  acceptance(name) {
    const level = this.#progress?.levels.find((each) => each.name === name);
    return level?.drafted > 0 ? level.accepted / level.drafted : null;
  }

  /** All levels' forwards together: GB/s, and as a share the time that their bytes need at the
   * measured bandwidth over the time they took. limits: GB/s by level. */
  traffic(limits) {
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
