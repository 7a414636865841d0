//! The faults of a cluster of real processes: plain data, drawn from a seed.
//!
//! A fault names its victims by a draw. Which nodes that selects is decided when it is injected,
//! among those that are there then, so that a list of faults keeps its meaning in a cluster that
//! went another way.

use std::fmt;

use chaos_tests::random::{DrawPurpose, Draws};
use serde::{Deserialize, Serialize};

use super::link_conditions::LinkConditions;

/// How long a process that died stays away, in milliseconds.
const DOWN_MS: (u64, u64) = (50, 1500);
/// How long power stays away.
const DARK_MS: (u64, u64) = (50, 1000);
/// How long a node stands still: from shorter than any node notices to longer than any node waits.
const PAUSE_MS: (u64, u64) = (50, 6000);
/// How long a disk is full.
const FULL_MS: (u64, u64) = (500, 4000);
/// How long the network is bad.
const WEATHER_MS: (u64, u64) = (200, 5000);
/// How long a node that got SIGTERM has to leave before it is killed, if it is.
const GRACE_MS: (u64, u64) = (0, 400);
/// Datagrams of each link that come again.
const REPLAYED: usize = 64;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessFaultKind {
    /// A worker that has a stage dies.
    KillWorker,
    /// Several workers die at once.
    KillWorkers,
    /// The leader dies and comes back.
    KillLeader,
    /// A controller that does not lead dies.
    KillFollower,
    /// A worker stands still.
    PauseWorker,
    /// A controller stands still.
    PauseController,
    /// A worker gets SIGTERM, leaves, and comes back.
    Drain,
    /// A worker more comes; if there are many, one leaves for good.
    Join,
    /// Everything dies at once.
    PowerCycle,
    /// A worker's disk is full.
    FullDisk,
    /// A node dies, and a file that it keeps is damaged when it comes back.
    DamageDisk,
    /// A node is cut off.
    Isolate,
    /// A node receives nothing, or nothing that it sends arrives.
    OneWay,
    /// The network loses, doubles, delays and damages.
    Storm,
    /// Old datagrams come again.
    Replay,
}

impl ProcessFaultKind {
    /// Every kind of fault.
    pub const ALL: [Self; 15] = [
        Self::KillWorker,
        Self::KillWorkers,
        Self::KillLeader,
        Self::KillFollower,
        Self::PauseWorker,
        Self::PauseController,
        Self::Drain,
        Self::Join,
        Self::PowerCycle,
        Self::FullDisk,
        Self::DamageDisk,
        Self::Isolate,
        Self::OneWay,
        Self::Storm,
        Self::Replay,
    ];
    /// Those of a campaign for which none are named: the kinds that need no proxy, without power
    /// cycles, which are counted by themselves.
    pub const USUAL: [Self; 10] = [
        Self::KillWorker,
        Self::KillWorkers,
        Self::KillLeader,
        Self::KillFollower,
        Self::PauseWorker,
        Self::PauseController,
        Self::Drain,
        Self::Join,
        Self::FullDisk,
        Self::DamageDisk,
    ];

    /// Its name, as it is typed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::KillWorker => "kill-worker",
            Self::KillWorkers => "kill-workers",
            Self::KillLeader => "kill-leader",
            Self::KillFollower => "kill-follower",
            Self::PauseWorker => "pause-worker",
            Self::PauseController => "pause-controller",
            Self::Drain => "drain",
            Self::Join => "join",
            Self::PowerCycle => "power-cycle",
            Self::FullDisk => "full-disk",
            Self::DamageDisk => "damage-disk",
            Self::Isolate => "isolate",
            Self::OneWay => "one-way",
            Self::Storm => "storm",
            Self::Replay => "replay",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is a fault of the network, and not of a process.
    #[must_use]
    pub const fn is_network(self) -> bool {
        match self {
            Self::Isolate | Self::OneWay | Self::Storm | Self::Replay => true,
            Self::KillWorker
            | Self::KillWorkers
            | Self::KillLeader
            | Self::KillFollower
            | Self::PauseWorker
            | Self::PauseController
            | Self::Drain
            | Self::Join
            | Self::PowerCycle
            | Self::FullDisk
            | Self::DamageDisk => false,
        }
    }

    /// How often it is drawn, against the others.
    const fn weight(self) -> u64 {
        match self {
            Self::KillWorker => 6,
            Self::KillLeader | Self::PauseWorker => 3,
            Self::KillWorkers
            | Self::KillFollower
            | Self::PauseController
            | Self::Drain
            | Self::Isolate
            | Self::OneWay
            | Self::Storm => 2,
            Self::Join | Self::PowerCycle | Self::FullDisk | Self::DamageDisk | Self::Replay => 1,
        }
    }
}

impl fmt::Display for ProcessFaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A fault, with all that was drawn for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProcessFault {
    /// Workers die, those with a stage first, and come back.
    KillWorkers {
        /// Which is the first.
        draw: u64,
        /// Number of workers that are killed.
        count: usize,
        /// Milliseconds until they come back.
        down_ms: u64,
    },
    /// The leader dies and comes back.
    KillLeader {
        /// Milliseconds until it comes back.
        down_ms: u64,
    },
    /// A controller that does not lead dies and comes back.
    KillFollower {
        /// Draw that picks the controller.
        draw: u64,
        /// Milliseconds until it comes back.
        down_ms: u64,
    },
    /// A worker stands still and goes on.
    PauseWorker {
        /// Draw that picks the worker.
        draw: u64,
        /// Milliseconds for which it stands still.
        ms: u64,
    },
    /// A controller stands still and goes on.
    PauseController {
        /// Draw that picks the controller.
        draw: u64,
        /// Milliseconds for which it stands still.
        ms: u64,
    },
    /// A worker gets SIGTERM, leaves, and comes back.
    Drain {
        /// Draw that picks the worker.
        draw: u64,
        /// It is killed if it has not left after so long.
        killed_after_ms: Option<u64>,
    },
    /// A worker more comes; if there are many, one leaves for good.
    Join {
        /// Draw that picks the worker that would leave.
        draw: u64,
    },
    /// Everything dies and comes back in an order that is drawn.
    PowerCycle {
        /// The seed of the order in which they come back.
        order: u64,
        /// Milliseconds until they come back.
        down_ms: u64,
    },
    /// A worker's files do not grow.
    FullDisk {
        /// Draw that picks the worker.
        draw: u64,
        /// Milliseconds for which its disk is full.
        ms: u64,
    },
    /// A node dies, a file that it keeps of checkpoints or texts is damaged, and it comes back.
    DamageDisk {
        /// Draw that picks the node, and what is damaged.
        draw: u64,
        /// Milliseconds until it comes back.
        down_ms: u64,
    },
    /// A node is cut off.
    Isolate {
        /// Draw that picks the node.
        draw: u64,
        /// Milliseconds for which it is cut off.
        ms: u64,
    },
    /// A node is cut off in one direction.
    OneWay {
        /// Draw that picks the node.
        draw: u64,
        /// Whether nothing reaches it; else nothing that it sends arrives.
        is_deaf: bool,
        /// Milliseconds for which it is cut off.
        ms: u64,
    },
    /// The whole network is bad.
    Storm {
        /// The conditions of all links.
        weather: LinkConditions,
        /// Milliseconds for which it lasts.
        ms: u64,
    },
    /// The last datagrams come again.
    Replay {
        /// How many datagrams of each link come again.
        count: usize,
        /// Milliseconds after which they come again.
        ms: u64,
    },
}

impl ProcessFault {
    /// The kind of the fault.
    #[must_use]
    pub const fn kind(&self) -> ProcessFaultKind {
        match self {
            Self::KillWorkers { count: 1, .. } => ProcessFaultKind::KillWorker,
            Self::KillWorkers { .. } => ProcessFaultKind::KillWorkers,
            Self::KillLeader { .. } => ProcessFaultKind::KillLeader,
            Self::KillFollower { .. } => ProcessFaultKind::KillFollower,
            Self::PauseWorker { .. } => ProcessFaultKind::PauseWorker,
            Self::PauseController { .. } => ProcessFaultKind::PauseController,
            Self::Drain { .. } => ProcessFaultKind::Drain,
            Self::Join { .. } => ProcessFaultKind::Join,
            Self::PowerCycle { .. } => ProcessFaultKind::PowerCycle,
            Self::FullDisk { .. } => ProcessFaultKind::FullDisk,
            Self::DamageDisk { .. } => ProcessFaultKind::DamageDisk,
            Self::Isolate { .. } => ProcessFaultKind::Isolate,
            Self::OneWay { .. } => ProcessFaultKind::OneWay,
            Self::Storm { .. } => ProcessFaultKind::Storm,
            Self::Replay { .. } => ProcessFaultKind::Replay,
        }
    }

    fn draw(kind: ProcessFaultKind, longest_ms: u64, draws: &mut Draws) -> Self {
        let mut time = |(low, high): (u64, u64)| draws.between(low, high.min(longest_ms).max(low));
        let down_ms = time(DOWN_MS);
        let dark_ms = time(DARK_MS);
        let pause_ms = time(PAUSE_MS);
        let full_ms = time(FULL_MS);
        let weather_ms = time(WEATHER_MS);
        let grace_ms = time(GRACE_MS);
        let draw = draws.number();
        match kind {
            ProcessFaultKind::KillWorker => Self::KillWorkers { draw, count: 1, down_ms },
            ProcessFaultKind::KillWorkers => {
                let count = draws.between(2, 3) as usize;
                Self::KillWorkers { draw, count, down_ms }
            }
            ProcessFaultKind::KillLeader => Self::KillLeader { down_ms },
            ProcessFaultKind::KillFollower => Self::KillFollower { draw, down_ms },
            ProcessFaultKind::PauseWorker => Self::PauseWorker { draw, ms: pause_ms },
            ProcessFaultKind::PauseController => Self::PauseController { draw, ms: pause_ms },
            ProcessFaultKind::Drain => {
                let killed_after_ms = draws.chance(0.25).then_some(grace_ms);
                Self::Drain { draw, killed_after_ms }
            }
            ProcessFaultKind::Join => Self::Join { draw },
            ProcessFaultKind::PowerCycle => Self::PowerCycle { order: draw, down_ms: dark_ms },
            ProcessFaultKind::FullDisk => Self::FullDisk { draw, ms: full_ms },
            ProcessFaultKind::DamageDisk => Self::DamageDisk { draw, down_ms },
            ProcessFaultKind::Isolate => Self::Isolate { draw, ms: weather_ms },
            ProcessFaultKind::OneWay => {
                Self::OneWay { draw, is_deaf: draws.chance(0.5), ms: weather_ms }
            }
            ProcessFaultKind::Storm => Self::Storm { weather: storm(draws), ms: weather_ms },
            ProcessFaultKind::Replay => Self::Replay { count: REPLAYED, ms: weather_ms },
        }
    }
}

fn storm(draws: &mut Draws) -> LinkConditions {
    let mut share = |most: f64| if draws.chance(0.5) { draws.share() * most } else { 0.0 };
    let loss = share(0.3);
    let duplication = share(0.1);
    let reordering = share(0.2);
    let corruption = share(0.05);
    let delay_us = if draws.chance(0.5) { draws.between(1000, 100_000) } else { 0 };
    let jitter_us = if draws.chance(0.5) { draws.between(1000, 50_000) } else { 0 };
    let reorder_us = draws.between(1000, 50_000);
    // From 1 to 100 Mbit/s.
    let rate = if draws.chance(0.3) { draws.between(125_000, 12_500_000) } else { 0 };
    LinkConditions {
        is_cut: false,
        delay_us,
        jitter_us,
        loss,
        duplication,
        reordering,
        reorder_us,
        corruption,
        rate_bytes_s: rate,
    }
}

impl fmt::Display for ProcessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        match self {
            Self::KillWorkers { count: 1, down_ms, .. }
            | Self::KillLeader { down_ms }
            | Self::KillFollower { down_ms, .. }
            | Self::DamageDisk { down_ms, .. } => write!(f, ", back after {down_ms} ms"),
            Self::KillWorkers { count, down_ms, .. } => {
                write!(f, ", {count} of them, back after {down_ms} ms")
            }
            Self::PauseWorker { ms, .. }
            | Self::PauseController { ms, .. }
            | Self::FullDisk { ms, .. }
            | Self::Isolate { ms, .. } => write!(f, " for {ms} ms"),
            Self::Drain { killed_after_ms: None, .. } | Self::Join { .. } => Ok(()),
            Self::Drain { killed_after_ms: Some(ms), .. } => write!(f, ", killed after {ms} ms"),
            Self::PowerCycle { down_ms, .. } => write!(f, ", dark for {down_ms} ms"),
            Self::OneWay { is_deaf, ms, .. } => {
                write!(f, ", {} for {ms} ms", if *is_deaf { "deaf" } else { "mute" })
            }
            Self::Storm { weather, ms } => write!(f, " for {ms} ms: {weather}"),
            Self::Replay { count, ms } => write!(f, ", {count} of each link, after {ms} ms"),
        }
    }
}

/// The mix of faults that is drawn for a campaign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFaultMix {
    /// Faults besides power cycles.
    pub count: u64,
    /// Kinds from which the faults are drawn.
    pub kinds: Vec<ProcessFaultKind>,
    /// Power cycles, spread evenly among the others.
    pub power_cycles: u64,
    /// None lasts longer than this, in milliseconds.
    pub longest_ms: u64,
    /// How many faults are injected at once.
    pub together: u64,
}

impl ProcessFaultMix {
    /// How often faults are injected.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        let at_once = if self.together == 0 { 1 } else { self.together };
        (self.count + self.power_cycles).div_ceil(at_once)
    }

    /// The faults of a seed, in their order.
    ///
    /// # Panics
    /// If faults are wanted, and of no kind.
    #[must_use]
    pub fn draw(&self, seed: u64) -> Vec<ProcessFault> {
        let mut draws = Draws::new(seed, DrawPurpose::Faults);
        let total = self.count + self.power_cycles;
        let mut faults = Vec::new();
        let mut cycles = 0;
        for place in 0..total {
            // The share of power cycles among those so far is never behind by more than one.
            let is_cycle = (place + 1) * self.power_cycles / total > cycles;
            cycles += u64::from(is_cycle);
            let kind = if is_cycle { ProcessFaultKind::PowerCycle } else { self.kind(&mut draws) };
            faults.push(ProcessFault::draw(kind, self.longest_ms, &mut draws));
        }
        faults
    }

    fn kind(&self, draws: &mut Draws) -> ProcessFaultKind {
        let total = self.kinds.iter().map(|kind| kind.weight()).sum();
        let mut left = draws.below(total);
        let chosen = self.kinds.iter().find(|kind| {
            let is_here = left < kind.weight();
            left = left.saturating_sub(kind.weight());
            is_here
        });
        *chosen.expect("the draw is below the sum")
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessFault, ProcessFaultKind, ProcessFaultMix};
    use crate::link_conditions::LinkConditions;

    fn mix(kinds: &[ProcessFaultKind], count: u64, power_cycles: u64) -> ProcessFaultMix {
        ProcessFaultMix {
            count,
            kinds: kinds.to_vec(),
            power_cycles,
            longest_ms: 6000,
            together: 1,
        }
    }

    #[test]
    fn a_seed_says_which_faults_strike() {
        let mix = mix(&ProcessFaultKind::ALL, 500, 0);
        assert_eq!(mix.draw(3), mix.draw(3));
        assert_ne!(mix.draw(3), mix.draw(4));
        let drawn = mix.draw(3);
        for kind in ProcessFaultKind::ALL {
            let count = drawn.iter().filter(|fault| fault.kind() == kind).count();
            assert!(count > 0, "{kind} is never drawn");
        }
        let json = serde_json::to_string(&drawn).expect("data");
        assert_eq!(serde_json::from_str::<Vec<ProcessFault>>(&json).expect("data"), drawn);
    }

    #[test]
    fn only_requested_kinds_are_drawn() {
        let kinds = [ProcessFaultKind::Drain, ProcessFaultKind::Replay];
        let drawn = mix(&kinds, 100, 0).draw(1);
        assert!(drawn.iter().all(|fault| kinds.contains(&fault.kind())));
    }

    #[test]
    fn nothing_lasts_longer_than_it_may() {
        let pauses = |longest_ms| {
            let mix =
                ProcessFaultMix { longest_ms, ..mix(&[ProcessFaultKind::PauseWorker], 200, 0) };
            let lasts = |fault: ProcessFault| {
                if let ProcessFault::PauseWorker { ms, .. } = fault {
                    ms
                } else {
                    panic!("{fault}")
                }
            };
            mix.draw(1).into_iter().map(lasts).max()
        };
        assert!(pauses(100) <= Some(100));
        assert!(pauses(6000) > Some(5000));
        assert!(pauses(0) <= Some(50));
    }

    #[test]
    fn power_cycles_are_spread() {
        let check = |count, cycles, expected: &[usize]| {
            let drawn = mix(&[ProcessFaultKind::KillLeader], count, cycles).draw(1);
            assert_eq!(drawn.len() as u64, count + cycles);
            let places = drawn.iter().enumerate();
            let places = places.filter(|(_, fault)| fault.kind() == ProcessFaultKind::PowerCycle);
            assert_eq!(places.map(|(place, _)| place).collect::<Vec<_>>(), expected);
        };
        check(6, 2, &[3, 7]);
        check(0, 3, &[0, 1, 2]);
        check(3, 0, &[]);
        check(0, 0, &[]);
    }

    #[test]
    fn a_kind_has_one_name() {
        for kind in ProcessFaultKind::ALL {
            assert_eq!(ProcessFaultKind::named(kind.name()), Some(kind));
            let json = serde_json::to_value(kind).expect("a name");
            assert_eq!(json.as_str(), Some(kind.name()));
        }
    }

    #[test]
    fn a_fault_is_printed_in_words() {
        let check = |fault: ProcessFault, expected: &str| assert_eq!(fault.to_string(), expected);
        let kill = |count| ProcessFault::KillWorkers { draw: 1, count, down_ms: 70 };
        check(kill(1), "kill-worker, back after 70 ms");
        check(kill(2), "kill-workers, 2 of them, back after 70 ms");
        check(ProcessFault::Drain { draw: 1, killed_after_ms: None }, "drain");
        let conditions = LinkConditions { loss: 0.1, ..LinkConditions::CLEAR };
        check(ProcessFault::Storm { weather: conditions, ms: 9 }, "storm for 9 ms: loss 10.0 %");
    }
}
