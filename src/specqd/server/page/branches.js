/** Versions of a message. An edited message begins another branch of the chat: the turns from there
 * on. Knows no elements.
 *
 * The first turn of a branch has a fork {tails, at} if there are several: the turns of each branch,
 * and which one is shown. The shown one is null in it, because its turns are in the chat. */

/** Begins another branch at `index`, with this turn. */
export function branch(turns, index, turn) {
  const fork = turns[index].fork ?? { tails: [null], at: 0 };
  show(turns, index, fork, fork.tails.push([turn]) - 1);
}

/** Shows the branch that is `steps` further. */
export function step(turns, index, steps) {
  const { fork } = turns[index];
  show(turns, index, fork, fork.at + steps);
}

/** Drops the shown branch, which is the last one, and shows another. */
export function withdraw(turns, index, version) {
  const { fork } = turns[index];
  show(turns, index, fork, version);
  fork.tails.pop();
  if (fork.tails.length === 1) delete turns[index].fork;
}

function show(turns, index, fork, version) {
  const tail = turns.splice(index);
  delete tail[0].fork;
  fork.tails[fork.at] = tail;
  turns.push(...fork.tails[version]);
  fork.tails[version] = null;
  fork.at = version;
  turns[index].fork = fork;
}
