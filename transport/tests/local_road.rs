//! The same-host path: which connections come in, which do not, and what a dead process leaves.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zbelastic_transport::local::{
    BOOT_ID_BYTES_MAX, DIAL_DEADLINE, LocalBindError, LocalDialError, LocalFolderError, LocalLane,
    LocalListener, LocalOffer, OfferFault, SOCKET_PATH_BYTES_MAX, UNAUTHENTICATED_MAX, dial,
};
use zbelastic_types::NodeId;

const FRIEND: NodeId = NodeId(5);
const SECRET_BYTES: usize = 32;

/// A folder below the system's, and a listener in it.
async fn listener() -> (TempDir, LocalListener) {
    let folder = tempfile::tempdir().unwrap();
    let listener = bind(&folder.path().join("local")).await.unwrap();
    (folder, listener)
}

async fn bind(folder: &Path) -> Result<LocalListener, LocalBindError> {
    LocalListener::bind(folder, &std::env::temp_dir()).await
}

/// An offer in the form in which it travels, with parts of the test's choice.
fn offer_bytes(boot_id: &str, path: &[u8], secret: &[u8]) -> Vec<u8> {
    let length = |length: usize| {
        assert!(length < 128 * 128);
        if length < 128 {
            vec![length as u8]
        } else {
            vec![length as u8 | 128, (length >> 7) as u8]
        }
    };
    let boot_bytes = length(boot_id.len());
    let path_bytes = length(path.len());
    [&boot_bytes[..], boot_id.as_bytes(), &path_bytes, path, secret].concat()
}

/// The offer with another secret.
fn forged(offer: &LocalOffer) -> LocalOffer {
    let mut bytes = offer.encode();
    *bytes.last_mut().unwrap() ^= 1;
    LocalOffer::decode(&bytes).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_friend_comes_in_on_every_lane() {
    let (_folder, mut listener) = listener().await;
    assert_eq!(mode(listener.path().parent().unwrap()), 0o700);
    let admission = listener.admit(FRIEND).unwrap();
    let offer = LocalOffer::decode(&admission.offer().encode()).unwrap();
    assert!(offer.is_reachable_from(listener.host()));
    for lane in [LocalLane::Control, LocalLane::Tensor, LocalLane::Bulk, LocalLane::Bulk] {
        let mut near = dial(&offer, listener.host(), lane).await.unwrap();
        let arrival = listener.arrival().await;
        assert_eq!((arrival.admission, arrival.peer), (admission.id(), FRIEND));
        assert_eq!(arrival.lane, lane);
        let mut far = arrival.stream;
        near.write_all(b"there").await.unwrap();
        far.write_all(b"and back").await.unwrap();
        drop(near.shutdown().await);
        let mut text = String::new();
        far.read_to_string(&mut text).await.unwrap();
        drop(far);
        near.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "thereand back");
    }
    assert_eq!(listener.refused(), 0);
}

#[tokio::test]
async fn a_wrong_secret_does_not_come_in() {
    let (_folder, mut listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let other = listener.admit(NodeId(6)).unwrap();
    let forged = forged(admission.offer());
    let dialled = dial(&forged, listener.host(), LocalLane::Bulk).await;
    assert!(matches!(dialled, Err(LocalDialError::WrongListener)), "{dialled:?}");
    assert_eq!(listener.refused(), 1);
    let _stream = dial(other.offer(), listener.host(), LocalLane::Bulk).await.unwrap();
    assert_eq!(listener.arrival().await.peer, NodeId(6));
}

#[tokio::test]
async fn an_admission_ends_when_it_is_dropped() {
    let (_folder, listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let offer = admission.offer().clone();
    drop(admission);
    let dialled = dial(&offer, listener.host(), LocalLane::Control).await;
    assert!(matches!(dialled, Err(LocalDialError::WrongListener)), "{dialled:?}");
}

#[tokio::test]
async fn a_lane_that_is_none_does_not_come_in() {
    let (_folder, listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let offer = admission.offer().encode();
    for lane in [0, 5, 255] {
        let mut stream = UnixStream::connect(listener.path()).await.unwrap();
        let greeting = [&[lane][..], &offer[offer.len() - SECRET_BYTES..]].concat();
        stream.write_all(&greeting).await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    assert_eq!(listener.refused(), 3);
}

#[tokio::test]
async fn silent_connections_do_not_keep_an_admitted_peer_out() {
    for count in [5, UNAUTHENTICATED_MAX - 1, UNAUTHENTICATED_MAX, UNAUTHENTICATED_MAX + 5] {
        let (_folder, mut listener) = listener().await;
        let mut silent_streams = Vec::new();
        for _ in 0..count {
            silent_streams.push(UnixStream::connect(listener.path()).await.unwrap());
        }
        let admission = listener.admit(FRIEND).unwrap();
        let _stream = dial(admission.offer(), listener.host(), LocalLane::Tensor).await.unwrap();
        assert_eq!(listener.arrival().await.peer, FRIEND);
        let closed = (count + 1).saturating_sub(UNAUTHENTICATED_MAX);
        assert_eq!(listener.refused(), closed as u64, "of {count}");
        for stream in &mut silent_streams[..closed] {
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        }
    }
}

/// Workers of one machine begin at once, and nobody takes what arrives for a while. A dialler that was
/// shown the proof has a connection: it chooses this path by it.
#[tokio::test]
async fn every_connection_that_was_shown_the_proof_arrives() {
    let (_folder, mut listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let mut dials = JoinSet::new();
    for _ in 0..2 * UNAUTHENTICATED_MAX {
        let (offer, host) = (admission.offer().clone(), listener.host().clone());
        dials.spawn(async move { dial(&offer, &host, LocalLane::Tensor).await });
    }
    let mut shown = Vec::new();
    let mut arrived = Vec::new();
    while !dials.is_empty() {
        tokio::select! {
            Some(dialled) = dials.join_next() => shown.extend(dialled.unwrap()),
            arrival = listener.arrival() => arrived.push(arrival),
        }
    }
    while arrived.len() < shown.len() {
        let arrival = timeout(DIAL_DEADLINE, listener.arrival()).await;
        arrived.push(arrival.expect("a connection that was shown the proof"));
    }
    assert!(shown.len() > UNAUTHENTICATED_MAX, "{}", shown.len());
}

#[tokio::test]
async fn the_connection_that_was_silent_longest_is_closed() {
    let (_folder, mut listener) = listener().await;
    let mut silent_streams = Vec::new();
    for _ in 0..=UNAUTHENTICATED_MAX {
        silent_streams.push(UnixStream::connect(listener.path()).await.unwrap());
    }
    assert_eq!(silent_streams[0].read(&mut [0]).await.unwrap(), 0);
    let admission = listener.admit(FRIEND).unwrap();
    let offer = admission.offer().encode();
    let greeting = [&[1], &offer[offer.len() - SECRET_BYTES..]].concat();
    for stream in &mut silent_streams[1..] {
        stream.write_all(&greeting).await.unwrap();
        assert_eq!(listener.arrival().await.peer, FRIEND);
    }
}

#[tokio::test]
async fn a_connection_that_stays_silent_is_closed() {
    let (_folder, listener) = listener().await;
    let mut stream = UnixStream::connect(listener.path()).await.unwrap();
    stream.write_all(&[1; SECRET_BYTES]).await.unwrap();
    // All but the last byte of a greeting. The closing may find them unread.
    let end = stream.read(&mut [0]).await;
    assert!(matches!(&end, Ok(0)) || end.is_err(), "{end:?}");
    assert_eq!(listener.refused(), 1);
}

#[tokio::test]
async fn an_offer_of_another_machine_or_of_no_process_leads_nowhere() {
    let (folder, listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let path = listener.path().as_os_str().as_encoded_bytes();
    let other_host = LocalOffer::decode(&offer_bytes("another-boot", path, &[0; 32])).unwrap();
    assert!(!other_host.is_reachable_from(listener.host()));
    let dialled = dial(&other_host, listener.host(), LocalLane::Bulk).await;
    assert!(matches!(dialled, Err(LocalDialError::OtherHost)), "{dialled:?}");
    let host = listener.host().clone();
    let offer = admission.offer().clone();
    drop(listener);
    assert!(!offer.is_reachable_from(&host));
    let dialled = dial(&offer, &host, LocalLane::Bulk).await;
    assert!(matches!(dialled, Err(LocalDialError::NotHere(_))), "{dialled:?}");
    drop(folder);
}

#[tokio::test]
async fn a_listener_that_did_not_make_the_offer_is_found_out() {
    let (folder, listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let offer = admission.offer().clone();
    let host = listener.host().clone();
    drop(listener);
    // As in a container where the path is another process's.
    let other = bind(&folder.path().join("local")).await.unwrap();
    assert!(offer.is_reachable_from(&host));
    let dialled = dial(&offer, &host, LocalLane::Bulk).await;
    assert!(matches!(dialled, Err(LocalDialError::WrongListener)), "{dialled:?}");
    drop(other);
    let impostor = tokio::net::UnixListener::bind(&offer.path).unwrap();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = impostor.accept().await.unwrap();
        stream.write_all(&[7; SECRET_BYTES]).await.unwrap();
        stream
    });
    let dialled = dial(&offer, &host, LocalLane::Bulk).await;
    assert!(matches!(dialled, Err(LocalDialError::WrongListener)), "{dialled:?}");
    drop(answering.await.unwrap());
}

#[tokio::test]
async fn what_a_dead_process_left_is_removed_and_a_living_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("local");
    let path = bind(&folder).await.unwrap().path().to_owned();
    assert!(!path.exists());
    drop(StdListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = bind(&folder).await.unwrap();
    let second = bind(&folder).await;
    assert!(matches!(&second, Err(LocalBindError::InUse { path: reported }) if *reported == path));
    let admission = listener.admit(FRIEND).unwrap();
    dial(admission.offer(), listener.host(), LocalLane::Bulk).await.unwrap();
}

#[tokio::test]
async fn a_folder_that_others_can_enter_is_refused_and_left_as_it_is() {
    let parent = tempfile::tempdir().unwrap();
    for found in [0o701, 0o710, 0o755, 0o1777] {
        let folder = parent.path().join(format!("{found:o}"));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(found)).unwrap();
        match bind(&folder).await {
            Err(LocalBindError::Folder(LocalFolderError::OpenToOthers {
                found: reported, ..
            })) => {
                assert_eq!(reported, found);
            }
            other => panic!("not refused: {other:?}"),
        }
        assert_eq!(mode(&folder), found);
    }
    let file = parent.path().join("file");
    fs::write(&file, b"").unwrap();
    let bound = bind(&file).await;
    let is_unusable =
        matches!(&bound, Err(LocalBindError::Folder(LocalFolderError::Unusable { .. })));
    assert!(is_unusable, "{bound:?}");
}

/// A folder below `parent` in which the socket's path has this many bytes.
fn folder_for(parent: &Path, socket_bytes: usize) -> PathBuf {
    let known = parent.as_os_str().len() + "/".len() + "/local.sock".len();
    parent.join("d".repeat(socket_bytes - known))
}

#[tokio::test]
async fn a_path_that_is_too_long_for_a_socket_is_shortened() {
    let parent = tempfile::tempdir().unwrap();
    let longest = folder_for(parent.path(), SOCKET_PATH_BYTES_MAX);
    let listener = bind(&longest).await.unwrap();
    assert_eq!(listener.path().parent(), Some(&*longest));
    assert_eq!(listener.path().as_os_str().len(), SOCKET_PATH_BYTES_MAX);

    let longer = folder_for(parent.path(), SOCKET_PATH_BYTES_MAX + 1);
    let mut listener = bind(&longer).await.unwrap();
    let short = listener.path().parent().unwrap().to_owned();
    assert_eq!((short.parent(), mode(&short)), (Some(&*std::env::temp_dir()), 0o700));
    let admission = listener.admit(FRIEND).unwrap();
    let _stream = dial(admission.offer(), listener.host(), LocalLane::Tensor).await.unwrap();
    assert_eq!(listener.arrival().await.peer, FRIEND);
    assert!(matches!(bind(&longer).await, Err(LocalBindError::InUse { .. })));
    drop(listener);
    assert!(!short.exists());

    let bound = LocalListener::bind(&longer, &longer).await;
    let is_reported =
        matches!(&bound, Err(LocalBindError::Folder(LocalFolderError::TooLong { .. })));
    assert!(is_reported, "{bound:?}");
}

#[tokio::test]
async fn a_link_in_the_place_of_the_short_folder_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let longer = folder_for(parent.path(), SOCKET_PATH_BYTES_MAX + 1);
    let temporary = parent.path().join("t");
    fs::create_dir(&temporary).unwrap();
    let bind = || LocalListener::bind(&longer, &temporary);
    let short = bind().await.unwrap().path().parent().unwrap().to_owned();
    let target = parent.path().join("private");
    fs::DirBuilder::new().mode(0o700).create(&target).unwrap();
    std::os::unix::fs::symlink(&target, &short).unwrap();
    let bound = bind().await;
    let is_reported =
        matches!(&bound, Err(LocalBindError::Folder(LocalFolderError::NoFolder { .. })));
    assert!(is_reported, "{bound:?}");
}

#[tokio::test]
async fn a_killed_process_ends_its_streams() {
    let (_folder, mut listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let near = dial(admission.offer(), listener.host(), LocalLane::Control).await.unwrap();
    let mut far = listener.arrival().await.stream;
    let near = OwnedFd::from(near.into_std().unwrap());
    let mut process = Command::new("sleep").arg("1000").stdin(Stdio::from(near)).spawn().unwrap();
    let early = far.try_read(&mut [0]);
    assert_eq!(early.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    process.kill().unwrap();
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    process.wait().unwrap();
}

#[test]
fn offers_are_bounded() {
    let check = |boot_bytes: usize, path: &str, expected| {
        let bytes = offer_bytes(&"b".repeat(boot_bytes), path.as_bytes(), &[3; 32]);
        assert_eq!(LocalOffer::decode(&bytes).map(|offer| offer.path), expected);
    };
    let longest = format!("/{}", "p".repeat(SOCKET_PATH_BYTES_MAX - 1));
    check(36, &longest, Ok(PathBuf::from(&longest)));
    let found = SOCKET_PATH_BYTES_MAX + 1;
    check(36, &format!("{longest}p"), Err(OfferFault::PathLength { found }));
    check(36, "", Err(OfferFault::PathLength { found: 0 }));
    check(36, "local.sock", Err(OfferFault::PathRelative));
    check(BOOT_ID_BYTES_MAX, "/s", Ok(PathBuf::from("/s")));
    let found = BOOT_ID_BYTES_MAX + 1;
    check(found, "/s", Err(OfferFault::BootIdTooLong { found }));
    let mut bytes = offer_bytes("b", b"/s", &[3; 32]);
    for length in 0..bytes.len() {
        assert_eq!(LocalOffer::decode(&bytes[..length]), Err(OfferFault::NoOffer));
    }
    bytes.push(0);
    assert_eq!(LocalOffer::decode(&bytes), Err(OfferFault::NoOffer));
}

#[tokio::test]
async fn a_secret_is_not_printed() {
    let (_folder, listener) = listener().await;
    let admission = listener.admit(FRIEND).unwrap();
    let text = format!("{admission:?} {listener:?}");
    assert!(text.contains("LocalSecret(..)"), "{text}");
    assert!(!text.contains("LocalSecret(["), "{text}");
}

proptest! {
    #[test]
    fn any_bytes_are_an_offer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(offer) = LocalOffer::decode(&bytes) {
            prop_assert!(offer.path.is_absolute());
        }
    }
}
