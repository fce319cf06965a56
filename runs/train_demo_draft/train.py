"""Train the draft: distillation from stored features with an unrolled chain, data parallel (gloo).

Start one process a core, each with its `--rank`, and the same `--world` and `--rendezvous` file.
It resumes from its checkpoint, reads new shards at each epoch, and logs JSON lines.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from batches import Batch, Extent, collate, extents, plan_epoch
from draft import Draft, DraftConfig, save_draft
from evaluate import draft_chains, summarise
from losses import ColumnSampler, draft_loss, soft_labels
from safetensors.torch import load_file
from shards import Example, read_shard
from target import load_embedding, read_config
from torch import Tensor, nn


@dataclass(frozen=True)
class Groups:
    """A training set and the held-out examples."""

    train: list[Extent]
    held_out: list[Example]
    counts: Tensor


def load_groups(folder: Path, vocab: int, args: argparse.Namespace) -> Groups:
    """Read shards; count next tokens for the column sampler."""
    train, held, counts = [], [], torch.zeros(vocab, dtype=torch.long)
    for path in sorted(folder.glob("*.safetensors"))[: args.max_shards]:
        for e in read_shard(path):
            if len(e) - e.answer_start < 2:
                continue
            if e.held_out():
                held.append(e)
            else:
                train.append(e)
                counts += torch.bincount(e.ids[e.answer_start :], minlength=vocab)
    return Groups(extents(train, args.context, args.max_span), held, counts)


@torch.no_grad()
def ridge_start(draft: Draft, items: list[Extent], embedding: Tensor, tokens: int = 60_000) -> None:
    """Set `fc` to the best linear map from (embedding, feature) to the next feature."""
    h = draft.config.hidden_size
    xx, xy, seen = torch.zeros(2 * h, 2 * h), torch.zeros(2 * h, h), 0
    for item in items:
        e = item.example
        x = torch.cat((embedding[e.ids[1:]].float() / draft.embed_scale, e.features[:-1].float()), -1)
        xx, xy, seen = xx + x.T @ x, xy + x.T @ e.features[1:].float(), seen + len(x)
        if seen > tokens:
            break
    xx += 0.01 * seen * torch.eye(2 * h)
    draft.fc.weight.copy_(torch.linalg.solve(xx, xy).T)


def forward_loss(
    draft: Draft,
    batch: Batch,
    embedding: Tensor,
    sampler: ColumnSampler,
    steps: int,
    args: argparse.Namespace,
) -> tuple[Tensor, list[float], list[float]]:
    """Return the loss over chain steps 1..`steps` and each step's cross entropy and feature loss."""
    embeds = embedding[batch.next_ids] * (1.0 / draft.embed_scale)
    features = batch.features
    if args.noise:
        features = features + args.noise * torch.randn_like(features)
    if args.dropout:
        keep = torch.rand(features.shape[:2]) >= args.dropout
        features = features * keep[..., None]
    keep = batch.weight > 0
    head = embedding[sampler.draw(batch.next_ids)]
    wanted = batch.wanted[keep]
    labels = soft_labels(wanted, head, args.hard)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = draft.unroll(embeds, features, batch.pad, batch.span, steps)
    total, ces, distances = torch.zeros(()), [], []
    for j, out in enumerate(outputs):
        weight = batch.weight.clone()
        weight[:, :j] = 0
        loss, ce, distance = draft_loss(out[keep], wanted, head, labels, weight[keep], args.feature_weight)
        total = total + args.step_weight**j * loss
        ces.append(round(ce, 4))
        distances.append(round(distance, 4))
    return total, ces, distances


def optimizers(draft: Draft, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for matrices and AdamW for the norm, or AdamW for all."""
    matrices = [p for p in draft.parameters() if p.ndim == 2]
    rest = [p for p in draft.parameters() if p.ndim < 2]
    if args.optimizer == "adamw":
        return [torch.optim.AdamW(matrices + rest, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay)]
    muon = torch.optim.Muon(matrices, lr=args.lr, weight_decay=args.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)]


def lr_factor(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, flat, then linear to zero over the last `decay` of the steps."""
    warm = min(1.0, (step + 1) / args.warmup)
    return warm * min(1.0, max(0.0, (args.steps - step) / (args.decay * args.steps)))


def average_gradients(draft: nn.Module, world: int) -> None:
    """All-reduce the mean gradient."""
    grads = [p.grad for p in draft.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= world
    for g, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        g.copy_(part.view_as(g))


def save_checkpoint(path: Path, draft: Draft, opts: list[torch.optim.Optimizer], step: int, tokens: int) -> None:
    """Write everything needed to go on, atomically."""
    state = {
        "draft": draft.state_dict(),
        "opts": [o.state_dict() for o in opts],
        "step": step,
        "tokens": tokens,
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--target", type=Path, required=True, help="converted target (see target.py)")
    add("--shards", type=Path, required=True, help="folder of shards")
    add("--out", type=Path, required=True, help="folder for checkpoint, log and draft")
    add("--init", type=Path, help="folder of a draft to go on from; otherwise the start is a ridge regression")
    add("--steps", type=int, default=800, help="optimizer steps")
    add("--span-tokens", type=int, default=3072, help="trained positions in a process's batch")
    add("--optimizer", choices=("muon", "adamw"), default="muon")
    add("--lr", type=float, default=2e-3)
    add("--weight-decay", type=float, default=0.05)
    add("--warmup", type=int, default=30)
    add("--decay", type=float, default=0.96, help="last part of the steps in which the rate falls to zero")
    add("--unroll", type=int, default=2, help="chain steps trained")
    add("--single-steps", type=int, default=400, help="optimizer steps trained with chain step 1 only")
    add("--step-weight", type=float, default=0.8, help="weight of each chain step relative to the one before")
    add("--hard", type=float, default=0.3, help="share of the target's argmax in the labels")
    add("--feature-weight", type=float, default=2.0)
    add("--noise", type=float, default=0.1, help="standard deviation of noise on features")
    add("--dropout", type=float, default=0.0, help="chance that a position's feature is zeroed")
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
    add("--eval-examples", type=int, default=48)
    add("--seed", type=int, default=0)
    add("--rank", type=int, default=0)
    add("--world", type=int, default=1)
    add("--rendezvous", type=Path, help="file the processes meet at")
    return parser.parse_args()


class Trainer:
    """The state of one training process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.target = read_config(args.target)
        self.embedding = load_embedding(args.target)
        scale = float(self.embedding.float().pow(2).mean().sqrt())
        self.draft = Draft(DraftConfig.like(self.target, args.intermediate), scale)
        self.opts = optimizers(self.draft, args)
        self.checkpoint = args.out / "checkpoint.pt"
        if args.init:
            self.draft.load_public_state(load_file(args.init / "model.safetensors"))
        self.step = self.positions = 0
        self.resume()
        self.fresh = self.step == 0 and not args.init
        self.rng = random.Random(args.seed + self.step)
        torch.manual_seed(args.seed + 1000 * self.step + args.rank)
        self.log = (args.out / "log.jsonl").open("a") if args.rank == 0 else None
        self.started = time.perf_counter()

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

    def epoch(self) -> None:
        """Read the shards there are and go once over them."""
        args = self.args
        if args.world > 1:
            dist.barrier()
        groups = load_groups(args.shards, self.target.vocab_size, args)
        sampler = ColumnSampler(groups.counts, args.frequent, args.others, args.seed + self.step + args.rank)
        if self.fresh:
            self.fresh = False
            order = groups.train[:]
            self.rng.shuffle(order)
            ridge_start(self.draft, order, self.embedding)
        held = [e for e in groups.held_out if len(e) - e.answer_start > 8]
        random.Random(0).shuffle(held)
        kept = [x for x in groups.train if x.example.source != "selfchat" or self.rng.random() < args.selfchat_share]
        batches = plan_epoch(kept, args.span_tokens, self.rng)
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
        loss, ces, distances = forward_loss(self.draft, batch, self.embedding, sampler, unroll, args)
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
                step=self.step, tokens=self.positions, lr=round(rate, 7), ce=ces, feature=distances,
                grad_norm=round(norm, 3), seconds=round(time.perf_counter() - self.started, 1),
            )  # fmt: skip

    def check(self, held: list[Example]) -> None:
        """Evaluate on held-out examples, and save the checkpoint and the draft."""
        result = summarise([draft_chains(self.draft, self.embedding, e, 4) for e in held])
        self.write(event="held_out", step=self.step, tokens=self.positions, examples=len(held), **result)
        print(self.step, self.positions, round(time.perf_counter() - self.started), result, flush=True)
        save_checkpoint(self.checkpoint, self.draft, self.opts, self.step, self.positions)
        about = {"steps": str(self.step), "positions": str(self.positions)}
        save_draft(self.draft, self.args.out / "draft", self.args.target, about)


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
