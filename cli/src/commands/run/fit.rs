//! Whether a run fits on the workers that are there. The cluster accepts one that does not, as more may
//! join; whoever submits it reads at once what it lacks.

use zbelastic_api::StatusReport;
use zbelastic_config::RunConfig;
use zbelastic_consensus::class::DeviceClass;
use zbelastic_consensus::member::Resources;

use crate::commands::plan::live_workers;

/// Why the run fits on none of the workers that are there, and what would make it fit. `None` if it
/// fits, or nobody is there yet.
pub fn shortage(config: &RunConfig, status: &StatusReport) -> Option<String> {
    let nodes: Vec<_> = live_workers(status)
        .into_iter()
        .map(|worker| {
            // Workers of another class than the job's are left out, and no plan depends on which it is.
            let class = DeviceClass::Processors;
            let speed_permille = worker.speed_permille;
            (worker.id, Resources { memory: worker.memory, speed_permille, class })
        })
        .collect();
    let lacks = config.shortage(&nodes)?;
    let workers = match nodes.len() {
        1 => "worker that is".to_owned(),
        many => format!("{many} workers that are"),
    };
    Some(format!(
        "the run does not fit on the {workers} there, and waits for more: {lacks}; `zbelastic stop --yes` gives it up"
    ))
}

#[cfg(test)]
mod tests {
    use zbelastic_api::{MemberRole, sample};
    use zbelastic_config::load_document;
    use zbelastic_types::Bytes;

    use super::*;

    #[test]
    fn a_run_that_waits_for_memory_says_so() {
        let toml = "[model]\npreset = \"tiny\"\n";
        let config = load_document("a test", toml).expect("legal").config;
        let with = |memory: u64| {
            let mut status = sample::status();
            status.members.iter_mut().for_each(|member| member.memory = Bytes(memory));
            status
        };
        let workers = live_workers(&with(1)).len();
        assert!(workers > 0, "the sample has workers");
        let text = shortage(&config, &with(1 << 10)).expect("it does not fit");
        assert!(text.starts_with("the run does not fit on the "), "{text}");
        assert!(text.contains("there, and waits for more: a stage of "), "{text}");
        assert_eq!(shortage(&config, &with(1 << 50)), None);
        let mut nobody = with(1 << 10);
        nobody.members.retain(|member| member.role == MemberRole::Controller);
        assert_eq!(shortage(&config, &nobody), None);
    }
}
