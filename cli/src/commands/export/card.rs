//! The `README.md` of an exported model: what it is, which run it comes from, and by which digests
//! that can be checked. The same model has the same card: it names no time and no machine.

use std::fmt::Write as _;

use zbelastic_trainer::hf::WeightType;
use zbelastic_trainer::model::{LayerSpec, LoraConfig, ModelConfig, model_layers, model_size};
use zbelastic_wording::figures::grouped;

use super::tokenizer_source::ExportedTokenizer;

/// The run of a model, as far as it was recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRecord {
    /// Its name, or that of its folder.
    pub name: String,
    /// Steps behind the weights.
    pub steps: Option<u64>,
    /// Digest of weights, moments and updates after them.
    pub state_digest: Option<String>,
    /// The digests of the layers that it is a hash over, in the model's order; empty where only the
    /// whole was recorded.
    pub layer_digests: Vec<String>,
    /// What it was trained on.
    pub data: Option<TrainedData>,
    /// The configuration, as TOML.
    pub document: String,
}

/// What a run was trained on, by the BLAKE3 hash of its content.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainedData {
    /// A text.
    Text(String),
    /// Token stores, their weights and packing.
    Stores(String),
    /// One of them: a checkpoint of a cluster has the hash alone.
    Unknown(String),
}

/// A file of weights, as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenFile {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub hash: String,
}

/// What a card says.
#[derive(Clone, Copy, Debug)]
pub struct ModelCard<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// The type of its weights.
    pub kind: WeightType,
    /// What makes tokens of text for it.
    pub tokenizer: &'a ExportedTokenizer,
    /// The run that made it; nothing for a model that no run of ours left.
    pub run: Option<&'a RunRecord>,
    /// Its files of weights.
    pub files: &'a [WrittenFile],
    /// Whether that is all of it.
    pub form: ExportForm<'a>,
}

/// What is exported of a model.
#[derive(Clone, Copy, Debug)]
pub enum ExportForm<'a> {
    /// All of it.
    Whole,
    /// Its adapters.
    Adapters {
        /// The folder of the model that they are of, if it lies in one.
        base: Option<&'a str>,
    },
}

/// The card in Markdown.
#[must_use]
pub fn render(card: &ModelCard<'_>) -> String {
    let library = match card.form {
        ExportForm::Whole => "transformers",
        ExportForm::Adapters { .. } => "peft",
    };
    let mut text = format!(
        "---\nlibrary_name: {library}\npipeline_tag: text-generation\ntags:\n- zbelastic\n---\n\n",
    );
    let name = card.run.map_or("model", |run| &run.name);
    let _ = writeln!(text, "# {name}\n");
    write_model(&mut text, card);
    match card.form {
        ExportForm::Whole => write_use(&mut text, card.tokenizer),
        ExportForm::Adapters { base } => write_adapter_use(&mut text, base),
    }
    if let Some(run) = card.run {
        write_certificate(&mut text, run);
    }
    write_files(&mut text, card.files);
    if let Some(run) = card.run.filter(|run| !run.document.is_empty()) {
        // A document has no fence of its own: TOML knows no backticks outside texts.
        let _ = writeln!(text, "## Configuration\n\n````toml\n{}\n````", run.document.trim_end());
    }
    text
}

/// Parameters of a model's adapters.
#[must_use]
pub fn adapter_parameters(model: &ModelConfig) -> u64 {
    model_layers(model).iter().map(LayerSpec::trained_floats).sum::<usize>() as u64
}

fn write_model(text: &mut String, card: &ModelCard<'_>) {
    let ModelConfig { family, blocks, width, heads, kv_heads, vocabulary, positions, .. } =
        card.model;
    let (_, parameters) = model_size(&card.model.without_lora());
    let rows = [
        ("parameters", grouped(parameters)),
        ("family", format!("{family:?}").to_lowercase()),
        ("layers", blocks.to_string()),
        ("width", width.to_string()),
        ("heads", format!("{heads}, of keys and values {kv_heads}")),
        ("vocabulary", grouped(u64::from(*vocabulary))),
        ("context", grouped(u64::from(*positions))),
        ("weights", card.kind.torch_name().to_owned()),
    ];
    text.push_str("| | |\n|---|---|\n");
    let lora =
        card.model.lora.as_ref().filter(|_| matches!(card.form, ExportForm::Adapters { .. }));
    let adapters = lora.map(|lora| {
        let parameters = adapter_parameters(card.model);
        let LoraConfig { rank, alpha, scaling, .. } = lora;
        let over = if scaling.is_standard() { "" } else { ", rsLoRA" };
        let parameters = grouped(parameters);
        ("adapters", format!("{parameters} parameters, rank {rank}, alpha {alpha}{over}"))
    });
    for (name, value) in adapters.into_iter().chain(rows) {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text.push('\n');
}

/// How adapters are read: over the model that they are of.
fn write_adapter_use(text: &mut String, base: Option<&str>) {
    let base = base.unwrap_or("BASE");
    let _ = writeln!(
        text,
        "These are low-rank adapters. The model that they are of is not here.\n\n\
         ## Use\n\n```python\nfrom peft import PeftModel\n\
         from transformers import AutoModelForCausalLM\n\n\
         base = AutoModelForCausalLM.from_pretrained(\"{base}\")\n\
         model = PeftModel.from_pretrained(base, \"DIR\")\n```\n"
    );
}

fn write_use(text: &mut String, tokenizer: &ExportedTokenizer) {
    let (imports, how) = match tokenizer {
        ExportedTokenizer::Files(_) => {
            (", AutoTokenizer", "tokenizer = AutoTokenizer.from_pretrained(\"DIR\")")
        }
        ExportedTokenizer::Bytes => ("", "# Each byte of a text is the token of its value."),
        ExportedTokenizer::Unknown => ("", "# The tokenizer that it was trained with is not here."),
    };
    let _ = writeln!(
        text,
        "## Use\n\n```python\nfrom transformers import AutoModelForCausalLM{imports}\n\n\
         model = AutoModelForCausalLM.from_pretrained(\"DIR\", dtype=\"auto\")\n{how}\n```\n"
    );
    let before = match tokenizer {
        ExportedTokenizer::Files(_) | ExportedTokenizer::Bytes => "",
        ExportedTokenizer::Unknown => ", once its `tokenizer.json` lies in DIR",
    };
    let _ = writeln!(text, "Without Python{before}: `zbelastic generate DIR --prompt TEXT`.\n");
}

fn write_certificate(text: &mut String, run: &RunRecord) {
    text.push_str("## Certificate\n\nTrained with zbelastic");
    match run.steps {
        Some(1) => text.push_str(" for 1 step.\n"),
        Some(steps) => {
            let _ = writeln!(text, " for {} steps.", grouped(steps));
        }
        None => text.push_str(".\n"),
    }
    if let Some(digest) = &run.state_digest {
        let _ = writeln!(
            text,
            "The digest of the training state behind these weights is\n\n    {digest}\n\n\
             It is a BLAKE3 hash over the digests of all layers, each over weights and both moments, \
             and the\nnumber of updates. The configuration below on the same data has the same \
             digest again, whatever the\nworkers, the schedule and the failures."
        );
    }
    match &run.data {
        Some(TrainedData::Text(hash)) => {
            let _ = writeln!(text, "\nThe text has the BLAKE3 hash\n\n    {hash}");
        }
        Some(TrainedData::Stores(hash)) => {
            let _ = writeln!(text, "\nThe token stores have the BLAKE3 hash\n\n    {hash}");
        }
        Some(TrainedData::Unknown(hash)) => {
            let _ =
                writeln!(text, "\nThe text or the token stores have the BLAKE3 hash\n\n    {hash}");
        }
        None => {}
    }
    if !run.layer_digests.is_empty() {
        text.push_str("\n| layer | digest |\n|---:|---|\n");
        for (layer, digest) in run.layer_digests.iter().enumerate() {
            let _ = writeln!(text, "| {layer} | `{digest}` |");
        }
    }
    text.push('\n');
}

fn write_files(text: &mut String, files: &[WrittenFile]) {
    text.push_str("## Files of weights\n\n| file | bytes | BLAKE3 |\n|---|---:|---|\n");
    for WrittenFile { name, bytes, hash } in files {
        let _ = writeln!(text, "| `{name}` | {} | `{hash}` |", grouped(*bytes));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use zbelastic_config::load_document;
    use zbelastic_tokenizer::TokenizerFiles;

    use super::*;

    #[test]
    fn a_card_names_model_run_and_digests() {
        let model = load_document("test", "[model]\npreset = \"tiny\"\n").expect("legal").config;
        let run = RunRecord {
            name: "baseline".to_owned(),
            steps: Some(1200),
            state_digest: Some("ab".repeat(32)),
            layer_digests: vec!["cd".repeat(32)],
            data: Some(TrainedData::Stores("ef".repeat(32))),
            document: "[train]\nsteps = 1200\n".to_owned(),
        };
        let file = WrittenFile {
            name: "model.safetensors".to_owned(),
            bytes: 4096,
            hash: "01".repeat(32),
        };
        let kind = WeightType::Bf16;
        let files = [file];
        let card = ModelCard {
            model: &model.model,
            kind,
            tokenizer: &ExportedTokenizer::Bytes,
            run: Some(&run),
            files: &files,
            form: ExportForm::Whole,
        };
        let text = render(&card);
        assert!(text.starts_with("---\nlibrary_name: transformers\n"), "{text}");
        for part in [
            "# baseline\n",
            "| weights | bfloat16 |",
            "for 1,200 steps",
            &"ab".repeat(32),
            &format!("| 0 | `{}` |", "cd".repeat(32)),
            &format!("The token stores have the BLAKE3 hash\n\n    {}", "ef".repeat(32)),
            &format!("| `model.safetensors` | 4,096 | `{}` |", "01".repeat(32)),
            "````toml\n[train]\nsteps = 1200\n````",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(text.contains("# Each byte of a text is the token of its value."), "{text}");
        let form = ExportForm::Adapters { base: Some("models/base") };
        let adapters = render(&ModelCard { form, ..card });
        for part in ["library_name: peft\n", "from_pretrained(\"models/base\")", "PeftModel"] {
            assert!(adapters.contains(part), "no {part:?} in:\n{adapters}");
        }
        let unknown = render(&ModelCard { tokenizer: &ExportedTokenizer::Unknown, ..card });
        assert!(!unknown.contains("Each byte") && unknown.contains("is not here"), "{unknown}");
        let files = ExportedTokenizer::Files(TokenizerFiles::default());
        let foreign = render(&ModelCard { run: None, tokenizer: &files, ..card });
        assert!(foreign.contains("# model\n") && !foreign.contains("Certificate"), "{foreign}");
        assert!(foreign.contains("AutoTokenizer"), "{foreign}");
    }
}
