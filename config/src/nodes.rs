//! A file of machines that a run is planned for.
//!
//! ```toml
//! latency = "0.2ms"      # of a message from one machine to another
//! gbit_per_s = 9.4       # of a link
//! [[node]]
//! name = "a"
//! speed = 2.0            # times this machine
//! memory = "10GiB"
//! zone = "us-east-1a"    # one that machines fail with
//! count = 3
//! ```

use std::path::Path;

use serde::Deserialize;
use zbelastic_consensus::contact::check_zone;
use zbelastic_types::Bytes;
use zbelastic_wording::{CommandFailure, FailureDetail};

use super::file::read_bounded;
use super::kind::parse_size;

/// Machines a file names at most.
pub const NODES_MAX: usize = 1024;

/// A machine, as far as a plan knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSpec {
    /// Name of the node.
    pub name: String,
    /// How many times faster than the machine that plans.
    pub speed: f64,
    /// Memory that a stage may use, if that is limited.
    pub memory: Option<Bytes>,
    /// The zone that it is in; empty if that is not known.
    pub zone: String,
}

/// Machines and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkSpec {
    /// In the order of stages.
    pub nodes: Vec<NodeSpec>,
    /// Of a message, in seconds.
    pub latency_s: f64,
    /// Of a link; none for one that needs no time.
    pub gbit_per_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFile {
    latency: Option<String>,
    gbit_per_s: Option<f64>,
    #[serde(default)]
    node: Vec<NodeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    name: Option<String>,
    #[serde(default = "like_this_one")]
    speed: f64,
    memory: Option<String>,
    #[serde(default)]
    zone: String,
    #[serde(default = "one")]
    count: usize,
}

const fn like_this_one() -> f64 {
    1.0
}

const fn one() -> usize {
    1
}

/// Reads a file of machines.
///
/// # Errors
/// If it cannot be read, or with everything that is wrong in it.
pub fn read_nodes(path: &Path) -> Result<NetworkSpec, CommandFailure> {
    let place = path.display().to_string();
    let refused = |details: Vec<FailureDetail>| CommandFailure::usage("the list of nodes", details);
    let text = read_bounded(path).map_err(|error| {
        let detail = FailureDetail::new(error.to_string()).at(&*place);
        refused(vec![detail.hint("--nodes 4 plans for four machines like this one")])
    })?;
    parse_nodes(&text).map_err(|details| {
        refused(details.into_iter().map(|detail| at_file(detail, &place)).collect())
    })
}

fn at_file(detail: FailureDetail, file: &str) -> FailureDetail {
    let place = detail.place.as_ref().map_or(file.to_owned(), |within| format!("{file}, {within}"));
    detail.at(place)
}

fn parse_nodes(text: &str) -> Result<NetworkSpec, Vec<FailureDetail>> {
    let file: NodesFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        vec![FailureDetail::new(error.message()).at(format!("line {line}"))]
    })?;
    let mut wrong = Vec::new();
    let mut nodes = Vec::new();
    for (number, entry) in (1..).zip(&file.node) {
        wrong.extend(
            entry
                .problems()
                .into_iter()
                .map(|what| FailureDetail::new(what).at(format!("node {number}"))),
        );
        // One node above the maximum is enough for the error: a short file may name any number.
        let before = nodes.len();
        let count = entry.count.min((NODES_MAX + 1).saturating_sub(before));
        nodes.extend((0..count).map(|copy| entry.spec(before + copy, copy)));
    }
    if !(1..=NODES_MAX).contains(&nodes.len()) {
        let found = nodes.len();
        wrong.push(FailureDetail::new(format!("expected 1 to {NODES_MAX} nodes, found {found}")));
    }
    wrong.extend(file.problems().into_iter().map(FailureDetail::new));
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let latency_s = file.latency.as_deref().and_then(parse_seconds).unwrap_or(0.0);
    Ok(NetworkSpec { nodes, latency_s, gbit_per_s: file.gbit_per_s })
}

impl NodesFile {
    fn problems(&self) -> Vec<String> {
        let latency = self.latency.as_ref().filter(|text| parse_seconds(text).is_none());
        let rate = self.gbit_per_s.filter(|rate| !is_above_zero(*rate));
        let latency = latency.map(|found| {
            format!("latency: expected a time such as 0.2ms or 50us, found `{found}`")
        });
        let rate =
            rate.map(|found| format!("gbit_per_s: expected a number above 0, found {found}"));
        latency.into_iter().chain(rate).collect()
    }
}

impl NodeEntry {
    fn problems(&self) -> Vec<String> {
        let speed = (!is_above_zero(self.speed))
            .then(|| format!("speed: expected a number above 0, found {}", self.speed));
        let memory = self.memory.as_ref().filter(|text| parse_size(text).is_none());
        let memory =
            memory.map(|found| format!("memory: expected a size such as 10GiB, found `{found}`"));
        let zone = check_zone(&self.zone).err().map(|refusal| format!("zone: {refusal}"));
        speed.into_iter().chain(memory).chain(zone).collect()
    }

    /// The `copy`-th of its machines, with so many before it.
    fn spec(&self, before: usize, copy: usize) -> NodeSpec {
        let name = match (&self.name, self.count) {
            (Some(name), 1) => name.clone(),
            (Some(name), _) => format!("{name}{copy}"),
            (None, _) => format!("n{before}"),
        };
        let memory = self.memory.as_deref().and_then(parse_size);
        NodeSpec { name, speed: self.speed, memory, zone: self.zone.clone() }
    }
}

fn is_above_zero(number: f64) -> bool {
    number.is_finite() && number > 0.0
}

/// `0.2ms`, `50us`, `1s`.
fn parse_seconds(text: &str) -> Option<f64> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (digits, scale) =
        units.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let seconds = digits.trim().parse::<f64>().ok()? * scale;
    (0.0..=60.0).contains(&seconds).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::{NODES_MAX, NetworkSpec, NodeSpec, parse_nodes};
    use zbelastic_types::Bytes;

    #[test]
    fn machines_are_named_and_counted() {
        let text = "latency = \"0.2ms\"\ngbit_per_s = 9.4\n[[node]]\nname = \"a\"\nspeed = 2.0\n\
                    memory = \"1GiB\"\nzone = \"z\"\n[[node]]\ncount = 2\n[[node]]\nname = \"c\"\ncount = 2";
        let node = |name: &str, speed, memory| {
            let zone = if name == "a" { "z" } else { "" };
            NodeSpec { name: name.to_owned(), speed, memory, zone: zone.to_owned() }
        };
        let nodes = vec![
            node("a", 2.0, Some(Bytes(1 << 30))),
            node("n1", 1.0, None),
            node("n2", 1.0, None),
            node("c0", 1.0, None),
            node("c1", 1.0, None),
        ];
        let expected = NetworkSpec { nodes, latency_s: 2e-4, gbit_per_s: Some(9.4) };
        assert_eq!(parse_nodes(text), Ok(expected));
    }

    #[test]
    fn everything_wrong_is_reported_with_its_place() {
        let check = |text: &str, expected: &[&str]| {
            let details = parse_nodes(text).expect_err(text);
            let found: Vec<String> = details
                .iter()
                .map(|detail| {
                    let place = detail.place.clone().unwrap_or_default();
                    format!("{place}: {}", detail.what)
                })
                .collect();
            assert_eq!(found, expected, "{text}");
        };
        check("", &[": expected 1 to 1024 nodes, found 0"]);
        let many = format!("[[node]]\ncount = {}", 2 * NODES_MAX);
        check(&many, &[": expected 1 to 1024 nodes, found 1025"]);
        check(&format!("{many}\n").repeat(3), &[": expected 1 to 1024 nodes, found 1025"]);
        check(
            "latency = \"fast\"\ngbit_per_s = 0.0\n[[node]]\nspeed = -1.0\nmemory = \"big\"\nzone = \"a/b\"",
            &[
                "node 1: speed: expected a number above 0, found -1",
                "node 1: memory: expected a size such as 10GiB, found `big`",
                "node 1: zone: a zone is made of a-z, 0-9 and -, not of '/'",
                ": latency: expected a time such as 0.2ms or 50us, found `fast`",
                ": gbit_per_s: expected a number above 0, found 0",
            ],
        );
        check(
            "[[node]]\nsped = 1.0",
            &[
                "line 2: unknown field `sped`, expected one of `name`, `speed`, `memory`, `zone`, `count`",
            ],
        );
    }
}
