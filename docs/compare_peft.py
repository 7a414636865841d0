"""Exports the adapters of a run, loads them in peft, and compares logits with those of the merged model.

    python docs/compare_peft.py BINARY RUN BASE [--prompt TEXT] [--tokens 50]

RUN is the folder of a run with `lora.rank`, and BASE that of the model that it began with. The logits of BASE with
the adapters are compared with those of the model that `export --merge` writes, and the greedy text of peft
with that of `zbelastic generate RUN`. Needs the packages `torch`, `transformers` and `peft`. Ends with 1 if a logit differs by
more than 1e-4, a token differs, or the adapters change nothing.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import peft
import torch
import transformers

LOGIT_DIFFERENCE_MAX = 1e-4


def call(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("run")
    parser.add_argument("base")
    parser.add_argument("--prompt", default="To be, or not to be")
    parser.add_argument("--tokens", type=int, default=50)
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
