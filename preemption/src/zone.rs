//! The zone that this machine stands in, as the metadata service of its cloud names it.
//!
//! ```text
//!   probe ──> token (Amazon) ──> request ──> answer ──> zone
//! ```
//!
//! A thread sends the requests, each with a patience, and ends with the answer. An answer that names
//! no zone is a fault; that no cloud answers is none.

use std::io;
use std::thread::{self, JoinHandle};

use serde::Deserialize;

use super::metadata_client::MetadataClient;
use super::metadata_request::{MetadataFault, MetadataRequest, MetadataResponse, check_status};
use super::poll_timings::PollTimings;
use super::probe::cloud_of;
use super::{Cloud, NoticeSettings, NoticeSource, aws, azure, gcp};

/// The longest name of a zone, as members of a cluster may have it; real ones have up to 30
/// characters.
const ZONE_CHARS_MAX: usize = 63;

/// A zone, and the cloud that named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudZone {
    /// The name of the zone: up to 63 of `a-z`, `0-9` and `-`.
    pub name: String,
    /// The cloud whose metadata service named it.
    pub cloud: Cloud,
}

type ZoneThread = JoinHandle<Result<Option<CloudZone>, MetadataFault>>;

/// A thread that requests the zone of this machine.
#[derive(Debug)]
pub struct ZoneQuery {
    /// `None` if no request is sent.
    thread: Option<io::Result<ZoneThread>>,
}

impl ZoneQuery {
    /// Begins to request the zone of the cloud that `settings` name. With [`NoticeSource::None`]
    /// there is no thread, and no zone.
    #[must_use]
    pub fn start(settings: NoticeSettings) -> Self {
        if settings.source == NoticeSource::None {
            return Self { thread: None };
        }
        let builder = thread::Builder::new().name("zone".to_owned());
        Self { thread: Some(builder.spawn(move || query(&settings))) }
    }

    /// Waits for the zone: for the probe's patience where no cloud answers, and for that of two more
    /// requests at most. `None` where no cloud answers, and where its machines have no zones.
    ///
    /// # Errors
    /// If the cloud's answer is missing or names no zone, or the system gave no thread.
    pub fn wait(self) -> Result<Option<CloudZone>, MetadataFault> {
        match self.thread {
            // A thread that panicked has printed why.
            Some(Ok(thread)) => thread.join().unwrap_or(Ok(None)),
            Some(Err(error)) => Err(MetadataFault::NoThread { kind: error.kind() }),
            None => Ok(None),
        }
    }
}

fn query(settings: &NoticeSettings) -> Result<Option<CloudZone>, MetadataFault> {
    let client = MetadataClient::new(settings.base.as_ref());
    let pace = settings.pace;
    let Some(cloud) = cloud_of(&client, settings) else { return Ok(None) };
    let token = match cloud {
        Cloud::Aws => {
            let answer = client.send(&aws::token_request(pace.patience))?;
            Some(aws::read_token(answer.status, &answer.body)?.to_owned())
        }
        Cloud::Gcp | Cloud::Azure => None,
    };
    let answer = client.send(&zone_request(cloud, token.as_deref(), &pace))?;
    Ok(read_zone(cloud, &answer)?.map(|name| CloudZone { name, cloud }))
}

/// The request for the zone; Amazon's carries a token.
fn zone_request(cloud: Cloud, token: Option<&str>, pace: &PollTimings) -> MetadataRequest {
    match cloud {
        Cloud::Aws => aws::zone_request(token.unwrap_or_default(), pace.patience),
        Cloud::Gcp => gcp::zone_request(pace.patience),
        Cloud::Azure => azure::zone_request(pace.patience),
    }
}

/// The location of a machine of Microsoft's. Where a region has zones, they are numbers.
#[derive(Deserialize)]
struct AzurePlacement {
    location: String,
    #[serde(default)]
    zone: String,
}

/// The zone that an answer names. `None` if it says that the machine has none.
fn read_zone(cloud: Cloud, answer: &MetadataResponse) -> Result<Option<String>, MetadataFault> {
    check_status(answer.status)?;
    let senseless = MetadataFault::Senseless { expected: "a zone" };
    let name = match cloud {
        Cloud::Aws => answer.body.trim().to_owned(),
        // `projects/NUMBER/zones/NAME`
        Cloud::Gcp if gcp::is_gcp(answer) => {
            answer.body.trim().rsplit('/').next().unwrap_or_default().to_owned()
        }
        Cloud::Gcp => return Err(senseless),
        Cloud::Azure => {
            let found: Option<AzurePlacement> = serde_json::from_str(&answer.body).ok();
            let AzurePlacement { location, zone } = found.ok_or(senseless.clone())?;
            if location.is_empty() {
                return Err(senseless);
            }
            // A machine that was not made in a zone may stand in any of its region's.
            if zone.is_empty() {
                return Ok(None);
            }
            format!("{location}-{zone}")
        }
    };
    if is_zone(&name) { Ok(Some(name)) } else { Err(senseless) }
}

fn is_zone(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=ZONE_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::{
        Cloud, MetadataFault, MetadataResponse, PollTimings, ZONE_CHARS_MAX, read_zone,
        zone_request,
    };

    fn answer(body: &str) -> MetadataResponse {
        let flavor = Some("Google".to_owned());
        MetadataResponse { status: 200, body: body.to_owned(), tag: None, flavor }
    }

    const SENSELESS: MetadataFault = MetadataFault::Senseless { expected: "a zone" };

    #[test]
    fn a_zone_is_read_as_each_cloud_names_it() {
        let check = |cloud, body: &str, expected: Option<&str>| {
            assert_eq!(read_zone(cloud, &answer(body)), Ok(expected.map(str::to_owned)), "{body}");
        };
        check(Cloud::Aws, "us-east-1a", Some("us-east-1a"));
        check(Cloud::Aws, "us-east-1-bos-1a\n", Some("us-east-1-bos-1a"));
        check(Cloud::Gcp, "projects/7/zones/europe-west4-b", Some("europe-west4-b"));
        let azure = r#"{"location": "westeurope", "name": "vm", "zone": "2"}"#;
        check(Cloud::Azure, azure, Some("westeurope-2"));
        check(Cloud::Azure, r#"{"location": "westus", "zone": ""}"#, None);
        check(Cloud::Azure, r#"{"location": "westus"}"#, None);
    }

    #[test]
    fn what_is_no_zone_is_a_fault() {
        for cloud in Cloud::ALL {
            let long = "z".repeat(ZONE_CHARS_MAX + 1);
            let page = "<html>please log in</html>";
            for body in ["", "{}", page, "US-EAST", "a b", &long] {
                assert_eq!(read_zone(cloud, &answer(body)), Err(SENSELESS), "{cloud} {body}");
            }
            let refused = MetadataResponse { status: 404, ..answer("us-east-1a") };
            assert_eq!(read_zone(cloud, &refused), Err(MetadataFault::Status { found: 404 }));
        }
        let other = MetadataResponse { flavor: None, ..answer("projects/7/zones/a") };
        assert_eq!(read_zone(Cloud::Gcp, &other), Err(SENSELESS), "not Google's server");
        let azure = r#"{"location": "", "zone": "1"}"#;
        assert_eq!(read_zone(Cloud::Azure, &answer(azure)), Err(SENSELESS));
        let longest = "z".repeat(ZONE_CHARS_MAX);
        assert_eq!(read_zone(Cloud::Aws, &answer(&longest)), Ok(Some(longest.clone())));
    }

    #[test]
    fn a_request_carries_what_its_cloud_wants() {
        let pace = PollTimings::default();
        let of = |cloud| zone_request(cloud, Some("token"), &pace);
        let header = |name, value: &str| [(name, value.to_owned())];
        let request = of(Cloud::Aws);
        assert_eq!(request.path, "/latest/meta-data/placement/availability-zone");
        assert_eq!(request.headers, header("X-aws-ec2-metadata-token", "token"));
        let request = of(Cloud::Gcp);
        assert_eq!(request.path, "/computeMetadata/v1/instance/zone");
        assert_eq!(request.headers, header("Metadata-Flavor", "Google"));
        let request = of(Cloud::Azure);
        assert_eq!(request.path, "/metadata/instance/compute?api-version=2018-10-01&format=json");
        assert_eq!(request.headers, header("Metadata", "true"));
    }
}
