#!/usr/bin/env python3
"""What PyTorch reaches where `zbelastic bench gpu` was run, for the same models and shapes.

    zbelastic bench gpu --out gpu.json
    python3 docs/compare_pytorch.py --ours gpu.json --out pytorch.json

Prints tokens a second of whole training steps (forward, backward, global norm, clipping at 1, AdamW)
beside those of `gpu.json`, and the times of products, attention and AdamW at the shapes of that
benchmark. PyTorch gets what makes it fast: torch.compile, bfloat16 under autocast with f32 master
weights, fused AdamW, and of cuDNN's and the flash kernels of attention whichever is faster for the
model. Needs torch 2.5 or newer. Works without a GPU with `--device cpu --tiny`, to try the script.
"""

import argparse
import contextlib
import json
import math
import sys
import time
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

MICROBATCH_TOKENS = 8192
MICROBATCHES = 8
WARMUP_STEPS = 2
RUNS = 10
# Seconds that a run aims at, and calls that it has at most.
RUN_S_MIN = 1e-3
TIMES_MAX = 32


@dataclass
class Shape:
    """A model as `zbelastic bench gpu` calls it; the head has weights of its own."""

    name: str
    family: str
    blocks: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int

    @property
    def head_width(self):
        return self.width // self.heads

    def flop_per_token(self, sequence_len):
        """Multiply-adds counted as two, nothing counted twice, attention causal."""
        kv_width = self.kv_heads * self.head_width
        ups = 2 if self.family == "llama" else 1
        attention = 2 * self.width * self.width + 2 * self.width * kv_width
        mlp = (ups + 1) * self.width * self.mlp_width
        weights = self.blocks * (attention + mlp) + self.width * self.vocabulary
        scores = self.blocks * self.width * sequence_len
        return 6 * (weights + scores)


MODELS = [
    Shape("gpt2-124m", "gpt2", 12, 768, 12, 12, 3072, 50304),
    Shape("gpt2-1.5b", "gpt2", 48, 1600, 25, 25, 6400, 50304),
    Shape("llama-1b", "llama", 16, 2048, 32, 8, 8192, 32000),
]
TINY = Shape("tiny", "llama", 2, 64, 4, 2, 128, 256)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.kv_width = shape.kv_heads * shape.head_width
        bias = shape.family == "gpt2"
        self.qkv = nn.Linear(shape.width, shape.width + 2 * self.kv_width, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x, angles):
        shape = self.shape
        batch, length, _ = x.shape
        parts = self.qkv(x).split([shape.width, self.kv_width, self.kv_width], dim=2)
        q, k, v = (part.view(batch, length, -1, shape.head_width).transpose(1, 2) for part in parts)
        if angles is not None:
            q, k = turned(q, angles), turned(k, angles)
        grouped = shape.kv_heads != shape.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, length, shape.width))


def turned(x, angles):
    cos, sin = angles
    first, second = x.chunk(2, dim=3)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=3).type_as(x)


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.is_gated = shape.family == "llama"
        self.hidden = shape.mlp_width
        ups = 2 if self.is_gated else 1
        self.up = nn.Linear(shape.width, ups * shape.mlp_width, bias=not self.is_gated)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=not self.is_gated)

    def forward(self, x):
        if self.is_gated:
            gate, up = self.up(x).split(self.hidden, dim=2)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm1, self.norm2 = norm(shape), norm(shape)
        self.attention, self.mlp = Attention(shape), Mlp(shape)

    def forward(self, x, angles):
        x = x + self.attention(self.norm1(x), angles)
        return x + self.mlp(self.norm2(x))


def norm(shape):
    return nn.RMSNorm(shape.width) if shape.family == "llama" else nn.LayerNorm(shape.width)


class Model(nn.Module):
    def __init__(self, shape, sequence_len):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        is_learned = shape.family == "gpt2"
        self.positions = nn.Embedding(sequence_len, shape.width) if is_learned else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        half = shape.head_width // 2
        rates = 10000.0 ** -(torch.arange(half) / half)
        turns = torch.outer(torch.arange(sequence_len), rates)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        if self.positions is not None:
            x, angles = x + self.positions.weight, None
        else:
            angles = (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, angles)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(logits.float(), targets.flatten())


class Place:
    """Where everything runs, and how time is told there."""

    def __init__(self, name):
        self.name = name
        self.is_cuda = name.startswith("cuda")

    def wait(self):
        if self.is_cuda:
            torch.cuda.synchronize()

    def once(self, work, times):
        """Seconds of some calls in a row, by the device's own clock."""
        if not self.is_cuda:
            start = time.perf_counter()
            for _ in range(times):
                work()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def seconds(self, work, runs=RUNS):
        """The fastest of some runs, after one that does not count. Short work is called several times a
        run, as `bench gpu` does: what the host takes for a call is hidden behind the one before."""
        self.once(work, 1)
        times = min(max(math.ceil(RUN_S_MIN / self.once(work, 1)), 1), TIMES_MAX)
        return min(self.once(work, times) / times for _ in range(runs))

    def free(self):
        if self.is_cuda:
            torch.cuda.empty_cache()


ATTENTIONS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def attended_by(place, kernel):
    """With one kernel of attention alone; on a CPU there is only one."""
    return sdpa_kernel(ATTENTIONS[kernel]) if place.is_cuda else contextlib.nullcontext()


def train(place, shape, sequence_len, kernel, steps, is_compiled):
    """Seconds of a step: the mean of `steps` after warming up, as `bench gpu` counts."""
    torch.manual_seed(1)
    sequences = max(1, MICROBATCH_TOKENS // sequence_len)
    model = Model(shape, sequence_len).to(place.name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if is_compiled else model
    size = (MICROBATCHES, sequences, sequence_len + 1)
    text = torch.randint(0, shape.vocabulary, size, device=place.name)

    def step():
        for microbatch in text:
            with torch.autocast(place.name.split(":")[0], dtype=torch.bfloat16):
                loss = run(microbatch[:, :-1].contiguous(), microbatch[:, 1:].contiguous())
            (loss / MICROBATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    with attended_by(place, kernel):
        for _ in range(WARMUP_STEPS):
            loss = step()
        place.wait()
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        place.wait()
        seconds = (time.perf_counter() - start) / steps
    if not math.isfinite(loss.item()):
        sys.exit(f"{shape.name}: the loss is {loss.item()}")
    return seconds, MICROBATCHES * sequences * sequence_len


def models(place, args, ours):
    named = [shape for shape in MODELS if shape.name in args.model]
    shapes = [TINY] if args.tiny else named or (MODELS[:1] if args.quick else MODELS)
    lens = [64] if args.tiny else args.seq_len or ([1024] if args.quick else [1024, 4096])
    peak = ours.get("flop_per_s") if ours else None
    rows = []
    print(f"{'model':<10} {'len':>5} {'attention':<9} {'step ms':>9} {'tokens/s':>10} {'mfu':>6} {'ours':>10} {'ratio':>6}")
    for shape in shapes:
        for sequence_len in lens:
            for kernel in ATTENTIONS:
                try:
                    is_compiled = not args.tiny
                    seconds, tokens = train(place, shape, sequence_len, kernel, args.steps, is_compiled)
                except (RuntimeError, torch.OutOfMemoryError) as error:
                    print(f"{shape.name:<10} {sequence_len:>5} {kernel:<9} {str(error).splitlines()[0]}")
                    continue
                finally:
                    torch._dynamo.reset()
                    place.free()
                rate = tokens / seconds
                mfu = shape.flop_per_token(sequence_len) * rate / peak if peak else None
                own = best_of_ours(ours, shape.name, sequence_len)
                told = [f"{100 * mfu:5.1f}%" if mfu else "     -", f"{own:10.0f}" if own else "         -",
                        f"{own / rate:6.2f}" if own else "     -"]
                print(f"{shape.name:<10} {sequence_len:>5} {kernel:<9} {1e3 * seconds:>9.1f} {rate:>10.0f} {' '.join(told)}",
                      flush=True)
                rows.append({"model": shape.name, "sequence_len": sequence_len, "attention": kernel,
                             "step_ms": 1e3 * seconds, "tokens_per_s": rate, "mfu": mfu, "ours_tokens_per_s": own})
    return rows


def of_bf16(path):
    """The part of `bench gpu`'s report that is about bfloat16."""
    with open(path) as file:
        report = json.load(file)
    for part in report["types"]:
        if part["activations"] == "bf16":
            return part
    sys.exit(f"{path} has no bf16: run `zbelastic bench gpu` without --activations f32")


def best_of_ours(ours, model, sequence_len):
    """Tokens a second of one worker, whichever of its schedules is faster."""
    rates = [row["outcome"]["Ok"]["tokens_per_s"] for row in (ours or {}).get("models", [])
             if (row["model"], row["sequence_len"], row["workers"]) == (model, sequence_len, 1)
             and "Ok" in row["outcome"]]
    return max(rates, default=None)


def operations(place, args, ours):
    """Times at the shapes of GPT-2 124M, 16 sequences of 1,024 tokens."""
    sequences, length, width = (2, 64, 64) if args.tiny else (16, 1024, 768)
    rows = sequences * length
    half = {"device": place.name, "dtype": torch.bfloat16}
    times = {}
    for name, outputs, inputs in [("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)]:
        x = torch.randn(rows, inputs * width, **half)
        y = torch.randn(rows, outputs * width, **half)
        w = torch.randn(outputs * width, inputs * width, **half)
        times[f"{name} F"] = place.seconds(lambda x=x, w=w: x @ w.T)
        times[f"{name} B"] = place.seconds(lambda y=y, w=w: y @ w)
        times[f"{name} W"] = place.seconds(lambda x=x, y=y: y.T @ x)
    for head_width in (64, 128) if not args.tiny else (16,):
        for kernel in ATTENTIONS:
            heads = width // head_width
            size = (sequences, heads, length, head_width)
            q, k, v = (torch.randn(size, **half, requires_grad=True) for _ in range(3))
            dy = torch.randn(size, **half)
            try:
                with attended_by(place, kernel):
                    attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    times[f"attention {head_width} F {kernel}"] = place.seconds(attend)
                    y = attend()
                    back = lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)
                    times[f"attention {head_width} B {kernel}"] = place.seconds(back)
            except RuntimeError as error:
                print(f"attention {head_width} {kernel}: {str(error).splitlines()[0]}")
    parameters = (1 if args.tiny else 124) << 20
    weights = nn.Parameter(torch.zeros(parameters, device=place.name))
    weights.grad = torch.full_like(weights, 1e-3)
    optimizer = torch.optim.AdamW([weights], lr=1e-3, fused=True)
    times["adamw"] = place.seconds(optimizer.step)
    own = {row["name"]: row["us"] for row in (ours or {}).get("operations", [])}
    print(f"\n{'operation':<24} {'us':>10} {'ours us':>10} {'ratio':>6}")
    for name, seconds in times.items():
        us = 1e6 * seconds
        found = own.get(name.removesuffix(" cudnn").removesuffix(" flash"))
        told = f"{found:>10.1f} {us / found:>6.2f}" if found else f"{'-':>10} {'-':>6}"
        print(f"{name:<24} {us:>10.1f} {told}")
    return {name: 1e6 * seconds for name, seconds in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", metavar="FILE", help="what `zbelastic bench gpu --out FILE` wrote")
    parser.add_argument("--out", metavar="FILE", help="where to write all of it as JSON")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=5, help="steps that count")
    parser.add_argument("--quick", action="store_true", help="the smallest model with 1024 tokens only")
    parser.add_argument("--model", nargs="*", default=[], choices=[shape.name for shape in MODELS],
                        help="these models only")
    parser.add_argument("--seq-len", nargs="*", default=[], type=int, metavar="N", help="lengths of sequences")
    parser.add_argument("--tiny", action="store_true", help="a model of no use, to try the script")
    args = parser.parse_args()
    place = Place(args.device)
    if place.is_cuda and not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU; `nvidia-smi` must list one, or try the script with --device cpu --tiny")
    torch.set_float32_matmul_precision("high")
    ours = of_bf16(args.ours) if args.ours else None
    device = torch.cuda.get_device_name(place.name) if place.is_cuda else "cpu"
    print(f"{device}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    report = {"device": device, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    report["models"] = models(place, args, ours)
    report["operations_us"] = operations(place, args, ours)
    if args.out:
        with open(args.out, "w") as file:
            json.dump(report, file, indent=2)
        print(f"written to {args.out}")


if __name__ == "__main__":
    main()
