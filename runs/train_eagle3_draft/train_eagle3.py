"""Train the EAGLE-3 draft: distillation from stored taps with an unrolled chain and no feature loss, data parallel.

Start one process a core, as `../train_demo_draft/train.py` is started. It resumes from its checkpoint, reads new shards
at each epoch, and logs JSON lines.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from batches import Batch, Extent, collate, plan_epoch
from draft import DraftConfig
from eagle3 import Eagle3, load_eagle3, save_eagle3
from evaluate import draft_chains, summarise
from losses import ColumnSampler, draft_loss, soft_labels
from safetensors.torch import load_file
from shards import Example
from taps import TAPS
from target import load_embedding, read_config
from torch import Tensor, nn
from train import Groups, average_gradients, load_groups, lr_factor, optimizers, save_checkpoint
from warm import warm_config, warm_state

from hothead.ranking.ranking import TokenRanking
from hothead.vocab import DraftVocab

# The target's states at the very first positions are hundreds of times as large as elsewhere (attention sinks).
SINK_POSITIONS = 4
SAMPLE_TOKENS = 40_000


def past_sinks(item: Extent) -> Extent:
    """The extent without the positions that are not trained."""
    cut = max(0, SINK_POSITIONS - item.prefix)
    return replace(item, prefix=item.prefix + cut, span=item.span - cut)


@dataclass(frozen=True)
class Sample:
    """Some positions t: taps [n, 3 * H], features [n, H] at t and at t + 1, embeddings [n, H] of x[t+1]; float32."""

    taps: Tensor
    features: Tensor
    next_features: Tensor
    next_embeds: Tensor

    @classmethod
    def of(cls, items: list[Extent], embedding: Tensor) -> Sample:
        """From the first items, about `SAMPLE_TOKENS` positions."""
        count, seen = 0, 0
        while seen < SAMPLE_TOKENS and count < len(items):
            seen += len(items[count].example)
            count += 1
        examples = [item.example for item in items[:count]]
        here, following = slice(SINK_POSITIONS, -1), slice(SINK_POSITIONS + 1, None)
        return cls(
            torch.cat([e.inputs[here] for e in examples]).float(),
            torch.cat([e.features[here] for e in examples]).float(),
            torch.cat([e.features[following] for e in examples]).float(),
            embedding[torch.cat([e.ids[following] for e in examples])].float(),
        )


@torch.no_grad()
def ridge_start(draft: Eagle3, sample: Sample, norm: Tensor) -> None:
    """Set `fc` to the best linear map from the taps to the next position's state, which the final norm makes f."""
    x, y = sample.taps / draft.tap_scale, sample.next_features / norm
    xx = x.T @ x + 0.01 * len(x) * torch.eye(x.shape[1])
    draft.fc.weight.copy_(torch.linalg.solve(xx, x.T @ y).T)
    draft.head_norm.copy_(norm)


def forward_loss(
    draft: Eagle3, batch: Batch, embedding: Tensor, sampler: ColumnSampler, steps: int, args: argparse.Namespace
) -> tuple[Tensor, list[float]]:
    """Return the loss over chain steps 1..`steps` and each step's cross entropy."""
    keep = batch.weight > 0
    columns = sampler.draw(batch.next_ids)
    head = embedding[columns[torch.tensor(draft.vocab.t2d)[columns]]]
    wanted = batch.wanted[keep]
    labels = soft_labels(wanted, head, args.hard)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = draft.unroll(embedding[batch.next_ids], batch.features, batch.pad, batch.span, steps)
    total, ces = torch.zeros(()), []
    for j, out in enumerate(outputs):
        weight = batch.weight.clone()
        weight[:, :j] = 0
        read = draft.head_input(out[keep])
        loss, ce, _ = draft_loss(read, wanted, head, labels, weight[keep], args.feature_weight)
        total = total + args.step_weight**j * loss
        ces.append(round(ce, 4))
    return total, ces


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="converted target (see target.py)")
    add("--shards", type=Path, required=True, help="folder of shards with taps")
    add("--ranking", type=Path, required=True, help="token ranking that the draft vocabulary is chosen by")
    add("--out", type=Path, required=True, help="folder for checkpoint, log and draft")
    add("--init-eagle", type=Path, help="EAGLE-1 draft's model.safetensors to start from (warm.py)")
    add("--init", type=Path, help="folder of an EAGLE-3 draft to go on from; its vocabulary is kept")
    add("--vocab-size", type=int, default=16384, help="rows of the draft's head")
    add("--kv-heads", type=int, default=9, help="without --init-eagle; with it, 18 heads have keys of their own")
    add("--steps", type=int, default=1200, help="optimizer steps")
    add("--span-tokens", type=int, default=3072, help="trained positions in a batch")
    add("--lr", type=float, default=2e-3)
    add("--weight-decay", type=float, default=0.05)
    add("--warmup", type=int, default=20)
    add("--decay", type=float, default=0.96, help="last part of the steps in which the rate falls to zero")
    add("--unroll", type=int, default=2, help="chain steps trained")
    add("--single-steps", type=int, default=300, help="optimizer steps trained with chain step 1 only")
    add("--step-weight", type=float, default=0.8, help="weight of each chain step relative to the one before")
    add("--hard", type=float, default=0.3, help="share of the target's argmax in the labels")
    add("--feature-weight", type=float, default=0.0, help="weight of a feature loss; EAGLE-3 has none")
    add("--intermediate", type=int, default=1536)
    add("--frequent", type=int, default=2048, help="head columns always in the loss")
    add("--others", type=int, default=256, help="random head columns in the loss")
    add("--context", type=int, default=64, help="positions before the answer that are trained too")
    add("--context-weight", type=float, default=0.5)
    add("--max-span", type=int, default=420)
    add("--selfchat-share", type=float, default=1.0, help="part of the self-chat taken in each epoch")
    add("--max-shards", type=int)
    add("--log-every", type=int, default=20)
    add("--eval-every", type=int, default=150)
    add("--eval-examples", type=int, default=32)
    add("--seed", type=int, default=0)
    add("--rank", type=int, default=0)
    add("--world", type=int, default=1)
    add("--rendezvous", type=Path, help="file the processes meet at")
    args = parser.parse_args()
    args.optimizer = "muon"
    return args


class Trainer:
    """The state of one training process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.target = read_config(args.target)
        self.embedding = load_embedding(args.target)
        self.draft = self.new_draft()
        self.opts = optimizers(self.draft, args)
        self.checkpoint = args.out / "checkpoint.pt"
        self.step = self.positions = 0
        self.resume()
        self.rng = random.Random(args.seed + self.step)
        torch.manual_seed(args.seed + 1000 * self.step + args.rank)
        self.log = (args.out / "log.jsonl").open("a") if args.rank == 0 else None
        self.started = time.perf_counter()

    def new_draft(self) -> Eagle3:
        """Of the sizes that were asked for."""
        args, config = self.args, DraftConfig.like(self.target, self.args.intermediate)
        if args.init:
            return load_eagle3(args.init, config)
        ranking = TokenRanking.load(args.ranking)
        vocab = DraftVocab.from_ranking(ranking, size=args.vocab_size, target_vocab_size=self.target.vocab_size)
        config = warm_config(config) if args.init_eagle else replace(config, num_kv_heads=args.kv_heads)
        return Eagle3(config, vocab, torch.ones(len(TAPS) * self.target.hidden_size))

    def resume(self) -> None:
        """Load the checkpoint if there is one."""
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        self.draft.load_state_dict(state["draft"])
        for opt, saved in zip(self.opts, state["opts"], strict=True):
            opt.load_state_dict(saved)
        self.step, self.positions = state["step"], state["tokens"]

    def write(self, **row: object) -> None:
        """Append a row to the log (the first process only)."""
        if self.log:
            self.log.write(json.dumps(row) + "\n")
            self.log.flush()

    def start(self, groups: Groups) -> None:
        """Set what is not drawn at random: scales, `fc` and the norm before the head."""
        order = groups.train[:]
        self.rng.shuffle(order)
        sample = Sample.of(order, self.embedding)
        self.draft.tap_scale.copy_(sample.taps.pow(2).mean(0).sqrt().clamp_min(1e-3))
        if self.args.init:
            self.draft.load_public_state(load_file(self.args.init / "model.safetensors"))
        elif self.args.init_eagle:
            eagle, like = load_file(self.args.init_eagle), DraftConfig.like(self.target, self.args.intermediate)
            taps = sample.taps / self.draft.tap_scale
            state = warm_state(eagle, like, taps, sample.features, sample.next_embeds)
            self.draft.load_state_dict(state | {"tap_scale": self.draft.tap_scale})
        else:
            norm = load_file(self.args.target / "model.safetensors")["model.norm.weight"].float()
            ridge_start(self.draft, sample, norm)

    def epoch(self) -> None:
        """Read the shards there are and go once over them."""
        args = self.args
        if args.world > 1:
            dist.barrier()
        groups = load_groups(args.shards, self.target.vocab_size, args)
        sampler = ColumnSampler(groups.counts, args.frequent, args.others, args.seed + self.step + args.rank)
        if self.step == 0:
            self.start(groups)
        held = [e for e in groups.held_out if len(e) - e.answer_start > 8]
        random.Random(0).shuffle(held)
        kept = [x for x in groups.train if x.example.source != "selfchat" or self.rng.random() < args.selfchat_share]
        batches = plan_epoch([past_sinks(x) for x in kept], args.span_tokens, self.rng)
        self.write(
            event="epoch", step=self.step, examples=len(kept), held_out=len(held),
            batches=len(batches), positions=sum(x.span for x in kept),
        )  # fmt: skip
        for at in range(args.rank, len(batches) - len(batches) % args.world, args.world):
            if self.step >= args.steps:
                return
            self.train_step(collate(batches[at], args.context_weight), sampler)
            last = self.step == args.steps
            if self.log and (self.step % args.eval_every == 0 or last):
                self.check(held if last else held[: args.eval_examples])

    def train_step(self, batch: Batch, sampler: ColumnSampler) -> None:
        """One optimizer step."""
        args = self.args
        unroll = 1 if self.step < args.single_steps else args.unroll
        loss, ces = forward_loss(self.draft, batch, self.embedding, sampler, unroll, args)
        for opt in self.opts:
            opt.zero_grad(set_to_none=True)
        loss.backward()
        if args.world > 1:
            average_gradients(self.draft, args.world)
        norm = float(nn.utils.clip_grad_norm_(self.draft.parameters(), 10.0))
        rate = args.lr * lr_factor(self.step, args)
        for opt in self.opts:
            for group in opt.param_groups:
                group["lr"] = rate
            opt.step()
        self.step += 1
        self.positions += int((batch.weight > 0).sum()) * args.world
        if self.step % args.log_every == 0 or self.step == 1:
            self.write(
                step=self.step, tokens=self.positions, lr=round(rate, 7), ce=ces, grad_norm=round(norm, 3),
                seconds=round(time.perf_counter() - self.started, 1),
            )  # fmt: skip

    def check(self, held: list[Example]) -> None:
        """Evaluate on held-out examples, and save the checkpoint and the draft."""
        result = summarise([draft_chains(self.draft, self.embedding, e, 4) for e in held])
        self.write(event="held_out", step=self.step, tokens=self.positions, examples=len(held), **result)
        print(self.step, self.positions, round(time.perf_counter() - self.started), result, flush=True)
        save_checkpoint(self.checkpoint, self.draft, self.opts, self.step, self.positions)
        about = {"steps": str(self.step), "positions": str(self.positions)}
        save_eagle3(self.draft, self.args.out / "draft", self.args.target, self.embedding, about)


def main() -> None:
    """Train."""
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.world > 1:
        meet = f"file://{args.rendezvous.resolve()}"
        dist.init_process_group("gloo", init_method=meet, rank=args.rank, world_size=args.world)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args)
    options = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}
    trainer.write(event="start", step=trainer.step, **options)
    while trainer.step < args.steps:
        trainer.epoch()
    if args.world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
