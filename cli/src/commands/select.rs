//! Resolves typed names: by number, by name, or by the beginning of a name.

use zbelastic_api::{ApiRefusal, MemberState, MemberStatus, ResourceKind, TokenInfo, escape};
use zbelastic_config::nearest;
use zbelastic_wording::{CommandFailure, FailureCode, FailureDetail};

/// Candidates that are listed when a name fits several.
const CANDIDATES_MAX: usize = 8;

/// The member that `typed` names. A number is an id before it is anything else; of several members
/// of one name the live one is meant.
///
/// # Errors
/// If there is none, or if it could be several.
pub fn select_node<'a>(
    members: &'a [MemberStatus],
    typed: &str,
) -> Result<&'a MemberStatus, CommandFailure> {
    let number = typed.parse::<u64>().ok();
    if let Some(member) = members.iter().find(|member| Some(member.id.0) == number) {
        return Ok(member);
    }
    let named: Vec<_> = members.iter().filter(|member| member.name == typed).collect();
    let begin: Vec<_> = members.iter().filter(|member| member.name.starts_with(typed)).collect();
    let found = if named.is_empty() { begin } else { named };
    let live: Vec<_> = found.iter().copied().filter(|member| is_live(member)).collect();
    match (live.as_slice(), found.as_slice()) {
        ([member], _) | ([], [member]) => Ok(member),
        ([], []) => Err(unknown(
            ResourceKind::Node,
            typed,
            nearest(typed, members.iter().map(|member| member.name.as_str())),
        )),
        ([], several) | (several, _) => {
            let candidates =
                several.iter().map(|member| format!("{} ({})", member.name, member.id));
            Err(ambiguous("node", typed, candidates.collect()))
        }
    }
}

fn is_live(member: &MemberStatus) -> bool {
    match member.standing {
        MemberState::Present | MemberState::Draining => true,
        MemberState::Lost { .. } => false,
    }
}

/// The token with the id `typed`, or with one that begins with it.
///
/// # Errors
/// If there is none, or if it could be several.
pub fn select_token<'a>(
    tokens: &'a [TokenInfo],
    typed: &str,
) -> Result<&'a TokenInfo, CommandFailure> {
    if let Some(token) = tokens.iter().find(|token| token.id == typed) {
        return Ok(token);
    }
    let found: Vec<_> = tokens.iter().filter(|token| token.id.starts_with(typed)).collect();
    match found.as_slice() {
        [token] => Ok(token),
        [] => Err(unknown(
            ResourceKind::Token,
            typed,
            nearest(typed, tokens.iter().map(|token| token.id.as_str())),
        )),
        several => {
            Err(ambiguous("token", typed, several.iter().map(|token| token.id.clone()).collect()))
        }
    }
}

fn unknown(thing: ResourceKind, typed: &str, nearest: Option<&str>) -> CommandFailure {
    let mut failure = ApiRefusal::NotFound { thing, name: typed.to_owned() }.failure();
    if let Some(nearest) = nearest {
        failure.details =
            vec![FailureDetail::new("nothing is called so").hint(escape(nearest).into_owned())];
    }
    failure
}

fn ambiguous(thing: &str, typed: &str, candidates: Vec<String>) -> CommandFailure {
    let what = format!("{} could be {} {thing}s", escape(typed), candidates.len());
    let more = candidates.len().saturating_sub(CANDIDATES_MAX);
    let shown: Vec<_> = candidates.iter().take(CANDIDATES_MAX).map(|name| escape(name)).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let detail = FailureDetail::new(format!("{}{more}", shown.join(", ")));
    let mut failure = CommandFailure::new(FailureCode::Usage, what);
    failure.details = vec![detail.hint("more letters of it, or the number")];
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_api::sample;

    fn check_node(typed: &str, expected: Result<u64, FailureCode>) {
        let members: Vec<MemberStatus> =
            [(1, "ctl-1", true), (2, "gpu-a", true), (3, "gpu-b", true), (4, "gpu-b", false)]
                .into_iter()
                .chain([(5, "old", false), (12, "x7", true)])
                .map(|(id, name, is_live)| sample::member(id, name, is_live))
                .collect();
        let found = select_node(&members, typed).map(|member| member.id.0);
        assert_eq!(found.map_err(|failure| failure.code), expected, "{typed}");
    }

    #[test]
    fn nodes_have_numbers_names_and_beginnings() {
        check_node("2", Ok(2));
        check_node("4", Ok(4));
        check_node("gpu-a", Ok(2));
        check_node("ctl", Ok(1));
        check_node("x", Ok(12));
        // Of two members of one name the live one; a lost one is found if it is the only one.
        check_node("gpu-b", Ok(3));
        check_node("old", Ok(5));
        check_node("gpu", Err(FailureCode::Usage));
        check_node("7", Err(FailureCode::NotFound));
        check_node("nobody", Err(FailureCode::NotFound));
    }

    #[test]
    fn candidates_and_likely_names_are_printed() {
        let members = [sample::member(2, "gpu-a", true), sample::member(3, "gpu-\u{1b}b", true)];
        let message = |typed: &str| select_node(&members, typed).expect_err(typed).to_string();
        assert_eq!(
            message("gpu"),
            "error: gpu could be 2 nodes\n  gpu-a (2), gpu-\\u{1b}b (3)\n  \
             try: more letters of it, or the number"
        );
        assert_eq!(
            message("gpu_a"),
            "error: there is no node gpu_a\n  nothing is called so\n  try: gpu-a"
        );
    }

    #[test]
    fn tokens_are_found_by_how_they_begin() {
        let tokens = ["7f3a", "7f99", "aa01"].map(sample::token);
        let found = |typed: &str| {
            let found = select_token(&tokens, typed).map(|token| token.id.as_str());
            found.map_err(|failure| failure.code)
        };
        assert_eq!(found("7f3a"), Ok("7f3a"));
        assert_eq!(found("a"), Ok("aa01"));
        assert_eq!(found("7f"), Err(FailureCode::Usage));
        assert_eq!(found("b"), Err(FailureCode::NotFound));
    }
}
