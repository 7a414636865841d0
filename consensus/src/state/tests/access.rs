//! Admission: tokens, what is given for them, and which nodes are kept out.

use zbelastic_types::{ClusterId, Digest, NodeId};

use crate::access::{
    AccessChange, AccessOutcome, AccessRefusal, AccessRole, CREDENTIAL_S_MAX, CREDENTIALS_MAX,
    NOTE_BYTES_MAX, TOKEN_USES_MAX, TOKENS_MAX, TokenId, TokenTerms, USES_KEPT_MAX,
};
use crate::contact::{Contact, ContactRefusal};
use crate::entry::Entry;
use crate::fixture::{FixtureLog, admit, contact, controllers, credential, lost, spec};
use crate::member::{LossReason, MemberChange, MembershipStatus};
use crate::state::{EntryRefusal, State, StateChange};

const NOW_S: u64 = 1_000_000;
const TOKEN: TokenId = TokenId(300);

fn terms() -> TokenTerms {
    TokenTerms {
        role: AccessRole::Worker,
        verifier: [7; 32],
        authority: Digest([6; 32]),
        expires_at_s: NOW_S + 100,
        uses_max: 2,
        is_ephemeral: false,
        note: String::new(),
    }
}

fn made(token: TokenId, terms: TokenTerms) -> AccessChange {
    AccessChange::TokenMade { token, terms, at_s: NOW_S }
}

fn key(key: u8) -> Digest {
    Digest([key; 32])
}

/// A node with this key uses the token.
fn used(by: u8) -> AccessChange {
    AccessChange::TokenUsed {
        token: TOKEN,
        key: key(by),
        name: "spot".to_owned(),
        role: AccessRole::Worker,
        at_s: NOW_S,
        expires_at_s: NOW_S + 1,
    }
}

fn used_at(by: u8, at: u64, until: u64) -> AccessChange {
    match used(by) {
        AccessChange::TokenUsed { token, key, name, role, .. } => {
            AccessChange::TokenUsed { token, key, name, role, at_s: at, expires_at_s: until }
        }
        AccessChange::TokenMade { .. }
        | AccessChange::TokenRevoked { .. }
        | AccessChange::Renewed { .. }
        | AccessChange::Revoked { .. }
        | AccessChange::Forgotten { .. }
        | AccessChange::Authority(_) => unreachable!("a use"),
    }
}

fn apply(log: &mut FixtureLog, change: AccessChange) -> AccessOutcome {
    let StateChange::Access(outcome) = log.apply(Entry::Access(change)) else {
        panic!("it changes which nodes are admitted")
    };
    outcome
}

/// A change that is refused when it is applied is refused before, with the same refusal.
fn refuse(log: &mut FixtureLog, change: AccessChange, expected: AccessRefusal) {
    assert_eq!(log.state.membership().check_access(&change), Err(expected.clone()));
    log.refuse(Entry::Access(change), expected);
}

fn redeem(node: u64, by: u8, is_repeated: bool) -> AccessOutcome {
    AccessOutcome::LetIn { token: TOKEN, key: key(by), node: NodeId(node), is_repeated }
}

fn with_token(terms: TokenTerms) -> FixtureLog {
    let mut log = FixtureLog::empty();
    assert_eq!(apply(&mut log, made(TOKEN, terms)), AccessOutcome::TokenMade { token: TOKEN });
    log
}

#[test]
fn a_token_lets_in_as_often_as_it_may_and_each_key_once() {
    let mut log = with_token(terms());
    assert_eq!(apply(&mut log, used(1)), redeem(1, 1, false));
    assert_eq!(apply(&mut log, used(2)), redeem(2, 2, false));
    refuse(&mut log, used(3), AccessRefusal::TokenUsedUp { token: TOKEN, uses_max: 2 });
    let before = log.state.access().clone();
    assert_eq!(apply(&mut log, used(1)), redeem(1, 1, true));
    let late = used_at(2, NOW_S + 500, NOW_S + 900);
    assert_eq!(
        apply(&mut log, late),
        redeem(2, 2, true),
        "a key that was admitted gets the same answer for ever"
    );
    assert_eq!(*log.state.access(), before, "no use is spent, nothing is given anew");
    let credential = log.state.access().credential(NodeId(1)).expect("it was let in");
    assert_eq!((credential.key, credential.token), (key(1), Some(TOKEN)));
    assert_eq!((credential.issued_at_s, credential.expires_at_s), (NOW_S, NOW_S + 1));
}

/// Two leaders propose the last use for two keys: the order in the log decides which came first.
#[test]
fn a_use_that_was_checked_before_another_is_agreed_is_refused_when_it_is_applied() {
    let mut log = with_token(TokenTerms { uses_max: 1, ..terms() });
    assert_eq!(log.state.membership().check_access(&used(1)), Ok(()));
    assert_eq!(log.state.membership().check_access(&used(2)), Ok(()));
    apply(&mut log, used(1));
    refuse(&mut log, used(2), AccessRefusal::TokenUsedUp { token: TOKEN, uses_max: 1 });
}

#[test]
fn a_token_is_good_until_it_expires_is_revoked_or_is_for_something_else() {
    let mut log = with_token(terms());
    let end = NOW_S + 100;
    let expired = AccessRefusal::TokenExpired { token: TOKEN, expired_at_s: end, at_s: end };
    refuse(&mut log, used_at(1, end, end + 1), expired);
    apply(&mut log, used_at(1, end - 1, end));
    let mut other = used(2);
    if let AccessChange::TokenUsed { role, .. } = &mut other {
        *role = AccessRole::Controller;
    }
    let (expected, found) = (AccessRole::Worker, AccessRole::Controller);
    refuse(&mut log, other, AccessRefusal::TokenRole { token: TOKEN, expected, found });
    let revoked = AccessChange::TokenRevoked { token: TOKEN };
    apply(&mut log, revoked.clone());
    refuse(&mut log, revoked, AccessRefusal::TokenRevoked { token: TOKEN });
    for by in [1, 2] {
        refuse(&mut log, used(by), AccessRefusal::TokenRevoked { token: TOKEN });
    }
    let token = TokenId(1);
    let unknown = AccessRefusal::UnknownToken { token };
    refuse(&mut log, AccessChange::TokenRevoked { token }, unknown);
    let mut empty = FixtureLog::empty();
    refuse(&mut empty, used(1), AccessRefusal::UnknownToken { token: TOKEN });
}

#[test]
fn the_terms_of_a_token_have_limits() {
    let mut log = FixtureLog::empty();
    for uses in [0, TOKEN_USES_MAX + 1] {
        let terms = TokenTerms { uses_max: uses, ..terms() };
        refuse(&mut log, made(TOKEN, terms), AccessRefusal::Uses { found: uses });
    }
    let note = |bytes| TokenTerms { note: "n".repeat(bytes), ..terms() };
    let found = NOTE_BYTES_MAX + 1;
    refuse(&mut log, made(TOKEN, note(found)), AccessRefusal::Note { found });
    let ended = TokenTerms { expires_at_s: NOW_S, ..terms() };
    let (token, expired_at_s, at_s) = (TOKEN, NOW_S, NOW_S);
    let expired = AccessRefusal::TokenExpired { token, expired_at_s, at_s };
    refuse(&mut log, made(TOKEN, ended), expired);
    let last = TokenTerms { uses_max: TOKEN_USES_MAX, expires_at_s: NOW_S + 1, ..note(128) };
    apply(&mut log, made(TOKEN, last.clone()));
    apply(&mut log, made(TokenId(2), TokenTerms { uses_max: 1, ..last }));
    refuse(&mut log, made(TOKEN, terms()), AccessRefusal::TokenKnown { token: TOKEN });
}

#[test]
fn a_new_token_takes_the_place_of_one_that_nobody_can_use() {
    let mut log = FixtureLog::empty();
    let once = TokenTerms { uses_max: 1, ..terms() };
    for number in 0..TOKENS_MAX as u64 {
        apply(&mut log, made(TokenId(300 + number), once.clone()));
    }
    refuse(&mut log, made(TokenId(1), terms()), AccessRefusal::TooManyTokens);
    apply(&mut log, used(1));
    apply(&mut log, AccessChange::TokenRevoked { token: TokenId(305) });
    apply(&mut log, made(TokenId(1), once.clone()));
    apply(&mut log, made(TokenId(2), once));
    let gone: Vec<_> = [300, 305].map(TokenId).into();
    let tokens = log.state.access().tokens();
    assert!(gone.iter().all(|token| !tokens.contains_key(token)));
    assert_eq!(tokens.len(), TOKENS_MAX);
    refuse(&mut log, made(TokenId(3), terms()), AccessRefusal::TooManyTokens);
    let at_s = NOW_S + 100;
    let terms = TokenTerms { expires_at_s: at_s + 1, ..terms() };
    apply(&mut log, AccessChange::TokenMade { token: TokenId(3), terms, at_s });
    assert_eq!(log.state.access().tokens().len(), TOKENS_MAX);
}

#[test]
fn a_credential_has_a_name_and_an_end() {
    let mut log = with_token(terms());
    let named = |wanted: &str| {
        let mut change = used(1);
        if let AccessChange::TokenUsed { name, .. } = &mut change {
            wanted.clone_into(name);
        }
        change
    };
    let refusal = |refusal: ContactRefusal| AccessRefusal::Name(refusal);
    refuse(&mut log, named(""), refusal(ContactRefusal::NameSize { found: 0 }));
    refuse(&mut log, named("A"), refusal(ContactRefusal::NameCharacter { found: 'A' }));
    for until in [NOW_S - 1, NOW_S, NOW_S + CREDENTIAL_S_MAX + 1] {
        let term = AccessRefusal::Term { at_s: NOW_S, expires_at_s: until };
        refuse(&mut log, used_at(1, NOW_S, until), term);
    }
    apply(&mut log, used_at(1, NOW_S, NOW_S + 1));
    apply(&mut log, used_at(2, NOW_S, NOW_S + CREDENTIAL_S_MAX));
    let (node, at_s) = (NodeId(1), NOW_S);
    let renewed = |expires_at_s| AccessChange::Renewed { node, key: key(9), at_s, expires_at_s };
    let term = AccessRefusal::Term { at_s, expires_at_s: at_s };
    refuse(&mut log, renewed(at_s), term);
    assert_eq!(apply(&mut log, renewed(at_s + 50)), AccessOutcome::Renewed { node });
    let credential = log.state.access().credential(node).expect("it has one");
    assert_eq!((credential.key, credential.expires_at_s), (key(9), at_s + 50));
    let node = NodeId(77);
    let renewal = AccessChange::Renewed { node, key: key(9), at_s, expires_at_s: at_s + 1 };
    refuse(&mut log, renewal, AccessRefusal::NoCredential { node });
}

/// The number of the first controllers, of nodes whose credential the cluster begins with and of
/// nodes that were forgotten is not given again.
#[test]
fn a_number_is_given_once() {
    let first = [NodeId(1), NodeId(4)];
    let state = State::new(ClusterId(7)).with_controllers(controllers(&first));
    assert_eq!(state.access().node_next(), NodeId(5));
    let state = state.with_credentials([credential(9, AccessRole::Admin)]);
    let mut log = FixtureLog { state };
    apply(&mut log, made(TOKEN, TokenTerms { is_ephemeral: true, ..terms() }));
    assert_eq!(apply(&mut log, used(1)), redeem(10, 1, false));
    apply(&mut log, AccessChange::Revoked { node: NodeId(10) });
    assert_eq!(apply(&mut log, used(2)), redeem(11, 2, false));
    let node = NodeId(10);
    refuse(&mut log, used(1), AccessRefusal::Revoked { node });
}

/// Its certificate holds for as long, ephemeral or not.
#[test]
fn who_was_removed_is_banned_everywhere_until_its_credential_ends() {
    for is_ephemeral in [false, true] {
        for reason in [LossReason::Removed, LossReason::Untrusted { partners: 2 }] {
            let mut log = with_token(TokenTerms { is_ephemeral, ..terms() });
            apply(&mut log, used(1));
            let holder = log.join(1);
            log.join(2);
            assert!(log.state.membership().contacts().banned.is_empty());
            log.apply(Entry::Members(vec![MemberChange::Lost { holder, reason }]));
            assert_eq!(log.state.membership().contacts_index(), log.state.applied());
            assert_eq!(log.state.membership().contacts().banned, [NodeId(1)].into());
        }
        let mut log = with_token(TokenTerms { is_ephemeral, ..terms() });
        apply(&mut log, used(1));
        apply(&mut log, AccessChange::Revoked { node: NodeId(1) });
        assert_eq!(
            log.state.membership().contacts_index(),
            log.state.applied(),
            "it was no member yet"
        );
        assert_eq!(log.state.membership().contacts().banned, [NodeId(1)].into());
    }
}

#[test]
fn a_full_cluster_forgets_the_first_credential_to_end_that_is_no_members() {
    let mut log = FixtureLog::empty();
    let all = (1..=CREDENTIALS_MAX as u64).map(|node| {
        let role = if node == 1 { AccessRole::Worker } else { AccessRole::Viewer };
        let (node, mut credential) = credential(node, role);
        credential.expires_at_s = NOW_S + node.0;
        (node, credential)
    });
    log.state = log.state.with_credentials(all);
    log.join(1);
    apply(&mut log, made(TOKEN, terms()));
    let (early, late) = (used_at(1, NOW_S + 1, NOW_S + 9), used_at(1, NOW_S + 2, NOW_S + 9));
    refuse(&mut log, early, AccessRefusal::TooManyCredentials);
    let node = CREDENTIALS_MAX as u64 + 1;
    assert_eq!(apply(&mut log, late), redeem(node, 1, false));
    let known = log.state.access().credentials();
    assert_eq!(known.len(), CREDENTIALS_MAX);
    assert!(known.contains_key(&NodeId(1)) && !known.contains_key(&NodeId(2)));
}

/// Machines that come and go for months each leave a credential that has not expired: the next node
/// takes the place of the worker whose credential was issued longest ago, and of none that was
/// banned.
#[test]
fn a_full_cluster_forgets_the_worker_that_was_away_longest() {
    let mut log = FixtureLog::empty();
    let all = (1..=CREDENTIALS_MAX as u64).map(|node| {
        let (node, mut credential) = credential(node, AccessRole::Worker);
        credential.expires_at_s = NOW_S + 900;
        credential.issued_at_s = 10 * CREDENTIALS_MAX as u64 - node.0;
        credential.is_revoked = node.0 == CREDENTIALS_MAX as u64;
        (node, credential)
    });
    log.state = log.state.with_credentials(all);
    let last = CREDENTIALS_MAX as u64;
    log.join(last - 1);
    apply(&mut log, made(TOKEN, terms()));
    let used = used_at(1, NOW_S + 1, NOW_S + 9);
    assert_eq!(apply(&mut log, used), redeem(last + 1, 1, false));
    let known = log.state.access().credentials();
    assert!(!known.contains_key(&NodeId(last - 2)), "it showed itself longest ago");
    assert!(known.contains_key(&NodeId(last)), "it was kept out, and may show itself still");
}

/// Only the last uses are remembered, and all are counted.
#[test]
fn a_token_that_many_use_is_used_up_in_the_end() {
    let uses = USES_KEPT_MAX as u64 + 2;
    let terms = TokenTerms { uses_max: uses as u32, ..terms() };
    let mut log = with_token(terms);
    let key_of = |number: u64| AccessChange::TokenUsed {
        token: TOKEN,
        key: crate::fixture::digest(1, number),
        name: format!("spot-{number}"),
        role: AccessRole::Worker,
        at_s: NOW_S,
        expires_at_s: NOW_S + 9,
    };
    for number in 0..uses {
        let _used = apply(&mut log, key_of(number));
    }
    let token = &log.state.access().tokens()[&TOKEN];
    assert_eq!((token.used, token.uses.len()), (uses as u32, USES_KEPT_MAX));
    refuse(
        &mut log,
        key_of(uses),
        AccessRefusal::TokenUsedUp { token: TOKEN, uses_max: uses as u32 },
    );
    apply(&mut log, key_of(uses - 1));
    assert_eq!(
        log.state.access().tokens()[&TOKEN].used,
        uses as u32,
        "a repeated use spends nothing"
    );
}

/// Without a credential, with one for something else, or with one that was revoked.
#[test]
fn only_who_has_a_credential_is_admitted() {
    let mut log = FixtureLog::empty();
    log.state = log.state.with_credentials([
        credential(1, AccessRole::Worker),
        credential(2, AccessRole::Controller),
        credential(3, AccessRole::Admin),
        credential(4, AccessRole::Viewer),
    ]);
    apply(&mut log, made(TOKEN, terms()));
    let changes: Vec<_> = (1..=5).map(|node| admit(node, 1)).collect();
    let index = log.state.applied() + 1;
    let made = log.state.apply(index, Entry::Members(changes));
    assert_eq!(made, Ok(StateChange::Members(vec![admit(1, 1)])));
    let node = NodeId(1);
    assert_eq!(apply(&mut log, AccessChange::Revoked { node }), AccessOutcome::Revoked { node });
    let status = log.state.members()[&node].status;
    assert_eq!(status, MembershipStatus::Lost(LossReason::Removed));
    log.refuse(Entry::Members(vec![admit(1, 2)]), EntryRefusal::Members);
    refuse(&mut log, AccessChange::Revoked { node }, AccessRefusal::Revoked { node });
    let renewed = AccessChange::Renewed { node, key: key(1), at_s: 1, expires_at_s: 2 };
    refuse(&mut log, renewed, AccessRefusal::Revoked { node });
    let node = NodeId(5);
    refuse(&mut log, AccessChange::Revoked { node }, AccessRefusal::NoCredential { node });
}

#[test]
fn who_is_removed_does_not_come_back_and_who_is_lost_otherwise_does() {
    let mut log = FixtureLog::empty();
    let holders = [1, 2].map(|node| log.join(node));
    let reason = LossReason::Removed;
    let removed = MemberChange::Lost { holder: holders[0], reason };
    log.apply(Entry::Members(vec![removed, lost(holders[1])]));
    log.refuse(Entry::Members(vec![admit(1, 9)]), EntryRefusal::Members);
    log.join(2);
}

/// A controller that votes alone is neither removed nor revoked.
#[test]
fn the_last_controller_stays() {
    let nodes = [NodeId(8), NodeId(9)];
    let both = [8, 9].map(|node| credential(node, AccessRole::Controller));
    let state = State::new(ClusterId(7)).with_controllers(controllers(&nodes));
    let mut log = FixtureLog { state: state.with_credentials(both) };
    let remove = |log: &FixtureLog, node| {
        let (holder, reason) = (log.holder(node), LossReason::Removed);
        Entry::Members(vec![MemberChange::Lost { holder, reason }])
    };
    let last = remove(&log, 9);
    log.apply(remove(&log, 8));
    log.refuse(last, EntryRefusal::Members);
    let node = NodeId(9);
    refuse(&mut log, AccessChange::Revoked { node }, AccessRefusal::LastController { node });
}

#[test]
fn an_ephemeral_node_that_goes_for_good_is_a_stranger_again() {
    for (reason, is_kept) in [
        (LossReason::Closed, true),
        (LossReason::Silent { ticks: 9 }, true),
        (LossReason::OutOfMemory, true),
        (LossReason::Drained, false),
        (LossReason::Removed, false),
        (LossReason::Untrusted { partners: 2 }, false),
    ] {
        let mut log = with_token(TokenTerms { is_ephemeral: true, ..terms() });
        apply(&mut log, used(1));
        let holder = log.join(1);
        log.apply(Entry::Members(vec![MemberChange::Lost { holder, reason }]));
        assert_eq!(log.state.access().credential(NodeId(1)).is_some(), is_kept, "{reason}");
    }
}

#[test]
fn an_ephemeral_node_is_forgotten_when_it_is_gone() {
    let mut log = with_token(TokenTerms { is_ephemeral: true, ..terms() });
    apply(&mut log, used(1));
    log.join(1);
    let kept = log.join(2);
    let forgotten = |node| AccessChange::Forgotten { node: NodeId(node) };
    refuse(&mut log, forgotten(1), AccessRefusal::NotForgotten { node: NodeId(1) });
    log.lose(1);
    log.apply(Entry::Members(vec![lost(kept)]));
    refuse(&mut log, forgotten(2), AccessRefusal::NotForgotten { node: NodeId(2) });
    let node = NodeId(1);
    assert_eq!(apply(&mut log, forgotten(1)), AccessOutcome::Forgotten { node });
    assert!(!log.state.members().contains_key(&node));
    refuse(&mut log, forgotten(1), AccessRefusal::NoCredential { node });
}

/// Whom a plan names stays known until there is another.
#[test]
fn whom_a_plan_names_stays_a_member_that_is_lost() {
    let mut log = FixtureLog::with_job(spec(), &[]);
    apply(&mut log, made(TOKEN, TokenTerms { is_ephemeral: true, ..terms() }));
    apply(&mut log, used(1));
    log.join(1);
    log.run_plan(&[1]);
    log.lose(1);
    apply(&mut log, AccessChange::Forgotten { node: NodeId(1) });
    assert!(log.state.members().contains_key(&NodeId(1)));
}

#[test]
fn where_members_are_reached_follows_who_comes_moves_and_goes() {
    let mut log = FixtureLog::empty();
    let index = |log: &FixtureLog| log.state.membership().contacts_index();
    let holder = log.join(1);
    assert_eq!(index(&log), log.state.applied());
    let moved = |contact| Entry::Members(vec![MemberChange::Moved { holder, contact }]);
    log.refuse(moved(contact(1)), EntryRefusal::Members);
    log.apply(moved(contact(2)));
    assert_eq!(index(&log), log.state.applied());
    assert_eq!(log.state.membership().contacts().members[&NodeId(1)].1, contact(2));
    let drains = Entry::Members(vec![MemberChange::Drain { holder }]);
    log.apply(drains);
    assert_eq!(index(&log), log.state.applied() - 1, "who drains is where it was");
    log.refuse(moved(Contact { name: String::new(), ..contact(2) }), EntryRefusal::Members);
    log.lose(1);
    assert_eq!(index(&log), log.state.applied());
    assert!(log.state.membership().contacts().members.is_empty());
    log.refuse(moved(contact(3)), EntryRefusal::Members);
}
