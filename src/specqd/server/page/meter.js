/** Speed of one run, from the server's clock and its counts of the levels' work. */

/** A run without tokens. asked: the settings of its request; chain: the levels' names. */
export const newRun = (name, chain, asked) => ({
  name,
  chain,
  asked,
  ids: [],
  tokens: [], // {text, depth, probability}
  steps: [], // [seconds since the first tokens, tokens by then], one an event
  answer: "",
  thought: "", // the reasoning before it
  ending: null,
  problem: null,
  progress: null, // the latest
});

export class Meter {
  constructor(run) {
    this.run = run;
  }

  get tokens() {
    return this.run.tokens.length;
  }

  /** Tokens by the depth of their first proposer. */
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

  /** Tokens after the first event's, over the time since. */
  get tokensPerSecond() {
    return this.seconds > 0 ? (this.tokens - this.run.steps[0][1]) / this.seconds : null;
  }

  /** The share of its drafter's tokens that a level accepted. */
  acceptance(name) {
    const level = this.run.progress?.levels.find((each) => each.name === name);
    return level?.drafted > 0 ? level.accepted / level.drafted : null;
  }

  /** All levels' forwards together: GB/s, and as a share the time that their bytes need at the
   * measured bandwidth over the time they took. limits: GB/s by level. */
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
