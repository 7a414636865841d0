//! Runs of a folder that others went on from.

use zbelastic_api::client::ApiClient;
use zbelastic_api::{ApiRequest, JobPhaseStatus, RunStatus};

/// Removes them, but for the parent of the run under way: a cluster keeps only so many runs that
/// are over, and each time a run is started again with other workers leaves one. A run that came to
/// its end stays until a person removes it. A run that cannot be removed now is removed the next
/// time.
pub fn remove_superseded(parent: &str, client: &mut ApiClient<'_>) {
    let Ok(runs) = client.runs() else { return };
    let superseded =
        runs.into_iter().filter(|run| run.phase == JobPhaseStatus::Stopped && run.name != parent);
    for RunStatus { name, run, .. } in superseded {
        let _ = client.change(ApiRequest::RunRemove { name, run });
    }
}

#[cfg(test)]
mod tests {
    use zbelastic_types::Bytes;

    use super::*;
    use zbelastic_api::sample::{digest, scripted};
    use zbelastic_api::{ApiAnswer, ChangeSummary};

    fn run(number: u64, name: &str, phase: JobPhaseStatus) -> RunStatus {
        RunStatus {
            run: number,
            name: name.to_owned(),
            config: digest(1),
            phase,
            step: 10,
            step_count: 20,
            from: None,
            checkpoints: vec![10],
            digest: Some(digest(2)),
            bytes: Bytes(1),
        }
    }

    #[test]
    fn only_what_was_stopped_and_is_not_gone_on_from_is_removed() {
        let runs = vec![
            run(1, "done", JobPhaseStatus::Done),
            run(2, "tiny", JobPhaseStatus::Stopped),
            run(3, "tiny-2", JobPhaseStatus::Stopped),
            run(4, "tiny-3", JobPhaseStatus::Running),
        ];
        let removed =
            ApiAnswer::Done(ChangeSummary { what: "removed".to_owned(), nodes: Vec::new() });
        let (mut client, requests) = scripted(vec![Ok(ApiAnswer::Runs(runs)), Ok(removed)]);
        remove_superseded("tiny-2", &mut client);
        let expected =
            [ApiRequest::RunList, ApiRequest::RunRemove { name: "tiny".to_owned(), run: 2 }];
        assert_eq!(*requests.borrow(), expected);
    }
}
