//! The zone of this machine, from a metadata service of the test's own.

use std::time::Duration;

use zbelastic_preemption::{
    Cloud, CloudZone, MetadataFault, MetadataUrl, NoticeSettings, NoticeSource, PollTimings,
    ZoneQuery,
};

use crate::auto::answer_of;
use crate::mock::{MockReply, MockService, ReceivedRequest, quick};

type ZoneResult = Result<Option<CloudZone>, MetadataFault>;

fn zone(mock: &MockService, source: NoticeSource, pace: PollTimings) -> ZoneResult {
    let base = Some(MetadataUrl::parse(&mock.url).expect("a place"));
    ZoneQuery::start(NoticeSettings { source, base, pace }).wait()
}

/// The answer of a cloud to the probe and to a request for the zone.
fn cloud_answer(cloud: Cloud, request: &ReceivedRequest) -> MockReply {
    let zone = match cloud {
        Cloud::Aws => {
            let token = request.header("X-aws-ec2-metadata-token");
            let is_zone = request.path == "/latest/meta-data/placement/availability-zone";
            (is_zone && token == Some("token")).then(|| MockReply::of(200, "us-east-1a"))
        }
        Cloud::Gcp => {
            let is_google = request.header("Metadata-Flavor") == Some("Google");
            let reply = MockReply::of(200, "projects/7/zones/europe-west4-b");
            (is_google && request.path == "/computeMetadata/v1/instance/zone")
                .then(|| reply.header("Metadata-Flavor", "Google"))
        }
        Cloud::Azure => {
            let is_azure = request.header("Metadata") == Some("true");
            let body = r#"{"location": "westeurope", "zone": "2"}"#;
            (is_azure && request.path.starts_with("/metadata/instance/compute?"))
                .then(|| MockReply::of(200, body))
        }
    };
    zone.or_else(|| answer_of(cloud, request)).unwrap_or(MockReply::of(404, ""))
}

#[test]
fn the_zone_is_that_of_the_cloud_that_answers() {
    for (cloud, source, name) in [
        (Cloud::Aws, NoticeSource::Aws, "us-east-1a"),
        (Cloud::Gcp, NoticeSource::Gcp, "europe-west4-b"),
        (Cloud::Azure, NoticeSource::Azure, "westeurope-2"),
    ] {
        let expected = CloudZone { name: name.to_owned(), cloud };
        for source in [source, NoticeSource::Auto] {
            let mock = MockService::start(move |request| cloud_answer(cloud, request));
            assert_eq!(zone(&mock, source, quick()), Ok(Some(expected.clone())), "{source}");
        }
    }
}

#[test]
fn where_no_cloud_is_there_is_no_zone() {
    let mock = MockService::start(|_| MockReply::of(404, ""));
    assert_eq!(zone(&mock, NoticeSource::Auto, quick()), Ok(None));
    assert_eq!(mock.requests().len(), Cloud::ALL.len(), "nothing but the probe was sent");
    let silent = MockService::start(|_| MockReply::Silence);
    let pace = PollTimings { probe_patience: Duration::from_millis(50), ..quick() };
    assert_eq!(zone(&silent, NoticeSource::Auto, pace), Ok(None));
}

#[test]
fn a_cloud_that_was_named_and_does_not_answer_is_a_fault() {
    let within = Duration::from_millis(50);
    let pace = PollTimings { patience: within, ..quick() };
    for source in [NoticeSource::Aws, NoticeSource::Gcp, NoticeSource::Azure] {
        let silent = MockService::start(|_| MockReply::Silence);
        assert_eq!(zone(&silent, source, pace), Err(MetadataFault::TooSlow { within }));
        let refusing = MockService::start(|_| MockReply::of(403, ""));
        let refused = MetadataFault::Status { found: 403 };
        assert_eq!(zone(&refusing, source, quick()), Err(refused));
    }
}

#[test]
fn without_a_source_no_zone_is_requested() {
    let mock = MockService::start(|_| MockReply::of(200, "token"));
    assert_eq!(zone(&mock, NoticeSource::None, quick()), Ok(None));
    assert!(mock.requests().is_empty());
}
