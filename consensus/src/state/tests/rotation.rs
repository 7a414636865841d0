//! One authority follows another: what is waited for, what each step changes, and what does not
//! fit.

use std::collections::BTreeMap;

use zbelastic_types::{ClusterId, Digest, NodeId};

use crate::access::{
    AUTHORITY_BYTES_MAX, AccessChange, AccessOutcome, AccessRefusal, AccessRole, AuthorityChange,
    AuthorityReport, RotationPhase, RotationStep, Succession, TokenId, TokenTerms,
};
use crate::codec::Format;
use crate::entry::Entry;
use crate::fixture::{FixtureLog, controllers, credential};
use crate::member::{LossReason, MemberChange};
use crate::state::{State, StateChange};

const NOW_S: u64 = 1_000_000;
const UNTIL_S: u64 = NOW_S + 7 * 24 * 3600;
const OLD: Digest = Digest([1; 32]);
const NEW: Digest = Digest([2; 32]);

/// The last report of each member.
type AuthorityReports = BTreeMap<NodeId, AuthorityReport>;

fn certificate(key: Digest) -> Vec<u8> {
    key.0.to_vec()
}

fn announced(old: Digest, key: Digest, is_forced: bool) -> AuthorityChange {
    let (certificate, old) = (certificate(key), certificate(old));
    let succession = Box::new(Succession { key, certificate, bridge: vec![9], old });
    AuthorityChange::Announced { succession, is_forced }
}

/// Controllers 1 and 2, worker 3.
fn cluster() -> FixtureLog {
    let nodes = [NodeId(1), NodeId(2)];
    let both = [1, 2].map(|node| credential(node, AccessRole::Controller));
    let state = State::new(ClusterId(7)).with_controllers(controllers(&nodes));
    let mut log = FixtureLog { state: state.with_credentials(both) };
    log.join(3);
    log
}

fn rotate(log: &mut FixtureLog, change: AuthorityChange) -> (RotationPhase, Vec<TokenId>) {
    let change = log.apply(Entry::Access(AccessChange::Authority(change)));
    let StateChange::Access(AccessOutcome::Authority { phase, revoked }) = change else {
        panic!("{change:?}")
    };
    (phase, revoked)
}

fn refuse(log: &mut FixtureLog, change: AuthorityChange, expected: AccessRefusal) {
    let change = AccessChange::Authority(change);
    assert_eq!(log.state.membership().check_access(&change), Err(expected.clone()));
    log.refuse(Entry::Access(change), expected);
}

/// Members in the first list believe the new authority, those in the second have a certificate by
/// it.
fn reports(believing: &[u64], certified: &[u64]) -> AuthorityReports {
    let report = |node: &u64| {
        let (is_certified, has_key) = (certified.contains(node), *node < 3);
        (NodeId(*node), AuthorityReport { key: NEW, believes: true, is_certified, has_key })
    };
    believing.iter().map(report).collect()
}

fn wait(nodes: &[u64], until_s: Option<u64>) -> RotationStep {
    RotationStep::Wait { nodes: nodes.iter().copied().map(NodeId).collect(), until_s }
}

fn lose(log: &mut FixtureLog, node: u64, reason: LossReason) {
    let holder = log.holder(node);
    log.apply(Entry::Members(vec![MemberChange::Lost { holder, reason }]));
}

/// A change whose new authority issues, until [`UNTIL_S`].
fn issuing() -> FixtureLog {
    let mut log = cluster();
    rotate(&mut log, announced(OLD, NEW, false));
    rotate(&mut log, AuthorityChange::Issues { key: NEW, until_s: UNTIL_S });
    log
}

#[test]
fn the_new_authority_issues_once_all_who_are_there_believe_it_and_controllers_have_its_key() {
    let mut log = cluster();
    let step = |log: &FixtureLog, reports: &AuthorityReports| {
        log.state.membership().rotation_step(reports, NOW_S)
    };
    assert_eq!(step(&log, &reports(&[1, 2, 3], &[])), RotationStep::Nothing);
    rotate(&mut log, announced(OLD, NEW, false));
    assert_eq!(step(&log, &AuthorityReports::new()), wait(&[1, 2, 3], None));
    assert_eq!(step(&log, &reports(&[1, 2], &[])), wait(&[3], None));
    let mut keyless = reports(&[1, 2, 3], &[]);
    keyless.get_mut(&NodeId(2)).expect("it reported").has_key = false;
    assert_eq!(step(&log, &keyless), wait(&[2], None));
    // What was reported of another authority does not count for this one.
    let mut of_another = reports(&[1, 2, 3], &[]);
    of_another.get_mut(&NodeId(3)).expect("it reported").key = OLD;
    assert_eq!(step(&log, &of_another), wait(&[3], None));
    assert_eq!(step(&log, &reports(&[1, 2, 3], &[])), RotationStep::Issue);
    // A member that is away is not waited for: it believes the new one by what leads there from the
    // old one.
    lose(&mut log, 3, LossReason::Closed);
    assert_eq!(step(&log, &reports(&[1, 2], &[])), RotationStep::Issue);
}

#[test]
fn the_old_authority_is_retired_once_all_who_are_there_are_certified_and_the_rest_had_time() {
    let log = issuing();
    let step =
        |reports: &AuthorityReports, at_s| log.state.membership().rotation_step(reports, at_s);
    let (some, all) = (reports(&[1, 2, 3], &[1, 2]), reports(&[1, 2, 3], &[1, 2, 3]));
    assert_eq!(step(&some, NOW_S), wait(&[3], Some(UNTIL_S)));
    assert_eq!(step(&all, NOW_S), wait(&[], Some(UNTIL_S)));
    assert_eq!(step(&all, UNTIL_S - 1), wait(&[], Some(UNTIL_S)));
    assert_eq!(step(&all, UNTIL_S), RotationStep::Retire);
    // Time does not cut off members that are there.
    assert_eq!(step(&some, UNTIL_S), wait(&[3], None));
    assert_eq!(step(&AuthorityReports::new(), UNTIL_S), wait(&[1, 2, 3], None));
}

#[test]
fn force_waits_for_who_is_there_and_for_nobody_else() {
    let mut log = issuing();
    lose(&mut log, 2, LossReason::Closed);
    let (some, all) = (reports(&[1, 3], &[1]), reports(&[1, 3], &[1, 3]));
    assert_eq!(log.state.membership().rotation_step(&all, NOW_S), wait(&[2], Some(UNTIL_S)));
    let forced = AuthorityChange::Forced { key: NEW };
    assert_eq!(rotate(&mut log, forced).0, RotationPhase::Issuing { until_s: UNTIL_S });
    assert_eq!(log.state.membership().rotation_step(&some, NOW_S), wait(&[3], None));
    assert_eq!(log.state.membership().rotation_step(&all, NOW_S), RotationStep::Retire);
}

#[test]
fn a_controller_that_is_away_is_waited_for_and_one_that_is_removed_is_not() {
    let mut log = issuing();
    let all = reports(&[1, 3], &[1, 3]);
    lose(&mut log, 2, LossReason::Closed);
    assert_eq!(log.state.membership().rotation_step(&all, NOW_S), wait(&[2], Some(UNTIL_S)));
    log.apply(Entry::Access(AccessChange::Revoked { node: NodeId(2) }));
    assert_eq!(log.state.membership().rotation_step(&all, NOW_S), wait(&[], Some(UNTIL_S)));
    // A worker that is away comes back by its key, and one that is there and cannot go on can be
    // removed.
    let some = reports(&[1, 3], &[1]);
    lose(&mut log, 3, LossReason::Removed);
    assert_eq!(log.state.membership().rotation_step(&some, UNTIL_S), RotationStep::Retire);
}

#[test]
fn an_authority_whose_key_is_lost_is_announced_anew_before_it_issues_and_never_behind() {
    let mut log = cluster();
    rotate(&mut log, announced(OLD, NEW, true));
    let mut keyless = reports(&[1, 2, 3], &[]);
    keyless.values_mut().for_each(|report| report.has_key = false);
    assert_eq!(log.state.membership().rotation_step(&keyless, NOW_S), RotationStep::AnnounceAnew);
    // One that may have it has not reported yet.
    keyless.remove(&NodeId(1));
    assert_eq!(log.state.membership().rotation_step(&keyless, NOW_S), wait(&[1, 2], None));
    let third = Digest([3; 32]);
    rotate(&mut log, announced(OLD, third, false));
    let rotation = log.state.access().rotation().expect("announced").clone();
    assert_eq!((rotation.succession.key, rotation.is_forced), (third, true));
    refuse(
        &mut log,
        AuthorityChange::Issues { key: NEW, until_s: UNTIL_S },
        AccessRefusal::OtherAuthority { found: NEW },
    );
    rotate(&mut log, AuthorityChange::Issues { key: third, until_s: UNTIL_S });
    let found = RotationPhase::Issuing { until_s: UNTIL_S };
    refuse(&mut log, announced(OLD, NEW, false), AccessRefusal::RotationPhase { found });
    refuse(&mut log, announced(third, NEW, false), AccessRefusal::RotationPhase { found });
}

#[test]
fn tokens_that_name_the_old_authority_are_revoked_with_it_and_no_others() {
    let mut log = cluster();
    let token = |log: &mut FixtureLog, id, authority| {
        let token = TokenId(id);
        let terms = TokenTerms {
            role: AccessRole::Worker,
            verifier: [7; 32],
            authority,
            expires_at_s: NOW_S + 100,
            uses_max: 2,
            is_ephemeral: false,
            note: String::new(),
        };
        log.apply(Entry::Access(AccessChange::TokenMade { token, terms, at_s: NOW_S }));
    };
    token(&mut log, 1, OLD);
    token(&mut log, 2, OLD);
    log.apply(Entry::Access(AccessChange::TokenRevoked { token: TokenId(2) }));
    assert_eq!(rotate(&mut log, announced(OLD, NEW, false)).1, []);
    token(&mut log, 3, OLD);
    assert_eq!(rotate(&mut log, AuthorityChange::Issues { key: NEW, until_s: UNTIL_S }).1, []);
    token(&mut log, 4, NEW);
    let (phase, revoked) = rotate(&mut log, AuthorityChange::Retired { key: NEW });
    assert_eq!((phase, revoked), (RotationPhase::Retired, vec![TokenId(1), TokenId(3)]));
    let revoked = |id| log.state.access().tokens()[&TokenId(id)].is_revoked;
    assert_eq!([1, 2, 3, 4].map(revoked), [true, true, true, false]);
}

#[test]
fn steps_come_in_order_and_each_once() {
    let mut log = cluster();
    let issues = || AuthorityChange::Issues { key: NEW, until_s: UNTIL_S };
    let retired = || AuthorityChange::Retired { key: NEW };
    let forced = || AuthorityChange::Forced { key: NEW };
    for change in [issues(), retired(), forced()] {
        refuse(&mut log, change, AccessRefusal::OtherAuthority { found: NEW });
    }
    let mut large = announced(OLD, NEW, false);
    if let AuthorityChange::Announced { succession, .. } = &mut large {
        succession.bridge = vec![0; AUTHORITY_BYTES_MAX + 1];
    }
    let found = AUTHORITY_BYTES_MAX + 1;
    refuse(&mut log, large, AccessRefusal::CertificateSize { found });
    rotate(&mut log, announced(OLD, NEW, false));
    let same = announced(OLD, NEW, false);
    refuse(&mut log, same, AccessRefusal::OtherAuthority { found: NEW });
    let found = RotationPhase::Announced;
    refuse(&mut log, retired(), AccessRefusal::RotationPhase { found });
    rotate(&mut log, issues());
    let found = RotationPhase::Issuing { until_s: UNTIL_S };
    refuse(&mut log, issues(), AccessRefusal::RotationPhase { found });
    rotate(&mut log, retired());
    let found = RotationPhase::Retired;
    for change in [issues(), retired(), forced()] {
        refuse(&mut log, change, AccessRefusal::RotationPhase { found });
    }
    // The next one follows the one that issues now.
    let third = Digest([3; 32]);
    refuse(&mut log, announced(OLD, third, false), AccessRefusal::OtherAuthority { found: third });
    assert_eq!(rotate(&mut log, announced(NEW, third, false)).0, RotationPhase::Announced);
}

#[test]
fn whom_to_believe_is_told_with_contacts_and_is_in_snapshots() {
    let mut log = cluster();
    let before = log.state.membership().contacts_index();
    assert_eq!(log.state.membership().contacts().rotation, None);
    rotate(&mut log, announced(OLD, NEW, false));
    assert!(log.state.membership().contacts_index() > before);
    let read = State::decode(Format::NEWEST, &log.state.encode()).expect("a state");
    assert_eq!(read, log.state);
    assert_eq!(read.membership().contacts().rotation.as_ref(), read.access().rotation());
    // The next leader goes on from there, once members have reported to it.
    assert_eq!(
        read.membership().rotation_step(&AuthorityReports::new(), NOW_S),
        wait(&[1, 2, 3], None)
    );
    assert_eq!(
        read.membership().rotation_step(&reports(&[1, 2, 3], &[]), NOW_S),
        RotationStep::Issue
    );
}
