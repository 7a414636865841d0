//! How much a node keeps for each other one: of a layer at a version one state, and as many versions
//! beyond those that the cluster refers to as can come about until it refers to them. Pieces of
//! right digests fill no disk either. A start forgets who requested a piece: those that lie in the store
//! then count together, as requested by any of the members.

use std::collections::{BTreeMap, BTreeSet};

use zbelastic_checkpoint::{CheckpointId, PieceName};
use zbelastic_consensus::checkpoint::PENDING_MAX;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{Digest, LayerId, NodeId};

use crate::piece::PieceRef;

/// Versions of one node that the cluster does not refer to yet: those under way, and as many that
/// took their places since the last message of what is referred to.
pub const VERSIONS_AHEAD_MAX: usize = 2 * PENDING_MAX;

/// Why a piece is more than a node keeps for one other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaExceeded {
    /// It requested another state of that layer to be kept.
    #[error("layer {layer} of {version} was requested with another digest before")]
    State {
        /// The version.
        version: CheckpointId,
        /// Index of the layer.
        layer: LayerId,
    },
    /// It requested too many versions that the cluster does not refer to.
    #[error(
        "{VERSIONS_AHEAD_MAX} versions are kept that the cluster does not refer to; {found} is another one"
    )]
    Versions {
        /// The version that the request names.
        found: CheckpointId,
    },
    /// What lay here at the start, and what was requested since, is as much as all members may request.
    #[error("of layer {layer} as many states are kept as {members} members may request")]
    Members {
        /// Index of the layer.
        layer: LayerId,
        /// How many members there are.
        members: usize,
    },
}

/// States of a layer at versions.
type LayerStates = BTreeSet<(CheckpointId, Digest)>;

/// What each node requested to be kept, as far as the cluster does not collect it.
#[derive(Debug, Default)]
pub struct KeepQuota {
    referred: BTreeSet<CheckpointId>,
    granted: BTreeMap<NodeId, BTreeMap<(CheckpointId, LayerId), Digest>>,
    /// What lay in the store at the start, once that was read, as far as the cluster does not collect it.
    /// Nobody knows who requested it.
    inherited: Option<BTreeMap<LayerId, LayerStates>>,
    members: usize,
}

impl KeepQuota {
    /// So many members may request pieces. What lies in the store is read at the first call.
    pub fn note_members(
        &mut self,
        members: usize,
        stored: impl FnOnce() -> Option<Vec<PieceName>>,
    ) {
        self.members = members.max(1);
        if self.inherited.is_none() {
            self.inherited = stored().map(|names| {
                let mut states: BTreeMap<LayerId, LayerStates> = BTreeMap::new();
                for PieceName { version, layer, digest } in names {
                    states.entry(layer).or_default().insert((version, digest));
                }
                states
            });
        }
    }

    /// A node requests that a piece is kept.
    ///
    /// # Errors
    /// If that is too much for one node.
    pub fn grant(&mut self, piece: PieceRef, node: NodeId) -> Result<(), QuotaExceeded> {
        let granted = self.granted.entry(node).or_default();
        let version = piece.name().version;
        let layer = piece.layer;
        if let Some(known) = granted.get(&(version, layer)) {
            let is_known = *known == piece.digest;
            return if is_known { Ok(()) } else { Err(QuotaExceeded::State { version, layer }) };
        }
        let versions: BTreeSet<_> = granted.keys().map(|(version, _)| *version).collect();
        let ahead = versions.difference(&self.referred).count();
        let is_new = !versions.contains(&version) && !self.referred.contains(&version);
        if is_new && ahead >= VERSIONS_AHEAD_MAX && !mutant::is(Mutant::M56AnyVersionsAhead) {
            return Err(QuotaExceeded::Versions { found: version });
        }
        if self.is_beyond_members(piece) {
            return Err(QuotaExceeded::Members { layer, members: self.members });
        }
        self.granted.entry(node).or_default().insert((version, layer), piece.digest);
        Ok(())
    }

    /// Whether a piece is more than all members together may request of its layer, with what lay here at
    /// the start. Honest ones request one state of a layer at a version, whichever of them has it, so
    /// they are refused only what others fill up.
    fn is_beyond_members(&self, piece: PieceRef) -> bool {
        let inherited = self.inherited.as_ref().and_then(|states| states.get(&piece.layer));
        // Before the first message of what is referred to nobody knows what counts.
        let Some(inherited) = inherited.filter(|_| !self.referred.is_empty()) else { return false };
        let version = piece.name().version;
        let is_referred = |version: &CheckpointId| self.referred.contains(version);
        let counts = |found: &CheckpointId| {
            if is_referred(&version) { *found == version } else { !is_referred(found) }
        };
        let each = if is_referred(&version) { 1 } else { VERSIONS_AHEAD_MAX };
        let mut states: LayerStates =
            inherited.iter().filter(|(version, _)| counts(version)).copied().collect();
        let most = each * self.members;
        // Most often there is room whatever was requested since.
        if states.len() + each * self.granted.len() < most {
            return false;
        }
        for granted in self.granted.values() {
            let of_layer = granted.iter().filter(|((_, layer), _)| *layer == piece.layer);
            let of_layer = of_layer.map(|((version, _), digest)| (*version, *digest));
            states.extend(of_layer.filter(|(version, _)| counts(version)));
        }
        !states.contains(&(version, piece.digest)) && states.len() >= most
    }

    /// The cluster refers to these versions: older ones that are not among them are collected.
    pub fn note_referred(&mut self, versions: impl IntoIterator<Item = CheckpointId>) {
        self.referred = versions.into_iter().collect();
        for granted in self.granted.values_mut() {
            granted.retain(|(version, _), _| !is_collected(&self.referred, *version));
        }
        self.granted.retain(|_, granted| !granted.is_empty());
        for states in self.inherited.iter_mut().flat_map(BTreeMap::values_mut) {
            states.retain(|(version, _)| !is_collected(&self.referred, *version));
        }
    }

    /// Whether a version is collected: the cluster refers to newer ones, and not to it.
    #[must_use]
    pub fn is_collected(&self, version: CheckpointId) -> bool {
        is_collected(&self.referred, version)
    }
}

fn is_collected(referred: &BTreeSet<CheckpointId>, version: CheckpointId) -> bool {
    referred.last().is_some_and(|newest| version < *newest) && !referred.contains(&version)
}

#[cfg(test)]
mod tests {
    use zbelastic_types::{RunId, Step};

    use super::*;

    const NODE: NodeId = NodeId(7);

    fn piece(version: u64, layer: u32, digest: u8) -> PieceRef {
        let (run, version, layer) = (RunId(1), Step(version), LayerId(layer));
        PieceRef { run, version, layer, digest: Digest([digest; 32]), length: 10 }
    }

    fn id(version: u64) -> CheckpointId {
        piece(version, 0, 0).name().version
    }

    #[test]
    fn a_node_has_one_state_of_a_layer_and_so_many_versions_ahead() {
        let mut quota = KeepQuota::default();
        let ahead = VERSIONS_AHEAD_MAX as u64;
        for version in 1..=ahead {
            for layer in [0, 1, 0] {
                assert_eq!(quota.grant(piece(version, layer, 9), NODE), Ok(()));
            }
        }
        let (version, layer) = (id(1), LayerId(1));
        let other_state = Err(QuotaExceeded::State { version, layer });
        assert_eq!(quota.grant(piece(1, 1, 8), NODE), other_state);
        let found = id(ahead + 1);
        let too_many = Err(QuotaExceeded::Versions { found });
        assert_eq!(quota.grant(piece(ahead + 1, 0, 9), NODE), too_many);
        assert_eq!(quota.grant(piece(ahead + 1, 0, 9), NodeId(8)), Ok(()), "another node's");
    }

    #[test]
    fn what_lay_here_at_a_start_counts_as_requested_by_the_members_together() {
        let ahead = VERSIONS_AHEAD_MAX as u64;
        let members = 3;
        let most = ahead * members as u64;
        // As a node that had been started before each eight of these left them.
        let stored = |versions: u64| {
            let mut quota = KeepQuota::default();
            let names = (1..=versions).map(|version| piece(version, 0, 9).name());
            quota.note_members(members, || Some(names.collect()));
            quota.note_members(members, || panic!("it was read"));
            quota
        };
        let mut quota = stored(most);
        assert_eq!(
            quota.grant(piece(most + 1, 0, 9), NODE),
            Ok(()),
            "what counts is not known yet"
        );
        let mut quota = stored(most);
        quota.note_referred([id(0)]);
        let refused = Err(QuotaExceeded::Members { layer: LayerId(0), members });
        assert_eq!(quota.grant(piece(most + 1, 0, 9), NODE), refused);
        assert_eq!(
            quota.grant(piece(most, 0, 8), NODE),
            refused,
            "another state of one that is here"
        );
        assert_eq!(quota.grant(piece(most, 0, 9), NODE), Ok(()), "it is here");
        assert_eq!(quota.grant(piece(most + 1, 1, 9), NODE), Ok(()), "none of that layer was");
        quota.note_referred([id(0), id(1)]);
        for (node, digest) in [(1, 8), (2, 7)] {
            assert_eq!(
                quota.grant(piece(1, 0, digest), NodeId(node)),
                Ok(()),
                "one of each member"
            );
        }
        assert_eq!(quota.grant(piece(1, 0, 6), NODE), refused, "each member has had one");
        assert_eq!(quota.grant(piece(most + 1, 0, 9), NODE), Ok(()), "another may come");
        assert_eq!(quota.grant(piece(most + 2, 0, 9), NODE), refused);
        quota.note_referred([id(most)]);
        assert_eq!(quota.grant(piece(most + 2, 0, 9), NODE), Ok(()), "older ones are collected");

        // Of as many as a cluster of honest members has ahead.
        let mut quota = stored(ahead - 1);
        quota.note_referred([id(0)]);
        for node in 0..members as u64 {
            assert_eq!(quota.grant(piece(ahead, 0, 9), NodeId(node)), Ok(()));
        }
    }

    #[test]
    fn what_is_referred_to_or_collected_counts_no_longer() {
        let mut quota = KeepQuota::default();
        let ahead = VERSIONS_AHEAD_MAX as u64;
        let is_granted =
            |quota: &mut KeepQuota, version| quota.grant(piece(version, 0, 9), NODE).is_ok();
        assert!((1..=ahead).all(|version| is_granted(&mut quota, version)));
        // 1 is collected, 2 is referred to: two others may come.
        quota.note_referred([id(0), id(2)]);
        assert!(quota.grant(piece(2, 0, 8), NODE).is_err(), "of a checkpoint one state, too");
        assert!(is_granted(&mut quota, ahead + 1) && is_granted(&mut quota, ahead + 2));
        assert!(!is_granted(&mut quota, ahead + 3));
        // The next run's references collect all of this one's.
        quota.note_referred([CheckpointId { run: RunId(2), version: Step(0) }]);
        assert_eq!(quota.granted, BTreeMap::new());
    }
}
