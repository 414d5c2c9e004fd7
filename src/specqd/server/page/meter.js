/** Computes the speed of a run from the server's clock and its counts of the levels' work. */

/** Returns a run without tokens. asked: the settings of its request. chain: the levels' names. */
export const newRun = (name, chain, asked) => ({
  name,
  chain,
  asked,
  ids: [],
  tokens: [], // {text, depth, probability}
  steps: [], // [seconds since the first tokens, tokens by then] per event
  answer: "",
  thought: "", // the reasoning before the answer
  ending: null,
  problem: null,
  progress: null, // the latest `progress` of the stream
  reading: null, // its latest `prompt_progress`, until the first token
});

export class Meter {
  constructor(run) {
    this.run = run;
  }

  get tokens() {
    return this.run.tokens.length;
  }

  /** The number of tokens that each level proposed first, by its depth. */
  get byDepth() {
    const found = this.run.chain.map(() => 0);
    for (const { depth } of this.run.tokens) found[depth] += 1;
    return found;
  }

  /** Whether the counts include other requests. */
  get isShared() {
    return this.run.progress?.is_shared ?? false;
  }

  get seconds() {
    return this.run.progress?.seconds ?? 0;
  }

  /** The number of tokens after the first event, divided by the time since. */
  get tokensPerSecond() {
    return this.seconds > 0 ? (this.tokens - this.run.steps[0][1]) / this.seconds : null;
  }

  /** The share of drafted tokens that a level accepted, or null. */
  acceptance(name) {
    const level = this.run.progress?.levels.find((each) => each.name === name);
    return level?.drafted > 0 ? level.accepted / level.drafted : null;
  }

  /** The share of the text so far that a level's forwards read, or null: drafts of long texts leave
   * parts out. */
  shareRead(name) {
    const level = this.run.progress?.levels.find((each) => each.name === name);
    return level?.whole_cache_gigabytes > 0
      ? level.cache_gigabytes / level.whole_cache_gigabytes
      : null;
  }

  /** Returns the GB/s of all levels' forwards together, and their share of the bandwidth: the time
   * that their bytes need at the measured bandwidth, divided by the time that they took. limits:
   * GB/s by level. */
  traffic(limits) {
    let [gigabytes, seconds, needed] = [0, 0, 0];
    for (const level of this.run.progress?.levels ?? []) {
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
