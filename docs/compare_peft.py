"""Exports the adapters of a run, loads them in peft, and compares logits with those of the merged model.

    python docs/compare_peft.py BINARY RUN BASE [--prompt TEXT] [--tokens 50] [--text FILE]

RUN is the folder of a run with `lora.rank`, and BASE that of the model that it began with. The logits of BASE with
the adapters are compared with those of the model that `export --merge` writes, and the greedy text of peft
with that of `zbelastic generate RUN`. With `--text` also the other way: adapters that peft made of BASE, with `use_rslora` and without, are trained on
by `lora.from` for a step that changes nothing, and come out of `export` bit for bit, with peft's logits when merged. Needs the packages `torch`, `transformers` and `peft`. Ends with 1 if a logit differs by
more than 1e-4, a token or an adapter differs, or the adapters change nothing.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import peft
import safetensors.torch
import torch
import transformers

LOGIT_DIFFERENCE_MAX = 1e-4


def call(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def back(args, folder, is_root):
    """The faults of adapters of peft's that go through a run."""
    name = "rslora" if is_root else "standard"
    base = load(args.base)
    targets = ["c_attn", "c_proj"] if base.config.model_type == "gpt2" else ["q_proj", "o_proj", "up_proj"]
    torch.manual_seed(7)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=targets, use_rslora=is_root, lora_dropout=0.1, task_type="CAUSAL_LM",
        fan_in_fan_out=base.config.model_type == "gpt2",
    )
    adapted = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        for key, tensor in adapted.named_parameters():
            if "lora_B" in key:
                tensor.normal_(0, 0.05)
    ids = torch.arange(60).reshape(1, -1) % base.config.vocab_size
    with torch.no_grad():
        expected = adapted(ids).logits
    adapted.save_pretrained(folder / name)
    run = folder / f"run-{name}"
    settings = [
        f"model.from_hf={args.base}", f"lora.from={folder / name}", f"data.text={args.text}", "train.steps=1",
        "train.seq_len=32", "train.global_batch=2", "train.microbatch=1", "optimizer.lr=1e-30",
    ]
    command = [args.binary, "train", "--threads-only", "--workers", 1, "--out", run]
    call(*command, *(word for setting in settings for word in ("--set", setting)))
    call(args.binary, "export", run, "--to", folder / f"again-{name}")
    call(args.binary, "export", run, "--to", folder / f"merged-{name}", "--merge")
    before, after = (
        safetensors.torch.load_file(path / "adapter_model.safetensors")
        for path in (folder / name, folder / f"again-{name}")
    )
    with torch.no_grad():
        difference = (load(folder / f"merged-{name}")(ids).logits - expected).abs().max().item()
    print(f"{len(before)} tensors of peft, {name}: logits of the merged model differ by {difference:.1e}")
    if before.keys() != after.keys() or not all(torch.equal(before[key], after[key]) for key in before):
        yield f"adapters of peft's ({name}) come out as others"
    if not difference <= LOGIT_DIFFERENCE_MAX:
        yield f"logits of peft's adapters ({name}) differ by {difference}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("run")
    parser.add_argument("base")
    parser.add_argument("--prompt", default="To be, or not to be")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        call(args.binary, "export", args.run, "--to", folder / "adapter")
        call(args.binary, "export", args.run, "--to", folder / "merged", "--merge")
        merged = load(folder / "merged")
        base = load(args.base)
        has_tokenizer = (folder / "merged" / "tokenizer.json").exists()
        if has_tokenizer:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "merged")
            ids = tokenizer(args.prompt, return_tensors="pt").input_ids
        else:
            ids = torch.tensor([list(args.prompt.encode())])
        with torch.no_grad():
            before = base(ids).logits
            adapted = peft.PeftModel.from_pretrained(base, folder / "adapter").eval()
            logits = adapted(ids).logits
            difference = (logits - merged(ids).logits).abs().max().item()
            change = (logits - before).abs().max().item()
            tokens = min(args.tokens, base.config.max_position_embeddings - ids.shape[1])
            out = adapted.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                eos_token_id=[-1], pad_token_id=0,
            )[0].tolist()[ids.shape[1] :]
    if has_tokenizer:
        expected = tokenizer.decode(out, skip_special_tokens=True).encode()
    else:
        expected = bytes(id for id in out if id < 256)
    found = call(
        args.binary, "generate", args.run, "--prompt", args.prompt, "--max-tokens", tokens, "--temperature", 0
    )
    print(f"peft {peft.__version__}, {base.config.model_type}: logits differ by {difference:.1e}, adapters change them by {change:.1e}")
    wrong = []
    if args.text:
        with tempfile.TemporaryDirectory() as folder:
            wrong.extend(fault for is_root in (False, True) for fault in back(args, pathlib.Path(folder), is_root))
    if not difference <= LOGIT_DIFFERENCE_MAX:
        wrong.append(f"logits differ by {difference}")
    if not change > 10 * LOGIT_DIFFERENCE_MAX:
        wrong.append(f"adapters change logits by {change} only")
    if expected not in found:
        wrong.append(f"text differs\nexpected {expected!r}\nfound    {found!r}")
    print("\n".join(wrong) if wrong else f"{tokens} tokens are equal")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
