//! Texts of a life: fetched where they are missing, and again where they are damaged.

use zbelastic_policy::data::{DataFetch, DataFetchAction, DataFetchOutcome, DataName};
use zbelastic_types::NodeId;

use super::check::HousekeepingMarker;
use super::member::HousekeepingMember;
use super::surroundings::HousekeepingSurroundings;
use super::world::{HousekeepingEvent, MemberMessage};

/// From one attempt to fetch a text to the next.
const TEXT_EVERY_US: u64 = 2_000_000;

/// A part of the text that is requested, and the members that get the request.
#[derive(Clone, Debug)]
pub(super) enum TextRequest {
    /// The hashes of its chunks.
    Hashes(NodeId),
    /// Chunks that are missing or damaged.
    Chunks(Vec<NodeId>),
    /// All of it.
    Whole(NodeId),
}

/// Fetches the text of a life for members that lack it.
pub(super) struct TextFetches {
    /// The sound bytes of the text.
    pub(super) text: Vec<u8>,
}

impl TextFetches {
    /// Each member that lacks the text fetches it.
    pub(super) fn fetch_missing_texts(&self, env: &mut HousekeepingSurroundings<'_>) {
        if !env.cluster.now.0.is_multiple_of(TEXT_EVERY_US) {
            return;
        }
        let name = env.cluster.text_name;
        let lacks = |member: &&HousekeepingMember| {
            let has = member.texts.get(name.hash).is_some();
            !member.is_hostile && !has && member.process.fetch.is_none()
        };
        let lacking: Vec<NodeId> =
            env.cluster.up().filter(lacks).map(|member| member.node).collect();
        for node in lacking {
            let process = &env.cluster.members[&node].process;
            let holders = process.roster.holders(&process.contacts);
            self.fetch_text(env, node, name, holders);
        }
    }

    /// A text is fetched from these, unless one is being fetched.
    pub(super) fn fetch_text(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        name: DataName,
        holders: Vec<NodeId>,
    ) {
        let member = env.cluster.members.get_mut(&node).expect("a member");
        let here = member.texts.get(name.hash);
        let is_sound = here.is_some_and(|bytes| DataName::of(&bytes) == name);
        if member.process.fetch.is_some() || is_sound || holders.is_empty() {
            return;
        }
        let has_hashes = member.texts.hashes(name).is_some();
        let (fetch, next) = DataFetch::new(holders, has_hashes);
        member.process.fetch = Some(fetch);
        self.continue_fetch(env, node, next);
    }

    fn continue_fetch(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        node: NodeId,
        next: DataFetchAction,
    ) {
        let name = env.cluster.text_name;
        let mut request = |request| {
            let outcome = env.cluster.served_text(node, &request);
            let at = env.cluster.now.after(env.latency() + env.draws.between(1000, 200_000));
            let life = env.cluster.members[&node].life;
            env.queue.push(at, HousekeepingEvent::Texts { at: (node, life), request, outcome });
        };
        match next {
            DataFetchAction::RequestHashes(from) => request(TextRequest::Hashes(from)),
            DataFetchAction::RequestChunks(from) => request(TextRequest::Chunks(from)),
            DataFetchAction::RequestWhole(from) => request(TextRequest::Whole(from)),
            DataFetchAction::Done { damaged } => {
                let text = self.text.clone();
                let member = env.cluster.members.get_mut(&node).expect("a member");
                member.process.fetch = None;
                member.texts.put(name.hash, text);
                env.line(|| format!("n{node} has the text, damaged at {damaged:?}"));
                if !damaged.is_empty() {
                    env.check.markers.note(HousekeepingMarker::DamagedCopyNamed);
                }
                for other in damaged {
                    env.send(node, other, MemberMessage::KeepData(name));
                }
            }
            DataFetchAction::Failed { .. } => {
                env.cluster.members.get_mut(&node).expect("a member").process.fetch = None;
            }
        }
    }

    pub(super) fn handle_text(
        &self,
        env: &mut HousekeepingSurroundings<'_>,
        at: (NodeId, u64),
        request: &TextRequest,
        outcome: DataFetchOutcome,
    ) {
        let Some(member) = env.cluster.process(at) else { return };
        let Some(fetch) = &mut member.process.fetch else { return };
        let next = fetch.note(outcome.clone());
        env.line(|| format!("n{} requested {request:?} of the text: {outcome:?}", at.0));
        self.continue_fetch(env, at.0, next);
    }
}
