"""Times `zbelastic data prepare` beside the batch encoding of Python's `tokenizers`, in turns, on the same documents.

    python docs/compare_tokenizers.py BINARY TEXT... [--tokenizer FILE] [--mb 64] [--rounds 5] [--threads N]

TEXT are files or folders; of these, files that end in .txt, .md or .rs count. Up to `--mb` megabytes of them become documents of a few
kilobytes. Without `--tokenizer` a byte-level BPE of 8,192 is trained on them first. Both sides have as many threads. `data prepare` is timed as a person
runs it, with the program's start, reading, hashing and the store on the disk; Python is timed from a list of texts in memory to lists of ids.
Needs the package `tokenizers`. Ends with 1 if the store has another number of ids, or the median of zbelastic's rate is below that of Python.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ENDINGS = {".txt", ".md", ".rs"}
DOCUMENT_BYTES = 4096


def files(paths):
    for path in map(pathlib.Path, paths):
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and (file.suffix in ENDINGS or file == path))


def documents(paths, most):
    """Pieces of the files, cut at the ends of lines."""
    size = 0
    for file in files(paths):
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        lines, length = [], 0
        for line in text.splitlines(keepends=True):
            lines.append(line)
            length += len(line)
            if length >= DOCUMENT_BYTES:
                yield "".join(lines)
                lines, length = [], 0
        if lines:
            yield "".join(lines)
        size += len(text)
        if size >= most:
            return


def call(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--tokenizer")
    parser.add_argument("--mb", type=float, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    # Read when its threads are started.
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import tokenizers

    texts = list(documents(args.text, args.mb * 1e6))
    size = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        corpus = folder / "corpus.jsonl"
        with corpus.open("w") as lines:
            lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        tokenizer = args.tokenizer
        if tokenizer is None:
            call(args.binary, "tokenizer", "train", "--vocab", 8192, "--text", corpus, "--to", folder / "bpe")
            tokenizer = folder / "bpe" / "tokenizer.json"
        encoder = tokenizers.Tokenizer.from_file(str(tokenizer))
        times = {"tokenizers": [], "zbelastic": []}
        for number in range(args.rounds):
            store = folder / f"store-{number}"
            start = time.perf_counter()
            printed = call(
                args.binary, "data", "prepare", corpus, "--to", store, "--tokenizer", tokenizer,
                "--threads", args.threads, "--json",
            )
            times["zbelastic"].append(time.perf_counter() - start)
            start = time.perf_counter()
            encoded = encoder.encode_batch(texts, add_special_tokens=False)
            times["tokenizers"].append(time.perf_counter() - start)
        report = json.loads(printed)
        expected = sum(len(one.ids) for one in encoded)
    end = report["documents"] if report["end_of_text"] is not None else 0
    print(f"{size / 1e6:.1f} MB in {len(texts)} documents, {expected} ids, {args.threads} threads, tokenizers {tokenizers.__version__}")
    rates = {}
    for name, seconds in times.items():
        rates[name] = size / 1e6 / statistics.median(seconds)
        spread = ", ".join(f"{size / 1e6 / second:.1f}" for second in seconds)
        print(f"{name:>10}: {rates[name]:.1f} MB/s, {rates[name] / args.threads:.1f} a thread  ({spread})")
    ratio = rates["zbelastic"] / rates["tokenizers"]
    print(f"zbelastic has {ratio:.2f} of the rate")
    wrong = []
    if report["tokens"] != expected + end:
        wrong.append(f"{report['tokens']} tokens in the store, expected {expected} and {end} ends")
    if ratio < 1:
        wrong.append("it is slower")
    print("\n".join(wrong) if wrong else "as many tokens")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
