//! Answers that are none.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use zbelastic_node::notice::{ANSWER_BYTES_MAX, AskFault, Cause, NoticeSource, Pace, Report};

use crate::aws::{ACTION, MARKED, TOKEN, is_action};
use crate::mock::{Mock, Reply, Watch, quick};

/// A service that answers the question for an interruption like this, one after the other, and then
/// that there is one.
fn service(replies: &'static [fn() -> Reply]) -> Mock {
    let count = AtomicUsize::new(0);
    Mock::start(move |asked| {
        if asked.is("PUT", TOKEN) {
            return Reply::of(200, "token");
        }
        if !is_action(asked) {
            return Reply::of(404, "");
        }
        let reply = replies.get(count.fetch_add(1, Ordering::SeqCst));
        reply.map_or_else(|| Reply::of(200, MARKED), |reply| reply())
    })
}

fn troubles(watch: &mut Watch) -> Vec<AskFault> {
    let mut faults = Vec::new();
    loop {
        match watch.report().expect("it goes on") {
            Report::Watching(_) => {}
            Report::Trouble { fault, .. } => faults.push(fault),
            Report::Notice(notice) => {
                assert_eq!(notice.cause, Cause::Preempted);
                return faults;
            }
            Report::NoCloud => panic!("the cloud was named"),
        }
    }
}

/// A mark with spaces up to this length.
fn padded(bytes: usize) -> Reply {
    let mut body = MARKED.as_bytes().to_vec();
    body.resize(bytes, b' ');
    Reply::of(200, body)
}

#[test]
fn whatever_comes_is_told_once_and_asking_goes_on() {
    let patience = Duration::from_secs(1);
    let mock = service(&[
        || Reply::of(200, "garbage"),
        || Reply::of(200, b"\xff\xfe".to_vec()),
        || padded(ANSWER_BYTES_MAX + 1),
        || Reply::Raw([b"HTTP/1.1 200 Said\r\nX: ".as_slice(), &[b'x'; 1 << 20]].concat()),
        || Reply::Close,
        || Reply::Raw(b"220 mail.example ESMTP\r\n".to_vec()),
        || Reply::of(500, ""),
        || Reply::of(403, ""),
        || Reply::Half,
        || Reply::Silence,
    ]);
    let mut watch = mock.watch_at(NoticeSource::Aws, Pace { patience, ..quick() });
    let found = troubles(&mut watch);
    let expected = [
        AskFault::Senseless { expected: "an interruption" },
        AskFault::TooLong,
        AskFault::Unreachable { kind: io::ErrorKind::UnexpectedEof },
        AskFault::NoHttp,
        AskFault::Status { found: 500 },
        AskFault::TooSlow { within: patience },
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
    let mock = service(&[|| Reply::of(307, "").header("Location", "/elsewhere")]);
    let found = troubles(&mut mock.watch(NoticeSource::Aws));
    assert_eq!(found, [AskFault::Status { found: 307 }]);
    let asked = mock.asked();
    assert!(asked.iter().any(|asked| asked.path == ACTION));
    assert!(asked.iter().all(|asked| asked.path != "/elsewhere"), "{asked:?}");
}
