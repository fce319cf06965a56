"""Build training prompts shaped like what users ask: maths, questions, passages, summaries, translation.

Every input is optional: a missing one leaves its prompts out, with a message. The prompts are written as
JSON lines of `group` and `text`.
"""

from __future__ import annotations

import argparse
import html
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from generate import answer_all
from openers import GERMAN_OPENERS, NEWS_GERMAN, QUESTION_OPENERS, REQUEST_OPENERS
from target import FastTarget
from transformers import AutoTokenizer

Prompt = tuple[str, str]  # (group, text)
_BLOCK = re.compile(r"<(?:p|li|dd)\b[^>]*>(.*?)</(?:p|li|dd)>", re.S | re.I)
_NAME = re.compile(r"\b(?:[A-Z][a-z]{2,}|[A-Z]{2,})(?: (?:[A-Z][a-z]+|of|the)){0,2} ?(?:[A-Z][a-z]+)?\b")

_QUESTION_FORMS = (
    "what is {}?", "who is {}?", "when did {} start?", "where does {} come from?", "who wrote {}?",
    "what does {} stand for?", "how many people use {}?", "why is {} important?", "when was {} first used?",
    "where is {} located?", "what is the meaning of {}?", "how does {} work?", "who invented {}?",
    "what is another name for {}?", "when does {} come out?",
)  # fmt: skip
_ENGLISH = (
    "usr/share/doc/anarchism/html/*.html",
    "usr/share/doc/debian-handbook/html/en-US/*.html",
    "usr/share/doc/debian-history/docs/*.html",
    "usr/share/help/C/gnome-help/*.page",
    "usr/share/doc/python3.11/html/howto/*.html",
    "usr/share/doc/python3.11/html/whatsnew/*.html",
)
_GERMAN = (
    "usr/share/doc/debian-handbook/html/de-DE/*.html",
    "usr/share/debian-reference/*.de.html",
    "usr/share/developers-reference/de/*.html",
    "usr/share/doc/installation-guide-amd64/de/*.html",
)


def paragraphs(path: Path) -> list[str]:
    """Prose paragraphs of an HTML (or Mallard .page) file, tags removed."""
    found = _BLOCK.findall(path.read_text(encoding="utf-8", errors="ignore"))
    plain = (" ".join(html.unescape(re.sub(r"<[^>]+>", "", p)).split()) for p in found)
    return [p.strip() for p in plain if len(p) > 80]


def passages(root: Path, globs: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    """Runs of consecutive paragraphs of 700 to 3300 characters, shuffled."""
    out = []
    for pattern in globs:
        for path in sorted(root.glob(pattern)):
            text, goal = "", rng.randint(700, 3300)
            for p in paragraphs(path):
                text = f"{text} {p}".strip()
                if len(text) >= goal:
                    out.append(text[:3400])
                    text, goal = "", rng.randint(700, 3300)
    rng.shuffle(out)
    yield from out


def selfchat_passages(path: Path, tokenizer: object, rng: random.Random) -> Iterator[str]:
    """One to three answers of the self-chat, joined, as documents."""
    with np.load(path) as z:
        ids, bounds, starts, temps = z["ids"], z["offsets"], z["answer_start"], z["temperature"]
        texts = [
            tokenizer.decode(ids[a + s : b].tolist(), skip_special_tokens=True)  # type: ignore
            for a, b, s, t in zip(bounds, bounds[1:], starts, temps, strict=False)
            if b - a - s > 120 and 0.1 < t < 0.9
        ]
    rng.shuffle(texts)
    while texts:
        count = rng.choice((1, 1, 2, 2, 3))
        yield " ".join(" ".join(texts[:count]).split())[: rng.randint(1200, 3300)]
        texts = texts[count:]


def question_about(passage: str, rng: random.Random) -> str:
    """A short question in the style of web queries about something the passage names."""
    names = [n for n in _NAME.findall(passage) if len(n) > 3] or ["this"]
    name = rng.choice(names)
    if rng.random() < 0.6:
        name = name.lower()
    text = rng.choice(_QUESTION_FORMS).format(name)
    return text[0].upper() + text[1:]


def german_sentences(root: Path, globs: tuple[str, ...]) -> list[str]:
    """German sentences of 40 to 260 characters from documentation, punctuation spaced as in WMT text."""
    out = []
    for pattern in globs:
        for path in sorted(root.glob(pattern)):
            for p in paragraphs(path):
                for s in re.split(r"(?<=[.!?]) (?=[A-ZÄÖÜ])", p):
                    if 40 < len(s) < 260 and re.search(r"\b(der|die|das|und|ist|nicht|ein|eine|zu)\b", s):
                        out.append(re.sub(r"\s*([,.!?:;])(?=\s|$)", r" \1", s))
    return out


def news_german(rng: random.Random) -> str:
    """A made-up German news sentence from parts."""
    return " ".join(rng.choice(part) for part in NEWS_GERMAN) + " ."


def wordnet_entries(path: Path) -> list[tuple[str, str, bool]]:
    """(name, gloss, is a proper name) of WordNet's nouns."""
    out = []
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            continue
        head, _, gloss = line.partition(" | ")
        word = head.split(" ")[4].replace("_", " ")
        out.append((word, gloss.split('; "')[0].strip(), word[0].isupper()))
    return out


def continue_turns(
    target: FastTarget, tokenizer: object, openers: list[str], temperature: float, max_new: int
) -> list[str]:
    """Let the target finish user turns that start with `openers`."""
    system = tokenizer.apply_chat_template([{"role": "user", "content": "@@"}], tokenize=False)  # type: ignore
    prefix = system[: system.index("@@")]
    prompts = [tokenizer(prefix + o, add_special_tokens=False)["input_ids"] for o in openers]  # type: ignore
    stop = tokenizer.eos_token_id  # type: ignore
    answers = answer_all(target, prompts, max_new, stop, temperature, 96)
    tails = [tokenizer.decode(a.answer_ids, skip_special_tokens=True) for a in answers]  # type: ignore
    return [(o + t).strip() for o, t in zip(openers, tails, strict=True)]


def maths(path: Path | None, n: int, rng: random.Random) -> list[Prompt]:
    """GSM8K training questions."""
    if not path:
        print("no --gsm8k: no maths prompts")
        return []
    import pyarrow.parquet as pq

    questions = pq.read_table(path)["question"].to_pylist()
    return [("math", q) for q in rng.sample(questions, min(n, len(questions)))]


def translations(root: Path | None, n: int, rng: random.Random) -> list[Prompt]:
    """German sentences, from documentation and from parts."""
    out = [news_german(rng) for _ in range(n // 3)]
    if root:
        german = german_sentences(root, _GERMAN)
        out += rng.sample(german, min(n // 3, len(german)))
    return [("translation", f"Translate German to English: {s}") for s in out]


def documents(root: Path | None, selfchat: Path | None, n: int, tokenizer: object, rng: random.Random) -> list[Prompt]:
    """Passages to summarise, and passages with a question about them."""
    docs = list(passages(root, _ENGLISH, rng)) if root else []
    own = list(selfchat_passages(selfchat, tokenizer, rng)) if selfchat else []
    docs = [d for pair in zip(docs, own, strict=False) for d in pair] or docs or own
    out = [("summarization", f"Summarize: {d}") for d in docs[: n * 6 // 5]]
    return out + [("rag", f"{d}\n{question_about(d, rng)}") for d in docs[n * 6 // 5 : 2 * n]]


def definitions(root: Path | None, n: int, rng: random.Random) -> list[Prompt]:
    """Short questions about WordNet's nouns, two thirds of them proper names."""
    if not root:
        return []
    entries = wordnet_entries(root / "usr/share/wordnet/data.noun")
    out = []
    for word, gloss, is_name in rng.sample([e for e in entries if e[2]], n // 3) + rng.sample(entries, n // 6):
        if is_name and re.search(r"\b(18|19|17|16)\d\d\b", gloss):
            form = "Who was {}?"
        else:
            form = rng.choice(("What is {}?", "Where is {}?" if is_name else "Define {}"))
        out.append(("qa", form.format(word if rng.random() < 0.6 else word.lower())))
    return out


def sampled(target: FastTarget, tokenizer: object, n: int, rng: random.Random) -> list[Prompt]:
    """User turns that the target finishes from their first words."""
    openers = [rng.choice(QUESTION_OPENERS) for _ in range(n)]
    out = [("qa", t) for t in continue_turns(target, tokenizer, openers, 0.9, 24) if t.endswith("?")]
    openers = [f"Translate German to English: {rng.choice(GERMAN_OPENERS)}" for _ in range(n // 3)]
    out += [("translation", t) for t in continue_turns(target, tokenizer, openers, 0.8, 32)]
    openers = [rng.choice(REQUEST_OPENERS) for _ in range(n)]
    return out + [("requests", t) for t in continue_turns(target, tokenizer, openers, 0.9, 64)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="converted target (see target.py)")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines to write")
    parser.add_argument("--gsm8k", type=Path, help="GSM8K training split (.parquet with `question`)")
    parser.add_argument("--selfchat", type=Path, help=".npz of conversations, used as documents")
    parser.add_argument("--text-root", type=Path, help="root of unpacked Debian documentation packages")
    parser.add_argument("--per-group", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    target = FastTarget(args.target)
    n = args.per_group
    if not args.text_root:
        print("no --text-root: no prompts from documentation, no WordNet")
    if not args.selfchat:
        print("no --selfchat: documents come from --text-root only")
    rows = maths(args.gsm8k, n, rng) + translations(args.text_root, n, rng)
    rows += documents(args.text_root, args.selfchat, n, tokenizer, rng) + definitions(args.text_root, n, rng)
    rows += sampled(target, tokenizer, n, rng)
    rng.shuffle(rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.out.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps({"group": g, "text": t}, ensure_ascii=False) + "\n" for g, t in rows))
    temporary.rename(args.out)
    for group in sorted({g for g, _ in rows}):
        print(group, sum(g == group for g, _ in rows))


if __name__ == "__main__":
    main()
