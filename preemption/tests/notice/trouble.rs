//! Answers that are none.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use zbelastic_preemption::{
    ANSWER_BYTES_MAX, MetadataFault, NoticeCause, NoticeReport, NoticeSource, PollTimings,
};

use crate::aws::{ACTION, MARKED, TOKEN, is_action};
use crate::mock::{MockReply, MockService, MockedWatch, quick};

/// A service that answers the request for an interruption like this, one after the other, and then
/// that there is one.
fn service(replies: &'static [fn() -> MockReply]) -> MockService {
    let count = AtomicUsize::new(0);
    MockService::start(move |request| {
        if request.is("PUT", TOKEN) {
            return MockReply::of(200, "token");
        }
        if !is_action(request) {
            return MockReply::of(404, "");
        }
        let reply = replies.get(count.fetch_add(1, Ordering::SeqCst));
        reply.map_or_else(|| MockReply::of(200, MARKED), |reply| reply())
    })
}

fn troubles(watch: &mut MockedWatch) -> Vec<MetadataFault> {
    let mut faults = Vec::new();
    loop {
        match watch.report().expect("it goes on") {
            NoticeReport::Watching(_) => {}
            NoticeReport::Trouble { fault, .. } => faults.push(fault),
            NoticeReport::Notice(notice) => {
                assert_eq!(notice.cause, NoticeCause::Preempted);
                return faults;
            }
            NoticeReport::NoCloud => panic!("the cloud was named"),
        }
    }
}

/// A mark with spaces up to this length.
fn padded(bytes: usize) -> MockReply {
    let mut body = MARKED.as_bytes().to_vec();
    body.resize(bytes, b' ');
    MockReply::of(200, body)
}

#[test]
fn every_fault_is_reported_once_and_polling_goes_on() {
    let patience = Duration::from_secs(1);
    let mock = service(&[
        || MockReply::of(200, "garbage"),
        || MockReply::of(200, b"\xff\xfe".to_vec()),
        || padded(ANSWER_BYTES_MAX + 1),
        || MockReply::Raw([b"HTTP/1.1 200 Said\r\nX: ".as_slice(), &[b'x'; 1 << 20]].concat()),
        || MockReply::Close,
        || MockReply::Raw(b"220 mail.example ESMTP\r\n".to_vec()),
        || MockReply::of(500, ""),
        || MockReply::of(403, ""),
        || MockReply::Half,
        || MockReply::Silence,
    ]);
    let mut watch = mock.watch_at(NoticeSource::Aws, PollTimings { patience, ..quick() });
    let found = troubles(&mut watch);
    let expected = [
        MetadataFault::Senseless { expected: "an interruption" },
        MetadataFault::TooLong,
        MetadataFault::Unreachable { kind: io::ErrorKind::UnexpectedEof },
        MetadataFault::NoHttp,
        MetadataFault::Status { found: 500 },
        MetadataFault::TooSlow { within: patience },
    ];
    assert_eq!(found, expected);
}

#[test]
fn an_answer_may_have_64_kib() {
    let mock = service(&[|| padded(ANSWER_BYTES_MAX)]);
    assert_eq!(troubles(&mut mock.watch(NoticeSource::Aws)), []);
}

#[test]
fn nobody_is_followed_elsewhere() {
    let mock = service(&[|| MockReply::of(307, "").header("Location", "/elsewhere")]);
    let found = troubles(&mut mock.watch(NoticeSource::Aws));
    assert_eq!(found, [MetadataFault::Status { found: 307 }]);
    let requests = mock.requests();
    assert!(requests.iter().any(|request| request.path == ACTION));
    assert!(requests.iter().all(|request| request.path != "/elsewhere"), "{requests:?}");
}
