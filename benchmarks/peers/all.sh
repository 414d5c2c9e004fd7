#!/bin/bash
# All of `make bench-peers`: what exists in $WORK is not made again, and rounds go on where they stopped.
set -euo pipefail
here=$(dirname "$0")
python=${PYTHON:-python3}
work=${WORK:-build/peers}
results=$here/../results
text_model=${TEXT_MODEL:-$here/../../src/specqd/models/pycode-28m}
random_model=$work/models/llama-1g
prompts=${PROMPTS:+--prompts $PROMPTS}
mkdir -p "$work/models" "$results"

[ -f "$random_model/config.json" ] || "$python" "$here/../make_random_llama.py" "$random_model"
for model in "$random_model" "$text_model"; do
    "$python" "$here/prepare.py" "$model" --work "$work"
done

measure() { # name experiment model options...
    local name=$1
    shift
    "$python" "$here/run.py" "$@" --work "$work" --raw "$work/$name.jsonl"
    "$python" "$here/summary.py" "$work/$name.jsonl" --json "$results/$name.json"
}
measure peers-decode decode "$random_model" --rounds 7 --new-tokens 32
measure peers-synthetic-0.8 synthetic "$random_model" --acceptance 0.8 --rounds 7 --new-tokens 48
measure peers-synthetic-0.9 synthetic "$random_model" --acceptance 0.9 --rounds 7 --new-tokens 48
# shellcheck disable=SC2086
measure peers-text text "$text_model" --rounds 24 --new-tokens 128 $prompts
"$python" "$here/plot.py" "$results"/peers-*.json --png "$here/../../docs/performance.png"
