"""``hothead bench head``: how long an LM head of each vocabulary takes."""

from typing import Annotated

from hothead.cli.common import JsonOption, print_json, print_table, quiet_stdout
from hothead.cli.engine_options import DTYPES, check_device, option, require_torch
from hothead.errors import InputError


def bench_head(
    vocab_size: Annotated[int, option("V, rows of the full head.")] = 49152,
    hidden_size: Annotated[int, option("H, values per row.")] = 576,
    target: Annotated[str | None, option("Take the head of this model instead.", metavar="MODEL")] = None,
    sizes: Annotated[str, option("Rows of the pruned heads.", metavar="NUMBERS")] = "4096,8192,16384",
    slots: Annotated[int, option("Dynamic rows beside them.")] = 512,
    batch: Annotated[int, option("Hidden states per call.")] = 1,
    repeats: Annotated[int, option("Rounds; each times every head once.")] = 100,
    dtype: Annotated[str, option(f"{', '.join(DTYPES)}.", metavar="NAME")] = "bfloat16",
    device: Annotated[str, option("As torch names it.", metavar="NAME")] = "cpu",
    threads: Annotated[int | None, option("Of torch on the CPU; none: its own choice.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time LM heads: full, static, with slots, and the updates that keep them hot."""
    if dtype not in DTYPES:
        raise InputError(f"--dtype must be one of {', '.join(DTYPES)}; found {dtype!r}")
    if min(vocab_size, hidden_size) < 1 or (threads is not None and threads < 1):
        raise InputError("--vocab-size, --hidden-size and --threads must be at least 1")
    require_torch()
    import torch

    from hothead.bench import head as bench
    from hothead.bench.machine import this_machine, versions

    if threads is not None:
        torch.set_num_threads(threads)
    check_device(device)
    config = bench.HeadBenchConfig(bench.parse_sizes(sizes), slots, batch, repeats)
    with quiet_stdout(as_json):
        if target is None:
            lm_head = bench.random_lm_head(vocab_size, hidden_size, getattr(torch, dtype), device)
        else:
            from hothead.models.loading import load_target

            lm_head = load_target(target, dtype, device).lm_head
        timings = bench.bench_head(lm_head, config)
    machine = this_machine(device)
    if as_json:
        shape = list(lm_head.weight.shape)
        about = {"machine": machine.model_dump(), "versions": versions(), "dtype": dtype, "shape": shape}
        print_json({**about, "config": config, "timings": timings})
        return
    rows, width = lm_head.weight.shape
    ran_on = f"{machine.accelerator or machine.cpu}, {machine.threads} threads"
    title = f"LM head {rows} x {width}, {dtype}, batch {batch}, {ran_on}"
    print_table(("head", "rows", "us", "x full [95%]"), bench.rows_of(timings), title)
