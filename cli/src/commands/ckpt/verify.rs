//! `ckpt verify`: every copy of every layer is read where it lies.

use std::io::Write;

use serde::Serialize;
use zbelastic_api::client::ApiClient;
use zbelastic_api::{CopyState, LayerVerified, escape};
use zbelastic_wording::{CommandError, CommandFailure, FailureCode, FailureDetail};

use super::check_exists;
use crate::commands::reach::write_json;

/// The result of verifying a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct CheckpointVerification {
    step: u64,
    layers: usize,
    copies_sound: usize,
    bytes_read: u64,
    /// Copies that are damaged or missing.
    problems: Vec<DamagedLayerCopy>,
    /// Layers of which no copy is sound.
    layers_lost: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct DamagedLayerCopy {
    layer: u32,
    node: u64,
    what: String,
}

/// Verifies one checkpoint, or all of them.
///
/// # Errors
/// If a copy is not sound, if the cluster refuses, or if `out` cannot be written.
pub fn verify(
    step: Option<u64>,
    is_json: bool,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let checkpoints = client.checkpoints().map_err(CommandFailure::from)?;
    if let Some(step) = step {
        check_exists(step, &checkpoints)?;
    }
    let mut all = Vec::new();
    for checkpoint in &checkpoints {
        if step.is_some_and(|step| step != checkpoint.step) {
            continue;
        }
        let verified = verify_one(checkpoint.step, client)?;
        if !is_json {
            print_verification(&verified, out)?;
        }
        all.push(verified);
    }
    if is_json {
        write_json(out, &all)?;
    }
    let problems: usize = all.iter().map(|verified| verified.problems.len()).sum();
    let is_sound = all.iter().all(|verified| verified.layers_lost.is_empty()) && problems == 0;
    if is_sound { Ok(()) } else { Err(failure(problems, &all).into()) }
}

fn verify_one(
    step: u64,
    client: &mut ApiClient<'_>,
) -> Result<CheckpointVerification, CommandFailure> {
    let detail = client.checkpoint(step)?;
    let mut verified = CheckpointVerification {
        step,
        layers: detail.layers.len(),
        ..CheckpointVerification::default()
    };
    for layer in &detail.layers {
        verified.count(&client.verify(step, layer.layer)?);
    }
    Ok(verified)
}

impl CheckpointVerification {
    fn count(&mut self, found: &LayerVerified) {
        let sound = self.copies_sound;
        for copy in &found.copies {
            let what = match &copy.state {
                CopyState::Sound { bytes } => {
                    self.copies_sound += 1;
                    self.bytes_read += bytes.0;
                    continue;
                }
                CopyState::Damaged { what } => format!("damaged: {what}"),
                CopyState::Missing { what } => format!("missing: {what}"),
            };
            self.problems.push(DamagedLayerCopy { layer: found.layer, node: copy.node.0, what });
        }
        if self.copies_sound == sound {
            self.layers_lost.push(found.layer);
        }
    }
}

fn print_verification(
    verified: &CheckpointVerification,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let CheckpointVerification { step, layers, copies_sound, problems, .. } = verified;
    let mark = if problems.is_empty() && verified.layers_lost.is_empty() { "✔" } else { "✘" };
    writeln!(out, "{mark} step {step}: {layers} layers, {copies_sound} copies sound")?;
    for problem in problems {
        let DamagedLayerCopy { layer, node, what } = problem;
        writeln!(out, "  layer {layer} on node {node} {}", escape(what))?;
    }
    for layer in &verified.layers_lost {
        writeln!(out, "  layer {layer} has no sound copy")?;
    }
    out.flush()?;
    Ok(())
}

fn failure(problems: usize, all: &[CheckpointVerification]) -> CommandFailure {
    let lost: Vec<String> = all
        .iter()
        .filter(|verified| !verified.layers_lost.is_empty())
        .map(|verified| verified.step.to_string())
        .collect();
    let copies = match problems {
        0 => "copies that there should be are".to_owned(),
        1 => "1 copy is".to_owned(),
        several => format!("{several} copies are"),
    };
    let mut failure =
        CommandFailure::new(FailureCode::VerificationFailed, format!("{copies} not sound"));
    let detail = match lost.is_empty() {
        true => FailureDetail::new(
            "every layer has a sound copy elsewhere: every checkpoint can be read",
        ),
        false => FailureDetail::new(format!("cannot be read any more: step {}", lost.join(", ")))
            .hint("`zbelastic ckpt restore` with another step, if the run must go back"),
    };
    failure.details = vec![detail];
    failure
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{Bytes, NodeId};

    use super::*;
    use zbelastic_api::sample::{self, digest, scripted};
    use zbelastic_api::{ApiAnswer, CheckpointDetail, LayerCopyStatus, LayerDetail};

    fn sound() -> CopyState {
        CopyState::Sound { bytes: Bytes(10) }
    }

    fn damaged() -> CopyState {
        CopyState::Damaged { what: "chunk 3".to_owned() }
    }

    /// Verifies one checkpoint of two layers with these copies.
    fn check(copies: [&[CopyState]; 2], is_json: bool) -> (Result<(), FailureCode>, String) {
        let layer = |layer| LayerDetail {
            layer,
            digest: digest(1),
            bytes: Bytes(10),
            holders: vec![NodeId(2), NodeId(3)],
        };
        let detail = CheckpointDetail {
            summary: sample::checkpoint(100),
            document: String::new(),
            corpus: digest(7),
            tokenizer: None,
            end_of_text: None,
            layers: vec![layer(0), layer(1)],
        };
        let mut answers = vec![
            Ok(ApiAnswer::Checkpoints(vec![sample::checkpoint(100)])),
            Ok(ApiAnswer::Checkpoint(detail)),
        ];
        for (layer, states) in (0..).zip(copies) {
            let numbered = (2..).zip(states.iter().cloned());
            let copies =
                numbered.map(|(node, state)| LayerCopyStatus { node: NodeId(node), state });
            let verified = LayerVerified { step: 100, layer, copies: copies.collect() };
            answers.push(Ok(ApiAnswer::Verified(verified)));
        }
        let (mut client, _) = scripted(answers);
        let mut out = Vec::new();
        let ended = verify(None, is_json, &mut client, &mut out).map_err(|stop| match stop {
            CommandError::Failed(failure) => failure.code,
            CommandError::Output(error) => panic!("{error}"),
        });
        (ended, String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn sound_copies_verify() {
        let (ended, text) = check([&[sound(), sound()], &[sound()]], false);
        assert_eq!((ended, text.as_str()), (Ok(()), "✔ step 100: 2 layers, 3 copies sound\n"));
    }

    #[test]
    fn a_damaged_copy_ends_with_8_and_is_named() {
        let (ended, text) = check([&[sound(), sound()], &[damaged(), sound()]], false);
        assert_eq!(ended, Err(FailureCode::VerificationFailed));
        let expected =
            "✘ step 100: 2 layers, 3 copies sound\n  layer 1 on node 2 damaged: chunk 3\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_layer_without_a_sound_copy_is_lost() {
        let (ended, text) = check([&[sound()], &[damaged(), damaged()]], false);
        assert_eq!(ended, Err(FailureCode::VerificationFailed));
        assert!(text.ends_with("  layer 1 has no sound copy\n"), "{text}");
    }

    #[test]
    fn a_layer_that_nobody_holds_is_lost() {
        let (ended, text) = check([&[sound()], &[]], false);
        assert!(text.ends_with("  layer 1 has no sound copy\n"), "{text}");
        assert_eq!(ended, Err(FailureCode::VerificationFailed));
    }

    #[test]
    fn scripts_get_one_list() {
        let (ended, text) = check([&[sound()], &[damaged()]], true);
        assert_eq!(ended, Err(FailureCode::VerificationFailed));
        let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(list[0]["layers_lost"][0], 1);
        assert_eq!(list[0]["problems"][0]["what"], "damaged: chunk 3");
    }
}
