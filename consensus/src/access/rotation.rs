//! One certificate authority follows another while the cluster runs.
//!
//! ```text
//!   announced ──all there believe both, controllers have the key──▶ issuing
//!   issuing ──all there have certificates by the new one, and the rest had time──▶ retired
//! ```
//!
//! The certificates and the phase are agreed on; each member reports its progress to the leader,
//! and reports it anew to the next one. There is no cryptography here: certificates are bytes that
//! members read.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Digest, NodeId};

use super::{AccessRefusal, AccessRegistry, TokenId};
use crate::member::{Member, Role};

/// Bytes of one of an authority's certificates.
pub const AUTHORITY_BYTES_MAX: usize = 4 << 10;

/// An authority, the one before it, and the path from one to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    /// The digest of the new authority's key, by which tokens name it.
    pub key: Digest,
    /// The new authority's certificate.
    pub certificate: Vec<u8>,
    /// The certificate that the old authority made for the new one's key: a member that believes
    /// only the old one believes the new one by it.
    pub bridge: Vec<u8>,
    /// The old authority's certificate.
    pub old: Vec<u8>,
}

/// How far a change of authority is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RotationPhase {
    /// Both are believed, the old one issues.
    Announced,
    /// Both are believed, the new one issues.
    Issuing {
        /// Members that are away have until this second of the Unix clock to get a certificate by
        /// it.
        until_s: u64,
    },
    /// The new one alone is believed.
    Retired,
}

impl fmt::Display for RotationPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Announced => "announced",
            Self::Issuing { .. } => "issuing",
            Self::Retired => "retired",
        })
    }
}

/// The last change of authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// The new authority, the old one, and the bridge between them.
    pub succession: Succession,
    /// How far it is.
    pub phase: RotationPhase,
    /// Whether an operator forces the old one to be retired without waiting for absent members.
    pub is_forced: bool,
}

impl Rotation {
    /// Whether it is not over.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.phase != RotationPhase::Retired
    }

    /// Whether the new authority issues certificates.
    #[must_use]
    pub const fn is_issuing(&self) -> bool {
        match self.phase {
            RotationPhase::Announced => false,
            RotationPhase::Issuing { .. } | RotationPhase::Retired => true,
        }
    }
}

/// A step of a change of authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuthorityChange {
    /// Another authority is to follow the one that issues; or, while none issued, one that is
    /// announced already and lost its key.
    Announced {
        /// The new authority, the old one, and the bridge between them.
        succession: Box<Succession>,
        /// Whether members that are away are not waited for.
        is_forced: bool,
    },
    /// The authority that was announced issues certificates from now on.
    Issues {
        /// Digest of the new authority's key.
        key: Digest,
        /// Second of the Unix clock until which members that are away have time.
        until_s: u64,
    },
    /// Members that are away are not waited for any more.
    Forced {
        /// The new authority's key.
        key: Digest,
    },
    /// The old authority is not believed any more, and tokens that name it are revoked.
    Retired {
        /// The new authority's key.
        key: Digest,
    },
}

/// A member's own report of its progress with an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityReport {
    /// Digest of the authority's key.
    pub key: Digest,
    /// Whether the member believes it.
    pub believes: bool,
    /// Whether the member's certificate was issued by it.
    pub is_certified: bool,
    /// Whether the member has its key, to issue with. Controllers only.
    pub has_key: bool,
}

/// The next action in a change of authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Nothing: none is under way.
    Nothing,
    /// Wait for these members, and for people who may be away until this second.
    Wait {
        /// Members that do not yet meet the requirement of the phase.
        nodes: Vec<NodeId>,
        /// Second of the Unix clock until which those that are away have time; none if it does not
        /// run.
        until_s: Option<u64>,
    },
    /// The key is lost: another authority is to be announced.
    AnnounceAnew,
    /// The new authority is to issue.
    Issue,
    /// The old one is to be retired.
    Retire,
}

impl Rotation {
    /// The next action, as far as members reported. A member that is there is always waited for;
    /// one that is away until its time is over, unless a person does not want to.
    #[must_use]
    pub fn next_step(
        &self,
        members: &BTreeMap<NodeId, Member>,
        is_let_in: impl Fn(NodeId) -> bool,
        reports: &BTreeMap<NodeId, AuthorityReport>,
        now_s: u64,
    ) -> RotationStep {
        let key = self.succession.key;
        let report = |node: &NodeId| reports.get(node).filter(|report| report.key == key);
        let is_ready = |node: &NodeId, member: &Member| {
            let report = report(node);
            let has_key = member.role != Role::Controller || report.is_some_and(|r| r.has_key);
            let is_certified = !self.is_issuing() || report.is_some_and(|r| r.is_certified);
            has_key && is_certified && report.is_some_and(|report| report.believes)
        };
        let lacking =
            |(node, member): (&NodeId, &Member)| (!is_ready(node, member)).then_some(*node);
        let live = || members.iter().filter(|(_, member)| member.is_live());
        let mut nodes: Vec<NodeId> = live().filter_map(lacking).collect();
        match self.phase {
            RotationPhase::Retired => RotationStep::Nothing,
            RotationPhase::Announced if nodes.is_empty() => RotationStep::Issue,
            RotationPhase::Announced => {
                let mut controllers = live().filter(|(_, m)| m.role == Role::Controller);
                let is_lost = controllers.all(|(node, _)| report(node).is_some_and(|r| !r.has_key));
                match is_lost {
                    true => RotationStep::AnnounceAnew,
                    false => RotationStep::Wait { nodes, until_s: None },
                }
            }
            RotationPhase::Issuing { until_s } => {
                let is_over = self.is_forced || now_s >= until_s;
                if nodes.is_empty() && is_over {
                    return RotationStep::Retire;
                }
                // Workers that are away come back by their key; a controller has its certificate
                // from nobody else.
                let is_away = |(node, member): &(&NodeId, &Member)| {
                    member.role == Role::Controller && !member.is_live() && is_let_in(**node)
                };
                if !is_over {
                    nodes.extend(members.iter().filter(is_away).filter_map(lacking));
                }
                RotationStep::Wait { nodes, until_s: (!is_over).then_some(until_s) }
            }
        }
    }
}

impl AccessRegistry {
    /// The last change of authority, if there was one.
    #[must_use]
    pub fn rotation(&self) -> Option<&Rotation> {
        self.rotation.as_ref()
    }

    /// Tokens that name another authority than this one, and were not revoked.
    pub fn tokens_beside(&self, authority: Digest) -> impl Iterator<Item = TokenId> {
        let others = self
            .tokens
            .iter()
            .filter(move |(_, token)| token.terms.authority != authority && !token.is_revoked);
        others.map(|(id, _)| *id)
    }

    /// Checks a step of a change of authority.
    pub(crate) fn check_authority(&self, change: &AuthorityChange) -> Result<(), AccessRefusal> {
        match change {
            AuthorityChange::Announced { succession, .. } => self.check_announced(succession),
            AuthorityChange::Issues { key, .. } => match self.rotation_to(*key)?.phase {
                RotationPhase::Announced => Ok(()),
                found @ (RotationPhase::Issuing { .. } | RotationPhase::Retired) => {
                    Err(AccessRefusal::RotationPhase { found })
                }
            },
            AuthorityChange::Forced { key } => match self.rotation_to(*key)?.phase {
                RotationPhase::Announced | RotationPhase::Issuing { .. } => Ok(()),
                found @ RotationPhase::Retired => Err(AccessRefusal::RotationPhase { found }),
            },
            AuthorityChange::Retired { key } => match self.rotation_to(*key)?.phase {
                RotationPhase::Issuing { .. } => Ok(()),
                found @ (RotationPhase::Announced | RotationPhase::Retired) => {
                    Err(AccessRefusal::RotationPhase { found })
                }
            },
        }
    }

    fn check_announced(&self, new: &Succession) -> Result<(), AccessRefusal> {
        let parts = [&new.certificate, &new.bridge, &new.old];
        let is_sized = |bytes: &usize| (1..=AUTHORITY_BYTES_MAX).contains(bytes);
        if let Some(found) = parts.into_iter().map(Vec::len).find(|bytes| !is_sized(bytes)) {
            return Err(AccessRefusal::CertificateSize { found });
        }
        let Some(last) = &self.rotation else { return Ok(()) };
        let issuing = match last.phase {
            RotationPhase::Announced => &last.succession.old,
            RotationPhase::Retired => &last.succession.certificate,
            found @ RotationPhase::Issuing { .. } => {
                return Err(AccessRefusal::RotationPhase { found });
            }
        };
        let follows = new.old == *issuing && new.key != last.succession.key;
        if follows { Ok(()) } else { Err(AccessRefusal::OtherAuthority { found: new.key }) }
    }

    fn rotation_to(&self, key: Digest) -> Result<&Rotation, AccessRefusal> {
        let found = self.rotation.as_ref().filter(|found| found.succession.key == key);
        found.ok_or(AccessRefusal::OtherAuthority { found: key })
    }

    /// Applies a step that was checked. Yields how far the change is now, and the tokens that are
    /// revoked by it.
    pub(crate) fn rotate(&mut self, change: AuthorityChange) -> (RotationPhase, Vec<TokenId>) {
        let phase = match change {
            AuthorityChange::Announced { succession, is_forced } => {
                let succession = *succession;
                let phase = RotationPhase::Announced;
                // An operator's demand on the change holds for the authority that is announced
                // anew.
                let is_forced = is_forced
                    || self.rotation.as_ref().is_some_and(|last| {
                        last.phase == RotationPhase::Announced && last.is_forced
                    });
                self.rotation = Some(Rotation { succession, phase, is_forced });
                return (phase, Vec::new());
            }
            AuthorityChange::Issues { until_s, .. } => RotationPhase::Issuing { until_s },
            AuthorityChange::Forced { .. } => {
                let rotation = self.rotation.as_mut().expect("checked before");
                rotation.is_forced = true;
                return (rotation.phase, Vec::new());
            }
            AuthorityChange::Retired { .. } => RotationPhase::Retired,
        };
        let rotation = self.rotation.as_mut().expect("checked before");
        rotation.phase = phase;
        let key = rotation.succession.key;
        let revoked = match phase {
            RotationPhase::Retired => self.tokens_beside(key).collect(),
            RotationPhase::Announced | RotationPhase::Issuing { .. } => Vec::new(),
        };
        revoked.iter().for_each(|token| self.revoke_token(*token));
        (phase, revoked)
    }
}
