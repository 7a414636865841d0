//! The text that the binary carries: the project's own documentation.

use zbelastic_types::Bytes;

use crate::text::{TextFile, TrainingText};

macro_rules! pages {
    ($($page:literal),* $(,)?) => {
        [$(($page, include_str!(concat!("../../../docs/", $page)))),*]
    };
}

const PAGES: [(&str, &str); 147] = pages![
    "architecture.md",
    "assumptions.md",
    "benchmarks.md",
    "chaos.md",
    "checkpoint-format.md",
    "cli.md",
    "config.md",
    "consensus.md",
    "cuda.md",
    "decisions/0001-layers-are-half-blocks.md",
    "decisions/0002-own-matrix-kernel.md",
    "decisions/0003-attempts-only-grow.md",
    "decisions/0004-head-weights-run-early.md",
    "decisions/0005-squared-norms-per-tensor-in-canonical-order.md",
    "decisions/0006-zb-h2-and-zb-v-accept-few-microbatches.md",
    "decisions/0007-golden-files-are-blessed-by-an-environment-variable.md",
    "decisions/0008-workers-are-threads-with-bounded-mailboxes.md",
    "decisions/0009-raft-behind-plain-values.md",
    "decisions/0010-one-stage-engine-two-workbenches.md",
    "decisions/0011-workers-learn-state-not-log-entries.md",
    "decisions/0012-a-logged-verdict-stands.md",
    "decisions/0013-layers-travel-as-images.md",
    "decisions/0014-plain-breadth-first-search.md",
    "decisions/0015-known-bugs-are-switches.md",
    "decisions/0016-planned-changes-copy-ahead.md",
    "decisions/0017-one-loop-a-process-and-threads-for-what-waits.md",
    "decisions/0018-layers-travel-as-bulk-and-frames-as-rules.md",
    "decisions/0019-a-job-is-one-document-in-the-log.md",
    "decisions/0020-asynchronous-schedules-are-siblings.md",
    "decisions/0021-a-simulation-chooses-among-solved-orders.md",
    "decisions/0022-slots-follow-the-list.md",
    "decisions/0023-replicas-follow-from-the-placement.md",
    "decisions/0024-a-slice-is-a-unit-of-arithmetic.md",
    "decisions/0025-plans-follow-measured-times-by-agreement-of-reviews.md",
    "decisions/0026-slices-keep-what-others-attend-to.md",
    "decisions/0027-a-cut-follows-from-counted-work.md",
    "decisions/0028-orders-first-then-what-memory-asks-for.md",
    "decisions/0029-device-kernels-run-on-processors-too.md",
    "decisions/0030-layers-links-and-verdicts-are-timed.md",
    "decisions/0031-a-layer-of-two-replicas-has-one-owner.md",
    "decisions/0032-a-job-runs-on-one-class-of-devices.md",
    "decisions/0033-tensors-stay-on-devices-behind-moments.md",
    "decisions/0034-a-candidate-is-the-form-that-products-read.md",
    "decisions/0035-what-a-device-is-told-again-is-a-graph.md",
    "decisions/0036-attention-on-devices-is-our-own-kernel.md",
    "decisions/0037-attested-states-are-told-by-fingerprints.md",
    "decisions/0038-sums-and-candidates-share-a-read.md",
    "decisions/0039-a-stage-claims-its-device-at-once.md",
    "decisions/0040-a-driver-made-of-processors.md",
    "decisions/0041-what-leaves-a-stage-is-read-late.md",
    "decisions/0042-losing-state-takes-evidence.md",
    "decisions/0043-waiting-ends-with-progress.md",
    "decisions/0044-programs-are-packed-and-what-many-are-sent-is-encoded-once.md",
    "decisions/0045-checkpoints-by-time-and-copies-by-place.md",
    "decisions/0046-only-failed-joins-are-delayed.md",
    "decisions/0047-restarts-are-noticed-by-stateless-resets.md",
    "decisions/0048-a-layers-memory-is-shared-until-it-is-written.md",
    "decisions/0049-weights-are-drawn-side-by-side.md",
    "decisions/0050-measured-rows-have-goals.md",
    "decisions/0051-whoever-has-room-keeps-a-piece.md",
    "decisions/0052-a-members-key-renews-its-certificate.md",
    "decisions/0053-what-a-run-made-is-kept-until-it-is-removed.md",
    "decisions/0054-what-nobody-waits-for-leaves-the-way.md",
    "decisions/0055-a-branch-begins-with-its-parents-checkpoint.md",
    "decisions/0056-people-are-let-in-as-nodes-are.md",
    "decisions/0057-weights-are-proved-without-moments.md",
    "decisions/0058-an-authority-is-replaced-by-one-it-vouches-for.md",
    "decisions/0059-formats-are-raised-by-an-entry.md",
    "decisions/0060-what-a-node-decides-is-a-package.md",
    "decisions/0061-a-layer-at-a-version-is-hashed-once.md",
    "decisions/0062-names-are-those-of-the-field.md",
    "decisions/0063-planning-is-a-package.md",
    "decisions/0064-the-command-line-is-a-package.md",
    "decisions/0065-a-backend-is-several-traits.md",
    "decisions/0067-a-model-of-others-is-read-whole-or-refused.md",
    "decisions/0068-a-tied-matrix-lies-at-both-ends.md",
    "decisions/0069-a-run-reads-token-stores.md",
    "decisions/0070-what-a-model-has-read-is-earlier-slices.md",
    "decisions/0071-remote-sources-are-a-package.md",
    "decisions/0072-frozen-tensors-are-part-of-the-model.md",
    "decisions/0073-muon-has-the-moments-of-adamw.md",
    "decisions/0074-adapters-are-merged-into-what-passes-read.md",
    "decisions/0075-a-gradient-is-a-tree-of-lanes.md",
    "decisions/0076-a-tile-for-each-instruction-set.md",
    "decisions/0077-the-page-is-a-client.md",
    "decisions/0078-processes-of-a-machine-keep-their-sockets.md",
    "decisions/0079-replicas-are-columns-and-sums-climb-a-tree.md",
    "decisions/0080-a-drained-process-ends-and-a-members-folder-reads.md",
    "decisions/0081-frozen-tensors-have-no-moments.md",
    "decisions/0082-processes-beside-a-controller.md",
    "decisions/0083-a-lost-place-is-shared.md",
    "decisions/0084-tests-are-built-once-by-a-profile-of-their-own.md",
    "decisions/0085-a-snapshot-leaves-memory-before-a-commit.md",
    "decisions/0086-what-is-sealed-outlasts-a-life.md",
    "decisions/0087-who-drains-leaves-its-place-and-who-joins-gets-one.md",
    "decisions/0088-a-follower-takes-what-its-network-carries.md",
    "decisions/0089-test-programs-run-two-at-a-time.md",
    "decisions/0090-muon-on-devices-multiplies-as-layers-do.md",
    "decisions/0091-a-run-is-held-when-nothing-can-be-saved.md",
    "decisions/0092-replicas-share-the-additions-of-the-tree.md",
    "decisions/0093-tutorials-are-run.md",
    "decisions/0094-a-slow-disk-deposes-no-leader.md",
    "decisions/0095-a-node-starts-before-its-store.md",
    "decisions/0096-a-checkpoint-waits-for-disks.md",
    "decisions/0097-what-the-first-device-showed.md",
    "decisions/0098-pieces-lie-on-disks-in-lives.md",
    "decisions/0099-bfloat16-on-processors.md",
    "decisions/0100-the-end-of-a-run.md",
    "decisions/0101-kernels-for-aarch64.md",
    "decisions/0102-tensors-between-processes-by-nccl.md",
    "decisions/0103-a-model-is-written-while-its-layers-come.md",
    "decisions/0104-islands-are-runs-that-meet-in-folders.md",
    "decisions/0105-the-only-checkpoint-is-waited-for.md",
    "decisions/0106-a-layer-comes-from-all-that-hold-it.md",
    "decisions/0107-shards-arrive-chunk-by-chunk.md",
    "decisions/0108-replicas-share-the-optimizer.md",
    "decisions/0109-a-worker-keeps-the-chunks-that-are-read-next.md",
    "decisions/0110-programs-of-clusters-run-beside-those-that-compute.md",
    "decisions/0111-a-store-is-replaced-while-its-node-runs.md",
    "deploy.md",
    "deploy/container.md",
    "deploy/kubernetes.md",
    "deploy/packages.md",
    "deploy/skypilot.md",
    "deploy/slurm.md",
    "deploy/ssh.md",
    "deploy/systemd.md",
    "glossary.md",
    "hacking.md",
    "islands.md",
    "numerics.md",
    "page.md",
    "quality.md",
    "replicas-compared.md",
    "run-folder.md",
    "schedule-ir.md",
    "schedules.md",
    "security.md",
    "token-store.md",
    "trouble.md",
    "tutorials/first-run.md",
    "tutorials/own-data.md",
    "tutorials/reading-the-page.md",
    "tutorials/spot-fleet.md",
    "validation.md",
    "waiting-times.md",
    "wire-format.md",
];

/// All pages as one text, as if they had been gathered from their folder.
pub fn text() -> TrainingText {
    let mut bytes = Vec::new();
    let mut files = Vec::new();
    for (page, text) in PAGES {
        files.push(TextFile { path: page.into(), size: Bytes(text.len() as u64), note: None });
        bytes.extend_from_slice(text.as_bytes());
    }
    TrainingText { hash: blake3::hash(&bytes), bytes, files, skipped: Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::PAGES;

    #[test]
    fn every_page_is_carried() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let mut found = Vec::new();
        for folder in ["", "decisions/", "deploy/", "tutorials/"] {
            for entry in fs::read_dir(docs.join(folder)).expect("a folder") {
                let name = entry.expect("readable").file_name().into_string().expect("UTF-8");
                // The contents of the site are no text.
                if name.ends_with(".md") && name != "SUMMARY.md" {
                    found.push(format!("{folder}{name}"));
                }
            }
        }
        found.sort();
        assert_eq!(found, PAGES.map(|(page, _)| page));
    }
}
