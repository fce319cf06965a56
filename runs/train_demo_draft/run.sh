#!/usr/bin/env bash
# Train the demo draft from nothing: bash run.sh. Every input is optional; give more for a better draft:
#   WORK       scratch folder (features need about 1.2 kB a token)
#   SELFCHAT   .npz of conversations (else the target writes its own: hours)
#   GSM8K      GSM8K training split, .parquet
#   TEXT_ROOT  root of unpacked Debian documentation packages (see README.md for their names)
#   SPEC_BENCH Spec-Bench question file: evaluation only
#   INIT       folder of a draft to go on from (else from a ridge regression)
#   PROCS      training processes, one a core; OUT where the draft goes
#   STEPS      optimizer steps of the first round; MORE_STEPS those of the second
set -euo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python}
WORK=${WORK:-./work}
PROCS=${PROCS:-$(nproc)}
STEPS=${STEPS:-800}
MORE_STEPS=${MORE_STEPS:-1600}
OUT=${OUT:-../../drafts/smollm2-135m-instruct-eagle}
SELFCHAT=${SELFCHAT:-$WORK/selfchat.npz}
mkdir -p "$WORK"

"$PYTHON" convert.py --out "$WORK/target"
[ -e "$SELFCHAT" ] || "$PYTHON" selfchat.py --target "$WORK/target" --out "$SELFCHAT"
[ -e "$WORK/prompts.jsonl" ] || "$PYTHON" prompts.py --target "$WORK/target" --out "$WORK/prompts.jsonl" \
    --selfchat "$SELFCHAT" ${GSM8K:+--gsm8k "$GSM8K"} ${TEXT_ROOT:+--text-root "$TEXT_ROOT"}

each() { # run one command in every process, as part i of PROCS
    local pids=() i
    for ((i = 0; i < PROCS; i++)); do "$@" --part "$i/$PROCS" & pids+=($!); done
    for i in "${pids[@]}"; do wait "$i"; done
}
each "$PYTHON" features.py --target "$WORK/target" --conversations "$SELFCHAT" --out "$WORK/shards"
each "$PYTHON" generate.py --target "$WORK/target" --prompts "$WORK/prompts.jsonl" --out "$WORK/shards" \
    --max-prompt 600

train() { # train.py with these arguments in every process
    local pids=() i
    rm -f "$WORK/meet"
    for ((i = 0; i < PROCS; i++)); do
        "$PYTHON" train.py --target "$WORK/target" --shards "$WORK/shards" "$@" \
            --rank "$i" --world "$PROCS" --rendezvous "$WORK/meet" &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i"; done
}
train --out "$WORK/run" --steps "$STEPS" ${INIT:+--init "$INIT"}
# Half the self-chat each epoch: the other prompts are fewer, and nearer to what users ask.
train --out "$WORK/run2" --init "$WORK/run/draft" --steps "$MORE_STEPS" --seed 4 \
    --lr 1.2e-3 --warmup 20 --decay 1.0 --single-steps 0 --selfchat-share 0.5
"$PYTHON" publish.py --draft "$WORK/run2/draft" --out "$OUT"
"$PYTHON" rank.py --shards "$WORK/shards" --output "$OUT/ranking.safetensors"

if [ -n "${SPEC_BENCH:-}" ]; then
    "$PYTHON" overlap.py --target "$WORK/target" --benchmark "$SPEC_BENCH" --shards "$WORK/shards"
    "$PYTHON" generate.py --target "$WORK/target" --benchmark "$SPEC_BENCH" --every 8 --out "$WORK/eval" \
        --max-new 128 --max-prompt 1900 --batch 10
    "$PYTHON" evaluate.py --target "$WORK/target" --draft "$OUT" --shards "$WORK/eval"
else
    echo "no SPEC_BENCH: not evaluated on it; held-out figures are in $WORK/run2/log.jsonl"
fi
