//! `schedule solve --csv` and `schedule simulate --csv`: a table of problems or of schedules,
//! answered row by row.

use std::fs;
use std::io::{self, Write};
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use zbelastic_machine::core_count;
use zbelastic_schedule::{ScheduleSolution, peak_memory};
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail};

use super::input_error;
use super::inputs::{self, ProblemInput};
use super::solve_task::{SolveMode, SolveResult, SolveTask};
use crate::args::{MemoryArgs, MemorySavingsArgs, PassTimesArgs, StepEndingArgs};

/// Columns that a table may have.
const COLUMNS: [&str; 22] = [
    "case",
    "p",
    "m",
    "f",
    "b",
    "w",
    "comm",
    "mf",
    "mb",
    "mw",
    "mem_limit",
    "kind",
    "chunks",
    "occupancy",
    "window",
    "verdict",
    "after",
    "data_parallel",
    "gradient",
    "md",
    "recompute",
    "offload",
];
/// Columns that it must have.
const NEEDED: [&str; 2] = ["p", "m"];
/// Those of times that a row has if the table does.
const TIMES: [&str; 3] = ["f", "b", "w"];
/// Names of the columns that results are written to.
const RESULTS: &str = "solved,makespan,cost,bubble_span,bubble_sync,step_time,lower_bound,gap,proven_optimal,peak_mem,solve_ms";
/// Bytes of a table at most.
const BYTES_MAX: usize = 256 << 20;
/// Threads that solve rows.
const THREADS_MAX: usize = 64;
/// Details of wrong rows that are listed at most.
const DETAILS_MAX: usize = 20;

/// Answers every row of a table, and prints it with the solution. If rows are wrong, they are
/// returned as a failure before anything is printed.
pub fn answer(path: &Path, mode: SolveMode, out: &mut dyn Write) -> Result<(), CommandError> {
    let text = read(path)?;
    let table = ProblemTable::parse(path, &text)?;
    let mut details = Vec::new();
    let mut rows = Vec::new();
    let mut tasks = Vec::new();
    for row in &table.rows {
        match row.task(mode) {
            Ok(task) => {
                rows.push(row);
                tasks.push(task);
            }
            Err(wrong) => details.extend(wrong.into_iter().map(|detail| row.place(path, detail))),
        }
    }
    if !details.is_empty() {
        return Err(refused(details).into());
    }
    writeln!(out, "{},{RESULTS}", table.names.join(","))?;
    for (row, answer) in rows.into_iter().zip(answer_all(&tasks)) {
        writeln!(out, "{},{answer}", row.line)?;
    }
    Ok(())
}

fn refused(mut details: Vec<FailureDetail>) -> CommandFailure {
    let more = details.len().saturating_sub(DETAILS_MAX);
    details.truncate(DETAILS_MAX);
    if more > 0 {
        details.push(FailureDetail::new(format!("{more} more of the kind")));
    }
    CommandFailure::usage("the table", details)
}

fn read(path: &Path) -> Result<String, CommandFailure> {
    let text = if path == Path::new("-") {
        io::read_to_string(io::stdin())
    } else {
        fs::read_to_string(path)
    };
    let place = path.display().to_string();
    let text = text.map_err(|error| {
        refused(vec![FailureDetail::new(format!("cannot be read: {error}")).at(place.clone())])
    })?;
    if text.len() > BYTES_MAX {
        let what = format!("{} bytes, at most {BYTES_MAX}", text.len());
        return Err(refused(vec![FailureDetail::new(what).at(place)]));
    }
    Ok(text)
}

struct ProblemTable<'a> {
    names: Vec<&'a str>,
    rows: Vec<ProblemRow<'a>>,
}

struct ProblemRow<'a> {
    /// Counted from 1, as editors do.
    number: usize,
    line: &'a str,
    /// By the order of [`COLUMNS`].
    cells: [Option<&'a str>; COLUMNS.len()],
}

impl<'a> ProblemTable<'a> {
    fn parse(path: &Path, text: &'a str) -> Result<Self, CommandFailure> {
        let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let place = |number: usize| format!("{}: line {number}", path.display());
        let Some((first, header)) = lines.next() else {
            let detail =
                FailureDetail::new("there is no line of names").at(path.display().to_string());
            return Err(refused(vec![detail.hint(COLUMNS.join(","))]));
        };
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let mut details = Vec::new();
        for name in NEEDED.into_iter().filter(|name| !names.contains(name)) {
            details
                .push(FailureDetail::new(format!("column `{name}` is missing")).at(place(first)));
        }
        for (index, name) in names.iter().enumerate() {
            if !COLUMNS.contains(name) || names[..index].contains(name) {
                let what = format!("column `{name}` is unknown, or there twice");
                details.push(FailureDetail::new(what).at(place(first)).hint(COLUMNS.join(",")));
            }
        }
        if !details.is_empty() {
            return Err(refused(details));
        }
        let mut rows = Vec::new();
        for (number, line) in lines {
            let found: Vec<&str> = line.split(',').map(str::trim).collect();
            if found.len() != names.len() {
                let what = format!("expected {} cells, found {}", names.len(), found.len());
                details.push(FailureDetail::new(what).at(place(number)));
                continue;
            }
            for (name, _) in names.iter().zip(&found).filter(|(_, cell)| cell.is_empty()) {
                if TIMES.contains(name) {
                    let at = format!("{}, {name}", place(number));
                    let hint = "a time, or a table without this column: then it is 1 for all rows";
                    details.push(FailureDetail::new("a time is missing").at(at).hint(hint));
                }
            }
            let cell = |column: &str| {
                let index = names.iter().position(|name| *name == column)?;
                Some(found[index]).filter(|cell| !cell.is_empty())
            };
            rows.push(ProblemRow { number, line, cells: COLUMNS.map(cell) });
        }
        if details.is_empty() { Ok(Self { names, rows }) } else { Err(refused(details)) }
    }
}

impl ProblemRow<'_> {
    fn cell(&self, column: &str) -> Option<&str> {
        let index = COLUMNS.iter().position(|name| *name == column).expect("a column");
        self.cells[index]
    }

    /// A detail of this row, with the name of its column in place of a flag's.
    fn place(&self, path: &Path, detail: FailureDetail) -> FailureDetail {
        let column =
            detail.place.as_deref().map(|place| place.trim_start_matches("--").replace('-', "_"));
        let column = column.map_or_else(String::new, |column| format!(", {column}"));
        detail.at(format!("{}: line {}{column}", path.display(), self.number))
    }

    fn task(&self, mode: SolveMode) -> Result<SolveTask, Vec<FailureDetail>> {
        let list = |column: &str| self.cell(column).map(|cell| cell.replace(';', ","));
        let or = |column: &str, other: &str| list(column).unwrap_or_else(|| other.to_owned());
        let times = PassTimesArgs {
            f: or("f", "1"),
            b: or("b", "1"),
            w: or("w", "1"),
            comm: or("comm", "0"),
            occupancy: or("occupancy", "0"),
        };
        let memory =
            MemoryArgs { mf: or("mf", "1"), mb: list("mb"), mw: list("mw"), md: list("md") };
        let memory_savings =
            MemorySavingsArgs { recompute: list("recompute"), offload: list("offload") };
        let count = |column: &'static str| {
            let text = self.cell(column).unwrap_or_default();
            text.parse::<u32>().map_err(|_| {
                vec![FailureDetail::new(format!("expected a count, found `{text}`")).at(column)]
            })
        };
        let mem_limit = list("mem_limit");
        let chunks = self.cell("chunks").map(|_| count("chunks")).transpose()?;
        let copies = self.cell("data_parallel").map(|_| count("data_parallel")).transpose()?;
        if copies == Some(0) {
            return Err(vec![
                FailureDetail::new("expected 1 copy or more, found 0").at("data_parallel"),
            ]);
        }
        let ending = StepEndingArgs {
            window: list("window"),
            verdict: or("verdict", "0"),
            after: or("after", "0"),
            data_parallel: copies.unwrap_or(1),
            gradient: or("gradient", "0"),
        };
        let kind = self.cell("kind");
        if mode == SolveMode::Replay && kind.is_none() {
            return Err(vec![FailureDetail::new("expected a schedule, found none").at("kind")]);
        }
        let text = ProblemInput {
            stages: count("p")?,
            microbatches: count("m")?,
            slices: None,
            times: &times,
            memory: &memory,
            mem_limit: mem_limit.as_deref(),
            memory_savings: &memory_savings,
            ending: &ending,
        };
        SolveTask::new(&text, (mode, kind), chunks)
            .map_err(|errors| input_error::failure(errors).details)
    }
}

/// The results of the tasks, in their order.
fn answer_all(tasks: &[SolveTask]) -> Vec<String> {
    let threads = core_count().min(THREADS_MAX);
    // A thread that is done claims the next row: one may need a hundred times as long as another.
    let next = AtomicUsize::new(0);
    let of_thread = || -> Vec<(usize, String)> {
        let rows = iter::from_fn(|| {
            let row = next.fetch_add(1, Ordering::Relaxed);
            Some((row, tasks.get(row)?))
        });
        rows.map(|(row, task)| (row, cells(task))).collect()
    };
    let mut found: Vec<(usize, String)> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(of_thread)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<(usize, String)>>| {
            thread.join().expect("a thread that solves does not panic")
        };
        running.into_iter().flat_map(join).collect()
    });
    found.sort_unstable_by_key(|(row, _)| *row);
    found.into_iter().map(|(_, cells)| cells).collect()
}

/// The cells of a task's results.
fn cells(task: &SolveTask) -> String {
    let Ok(SolveResult { problem, solution, fits, took }) = task.answer() else {
        // No order was found: the row stands without results.
        return ",".repeat(RESULTS.matches(',').count());
    };
    let quality = if fits {
        let ScheduleSolution { cost, lower_bound, .. } = solution;
        format!("{cost},{lower_bound},{},{}", solution.gap(), solution.is_proven_optimal())
    } else {
        format!("{},,,", solution.cost)
    };
    let (replay, memory) = inputs::solved(problem, solution.program);
    let timeline = super::timeline(&replay);
    let peaks = peak_memory(&replay.program, &memory);
    let peaks: Vec<String> = peaks.iter().map(f64::to_string).collect();
    format!(
        "{},{},{},{},{},{quality},{},{:.3}",
        replay.program.kind,
        timeline.makespan(0),
        timeline.cost(0),
        timeline.bubble_span(0),
        timeline.bubble_sync(0),
        peaks.join(";"),
        took.as_secs_f64() * 1e3,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solved(text: &str) -> Result<Vec<String>, Vec<String>> {
        answered(text, SolveMode::Order)
    }

    fn answered(text: &str, mode: SolveMode) -> Result<Vec<String>, Vec<String>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv");
        fs::write(&path, text).expect("room");
        let mut out = Vec::new();
        match answer(&path, mode, &mut out) {
            Ok(()) => {
                Ok(String::from_utf8(out).expect("text").lines().map(str::to_owned).collect())
            }
            Err(CommandError::Failed(failure)) => {
                let name = path.display().to_string();
                let text = |detail: &FailureDetail| detail.to_string().replace(&name, "FILE");
                Err(failure.details.iter().map(text).collect())
            }
            Err(CommandError::Output(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn rows_come_back_with_their_results() {
        let text = "# problems\ncase,p,m,f,b,w,mf,mw,mem_limit,kind\n\
                    a,4,8,10,11,8,1,0.5,4,zb-auto\nb,2,3,10;20,11,8,1,,,1f1b\nc,4,8,1,1,1,1,,1,gpipe\n";
        let lines = solved(text).expect("legal");
        let cells: Vec<Vec<&str>> = lines.iter().map(|line| line.split(',').collect()).collect();
        let column = |name: &str| cells[0].iter().position(|cell| *cell == name).expect("a column");
        assert!(cells.iter().all(|row| row.len() == cells[0].len()), "{lines:#?}");
        assert_eq!(
            (cells[1][column("solved")], cells[1][column("proven_optimal")]),
            ("zb-auto", "true")
        );
        assert_eq!((cells[2][column("case")], cells[2][column("solved")]), ("b", "1f1b"));
        assert_eq!(cells[3][column("lower_bound")], "", "it takes more memory than there is");
    }

    #[test]
    fn a_kind_says_over_which_placement_a_row_is_solved() {
        let lines = solved(
            "p,m,f,b,w,mem_limit,kind\n4,8,1,1,1,4,\n4,8,1,1,1,4,zb-auto\n4,8,1,1,1,4,zb-v\n\
             4,8,1,1,1,4,auto\n1,8,1,1,1,4,auto\n",
        );
        let lines = lines.expect("legal");
        let found = |line: &String| {
            let cells: Vec<&str> = line.split(',').collect();
            (cells[7].to_owned(), cells[9].parse().expect("a cost"))
        };
        let found: Vec<(String, f64)> = lines[1..].iter().map(found).collect();
        let expected = [
            ("zb-auto", 27.0),
            ("zb-auto", 27.0),
            ("zb-v", 24.0),
            ("zb-v", 24.0),
            ("zb-auto", 24.0),
        ];
        assert_eq!(found, expected.map(|(kind, cost)| (kind.to_owned(), cost)));
    }

    #[test]
    fn schedules_are_timed_as_they_are_made_by_hand() {
        let text =
            "p,m,f,b,w,kind\n4,8,10,11,8,zb-h1\n4,8,10;20;10;10,11,8,zb-auto\n4,8,1,1,1,gems\n";
        let cost = |lines: &[String], row: usize| -> f64 {
            let names: Vec<&str> = lines[0].split(',').collect();
            let at = names.iter().position(|name| *name == "cost").expect("a column");
            lines[row].split(',').nth(at).expect("a cell").parse().expect("a time")
        };
        let [timed, best] =
            [SolveMode::Replay, SolveMode::Order].map(|mode| answered(text, mode).expect("legal"));
        assert_eq!(cost(&timed, 1), cost(&best, 1), "this one is not solved for either");
        assert!(cost(&timed, 2) > cost(&best, 2), "{timed:#?} {best:#?}");
        assert_eq!(timed.len(), 4);
        let wrong =
            answered("p,m,kind\n2,4,\n2,4,auto\n", SolveMode::Replay).expect_err("no names");
        assert!(wrong[0].contains("line 2, kind: expected a schedule"), "{wrong:?}");
        assert!(wrong[1].contains("line 3, kind: unknown schedule `auto`"), "{wrong:?}");
    }

    #[test]
    fn a_row_says_what_ends_its_step() {
        let lines = solved(
            "p,m,window,verdict,after,data_parallel,gradient,occupancy,kind,chunks\n\
             2,4,,,,,,,,\n2,4,0,3,,,,,,\n2,4,,,1;2,,,,,\n2,8,1,3,,2,5,,,\n2,4,,,,,,2,,\n2,4,,,,,,,loop,3\n",
        );
        let lines = lines.expect("legal");
        let names: Vec<&str> = lines[0].split(',').collect();
        let time = names.iter().position(|name| *name == "step_time").expect("a column");
        let of_line = |line: &String| {
            let cell = line.split(',').nth(time).expect("a cell");
            cell.parse::<f64>().expect("a time").round()
        };
        let times: Vec<f64> = lines[1..].iter().map(of_line).collect();
        // All wait for the second stage, which begins one later. Two copies have half of the
        // microbatches each, and send what they have once, in two parts. The last gradient leaves
        // the second stage at 11.
        assert_eq!(times, [12.0, 16.0, 14.0, 17.0, 15.0, 12.0]);
    }

    #[test]
    fn a_row_says_what_its_stages_may_do_where_memory_is_short() {
        let lines = solved(
            "p,m,mw,mem_limit,recompute,md,offload\n\
             4,8,0.5,1.5,,,\n4,8,0.5,1.5,f,,\n4,8,0.5,1.5,1;1;1;1,,\n4,8,0.5,1.5,f,0.5,\n4,8,0.5,1.5,,,2\n",
        );
        let lines = lines.expect("legal");
        let names: Vec<&str> = lines[0].split(',').collect();
        let time = names.iter().position(|name| *name == "step_time").expect("a column");
        let of_line = |line: &String| -> f64 {
            line.split(',').nth(time).expect("a cell").parse().expect("a time")
        };
        let times: Vec<f64> = lines[1..].iter().map(of_line).collect();
        assert!(times[1] < times[0] && times[1] == times[2], "{times:?}");
        assert!(times[3] > times[1] && times[4] < times[0], "{times:?}");
        let wrong =
            solved("p,m,md,recompute,offload\n2,4,2,f,\n2,4,,,x\n").expect_err("it is wrong");
        assert!(
            wrong[0].contains("line 2, md") && wrong[1].contains("line 3, offload"),
            "{wrong:?}"
        );
    }

    #[test]
    fn copies_share_microbatches_evenly() {
        let found = solved("p,m,data_parallel\n2,4,0\n2,4,3\n").expect_err("it is wrong");
        let none = "expected 1 copy or more";
        let uneven = "3 copies cannot share 4 microbatches";
        assert!(found[0].contains("line 2, data_parallel") && found[0].contains(none), "{found:?}");
        assert!(found[1].contains("line 3") && found[1].contains(uneven), "{found:?}");
    }

    #[test]
    fn everything_wrong_is_reported_with_its_line() {
        let wrong = |text: &str| solved(text).expect_err("it is wrong").join("\n");
        assert!(wrong("").contains("no line of names"));
        assert!(wrong("p,f\n1,2\n").contains("FILE: line 1: column `m` is missing"));
        let missing = wrong("p,m,f,b\n4,8,1,2\n4,8,1,\n");
        assert!(missing.contains("FILE: line 3, b: a time is missing"), "{missing}");
        assert!(wrong("p,m,x\n").contains("column `x` is unknown"));
        let rows = wrong("p,m,f\n2,3,-1\n2,3\n0,3,1\nq,1,1\n");
        assert!(rows.contains("FILE: line 3: expected 3 cells, found 2"), "{rows}");
        let rows =
            wrong("p,m,f,mem_limit,kind\n2,3,-1,,\n0,3,1,,\nq,1,1,,\n2,2,1,0.5,\n2,2,1,,zb\n");
        for place in
            ["line 2, f", "line 3, stages", "line 4, p", "line 5, mem_limit", "line 6, kind"]
        {
            assert!(rows.contains(&format!("FILE: {place}")), "{place}: {rows}");
        }
    }
}
