#!/bin/bash
# All of `make bench-peers`. Keeps existing files in $WORK and continues interrupted rounds.
set -euo pipefail
here=$(dirname "$0")
python=${PYTHON:-python3}
work=${WORK:-build/peers}
results=$here/../results
text_model=${TEXT_MODEL:-$here/../../src/specqd/models/pycode-28m}
random_model=$work/models/llama-1g
smollm2=$work/models/smollm2-135m-instruct
prompts=${PROMPTS:+--prompts $PROMPTS}
chats=${CHATS:+--prompts $CHATS}
mkdir -p "$work/models" "$results"  # CPU: its name, where the system does not tell generations apart

[ -f "$random_model/config.json" ] || "$python" "$here/../make_random_model.py" "$random_model"
if [ ! -f "$smollm2/config.json" ]; then
    gguf=$("$python" "$here/../../tests/support/trained_models.py" smollm2)
    "$python" "$here/from_gguf.py" "$gguf" "$smollm2"
fi
for model in "$smollm2" "$random_model" "$text_model"; do
    "$python" "$here/prepare.py" "$model" --work "$work"
done

# The layout of memory makes a process faster or slower, so each sitting loads everything again.
measure() { # name sittings rounds experiment model options...
    local name=$1 sittings=$2 rounds=$3
    shift 3
    for sitting in $(seq "$sittings"); do
        "$python" "$here/run.py" "$@" --rounds $((sitting * rounds)) --work "$work" --raw "$work/$name.jsonl"
    done
    "$python" "$here/summary.py" "$work/$name.jsonl" --json "$results/$name.json" \
        ${CPU:+--cpu "$CPU"}
}
# shellcheck disable=SC2086
measure peers-chat 2 8 text "$smollm2" --new-tokens 96 --chat $chats
measure peers-decode 4 3 decode "$random_model" --new-tokens 32
measure peers-synthetic-0.8 2 3 synthetic "$random_model" --new-tokens 48 --acceptance 0.8
measure peers-synthetic-0.9 2 3 synthetic "$random_model" --new-tokens 48 --acceptance 0.9
# shellcheck disable=SC2086
measure peers-text 2 12 text "$text_model" --new-tokens 128 $prompts
"$python" "$here/plot.py" "$results"/peers-*.json --png "$here/../../docs/performance.png"
mkdir -p "$results/tables"
"$python" "$here/page.py" "$results" "$results/tables"
"$python" "$here/../../docs/scripts/tables.py" "$here/../../docs/performance.md"
