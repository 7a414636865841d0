#!/usr/bin/env python3
"""Instructions for each multiply-add of a linear layer's products on aarch64, counted by an emulator.

    cargo build --release -p zbelastic-kernels --example products --target aarch64-unknown-linux-gnu
    docs/count_instructions.py target/aarch64-unknown-linux-gnu/release/examples/products

An emulator says nothing of time. A NEON instruction does four multiply-adds, so 0.25 is what a product without a load
or a store would take. Each product is run once and twice; the difference is one without the start of the program.
"""

import os
import subprocess
import sys

ROWS, INPUTS, OUTPUTS = 96, 384, 384
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-singlestep", "-d", "nochain,exec"]


def instructions(program, kernels, factors, counts):
    """How many instructions the program takes for so many of each product: a line of the log for each."""
    arguments = [str(n) for n in (ROWS, INPUTS, OUTPUTS, factors, *counts)]
    environment = os.environ | {"ZBELASTIC_CPU": kernels}
    command = [*EMULATOR, program, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as run:
        count = sum(line.startswith(b"Trace") for line in run.stderr)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}")
    return count


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    multiply_adds = ROWS * INPUTS * OUTPUTS
    print(f"{ROWS} × {INPUTS} × {OUTPUTS}, instructions a multiply-add")
    for factors in ("f32", "bf16"):
        for kernels in ("neon", "portable"):
            found = []
            for product in range(3):
                once = [int(at == product) for at in range(3)]
                twice = [2 * count for count in once]
                of_one, of_two = (instructions(sys.argv[1], kernels, factors, counts) for counts in (once, twice))
                found.append((of_two - of_one) / multiply_adds)
            y, dx, dw = found
            print(f"{factors:<5} {kernels:<9} y {y:.3f}  dx {dx:.3f}  dw {dw:.3f}", flush=True)


if __name__ == "__main__":
    main()
