//! `token create`, `token list`, `token revoke`.

use std::io::Write;

use zbelastic_api::client::ApiClient;
use zbelastic_api::{ApiRequest, TokenCreated, TokenInfo, TokenRequest, TokenRole, escape};
use zbelastic_timing::unix_ms;
use zbelastic_wording::{CommandError, CommandFailure, FailureDetail};

use super::clock::date_text;
use super::reach::{confirm, connect, write_json};
use super::select::select_token;
use super::table::{ColumnAlign, TextTable};
use crate::args::{TokenCommand, TokenCreateArgs, TokenRevokeArgs};

/// Runs a `token` command.
///
/// # Errors
/// If the cluster refuses, or `out` cannot be written.
pub fn run(command: &TokenCommand, out: &mut dyn Write) -> Result<(), CommandError> {
    match command {
        TokenCommand::Create(args) => create(args, &mut connect(&args.read.client)?, out),
        TokenCommand::List(args) => list(args.json, &mut connect(&args.client)?, unix_ms(), out),
        TokenCommand::Revoke(args) => revoke(args, &mut connect(&args.client)?, out),
    }
}

fn create(
    args: &TokenCreateArgs,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let role = TokenRole::from(args.role);
    if role.is_person() && args.ephemeral {
        let detail =
            FailureDetail::new("--ephemeral is for nodes, which come and go").at("--ephemeral");
        return Err(CommandFailure::usage("the command line", vec![detail]).into());
    }
    let request = TokenRequest {
        role,
        ttl_s: args.ttl.as_secs().max(1),
        uses: args.uses,
        ephemeral: args.ephemeral,
        note: args.note.clone(),
    };
    let created = client.create_token(request).map_err(CommandFailure::from)?;
    if args.read.json {
        return write_json(out, &created);
    }
    if args.print_join {
        writeln!(out, "{}", join_line(&created))?;
    } else {
        writeln!(out, "{}", escape(&created.token))?;
    }
    Ok(())
}

/// The line to paste on another machine.
#[must_use]
pub fn join_line(created: &TokenCreated) -> String {
    let TokenCreated { token, info, addresses } = created;
    let role = info.role.name();
    let addresses = addresses.join(",");
    let token = escape(token);
    if info.role.is_person() {
        return format!("zbelastic login --cluster {} --token {token}", escape(&addresses));
    }
    format!("zbelastic join --cluster {} --role {role} --token {token}", escape(&addresses))
}

fn list(
    is_json: bool,
    client: &mut ApiClient<'_>,
    now_ms: u64,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let tokens = client.tokens().map_err(CommandFailure::from)?;
    if is_json {
        return write_json(out, &tokens);
    }
    out.write_all(render_tokens(&tokens, now_ms).as_bytes())?;
    Ok(())
}

/// Tokens as a table.
#[must_use]
pub fn render_tokens(tokens: &[TokenInfo], now_ms: u64) -> String {
    if tokens.is_empty() {
        return "no tokens; `zbelastic token create` makes one\n".to_owned();
    }
    let columns =
        ["id", "role", "state", "used", "ends", "note"].map(|title| (title, ColumnAlign::Left));
    let mut table = TextTable::new(&columns);
    for token in tokens {
        let used = format!("{}/{}", token.used, token.uses);
        let role = match token.ephemeral {
            true => format!("{} (ephemeral)", token.role),
            false => token.role.to_string(),
        };
        let note = token.note.clone().unwrap_or_default();
        let state = state(token, now_ms).to_owned();
        table.row(vec![token.id.clone(), role, state, used, date_text(token.expires_ms), note]);
    }
    table.render(usize::MAX)
}

fn state(token: &TokenInfo, now_ms: u64) -> &'static str {
    if token.revoked {
        "revoked"
    } else if token.expires_ms <= now_ms {
        "ended"
    } else if token.used >= token.uses {
        "used up"
    } else {
        "good"
    }
}

fn revoke(
    args: &TokenRevokeArgs,
    client: &mut ApiClient<'_>,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let tokens = client.tokens().map_err(CommandFailure::from)?;
    let id = select_token(&tokens, &args.id)?.id.clone();
    let and_nodes =
        if args.with_nodes { ", and the nodes that joined with it are removed" } else { "" };
    confirm(args.yes, &format!("token {} is revoked{and_nodes}", escape(&id)))?;
    let request = ApiRequest::TokenRevoke { id, with_nodes: args.with_nodes };
    let summary = client.change(request).map_err(CommandFailure::from)?;
    writeln!(out, "{}", escape(&summary.what))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, CliCommand};
    use clap::Parser;
    use zbelastic_api::sample::{self, NOW_MS, scripted};
    use zbelastic_api::{ApiAnswer, ChangeSummary};

    fn parse(line: &str) -> TokenCommand {
        let CliCommand::Token(command) =
            Cli::try_parse_from(line.split_whitespace()).expect("legal").command
        else {
            panic!("token")
        };
        command
    }

    fn created() -> TokenCreated {
        let addresses = vec!["10.0.0.1:7000".to_owned(), "10.0.0.2:7000".to_owned()];
        TokenCreated { token: "zbe1-secret".to_owned(), info: sample::token("7f3a"), addresses }
    }

    #[test]
    fn a_token_is_printed_alone_or_as_the_line_to_join_with() {
        let check = |line: &str, expected: &str| {
            let TokenCommand::Create(args) = parse(line) else { panic!("create") };
            let (mut client, requests) = scripted(vec![Ok(ApiAnswer::Token(created()))]);
            let mut out = Vec::new();
            create(&args, &mut client, &mut out).expect("a token");
            assert_eq!(String::from_utf8(out).expect("UTF-8"), expected);
            requests.borrow()[0].clone()
        };
        let day = TokenRequest {
            role: TokenRole::Worker,
            ttl_s: 86_400,
            uses: 1,
            ephemeral: false,
            note: None,
        };
        let found = check("zbelastic token create", "zbe1-secret\n");
        assert_eq!(found, ApiRequest::TokenCreate(day));
        check(
            "zbelastic token create --print-join",
            "zbelastic join --cluster 10.0.0.1:7000,10.0.0.2:7000 --role worker \
             --token zbe1-secret\n",
        );
        let line =
            "zbelastic token create --role controller --ttl 15m --uses 8 --ephemeral --note a";
        let requests = check(line, "zbe1-secret\n");
        let expected = TokenRequest {
            role: TokenRole::Controller,
            ttl_s: 900,
            uses: 8,
            ephemeral: true,
            note: Some("a".to_owned()),
        };
        assert_eq!(requests, ApiRequest::TokenCreate(expected));
    }

    #[test]
    fn a_list_tells_what_each_token_is_good_for() {
        let mut tokens = ["7f3a", "8888", "9999", "aaaa"].map(sample::token);
        tokens[1].revoked = true;
        tokens[2].expires_ms = NOW_MS;
        tokens[3].used = 2;
        tokens[3].ephemeral = true;
        tokens[3].note = None;
        let expected = "\
id    role                state    used  ends                  note
7f3a  worker              good     1/2   2026-11-22 12:00:03Z  rack 2
8888  worker              revoked  1/2   2026-11-22 12:00:03Z  rack 2
9999  worker              ended    1/2   2026-11-21 12:01:03Z  rack 2
aaaa  worker (ephemeral)  used up  2/2   2026-11-22 12:00:03Z
";
        assert_eq!(render_tokens(&tokens, NOW_MS), expected);
    }

    #[test]
    fn revoking_names_the_whole_id() {
        let summary = ChangeSummary { what: "token 7f3a is revoked".to_owned(), nodes: vec![] };
        let tokens = || Ok(ApiAnswer::Tokens(vec![sample::token("7f3a"), sample::token("8888")]));
        let TokenCommand::Revoke(args) = parse("zbelastic token revoke 7 --yes") else {
            panic!("revoke")
        };
        let (mut client, requests) = scripted(vec![tokens(), Ok(ApiAnswer::Done(summary))]);
        let mut out = Vec::new();
        revoke(&args, &mut client, &mut out).expect("revoked");
        assert_eq!(out, b"token 7f3a is revoked\n");
        let expected = ApiRequest::TokenRevoke { id: "7f3a".to_owned(), with_nodes: false };
        assert_eq!(requests.borrow()[1], expected);
    }
}
