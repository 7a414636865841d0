#!/usr/bin/env python3
"""The quality study: what zbelastic trains, beside PyTorch, under kills, and fine-tuned to chats.

    python3 docs/quality.py BINARY FOLDER --text shakespeare.txt [--steps 300]

For each corpus (the text, and Python's language reference, which Python itself has): a BPE of 4,096 tokens, a token store,
and a GPT-2 of 12 M parameters that transformers draws. The same steps over the same windows are then taken by
`zbelastic train` and by PyTorch, and their losses compared; then by `zbelastic train` while its workers are killed
and gradients get NaNs, and the digests compared. The model of the first corpus is then fine-tuned to answer one speech
with the next. Ends with 1 if losses differ by more than 1e-3, a digest differs, or the held-out loss does
not fall. Needs the packages `torch`, `transformers`, `numpy` and `matplotlib`; FOLDER is kept, and finished runs in it
are not run again.
"""

import argparse
import json
import math
import os
import pathlib
import pydoc_data.topics
import re
import signal
import subprocess
import sys
import time

import numpy
import torch
import transformers

VOCABULARY = 4096
SEQUENCE_LEN = 256
MICROBATCH = 2
GLOBAL_BATCH = 4
SEED = 1
HELD_OUT = 0.05
# Gentle, so that differences of rounding stay what they are: with 1e-3 after 20 steps they grow to 0.09 nats.
LR = 3e-4
WARMUP = 100
BETAS = (0.9, 0.99)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
CLIP = 1.0
# Largest difference of two losses of a step, in nats a token.
LOSS_DIFFERENCE_MAX = 1e-3
WORKERS = 3
# Sealed steps from one killed worker to the next.
STEPS_BETWEEN_KILLS = 25
# Adapters of all linear layers, with the learning rate that they are usually given: ten times that of all weights.
LORA = [
    word for key, value in {"lora.rank": 8, "lora.alpha": 16, "lora.targets": "all-linear", "optimizer.lr": 3e-3}.items()
    for word in ("--set", f"{key}={value}")
]
USER, ASSISTANT = "<|user|>", "<|assistant|>"
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}" + USER + "{{ message['content'] }}"
    "{% else %}" + ASSISTANT + "{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def philox(key, counter):
    """Philox4x32-10 (Salmon et al., SC 2011, section 3.2)."""
    mask = 0xFFFFFFFF
    for _ in range(10):
        low, high = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (high >> 32) ^ counter[1] ^ key[0], high & mask, (low >> 32) ^ counter[3] ^ key[1], low & mask,
        ]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return counter


def window_at(position, epoch, count):
    """The window at a position of an epoch, as docs/numerics.md defines it ("Nothing is drawn twice")."""
    half = max((max(count - 1, 0).bit_length() + 1) // 2, 1)
    mask = (1 << half) - 1
    key = [SEED & 0xFFFFFFFF, SEED >> 32]
    while True:
        left, right = position >> half, position & mask
        for turn in range(4):
            at = right << 2 | turn
            low, high = philox(key, [at & 0xFFFFFFFF, at >> 32, epoch, 2])[:2]
            left, right = right, left ^ ((high << 32 | low) & mask)
        position = left << half | right
        if position < count:
            return position


def store_ids(store):
    manifest = json.loads((store / "manifest.json").read_text())["content"]
    kind = "<u2" if manifest["vocabulary"] <= 1 << 16 else "<u4"
    shards = enumerate(manifest["shards"])
    parts = [numpy.memmap(store / f"{n:05}.shard", dtype=kind, mode="r", shape=(shard["tokens"],)) for n, shard in shards]
    return numpy.concatenate(parts).astype(numpy.int64)


def lr_at(step, steps):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    progress = min((step - WARMUP) / max(steps - WARMUP, 1), 1.0)
    return LR * 0.5 * (1 + math.cos(math.pi * progress))


def torch_losses(init, store, steps):
    """The loss of each step of the same training in PyTorch."""
    model = transformers.GPT2LMHeadModel.from_pretrained(init, dtype=torch.float32)
    model.train()
    ids = store_ids(store)
    held_out = math.floor(len(ids) * HELD_OUT + 0.5)
    windows = (len(ids) - held_out - 1) // SEQUENCE_LEN
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPSILON,
    )
    losses = []
    for step in range(steps):
        loss_sum = 0.0
        for first in range(0, GLOBAL_BATCH, MICROBATCH):
            reads = [step * GLOBAL_BATCH + first + i for i in range(MICROBATCH)]
            starts = [window_at(read % windows, read // windows, windows) * SEQUENCE_LEN for read in reads]
            batch = torch.tensor(numpy.stack([ids[start : start + SEQUENCE_LEN + 1] for start in starts]))
            logits = model(batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            (loss * MICROBATCH / GLOBAL_BATCH).backward()
            loss_sum += loss.item() * MICROBATCH / GLOBAL_BATCH
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, steps)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss_sum)
        if step % 20 == 0:
            print(f"  torch, step {step + 1}: {loss_sum:.4f}", flush=True)
    return losses


class Study:
    def __init__(self, binary, folder, steps):
        self.binary, self.folder, self.steps = binary, folder, steps
        self.missed = []

    def call(self, *args):
        print("$ zbelastic", *args, flush=True)
        done = subprocess.run([self.binary, *map(str, args)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def train_args(self, out, init, store, tokenizer, steps, *more):
        keys = {
            "model.from_hf": init, "data.tokens": json.dumps([str(store)]), "data.tokenizer": tokenizer,
            "data.held_out": HELD_OUT, "train.seq_len": SEQUENCE_LEN, "train.microbatch": MICROBATCH,
            "train.global_batch": GLOBAL_BATCH, "train.seed": SEED, "optimizer.lr": LR, "optimizer.warmup": WARMUP,
            "optimizer.weight_decay": WEIGHT_DECAY, "optimizer.clip": CLIP, "optimizer.eps": EPSILON,
            "optimizer.betas": json.dumps(BETAS), "guard.nonfinite": "replay",
        }
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        return ["train", "--workers", str(WORKERS), "--threads", "1", "--steps", str(steps), *sets, "--out", str(out), *more]

    def undisturbed(self, out, *args):
        if not (out / "run.json").exists():
            self.call(*self.train_args(out, *args, "--threads-only"))
        return json.loads((out / "run.json").read_text())["digest"]

    def killed(self, out, *args, struck="layers.2.mlp.up"):
        """The same run in processes of which one is killed again and again, with two gradients that get a NaN."""
        kills, steps = 0, args[3]
        if not (out / "run.json").exists():
            at = [steps // 3, steps * 2 // 3]
            injected = [w for s in at for w in ("--inject", f"step={s},tensor={struck},value=nan")]
            process = subprocess.Popen(
                [self.binary, *self.train_args(out, *args, *injected)], stdout=subprocess.DEVNULL
            )
            while process.poll() is None:
                time.sleep(0.2)
                if self.sealed(out) >= (kills + 1) * STEPS_BETWEEN_KILLS and self.sealed(out) < steps:
                    kills += self.kill(out / "cluster" / f"worker-{kills % WORKERS + 1}" / "LOCK")
            if process.returncode:
                sys.exit(f"zbelastic train ended with {process.returncode}; see {out}")
            (out / "kills").write_text(str(kills))
        return json.loads((out / "run.json").read_text())["digest"], int((out / "kills").read_text())

    @staticmethod
    def sealed(out):
        metrics = out / "metrics.jsonl"
        return metrics.read_text().count('"event":"step"') if metrics.exists() else 0

    @staticmethod
    def kill(lock):
        try:
            os.kill(int(re.search(r"\d+", lock.read_text()).group()), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, AttributeError):
            return 0
        print(f"  killed {lock.parent.name}", flush=True)
        return 1

    def expect(self, is_met, what):
        print(("met     " if is_met else "MISSED  ") + what, flush=True)
        if not is_met:
            self.missed.append(what)


def losses_of(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["event"] == "step"]


def prepared(study, folder, text):
    """Tokenizer, token store and first weights of a corpus."""
    tokenizer, store, init = folder / "tokenizer", folder / "store", folder / "init"
    if not tokenizer.exists():
        special = [word for token in (USER, ASSISTANT) for word in ("--special", token)]
        study.call("tokenizer", "train", "--vocab", VOCABULARY, "--text", text, "--to", tokenizer, *special)
        (tokenizer / "chat_template.jinja").write_text(TEMPLATE)
    if not (store / "manifest.json").exists():
        study.call("data", "prepare", text, "--tokenizer", tokenizer, "--to", store)
    if not init.exists():
        torch.manual_seed(SEED)
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=SEQUENCE_LEN, n_embd=384, n_layer=6, n_head=6, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
        transformers.GPT2LMHeadModel(config).save_pretrained(init)
    return tokenizer, store, init


def compared(study, name, folder, text):
    """One corpus: the losses of both, and the digest of the run that was disturbed."""
    tokenizer, store, init = prepared(study, folder, text)
    args = (init, store, tokenizer, study.steps)
    digest = study.undisturbed(folder / "run", *args)
    ours = losses_of(folder / "run")
    kept = folder / "torch.json"
    if not kept.exists():
        kept.write_text(json.dumps(torch_losses(init, store, study.steps)))
    theirs = json.loads(kept.read_text())
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    study.expect(
        apart <= LOSS_DIFFERENCE_MAX,
        f"{name}: losses from {ours[0]:.4f} to {ours[-1]:.4f}, at most {apart:.1e} from PyTorch's in {len(ours)} steps",
    )
    disturbed, kills = study.killed(folder / "killed", *args)
    study.expect(disturbed == digest, f"{name}: digest {disturbed[:16]} after {kills} kills and 2 NaNs, {digest[:16]} undisturbed")
    return ours, theirs


def write_chats(text, folder):
    """Speeches of the plays as chats of two, the last twentieth held out."""
    speeches = [s.strip() for s in re.split(r"\n\s*\n", text.read_text()) if 20 < len(s.strip()) < 600]
    pairs = [
        {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]}
        for a, b in zip(speeches[::2], speeches[1::2])
    ]
    cut = len(pairs) - len(pairs) // 20
    for name, part in (("chats", pairs[:cut]), ("held-out", pairs[cut:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in part))
    return pairs[cut]["messages"][0]["content"]


def fine_tuned(study, folder, text):
    """The model of the first corpus learns to answer a speech: held-out loss and a sample, before and after."""
    tokenizer, model = folder / "tokenizer", folder / "run" / "model"
    speech = write_chats(text, folder)
    for name in ("chats", "held-out"):
        if not (folder / f"{name}-store" / "manifest.json").exists():
            source = folder / f"{name}.jsonl"
            study.call("data", "prepare", source, "--tokenizer", tokenizer, "--to", folder / f"{name}-store")
    out = folder / "chat-run"
    study.undisturbed(out, model, folder / "chats-store", tokenizer, study.steps // 3)
    args = (model, folder / "chats-store", tokenizer, study.steps // 3, *LORA)
    adapted = folder / "lora-run"
    digest = study.undisturbed(adapted, *args)
    disturbed, kills = study.killed(folder / "lora-killed", *args, struck="layers.2.mlp.up.lora_B")
    study.expect(disturbed == digest, f"adapters: digest {disturbed[:16]} after {kills} kills and 2 NaNs, {digest[:16]} undisturbed")
    found = []
    for path in (model, out / "model", adapted / "model"):
        report = json.loads(study.call("eval", path, "--tokens", folder / "held-out-store", "--json"))
        prompt = f"{USER}{speech}{ASSISTANT}"
        sample = study.call("generate", path, "--prompt", prompt, "--max-tokens", 60, "--temperature", 0.8, "--stop-at-end")
        found.append((report["loss"], sample.strip()))
    (before, first), (after, second), (with_adapters, third) = found
    study.expect(after < before, f"chats: held-out loss {before:.4f} before, {after:.4f} after {study.steps // 3} steps")
    study.expect(
        with_adapters < before,
        f"chats: held-out loss {before:.4f} before, {with_adapters:.4f} after {study.steps // 3} steps of adapters",
    )
    print(f"--- asked\n{speech}\n--- before\n{first}\n--- after\n{second}\n--- after, adapters alone\n{third}")


def plot(curves, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "zbelastic"
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), height_ratios=[3, 1])
    for name, (ours, theirs) in curves.items():
        steps = range(1, len(ours) + 1)
        above.plot(steps, ours, linewidth=1, label=f"{name}, zbelastic")
        above.plot(steps, theirs, linewidth=1, linestyle=":", label=f"{name}, PyTorch")
        below.plot(steps, [abs(a - b) for a, b in zip(ours, theirs)], linewidth=1, label=name)
    above.set_ylabel("loss, nats a token")
    above.legend(fontsize=8)
    below.axhline(LOSS_DIFFERENCE_MAX, color="grey", linewidth=0.5)
    below.set(yscale="log", xlabel="step", ylabel="difference")
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    study = Study(args.binary, args.folder.resolve(), args.steps)
    reference = study.folder / "python.txt"
    study.folder.mkdir(parents=True, exist_ok=True)
    topics = pydoc_data.topics.topics
    reference.write_text("\n\n".join(topics[name] for name in sorted(topics)))
    curves = {}
    for name, text in (("Shakespeare", args.text.resolve()), ("Python reference", reference)):
        folder = study.folder / name.split()[0].lower()
        folder.mkdir(exist_ok=True)
        curves[name] = compared(study, name, folder, text)
        plot(curves, study.folder / "quality.svg")
        if name == "Shakespeare":
            fine_tuned(study, folder, text)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{versions}: {len(study.missed)} missed")
    sys.exit(bool(study.missed))


if __name__ == "__main__":
    main()
