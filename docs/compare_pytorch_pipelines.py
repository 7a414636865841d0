#!/usr/bin/env python3
"""Pipelines of zbelastic on processors beside PyTorch's own schedules, in turns.

    cargo build --release
    python3 docs/compare_pytorch_pipelines.py target/release/zbelastic
    python3 docs/compare_pytorch_pipelines.py target/release/zbelastic --config A --isa avx2 --out pipelines.json

Two workers with one thread each, on both sides. The models are those of `zbelastic bench train`, as
compare_pytorch.py beside this file writes them, and so is the batch with its microbatches. A step is the
pipeline, the global norm over all stages, clipping at 1 and AdamW. PyTorch runs eagerly: 1F1B with a stage
for each worker, interleaved 1F1B, interleaved zero bubble and ZBV with two, between processes over gloo.
Each schedule has several cuts of the model, of which the fastest counts.

A round measures each schedule of both once; of each the fastest round counts, as the mean of its steps, of
PyTorch's also the turns that chose the cut. Behind PyTorch's rows stands one process of it with the whole
batch and one thread, behind ours the bound: twice what one thread of ours reaches, less the planned bubble.
Needs torch 2.6 or newer.
"""

import argparse
import math
import os
import socket
import subprocess
import sys
import time

from compare_pytorch_cpu import CONFIGS, Other, adamw, arguments, held_to, model_and_text, ours, write_rows

# Microbatches of a step, as `zbelastic bench train` has them.
MICROBATCHES = {"A": 4, "B": 4, "C": 2}
OURS = ["1f1b", "zb-h1", "zb-v"]
WORKERS = 2
WARMUP_STEPS = 2
# By schedule, how many stages a worker has.
CHUNKS = {"Schedule1F1B": 1, "ScheduleInterleaved1F1B": 2, "ScheduleInterleavedZeroBubble": 2, "ScheduleZBVZeroBubble": 2}


def cuts(blocks, stages):
    """Blocks of each stage, in a few ways: the first stage has the embedding as well, the last one the head."""
    even = [blocks * (stage + 1) // stages - blocks * stage // stages for stage in range(stages)]
    found = [even]
    for source in range(stages - 1):
        for last in (even[-1] - 1, even[-1] + 1):
            moved = list(even)
            moved[source] += even[-1] - last
            moved[-1] = last
            if min(moved) >= 0 and moved[source] > 0 and moved not in found:
                found.append(moved)
    return found


def stage_module(model, blocks, first, is_first, is_last):
    """Some blocks of the model, with its embedding or its head."""
    import torch.nn as nn

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = model.tokens if is_first else None
            self.positions = model.positions if is_first else None
            self.blocks = nn.ModuleList(model.blocks[first : first + blocks])
            self.norm = model.norm if is_last else None
            self.head = model.head if is_last else None

        def forward(self, x):
            if self.tokens is not None:
                x = self.tokens(x) + self.positions.weight
            for block in self.blocks:
                x = block(x, None)
            return x if self.head is None else self.head(self.norm(x))

    return Stage()


def worker(name, schedule_name, cut, rank, port):
    """A worker of PyTorch's: each line of its input is a number of steps, answered with the seconds of one."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORKERS)
    model, tokens, targets = model_and_text(name)
    stages = len(cut)
    # A V: the second worker has the two stages in the middle.
    mine = [rank, stages - 1 - rank] if schedule_name == "ScheduleZBVZeroBubble" else list(range(rank, stages, WORKERS))
    modules = {at: stage_module(model, cut[at], sum(cut[:at]), at == 0, at == stages - 1) for at in mine}
    built = [PipelineStage(modules[at], at, stages, torch.device("cpu")) for at in mine]

    def loss_of(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    kind = getattr(pipelining, schedule_name, None) or getattr(pipelining.schedules, schedule_name)
    schedule = kind(built[0] if CHUNKS[schedule_name] == 1 else built, MICROBATCHES[name], loss_fn=loss_of)
    parameters = [parameter for module in modules.values() for parameter in module.parameters()]
    optimizer = adamw(parameters)
    has_first, has_last = 0 in modules, stages - 1 in modules

    def step():
        losses = []
        words = {"target": targets, "losses": losses} if has_last else {}
        schedule.step(*([tokens] if has_first else []), **words)
        square = torch.stack([parameter.grad.norm() for parameter in parameters]).square().sum()
        dist.all_reduce(square)
        scale = (1.0 / (square.sqrt() + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([parameter.grad for parameter in parameters], scale)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if any(not math.isfinite(loss.item()) for loss in losses):
            sys.exit("a loss is not finite")

    for _ in range(WARMUP_STEPS):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(int(line)):
            step()
        dist.barrier()
        print((time.perf_counter() - start) / int(line), flush=True)


class Pipeline:
    """A schedule of PyTorch's with a cut, in processes that wait for their turn."""

    def __init__(self, name, schedule, cut, environment):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = [name, schedule, ",".join(map(str, cut))]
        command = [sys.executable, os.path.abspath(__file__), "--worker", *words]
        pipe = subprocess.PIPE
        starts = [[*command, str(rank), str(port)] for rank in range(WORKERS)]
        self.workers = [subprocess.Popen(start, stdin=pipe, stdout=pipe, text=True, env=environment) for start in starts]
        self.schedule, self.cut, self.best = schedule, cut, math.inf
        if any(worker.stdout.readline().strip() != "ready" for worker in self.workers):
            for worker in self.workers:
                worker.kill()
            sys.exit(f"PyTorch's {schedule} with cut {cut} did not start; its message is above")

    def turn(self, steps):
        for worker in self.workers:
            worker.stdin.write(f"{steps}\n")
            worker.stdin.flush()
        self.best = min(self.best, max(float(worker.stdout.readline()) for worker in self.workers))

    def end(self):
        for worker in self.workers:
            worker.stdin.close()
        for worker in self.workers:
            worker.wait()


def fastest_cut(name, schedule, environment):
    """The cut with which a schedule of PyTorch's is fastest, by two turns of each."""
    best = None
    for cut in cuts(CONFIGS[name].layers, WORKERS * CHUNKS[schedule]):
        pipeline = Pipeline(name, schedule, cut, environment)
        for _ in range(2):
            pipeline.turn(1)
        if best is None:
            best = pipeline
            continue
        best, slower = sorted([best, pipeline], key=lambda one: one.best)
        slower.end()
    return best


def compare(args, name, isa):
    """The rows of a model."""
    environment = held_to(isa, 1)
    theirs = [fastest_cut(name, schedule, environment) for schedule in CHUNKS]
    alone = Other(name, 1, "eager", environment)
    best, serial = {}, math.inf
    for _ in range(args.rounds):
        alone.turn(args.steps)
        for other in theirs:
            other.turn(args.steps)
        serial = min(serial, ours(args.program, name, args.steps, environment, "--threads", "1")["step_ms"])
        for schedule in OURS:
            found = ours(args.program, name, args.steps, environment, "--schedule", schedule)
            if schedule not in best or found["step_ms"] < best[schedule]["step_ms"]:
                best[schedule] = found
    tokens = CONFIGS[name].sequences * CONFIGS[name].length
    rows = {"config": name, "isa": isa, "torch": alone.about, "torch_alone": tokens / alone.best,
            "alone": tokens / serial * 1e3, "torch_schedules": {}, "schedules": {}}
    print(f"{name} {best[OURS[0]]['instructions']}, two workers with one thread each, tokens a second ({alone.about})")
    for other in theirs:
        rate = tokens / other.best
        rows["torch_schedules"][other.schedule] = {"rate": rate, "cut": other.cut}
        print(f"  PyTorch   {other.schedule:<30} {rate:>7.0f}  {rate / rows['torch_alone']:.2f} of one process  cut {other.cut}")
    for schedule, found in best.items():
        bound = WORKERS * rows["alone"] * (1 - found["bubble_planned"])
        rows["schedules"][schedule] = {"rate": found["tokens_per_s"], "bound": bound, "bubble": found["bubble"]}
        print(f"  zbelastic {schedule:<30} {found['tokens_per_s']:>7.0f}  {found['tokens_per_s'] / bound:.2f} of its bound  "
              f"bubble {100 * found['bubble']:.1f} % (planned {100 * found['bubble_planned']:.1f} %)")
    for other in [alone, *theirs]:
        other.end()
    fastest = max(row["rate"] for row in rows["schedules"].values())
    rows["ratio"] = fastest / max(row["rate"] for row in rows["torch_schedules"].values())
    print(f"  best over best {rows['ratio']:.2f}", flush=True)
    return rows


def main():
    parser = arguments(__doc__, "B", "best,avx2", 6)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        name, schedule, cut, rank, port = args.worker
        return worker(name, schedule, [int(blocks) for blocks in cut.split(",")], int(rank), port)
    if not args.program:
        parser.error("the path of the program is missing: target/release/zbelastic")
    rows = [compare(args, name, isa) for isa in args.isa.split(",") for name in args.config.split(",")]
    write_rows(rows, args.out)


if __name__ == "__main__":
    main()
