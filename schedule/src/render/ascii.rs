//! A timeline as text: one row a stage, time from left to right.

use zbelastic_types::StageIndex;

use super::{
    MARKS, TimeUnit, end, has, headline, is_later, later_name, marks_of, pass_names, short,
    stage_name,
};
use crate::appearance::{OpAppearance, TimelineOp};
use crate::op::{Compute, Pass};
use crate::timeline::{Timeline, TimelineSlice};

/// Blocks that a text is wrapped into, at most. A timeline that would need more is squeezed into as
/// many, and its passes lose their numbers where they do not fit.
const BLOCK_COUNT_MAX: usize = 64;

/// `timeline` in rows of at most `columns` characters beside the stage's name.
///
/// Every pass has a share of the row that is proportional to its time, at least one character. If
/// the row is wide enough, the shortest pass gets a whole number of characters, so that equal times
/// look equal. A microbatch's number, with its slice behind a point, is written where it fits
/// whole, and left out otherwise.
#[must_use]
pub fn draw<O: TimelineOp>(timeline: &Timeline<O>, columns: usize) -> String {
    let scale = Scale::squeezed(timeline, columns);
    let from = 0;
    let to = scale.width;
    write(timeline, &[ColumnBlock { scale: &scale, from, to, end: to, is_last: true }])
}

/// The same in blocks of rows, where a block goes on where the one before ended, wide enough for
/// every number. A pass is drawn whole where it begins; the part of it that belongs to the next
/// block is filled with `>` there.
#[must_use]
pub fn draw_wrapped<O: TimelineOp>(timeline: &Timeline<O>, columns: usize) -> String {
    let scale = Scale::unsqueezed(timeline, columns);
    let columns_of = |slice: &TimelineSlice<O>| {
        let width = scale.column(slice.end) - scale.column(slice.start);
        slice.op.computed().map_or(0, |_| width)
    };
    let longest = timeline.all_slices().map(columns_of).max().unwrap_or(0);
    let step = columns - longest.min(columns / 2);
    let mut blocks = Vec::new();
    let mut from = 0;
    while from < scale.width {
        let is_last = scale.width - from <= columns;
        let to = if is_last { scale.width } else { from + step };
        let end = (from + columns).min(scale.width);
        blocks.push(ColumnBlock { scale: &scale, from, to, end, is_last });
        from = to;
    }
    write(timeline, &blocks)
}

fn write<O: TimelineOp>(timeline: &Timeline<O>, blocks: &[ColumnBlock<'_>]) -> String {
    let mut text = headline(timeline, TimeUnit::OWN);
    text.push('\n');
    for block in blocks {
        if blocks.len() > 1 {
            text.push_str(&format!("time {}\n", short(block.start())));
        }
        for stage in timeline.stages() {
            let name = stage_name(timeline.placement(), stage);
            text.push_str(&format!("{name:<8} {}\n", block.passes_row(timeline, stage)));
            let rows = [
                ("  copies", block.copies_row(timeline, stage)),
                ("", block.marks_row(timeline, stage)),
            ];
            for (name, row) in rows.into_iter().filter(|(_, row)| !row.is_empty()) {
                text.push_str(&format!("{name:<8} {row}\n"));
            }
        }
    }
    text.push_str(&legend(timeline, blocks.len() > 1));
    text
}

/// How a time becomes a column, in characters per unit of time.
struct Scale {
    columns_per_unit: f64,
    /// The column after the last.
    width: usize,
}

impl Scale {
    /// All of a timeline within so many columns.
    fn squeezed<O: TimelineOp>(timeline: &Timeline<O>, columns: usize) -> Self {
        let total = end(timeline);
        if total == 0.0 {
            return Self { columns_per_unit: 0.0, width: columns };
        }
        let shortest = shortest_pass(timeline);
        let columns = columns as f64;
        let whole = (columns * shortest / total).floor();
        Self::of(total, if whole >= 1.0 { whole / shortest } else { columns / total })
    }

    /// Columns for the letters and the number of every pass, or for [`BLOCK_COUNT_MAX`] blocks of
    /// so many columns.
    fn unsqueezed<O: TimelineOp>(timeline: &Timeline<O>, columns: usize) -> Self {
        let squeezed = Self::squeezed(timeline, columns);
        let total = end(timeline);
        let needed = |slice: &TimelineSlice<O>| {
            let (compute, pass) = slice.op.computed()?;
            let len =
                compute.to_string().len() + pass.microbatch_text(timeline.slice_count()).len();
            Some(len as f64 / slice.duration()).filter(|columns| columns.is_finite())
        };
        let needed = timeline.all_slices().filter_map(needed).fold(0.0, f64::max);
        if needed <= squeezed.columns_per_unit {
            return squeezed;
        }
        let shortest = shortest_pass(timeline);
        let most = (columns * BLOCK_COUNT_MAX) as f64 / total;
        Self::of(total, ((needed * shortest).ceil() / shortest).min(most))
    }

    fn of(total: f64, columns_per_unit: f64) -> Self {
        Self { columns_per_unit, width: (total * columns_per_unit).round() as usize }
    }

    fn column(&self, time: f64) -> usize {
        (time * self.columns_per_unit).round() as usize
    }
}

/// The time of the shortest pass that has any, or of the whole timeline.
fn shortest_pass<O: TimelineOp>(timeline: &Timeline<O>) -> f64 {
    let passes = timeline.all_slices().filter(|slice| slice.op.computed().is_some());
    let durations = passes.map(TimelineSlice::duration).filter(|duration| *duration > 0.0);
    durations.fold(end(timeline), f64::min)
}

/// Columns `from` to `to` of the whole, and to `end` at most of passes that go on behind them.
struct ColumnBlock<'a> {
    scale: &'a Scale,
    from: usize,
    to: usize,
    end: usize,
    is_last: bool,
}

impl ColumnBlock<'_> {
    fn start(&self) -> f64 {
        self.from as f64 / self.scale.columns_per_unit
    }

    fn passes_row<O: TimelineOp>(&self, timeline: &Timeline<O>, stage: StageIndex) -> String {
        let labelled = |slice: &TimelineSlice<O>| match slice.op.appearance() {
            OpAppearance::Pass(compute, pass, replica) => {
                Some((compute.to_string(), pass, replica))
            }
            OpAppearance::CopyOut(_)
            | OpAppearance::CopyBack(_)
            | OpAppearance::Mark(_)
            | OpAppearance::Bookkeeping
            | OpAppearance::Region
            | OpAppearance::Nothing => None,
        };
        let mut row = vec!['.'; self.to - self.from];
        for slice in
            timeline.slices(stage).iter().filter(|s| s.op.appearance() == OpAppearance::Region)
        {
            let from = self.scale.column(slice.start);
            let to = self.scale.column(slice.end);
            let from = from.max(self.from);
            let to = to.min(self.to);
            if from < to {
                row[from - self.from..to - self.from].fill('~');
            }
        }
        self.labelled_row(timeline, stage, (row, labelled))
    }

    /// Copies out of the stage's memory and back; empty if there are none.
    fn copies_row<O: TimelineOp>(&self, timeline: &Timeline<O>, stage: StageIndex) -> String {
        let labelled = |slice: &TimelineSlice<O>| match slice.op.appearance() {
            OpAppearance::CopyOut(pass) => Some(("O".to_owned(), pass, 0)),
            OpAppearance::CopyBack(pass) => Some(("L".to_owned(), pass, 0)),
            OpAppearance::Pass(..)
            | OpAppearance::Mark(_)
            | OpAppearance::Bookkeeping
            | OpAppearance::Region
            | OpAppearance::Nothing => None,
        };
        self.labelled_row(timeline, stage, (vec![' '; self.to - self.from], labelled))
    }

    /// A row of boxes with letters and number, each as long as its operation.
    fn labelled_row<O: TimelineOp>(
        &self,
        timeline: &Timeline<O>,
        stage: StageIndex,
        (mut row, labelled): (Vec<char>, impl Fn(&TimelineSlice<O>) -> Option<(String, Pass, u32)>),
    ) -> String {
        for slice in timeline.slices(stage) {
            let Some((letters, pass, replica)) = labelled(slice) else { continue };
            let from = self.scale.column(slice.start);
            let to = self.scale.column(slice.end);
            if from >= self.to || to.max(from + 1) <= self.from {
                continue;
            }
            let end = (to.max(from + 1) - self.from).min(self.end - self.from);
            row.resize(row.len().max(end), ' ');
            let Some(begin) = from.checked_sub(self.from) else {
                row[..end].fill('>');
                continue;
            };
            let cells = &mut row[begin..end];
            let number = pass.microbatch_text(timeline.slice_count());
            let is_later = is_later(timeline, stage, (pass, replica));
            let label = label(letters, &number, cells.len(), is_later);
            for (cell, letter) in cells.iter_mut().zip(label.chars().chain(std::iter::repeat(' ')))
            {
                *cell = letter;
            }
        }
        row.into_iter().collect::<String>().trim_end().to_owned()
    }

    /// Where the gate lets the stage pass, where it steps, and its operations on versions; empty if
    /// it does nothing of that. Marks of one time stand side by side.
    fn marks_row<O: TimelineOp>(&self, timeline: &Timeline<O>, stage: StageIndex) -> String {
        let mut row: Vec<char> = Vec::new();
        for slice in timeline.slices(stage) {
            let OpAppearance::Mark(mark) = slice.op.appearance() else { continue };
            let letter = MARKS.iter().find(|(found, ..)| *found == mark).expect("all are listed").1;
            let from = self.scale.column(slice.start);
            let to = self.scale.column(slice.end);
            // The ending of the last step stands after the last pass.
            let end = if self.is_last { usize::MAX } else { self.to };
            let (from, to) = (from.max(self.from), to.max(from + 1).min(end));
            if from >= to {
                continue;
            }
            let from = (from - self.from).max(row.len());
            row.resize(from, ' ');
            row.resize((to - self.from).max(from + 1), letter);
        }
        row.into_iter().collect()
    }
}

/// Letters and number; if both do not fit, the letters; if these do not, the first. A
/// number is never cut, because the digits left of it would be another number.
fn label(letters: String, number: &str, width: usize, is_later: bool) -> String {
    let letters = if is_later { letters.to_lowercase() } else { letters };
    let whole = format!("{letters}{number}");
    if whole.len() <= width { whole } else { letters }
}

fn legend<O: TimelineOp>(timeline: &Timeline<O>, is_wrapped: bool) -> String {
    let names = pass_names(timeline).map(|(_, name): (Compute, _)| name.to_owned());
    let mut entries: Vec<String> = names.collect();
    entries.push(". idle".to_owned());
    if has(timeline, OpAppearance::Region) {
        entries.push("~ idle in a region whose order is found".to_owned());
    }
    if is_wrapped {
        entries.push("> begun above".to_owned());
    }
    if let Some(name) = later_name(timeline) {
        entries.push(format!("lower case: {name}"));
    }
    if timeline.all_slices().any(|slice| matches!(slice.op.appearance(), OpAppearance::CopyOut(_)))
    {
        entries.push("copies: O out, L back".to_owned());
    }
    let marks = marks_of(timeline).map(|(_, letter, name)| format!("{letter} {name}"));
    let marks = marks.collect::<Vec<_>>().join(", ");
    if !marks.is_empty() {
        entries.push(format!("below: {marks}"));
    }
    format!("{:<8} {}\n", "", entries.join(" | "))
}
