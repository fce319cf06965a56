#!/usr/bin/env bash
# Train the EAGLE-3 draft, after ../train_demo_draft/run.sh, in whose WORK folder the target and its answers lie.
#   WORK       that folder (what is added needs about 4.6 kB a token)
#   NAMES      shards to train on, in order (globs); the more, the better
#   STEPS      optimizer steps
#   PROCS      training processes, one a core
#   SPEC_BENCH Spec-Bench's answers were made there too if it was given: evaluation only
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONPATH="$PWD/../train_demo_draft${PYTHONPATH:+:$PYTHONPATH}" # whose modules these scripts build on
PYTHON=${PYTHON:-python}
WORK=${WORK:-../train_demo_draft/work}
NAMES=${NAMES:-"qa-* requests-* math-* translation-* rag-* summarization-* selfchat-000? selfchat-001[01]"}
STEPS=${STEPS:-1300}
PROCS=${PROCS:-$(nproc)}
EAGLE1=../../drafts/smollm2-135m-instruct-eagle
OUT=${OUT:-../../drafts/smollm2-135m-instruct-eagle3}

# shellcheck disable=SC2086
"$PYTHON" taps.py --target "$WORK/target" --shards "$WORK/shards" --names $NAMES --out "$WORK/eagle3/shards"
rm -f "$WORK/eagle3/meet"
pids=()
for ((i = 0; i < PROCS; i++)); do
    "$PYTHON" train_eagle3.py --target "$WORK/target" --shards "$WORK/eagle3/shards" --out "$WORK/eagle3/run" \
        --ranking "$EAGLE1/ranking.safetensors" --init-eagle "$EAGLE1/model.safetensors" \
        --steps "$STEPS" --unroll 3 --lr 1.2e-3 --decay 1.0 --single-steps 0 --eval-every 60 \
        --rank "$i" --world "$PROCS" --rendezvous "$WORK/eagle3/meet" &
    pids+=($!)
done
for i in "${pids[@]}"; do wait "$i"; done
"$PYTHON" ../train_demo_draft/publish.py --draft "$WORK/eagle3/run/draft" --out "$OUT" \
    --method "EAGLE-3, one layer, started from the EAGLE-1 demo draft" --no-index

if [ -d "$WORK/eval" ]; then
    "$PYTHON" taps.py --target "$WORK/target" --shards "$WORK/eval" --out "$WORK/eagle3/eval"
    "$PYTHON" evaluate_eagle3.py --target "$WORK/target" --draft "$OUT" --shards "$WORK/eagle3/eval"
else
    echo "no $WORK/eval: not evaluated on Spec-Bench; held-out figures are in $WORK/eagle3/run/log.jsonl"
fi
