//! `eval`: the loss of a model on texts or on a token store, as perplexity and bits per byte too.
//!
//! Texts become a token store in a temporary folder, by the code of `data prepare`: what is
//! evaluated is what training would read, tokens that end documents and loss masks of chats among
//! it.

mod targets;

use std::env;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use zbelastic_config::{RunConfig, load_recorded};
use zbelastic_data::encode::EncodeDocuments;
use zbelastic_data::prepare::{PrepareError, PrepareRequest, SHARD_TOKENS};
use zbelastic_data::source::SourceOptions;
use zbelastic_data::store::TokenStore;
use zbelastic_data::window::{PackedWindow, Packing, window_count};
use zbelastic_kernels::{AllocateError, CpuBackend};
use zbelastic_local::interrupt::Interrupt;
use zbelastic_machine::device::code_of_fault;
use zbelastic_machine::thread_count;
use zbelastic_trainer::evaluator::Evaluator;
use zbelastic_whole_file::TemporaryFolder;
use zbelastic_wording::figures::{duration_text, grouped};
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail, cannot_write};

use self::targets::TargetBytes;
use super::data::open_store;
use super::reach::write_json;
use crate::args::EvalArgs;
use crate::commands::saved_model::{SavedModel, damaged, does_not_fit};
use crate::data_failure as failure;
use crate::progress::CommandProgress;
use crate::run_files::CONFIG;
use crate::store_maker::try_make_store;
use crate::tokenizer_encoder::TokenizerEncoder;

/// Inputs of a window for models that no run of ours left, if their context is not shorter: beyond
/// it memory of activations grows, and losses hardly change.
const WINDOW_DEFAULT: u32 = 1024;

/// The sums over all windows that were read.
struct EvalTotals {
    window: u32,
    windows: u64,
    /// Targets that count in the loss.
    tokens: u64,
    /// Bytes of the text of those; nothing where the tokenizer is not known.
    bytes: Option<u64>,
    /// Sum of their cross-entropies, in nats.
    loss_sum: f64,
}

impl EvalTotals {
    /// Mean cross-entropy of a token in nats.
    fn loss(&self) -> f64 {
        self.loss_sum / self.tokens as f64
    }

    /// How far it is, and the mean loss so far.
    fn progress_text(&self, read: u64, tokens_per_s: f64) -> String {
        let Self { window, windows, .. } = self;
        let rate = grouped(tokens_per_s.round() as u64);
        let loss = self.loss();
        let windows = grouped(*windows);
        format!("{} of {windows} windows of {window}, loss {loss:.3}, {rate} tok/s", grouped(read))
    }

    /// Shannon's measure: what the model needs to store a byte of the text.
    fn bits_per_byte(&self) -> Option<f64> {
        let bytes = self.bytes.filter(|bytes| *bytes > 0)?;
        Some(self.loss_sum / std::f64::consts::LN_2 / bytes as f64)
    }
}

/// How windows are read and evaluated.
struct EvalSetup<'a> {
    args: &'a EvalArgs,
    saved: &'a SavedModel,
    /// Inputs of a window.
    window: u32,
    packing: Packing,
    interrupt: Interrupt,
}

/// Runs `eval`.
///
/// # Errors
/// If there is no model, the texts or the store cannot be read or are not of its tokens, there is no
/// window of them, `out` cannot be written, or a signal ended it.
pub fn run(args: &EvalArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let saved = SavedModel::open(&args.model.run, args.model.step)?
        .with_tokenizer(args.model.tokenizer.as_deref());
    let trained = trained_config(&saved)?;
    let window = window_of(args, &saved, trained.as_ref())?;
    // The loss is to be that of the run's held-out windows.
    let packing = trained.map_or(Packing::Concat, |config| config.tokens.packing);
    let interrupt = Interrupt::listen(None, "window")?;
    let setup = EvalSetup { args, saved: &saved, window, packing, interrupt };
    let began = Instant::now();
    let totals = match &args.tokens {
        Some(folder) => {
            let store = open_store(folder)?;
            let encoder = encoder_of_store(&saved, &store)?;
            setup.evaluate(&store, encoder.as_ref())?
        }
        None => {
            let encoder = saved.encoder()?;
            let scratch = TemporaryFolder::temporary("eval")
                .map_err(|error| cannot_write(&env::temp_dir(), &error))?;
            let folder = scratch.path().join("store");
            let made = try_make_store(&request(args, &folder), &encoder, &setup.interrupt);
            made.map_err(|error| match matches!(error, PrepareError::Stopped) {
                true => setup.interrupted(),
                false => failure::of_prepare(&error, &[failure::FIELD]),
            })?;
            let store = TokenStore::open(&folder).map_err(|error| failure::of_store(&error))?;
            setup.evaluate(&store, Some(&encoder))?
        }
    };
    report(args, &totals, began, out)
}

/// The configuration of the run that left the model, if one did and it is there.
fn trained_config(saved: &SavedModel) -> Result<Option<RunConfig>, CommandFailure> {
    let run = saved.run.as_ref().filter(|run| !run.document.is_empty());
    let Some(run) = run else { return Ok(None) };
    let name = run.folder.join(CONFIG).display().to_string();
    load_recorded(&name, &run.document).map(|loaded| Some(loaded.config))
}

/// Inputs of a window: as typed, or as the run was trained, or as many as the model sees.
fn window_of(
    args: &EvalArgs,
    saved: &SavedModel,
    trained: Option<&RunConfig>,
) -> Result<u32, CommandFailure> {
    let positions = saved.config.positions;
    let trained = trained.map(|config| config.batch.microbatch.sequence_len as u32);
    let default = trained.unwrap_or(WINDOW_DEFAULT).min(positions);
    let window = args.window.unwrap_or(default);
    if window <= positions {
        return Ok(window);
    }
    let what = format!("windows of {window} tokens, and the model sees {positions}");
    let detail = FailureDetail::new(what).at("--window");
    let detail = detail.hint(format!("--window {positions} or less"));
    Err(CommandFailure::usage("the command line", vec![detail]))
}

fn request(args: &EvalArgs, folder: &Path) -> PrepareRequest {
    PrepareRequest {
        entries: args.text.clone(),
        options: SourceOptions { field: args.field.clone(), ..SourceOptions::default() },
        threads: NonZeroUsize::new(thread_count(args.model.threads)).unwrap_or(NonZeroUsize::MIN),
        shard_tokens: SHARD_TOKENS,
        folder: folder.to_owned(),
    }
}

/// The tokenizer of a store, if the model has it; nothing if the model has none at all.
fn encoder_of_store(
    saved: &SavedModel,
    store: &TokenStore,
) -> Result<Option<TokenizerEncoder>, CommandFailure> {
    let manifest = store.manifest();
    let refused = |what: String| {
        let detail = FailureDetail::new(what).at("--tokens");
        let detail = detail
            .why("another tokenizer gives the ids another meaning")
            .hint("`zbelastic data prepare --tokenizer` with the model's folder; or --text");
        CommandFailure::usage("the token store", vec![detail])
    };
    if manifest.vocabulary > saved.config.vocabulary {
        let what = format!(
            "it is of {} tokens, the model of {}",
            manifest.vocabulary, saved.config.vocabulary
        );
        return Err(refused(what));
    }
    let is_bytes = saved.tokenizer_folder().is_none();
    if let Some(expected) =
        saved.run.as_ref().filter(|_| is_bytes).and_then(|run| run.tokens().hash())
    {
        let found = manifest.tokenizer.to_string();
        if found != expected {
            return Err(refused(format!("its tokenizer has hash {found}, the run's {expected}")));
        }
    }
    let encoder = if is_bytes { TokenizerEncoder::bytes() } else { saved.encoder()? };
    let found = encoder.tokenizer_hash().0;
    if found == manifest.tokenizer {
        return Ok(Some(encoder));
    }
    if is_bytes {
        return Ok(None);
    }
    Err(refused(format!("its tokenizer has hash {}, the model's {found}", manifest.tokenizer)))
}

impl EvalSetup<'_> {
    fn evaluate(
        &self,
        store: &TokenStore,
        encoder: Option<&TokenizerEncoder>,
    ) -> Result<EvalTotals, CommandFailure> {
        let Self { args, saved, window, packing, interrupt } = self;
        let window = *window;
        let packing = *packing;
        let sequence_len = window as usize;
        let windows = window_count(store.tokens(), u64::from(window));
        if windows == 0 {
            return Err(too_short(store.tokens(), window));
        }
        let windows = windows.min(args.windows_max.unwrap_or(u64::MAX));
        let backend =
            CpuBackend::new(thread_count(args.model.threads)).map_err(|error| no_memory(&error))?;
        let model = &saved.config;
        let evaluator = Evaluator::new(backend, model, sequence_len, saved.weights()?);
        let mut evaluator = evaluator.map_err(|error| no_memory(&error))?;
        let mut reading = EvalReading {
            bytes: encoder.map(|encoder| TargetBytes::new(encoder.tokenizer())),
            has_first: false,
            totals: EvalTotals { window, windows, tokens: 0, bytes: None, loss_sum: 0.0 },
        };
        let mut progress = CommandProgress::new();
        for index in 0..windows {
            if interrupt.is_requested() {
                return Err(self.interrupted());
            }
            let first = index * u64::from(window);
            let packed = store.window(first, sequence_len, packing);
            let packed = packed.map_err(|error| failure::of_store(&error))?;
            reading.add(&mut evaluator, packed, packing)?;
            let seconds = progress.elapsed().as_secs_f64().max(1e-9);
            let rate = (index + 1) as f64 * f64::from(window) / seconds;
            progress.report(index + 1, windows, || reading.totals.progress_text(index + 1, rate));
        }
        progress.finish();
        reading.finish()
    }

    fn interrupted(&self) -> CommandFailure {
        CommandFailure::new(self.interrupt.code(), "interrupted")
    }
}

/// The windows read so far.
struct EvalReading<'t> {
    bytes: Option<TargetBytes<'t>>,
    /// Whether the first id, which is no target, was read.
    has_first: bool,
    totals: EvalTotals,
}

impl EvalReading<'_> {
    fn add(
        &mut self,
        evaluator: &mut Evaluator<'_, CpuBackend>,
        window: PackedWindow,
        packing: Packing,
    ) -> Result<(), CommandFailure> {
        let windows = [window];
        let batch = PackedWindow::batch(&windows, packing);
        let loss = evaluator.loss_sum(&batch);
        self.totals.loss_sum +=
            loss.map_err(|fault| CommandFailure::new(code_of_fault(&fault), fault.to_string()))?;
        self.totals.tokens += batch.target_count();
        let Some(bytes) = &mut self.bytes else { return Ok(()) };
        let [window] = windows;
        if !std::mem::replace(&mut self.has_first, true) {
            bytes.add(window.ids[0], false)?;
        }
        let mut targets = window.ids[1..].iter().zip(&window.loss_mask);
        targets.try_for_each(|(id, counts)| bytes.add(*id, *counts))
    }

    fn finish(self) -> Result<EvalTotals, CommandFailure> {
        let Self { bytes, mut totals, .. } = self;
        totals.bytes = bytes.map(|bytes| bytes.count());
        if totals.tokens == 0 {
            let detail = FailureDetail::new("no target of its windows counts in the loss");
            let detail = detail.hint("a text whose documents are not all questions");
            return Err(CommandFailure::usage("the text", vec![detail]));
        }
        if totals.loss_sum.is_finite() {
            return Ok(totals);
        }
        Err(damaged("the model's loss is no number"))
    }
}

fn too_short(found: u64, window: u32) -> CommandFailure {
    let needed = window + 1;
    let what = format!("it has {found} tokens, and a window takes {needed}");
    let hint = match found {
        0 | 1 => "more text".to_owned(),
        _ => format!("more text, or --window {}", found - 1),
    };
    CommandFailure::usage("the text", vec![FailureDetail::new(what).hint(hint)])
}

fn no_memory(error: &AllocateError) -> CommandFailure {
    let mut failure = does_not_fit(error);
    let detail = FailureDetail::new("activations and logits of a window are kept beside it");
    failure.details = vec![detail.hint("a smaller --window")];
    failure
}

fn report(
    args: &EvalArgs,
    totals: &EvalTotals,
    began: Instant,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let EvalTotals { window, windows, tokens, bytes, .. } = *totals;
    let loss = totals.loss();
    let bits = totals.bits_per_byte();
    let perplexity = finite(loss.exp());
    if args.json {
        return write_json(
            out,
            &json!({
                "loss": loss, "perplexity": perplexity, "bits_per_byte": bits, "tokens": tokens,
                "bytes": bytes, "windows": windows, "window": window,
            }),
        );
    }
    let count = grouped(tokens);
    let text = bytes.map_or(String::new(), |bytes| format!(", {} bytes of text", grouped(bytes)));
    writeln!(out, "loss           {loss:.4} nats a token")?;
    writeln!(out, "perplexity     {:.2}", loss.exp())?;
    match bits {
        Some(bits) => writeln!(out, "bits per byte  {bits:.4}")?,
        None => writeln!(out, "bits per byte  not known: the model has no tokenizer beside it")?,
    }
    writeln!(out, "tokens         {count}{text}")?;
    writeln!(out, "windows        {} of {} inputs", grouped(windows), grouped(window.into()))?;
    writeln!(out, "took           {}", duration_text(began.elapsed()))?;
    Ok(())
}

/// A number that JSON has.
fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_perplexity_and_bits_are_of_one_sum() {
        let nats = 100.0 * std::f64::consts::LN_2;
        let totals =
            EvalTotals { window: 50, windows: 2, tokens: 100, bytes: Some(400), loss_sum: nats };
        assert!((totals.loss().exp() - 2.0).abs() < 1e-12, "a bit a token");
        assert_eq!(totals.bits_per_byte(), Some(0.25));
        assert_eq!(EvalTotals { bytes: None, ..totals }.bits_per_byte(), None);
    }

    #[test]
    fn a_short_text_is_refused_with_a_window_that_fits() {
        let text = too_short(12, 64).to_string();
        assert!(text.contains("12 tokens") && text.contains("--window 11"), "{text}");
        assert!(too_short(1, 64).to_string().contains("try: more text"));
    }
}
