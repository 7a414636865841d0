"""Makes the figures of `vectors/lora/`: adapters of the models in `vectors/hf/`, trained by peft for six steps.

    python trainer/tests/oracles/lora_vectors.py

Needs the packages `torch`, `transformers` and `peft`.
"""

import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

VECTORS = pathlib.Path(__file__).parent / "vectors"
CASES = {
    "gpt2_attention": ("gpt2_tied", dict(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)),
    "gpt2_mlp": ("gpt2_tied", dict(r=3, lora_alpha=2, target_modules=["c_fc", "mlp.c_proj"], fan_in_fan_out=True)),
    "llama_usual": ("llama_untied", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "llama_all": ("llama_untied", dict(r=2, lora_alpha=3, target_modules="all-linear")),
}


def make(name, base, settings):
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        VECTORS / "hf" / base, dtype=torch.float32, attn_implementation="eager"
    )
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **settings)
    model = peft.get_peft_model(model, config)
    adapters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    with torch.no_grad():
        # A second matrix of zeros would leave the first one without a gradient.
        for name_, p in adapters:
            if "lora_B" in name_:
                p.normal_(std=0.05)
    folder = VECTORS / "lora" / name
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    written = json.loads((folder / "adapter_config.json").read_text())
    written["base_model_name_or_path"] = base
    written["target_modules"].sort()
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    ids = load_file(VECTORS / "hf" / base / "expected.safetensors")["input_ids"]
    short = lambda name_: name_.replace(".default", "")
    optimizer = torch.optim.AdamW(
        [p for _, p in adapters], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    out = {"input_ids": ids}
    steps = []
    for step, batch in enumerate(ids.long()):
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            out["logits_step0"] = logits.detach().contiguous()
            out.update({"grad_step0." + short(n): p.grad.clone() for n, p in adapters})
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in adapters], 1.0)
        optimizer.step()
        steps.append({"step": step, "loss": loss.item(), "grad_norm": norm.item()})
    out.update({"param_after6." + short(n): p.detach().clone() for n, p in adapters})
    save_file(out, folder / "expected.safetensors")
    about = {
        "peft": peft.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "trajectory": steps,
    }
    (folder / "expected.json").write_text(json.dumps(about, indent=1) + "\n")
    print(name, len(adapters), steps[0], steps[-1])


for name, (base, settings) in CASES.items():
    make(name, base, settings)
