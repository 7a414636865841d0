//! Replays of the hand-made schedules against figures of another implementation: a small table
//! that travels with the package, and a large one where it is at hand.

use std::fs;
use std::path::PathBuf;

use zbelastic_schedule::{ChunkMemory, Costs, ScheduleKind, generate, peak_memory, simulate};

/// A table with a line of column names. Lines that begin with `#` are comments; no cell is quoted.
struct Table<'a> {
    columns: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    fn parse(text: &'a str) -> Self {
        let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let cells = |line: &'a str| line.split(',').map(str::trim).collect::<Vec<_>>();
        let columns = cells(lines.next().expect("a table has a line of names"));
        Self { columns, rows: lines.map(cells).collect() }
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { columns: &self.columns, cells })
    }
}

struct Row<'a> {
    columns: &'a [&'a str],
    cells: &'a [&'a str],
}

impl Row<'_> {
    fn text(&self, name: &str) -> &str {
        let column = self.columns.iter().position(|column| *column == name);
        self.cells[column.unwrap_or_else(|| panic!("no column {name} in {:?}", self.columns))]
    }

    fn number(&self, name: &str) -> f64 {
        let text = self.text(name);
        text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, found `{text}`"))
    }

    fn count(&self, name: &str) -> u32 {
        let text = self.text(name);
        text.parse().unwrap_or_else(|_| panic!("{name}: expected a count, found `{text}`"))
    }

    /// `None` for schedules we do not have.
    fn kind(&self) -> Option<ScheduleKind> {
        match self.text("schedule") {
            "GPipe" => Some(ScheduleKind::GPipe),
            "1F1B" => Some(ScheduleKind::OneFOneB),
            "1F1B-I2" => Some(ScheduleKind::Interleaved),
            "ZB-H1" => Some(ScheduleKind::ZbH1),
            "ZB-H2" => Some(ScheduleKind::ZbH2),
            "ZB-V-hand" => Some(ScheduleKind::ZbV),
            _ => None,
        }
    }
}

/// Checks the rows of our schedules and says how many there were of each.
fn check_table(text: &str) -> Vec<(ScheduleKind, usize)> {
    let table = Table::parse(text);
    let mut checked = ScheduleKind::ALL.map(|kind| (kind, 0)).to_vec();
    for row in table.rows() {
        let Some(kind) = row.kind() else { continue };
        check_row(kind, &row);
        for (name, count) in &mut checked {
            *count += usize::from(*name == kind);
        }
    }
    checked
}

fn check_row(kind: ScheduleKind, row: &Row<'_>) {
    assert_eq!(row.count("v"), kind.chunks_per_stage());
    let (p, m) = (row.count("p"), row.count("m"));
    let [f, b, w, link] = ["t_f", "t_b", "t_w", "t_comm"].map(|name| row.number(name));
    let program = generate(kind, p, m).unwrap_or_else(|error| panic!("{kind} {p} {m}: {error}"));
    let costs = Costs::even(&program.placement, f, b, w, link);
    let timeline = simulate(&program, &costs, 1).expect("a generated program runs to its end");
    let exact = |name: &str, ours: f64| {
        let theirs = row.number(name);
        let allowed = 1e-9 * theirs.abs();
        assert!((ours - theirs).abs() <= allowed, "{kind} {p} {m}: {name} {ours}, not {theirs}");
    };
    exact("cost", timeline.cost(0));
    exact("makespan", timeline.makespan(0));
    exact("ideal", timeline.work(zbelastic_types::StageIndex(0), 0));
    exact("ideal", f64::from(m) * (f + b + w));
    exact("peak", peak(&program, row.number("m_f"), row.number("m_w_abs")));
    let four_digits = |name: &str, ours: f64| {
        let theirs = row.number(name);
        let is_rounded = (ours - theirs).abs() <= 5e-5 + 1e-12;
        assert!(is_rounded, "{kind} {p} {m}: {name} {ours}, not {theirs}");
    };
    four_digits("bubble", timeline.bubble_span(0));
    four_digits("bubble_sync", timeline.bubble_sync(0));
}

/// The highest peak of any stage, where a stage keeps `after_forward` and then
/// `after_input_gradient`, divided among its chunks.
fn peak(
    program: &zbelastic_schedule::Program,
    after_forward: f64,
    after_input_gradient: f64,
) -> f64 {
    let share = |memory: f64| memory / f64::from(program.kind.chunks_per_stage());
    let chunk = ChunkMemory {
        after_forward: share(after_forward),
        after_input_gradient: share(after_input_gradient),
        after_early_weights: 0.0,
    };
    let chunks = vec![chunk; program.placement.chunk_count() as usize];
    peak_memory(program, &chunks).into_iter().fold(0.0, f64::max)
}

#[test]
fn replays_match_the_small_table() {
    let checked = check_table(include_str!("replays.csv"));
    assert!(checked.iter().all(|(_, count)| *count >= 2), "{checked:?}");
}

#[test]
fn replays_match_the_large_table() {
    let path = oracle_folder().join("schedules.csv");
    let Ok(text) = fs::read_to_string(&path) else {
        eprintln!("skipped: no table of replays in the folder ZBELASTIC_ORACLES names");
        return;
    };
    let checked = check_table(&text);
    let total: usize = checked.iter().map(|(_, count)| count).sum();
    assert!(total > 0, "no row of our schedules in {}", path.display());
    eprintln!("{total} replays match: {checked:?}");
}

#[expect(clippy::disallowed_methods, reason = "the package reads no environment, its tests may")]
fn oracle_folder() -> PathBuf {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/oracles");
    std::env::var("ZBELASTIC_ORACLES").map_or_else(|_| default.into(), PathBuf::from)
}
