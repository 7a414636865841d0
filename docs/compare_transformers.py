"""Loads an exported model in transformers and compares its greedy text with that of `zbelastic generate`.

    python docs/compare_transformers.py BINARY MODEL --prompt TEXT [--tokens 200]

MODEL is a folder that `zbelastic export` wrote, or any folder of a supported model. Needs the packages
`torch` and `transformers`. Ends with 1 if a key is missing or unexpected, or a token differs.
"""

import argparse
import pathlib
import subprocess
import sys

import torch
import transformers


def generated(binary, model, prompt, tokens):
    command = [binary, "generate", model, "--prompt", prompt, "--max-tokens", str(tokens), "--temperature", "0"]
    return subprocess.run(command, check=True, capture_output=True).stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    wrong = [f"{kind}: {info[kind]}" for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]]
    has_tokenizer = (pathlib.Path(args.model) / "tokenizer.json").exists()
    if has_tokenizer:
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
        ids = tokenizer(args.prompt, return_tensors="pt").input_ids
    else:
        ids = torch.tensor([list(args.prompt.encode())])
    tokens = min(args.tokens, model.config.max_position_embeddings - ids.shape[1])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, eos_token_id=[-1],
            pad_token_id=0,
        )[0].tolist()
    if has_tokenizer:
        expected = tokenizer.decode(out[ids.shape[1] :], skip_special_tokens=True).encode()
    else:
        expected = bytes(id for id in out[ids.shape[1] :] if id < 256)
    found = generated(args.binary, args.model, args.prompt, tokens)
    print(f"{model.config.model_type}, {tokens} tokens, transformers {transformers.__version__}, torch {torch.__version__}")
    if expected not in found:
        wrong.append(f"text differs\nexpected {expected!r}\nfound    {found!r}")
    print("\n".join(wrong) if wrong else "no key is missing or unexpected, and the texts are equal")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
