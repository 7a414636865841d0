//! `generate`: text from the model of a run, or of any folder in Hugging Face's form.
//!
//! The prompt is read once; each token after it is a pass over that token alone. Text is printed as
//! it is drawn.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::json;
use zbelastic_kernels::CpuBackend;
use zbelastic_machine::device::code_of_fault;
use zbelastic_machine::thread_count;
use zbelastic_tokenizer::{DecodeError, DecodeStream, SpecialTokens};
use zbelastic_trainer::decoder::Decoder;
use zbelastic_trainer::sample::SamplingConfig;
use zbelastic_wording::figures::{duration_text, grouped};
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail, print_error_line};

use super::reach::write_json;
use crate::args::GenerateArgs;
use crate::commands::saved_model::{SavedModel, damaged, does_not_fit};
use crate::terminal::printable;
use crate::tokenizer_encoder::TokenizerEncoder;

/// Why no more tokens follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// As many as were requested are there.
    Count,
    /// The token that ends a text was drawn.
    End,
    /// The model can see no more.
    Context,
}

impl StopReason {
    const fn word(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::End => "end",
            Self::Context => "context",
        }
    }
}

/// The text that was generated.
struct Generated {
    ids: Vec<u32>,
    text: String,
    stop: StopReason,
}

/// Runs `generate`.
///
/// # Errors
/// If there is no model or no tokenizer for it, the prompt does not fit the context, the model has
/// logits that are no numbers, or `out` cannot be written.
pub fn run(args: &GenerateArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let draw = sampling(args)?;
    let saved = SavedModel::open(&args.model.run, args.model.step)?
        .with_tokenizer(args.model.tokenizer.as_deref());
    let encoder = saved.encoder()?;
    let prompt = prompt_ids(args, &saved, &encoder)?;
    let backend =
        CpuBackend::new(thread_count(args.model.threads)).map_err(|error| does_not_fit(&error))?;
    let decoder = Decoder::new(backend, &saved.config, saved.weights()?);
    let mut decoder = decoder.map_err(|error| does_not_fit(&error))?;
    let generation = Generation { args, encoder: &encoder, prompt: &prompt, draw };
    let positions = saved.config.positions;
    let began = Instant::now();
    let generated = generation.run(&mut decoder, positions as usize, &mut |piece| {
        if args.json {
            return Ok(());
        }
        write!(out, "{}", piece.chars().map(printable).collect::<String>())?;
        out.flush()
    })?;
    report(args, &generated, prompt.len(), (began.elapsed(), positions), out)
}

fn report(
    args: &GenerateArgs,
    generated: &Generated,
    prompt_tokens: usize,
    (took, positions): (Duration, u32),
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let Generated { ids, text, stop } = generated;
    let rate = ids.len() as f64 / took.as_secs_f64().max(1e-9);
    if args.json {
        return write_json(
            out,
            &json!({
                "prompt_tokens": prompt_tokens, "tokens": ids, "text": text,
                "stopped": stop.word(), "tokens_per_s": rate,
            }),
        );
    }
    writeln!(out)?;
    out.flush()?;
    let count = grouped(ids.len() as u64);
    let took = duration_text(took);
    print_error_line(format_args!("{count} tokens in {took}, {rate:.1} tokens/s"));
    if *stop == StopReason::Context {
        let positions = grouped(positions.into());
        let note = format_args!("note: the model's context of {positions} tokens is full");
        print_error_line(note);
    }
    Ok(())
}

fn sampling(args: &GenerateArgs) -> Result<SamplingConfig, CommandFailure> {
    let refused = |flag: &str, what: String| {
        let detail = FailureDetail::new(what).at(flag);
        CommandFailure::usage("the command line", vec![detail])
    };
    let GenerateArgs { temperature, top_p, top_k, seed, .. } = *args;
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(refused("--temperature", format!("expected 0 or more, found {temperature}")));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        let what = format!("expected a share above 0 and up to 1, found {top_p}");
        return Err(refused("--top-p", what));
    }
    Ok(SamplingConfig { temperature, top_p, top_k: top_k.map(|count| count as usize), seed })
}

fn prompt_ids(
    args: &GenerateArgs,
    saved: &SavedModel,
    encoder: &TokenizerEncoder,
) -> Result<Vec<u32>, CommandFailure> {
    let refused =
        |detail: FailureDetail| CommandFailure::usage("the prompt", vec![detail.at("--prompt")]);
    let ids = encoder.encode_prompt(&args.prompt);
    let mut ids = ids.map_err(|error| refused(FailureDetail::new(error.to_string())))?;
    if ids.is_empty() {
        // The token that ends texts stands before each but the first, so a text begins behind it.
        ids.extend(encoder.tokenizer().eos_id());
    }
    let positions = saved.config.positions;
    if ids.is_empty() {
        let detail =
            FailureDetail::new("it has no tokens, and the tokenizer none that begins a text");
        return Err(refused(detail.hint("a word to begin with")));
    }
    if ids.len() >= positions as usize {
        let what = format!("it has {} tokens, and the model sees {positions}", ids.len());
        let detail = FailureDetail::new(what).why("what is generated has to fit behind it");
        return Err(refused(detail.hint("a shorter prompt, or the end of this one")));
    }
    Ok(ids)
}

/// What is to be generated.
struct Generation<'a> {
    args: &'a GenerateArgs,
    encoder: &'a TokenizerEncoder,
    prompt: &'a [u32],
    draw: SamplingConfig,
}

impl Generation<'_> {
    /// Draws tokens up to a context of `positions`, and passes on the text of each as soon as it is
    /// whole.
    fn run(
        &self,
        decoder: &mut Decoder<'_, CpuBackend>,
        positions: usize,
        show: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<Generated, CommandError> {
        let mut text = DecodeStream::new(self.encoder.tokenizer(), SpecialTokens::Exclude);
        // Decoders treat the first word of a text differently: the prompt stands before it.
        for id in self.prompt {
            text.push(*id).map_err(|error| no_text(&error))?;
        }
        let mut generated =
            Generated { ids: Vec::new(), text: String::new(), stop: StopReason::Count };
        let mut next = self.prompt.to_vec();
        generated.stop = loop {
            if let Some(reason) = self.stop(generated.ids.len(), positions) {
                break reason;
            }
            let logits = decoder.read(&next).map_err(|error| does_not_fit(&error))?;
            check_logits(decoder, &logits)?;
            let position = self.prompt.len() + generated.ids.len();
            let id = self.draw.draw(&logits, position as u64);
            if self.is_end(id) {
                break StopReason::End;
            }
            generated.ids.push(id);
            next = vec![id];
            generated.add(&text.push(id).map_err(|error| no_text(&error))?, show)?;
        };
        generated.add(&text.finish().map_err(|error| no_text(&error))?, show)?;
        Ok(generated)
    }

    /// Whether nothing follows behind so many tokens.
    fn stop(&self, generated: usize, positions: usize) -> Option<StopReason> {
        if generated == self.args.max_tokens as usize {
            return Some(StopReason::Count);
        }
        (self.prompt.len() + generated == positions).then_some(StopReason::Context)
    }

    fn is_end(&self, id: u32) -> bool {
        self.args.stop_at_end && self.encoder.tokenizer().stop_ids().contains(&id)
    }
}

impl Generated {
    fn add(&mut self, piece: &str, show: &mut dyn FnMut(&str) -> io::Result<()>) -> io::Result<()> {
        self.text.push_str(piece);
        show(piece)
    }
}

fn check_logits(decoder: &Decoder<'_, CpuBackend>, logits: &[f32]) -> Result<(), CommandFailure> {
    if let Some(fault) = decoder.fault() {
        return Err(CommandFailure::new(code_of_fault(&fault), fault.to_string()));
    }
    if logits.iter().any(|logit| logit.is_nan()) {
        return Err(damaged("the model's logits are no numbers"));
    }
    Ok(())
}

fn no_text(error: &DecodeError) -> CommandFailure {
    CommandFailure::usage("the tokenizer", vec![FailureDetail::new(error.to_string())])
}
