//! Samples of a store's windows as text, with the targets that count in the loss marked.

use std::io::{self, Write};
use std::ops::Range;

use zbelastic_api::escape;
use zbelastic_data::show::{SampleDocument, WindowSample};
use zbelastic_wording::figures::grouped;

use crate::tokenizer_encoder::TokenizerEncoder;

/// What stands around a text whose tokens count in the loss as targets.
#[derive(Clone, Copy)]
pub(super) struct TargetMarks(&'static str, &'static str);

impl TargetMarks {
    /// Where colours are shown, and where they are not.
    pub(super) const fn new(has_colours: bool) -> Self {
        match has_colours {
            true => Self("\u{1b}[32m", "\u{1b}[0m"),
            false => Self("⟦", "⟧"),
        }
    }
}

/// Text that counts in the loss, or does not.
struct MarkedText {
    text: String,
    is_counted: bool,
}

/// Writes samples, document by document, as text, or as ids without an encoder. What counts is marked in
/// windows of which a part does.
pub(super) fn write_samples(
    samples: &[WindowSample],
    encoder: Option<&TokenizerEncoder>,
    marks: TargetMarks,
    out: &mut dyn Write,
) -> io::Result<()> {
    for sample in samples {
        let targets = sample.ids.len().saturating_sub(1);
        let counted: usize = sample.loss_spans.iter().map(Range::len).sum();
        let is_marked = (1..targets).contains(&counted);
        let window = grouped(sample.window);
        write!(out, "\nwindow {window}: {counted} of {targets} targets count in the loss")?;
        if is_marked {
            write!(out, ": {}these{}", marks.0, marks.1)?;
        }
        writeln!(out)?;
        for document in &sample.documents {
            let Range { start, end } = document.ids;
            let number = grouped(document.document);
            writeln!(out, "  document {number}, ids {start} to {}", end.saturating_sub(1))?;
            let texts = match is_marked {
                true => marked_texts(sample, document, encoder),
                false => vec![MarkedText { text: document.text.clone(), is_counted: false }],
            };
            for line in marked_lines(&texts, marks) {
                writeln!(out, "  │ {line}")?;
            }
        }
    }
    Ok(())
}

/// The ids of a document, cut where targets begin or cease to count, and whether they do. The first id of
/// a window is no target.
fn runs(ids: Range<usize>, loss_spans: &[Range<usize>]) -> Vec<(Range<usize>, bool)> {
    let mut runs = Vec::new();
    let mut at = ids.start;
    // Target k is id k + 1.
    let first = loss_spans.partition_point(|span| span.end < at);
    for span in loss_spans[first..].iter().take_while(|span| span.start + 1 < ids.end) {
        let start = at.max(span.start + 1);
        let end = ids.end.min(span.end + 1);
        runs.push((at..start, false));
        runs.push((start..end, true));
        at = end;
    }
    runs.push((at..ids.end, false));
    runs.retain(|(run, _)| !run.is_empty());
    runs
}

fn marked_texts(
    sample: &WindowSample,
    document: &SampleDocument,
    encoder: Option<&TokenizerEncoder>,
) -> Vec<MarkedText> {
    let runs = runs(document.ids.clone(), &sample.loss_spans);
    let ids = runs.iter().map(|(run, _)| &sample.ids[run.clone()]);
    let Some(encoder) = encoder else {
        let texts = ids.map(|ids| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
        let spaced = texts.zip(&runs).enumerate().flat_map(|(number, (text, (_, is_counted)))| {
            let space = if number == 0 { "" } else { " " };
            let between = MarkedText { text: space.to_owned(), is_counted: false };
            [between, MarkedText { text, is_counted: *is_counted }]
        });
        return spaced.collect();
    };
    match encoder.decode_runs(ids) {
        Ok(texts) => {
            let texts = texts.into_iter().zip(&runs);
            texts
                .map(|(text, (_, is_counted))| MarkedText { text, is_counted: *is_counted })
                .collect()
        }
        // The document's text says why it has none.
        Err(_) => vec![MarkedText { text: document.text.clone(), is_counted: false }],
    }
}

/// The lines of texts in a row, with control characters written out and marks that end with each line.
fn marked_lines(texts: &[MarkedText], TargetMarks(begin, end): TargetMarks) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for MarkedText { text, is_counted } in texts {
        for (number, part) in text.split('\n').enumerate() {
            if number > 0 {
                lines.push(std::mem::take(&mut line));
            }
            match *is_counted && !part.is_empty() {
                true => line.extend([begin, &*escape(part), end]),
                false => line.push_str(&escape(part)),
            }
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of bytes in documents of so many ids; `loss` has a 1 for each target that counts.
    fn sample(bytes: &[u8], lens: &[usize], loss: &str) -> WindowSample {
        let mut start = 0;
        let documents = lens.iter().zip(7..).map(|(len, document)| {
            let ids = start..start + len;
            start = ids.end;
            let text = String::from_utf8_lossy(&bytes[ids.clone()]).into_owned();
            SampleDocument { document, ids, text }
        });
        let documents = documents.collect();
        let ids: Vec<u32> = bytes.iter().copied().map(u32::from).collect();
        assert_eq!(loss.len() + 1, ids.len(), "a target for each id but the first");
        let mut at = 0;
        let runs = loss.split_inclusive('0').map(|run| {
            let start = at;
            at += run.len();
            start..start + run.trim_end_matches('0').len()
        });
        let loss_spans = runs.filter(|run| !run.is_empty()).collect();
        WindowSample { window: 3, ids, documents, loss_spans }
    }

    fn written(sample: WindowSample, has_colours: bool) -> String {
        let mut out = Vec::new();
        let encoder = TokenizerEncoder::bytes();
        let marks = TargetMarks::new(has_colours);
        write_samples(&[sample], Some(&encoder), marks, &mut out).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_part_that_counts_is_marked_line_by_line_and_document_by_document() {
        let text = "user\nyes\nno\u{1b}[2Jon";
        let sample = || sample(text.as_bytes(), &[15, 2], "0000111111011101");
        let expected = "
window 3: 10 of 16 targets count in the loss: ⟦these⟧
  document 7, ids 0 to 14
  │ user
  │ ⟦yes⟧
  │ ⟦no⟧\\u{1b}⟦[2J⟧
  document 8, ids 15 to 16
  │ o⟦n⟧
";
        assert_eq!(written(sample(), false), expected);
        let coloured = expected.replace('⟦', "\u{1b}[32m").replace('⟧', "\u{1b}[0m");
        assert_eq!(written(sample(), true), coloured);
    }

    #[test]
    fn nothing_is_marked_where_all_or_none_counts() {
        for loss in ["111", "000"] {
            let shown = written(sample(b"a\nbc", &[4], loss), true);
            assert!(
                shown.ends_with(" in the loss\n  document 7, ids 0 to 3\n  │ a\n  │ bc\n"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_character_is_whole_and_where_its_last_id_is() {
        let check = |loss: &str, expected: &str| {
            let shown = written(sample("aé€b".as_bytes(), &[7], loss), false);
            assert!(shown.ends_with(&format!("  │ {expected}\n")), "{shown}, expected {expected}");
        };
        check("100000", "aé€b");
        check("110000", "a⟦é⟧€b");
        check("011100", "a⟦é⟧€b");
        check("000111", "aé⟦€b⟧");
        check("100010", "aé⟦€⟧b");
        // A window may begin and end within a character.
        let cut = &"€ab€".as_bytes()[1..7];
        let shown = written(sample(cut, &[6], "01100"), false);
        assert!(shown.ends_with("  │ ⟦\u{fffd}\u{fffd}ab⟧\u{fffd}\n"), "{shown}");
    }

    #[test]
    fn without_a_tokenizer_ids_are_marked() {
        let mut out = Vec::new();
        let sample = sample(&[1, 2, 3, 4], &[4], "110");
        write_samples(&[sample], None, TargetMarks::new(false), &mut out).expect("memory");
        let shown = String::from_utf8(out).expect("text");
        assert!(shown.ends_with("  │ 1 ⟦2 3⟧ 4\n"), "{shown}");
    }
}
