#!/usr/bin/env python3
"""Training steps of zbelastic on processors beside PyTorch's, in turns.

    cargo build --release
    python3 docs/compare_pytorch_cpu.py target/release/zbelastic
    python3 docs/compare_pytorch_cpu.py target/release/zbelastic --config A,B --isa avx2 --out cpu.json

The models are those of `zbelastic bench train`, GPT-2 in f32 with a head of its own, as compare_pytorch.py
beside this file writes them. A step is forward, backward, global norm, clipping at 1 and AdamW, the whole
batch at once. PyTorch runs eagerly and compiled, with fused AdamW, each in a process of its own that waits
while another is measured. A round measures each program once, and of each the fastest step of all rounds
counts: what else runs on the machine makes steps slower, never faster. Without options that is the whole
table: each model, with one thread and with two, held to AVX2 and with the best instructions. A row has
tokens a second of each program, ours over each of PyTorch's, and, as the ratio, over its faster one.

With `--isa avx2` both are held to AVX2: ZBELASTIC_CPU=avx2 here, ATEN_CPU_CAPABILITY=avx2,
MKL_ENABLE_INSTRUCTIONS=AVX2 and ONEDNN_MAX_CPU_ISA=AVX2 there, which is how the column of AVX2 is
measured on a machine with AVX-512. Needs torch 2.5 or newer, and a C++ compiler for the compiled model.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass
class Config:
    """Layers, width, heads, tokens of the vocabulary, and a batch: sequences and tokens of each."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    sequences: int
    length: int


CONFIGS = {
    "A": Config(4, 256, 4, 256, 8, 128),
    "B": Config(6, 384, 6, 4096, 8, 256),
    "C": Config(12, 768, 12, 50304, 2, 256),
}
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
WARMUP_STEPS = 2


def model_and_text(name):
    """The model of a config, and the tokens and targets of a batch."""
    # Here, because the process that measures needs no PyTorch.
    import torch
    from compare_pytorch import Model, Shape

    config = CONFIGS[name]
    width, heads = config.width, config.heads
    shape = Shape(name, "gpt2", config.layers, width, heads, heads, 4 * width, config.vocabulary)
    torch.manual_seed(1)
    model = Model(shape, config.length)
    text = torch.randint(0, config.vocabulary, (config.sequences, config.length + 1))
    return model, text[:, :-1].contiguous(), text[:, 1:].contiguous()


def adamw(parameters):
    import torch

    return torch.optim.AdamW(parameters, lr=6e-4, betas=(0.9, 0.95), fused=True)


def step_of(name, is_compiled):
    """A function that runs one training step."""
    import torch

    model, tokens, targets = model_and_text(name)
    optimizer = adamw(model.parameters())
    run = torch.compile(model) if is_compiled else model

    def step():
        loss = run(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not math.isfinite(loss.item()):
            sys.exit(f"the loss is {loss.item()}")

    return step


def serve(name, threads, mode):
    """A process of PyTorch's: each line of its input is a number of steps, answered with the fastest."""
    import torch

    torch.set_num_threads(threads)
    step = step_of(name, mode == "compiled")
    for _ in range(WARMUP_STEPS):
        step()
    print(torch.__version__, torch.backends.cpu.get_cpu_capability(), flush=True)
    for line in sys.stdin:
        best = math.inf
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - start)
        print(best, flush=True)


class Other:
    """PyTorch in a process that waits for its turn."""

    def __init__(self, name, threads, mode, environment):
        command = [sys.executable, os.path.abspath(__file__), "--serve", name, str(threads), mode]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.about = self.process.stdout.readline().strip()
        if not self.about:
            sys.exit(f"PyTorch ({mode}) did not start; its message is above")
        self.best = math.inf

    def turn(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.best = min(self.best, float(self.process.stdout.readline()))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def held_to(isa, threads):
    """The environment in which both programs have these instructions, and PyTorch so many threads."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), ZBELASTIC_CPU="" if isa == "best" else isa)
    if isa == "avx2":
        environment.update(AVX2)
    return environment


def ours(program, name, steps, environment, *words):
    """What `zbelastic bench step` measured: `--threads` or `--schedule` are the words."""
    command = [program, "bench", "step", "--config", name, "--steps", str(steps), "--json", *words]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def compare(args, name, threads, isa):
    """A row of the table."""
    environment = held_to(isa, threads)
    modes = args.modes.split(",")
    others = {mode: Other(name, threads, mode, environment) for mode in modes}
    best = None
    for _ in range(args.rounds):
        for other in others.values():
            other.turn(args.steps)
        found = ours(args.program, name, args.steps, environment, "--threads", str(threads))
        if best is None or found["step_ms"] < best["step_ms"]:
            best = found
    tokens = CONFIGS[name].sequences * CONFIGS[name].length
    row = {"config": name, "threads": threads, "instructions": best["instructions"], "ours": best["tokens_per_s"],
           "peak_share": best["peak_share"], "torch": next(iter(others.values())).about}
    row.update({mode: tokens / other.best for mode, other in others.items()})
    row["ratio"] = row["ours"] / max(row[mode] for mode in modes)
    for other in others.values():
        other.end()
    rates = " ".join(f"{mode} {row[mode]:>7.0f} ({row['ours'] / row[mode]:.2f})" for mode in modes)
    print(f"{name} {row['instructions']:<8} {threads} thread{'s' if threads > 1 else ' '}  zbelastic {row['ours']:>7.0f}  "
          f"{rates}  ratio {row['ratio']:.2f}  {100 * row['peak_share']:.0f} % of peak  ({row['torch']})", flush=True)
    return row


def arguments(about, config, isa, steps):
    """The arguments that each comparison has, with its own defaults."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", help="the program zbelastic, built with --release")
    parser.add_argument("--config", default=config)
    parser.add_argument("--isa", default=isa, help="avx2 holds both to AVX2; best is whatever each chooses")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=steps, help="steps of a turn")
    parser.add_argument("--out", metavar="FILE", help="where to write the rows as JSON")
    return parser


def write_rows(rows, path):
    if path:
        with open(path, "w") as file:
            json.dump(rows, file, indent=2)


def main():
    parser = arguments(__doc__, "A,B,C", "avx2,best", 3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        name, threads, mode = args.serve
        return serve(name, int(threads), mode)
    if not args.program:
        parser.error("the path of the program is missing: target/release/zbelastic")
    rows = []
    for isa in args.isa.split(","):
        for name in args.config.split(","):
            for threads in args.threads.split(","):
                rows.append(compare(args, name, int(threads), isa))
    write_rows(rows, args.out)


if __name__ == "__main__":
    main()
