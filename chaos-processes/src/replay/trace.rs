//! The availability of a fleet over time, as it was recorded, and the moves of a smaller fleet that
//! follows it. Pure: text in, moves out.

use std::collections::{BTreeMap, BTreeSet};

/// The header of a file with events.
const EVENTS_HEADER: &str = "time_s,event,node,nodes_alive";
/// The header of a file with counts.
const COUNTS_HEADER: &str = "time_s,nodes_alive";

/// Why a text is no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleetTraceError {
    /// The first line names other columns.
    #[error("line 1: expected {EVENTS_HEADER} or {COUNTS_HEADER}, found {found}")]
    Header {
        /// The first line of the text.
        found: String,
    },
    /// A line cannot be read.
    #[error("line {line}: expected {expected}, found {found}")]
    Line {
        /// Number of the line, counted from 1.
        line: usize,
        /// The form of the line that should be there.
        expected: &'static str,
        /// The text that was found instead.
        found: String,
    },
    /// A line is earlier than the one before.
    #[error("line {line}: time goes back")]
    Order {
        /// Number of the line, counted from 1.
        line: usize,
    },
    /// There is no worker in a window.
    #[error("the trace has no nodes between {from} s and {to} s")]
    Empty {
        /// Beginning of the window, in seconds.
        from: u64,
        /// End of the window, in seconds.
        to: u64,
    },
}

/// The change at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetTraceChange {
    /// The moment, in seconds of the trace.
    pub at_s: f64,
    /// Number of nodes that left.
    pub left: u32,
    /// Number of nodes that came.
    pub came: u32,
    /// Nodes that are there from then on.
    pub alive: u32,
}

/// The availability of a fleet, change by change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetTrace {
    changes: Vec<FleetTraceChange>,
}

/// A line of a file.
struct FleetTraceLine {
    at_s: f64,
    left: u32,
    came: u32,
    alive: u32,
}

impl FleetTrace {
    /// Reads a file with events or with counts. Lines of one moment are one change.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<Self, FleetTraceError> {
        let mut lines = text.lines().zip(1..);
        let header = lines.next().map_or("", |(line, _)| line.trim());
        let has_events = match header {
            EVENTS_HEADER => true,
            COUNTS_HEADER => false,
            _ => return Err(FleetTraceError::Header { found: header.to_owned() }),
        };
        let mut changes: Vec<FleetTraceChange> = Vec::new();
        for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty()) {
            let alive = changes.last().map_or(0, |last| last.alive);
            let FleetTraceLine { at_s, left, came, alive } =
                parse_line(text, line, has_events, alive)?;
            match changes.last_mut() {
                Some(last) if last.at_s > at_s => return Err(FleetTraceError::Order { line }),
                Some(last) if last.at_s == at_s => {
                    last.left = last.left.saturating_add(left);
                    last.came = last.came.saturating_add(came);
                    last.alive = alive;
                }
                Some(_) | None => changes.push(FleetTraceChange { at_s, left, came, alive }),
            }
        }
        Ok(Self { changes })
    }

    /// The moves of at most so many workers that replay a part of it, so many times as fast. The
    /// fleet is made smaller by one scale for the whole part: its greatest count becomes
    /// `workers_max`.
    ///
    /// # Errors
    /// If there is no worker.
    pub fn follow(
        &self,
        (from_s, to_s): (f64, f64),
        speed: f64,
        workers_max: u32,
    ) -> Result<Fleet, FleetTraceError> {
        let before = self.changes.iter().take_while(|change| change.at_s <= from_s).last();
        let begin = before.map_or(0, |change| change.alive);
        let within = |change: &&FleetTraceChange| change.at_s > from_s && change.at_s < to_s;
        let changes: Vec<&FleetTraceChange> = self.changes.iter().filter(within).collect();
        let most = changes.iter().map(|change| change.alive).chain([begin]).max().unwrap_or(0);
        if most == 0 {
            return Err(FleetTraceError::Empty { from: from_s as u64, to: to_s as u64 });
        }
        let scale = (f64::from(workers_max) / f64::from(most)).min(1.0);
        let mut fleet = Fleet {
            scale,
            begin: scaled(begin, scale),
            moves: Vec::new(),
            seconds: (to_s - from_s) / speed,
        };
        let mut alive = fleet.begin;
        let mut owed = 0.0;
        for change in changes {
            let target = scaled(change.alive, scale);
            // A node that leaves while another comes shows in no count, and is a loss all the same.
            owed += f64::from(change.left) * scale;
            let kills = (owed as u32).max(alive.saturating_sub(target)).min(alive);
            owed = (owed - f64::from(kills)).max(0.0);
            let starts = target - (alive - kills);
            if kills + starts > 0 {
                fleet.moves.push(FleetMove {
                    after_s: (change.at_s - from_s) / speed,
                    kills,
                    starts,
                });
            }
            alive = target;
        }
        Ok(fleet)
    }
}

fn parse_line(
    text: &str,
    line: usize,
    has_events: bool,
    before: u32,
) -> Result<FleetTraceLine, FleetTraceError> {
    let fields: Vec<&str> = text.trim().split(',').collect();
    let wrong =
        |expected: &'static str| FleetTraceError::Line { line, expected, found: text.to_owned() };
    let seconds = |text: &str| text.parse::<f64>().ok().filter(|time| time.is_finite());
    let count = |text: &str| text.parse::<u32>().ok();
    match (has_events, fields.as_slice()) {
        (true, [at_s, event, _, alive]) => {
            let at_s = seconds(at_s).ok_or_else(|| wrong("a time in seconds"))?;
            let alive = count(alive).ok_or_else(|| wrong("a count of nodes"))?;
            let (left, came) = match *event {
                "join" => (0, 1),
                "leave" => (1, 0),
                _ => return Err(wrong("join or leave")),
            };
            Ok(FleetTraceLine { at_s, left, came, alive })
        }
        (false, [at_s, alive]) => {
            let at_s = seconds(at_s).ok_or_else(|| wrong("a time in seconds"))?;
            let alive = count(alive).ok_or_else(|| wrong("a count of nodes"))?;
            let left = before.saturating_sub(alive);
            let came = alive.saturating_sub(before);
            Ok(FleetTraceLine { at_s, left, came, alive })
        }
        (true, _) => Err(wrong("four columns")),
        (false, _) => Err(wrong("two columns")),
    }
}

/// The size of a smaller fleet; where a node is, a worker stays.
fn scaled(alive: u32, scale: f64) -> u32 {
    let found = (f64::from(alive) * scale).round() as u32;
    found.max(u32::from(alive > 0))
}

/// The change of a fleet at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetMove {
    /// Seconds after the beginning.
    pub after_s: f64,
    /// Number of workers that die.
    pub kills: u32,
    /// Number of workers that come.
    pub starts: u32,
}

/// A fleet that follows a part of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// Its workers for each node of the trace.
    pub scale: f64,
    /// Workers at the beginning.
    pub begin: u32,
    /// The changes, in the order of time.
    pub moves: Vec<FleetMove>,
    /// How long the fleet is followed, in seconds.
    pub seconds: f64,
}

impl Fleet {
    /// Spans of time with so many workers each, in seconds.
    fn spans(&self) -> Vec<(f64, u32)> {
        let mut alive = self.begin;
        let mut since = 0.0;
        let mut spans = Vec::new();
        for found in &self.moves {
            spans.push((found.after_s - since, alive));
            since = found.after_s;
            alive = alive - found.kills + found.starts;
        }
        spans.push((self.seconds - since, alive));
        spans
    }

    /// How many workers there are at one time or another.
    #[must_use]
    pub fn sizes(&self) -> BTreeSet<u32> {
        self.spans().into_iter().map(|(_, alive)| alive).filter(|alive| *alive > 0).collect()
    }

    /// Number of workers that die in all.
    #[must_use]
    pub fn kills(&self) -> u32 {
        self.moves.iter().map(|found| found.kills).sum()
    }

    /// Steps that the workers would seal if no change cost any time: the integral of the rates,
    /// in steps a second, that so many workers have undisturbed. No workers seal nothing.
    #[must_use]
    pub fn ideal_steps(&self, rates: &BTreeMap<u32, f64>) -> f64 {
        let rate = |alive: u32| rates.get(&alive).copied().unwrap_or(0.0);
        self.spans().into_iter().map(|(seconds, alive)| seconds * rate(alive)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Fleet, FleetMove, FleetTrace, FleetTraceChange, FleetTraceError};

    const EVENTS: &str = "time_s,event,node,nodes_alive\n0,join,a,1\n0,join,b,2\n60,join,c,3\n\
                          60,leave,a,2\n120,leave,b,1\n";

    #[test]
    fn lines_of_one_moment_are_one_change() {
        let change = |at_s, left, came, alive| FleetTraceChange { at_s, left, came, alive };
        let events = FleetTrace::parse(EVENTS).expect("a trace");
        let expected = [change(0.0, 0, 2, 2), change(60.0, 1, 1, 2), change(120.0, 1, 0, 1)];
        assert_eq!(events.changes, expected);
        let counts =
            FleetTrace::parse("time_s,nodes_alive\n0,80\n60,70\n120,75\n\n").expect("a trace");
        let expected = [change(0.0, 0, 80, 80), change(60.0, 10, 0, 70), change(120.0, 0, 5, 75)];
        assert_eq!(counts.changes, expected);
        let most = u32::MAX;
        let to_and_fro = format!("time_s,nodes_alive\n0,{most}\n0,0\n0,{most}\n");
        let most = FleetTrace::parse(&to_and_fro).expect("a trace");
        assert_eq!(most.changes, [change(0.0, u32::MAX, u32::MAX, u32::MAX)]);
    }

    #[test]
    fn a_malformed_trace_is_refused_with_its_line() {
        let check = |text: &str, expected: &str| {
            let error = FleetTrace::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("", "line 1: expected time_s,event");
        check("time,count\n", "found time,count");
        check("time_s,nodes_alive\n0,1,2\n", "line 2: expected two columns");
        check("time_s,nodes_alive\nnan,1\n", "line 2: expected a time");
        check("time_s,nodes_alive\n5,1\n4,1\n", "line 3: time goes back");
        check("time_s,event,node,nodes_alive\n5,dies,a,1\n", "join or leave, found 5,dies,a,1");
        check("time_s,event,node,nodes_alive\n5,join,a,-1\n", "a count of nodes");
    }

    fn follow(text: &str, window: (f64, f64), speed: f64, most: u32) -> Fleet {
        FleetTrace::parse(text)
            .expect("a trace")
            .follow(window, speed, most)
            .expect("somebody is there")
    }

    #[test]
    fn a_fleet_of_the_same_size_does_what_the_trace_did() {
        let fleet = follow(EVENTS, (0.0, 180.0), 6.0, 9);
        let moves = [
            FleetMove { after_s: 10.0, kills: 1, starts: 1 },
            FleetMove { after_s: 20.0, kills: 1, starts: 0 },
        ];
        let expected = Fleet { scale: 1.0, begin: 2, moves: moves.to_vec(), seconds: 30.0 };
        assert_eq!(fleet, expected);
        assert_eq!(fleet.kills(), 2);
    }

    #[test]
    fn a_smaller_fleet_has_its_share_of_nodes_and_of_losses() {
        let mut text = "time_s,event,node,nodes_alive\n".to_owned();
        (0..8).for_each(|node| text += &format!("0,join,n{node},{}\n", node + 1));
        // Four leave and come again, one at a time: a quarter of the fleet loses one.
        for round in 1..=4 {
            text += &format!("{round}0,leave,n{round},7\n{round}0,join,m{round},8\n");
        }
        text += "50,leave,m1,7\n50,leave,m2,6\n50,leave,m3,5\n50,leave,m4,4\n";
        let fleet = follow(&text, (0.0, 60.0), 1.0, 2);
        assert_eq!((fleet.scale, fleet.begin), (0.25, 2));
        let expected = [
            FleetMove { after_s: 40.0, kills: 1, starts: 1 },
            FleetMove { after_s: 50.0, kills: 1, starts: 0 },
        ];
        assert_eq!(fleet.moves, expected);
        let error = FleetTrace::parse(&text).expect("a trace").follow((-9.0, -5.0), 1.0, 2);
        assert_eq!(error, Err(FleetTraceError::Empty { from: 0, to: 0 }));
    }

    #[test]
    fn the_ideal_is_what_those_who_are_there_do_undisturbed() {
        let fleet = follow(EVENTS, (0.0, 180.0), 6.0, 9);
        assert_eq!(fleet.sizes().into_iter().collect::<Vec<_>>(), [1, 2]);
        let rates = BTreeMap::from([(1, 2.0), (2, 3.0)]);
        assert_eq!(fleet.ideal_steps(&rates), 20.0 * 3.0 + 10.0 * 2.0);
        assert_eq!(fleet.ideal_steps(&BTreeMap::new()), 0.0);
    }
}
