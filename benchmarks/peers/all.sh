#!/bin/bash
# All of `make bench-peers`. Keeps existing files in $WORK and continues interrupted rounds.
# EXPERIMENTS names some; LIMIT, MINUTES and NEW_TOKENS bound `formats` and `long`. The
# latter is only measured if it is named, with CHATS from benchmarks/long_prompts.py.
set -euo pipefail
here=$(dirname "$0")
python=${PYTHON:-python3}
work=${WORK:-build/peers}
results=$here/../results
experiments=" ${EXPERIMENTS:-chat decode synthetic-0.8 synthetic-0.9 text formats} "
text_model=${TEXT_MODEL:-$here/../../src/specqd/models/pycode-28m}
random_model=$work/models/llama-1g
smollm2=$work/models/smollm2-135m-instruct
qwen=$work/models/qwen2.5-coder-1.5b-instruct
small=$work/models/qwen2.5-coder-0.5b-instruct
read -ra prompts <<<"${PROMPTS:-}"
read -ra chats <<<"${CHATS:-}"
mkdir -p "$work/models" "$results/tables"

wants() { # any of these experiments
    local name
    for name in "$@"; do [[ $experiments == *" $name "* ]] && return; done
    return 1
}

gguf_of() { # the public GGUF file of a model, fetched once
    "$python" "$here/../../tests/support/trained_models.py" "$(basename "${1%-instruct}")"
}

from_gguf() { # a model of $work/models
    [ -f "$1/config.json" ] || "$python" "$here/from_gguf.py" "$(gguf_of "$1")" "$1"
}

prepare() { # model options...
    "$python" "$here/prepare.py" "$@" --work "$work"
}

# The layout of memory makes a process faster or slower, so each sitting loads everything again.
measure() { # name sittings rounds experiment model options...
    local name=$1 sittings=$2 rounds=$3
    shift 3
    wants "$name" || return 0
    prepare "$2"
    for sitting in $(seq "$sittings"); do
        "$python" "$here/run.py" "$@" --rounds $((sitting * rounds)) --work "$work" --raw "$work/peers-$name.jsonl"
    done
    summarise "$name" "$work/peers-$name.jsonl"
}

summarise() { # name raw... ; CPU: its name, where the system does not tell generations apart
    local name=$1
    shift
    "$python" "$here/summary.py" "$@" --json "$results/peers-$name.json" ${CPU:+--cpu "$CPU"}
}

# The arms of one width in memory at a time, each time with ours. The fast ones get the most prompts.
formats() { # width prompts-of-each-set percent-of-MINUTES arm...
    local width=$1 limit=$2 percent=$3 sets only=()
    shift 3
    for arm in "$@"; do only+=(--only "$arm"); done
    sets=$((${#prompts[@]} + ${#chats[@]}))
    [ ${#prompts[@]} -gt 0 ] || sets=$((sets + 1))
    [ ${#chats[@]} -gt 0 ] || sets=$((sets + 1))
    "$python" "$here/run.py" formats "$qwen" "${only[@]}" --work "$work" \
        --raw "$work/peers-formats-$width.jsonl" --rounds $((limit * sets)) --new-tokens "${NEW_TOKENS:-128}" \
        --prompts "${prompts[@]}" --chats "${chats[@]}" \
        ${MINUTES:+--minutes $((MINUTES * percent / 100))}
}

if wants chat; then from_gguf "$smollm2"; fi
if wants decode synthetic-0.8 synthetic-0.9 && [ ! -f "$random_model/config.json" ]; then
    "$python" "$here/../make_random_model.py" "$random_model"
fi
measure chat 2 8 text "$smollm2" --new-tokens 96 --chats "${chats[@]}"
measure decode 4 3 decode "$random_model" --new-tokens 32
measure synthetic-0.8 2 3 synthetic "$random_model" --new-tokens 48 --acceptance 0.8
measure synthetic-0.9 2 3 synthetic "$random_model" --new-tokens 48 --acceptance 0.9
measure text 2 12 text "$text_model" --new-tokens 128 --prompts "${prompts[@]}"
if wants formats; then
    from_gguf "$small"
    from_gguf "$qwen"
    prepare "$small" --gguf "$(gguf_of "$small")" --formats q4_k_m.gguf openvino-int4 packed
    prepare "$qwen" --gguf "$(gguf_of "$qwen")" --small "$small" --formats \
        q4_k_m.gguf q8_0.gguf bf16.gguf openvino-int4 openvino-int8 openvino-bf16 packed
    limit=${LIMIT:-12}
    few=$(((limit + 2) / 3))
    formats 4bit "$limit" 55 "llama.cpp q4_k_m" "openvino int4" "specqd packed +"
    formats 8bit "$few" 15 "llama.cpp q8_0" "openvino int8" "specqd packed + auto" "specqd packed + small"
    formats bf16 "$few" 30 "llama.cpp bf16" "openvino bf16" "specqd packed"
    summarise formats "$work"/peers-formats-{4bit,8bit,bf16}.jsonl
    "$python" "$here/plot.py" "$results/peers-formats.json" --png "$here/../../docs/formats.png"
fi
if wants long; then
    from_gguf "$small"
    prepare "$small" --gguf "$(gguf_of "$small")" --formats q4_k_m.gguf bf16.gguf packed
    "$python" "$here/run.py" long "$small" --work "$work" --raw "$work/peers-long.jsonl" \
        --rounds "${LIMIT:-5}" --new-tokens "${NEW_TOKENS:-128}" --chats "${chats[@]}" \
        ${MINUTES:+--minutes "$MINUTES"}
    summarise long "$work/peers-long.jsonl"
fi
if wants chat decode synthetic-0.8 synthetic-0.9 text; then
    "$python" "$here/plot.py" "$results"/peers-{chat,decode,synthetic-0.8,synthetic-0.9,text}.json \
        --png "$here/../../docs/performance.png"
fi
"$python" "$here/page.py" "$results" "$results/tables"
"$python" "$here/../../docs/scripts/tables.py" "$here/../../docs/performance.md" "$here/../../README.md"
