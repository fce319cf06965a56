"""Run a draft GGUF in llama.cpp itself: ``python llama_logits.py DRAFT OUT.npy V`` writes logits, float32 [3, V].

A program of its own, because llama.cpp ends the process when a graph does not fit its tensors.
"""

import ctypes
import sys

import llama_cpp
import numpy as np

TARGET_IDS = (5, 7, 9)


def logits(path: str, width: int) -> np.ndarray:
    """The draft's logits after three tokens with random features, [3, width]."""
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp does not load it")
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch = 64, 16
    parameters.n_threads = parameters.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(model, parameters)
    count, size = len(TARGET_IDS), llama_cpp.llama_model_n_embd(model)
    features = np.random.default_rng(2).standard_normal((count, size)).astype(np.float32)
    ids = (ctypes.c_int32 * count)(*TARGET_IDS)
    batch = llama_cpp.llama_batch_init(count, size, 1)
    batch.n_tokens = count
    batch.token = ctypes.cast(ids, type(batch.token))
    ctypes.memmove(batch.embd, features.ctypes.data, features.nbytes)
    for index in range(count):
        batch.pos[index], batch.n_seq_id[index], batch.logits[index] = index, 1, 1
        batch.seq_id[index][0] = 0
    if llama_cpp.llama_decode(context, batch) != 0:
        sys.exit("llama.cpp does not run it")
    rows = (llama_cpp.llama_get_logits_ith(context, index) for index in range(count))
    return np.stack([np.ctypeslib.as_array(row, (width,)).copy() for row in rows])


if __name__ == "__main__":
    np.save(sys.argv[2], logits(sys.argv[1], int(sys.argv[3])))
