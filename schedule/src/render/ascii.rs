//! A timeline as text: one row a stage, time from left to right.

use zbelastic_types::StageIndex;

use super::{end, has_later_chunks, has_reductions, headline, pass_names};
use crate::op::{Memory, Op, Pass, Reduction, Update};
use crate::timeline::{Slice, Timeline};

/// `timeline` in rows of at most `columns` characters beside the stage's name.
///
/// Every pass takes a share of the row that is proportional to its time, at least one character.
/// If there is room, the shortest pass gets a whole number of characters, so that equal times look
/// equal. A microbatch's number, with its slice behind a point, is written where it fits whole, and
/// left out otherwise.
#[must_use]
pub fn draw(timeline: &Timeline, columns: usize) -> String {
    let scale = Scale::new(timeline, columns);
    let mut text = headline(timeline);
    text.push('\n');
    let mut has_marks = false;
    let mut has_copies = false;
    for stage in timeline.stages() {
        let name = format!("stage {stage}");
        text.push_str(&format!("{name:<8} {}\n", passes_row(timeline, stage, &scale)));
        let copies = copies_row(timeline, stage, &scale);
        if !copies.is_empty() {
            has_copies = true;
            text.push_str(&format!("{:<8} {copies}\n", "  copies"));
        }
        let marks = marks_row(timeline, stage, &scale);
        if !marks.is_empty() {
            has_marks = true;
            text.push_str(&format!("{:<8} {marks}\n", ""));
        }
    }
    text.push_str(&legend(timeline, has_marks, has_copies));
    text
}

/// Characters per unit of time.
struct Scale {
    columns_per_unit: f64,
    /// The column after the last.
    width: usize,
}

impl Scale {
    fn new(timeline: &Timeline, columns: usize) -> Self {
        let total = end(timeline);
        let passes = timeline.all_slices().filter(|slice| matches!(slice.op, Op::Compute(..)));
        let durations = passes.map(Slice::duration).filter(|duration| *duration > 0.0);
        let shortest = durations.fold(total, f64::min);
        if total == 0.0 {
            return Self { columns_per_unit: 0.0, width: columns };
        }
        let columns = columns as f64;
        let whole = (columns * shortest / total).floor();
        let columns_per_unit = if whole >= 1.0 { whole / shortest } else { columns / total };
        Self { columns_per_unit, width: (total * columns_per_unit).round() as usize }
    }

    fn column(&self, time: f64) -> usize {
        (time * self.columns_per_unit).round() as usize
    }
}

fn passes_row(timeline: &Timeline, stage: StageIndex, scale: &Scale) -> String {
    let labelled = |slice: &Slice| match slice.op {
        Op::Compute(compute, pass) => Some((compute.to_string(), pass)),
        Op::Transfer(..) | Op::Update(_) | Op::Memory(..) | Op::Reduce(..) => None,
    };
    labelled_row(timeline, stage, scale, ('.', labelled))
}

/// What is copied out of the stage's memory and back; empty if nothing is.
fn copies_row(timeline: &Timeline, stage: StageIndex, scale: &Scale) -> String {
    let labelled = |slice: &Slice| match slice.op {
        Op::Memory(Memory::Offload, pass) => Some(("O".to_owned(), pass)),
        Op::Memory(Memory::Reload, pass) => Some(("L".to_owned(), pass)),
        Op::Memory(Memory::Drop, _)
        | Op::Compute(..)
        | Op::Transfer(..)
        | Op::Update(_)
        | Op::Reduce(..) => None,
    };
    labelled_row(timeline, stage, scale, (' ', labelled))
}

/// A row of boxes with letters and number, each as long as what it stands for.
fn labelled_row(
    timeline: &Timeline,
    stage: StageIndex,
    scale: &Scale,
    (empty, labelled): (char, impl Fn(&Slice) -> Option<(String, Pass)>),
) -> String {
    let first_chunk = timeline.placement().chunks_of(stage).next();
    let mut row = vec![empty; scale.width];
    for slice in timeline.slices(stage) {
        let Some((letters, pass)) = labelled(slice) else { continue };
        let (from, to) = (scale.column(slice.start), scale.column(slice.end));
        let cells = &mut row[from.min(scale.width)..to.max(from + 1).min(scale.width)];
        let number = pass.microbatch_text(timeline.slice_count());
        let label = label(letters, &number, cells.len(), Some(pass.chunk) == first_chunk);
        for (cell, letter) in cells.iter_mut().zip(label.chars().chain(std::iter::repeat(' '))) {
            *cell = letter;
        }
    }
    row.into_iter().collect::<String>().trim_end().to_owned()
}

/// Letters and number; without room for both, the letters; without room for these, the first. A
/// number is never cut, because what is left of it would be another number.
fn label(letters: String, number: &str, room: usize, is_first_chunk: bool) -> String {
    let letters = if is_first_chunk { letters } else { letters.to_lowercase() };
    let whole = format!("{letters}{number}");
    if whole.len() <= room { whole } else { letters }
}

/// Where the gate lets the stage pass and where it steps; empty if it does neither.
fn marks_row(timeline: &Timeline, stage: StageIndex, scale: &Scale) -> String {
    // One more column: what ends the last step stands after the last pass.
    let mut row = vec![' '; scale.width + 1];
    for slice in timeline.slices(stage) {
        let mark = match slice.op {
            Op::Update(Update::Step) => 'S',
            Op::Update(Update::GatePrevious | Update::GateThis) => 'G',
            Op::Reduce(Reduction::Add, _) => 'R',
            Op::Compute(..)
            | Op::Transfer(..)
            | Op::Memory(..)
            | Op::Reduce(Reduction::Send | Reduction::Receive | Reduction::Local, _)
            | Op::Update(Update::Report | Update::Commit) => continue,
        };
        let (from, to) = (scale.column(slice.start), scale.column(slice.end));
        row[from..to.max(from + 1)].fill(mark);
    }
    row.into_iter().collect::<String>().trim_end().to_owned()
}

fn legend(timeline: &Timeline, has_marks: bool, has_copies: bool) -> String {
    let mut entries: Vec<&str> = pass_names(timeline).map(|(_, name)| name).collect();
    entries.push(". idle");
    if has_later_chunks(timeline) {
        entries.push("lower case: later chunk");
    }
    if has_copies {
        entries.push("copies: O out, L back");
    }
    if has_marks {
        let marks = ["below: G gate, S step", "below: G gate, R reduce, S step"];
        entries.push(marks[usize::from(has_reductions(timeline))]);
    }
    format!("{:<8} {}\n", "", entries.join(" | "))
}
