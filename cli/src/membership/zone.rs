//! The zone of a worker: the typed one, or the one that the cloud's metadata service names.

use zbelastic_api::MemberRole;
use zbelastic_preemption::{CloudZone, NoticeSettings, ZoneQuery};
use zbelastic_wording::print_error_line;

use crate::args::JoinArgs;

/// Begins to request the zone of a worker for which none was typed, now or at an earlier start.
/// `None` if no request is due: copies of layers lie on workers alone, and with `--spot none` no
/// metadata service is contacted.
pub fn begin_zone_query(args: &JoinArgs, role: MemberRole, known_zone: &str) -> Option<ZoneQuery> {
    if role == MemberRole::Controller || args.zone.is_some() || !known_zone.is_empty() {
        return None;
    }
    // An environment that names no metadata service is refused where notices begin.
    let settings = NoticeSettings::from_environment(args.spot).ok()?;
    Some(ZoneQuery::start(settings))
}

/// Waits for the zone. A fault is printed: the worker joins without a zone.
pub fn finish_zone_query(query: Option<ZoneQuery>) -> Option<CloudZone> {
    query?.wait().unwrap_or_else(|fault| {
        print_error_line(format_args!("note: no zone is known: {fault}; --zone names one"));
        None
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, CliCommand};

    #[test]
    fn a_zone_is_requested_only_where_none_is_known() {
        let parse = |arguments: &[&str]| {
            let line = ["zbelastic", "join", "--spot", "none"].iter().chain(arguments);
            let CliCommand::Join(args) = Cli::try_parse_from(line).expect("legal").command else {
                panic!("join")
            };
            args
        };
        let query = |arguments: &[&str], role, known_zone| {
            begin_zone_query(&parse(arguments), role, known_zone)
        };
        assert!(query(&[], MemberRole::Worker, "").is_some());
        assert!(query(&[], MemberRole::Controller, "").is_none());
        assert!(query(&["--zone", "rack-1"], MemberRole::Worker, "").is_none());
        assert!(query(&[], MemberRole::Worker, "rack-1").is_none(), "typed at an earlier start");
        assert_eq!(finish_zone_query(query(&[], MemberRole::Worker, "")), None, "nobody answers");
    }
}
