//! Finds out which cloud this is: all are probed at once, and have a second or two.

use std::thread;

use super::metadata_client::MetadataClient;
use super::metadata_request::{MetadataFault, MetadataRequest, MetadataResponse};
use super::poll_timings::PollTimings;
use super::{Cloud, NoticeSettings, NoticeSource, aws, azure, gcp};

/// The cloud that `settings` name, or the one that answers the probe.
pub(super) fn cloud_of(client: &MetadataClient, settings: &NoticeSettings) -> Option<Cloud> {
    match settings.source {
        NoticeSource::Auto => find_cloud(client, &settings.pace),
        NoticeSource::Aws => Some(Cloud::Aws),
        NoticeSource::Gcp => Some(Cloud::Gcp),
        NoticeSource::Azure => Some(Cloud::Azure),
        NoticeSource::None => None,
    }
}

/// The cloud that answers as it should. The first of [`Cloud::ALL`], if several do.
fn find_cloud(client: &MetadataClient, pace: &PollTimings) -> Option<Cloud> {
    let is_there = |cloud| is_answer_of(cloud, &client.send(&request_for(cloud, pace)));
    thread::scope(|scope| {
        let probes = Cloud::ALL.map(|cloud| {
            let probe = move || is_there(cloud);
            // Without a thread the cloud counts as silent.
            (cloud, thread::Builder::new().spawn_scoped(scope, probe).ok())
        });
        let answers = probes.map(|(cloud, probe)| {
            let is_there = probe.is_some_and(|probe| probe.join().unwrap_or(false));
            (cloud, is_there)
        });
        answers.into_iter().find_map(|(cloud, is_there)| is_there.then_some(cloud))
    })
}

fn request_for(cloud: Cloud, pace: &PollTimings) -> MetadataRequest {
    match cloud {
        Cloud::Aws => aws::token_request(pace.probe_patience),
        Cloud::Gcp => gcp::probe_request(pace.probe_patience),
        Cloud::Azure => azure::probe_request(pace.probe_patience),
    }
}

fn is_answer_of(cloud: Cloud, answer: &Result<MetadataResponse, MetadataFault>) -> bool {
    answer.as_ref().is_ok_and(|answer| match cloud {
        Cloud::Aws => aws::read_token(answer.status, &answer.body).is_ok(),
        Cloud::Gcp => gcp::is_gcp(answer),
        Cloud::Azure => azure::is_azure(answer),
    })
}
